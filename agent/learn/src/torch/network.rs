//! Actor and critic as views of one flat tensor: a step of the optimiser is then a handful of operations, whatever the
//! number of layers.

use crate::architecture::Architecture;
use ccplane_quantize::Activation;
use tch::{Device, TchError, Tensor};

/// The layout of both networks and `log_std` in the flat tensor, in the order of
/// [`Moments::first`](crate::Moments::first).
#[derive(Debug)]
pub(super) struct Networks {
    /// Outputs and inputs of each layer of one network.
    layers: Vec<(i64, i64)>,
    /// Lengths of the views: weights and biases of the actor's layers, of the critic's, `log_std`.
    lengths: Vec<i64>,
    activation: Activation,
    /// 1 where there is a parameter and 0 where the architecture has no connection; `None` where it has all.
    mask: Option<Tensor>,
}

/// The networks' outputs for a batch of observations.
pub(super) struct Outputs {
    pub means: Tensor,
    pub values: Tensor,
    pub log_std: Tensor,
}

impl Networks {
    pub fn new(architecture: &Architecture, device: Device) -> Result<Networks, TchError> {
        let widths: Vec<i64> = architecture.widths().iter().map(|n| *n as i64).collect();
        let layers: Vec<(i64, i64)> = widths.windows(2).map(|w| (w[1], w[0])).collect();
        let one: Vec<i64> =
            layers.iter().flat_map(|(outputs, inputs)| [outputs * inputs, *outputs]).collect();
        let lengths = [one.as_slice(), &one, &[1]].concat();
        let mask = match architecture.preference {
            Some(_) => Some(Tensor::f_from_slice(&mask(architecture))?.f_to_device(device)?),
            None => None,
        };
        Ok(Networks { layers, lengths, activation: architecture.activation, mask })
    }

    /// `observations`: one a row.
    pub fn forward(&self, parameters: &Tensor, observations: &Tensor) -> Result<Outputs, TchError> {
        let views = parameters.f_split_with_sizes(self.lengths.as_slice(), 0)?;
        let (actor, rest) = views.split_at(2 * self.layers.len());
        let (critic, log_std) = rest.split_at(2 * self.layers.len());
        Ok(Outputs {
            means: self.one(actor, observations)?,
            values: self.one(critic, observations)?,
            log_std: log_std[0].shallow_clone(),
        })
    }

    /// Sets a gradient to 0 where it belongs to no parameter.
    pub fn mask(&self, gradient: &mut Tensor) -> Result<(), TchError> {
        if let Some(mask) = &self.mask {
            let _ = gradient.f_mul_(mask)?;
        }
        Ok(())
    }

    fn one(&self, views: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        let mut x = observations.shallow_clone();
        for (n, (layer, (outputs, inputs))) in views.chunks_exact(2).zip(&self.layers).enumerate() {
            let weights = layer[0].f_view([*outputs, *inputs])?;
            x = x.f_linear(&weights, Some(&layer[1]))?;
            if n + 1 < self.layers.len() {
                x = match self.activation {
                    Activation::Tanh => x.f_tanh()?,
                    Activation::Relu => x.f_relu()?,
                };
            }
        }
        x.f_view([-1])
    }
}

/// [`Networks::mask`] of an architecture.
fn mask(architecture: &Architecture) -> Vec<f32> {
    let weights = architecture.hidden[0] * architecture.inputs;
    let mut one = vec![1.0; architecture.parameters()];
    for (n, entry) in one[..weights].iter_mut().enumerate() {
        if !architecture.connects(n / architecture.inputs, n % architecture.inputs) {
            *entry = 0.0;
        }
    }
    [one.as_slice(), &one, &[1.0]].concat()
}

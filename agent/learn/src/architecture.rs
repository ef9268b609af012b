//! The shape of a policy's networks, and the weights that they start from.

use crate::rng::Rng;
use ccplane_quantize::{Activation, Dense, Mlp};
use serde::{Deserialize, Serialize};

/// Inputs, at most: as many as the histories of a datapath have cells.
pub const MAX_INPUTS: usize = 64;
/// Hidden layers, at most.
pub const MAX_HIDDEN: usize = 8;
/// Neurons in a layer, at most.
pub const MAX_NEURONS: usize = 4096;

/// MOCC's preference sub-network: part of the first hidden layer that sees the preference alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreferenceBlock {
    /// Inputs, the last ones of an observation, that are the preference.
    pub inputs: usize,
    /// Neurons of the first hidden layer, its first ones, that see only these. The others see only the state.
    pub width: usize,
}

/// Widths and activation of actor and critic, which are two networks of the same widths with one output each.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Numbers in an observation, the preference included.
    pub inputs: usize,
    /// Neurons of each hidden layer.
    pub hidden: Vec<usize>,
    /// The activation of the hidden layers; the output is linear.
    #[serde(with = "ActivationName")]
    pub activation: Activation,
    /// The inputs that hold the preference, and the width of their sub-network.
    pub preference: Option<PreferenceBlock>,
}

/// The reason why there is no such network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArchitectureError {
    /// No or too many inputs.
    #[error("{found} inputs, 1 to {MAX_INPUTS} are allowed")]
    Inputs { found: usize },
    /// No or too many hidden layers.
    #[error("{found} hidden layers, 1 to {MAX_HIDDEN} are allowed")]
    Hidden { found: usize },
    /// A layer of none or too many neurons.
    #[error("hidden layer {layer} has {found} neurons, 1 to {MAX_NEURONS} are allowed")]
    Neurons {
        /// The layer's number, counted from 1.
        layer: usize,
        found: usize,
    },
    /// Nothing would be left for the state.
    #[error(
        "the preference takes {inputs} of {of_inputs} inputs and {width} of {of_neurons} neurons: some must be left"
    )]
    Preference {
        inputs: usize,
        of_inputs: usize,
        width: usize,
        /// All of the first hidden layer.
        of_neurons: usize,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Activation", rename_all = "lowercase")]
enum ActivationName {
    Tanh,
    Relu,
}

impl Architecture {
    /// Aurora's: 10 intervals of 3 features, 32 and 16 neurons (Jay et al., ICML 2019, section 4).
    pub fn aurora() -> Architecture {
        Architecture { inputs: 30, hidden: vec![32, 16], activation: Activation::Tanh, preference: None }
    }

    /// MOCC's: Aurora's features and three weights; 64 and 32 neurons, 16 of which see the weights alone
    /// (Ma et al., EuroSys 2022, section 4.1; the sub-network's width is our choice).
    pub fn mocc() -> Architecture {
        Architecture {
            inputs: 33,
            hidden: vec![64, 32],
            activation: Activation::Tanh,
            preference: Some(PreferenceBlock { inputs: 3, width: 16 }),
        }
    }

    /// Returns the shape of a network that was trained elsewhere, without a preference.
    pub fn of(network: &Mlp) -> Architecture {
        let widths = network.widths();
        let first = network.layers().first();
        Architecture {
            inputs: first.map_or(0, |layer| layer.inputs),
            hidden: widths.get(1..widths.len() - 1).unwrap_or_default().to_vec(),
            activation: first.and_then(|layer| layer.activation).unwrap_or(Activation::Tanh),
            preference: None,
        }
    }

    /// # Errors
    /// The first of its numbers that is out of bounds.
    pub fn check(&self) -> Result<(), ArchitectureError> {
        if !(1..=MAX_INPUTS).contains(&self.inputs) {
            return Err(ArchitectureError::Inputs { found: self.inputs });
        }
        if !(1..=MAX_HIDDEN).contains(&self.hidden.len()) {
            return Err(ArchitectureError::Hidden { found: self.hidden.len() });
        }
        for (n, found) in self.hidden.iter().copied().enumerate() {
            if !(1..=MAX_NEURONS).contains(&found) {
                return Err(ArchitectureError::Neurons { layer: n + 1, found });
            }
        }
        match self.preference {
            Some(PreferenceBlock { inputs, width })
                if !(1..self.inputs).contains(&inputs) || !(1..self.hidden[0]).contains(&width) =>
            {
                let (of_inputs, of_neurons) = (self.inputs, self.hidden[0]);
                Err(ArchitectureError::Preference { inputs, of_inputs, width, of_neurons })
            }
            _ => Ok(()),
        }
    }

    /// Inputs, hidden layers, 1.
    pub fn widths(&self) -> Vec<usize> {
        [&[self.inputs], self.hidden.as_slice(), &[1]].concat()
    }

    /// Parameters of one network.
    pub fn parameters(&self) -> usize {
        self.widths().windows(2).map(|w| (w[0] + 1) * w[1]).sum()
    }

    /// Whether the first layer has the weight from `input` to `neuron`; the others are 0 and stay so.
    pub fn connects(&self, neuron: usize, input: usize) -> bool {
        self.preference.is_none_or(|p| (neuron < p.width) == (input >= self.inputs - p.inputs))
    }

    /// A network's first weights: orthogonal (Saxe et al., 2014), of gain sqrt 2 in hidden layers and `output_gain` in
    /// the last; no biases.
    pub(crate) fn initial(&self, output_gain: f64, rng: &mut Rng) -> Vec<Dense> {
        let widths = self.widths();
        let last = widths.len() - 2;
        let layer = |n: usize| {
            let (inputs, outputs) = (widths[n], widths[n + 1]);
            let gain = if n == last { output_gain } else { std::f64::consts::SQRT_2 };
            let mut weights = vec![0.0; inputs * outputs];
            let blocks = match self.preference {
                Some(p) if n == 0 => {
                    vec![(0..p.width, inputs - p.inputs..inputs), (p.width..outputs, 0..inputs - p.inputs)]
                }
                _ => vec![(0..outputs, 0..inputs)],
            };
            for (rows, columns) in blocks {
                let block = orthogonal(rows.len(), columns.len(), rng);
                for (r, row) in rows.enumerate() {
                    for (c, column) in columns.clone().enumerate() {
                        weights[row * inputs + column] = (gain * block[r * columns.len() + c]) as f32;
                    }
                }
            }
            let activation = (n < last).then_some(self.activation);
            Dense { inputs, outputs, weights, bias: vec![0.0; outputs], activation }
        };
        (0..=last).map(layer).collect()
    }
}

/// A random matrix, row by row, whose rows (or columns, where there are more rows) are orthonormal.
fn orthogonal(rows: usize, columns: usize, rng: &mut Rng) -> Vec<f64> {
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (0..len).map(|_| rng.normal()).collect();
        // Gram and Schmidt, twice, as once loses orthogonality to rounding.
        for _ in 0..2 {
            for u in &vectors {
                let along: f64 = v.iter().zip(u).map(|(a, b)| a * b).sum();
                v.iter_mut().zip(u).for_each(|(a, b)| *a -= along * b);
            }
        }
        let norm = v.iter().map(|a| a * a).sum::<f64>().sqrt();
        if norm > 1e-6 {
            v.iter_mut().for_each(|a| *a /= norm);
            vectors.push(v);
        }
    }
    let at = |r: usize, c: usize| if rows <= columns { vectors[r][c] } else { vectors[c][r] };
    (0..rows * columns).map(|n| at(n / columns, n % columns)).collect()
}

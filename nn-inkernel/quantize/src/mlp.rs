//! Float networks, as they are trained.

use ccplane_infer::MAX_CLASSES;

/// The activation function of a hidden neuron.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    Tanh,
    /// The sum if it is positive, else 0.
    Relu,
}

/// A layer in which every output depends on every input.
#[derive(Clone, PartialEq, Debug)]
pub struct Dense {
    pub inputs: usize,
    pub outputs: usize,
    /// Weights row by row: all inputs of output 0, then of output 1, and so on.
    pub weights: Vec<f32>,
    /// Biases, one for each output.
    pub bias: Vec<f32>,
    /// The activation function; `None` for a linear layer.
    pub activation: Option<Activation>,
}

/// A multi-layer perceptron with linear outputs: one, the action, or one for each class.
#[derive(Clone, PartialEq, Debug)]
pub struct Mlp {
    layers: Vec<Dense>,
}

/// Reasons why layers are not a network. Layers count from 1.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MlpError {
    /// No layers are given.
    #[error("a network has at least one layer")]
    NoLayers,
    /// A layer has no inputs or no outputs.
    #[error("layer {layer} is empty: {inputs} inputs, {outputs} outputs")]
    Empty { layer: usize, inputs: usize, outputs: usize },
    /// The number of weights or biases differs from the widths.
    #[error("layer {layer} has {found} {what}, its widths say {expected}")]
    Count {
        layer: usize,
        /// The array: `weights` or `biases`.
        what: &'static str,
        found: usize,
        expected: usize,
    },
    /// A layer's inputs differ from the outputs of the layer before.
    #[error("layer {layer} takes {found} numbers, the one before gives {expected}")]
    Widths { layer: usize, found: usize, expected: usize },
    /// A weight or bias is infinite or not a number.
    #[error("layer {layer} has a {what} that is not finite")]
    NotFinite {
        layer: usize,
        /// The array: `weight` or `bias`.
        what: &'static str,
    },
    /// A hidden layer is linear.
    #[error("layer {layer} is hidden and needs an activation function")]
    LinearHidden { layer: usize },
    /// The last layer is not one linear output.
    #[error("the last layer is one linear output: it has {outputs} outputs, activation {activation:?}")]
    Output { outputs: usize, activation: Option<Activation> },
    /// The last layer is not a linear output for each of several classes.
    #[error(
        "the last layer has {outputs} outputs, activation {activation:?}: a classifier's are 2 to {MAX_CLASSES} linear ones"
    )]
    Classes { outputs: usize, activation: Option<Activation> },
}

/// Reusable buffers of [`Mlp::forward`].
#[derive(Clone, Default, Debug)]
pub struct Scratch {
    from: Vec<f32>,
    to: Vec<f32>,
}

impl Dense {
    /// The sum of output `output`, before activation.
    pub(crate) fn sum(&self, output: usize, x: &[f32]) -> f32 {
        let row = self.row(output);
        let dot: f32 = row.iter().zip(x).map(|(w, x)| w * x).sum();
        dot + self.bias.get(output).copied().unwrap_or(0.0)
    }

    /// The weights of output `output`.
    pub(crate) fn row(&self, output: usize) -> &[f32] {
        let start = output * self.inputs;
        self.weights.get(start..start + self.inputs).unwrap_or(&[])
    }

    fn check(&self, layer: usize) -> Result<(), MlpError> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        if inputs == 0 || outputs == 0 {
            return Err(MlpError::Empty { layer, inputs, outputs });
        }
        let expected = inputs.saturating_mul(outputs);
        let counts = [("weights", self.weights.len(), expected), ("biases", self.bias.len(), outputs)];
        for (what, found, expected) in counts {
            if found != expected {
                return Err(MlpError::Count { layer, what, found, expected });
            }
        }
        for (what, numbers) in [("weight", &self.weights), ("bias", &self.bias)] {
            if !numbers.iter().all(|n| n.is_finite()) {
                return Err(MlpError::NotFinite { layer, what });
            }
        }
        Ok(())
    }
}

impl Activation {
    /// Computes the activation of a sum.
    pub fn apply(self, sum: f32) -> f32 {
        match self {
            Activation::Tanh => sum.tanh(),
            Activation::Relu => sum.max(0.0),
        }
    }
}

impl Mlp {
    /// Makes a network of these layers, the last of which is one linear output.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn new(layers: Vec<Dense>) -> Result<Mlp, MlpError> {
        let mlp = Mlp::checked(layers)?;
        match mlp.layers.last() {
            Some(Dense { outputs: 1, activation: None, .. }) => Ok(mlp),
            last => {
                let (outputs, activation) = last.map_or((0, None), |l| (l.outputs, l.activation));
                Err(MlpError::Output { outputs, activation })
            }
        }
    }

    /// Makes a network of these layers, the last of which is a linear output for each class.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn classifier(layers: Vec<Dense>) -> Result<Mlp, MlpError> {
        let mlp = Mlp::checked(layers)?;
        match mlp.layers.last() {
            Some(Dense { outputs: 2..=MAX_CLASSES, activation: None, .. }) => Ok(mlp),
            last => {
                let (outputs, activation) = last.map_or((0, None), |l| (l.outputs, l.activation));
                Err(MlpError::Classes { outputs, activation })
            }
        }
    }

    fn checked(layers: Vec<Dense>) -> Result<Mlp, MlpError> {
        if layers.is_empty() {
            return Err(MlpError::NoLayers);
        }
        let mut expected = layers[0].inputs;
        for (n, layer) in layers.iter().enumerate() {
            layer.check(n + 1)?;
            if layer.inputs != expected {
                return Err(MlpError::Widths { layer: n + 1, found: layer.inputs, expected });
            }
            if layer.activation.is_none() && n + 1 < layers.len() {
                return Err(MlpError::LinearHidden { layer: n + 1 });
            }
            expected = layer.outputs;
        }
        Ok(Mlp { layers })
    }

    /// The layers, the first one first.
    pub fn layers(&self) -> &[Dense] {
        &self.layers
    }

    /// The widths: inputs, hidden layers, outputs.
    pub fn widths(&self) -> Vec<usize> {
        self.layers.iter().take(1).map(|l| l.inputs).chain(self.layers.iter().map(|l| l.outputs)).collect()
    }

    /// Computes the unbounded action for an input in [-1, 1]. Allocates only while `scratch` is new.
    pub fn forward(&self, input: &[f32], scratch: &mut Scratch) -> f32 {
        self.outputs(input, scratch).first().copied().unwrap_or(0.0)
    }

    /// Computes the class for an input in [-1, 1]: the largest output's index, the lowest on a tie.
    pub fn classify(&self, input: &[f32], scratch: &mut Scratch) -> usize {
        let mut best = (0, f32::NEG_INFINITY);
        for (class, output) in self.outputs(input, scratch).iter().enumerate() {
            if *output > best.1 {
                best = (class, *output);
            }
        }
        best.0
    }

    /// Computes all outputs for an input in [-1, 1]. Allocates only while `scratch` is new.
    pub fn outputs<'s>(&self, input: &[f32], scratch: &'s mut Scratch) -> &'s [f32] {
        scratch.from.clear();
        scratch.from.extend_from_slice(input);
        for layer in &self.layers {
            scratch.to.clear();
            for output in 0..layer.outputs {
                let sum = layer.sum(output, &scratch.from);
                scratch.to.push(layer.activation.map_or(sum, |f| f.apply(sum)));
            }
            std::mem::swap(&mut scratch.from, &mut scratch.to);
        }
        &scratch.from
    }
}

//! Integer networks whose sums are proved not to overflow.

use ccplane_infer::image::{MAX_OUT_MULT, MAX_OUT_SHIFT};
use ccplane_infer::{Bits, Shape, ShapeError, tables};

/// A layer of an integer network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layer {
    /// Weights row by row: all inputs of output 0, then of output 1, and so on.
    pub weights: Vec<i16>,
    /// Biases, one for each output.
    pub biases: Vec<i32>,
    /// The [`tables`] index of each output: 0 to 7 tanh, 8 to 15 relu. Empty in the last layer.
    pub tables: Vec<u8>,
}

/// An integer network whose sums cannot overflow.
///
/// It remembers whether it was read from outside, even if a snapshot is taken apart and put together again.
#[derive(Clone, Debug)]
pub struct Network {
    shape: Shape,
    layers: Vec<Layer>,
    out_mult: i64,
    out_shift: u32,
    maker: Maker,
}

/// The origin of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Maker {
    /// The network was made by this process or built into it.
    Us,
    /// The network was read, and only a signature can vouch for it.
    Anyone,
}

/// Networks of the same numbers are equal, whatever their origin.
impl PartialEq for Network {
    fn eq(&self, other: &Network) -> bool {
        let numbers = |n: &Network| (n.out_mult, n.out_shift);
        self.shape == other.shape && self.layers == other.layers && numbers(self) == numbers(other)
    }
}

impl Eq for Network {}

/// Reasons why there is no such network. Layers and neurons count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The widths are outside their limits.
    #[error("network: {0}")]
    Shape(#[from] ShapeError),
    /// The number of elements differs from the shape's.
    #[error("network: layer {layer} has {found} {what}, its shape says {expected}")]
    Count {
        layer: usize,
        /// The array: `layers`, `weights`, `biases` or `tables`.
        what: &'static str,
        found: usize,
        expected: usize,
    },
    /// A neuron's sum could leave its lane.
    #[error(
        "network: neuron {neuron} of layer {layer}: sum |w| * {max_activation} + |b| is {reach}, \
         and must be below {limit}"
    )]
    Overflow {
        layer: usize,
        /// The neuron's number within its layer.
        neuron: usize,
        /// The largest magnitude of an activation.
        max_activation: i64,
        /// The largest magnitude that the sum can reach.
        reach: i64,
        /// The largest magnitude that the lane can hold.
        limit: i64,
    },
    /// A neuron's table does not exist.
    #[error("network: neuron {neuron} of layer {layer} uses table {found}, there are {}", tables::CLASSES)]
    Table {
        layer: usize,
        /// The neuron's number within its layer.
        neuron: usize,
        found: u8,
    },
    /// The output's factor is outside its limits.
    #[error("network: out_mult is {found}, 1 to {MAX_OUT_MULT} are allowed")]
    OutMult { found: i64 },
    /// The output's shift is outside its limits.
    #[error("network: out_shift is {found}, at most {MAX_OUT_SHIFT} is allowed")]
    OutShift { found: u32 },
}

impl Network {
    /// Makes a network of these widths (inputs, hidden layers, outputs), with the action `sum * out_mult >> out_shift`, Q16.
    ///
    /// One output is a policy's, several are a classifier's.
    ///
    /// # Errors
    /// The first number that is outside its limits; [`NetworkError::Overflow`] unless every neuron's sum is proved to
    /// stay in its lane whatever the inputs.
    pub fn new(
        bits: Bits,
        widths: &[usize],
        layers: Vec<Layer>,
        out_mult: i64,
        out_shift: u32,
    ) -> Result<Network, NetworkError> {
        let shape = match widths.last() {
            Some(2..) => Shape::classifier(bits, widths)?,
            _ => Shape::new(bits, widths)?,
        };
        let count = |layer, what, found, expected| {
            if found == expected { Ok(()) } else { Err(NetworkError::Count { layer, what, found, expected }) }
        };
        count(shape.layers(), "layers", layers.len(), shape.layers())?;
        for (n, layer) in layers.iter().enumerate() {
            let (inputs, outputs) = shape.layer(n);
            count(n + 1, "weights", layer.weights.len(), inputs * outputs)?;
            count(n + 1, "biases", layer.biases.len(), outputs)?;
            count(n + 1, "tables", layer.tables.len(), if n + 1 < layers.len() { outputs } else { 0 })?;
            layer.prove(n + 1, inputs, bits)?;
        }
        if !(1..=MAX_OUT_MULT).contains(&out_mult) {
            return Err(NetworkError::OutMult { found: out_mult });
        }
        if out_shift > MAX_OUT_SHIFT {
            return Err(NetworkError::OutShift { found: out_shift });
        }
        Ok(Network { shape, layers, out_mult, out_shift, maker: Maker::Us })
    }

    /// The same network with origin `maker`.
    pub(crate) fn made_by(self, maker: Maker) -> Network {
        Network { maker, ..self }
    }

    pub(crate) fn maker(&self) -> Maker {
        self.maker
    }

    /// The widths of the network's layers and numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The layers, the first one first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The scale factor of the output.
    pub fn out_mult(&self) -> i64 {
        self.out_mult
    }

    /// Bits by which the output's product is shifted to the right.
    pub fn out_shift(&self) -> u32 {
        self.out_shift
    }

    /// The widths: inputs, hidden layers, outputs.
    pub fn widths(&self) -> Vec<usize> {
        let outputs = (0..self.shape.layers()).map(|l| self.shape.layer(l).1);
        std::iter::once(self.shape.inputs()).chain(outputs).collect()
    }
}

impl Layer {
    /// Proves that no input makes a sum leave its lane: `sum |w| A + |b| < 2^(b-1)`.
    fn prove(&self, layer: usize, inputs: usize, bits: Bits) -> Result<(), NetworkError> {
        let (max_activation, limit) = (bits.max_activation(), bits.lane_offset());
        for (n, (row, bias)) in self.weights.chunks_exact(inputs).zip(&self.biases).enumerate() {
            let reach = reach(row, *bias, max_activation);
            if reach >= limit {
                return Err(NetworkError::Overflow { layer, neuron: n + 1, max_activation, reach, limit });
            }
        }
        let bad = self.tables.iter().position(|t| usize::from(*t) >= tables::CLASSES);
        bad.map_or(Ok(()), |n| Err(NetworkError::Table { layer, neuron: n + 1, found: self.tables[n] }))
    }
}

/// The largest magnitude that a neuron's sum can reach.
fn reach(row: &[i16], bias: i32, max_activation: i64) -> i64 {
    let weights: i64 = row.iter().map(|w| i64::from(w.unsigned_abs())).sum();
    weights * max_activation + i64::from(bias.unsigned_abs())
}

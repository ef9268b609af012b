//! The shape of a network, and the offsets in its image.

use crate::bits::Bits;
use crate::bounds::{MAX_CLASSES, MAX_IMAGE_BYTES, MAX_INPUTS, MAX_LAYERS, MAX_WIDTH};
use crate::image::{FEATURE_BYTES, FEATURES};
use core::fmt;
use core::ops::RangeInclusive;

/// The widths of a network's layers and of its numbers. A policy's output is one action, a classifier's a sum for each class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Shape {
    bits: Bits,
    layers: u8,
    widths: [u8; MAX_LAYERS + 1],
    /// Derived from the other fields, precomputed for each decision.
    image_bytes: u32,
    code: u64,
}

/// Reasons why there is no such shape.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShapeError {
    /// The network has no or too many layers of weights.
    Layers { found: usize },
    /// The network has no or too many inputs.
    Inputs { found: usize },
    /// A hidden layer has no or too many neurons.
    Width {
        /// The layer's number, counted from 1.
        layer: usize,
        found: usize,
    },
    /// The output is not one number.
    Outputs { found: usize },
    /// A classifier has too few or too many outputs.
    Classes { found: usize },
    /// The image would not fit its buffer.
    Image {
        /// The image's size, bytes.
        bytes: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Layers { found } => {
                write!(f, "{found} layers of weights, 1 to {MAX_LAYERS} are allowed")
            }
            ShapeError::Inputs { found } => write!(f, "{found} inputs, 1 to {MAX_INPUTS} are allowed"),
            ShapeError::Width { layer, found } => {
                write!(f, "layer {layer} has {found} neurons, 1 to {MAX_WIDTH} are allowed")
            }
            ShapeError::Outputs { found } => write!(f, "{found} outputs: a policy has one action"),
            ShapeError::Classes { found } => {
                write!(f, "{found} outputs: a classifier has 2 to {MAX_CLASSES} classes")
            }
            ShapeError::Image { bytes } => write!(f, "{bytes} bytes, at most {MAX_IMAGE_BYTES} are allowed"),
        }
    }
}

impl core::error::Error for ShapeError {}

impl Shape {
    /// Makes a policy's shape of these widths: inputs, hidden layers, 1.
    ///
    /// # Errors
    /// The first width outside its limits.
    pub fn new(bits: Bits, widths: &[usize]) -> Result<Shape, ShapeError> {
        Shape::with(bits, widths, 1..=1)
    }

    /// Makes a classifier's shape of these widths: inputs, hidden layers, classes. No policy slot takes it.
    ///
    /// # Errors
    /// The first width outside its limits.
    pub fn classifier(bits: Bits, widths: &[usize]) -> Result<Shape, ShapeError> {
        Shape::with(bits, widths, 2..=MAX_CLASSES)
    }

    fn with(bits: Bits, widths: &[usize], outputs: RangeInclusive<usize>) -> Result<Shape, ShapeError> {
        let layers = widths.len().saturating_sub(1);
        if !(1..=MAX_LAYERS).contains(&layers) {
            return Err(ShapeError::Layers { found: layers });
        }
        let none = [0; MAX_LAYERS + 1];
        let mut shape = Shape { bits, layers: layers as u8, widths: none, image_bytes: 0, code: 0 };
        for (n, (to, found)) in shape.widths.iter_mut().zip(widths.iter().copied()).enumerate() {
            if n == layers && !outputs.contains(&found) {
                let is_policy = *outputs.end() == 1;
                return Err(if is_policy {
                    ShapeError::Outputs { found }
                } else {
                    ShapeError::Classes { found }
                });
            }
            if n == 0 && !(1..=MAX_INPUTS).contains(&found) {
                return Err(ShapeError::Inputs { found });
            }
            if !(1..=MAX_WIDTH).contains(&found) {
                return Err(ShapeError::Width { layer: n, found });
            }
            *to = found as u8;
        }
        let bytes = shape.bias_at(layers);
        shape.image_bytes = bytes as u32;
        let widths = shape.widths.iter().rev().fold(0, |code, w| code << 8 | u64::from(*w));
        shape.code = widths << 16 | (layers as u64) << 8 | bits as u64;
        if bytes > MAX_IMAGE_BYTES { Err(ShapeError::Image { bytes }) } else { Ok(shape) }
    }

    /// The policy's shape whose [`Shape::code`] this is; `None` for any other number.
    pub fn from_code(code: u64) -> Option<Shape> {
        let bits = [Bits::W8, Bits::W16].into_iter().find(|bits| *bits as u64 == code & 0xff)?;
        let widths: [usize; MAX_LAYERS + 1] =
            core::array::from_fn(|n| (code >> (16 + 8 * n)) as usize & 0xff);
        let shape = Shape::new(bits, widths.get(..=(code >> 8) as usize & 0xff)?).ok()?;
        (shape.code() == code).then_some(shape)
    }

    /// The width of the network's numbers.
    pub const fn bits(&self) -> Bits {
        self.bits
    }
    /// Layers of weights, including the output's.
    pub const fn layers(&self) -> usize {
        self.layers as usize
    }
    /// The number of inputs.
    pub const fn inputs(&self) -> usize {
        self.widths[0] as usize
    }
    /// The number of outputs: 1 for a policy, the classes of a classifier.
    pub fn outputs(&self) -> usize {
        self.layer(self.layers().saturating_sub(1)).1
    }
    /// The numbers of inputs and outputs of layer `layer`, counted from 0; (0, 0) if there is no such layer.
    pub fn layer(&self, layer: usize) -> (usize, usize) {
        if layer >= self.layers() {
            return (0, 0);
        }
        (usize::from(self.widths[layer]), usize::from(self.widths[layer + 1]))
    }
    /// Words that hold the sums of layer `layer`.
    pub fn groups(&self, layer: usize) -> usize {
        self.layer(layer).1.div_ceil(self.bits.lanes())
    }
    /// Offset of layer `layer`'s biases, bytes: one word a group.
    pub fn bias_at(&self, layer: usize) -> usize {
        let before: usize = (0..layer.min(self.layers())).map(|l| self.layer_bytes(l)).sum();
        FEATURES + FEATURE_BYTES * self.inputs() + before
    }
    /// Offset of layer `layer`'s weights, bytes: for each input one word a group.
    pub fn weights_at(&self, layer: usize) -> usize {
        self.bias_at(layer) + 8 * self.groups(layer)
    }
    /// Offset of a hidden layer's table indices, bytes: a u32 a neuron, an index into [`tables::W8`](crate::tables::W8)
    /// or [`tables::W16`](crate::tables::W16).
    pub fn tables_at(&self, layer: usize) -> usize {
        self.weights_at(layer) + 8 * self.groups(layer) * self.layer(layer).0
    }
    fn layer_bytes(&self, layer: usize) -> usize {
        let (inputs, outputs) = self.layer(layer);
        let tables = if layer + 1 < self.layers() { (4 * outputs).next_multiple_of(8) } else { 0 };
        8 * self.groups(layer) * (inputs + 1) + tables
    }
    /// Size of an image, bytes; a multiple of 8.
    pub const fn image_bytes(&self) -> usize {
        self.image_bytes as usize
    }
    /// The shape as one number, which an image carries.
    pub const fn code(&self) -> u64 {
        self.code
    }
}

//! Validation of images: whether words are an image that datapaths may run.

use crate::image::{self, feature};
use crate::shape::Shape;
use crate::{lanes, tables};
use core::fmt;

/// Bytes of an image's head that are reserved: after the name, up to the input specs.
const RESERVED: core::ops::Range<usize> = image::NAME + 8 * image::NAME_WORDS..image::FEATURES;

/// Reasons why words are not an image of a shape. Layers, neurons and inputs count from 1.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageError {
    /// The image's length differs from its shape's.
    Length {
        /// The image's length, bytes.
        found: usize,
        /// The shape's image length, bytes.
        expected: usize,
    },
    /// The image is of another shape.
    Shape {
        /// The shape code in the image.
        found: u64,
        /// The code of the expected shape.
        expected: u64,
    },
    /// A number is outside its limits.
    Range { field: &'static str, found: i64, min: i64, max: i64 },
    /// A reserved word is not 0.
    Reserved {
        /// Offset of the word, bytes.
        at: usize,
    },
    /// An input's range is empty, or its factor does not match the range.
    Feature { input: usize },
    /// A word is not a packing of 16-bit weights.
    Weights { layer: usize, input: usize },
    /// A neuron's sum could overflow its lane.
    Overflow {
        layer: usize,
        /// The neuron's number within its layer.
        neuron: usize,
        /// The largest magnitude that the sum can reach.
        reach: i64,
        /// The largest magnitude that the lane can hold.
        limit: i64,
    },
    /// A table index is not the start of a table.
    Table {
        layer: usize,
        /// The neuron's number within its layer.
        neuron: usize,
        /// The refused table index.
        found: u32,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::Length { found, expected } => {
                write!(f, "{found} bytes, its shape takes {expected}")
            }
            ImageError::Shape { found, expected } => {
                write!(f, "it is of shape {found:#x}, the slot's is {expected:#x}")
            }
            ImageError::Range { field, found, min, max } => {
                write!(f, "{field} is {found}, {min} to {max} are allowed")
            }
            ImageError::Reserved { at } => write!(f, "its reserved words are not 0: byte {at}"),
            ImageError::Feature { input } => {
                write!(f, "input {input}: lo < hi and their factor are needed")
            }
            ImageError::Weights { layer, input } => {
                write!(f, "layer {layer}, input {input}: not weights of 16 bits")
            }
            ImageError::Overflow { layer, neuron, reach, limit } => write!(
                f,
                "neuron {neuron} of layer {layer}: its sum can reach {reach}, and must stay below {limit}"
            ),
            ImageError::Table { layer, neuron, found } => {
                write!(f, "neuron {neuron} of layer {layer}: no table starts at entry {found}")
            }
        }
    }
}

impl core::error::Error for ImageError {}

/// Checks everything that an executor relies on; it proves from the weights that no sum overflows.
///
/// # Errors
/// The first word that is wrong.
pub fn check(shape: &Shape, image: &[u64]) -> Result<(), ImageError> {
    let (found, expected) = (core::mem::size_of_val(image), shape.image_bytes());
    if found != expected {
        return Err(ImageError::Length { found, expected });
    }
    let (found, expected) = (image::u64_at(image, image::SHAPE), shape.code());
    if found != expected {
        return Err(ImageError::Shape { found, expected });
    }
    header(image)?;
    let reserved = core::iter::once(image::FLAGS + 4).chain(RESERVED.step_by(4));
    if let Some(at) = reserved.into_iter().find(|at| image::u32_at(image, *at) != 0) {
        return Err(ImageError::Reserved { at });
    }
    for input in 0..shape.inputs() {
        check_feature(shape, image, input)?;
    }
    (0..shape.layers()).try_for_each(|layer| check_layer(shape, image, layer))
}

fn header(image: &[u64]) -> Result<(), ImageError> {
    let word = |at| i64::from(image::u32_at(image, at));
    let (bound, step) = (word(image::ACTION_BOUND_Q16), image::i64_at(image, image::STEP_Q20));
    let (min, max) = (image::i64_at(image, image::KNOB_MIN), image::i64_at(image, image::KNOB_MAX));
    let max_step = ((image::MAX_CHANGE_Q20 as i64 + 1) << 16) - 1;
    let limits = [
        ("uid", word(image::UID), 1, i64::from(u32::MAX)),
        ("action bound", bound, 1, i64::from(image::MAX_BOUND_Q16)),
        ("action map", word(image::MAP), 0, i64::from(image::map::CWND)),
        ("out_mult", image::i64_at(image, image::OUT_MULT), 1, image::MAX_OUT_MULT),
        ("out_shift", word(image::OUT_SHIFT), 0, i64::from(image::MAX_OUT_SHIFT)),
        ("step", step, 0, max_step / bound.max(1)),
        ("knob_min", min, 1, image::MAX_KNOB),
        ("knob_max", max, min.saturating_add(1), image::MAX_KNOB),
        ("noise_mult", image::i64_at(image, image::NOISE_MULT), 0, image::MAX_NOISE_MULT),
        ("flags", word(image::FLAGS), 0, i64::from(image::PIN)),
    ];
    for (field, found, min, max) in limits {
        if !(min..=max).contains(&found) {
            return Err(ImageError::Range { field, found, min, max });
        }
    }
    Ok(())
}

fn check_feature(shape: &Shape, image: &[u64], input: usize) -> Result<(), ImageError> {
    let at = image::FEATURES + image::FEATURE_BYTES * input;
    let lo = image::u32_at(image, at + feature::LO) as i32;
    let hi = image::u32_at(image, at + feature::HI) as i32;
    let mult = image::u64_at(image, at + feature::MULT);
    let good = lo < hi && mult == feature::mult(shape.bits(), lo, hi);
    if good { Ok(()) } else { Err(ImageError::Feature { input: input + 1 }) }
}

fn check_layer(shape: &Shape, image: &[u64], layer: usize) -> Result<(), ImageError> {
    let ((inputs, outputs), bits) = (shape.layer(layer), shape.bits());
    let groups = shape.groups(layer);
    for group in 0..groups {
        let mut reach =
            lanes::unpack_biases(bits, image::u64_at(image, shape.bias_at(layer) + 8 * group)).map(i64::abs);
        for input in 0..inputs {
            let at = shape.weights_at(layer) + 8 * (groups * input + group);
            let weights = lanes::unpack_weights(bits, image::u64_at(image, at))
                .filter(|weights| weights.iter().all(|w| i16::try_from(*w).is_ok()))
                .ok_or(ImageError::Weights { layer: layer + 1, input: input + 1 })?;
            for (reach, weight) in reach.iter_mut().zip(weights) {
                *reach += weight.abs() * bits.max_activation();
            }
        }
        let (first, limit) = (group * bits.lanes(), bits.lane_offset());
        let over = reach.iter().take(outputs - first).position(|reach| *reach >= limit);
        if let Some(n) = over {
            let neuron = first + n + 1;
            return Err(ImageError::Overflow { layer: layer + 1, neuron, reach: reach[n], limit });
        }
    }
    let hidden = if layer + 1 < shape.layers() { outputs } else { 0 };
    for neuron in 0..hidden {
        let found = image::u32_at(image, shape.tables_at(layer) + 4 * neuron);
        let (stride, at) = (tables::stride(bits), found as usize);
        if at % stride != 0 || at / stride >= tables::CLASSES {
            return Err(ImageError::Table { layer: layer + 1, neuron: neuron + 1, found });
        }
    }
    Ok(())
}

//! A network laid out for a processor's vector unit.

use crate::bits::Bits;
use crate::bounds::{MAX_CLASSES, MAX_INPUTS, MAX_LAYERS, MAX_WIDTH};
use crate::check::{ImageError, check};
use crate::image::{self, feature};
use crate::kernel::Kernel;
use crate::lanes;
use crate::shape::Shape;

/// Sums that the widest vector holds; widths are padded to a multiple of it.
pub(crate) const STEP: usize = 16;
/// Weights of the widest hidden layers and of the most outputs.
const MAX_WEIGHTS: usize = (MAX_LAYERS - 1) * MAX_WIDTH * MAX_WIDTH + MAX_CLASSES * MAX_WIDTH;

/// An unpacked image, with weights of 16 bits and sums of 32. It gives the same bits as
/// [`Model::infer`](crate::Model::infer), several times faster.
///
/// It takes 30 KB, so box it, and make it when a snapshot is pushed rather than when a flow decides.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Prepared {
    /// Weights of hidden layers: for each pair of inputs and each output (padded), the two weights; the output layer
    /// has a row for each output, padded with zeros.
    pub(crate) weights: [i16; MAX_WEIGHTS],
    /// Biases by layer, those of hidden layers with the lane's offset (modulo 2^32); padded with zeros.
    pub(crate) biases: [[i32; MAX_WIDTH]; MAX_LAYERS],
    pub(crate) tables: [[u32; MAX_WIDTH]; MAX_LAYERS],
    pub(crate) features: Features,
    pub(crate) bits: Bits,
    /// Numbers of inputs and outputs of each layer.
    pub(crate) layers: [(usize, usize); MAX_LAYERS],
    pub(crate) depth: usize,
    pub(crate) out_mult: i64,
    pub(crate) out_shift: u32,
    uid: u32,
    pub(crate) kernel: Kernel,
}

/// The input specs, one array a field. Elements beyond the inputs clip nothing.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    pub lo: [i32; MAX_INPUTS],
    pub hi: [i32; MAX_INPUTS],
    /// The upper halves of the scale factors.
    pub mult_hi: [u32; MAX_INPUTS],
    /// The lower halves of the scale factors.
    pub mult_lo: [u32; MAX_INPUTS],
}

impl Prepared {
    /// Checks an image and lays it out.
    ///
    /// # Errors
    /// Everything that [`check()`] refuses.
    pub fn new(shape: &Shape, image: &[u64]) -> Result<Prepared, ImageError> {
        Prepared::with(shape, image, Kernel::best())
    }

    /// Prepares a network as [`Prepared::new`] does, with a chosen kernel instead of the fastest.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn with(shape: &Shape, image: &[u64], kernel: Kernel) -> Result<Prepared, ImageError> {
        check(shape, image)?;
        let mut prepared = Prepared {
            weights: [0; MAX_WEIGHTS],
            biases: [[0; MAX_WIDTH]; MAX_LAYERS],
            tables: [[0; MAX_WIDTH]; MAX_LAYERS],
            features: Features {
                lo: [i32::MIN; MAX_INPUTS],
                hi: [i32::MAX; MAX_INPUTS],
                mult_hi: [0; MAX_INPUTS],
                mult_lo: [0; MAX_INPUTS],
            },
            bits: shape.bits(),
            layers: core::array::from_fn(|layer| shape.layer(layer)),
            depth: shape.layers(),
            out_mult: image::i64_at(image, image::OUT_MULT),
            out_shift: image::u32_at(image, image::OUT_SHIFT),
            uid: image::u32_at(image, image::UID),
            kernel,
        };
        prepared.lay_out_features(shape, image);
        let mut at = 0;
        for layer in 0..shape.layers() {
            prepared.lay_out(shape, image, layer, at);
            at += hidden_len(shape.layer(layer));
        }
        Ok(prepared)
    }

    /// The number of the deployment in the image.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    fn lay_out_features(&mut self, shape: &Shape, image: &[u64]) {
        for n in 0..shape.inputs() {
            let at = image::FEATURES + image::FEATURE_BYTES * n;
            self.features.lo[n] = image::u32_at(image, at + feature::LO) as i32;
            self.features.hi[n] = image::u32_at(image, at + feature::HI) as i32;
            let mult = image::u64_at(image, at + feature::MULT);
            self.features.mult_hi[n] = (mult >> 32) as u32;
            self.features.mult_lo[n] = mult as u32;
        }
    }

    /// Unpacks a layer's weights from `start` on. [`check()`] has proved that each word packs 16-bit weights.
    fn lay_out(&mut self, shape: &Shape, image: &[u64], layer: usize, start: usize) {
        let ((inputs, outputs), bits) = (shape.layer(layer), shape.bits());
        let (groups, hidden) = (shape.groups(layer), layer + 1 < shape.layers());
        let padded = outputs.next_multiple_of(STEP);
        for neuron in 0..outputs {
            let (group, lane) = (neuron / bits.lanes(), neuron % bits.lanes());
            let bias = image::u64_at(image, shape.bias_at(layer) + 8 * group);
            let bias = lanes::unpack_biases(bits, bias)[lane];
            self.biases[layer][neuron] = if hidden { bias + bits.lane_offset() } else { bias } as i32;
            for input in 0..inputs {
                let word = image::u64_at(image, shape.weights_at(layer) + 8 * (groups * input + group));
                let at = if hidden {
                    (input / 2 * padded + neuron) * 2 + input % 2
                } else {
                    neuron * output_len(inputs) + input
                };
                self.weights[start + at] = lanes::unpack_weights(bits, word).unwrap_or_default()[lane] as i16;
            }
            if hidden {
                self.tables[layer][neuron] = image::u32_at(image, shape.tables_at(layer) + 4 * neuron);
            }
        }
    }
}

/// Length of a hidden layer's weights, padding included.
pub(crate) fn hidden_len((inputs, outputs): (usize, usize)) -> usize {
    inputs.next_multiple_of(2) * outputs.next_multiple_of(STEP)
}

/// Length of a row of the output layer's weights, padding included.
pub(crate) fn output_len(inputs: usize) -> usize {
    inputs.next_multiple_of(STEP)
}

//! The reference inference: every executor computes this.

use crate::bounds::{MAX_CLASSES, MAX_WIDTH};
use crate::image::{self, feature};
use crate::shape::Shape;
use crate::tables;

/// A snapshot's image, read by its shape.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    shape: &'a Shape,
    image: &'a [u64],
}

/// The result of an inference.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Inference {
    /// The action before noise and bound, Q16.
    pub action_q16: i64,
    /// Inputs that were outside their range.
    pub clipped_inputs: u32,
}

/// The sums of a network's outputs; those beyond its outputs are 0.
pub type Sums = [i64; MAX_CLASSES];

/// The result of a classifier.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Classified {
    /// The index of the largest sum, the lowest on a tie.
    pub class: u8,
    /// Inputs that were outside their range.
    pub clipped_inputs: u32,
}

impl Classified {
    /// Picks the class of so many sums.
    pub(crate) fn of(sums: impl IntoIterator<Item = i64>, clipped_inputs: u32) -> Classified {
        let mut best = (0, i64::MIN);
        for (class, sum) in sums.into_iter().enumerate() {
            if sum > best.1 {
                best = (class as u8, sum);
            }
        }
        Classified { class: best.0, clipped_inputs }
    }
}

impl<'a> Model<'a> {
    /// Wraps the network in `image`; `None` unless it is of this shape.
    #[inline]
    pub fn new(shape: &'a Shape, image: &'a [u64]) -> Option<Model<'a>> {
        let fits =
            image.len() * 8 >= shape.image_bytes() && image::u64_at(image, image::SHAPE) == shape.code();
        fits.then_some(Model { shape, image })
    }

    /// Runs the network. Missing inputs count as 0.
    pub fn infer(&self, inputs: &[i32]) -> Inference {
        let (sums, clipped_inputs) = self.sums(inputs);
        let shift = image::u32_at(self.image, image::OUT_SHIFT) & 63;
        let product = sums[0].wrapping_mul(image::i64_at(self.image, image::OUT_MULT));
        Inference { action_q16: product >> shift, clipped_inputs }
    }

    /// Runs the network and picks its class. Missing inputs count as 0.
    pub fn classify(&self, inputs: &[i32]) -> Classified {
        let (sums, clipped_inputs) = self.sums(inputs);
        Classified::of(sums.into_iter().take(self.shape.outputs()), clipped_inputs)
    }

    /// Computes the outputs' sums, and how many inputs were clipped. Missing inputs count as 0.
    pub fn sums(&self, inputs: &[i32]) -> (Sums, u32) {
        let mut x = [0; MAX_WIDTH];
        let clipped_inputs = self.normalise(inputs, &mut x);
        let last = self.shape.layers() - 1;
        for layer in 0..last {
            let mut y = [0; MAX_WIDTH];
            self.hidden(layer, &x, &mut y);
            x = y;
        }
        let mut sums = [0; MAX_CLASSES];
        for (n, sum) in sums.iter_mut().take(self.shape.outputs()).enumerate() {
            let (lane, _) = self.lane(last, n, &x);
            *sum = lane as i64 - self.shape.bits().lane_offset();
        }
        (sums, clipped_inputs)
    }

    fn normalise(&self, inputs: &[i32], x: &mut [i64; MAX_WIDTH]) -> u32 {
        let mut clipped = 0;
        for (n, to) in x.iter_mut().take(self.shape.inputs()).enumerate() {
            let at = image::FEATURES + image::FEATURE_BYTES * n;
            let lo = image::u32_at(self.image, at + feature::LO) as i32;
            let hi = image::u32_at(self.image, at + feature::HI) as i32;
            let value = inputs.get(n).copied().unwrap_or(0);
            clipped += u32::from(value < lo || value > hi);
            let above = (i64::from(value.min(hi).max(lo)) - i64::from(lo)) as u64;
            let mult = image::u64_at(self.image, at + feature::MULT);
            let scaled = above.wrapping_mul(mult).wrapping_add(1 << 31) >> 32;
            *to = scaled as i64 - self.shape.bits().max_activation();
        }
        clipped
    }

    fn hidden(&self, layer: usize, x: &[i64; MAX_WIDTH], y: &mut [i64; MAX_WIDTH]) {
        let tables_at = self.shape.tables_at(layer);
        for (n, to) in y.iter_mut().take(self.shape.layer(layer).1).enumerate() {
            let (lane, _) = self.lane(layer, n, x);
            let base = image::u32_at(self.image, tables_at + 4 * n) as usize;
            *to = tables::activation(self.shape.bits(), base, lane);
        }
    }

    /// Computes the lane of neuron `n`, and the word that holds it.
    fn lane(&self, layer: usize, n: usize, x: &[i64; MAX_WIDTH]) -> (u64, u64) {
        let (bits, groups) = (self.shape.bits(), self.shape.groups(layer));
        let group = n / bits.lanes();
        let weights_at = self.shape.weights_at(layer);
        let mut word = image::u64_at(self.image, self.shape.bias_at(layer) + 8 * group);
        for (input, x) in x.iter().take(self.shape.layer(layer).0).enumerate() {
            let weight = image::u64_at(self.image, weights_at + 8 * (groups * input + group));
            word = word.wrapping_add((*x as u64).wrapping_mul(weight));
        }
        let lane = word >> (bits.lane_bits() as usize * (n % bits.lanes()));
        (lane & (bits.lane_offset() as u64 * 2 - 1), word)
    }
}

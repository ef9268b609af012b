//! Inference on vectors of 16-bit products and 32-bit sums; all of this crate's `unsafe`.
//!
//! [`check`](crate::check()) has proved for each neuron that `sum |w| A + |b| < 2^31`: no order of its products
//! overflows 32 bits, so every order gives the same sum.
#![allow(unsafe_code)]

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod avx2;
#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod avx512;

use crate::bits::Bits;
use crate::bounds::{MAX_CLASSES, MAX_WIDTH};
use crate::kernel::{Code, Kernel};
use crate::model::{Classified, Inference};
use crate::prepared::{Prepared, STEP, hidden_len, output_len};
use crate::tables;

impl Prepared {
    /// Runs the network. Missing inputs count as 0.
    pub fn infer(&self, inputs: &[i32]) -> Inference {
        let mut sums = [0; 1];
        let clipped_inputs = run(self.kernel, self, inputs, &mut sums);
        let product = i64::from(sums[0]).wrapping_mul(self.out_mult);
        Inference { action_q16: product >> (self.out_shift & 63), clipped_inputs }
    }

    /// Runs the network and picks its class. Missing inputs count as 0.
    pub fn classify(&self, inputs: &[i32]) -> Classified {
        let mut sums = [0; MAX_CLASSES];
        let clipped_inputs = run(self.kernel, self, inputs, &mut sums);
        let outputs = self.layers[self.depth - 1].1;
        Classified::of(sums.into_iter().take(outputs).map(i64::from), clipped_inputs)
    }
}

/// Computes as many of the outputs' sums as there is room for; returns how many inputs were clipped.
#[inline]
fn run(kernel: Kernel, network: &Prepared, inputs: &[i32], sums: &mut [i32]) -> u32 {
    match kernel.code() {
        Code::Portable => infer::<Portable>(network, inputs, sums),
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        // SAFETY: `Kernel::available` has found AVX2.
        Code::Avx2 => unsafe { avx2::infer(network, inputs, sums) },
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        // SAFETY: `Kernel::available` has found what it takes.
        Code::Avx512 => unsafe { avx512::infer(network, inputs, sums) },
    }
}

/// Activations of a layer; those beyond its width are multiplied by weights of 0.
#[repr(align(64))]
struct Activations([i16; MAX_WIDTH]);

/// A hidden layer in the layout of [`Prepared`].
#[derive(Clone, Copy)]
struct Hidden<'a> {
    /// For each pair of inputs and each output, the two weights.
    weights: &'a [i16],
    /// With the lane's offset, modulo 2^32.
    biases: &'a [i32; MAX_WIDTH],
    tables: &'a [u32; MAX_WIDTH],
    pairs: usize,
    /// Outputs, a multiple of [`STEP`].
    padded: usize,
}

/// The layer computations of a kernel.
///
/// Activations are read in pieces no larger than they were written: a processor forwards a store to a later load only
/// if the store covers all of the load.
trait Layers {
    /// Writes the first layer's activations; returns how many inputs were clipped.
    #[inline(always)]
    fn normalise(network: &Prepared, inputs: &[i32], x: &mut Activations) -> u32 {
        normalise(network, inputs, x)
    }
    /// Writes the activations of a hidden layer.
    fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations);
    /// The sum of products of a row, whose length is a multiple of [`STEP`].
    fn dot(row: &[i16], x: &Activations) -> i32;
}

/// Runs the whole network. It is inlined into a function for each processor, so that its loops are compiled for that
/// one.
#[inline(always)]
fn infer<L: Layers>(network: &Prepared, inputs: &[i32], sums: &mut [i32]) -> u32 {
    let (mut x, mut to) = (&mut Activations([0; MAX_WIDTH]), &mut Activations([0; MAX_WIDTH]));
    let clipped = L::normalise(network, inputs, x);
    let mut weights = network.weights.as_slice();
    for layer in 0..network.depth - 1 {
        let (inputs, outputs) = network.layers[layer];
        let (these, rest) = weights.split_at(hidden_len((inputs, outputs)));
        weights = rest;
        let layer = Hidden {
            weights: these,
            biases: &network.biases[layer],
            tables: &network.tables[layer],
            pairs: inputs.div_ceil(2),
            padded: outputs.next_multiple_of(STEP),
        };
        L::hidden(network.bits, layer, x, to);
        core::mem::swap(&mut x, &mut to);
    }
    let last = network.depth - 1;
    let (inputs, outputs) = network.layers[last];
    let rows = weights.chunks_exact(output_len(inputs)).zip(&network.biases[last]).take(outputs);
    for (sum, (row, bias)) in sums.iter_mut().zip(rows) {
        *sum = bias + L::dot(row, x);
    }
    clipped
}

/// Inputs that are normalised at once: enough for compilers to vectorise.
const CHUNK: usize = 8;

/// Normalises as [`Model`](crate::Model) does, in halves of 32 bits: `above * mult < 2^47` for any `above`.
#[inline(always)]
fn normalise(network: &Prepared, inputs: &[i32], x: &mut Activations) -> u32 {
    let features = &network.features;
    let max_activation = network.bits.max_activation() as i16;
    let count = network.layers[0].0;
    let inputs = &inputs[..inputs.len().min(count)];
    let mut clipped = 0;
    for (step, x) in x.0.chunks_exact_mut(CHUNK).enumerate().take(count.div_ceil(CHUNK)) {
        let first = step * CHUNK;
        let values: [i32; CHUNK] = match inputs.get(first..first + CHUNK) {
            Some(all) => core::array::from_fn(|n| all[n]),
            None => core::array::from_fn(|n| inputs.get(first + n).copied().unwrap_or(0)),
        };
        for (n, (x, value)) in x.iter_mut().zip(values).enumerate() {
            let n = first + n;
            let (lo, hi) = (features.lo[n], features.hi[n]);
            clipped += u32::from(value < lo) + u32::from(value > hi);
            let above = value.min(hi).max(lo).wrapping_sub(lo) as u32;
            let low = (u64::from(above) * u64::from(features.mult_lo[n]) + (1 << 31)) >> 32;
            let scaled = above.wrapping_mul(features.mult_hi[n]).wrapping_add(low as u32);
            *x = (scaled as i16).wrapping_sub(max_activation);
        }
    }
    clipped
}

struct Portable;

impl Layers for Portable {
    fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations) {
        let mut sums = *layer.biases;
        let sums = &mut sums[..layer.padded];
        let pairs = x.0.chunks_exact(2).take(layer.pairs);
        for (pair, weights) in pairs.zip(layer.weights.chunks_exact(2 * layer.padded)) {
            let (x0, x1) = (i32::from(pair[0]), i32::from(pair[1]));
            for (sum, w) in sums.iter_mut().zip(weights.chunks_exact(2)) {
                *sum = sum.wrapping_add(x0 * i32::from(w[0]) + x1 * i32::from(w[1]));
            }
        }
        for ((to, sum), base) in to.0.iter_mut().zip(sums).zip(layer.tables) {
            // A lane has 21 or 32 bits: 32 bits hold it.
            *to = tables::activation(bits, *base as usize, u64::from(*sum as u32)) as i16;
        }
    }

    fn dot(row: &[i16], x: &Activations) -> i32 {
        row.iter().zip(&x.0).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum()
    }
}

/// A vector unit reads four bytes, of which the wanted entry of [`tables::W8`] is the last: this many come before it.
#[cfg(all(feature = "std", target_arch = "x86_64"))]
const BEFORE: i32 = 3;

// At the tables' start, where no entries come before, the first four are read.
const _: () = assert!(
    tables::W8[3] == tables::W8[0] && tables::W8[3] == tables::W8[1] && tables::W8[3] == tables::W8[2]
);

//! Inference on vectors of 16-bit products and 32-bit sums; all of this crate's `unsafe`.
//!
//! [`check`](crate::check) has proved for each neuron that `sum |w| A + |b| < 2^31`: no order of its products
//! overflows 32 bits, so every order gives the same sum.
#![allow(unsafe_code)]

use crate::prepared::{Features, STEP, weights_len};
use crate::{Bits, MAX_INPUTS, MAX_WIDTH, Prepared, tables};

/// Which code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kernel {
    /// On every processor.
    Portable,
    /// x86-64 with AVX2. Only [`Kernel::best`] makes it, where the processor has it.
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    Avx2,
}

impl Kernel {
    /// The fastest that this processor runs.
    pub(crate) fn best() -> Kernel {
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Kernel::Avx2;
        }
        Kernel::Portable
    }
}

/// The output's sum, and how many inputs were clipped.
pub(crate) fn run(kernel: Kernel, network: &Prepared, inputs: &[i32]) -> (i32, u32) {
    match kernel {
        Kernel::Portable => infer::<Portable>(network, inputs),
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        // SAFETY: `Kernel::best` has found AVX2.
        Kernel::Avx2 => unsafe { x86::infer(network, inputs) },
    }
}

/// Activations of a layer; those beyond its width meet weights of 0.
type Activations = [i16; MAX_WIDTH];

/// How sums are made.
trait Sums {
    /// Adds to each sum of a layer its products: weights of pairs of inputs, `sums.len()` a multiple of [`STEP`].
    fn layer(weights: &[i16], x: &Activations, sums: &mut [i32]);
    /// The sum of products; a multiple of `2 * STEP` of them.
    fn dot(weights: &[i16], x: &Activations) -> i32;
}

struct Portable;

impl Sums for Portable {
    #[inline(always)]
    fn layer(weights: &[i16], x: &Activations, sums: &mut [i32]) {
        for (pair, weights) in x.chunks_exact(2).zip(weights.chunks_exact(2 * sums.len())) {
            let (x0, x1) = (i32::from(pair[0]), i32::from(pair[1]));
            for (sum, w) in sums.iter_mut().zip(weights.chunks_exact(2)) {
                *sum += x0 * i32::from(w[0]) + x1 * i32::from(w[1]);
            }
        }
    }

    #[inline(always)]
    fn dot(weights: &[i16], x: &Activations) -> i32 {
        weights.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum()
    }
}

/// The whole network. Inlined into a function for each processor, so that its loops are compiled for that.
#[inline(always)]
fn infer<S: Sums>(network: &Prepared, inputs: &[i32]) -> (i32, u32) {
    match network.bits {
        Bits::W8 => layers::<S>(network, inputs, activate_w8),
        Bits::W16 => layers::<S>(network, inputs, activate_w16),
    }
}

#[inline(always)]
fn layers<S: Sums>(
    network: &Prepared,
    inputs: &[i32],
    activate: impl Fn(&[i32], &[u32; MAX_WIDTH], &mut Activations),
) -> (i32, u32) {
    let mut x = [0; MAX_WIDTH];
    let max_activation = network.bits.max_activation() as i16;
    let clipped = normalise(&network.features, network.layers[0].0, max_activation, inputs, &mut x);
    let mut weights = network.weights.as_slice();
    let mut sums = [0; MAX_WIDTH];
    for (layer, widths) in network.layers.iter().take(network.depth).enumerate() {
        let (these, rest) = weights.split_at(weights_len(*widths).min(weights.len()));
        weights = rest;
        let padded = widths.1.next_multiple_of(STEP).min(MAX_WIDTH);
        let sums = &mut sums[..padded];
        sums.copy_from_slice(&network.biases[layer][..padded]);
        if widths.1 == 1 {
            sums[0] += S::dot(these, &x);
        } else {
            S::layer(these, &x, sums);
        }
        if layer + 1 < network.depth {
            activate(sums, &network.tables[layer], &mut x);
        }
    }
    (sums[0], clipped)
}

/// As [`Model`](crate::Model) does it, in halves of 32 bits: `above * mult < 2^47` whatever `above`.
#[inline(always)]
fn normalise(
    features: &Features,
    count: usize,
    max_activation: i16,
    from: &[i32],
    x: &mut Activations,
) -> u32 {
    let mut values = [0; MAX_INPUTS];
    let given = from.len().min(count).min(MAX_INPUTS);
    values[..given].copy_from_slice(&from[..given]);
    let padded = count.next_multiple_of(STEP).min(MAX_INPUTS);
    let mut clipped = 0;
    for n in 0..padded {
        let (lo, hi) = (features.lo[n], features.hi[n]);
        let value = values[n];
        clipped += u32::from(value < lo) + u32::from(value > hi);
        let above = value.min(hi).max(lo).wrapping_sub(lo) as u32;
        let low = (u64::from(above) * u64::from(features.mult_lo[n]) + (1 << 31)) >> 32;
        let scaled = above.wrapping_mul(features.mult_hi[n]).wrapping_add(low as u32);
        x[n] = (scaled as i16).wrapping_sub(max_activation);
    }
    clipped
}

#[inline(always)]
fn activate_w8(sums: &[i32], bases: &[u32; MAX_WIDTH], x: &mut Activations) {
    const OFFSET: i32 = Bits::W8.lane_offset() as i32;
    let mut at = [0; MAX_WIDTH];
    for ((at, sum), base) in at.iter_mut().zip(sums).zip(bases) {
        *at = base.wrapping_add((sum.wrapping_add(OFFSET) >> 10) as u32);
    }
    for (x, at) in x.iter_mut().zip(at.iter().take(sums.len())) {
        // The mask keeps every index that occurs, and tells the compiler that it is within the table.
        *x = i16::from(tables::W8[*at as usize & (tables::W8.len() - 1)]);
    }
}

const _: () = assert!(tables::W8.len().is_power_of_two());

#[inline(always)]
fn activate_w16(sums: &[i32], bases: &[u32; MAX_WIDTH], x: &mut Activations) {
    for ((x, sum), base) in x.iter_mut().zip(sums).zip(bases) {
        let lane = (*sum as u32) ^ (1 << 31);
        let at = (base.wrapping_add(lane >> 21)) as usize;
        let (Some(left), Some(right)) = (tables::W16.get(at), tables::W16.get(at + 1)) else { continue };
        let (left, right) = (i32::from(*left), i32::from(*right));
        let fraction = (lane >> 11 & 1023) as i32;
        *x = (left + (((right - left) * fraction) >> 10)) as i16;
    }
}

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod x86 {
    use super::{Activations, MAX_WIDTH, Prepared, STEP, Sums};
    use core::arch::x86_64::*;

    /// # Safety
    /// Only where the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn infer(network: &Prepared, inputs: &[i32]) -> (i32, u32) {
        super::infer::<Avx2>(network, inputs)
    }

    /// Only [`infer`] uses it.
    struct Avx2;

    impl Sums for Avx2 {
        #[inline(always)]
        fn layer(weights: &[i16], x: &Activations, sums: &mut [i32]) {
            // As many vectors at once as leave registers for the weights.
            let padded = sums.len();
            let (mut first, mut left) = (0, padded / STEP);
            while left > 0 {
                let here = match left {
                    4.. => columns::<4>(weights, x, sums, first, padded),
                    2.. => columns::<2>(weights, x, sums, first, padded),
                    _ => columns::<1>(weights, x, sums, first, padded),
                };
                first += here * STEP;
                left -= here;
            }
        }

        #[inline(always)]
        fn dot(weights: &[i16], x: &Activations) -> i32 {
            // SAFETY: as in `columns`; both slices are read 16 numbers at a time, within their lengths.
            unsafe {
                let mut sum = _mm256_setzero_si256();
                for (w, x) in weights.chunks_exact(2 * STEP).zip(x.chunks_exact(2 * STEP)) {
                    let (w, x) = (w.as_ptr().cast(), x.as_ptr().cast());
                    let products = _mm256_madd_epi16(_mm256_loadu_si256(w), _mm256_loadu_si256(x));
                    sum = _mm256_add_epi32(sum, products);
                }
                let half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
                let all = _mm_add_epi32(quarter, _mm_shuffle_epi32::<0b10_11_00_01>(quarter));
                _mm_cvtsi128_si32(all)
            }
        }
    }

    /// Adds the products of `N` vectors of outputs, from output `first` on.
    #[inline(always)]
    fn columns<const N: usize>(
        weights: &[i16],
        x: &Activations,
        sums: &mut [i32],
        first: usize,
        padded: usize,
    ) -> usize {
        let Some(sums) = sums.get_mut(first..first + N * STEP) else { return N };
        // SAFETY: AVX2 is there, since this is inlined into `infer`. `sums` has N vectors; each row of weights has
        // 2 * `padded` numbers, of which `row` has just been cut to the 2 * N * STEP that are read.
        unsafe {
            let mut acc: [__m256i; N] =
                core::array::from_fn(|n| _mm256_loadu_si256(sums.as_ptr().add(n * STEP).cast()));
            for (row, pair) in weights.chunks_exact(2 * padded).zip(x.chunks_exact(2)) {
                let Some(row) = row.get(2 * first..2 * (first + N * STEP)) else { break };
                let pair = i32::from(pair[0] as u16) | i32::from(pair[1]) << 16;
                let pair = _mm256_set1_epi32(pair);
                for (n, acc) in acc.iter_mut().enumerate() {
                    let w = _mm256_loadu_si256(row.as_ptr().add(2 * n * STEP).cast());
                    *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(pair, w));
                }
            }
            for (n, acc) in acc.iter().enumerate() {
                _mm256_storeu_si256(sums.as_mut_ptr().add(n * STEP).cast(), *acc);
            }
        }
        N
    }

    const _: () = assert!(MAX_WIDTH.is_multiple_of(2 * STEP));
}

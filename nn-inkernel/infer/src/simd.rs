//! Inference on vectors of 16-bit products and 32-bit sums; all of this crate's `unsafe`.
//!
//! [`check`](crate::check) has proved for each neuron that `sum |w| A + |b| < 2^31`: no order of its products
//! overflows 32 bits, so every order gives the same sum.
#![allow(unsafe_code)]

use crate::prepared::{STEP, hidden_len, output_len};
use crate::{Bits, MAX_WIDTH, Prepared, tables};

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

/// A hidden layer as [`Prepared`] lays it out.
#[derive(Clone, Copy)]
struct Hidden<'a> {
    /// For each pair of inputs, for each output, the two weights.
    weights: &'a [i16],
    /// With the lane's offset, modulo 2^32.
    biases: &'a [i32; MAX_WIDTH],
    tables: &'a [u32; MAX_WIDTH],
    /// Pairs of inputs.
    pairs: usize,
    /// Outputs, a multiple of [`STEP`].
    padded: usize,
}

/// How layers are computed.
trait Layers {
    /// Writes the activations of a hidden layer.
    fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations);
    /// The sum of products of a row, whose length is a multiple of `2 * STEP`.
    fn dot(row: &[i16], x: &Activations) -> i32;
}

/// The whole network. Inlined into a function for each processor, so that its loops are compiled for that.
#[inline(always)]
fn infer<L: Layers>(network: &Prepared, inputs: &[i32]) -> (i32, u32) {
    let (mut x, mut to) = (&mut [0; MAX_WIDTH], &mut [0; MAX_WIDTH]);
    let clipped = normalise(network, inputs, x);
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
    let row = &weights[..output_len(network.layers[last].0)];
    (network.biases[last][0] + L::dot(row, x), clipped)
}

/// As [`Model`](crate::Model) does it, in halves of 32 bits: `above * mult < 2^47` whatever `above`.
#[inline(always)]
fn normalise(network: &Prepared, inputs: &[i32], x: &mut Activations) -> u32 {
    let features = &network.features;
    let max_activation = network.bits.max_activation() as i16;
    let count = network.layers[0].0;
    let inputs = &inputs[..inputs.len().min(count)];
    let mut clipped = 0;
    for (step, x) in x.chunks_exact_mut(STEP).enumerate().take(count.div_ceil(STEP)) {
        let first = step * STEP;
        let values: [i32; STEP] = match inputs.get(first..first + STEP) {
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
        let pairs = x.chunks_exact(2).take(layer.pairs);
        for (pair, weights) in pairs.zip(layer.weights.chunks_exact(2 * layer.padded)) {
            let (x0, x1) = (i32::from(pair[0]), i32::from(pair[1]));
            for (sum, w) in sums.iter_mut().zip(weights.chunks_exact(2)) {
                *sum = sum.wrapping_add(x0 * i32::from(w[0]) + x1 * i32::from(w[1]));
            }
        }
        for ((to, sum), base) in to.iter_mut().zip(sums).zip(layer.tables) {
            // A lane has 21 or 32 bits: 32 bits hold it.
            *to = tables::activation(bits, *base as usize, u64::from(*sum as u32)) as i16;
        }
    }

    fn dot(row: &[i16], x: &Activations) -> i32 {
        row.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum()
    }
}

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod x86 {
    use super::{Activations, Bits, Hidden, Layers, Prepared, STEP, tables};
    use core::arch::x86_64::*;

    /// # Safety
    /// Only where the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn infer(network: &Prepared, inputs: &[i32]) -> (i32, u32) {
        super::infer::<Avx2>(network, inputs)
    }

    /// Only [`infer`] uses it.
    struct Avx2;

    impl Layers for Avx2 {
        #[inline(always)]
        fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations) {
            // What `outputs` relies on.
            assert!(layer.weights.len() >= 2 * layer.padded * layer.pairs);
            assert!(layer.padded <= to.len() && 2 * layer.pairs <= x.len());
            let mut first = 0;
            while first < layer.padded {
                // As many sums at once as leave registers for weights.
                // SAFETY: AVX2 is there, since this is inlined into `infer`; the rest has been asserted, and `first`
                // and the sums that follow are below `padded`.
                first += unsafe {
                    match (layer.padded - first) / STEP {
                        4.. => outputs::<4>(bits, layer, first, x, to),
                        2.. => outputs::<2>(bits, layer, first, x, to),
                        _ => outputs::<1>(bits, layer, first, x, to),
                    }
                };
            }
        }

        #[inline(always)]
        fn dot(row: &[i16], x: &Activations) -> i32 {
            // SAFETY: AVX2 is there, since this is inlined into `infer`; chunks are as long as vectors.
            unsafe {
                let mut sum = _mm256_setzero_si256();
                for (w, x) in row.chunks_exact(2 * STEP).zip(x.chunks_exact(2 * STEP)) {
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

    /// The activations of `N` vectors of outputs, from output `first` on; returns how many outputs those are.
    ///
    /// # Safety
    /// AVX2; `layer.padded <= MAX_WIDTH`, `first + N * STEP <= layer.padded`, `2 * layer.pairs <= MAX_WIDTH`, and
    /// `layer.weights` has `2 * padded` numbers for each pair.
    #[inline(always)]
    unsafe fn outputs<const N: usize>(
        bits: Bits,
        layer: Hidden<'_>,
        first: usize,
        x: &Activations,
        to: &mut Activations,
    ) -> usize {
        // SAFETY: every pointer stays within its array, by what the caller has promised; a vector of sums is STEP
        // numbers of 32 bits, one of weights 2 * STEP of 16 bits, a pair of activations two of 16 bits.
        unsafe {
            let at = |numbers: *const i32, n: usize| _mm256_loadu_si256(numbers.add(first + n * STEP).cast());
            let mut sums: [__m256i; N] = core::array::from_fn(|n| at(layer.biases.as_ptr(), n));
            let mut weights = layer.weights.as_ptr().add(2 * first);
            let mut pair: *const i32 = x.as_ptr().cast();
            for _ in 0..layer.pairs {
                let both = _mm256_set1_epi32(pair.read_unaligned());
                for (n, sum) in sums.iter_mut().enumerate() {
                    let these = _mm256_loadu_si256(weights.add(2 * n * STEP).cast());
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(both, these));
                }
                weights = weights.add(2 * layer.padded);
                pair = pair.add(1);
            }
            for (n, sum) in sums.iter().enumerate() {
                let bases = at(layer.tables.as_ptr().cast(), n);
                let y = match bits {
                    Bits::W8 => activate_w8(*sum, bases),
                    Bits::W16 => activate_w16(*sum, bases),
                };
                let narrow = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packs_epi32(y, y));
                let to = to.as_mut_ptr().add(first + n * STEP);
                _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(narrow));
            }
        }
        N * STEP
    }

    /// # Safety
    /// AVX2; each base is where a table starts, each lane has 21 bits.
    #[inline(always)]
    unsafe fn activate_w8(lanes: __m256i, bases: __m256i) -> __m256i {
        // An entry is the topmost byte of the four that end with it.
        const BEFORE: i32 = 3;
        const {
            let first = tables::W8[BEFORE as usize];
            assert!(first == tables::W8[0] && first == tables::W8[1] && first == tables::W8[2]);
        }
        // SAFETY: base + lane / 2^10 is within the tables, and so are the three bytes before it: at the tables' start,
        // where there are none, the entry read instead is the same.
        unsafe {
            let at = _mm256_add_epi32(bases, _mm256_srli_epi32::<10>(lanes));
            let at =
                _mm256_max_epi32(_mm256_sub_epi32(at, _mm256_set1_epi32(BEFORE)), _mm256_setzero_si256());
            _mm256_srai_epi32::<24>(_mm256_i32gather_epi32::<1>(tables::W8.as_ptr().cast(), at))
        }
    }

    /// # Safety
    /// AVX2; each base is where a table starts.
    #[inline(always)]
    unsafe fn activate_w16(lanes: __m256i, bases: __m256i) -> __m256i {
        // SAFETY: base + lane / 2^21 and the entry after it are within the tables.
        unsafe {
            let at = _mm256_add_epi32(bases, _mm256_srli_epi32::<21>(lanes));
            let both = _mm256_i32gather_epi32::<2>(tables::W16.as_ptr().cast(), at);
            let right = _mm256_srai_epi32::<16>(both);
            let left = _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(both));
            let fraction = _mm256_and_si256(_mm256_srli_epi32::<11>(lanes), _mm256_set1_epi32(1023));
            let rise = _mm256_mullo_epi32(_mm256_sub_epi32(right, left), fraction);
            _mm256_add_epi32(left, _mm256_srai_epi32::<10>(rise))
        }
    }
}

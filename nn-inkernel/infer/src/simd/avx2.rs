//! AVX2 kernel: eight sums to a vector.

use core::arch::x86_64::*;

use super::{Activations, Bits, Hidden, Layers, Prepared, STEP, tables};

/// Sums in a vector.
const LANES: usize = 8;
const _: () = assert!(STEP == 2 * LANES);

/// Runs the network on AVX2.
///
/// # Safety
/// Only where the processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn infer(network: &Prepared, inputs: &[i32], sums: &mut [i32]) -> u32 {
    super::infer::<Avx2>(network, inputs, sums)
}

/// The AVX2 layers, used by [`infer`] only.
struct Avx2;

impl Layers for Avx2 {
    #[inline(always)]
    fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations) {
        // `outputs` relies on this.
        assert!(layer.weights.len() >= 2 * layer.padded * layer.pairs);
        assert!(
            layer.padded <= to.0.len() && 2 * layer.pairs <= x.0.len() && layer.padded.is_multiple_of(STEP)
        );
        let mut first = 0;
        while first < layer.padded {
            // As many sums at once as leave registers for weights.
            // SAFETY: AVX2 is there, since this is inlined into `infer`; the rest has been asserted, and `first`
            // and the sums that follow are below `padded`.
            first += unsafe {
                match (layer.padded - first) / STEP {
                    2.. => outputs::<4>(bits, layer, first, x, to),
                    _ => outputs::<2>(bits, layer, first, x, to),
                }
            };
        }
    }

    #[inline(always)]
    fn dot(row: &[i16], x: &Activations) -> i32 {
        // SAFETY: AVX2 is there, since this is inlined into `infer`.
        unsafe { dot(row, x) }
    }
}

/// The sum of products of a row, whose length is a multiple of [`STEP`].
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(super) unsafe fn dot(row: &[i16], x: &Activations) -> i32 {
    // SAFETY: chunks are as long as vectors.
    unsafe {
        let mut sum = _mm256_setzero_si256();
        for (w, x) in row.chunks_exact(STEP).zip(x.0.chunks_exact(STEP)) {
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

/// The activations of `N` vectors of outputs, an even number, from output `first` on; returns how many outputs those are.
///
/// # Safety
/// AVX2; `layer.padded <= MAX_WIDTH`, `first + N * LANES <= layer.padded`, `2 * layer.pairs <= MAX_WIDTH`, and
/// `layer.weights` has `2 * padded` numbers for each pair.
#[inline(always)]
unsafe fn outputs<const N: usize>(
    bits: Bits,
    layer: Hidden<'_>,
    first: usize,
    x: &Activations,
    to: &mut Activations,
) -> usize {
    const { assert!(N.is_multiple_of(2)) }
    // SAFETY: every pointer stays within its array, by what the caller has promised; a vector of sums is LANES
    // numbers of 32 bits, one of weights 2 * LANES of 16 bits, a pair of activations two of 16 bits.
    unsafe {
        let at = |numbers: *const i32, n: usize| _mm256_loadu_si256(numbers.add(first + n * LANES).cast());
        let mut sums: [__m256i; N] = core::array::from_fn(|n| at(layer.biases.as_ptr(), n));
        let mut weights = layer.weights.as_ptr().add(2 * first);
        let mut pair: *const i32 = x.0.as_ptr().cast();
        for _ in 0..layer.pairs {
            let both = _mm256_set1_epi32(pair.read_unaligned());
            for (n, sum) in sums.iter_mut().enumerate() {
                let these = _mm256_loadu_si256(weights.add(2 * n * LANES).cast());
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(both, these));
            }
            weights = weights.add(2 * layer.padded);
            pair = pair.add(1);
        }
        for (n, two) in sums.chunks_exact(2).enumerate() {
            let bases =
                [at(layer.tables.as_ptr().cast(), 2 * n), at(layer.tables.as_ptr().cast(), 2 * n + 1)];
            let (low, high) = match bits {
                Bits::W8 => (activate_w8(two[0], bases[0]), activate_w8(two[1], bases[1])),
                Bits::W16 => (activate_w16(two[0], bases[0]), activate_w16(two[1], bases[1])),
            };
            let narrow = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            _mm256_storeu_si256(to.0.as_mut_ptr().add(first + n * STEP).cast(), narrow);
        }
    }
    N * LANES
}

/// # Safety
/// AVX2; each base is where a table starts, each lane has 21 bits.
#[inline(always)]
unsafe fn activate_w8(lanes: __m256i, bases: __m256i) -> __m256i {
    // SAFETY: base + lane / 2^10 is within the tables, and so are the three bytes before it: at the tables' start,
    // where there are none, the entry read instead is the same.
    unsafe {
        let at = _mm256_add_epi32(bases, _mm256_srli_epi32::<10>(lanes));
        let before = _mm256_sub_epi32(at, _mm256_set1_epi32(super::BEFORE));
        let at = _mm256_max_epi32(before, _mm256_setzero_si256());
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

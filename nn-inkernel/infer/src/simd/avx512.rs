//! AVX-512 kernel: sixteen sums to a vector, each of two products at once.

use core::arch::x86_64::*;

use super::{Activations, Bits, Hidden, Layers, Prepared, STEP, avx2, tables};

/// Sums in a vector.
const LANES: usize = 16;
const _: () = assert!(STEP == LANES);
/// Partial sums of a neuron that are computed side by side.
const TURNS: usize = 4;

/// Runs the network on AVX-512.
///
/// # Safety
/// Only where the processor has these features, which [`Kernel::available`](crate::Kernel::available) has found.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni,popcnt")]
pub(super) unsafe fn infer(network: &Prepared, inputs: &[i32], sums: &mut [i32]) -> u32 {
    super::infer::<Avx512>(network, inputs, sums)
}

/// The AVX-512 layers, used by [`infer`] only.
struct Avx512;

impl Layers for Avx512 {
    #[inline(always)]
    fn normalise(network: &Prepared, inputs: &[i32], x: &mut Activations) -> u32 {
        let count = network.layers[0].0;
        let inputs = &inputs[..inputs.len().min(count)];
        let mut clipped = 0;
        for first in (0..count).step_by(LANES) {
            // SAFETY: this is inlined into `infer`; `first` is below the network's inputs.
            clipped += unsafe { normalise(network, inputs, first, x) };
        }
        clipped
    }

    #[inline(always)]
    fn hidden(bits: Bits, layer: Hidden<'_>, x: &Activations, to: &mut Activations) {
        // `outputs` relies on this.
        assert!(layer.weights.len() >= 2 * layer.padded * layer.pairs);
        assert!(
            layer.padded <= to.0.len() && 2 * layer.pairs <= x.0.len() && layer.padded.is_multiple_of(LANES)
        );
        let mut first = 0;
        while first < layer.padded {
            // SAFETY: this is inlined into `infer`; the rest has been asserted, and `first` and the sums that follow
            // are below `padded`.
            first += unsafe {
                match (layer.padded - first) / LANES {
                    2.. => outputs::<2>(bits, layer, first, x, to),
                    _ => outputs::<1>(bits, layer, first, x, to),
                }
            };
        }
    }

    #[inline(always)]
    fn dot(row: &[i16], x: &Activations) -> i32 {
        // SAFETY: AVX2 is there, since this is inlined into `infer`.
        unsafe { avx2::dot(row, x) }
    }
}

/// Computes the activations of the inputs from `first` on; returns how many of them were clipped.
///
/// # Safety
/// As [`infer`]; `first` is a multiple of [`LANES`] and less than `MAX_INPUTS`.
#[inline(always)]
unsafe fn normalise(network: &Prepared, inputs: &[i32], first: usize, x: &mut Activations) -> u32 {
    let features = &network.features;
    let there = inputs.len().saturating_sub(first).min(LANES);
    // SAFETY: MAX_INPUTS and MAX_WIDTH are multiples of LANES, so a vector at `first` is within each array; of `inputs`
    // those are read that are there.
    unsafe {
        let at = |numbers: *const i32| _mm512_loadu_si512(numbers.add(first).cast());
        let (lo, hi) = (at(features.lo.as_ptr()), at(features.hi.as_ptr()));
        let mult_hi = at(features.mult_hi.as_ptr().cast());
        let mult_lo = at(features.mult_lo.as_ptr().cast());
        let mask = ((1_u32 << there) - 1) as __mmask16;
        let value = _mm512_maskz_loadu_epi32(mask, inputs.as_ptr().wrapping_add(first));
        let clipped = _mm512_cmplt_epi32_mask(value, lo) | _mm512_cmpgt_epi32_mask(value, hi);
        let above = _mm512_sub_epi32(_mm512_max_epi32(_mm512_min_epi32(value, hi), lo), lo);
        let half = _mm512_set1_epi64(1 << 31);
        let even = _mm512_add_epi64(_mm512_mul_epu32(above, mult_lo), half);
        let (odd_above, odd_mult) = (_mm512_srli_epi64::<32>(above), _mm512_srli_epi64::<32>(mult_lo));
        let odd = _mm512_add_epi64(_mm512_mul_epu32(odd_above, odd_mult), half);
        // The upper halves of both.
        let low = _mm512_mask_shuffle_epi32::<_MM_PERM_DDBB>(odd, 0x5555, even);
        let scaled = _mm512_add_epi32(_mm512_mullo_epi32(above, mult_hi), low);
        let max_activation = _mm512_set1_epi32(network.bits.max_activation() as i32);
        let narrow = _mm512_cvtepi32_epi16(_mm512_sub_epi32(scaled, max_activation));
        _mm256_storeu_si256(x.0.as_mut_ptr().add(first).cast(), narrow);
        clipped.count_ones()
    }
}

/// Computes the activations of `N` vectors of outputs, from output `first` on; returns how many outputs those are.
///
/// # Safety
/// As [`infer`]; `layer.padded <= MAX_WIDTH`, `first + N * LANES <= layer.padded`, `2 * layer.pairs <=
/// MAX_WIDTH`, and `layer.weights` has `2 * padded` numbers for each pair.
#[inline(always)]
unsafe fn outputs<const N: usize>(
    bits: Bits,
    layer: Hidden<'_>,
    first: usize,
    x: &Activations,
    to: &mut Activations,
) -> usize {
    // SAFETY: every pointer stays within its array, by what the caller has promised; a vector of sums is LANES
    // numbers of 32 bits, one of weights 2 * LANES of 16 bits, a pair of activations two of 16 bits.
    unsafe {
        let at = |numbers: *const i32, n: usize| _mm512_loadu_si512(numbers.add(first + n * LANES).cast());
        let mut weights = layer.weights.as_ptr().add(2 * first);
        let mut pair: *const i32 = x.0.as_ptr().cast();
        // A sum waits for the one before it: pairs take turns at several, the first of which begins with the biases.
        let mut sums = [[_mm512_setzero_si512(); N]; TURNS];
        sums[0] = core::array::from_fn(|n| at(layer.biases.as_ptr(), n));
        for _ in 0..layer.pairs / TURNS {
            for turn in &mut sums {
                add(turn, pair, weights);
                (pair, weights) = (pair.add(1), weights.add(2 * layer.padded));
            }
        }
        for turn in sums.iter_mut().take(layer.pairs % TURNS) {
            add(turn, pair, weights);
            (pair, weights) = (pair.add(1), weights.add(2 * layer.padded));
        }
        let [a, b, c, d] = sums;
        for n in 0..N {
            let sum = _mm512_add_epi32(_mm512_add_epi32(a[n], b[n]), _mm512_add_epi32(c[n], d[n]));
            let bases = at(layer.tables.as_ptr().cast(), n);
            let y = match bits {
                Bits::W8 => activate_w8(sum, bases),
                Bits::W16 => activate_w16(sum, bases),
            };
            let to = to.0.as_mut_ptr().add(first + n * LANES);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(y));
        }
    }
    N * LANES
}

/// Adds the products of one pair of activations.
///
/// # Safety
/// As [`infer`]; two numbers at `pair`, `2 * N * LANES` at `weights`.
#[inline(always)]
unsafe fn add<const N: usize>(sums: &mut [__m512i; N], pair: *const i32, weights: *const i16) {
    // SAFETY: what the caller has promised.
    unsafe {
        let both = _mm512_set1_epi32(pair.read_unaligned());
        for (n, sum) in sums.iter_mut().enumerate() {
            let these = _mm512_loadu_si512(weights.add(2 * n * LANES).cast());
            *sum = _mm512_dpwssd_epi32(*sum, both, these);
        }
    }
}

/// # Safety
/// AVX-512; each base is where a table starts, each lane has 21 bits.
#[inline(always)]
unsafe fn activate_w8(lanes: __m512i, bases: __m512i) -> __m512i {
    // SAFETY: base + lane / 2^10 is within the tables, and so are the three bytes before it: at the tables' start,
    // where there are none, the entry read instead is the same.
    unsafe {
        let at = _mm512_add_epi32(bases, _mm512_srli_epi32::<10>(lanes));
        let before = _mm512_sub_epi32(at, _mm512_set1_epi32(super::BEFORE));
        let at = _mm512_max_epi32(before, _mm512_setzero_si512());
        _mm512_srai_epi32::<24>(_mm512_i32gather_epi32::<1>(at, tables::W8.as_ptr().cast()))
    }
}

/// # Safety
/// AVX-512; each base is where a table starts.
#[inline(always)]
unsafe fn activate_w16(lanes: __m512i, bases: __m512i) -> __m512i {
    // SAFETY: base + lane / 2^21 and the entry after it are within the tables.
    unsafe {
        let at = _mm512_add_epi32(bases, _mm512_srli_epi32::<21>(lanes));
        let both = _mm512_i32gather_epi32::<2>(at, tables::W16.as_ptr().cast());
        let right = _mm512_srai_epi32::<16>(both);
        let left = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(both));
        let fraction = _mm512_and_si512(_mm512_srli_epi32::<11>(lanes), _mm512_set1_epi32(1023));
        let rise = _mm512_mullo_epi32(_mm512_sub_epi32(right, left), fraction);
        _mm512_add_epi32(left, _mm512_srai_epi32::<10>(rise))
    }
}

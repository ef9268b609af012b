//! Functions whose bits are the same on every machine.
//!
//! They use only additions, multiplications, divisions and square roots of IEEE 754, in a fixed order. There is no
//! fused multiply-add (rustc never contracts `a * b + c`), while a system's `libm` differs between versions and
//! processors. All but [`ln`] are branch-free, so that loops over them become vector code.

/// Beyond it either way [`tanh`] is 1 but for rounding.
const TANH_LIMIT: f32 = 7.905_311;

/// The hyperbolic tangent by a rational function; within 4.2e-7 of the true value, and never beyond 1 either way.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // Coefficients as in Eigen's ptanh_float (Eigen/src/Core/MathFunctionsImpl.h).
    let x = clamp(x, -TANH_LIMIT, TANH_LIMIT);
    let x2 = x * x;
    let mut p = -2.760_768_5e-16;
    p = p * x2 + 2.000_188e-13;
    p = p * x2 - 8.604_672e-11;
    p = p * x2 + 5.122_297e-8;
    p = p * x2 + 1.485_722_4e-5;
    p = p * x2 + 6.372_619_3e-4;
    p = p * x2 + 4.893_524_6e-3;
    let mut q = 1.198_258_4e-6;
    q = q * x2 + 1.185_347_1e-4;
    q = q * x2 + 2.268_434_6e-3;
    q = q * x2 + 4.893_525e-3;
    clamp(x * p / q, -1.0, 1.0)
}

/// `e^x`, `x` clamped to +-87; relative error below 3e-7.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const TO_NEAREST: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves no fractional bits.
    let x = clamp(x, -87.0, 87.0);
    let n = (x * std::f32::consts::LOG2_E + TO_NEAREST) - TO_NEAREST;
    // ln 2 in two parts, the first exact in few bits (Cody and Waite).
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    p * f32::from_bits((((n as i32) + 127) << 23) as u32)
}

/// The natural logarithm of a positive normal number; relative error below 1e-13. 0 and less give that of the smallest.
pub fn ln(x: f64) -> f64 {
    let bits = x.max(f64::MIN_POSITIVE).to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is below 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    let mut k = 19;
    while k >= 1 {
        sum = sum * s2 + 1.0 / f64::from(k);
        k -= 2;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// [`f32::clamp`] without a panic, in a form that becomes two vector instructions.
#[inline(always)]
pub(crate) fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// Half of ln 2 pi.
const HALF_LN_TAU: f32 = 0.918_938_5;

/// The logarithm of the density of `action` under a normal distribution.
#[inline(always)]
pub fn log_prob(action: f32, mean: f32, log_std: f32, inverse_std: f32) -> f32 {
    let z = (action - mean) * inverse_std;
    -0.5 * z * z - log_std - HALF_LN_TAU
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_true_functions() {
        for n in -2_000_000..=2_000_000 {
            let x = n as f32 * 1e-5;
            let y = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - y).abs() <= 4.2e-7, "tanh {x}: {} for {y}", tanh(x));
            assert!((f64::from(tanh(x)) - y).abs() <= 1e-6 * y.abs(), "tanh {x}");
            let y = f64::from(x * 4.0).exp();
            assert!((f64::from(exp(x * 4.0)) / y - 1.0).abs() < 3e-7, "exp {}", x * 4.0);
        }
        for n in 1..1_000_000 {
            let x = f64::from(n) * f64::from(n) * 1e-7;
            assert!((ln(x) - x.ln()).abs() <= 1e-13 * x.ln().abs().max(1e-2), "ln {x}: {}", ln(x));
        }
    }

    #[test]
    fn log_probs_are_those_of_a_normal_distribution() {
        let std = 0.5_f32;
        let density = |x: f32| log_prob(x, 0.25, std.ln(), 1.0 / std).exp();
        let sum: f32 = (-4000..4000).map(|n| density(n as f32 * 1e-3) * 1e-3).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert!((density(0.25) - 0.797_884_6).abs() < 1e-6);
    }

    #[test]
    fn limits_hold_at_extreme_arguments() {
        assert_eq!(tanh(f32::INFINITY), -tanh(f32::NEG_INFINITY));
        assert!(tanh(1e30) > 0.999_999_5 && tanh(1e30) <= 1.0);
        assert_eq!(tanh(0.0), 0.0);
        assert!(tanh(f32::NAN).is_nan() && exp(f32::NAN).is_nan());
        assert!(exp(1e9).is_finite() && exp(-1e9) > 0.0);
        assert!(ln(0.0) < -700.0 && ln(1.0) == 0.0);
    }

    #[test]
    fn the_same_bits_everywhere() {
        // Computed once; a compiler that contracts or reorders would change some of them.
        let mut hash = 0_u64;
        for n in -40_000..40_000 {
            let x = n as f32 * 2.5e-4;
            let word = u64::from(tanh(x).to_bits()) << 32 | u64::from(exp(x).to_bits());
            hash = (hash ^ word ^ ln(f64::from(x * x) + 1e-3).to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        assert_eq!(hash, 9_283_603_342_869_956_313);
    }
}

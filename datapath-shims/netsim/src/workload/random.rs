//! Draws in integers: uniform, and exponential by inversion.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// ln 2 in 2^-32.
const LN_2: u64 = 2_977_044_472;

/// A stream of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Random(rng)
    }

    /// Uniform below 1, in 2^-32.
    #[inline]
    pub(crate) fn share(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Draws a uniform number of `0..=max`.
    #[inline]
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * (u128::from(max) + 1)) >> 64) as u64
    }

    /// Exponential of mean 1, in 2^-32: minus the logarithm of a uniform draw.
    pub(crate) fn exponential(&mut self) -> u64 {
        minus_ln(self.0.next_u64())
    }
}

/// `value` times `factor` / 2^32, saturating.
pub(crate) fn scaled(value: u64, factor: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(factor)) >> 32).unwrap_or(u64::MAX)
}

/// `-ln(draw / 2^64)` in 2^-32, for a draw of 0 that of 1.
fn minus_ln(draw: u64) -> u64 {
    let draw = draw.max(1);
    let zeros = draw.leading_zeros();
    // draw / 2^64 = m / 2^63 * 2^-(zeros + 1), with 1 <= m / 2^63 < 2; each squaring of m yields a bit of its log2.
    let mut m = draw << zeros;
    let mut log2 = 0u64;
    for bit in (0..32).rev() {
        let square = (u128::from(m) * u128::from(m)) >> 63;
        let carry = square >> 64 != 0;
        m = if carry { (square >> 1) as u64 } else { square as u64 };
        log2 |= u64::from(carry) << bit;
    }
    let minus_log2 = (u64::from(zeros + 1) << 32) - log2;
    ((u128::from(minus_log2) * u128::from(LN_2)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_their_last_bits() {
        for draw in [1, 2, 3, 0x1234_5678, 1 << 40, (1 << 40) + 12345, u64::MAX / 3, u64::MAX / 2, u64::MAX] {
            let float = -((draw as f64) / 2f64.powi(64)).ln();
            let integer = minus_ln(draw) as f64 / 2f64.powi(32);
            assert!((float - integer).abs() < 1e-8, "{draw}: {float} {integer}");
        }
    }

    #[test]
    fn uniform_draws_reach_their_ends() {
        let mut random = Random::new(1, 0);
        let draws: Vec<u64> = (0..1000).map(|_| random.up_to(3)).collect();
        for n in 0..=3 {
            assert!((200..300).contains(&draws.iter().filter(|d| **d == n).count()));
        }
        assert_eq!(scaled(1000, 3 << 31), 1500);
        assert_eq!(scaled(u64::MAX, u64::MAX), u64::MAX);
    }
}

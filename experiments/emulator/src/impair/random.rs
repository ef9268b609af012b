//! Draws events of a given probability from a seed.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Sequences of one seed that have nothing to do with each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Loss,
    BurstLoss,
    Outages,
    Duplicate,
    Jitter,
    Reorder,
}

impl Stream {
    pub(crate) fn of(self, seed: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(self as u64);
        random
    }
}

/// A probability: a draw below the threshold strikes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    /// The probability in 2^-32.
    threshold: u64,
}

impl Chance {
    pub(crate) fn of(probability: f64) -> Chance {
        Chance { threshold: (probability * (u64::from(u32::MAX) + 1) as f64).round() as u64 }
    }

    /// Draws, unless the outcome is certain to be no.
    pub(crate) fn strikes(self, random: &mut ChaCha8Rng) -> bool {
        self.threshold > 0 && u64::from(random.next_u32()) < self.threshold
    }
}

/// A time from an exponential distribution with this mean; the longest is about 44 times the mean.
pub(crate) fn exponential_ns(random: &mut ChaCha8Rng, mean_ns: f64) -> u64 {
    // In (0, 1], so that the logarithm is finite.
    let uniform = (random.next_u64() as f64 + 1.0) / (u64::MAX as f64 + 1.0);
    (-uniform.ln() * mean_ns) as u64
}

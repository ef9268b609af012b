//! Draws of one link's parameters.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::set::Set;

/// Shares of a range, in hundredths, that a set draws from: the ends are for sets that are used less.
const INNER: [(Set, f64); 3] = [(Set::Training, 0.1), (Set::Validation, 0.05), (Set::Test, 0.0)];

/// Random numbers of one link, and the part of each range that they reach.
pub struct Draw {
    random: ChaCha8Rng,
    margin: f64,
}

impl Draw {
    /// Draws of a set; each `stream` has its own.
    pub(crate) fn of_set(set: Set, stream: u64) -> Draw {
        let margin = INNER.iter().find(|(of, _)| *of == set).map_or(0.0, |(_, margin)| *margin);
        Draw { margin, ..Draw::new(set.seed(), stream) }
    }

    /// Draws of a seed, from whole ranges; each `stream` has its own.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Draw {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Draw { random, margin: 0.0 }
    }

    /// Uniform in 0 to 1, without the ends that the set does not reach.
    fn share(&mut self) -> f64 {
        let uniform = f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        self.margin + (1.0 - 2.0 * self.margin) * uniform
    }

    /// Draws a number uniform between the two.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        rounded(low + (high - low) * self.share())
    }

    /// Uniform between the two on a logarithmic scale.
    pub fn scaled(&mut self, low: f64, high: f64) -> f64 {
        rounded((low.ln() + (high / low).ln() * self.share()).exp())
    }

    /// Draws one of the choices, which must not be empty.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.next_u32() as usize % choices.len()]
    }

    /// Draws one of two outcomes.
    pub fn coin(&mut self) -> bool {
        self.random.next_u32() & 1 == 0
    }

    /// A seed that no other draw has.
    pub fn seed(&mut self) -> u32 {
        self.random.next_u32()
    }
}

/// Rounds to three digits, as plans show them.
fn rounded(value: f64) -> f64 {
    let scale = 10f64.powi(2 - value.abs().max(1e-9).log10().floor() as i32);
    let scaled = (value * scale).round() / scale;
    if scaled >= 100.0 { scaled.round() } else { scaled }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_three_digits() {
        for (value, expected) in [(12.3456, 12.3), (0.012_345, 0.0123), (987.6, 988.0), (3.0, 3.0)] {
            assert!((rounded(value) - expected).abs() < 1e-12, "{value}");
        }
    }

    #[test]
    fn only_the_test_reaches_the_ends() {
        let ends = |set| {
            let all: Vec<f64> = (0..2000).map(|n| Draw::of_set(set, n).between(0.0, 100.0)).collect();
            all.iter().fold((f64::MAX, 0f64), |(low, high), v| (low.min(*v), high.max(*v)))
        };
        let (low, high) = ends(Set::Training);
        assert!((10.0..11.0).contains(&low) && (89.0..=90.0).contains(&high), "{low} {high}");
        let (low, high) = ends(Set::Validation);
        assert!((5.0..6.0).contains(&low) && (94.0..=95.0).contains(&high), "{low} {high}");
        let (low, high) = ends(Set::Test);
        assert!(low < 1.0 && high > 99.0, "{low} {high}");
    }
}

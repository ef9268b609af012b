//! Weights by their logarithms, so that none overflows or vanishes, and draws from distributions.

use crate::error::{BanditError, arm};
use rand_core::RngCore;

/// An arm that was drawn, with the probability that it was drawn with: to be kept until its reward is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    /// The arm, from 0.
    pub arm: usize,
    /// The probability of the arm when it was drawn, above 0.
    pub probability: f64,
}

impl Draw {
    pub(crate) fn check(self, arms: usize) -> Result<Draw, BanditError> {
        arm(self.arm, arms)?;
        if self.probability > 0.0 && self.probability <= 1.0 {
            Ok(self)
        } else {
            Err(BanditError::Probability { found: self.probability })
        }
    }
}

/// The distribution in proportion to e to the power of these.
pub(crate) fn softmax(logs: &[f64]) -> Vec<f64> {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Shifts logarithms so that the largest is 0, which changes no distribution.
pub(crate) fn normalise(logs: &mut [f64]) {
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logs.iter_mut().for_each(|log| *log -= largest);
}

/// Mixes `of` with the uniform distribution, which has probability `gamma`.
pub(crate) fn mixed(of: &[f64], gamma: f64) -> Vec<f64> {
    let uniform = gamma / of.len() as f64;
    of.iter().map(|p| (1.0 - gamma) * p + uniform).collect()
}

/// An arm of this distribution.
pub(crate) fn draw(probabilities: &[f64], random: &mut impl RngCore) -> Draw {
    let mut left = uniform(random) * probabilities.iter().sum::<f64>();
    let mut last = 0;
    for (arm, probability) in probabilities.iter().enumerate() {
        if *probability <= 0.0 {
            continue;
        }
        last = arm;
        left -= probability;
        if left < 0.0 {
            break;
        }
    }
    Draw { arm: last, probability: probabilities.get(last).copied().unwrap_or(1.0).min(1.0) }
}

/// Uniform in 0 to 1, 1 excluded, on 53 bits.
fn uniform(random: &mut impl RngCore) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
    (random.next_u64() >> 11) as f64 * SCALE
}

//! Exp3, with a share as Exp3.S, or with a discount.

use crate::error::{BanditError, arms, reward, within};
use crate::weights::{Draw, draw, mixed, normalise, softmax};
use rand_core::RngCore;

/// The parameters of Exp3.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exp3Config {
    /// The probability of a uniform draw, above 0 and at most 1.
    pub gamma: f64,
    /// Exp3.S: the share of all weights that each arm gets at each reward, 0 to 1; 0 is Exp3.
    pub share: f64,
    /// The factor of the weights' logarithms at each reward, above 0 and at most 1; 1 forgets nothing.
    pub discount: f64,
}

impl Exp3Config {
    /// Exp3 with the gamma that bounds its regret after `rounds` (corollary 3.2).
    pub fn for_rounds(arms: usize, rounds: u64) -> Exp3Config {
        let k = arms.max(1) as f64;
        let gain = rounds.max(1) as f64 * (std::f64::consts::E - 1.0);
        // One arm leaves nothing to explore.
        let gamma = (k * k.ln() / gain).sqrt().clamp(f64::MIN_POSITIVE, 1.0);
        Exp3Config { gamma, share: 0.0, discount: 1.0 }
    }
}

/// Exponential weights for exploration and exploitation.
#[derive(Clone, PartialEq, Debug)]
pub struct Exp3 {
    config: Exp3Config,
    logs: Vec<f64>,
}

impl Exp3 {
    /// Starts with equal weights.
    ///
    /// # Errors
    /// `Arms`, `Parameter`.
    pub fn new(count: usize, config: Exp3Config) -> Result<Exp3, BanditError> {
        within("gamma", config.gamma, f64::MIN_POSITIVE, 1.0)?;
        within("share", config.share, 0.0, 1.0)?;
        within("discount", config.discount, f64::MIN_POSITIVE, 1.0)?;
        Ok(Exp3 { config, logs: vec![0.0; arms(count)?] })
    }

    /// The probability of each arm.
    pub fn probabilities(&self) -> Vec<f64> {
        mixed(&softmax(&self.logs), self.config.gamma)
    }

    /// Draws an arm at random by the present probabilities.
    pub fn draw(&self, random: &mut impl RngCore) -> Draw {
        draw(&self.probabilities(), random)
    }

    /// Takes in the reward of a draw, however long ago that was.
    ///
    /// # Errors
    /// `NoArm`, `Probability`, `Reward`.
    pub fn observe(&mut self, drawn: Draw, of: f64) -> Result<(), BanditError> {
        let Draw { arm, probability } = drawn.check(self.logs.len())?;
        let estimate = reward(of)? / probability;
        let Exp3Config { gamma, share, discount } = self.config;
        let arms = self.logs.len() as f64;
        if discount < 1.0 {
            // Relative to the largest, so that only differences are forgotten.
            normalise(&mut self.logs);
            self.logs.iter_mut().for_each(|log| *log *= discount);
        }
        let before = softmax(&self.logs);
        let largest = self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.logs.iter().map(|log| (log - largest).exp()).sum();
        if let Some(log) = self.logs.get_mut(arm) {
            *log += gamma * estimate / arms;
        }
        if share > 0.0 {
            // Section 8: e alpha / K of the sum of the weights before; relative to that sum.
            let added = std::f64::consts::E * share / arms;
            let log_sum = largest + sum.ln();
            for (n, log) in self.logs.iter_mut().enumerate() {
                let grown = if n == arm { gamma * estimate / arms } else { 0.0 };
                let kept = before.get(n).copied().unwrap_or(0.0).ln() + grown;
                // The logarithm of a sum, whose larger part is taken out first.
                let (high, low) = (kept.max(added.ln()), kept.min(added.ln()));
                *log = log_sum + high + (low - high).exp().ln_1p();
            }
        }
        normalise(&mut self.logs);
        Ok(())
    }
}

//! Exp3 with implicit exploration.

use crate::error::{BanditError, arms, reward, within};
use crate::weights::{Draw, draw, softmax};
use rand_core::RngCore;

/// Exp3-IX: losses are estimated a little low, which explores without uniform draws (Neu, algorithm 1).
#[derive(Clone, PartialEq, Debug)]
pub struct Exp3Ix {
    eta: f64,
    losses: Vec<f64>,
}

impl Exp3Ix {
    /// Starts with this learning rate, above 0 and at most 1; half of it is the implicit exploration.
    ///
    /// # Errors
    /// `Arms`, `Parameter`.
    pub fn new(count: usize, eta: f64) -> Result<Exp3Ix, BanditError> {
        within("eta", eta, f64::MIN_POSITIVE, 1.0)?;
        Ok(Exp3Ix { eta, losses: vec![0.0; arms(count)?] })
    }

    /// The learning rate that bounds the regret after `rounds` (theorem 1).
    pub fn rate_for(arms: usize, rounds: u64) -> f64 {
        let k = arms.max(1) as f64;
        (2.0 * k.ln() / (k * rounds.max(1) as f64)).sqrt().clamp(f64::MIN_POSITIVE, 1.0)
    }

    /// The probability of each arm.
    pub fn probabilities(&self) -> Vec<f64> {
        let logs: Vec<f64> = self.losses.iter().map(|loss| -self.eta * loss).collect();
        softmax(&logs)
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
        let Draw { arm, probability } = drawn.check(self.losses.len())?;
        let loss = 1.0 - reward(of)?;
        if let Some(sum) = self.losses.get_mut(arm) {
            *sum += loss / (probability + self.eta / 2.0);
        }
        // Only differences count.
        let least = self.losses.iter().copied().fold(f64::INFINITY, f64::min);
        self.losses.iter_mut().for_each(|loss| *loss -= least);
        Ok(())
    }
}

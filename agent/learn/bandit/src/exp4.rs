//! Exp4: experts whose advice is followed by its past success.

use crate::MAX_EXPERTS;
use crate::error::{BanditError, arms, reward, within};
use crate::weights::{Draw, draw, mixed, normalise, softmax};
use rand_core::RngCore;

/// The largest difference of the sum of an expert's probabilities from 1.
const ROUNDING: f64 = 1e-6;

/// A draw and what each expert had advised of its arm: to be kept until its reward is known.
#[derive(Clone, PartialEq, Debug)]
pub struct Advised {
    pub draw: Draw,
    /// The probability that each expert gave the arm.
    pub advice: Vec<f64>,
}

/// Exponential weights for experts (Auer et al., figure 4).
#[derive(Clone, PartialEq, Debug)]
pub struct Exp4 {
    gamma: f64,
    arms: usize,
    logs: Vec<f64>,
}

impl Exp4 {
    /// Starts with equal weights; `gamma` is the probability of a uniform draw, above 0 and at most 1.
    ///
    /// # Errors
    /// `Arms`, `Experts`, `Parameter`.
    pub fn new(count: usize, experts: usize, gamma: f64) -> Result<Exp4, BanditError> {
        within("gamma", gamma, f64::MIN_POSITIVE, 1.0)?;
        if !(1..=MAX_EXPERTS).contains(&experts) {
            return Err(BanditError::Experts { found: experts });
        }
        Ok(Exp4 { gamma, arms: arms(count)?, logs: vec![0.0; experts] })
    }

    /// Each expert's part of the trust.
    pub fn trust(&self) -> Vec<f64> {
        softmax(&self.logs)
    }

    /// The probability of each arm under this advice: one distribution over the arms for each expert.
    ///
    /// # Errors
    /// `Length`, `Advice`.
    pub fn probabilities<A: AsRef<[f64]>>(&self, advice: &[A]) -> Result<Vec<f64>, BanditError> {
        if advice.len() != self.logs.len() {
            return Err(BanditError::Length { found: advice.len(), expected: self.logs.len() });
        }
        let mut sums = vec![0.0; self.arms];
        for (expert, (trust, of)) in self.trust().iter().zip(advice).enumerate() {
            let of = of.as_ref();
            if of.len() != self.arms {
                return Err(BanditError::Length { found: of.len(), expected: self.arms });
            }
            let is_distribution = of.iter().all(|p| (0.0..=1.0).contains(p))
                && (of.iter().sum::<f64>() - 1.0).abs() <= ROUNDING;
            if !is_distribution {
                return Err(BanditError::Advice { expert });
            }
            sums.iter_mut().zip(of).for_each(|(sum, p)| *sum += trust * p);
        }
        Ok(mixed(&sums, self.gamma))
    }

    /// Draws an arm under this advice.
    ///
    /// # Errors
    /// `Length`, `Advice`.
    pub fn draw<A: AsRef<[f64]>>(
        &self,
        advice: &[A],
        random: &mut impl RngCore,
    ) -> Result<Advised, BanditError> {
        let draw = draw(&self.probabilities(advice)?, random);
        let of = |expert: &A| expert.as_ref().get(draw.arm).copied().unwrap_or(0.0);
        Ok(Advised { draw, advice: advice.iter().map(of).collect() })
    }

    /// Takes in the reward of a draw, however long ago that was.
    ///
    /// # Errors
    /// `NoArm`, `Probability`, `Reward`, `Length`.
    pub fn observe(&mut self, drawn: &Advised, of: f64) -> Result<(), BanditError> {
        let Draw { probability, .. } = drawn.draw.check(self.arms)?;
        if drawn.advice.len() != self.logs.len() {
            return Err(BanditError::Length { found: drawn.advice.len(), expected: self.logs.len() });
        }
        let estimate = reward(of)? / probability;
        for (log, advised) in self.logs.iter_mut().zip(&drawn.advice) {
            *log += self.gamma * estimate * advised / self.arms as f64;
        }
        normalise(&mut self.logs);
        Ok(())
    }
}

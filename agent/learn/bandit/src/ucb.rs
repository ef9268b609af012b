//! Upper confidence bounds for rewards whose means change.

use crate::MAX_WINDOW;
use crate::error::{BanditError, arm, arms, reward, within};
use std::collections::VecDeque;

/// The way older rewards lose their weight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Forgetting {
    /// Each later reward multiplies the weight by this factor, above 0 and at most 1; 1 forgets nothing and is UCB1.
    Discount(f64),
    /// All at once, when so many later ones have come; 1 to [`MAX_WINDOW`].
    Window(usize),
}

/// The parameters of UCB.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UcbConfig {
    pub forgetting: Forgetting,
    /// The factor xi below the root, 0 to 100; above 1/2 the papers' bounds hold.
    pub exploration: f64,
    /// The bound B before the root, 0 to 100: how far rewards vary.
    pub spread: f64,
}

/// The discounted statistics of an arm.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Estimate {
    /// Sum of the weights that the rewards have left.
    pub weight: f64,
    pub sum: f64,
}

impl Estimate {
    /// The weighted mean; `None` without rewards.
    pub fn mean(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    fn scale(&mut self, by: f64) {
        self.weight *= by;
        self.sum *= by;
    }
}

/// Draws the arm whose mean, with a padding for what is not known, is the largest. Rewards may come late: only those that
/// have come count.
#[derive(Clone, PartialEq, Debug)]
pub struct Ucb {
    config: UcbConfig,
    estimates: Vec<Estimate>,
    /// The rewards in the window, oldest first; empty where rewards are discounted.
    recent: VecDeque<(usize, f64)>,
}

impl Ucb {
    /// Makes a learner that has seen no rewards.
    ///
    /// # Errors
    /// `Arms`, `Parameter`.
    pub fn new(count: usize, config: UcbConfig) -> Result<Ucb, BanditError> {
        within("exploration", config.exploration, 0.0, 100.0)?;
        within("spread", config.spread, 0.0, 100.0)?;
        match config.forgetting {
            Forgetting::Discount(discount) => within("discount", discount, f64::MIN_POSITIVE, 1.0)?,
            Forgetting::Window(window) => within("window", window as f64, 1.0, MAX_WINDOW as f64)?,
        };
        let estimates = vec![Estimate::default(); arms(count)?];
        Ok(Ucb { config, estimates, recent: VecDeque::new() })
    }

    /// Begins with what is believed of each arm beforehand, as rewards of this weight; they are forgotten by discounts,
    /// and never leave a window.
    ///
    /// # Errors
    /// `Length`, `Reward`, `Parameter`.
    pub fn with_priors(mut self, means: &[f64], weight: f64) -> Result<Ucb, BanditError> {
        if means.len() != self.estimates.len() {
            return Err(BanditError::Length { found: means.len(), expected: self.estimates.len() });
        }
        within("weight", weight, 0.0, MAX_WINDOW as f64)?;
        for (estimate, mean) in self.estimates.iter_mut().zip(means) {
            *estimate = Estimate { weight, sum: reward(*mean)? * weight };
        }
        Ok(self)
    }

    /// Goes on from estimates that were kept, or moved; a window begins empty.
    ///
    /// # Errors
    /// `Length`, `Parameter`, `Reward`: a sum is negative or beyond its weight.
    pub fn with_estimates(mut self, estimates: &[Estimate]) -> Result<Ucb, BanditError> {
        if estimates.len() != self.estimates.len() {
            return Err(BanditError::Length { found: estimates.len(), expected: self.estimates.len() });
        }
        for estimate in estimates {
            within("weight", estimate.weight, 0.0, MAX_WINDOW as f64)?;
            // A mean that rounding has moved beyond the range is within it.
            const ROUNDING: f64 = 1e-9;
            let over = estimate.sum - estimate.weight;
            if !(estimate.sum >= -ROUNDING && over <= ROUNDING) {
                return Err(BanditError::Reward { found: estimate.sum });
            }
        }
        self.estimates.copy_from_slice(estimates);
        self.recent.clear();
        Ok(self)
    }

    /// Returns the estimate of each arm, in the arms' order.
    pub fn estimates(&self) -> &[Estimate] {
        &self.estimates
    }

    /// The upper bound of an arm: infinite where nothing is known.
    pub fn bound(&self, of: usize) -> Option<f64> {
        let estimate = self.estimates.get(of)?;
        let Some(mean) = estimate.mean() else { return Some(f64::INFINITY) };
        let all: f64 = self.estimates.iter().map(|e| e.weight).sum();
        let spread = match self.config.forgetting {
            // Garivier and Moulines, sections 3.1 and 3.2: the discounted one has twice the padding.
            Forgetting::Discount(_) => 2.0 * self.config.spread,
            Forgetting::Window(_) => self.config.spread,
        };
        let padding = spread * (self.config.exploration * all.max(1.0).ln() / estimate.weight).sqrt();
        Some(mean + padding)
    }

    /// The arm of the largest bound, the first of equals.
    pub fn choose(&self) -> usize {
        let bounds = (0..self.estimates.len()).filter_map(|n| Some((n, self.bound(n)?)));
        let best = bounds.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map_or(0, |(n, _)| n)
    }

    /// Takes in a reward of an arm.
    ///
    /// # Errors
    /// `NoArm`, `Reward`.
    pub fn observe(&mut self, of: usize, value: f64) -> Result<(), BanditError> {
        let of = arm(of, self.estimates.len())?;
        let value = reward(value)?;
        match self.config.forgetting {
            Forgetting::Discount(discount) => self.estimates.iter_mut().for_each(|e| e.scale(discount)),
            Forgetting::Window(window) => {
                if self.recent.len() >= window
                    && let Some((old, gone)) = self.recent.pop_front()
                    && let Some(estimate) = self.estimates.get_mut(old)
                {
                    estimate.weight -= 1.0;
                    estimate.sum -= gone;
                }
                self.recent.push_back((of, value));
            }
        }
        if let Some(estimate) = self.estimates.get_mut(of) {
            estimate.weight += 1.0;
            estimate.sum += value;
        }
        Ok(())
    }
}

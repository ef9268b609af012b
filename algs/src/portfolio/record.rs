//! Knowledge of the arms in one condition of a path: their worths relative to the best one's.

use ccplane_bandit::{Estimate, Forgetting, Ucb, UcbConfig};

/// Worths are logarithms relative to the best arm's, from -SPAN to SPAN; a reward of the bandit is where they lie between.
const SPAN: f64 = 5.0;
/// The share of their weight that older intervals keep at each new one.
const DISCOUNT: f64 = 0.97;
/// The deviation of the worths of an arm's intervals, as a reward: the padding of an arm that was measured once in ten
/// intervals is 0.15.
const SPREAD: f64 = 0.065 / (2.0 * SPAN);
const EXPLORATION: f64 = 0.6;
/// By how much an arm must be better to be adopted, as a worth.
const MARGIN: f64 = 0.02;
/// The share of the weights that a change of the path leaves.
const AFTER_CHANGE: f64 = 0.25;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Record {
    bandit: Ucb,
    pub intervals: Vec<u64>,
    /// The arm in use.
    pub best: usize,
}

fn reward(worth: f64) -> f64 {
    ((worth + SPAN) / (2.0 * SPAN)).clamp(0.0, 1.0)
}

fn worth(reward: f64) -> f64 {
    reward * 2.0 * SPAN - SPAN
}

fn bandit(estimates: &[Estimate]) -> Option<Ucb> {
    let config =
        UcbConfig { forgetting: Forgetting::Discount(DISCOUNT), exploration: EXPLORATION, spread: SPREAD };
    Ucb::new(estimates.len(), config).ok()?.with_estimates(estimates).ok()
}

impl Record {
    /// Of so many arms, nothing measured; `None` where there are none, or too many.
    pub fn new(arms: usize, best: usize) -> Option<Record> {
        Record::restore(&vec![Estimate::default(); arms], vec![0; arms], best)
    }

    /// Restores the record as it was kept; `None` if it cannot be.
    pub fn restore(estimates: &[Estimate], intervals: Vec<u64>, best: usize) -> Option<Record> {
        let fits = intervals.len() == estimates.len() && best < estimates.len();
        fits.then(|| bandit(estimates)).flatten().map(|bandit| Record { bandit, intervals, best })
    }

    pub fn estimates(&self) -> &[Estimate] {
        self.bandit.estimates()
    }

    /// Its worth relative to the best arm's; `None` where nothing is measured.
    pub fn mean(&self, arm: usize) -> Option<f64> {
        self.estimates().get(arm).and_then(Estimate::mean).map(worth)
    }

    fn of_best(&self) -> f64 {
        self.mean(self.best).unwrap_or(0.0)
    }

    /// The arm to try next: that of the largest bound, if it may be better than the one in use. What is not measured has no bound; of
    /// those the one of the largest prior.
    pub fn candidate(&self, available: &[usize], priors: &[f64]) -> Option<usize> {
        let prior = |arm: usize| priors.get(arm).copied().unwrap_or(0.0);
        let of = |arm: &usize| Some((*arm, worth(self.bandit.bound(*arm)?)));
        let others = available.iter().filter(|arm| **arm != self.best).filter_map(of);
        let larger = |best: (usize, f64), other: (usize, f64)| {
            let is_larger = other.1 > best.1 || (other.1 == best.1 && prior(other.0) > prior(best.0));
            if is_larger { other } else { best }
        };
        let (arm, bound) = others.reduce(larger)?;
        (bound > self.of_best() + MARGIN).then_some(arm)
    }

    /// Takes in that an arm was worth this much more than the best one; whether it becomes the best one.
    pub fn compared(&mut self, arm: usize, difference: f64) -> bool {
        let best = self.of_best();
        self.observe(arm, best + difference);
        if arm != self.best && self.mean(arm).is_some_and(|mean| mean > best + MARGIN) {
            self.best = arm;
            self.centre();
            return true;
        }
        false
    }

    /// Counts an interval of the best arm, which keeps its worth.
    pub fn held(&mut self) {
        self.observe(self.best, self.of_best());
    }

    fn observe(&mut self, arm: usize, worth: f64) {
        // The arm exists and the reward is within its range.
        let _ = self.bandit.observe(arm, reward(worth));
        if let Some(count) = self.intervals.get_mut(arm) {
            *count += 1;
        }
    }

    /// Counts worths from the best arm's, so that they do not wander off.
    fn centre(&mut self) {
        let best = self.of_best();
        let moved = |e: &Estimate| {
            e.mean().map_or(*e, |mean| Estimate { sum: reward(worth(mean) - best) * e.weight, ..*e })
        };
        let estimates: Vec<Estimate> = self.estimates().iter().map(moved).collect();
        self.bandit = bandit(&estimates).unwrap_or_else(|| self.bandit.clone());
    }

    /// The path is another one: what was measured counts for less.
    pub fn doubt(&mut self) {
        let lighter = |e: &Estimate| Estimate { weight: e.weight * AFTER_CHANGE, sum: e.sum * AFTER_CHANGE };
        let estimates: Vec<Estimate> = self.estimates().iter().map(lighter).collect();
        self.bandit = bandit(&estimates).unwrap_or_else(|| self.bandit.clone());
    }
}

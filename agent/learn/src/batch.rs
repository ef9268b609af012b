//! Trajectories and their outcomes, as rows to learn from.

use crate::error::LearnError;
use crate::ppo::PpoConfig;

/// Rows, one after the other: trajectory by trajectory, in the order of time.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Batch {
    /// Numbers in an observation.
    pub observation_len: usize,
    /// All observations, row by row.
    pub observations: Vec<f32>,
    /// The chosen actions, before any bound.
    ///
    /// Only live flows' actions are bounded already, since datapaths report bounded ones. [`crate::online`] gives those at
    /// the bound a weight of 0.
    pub actions: Vec<f32>,
    /// The actions' log-probabilities under the policy that chose them.
    pub log_probs: Vec<f32>,
    pub rewards: Vec<f32>,
    /// The critic's values of the observations.
    pub values: Vec<f32>,
    pub advantages: Vec<f32>,
    /// The critic's targets: advantage plus value.
    pub returns: Vec<f32>,
    pub trajectories: usize,
}

impl Batch {
    /// Makes an empty batch.
    pub fn new(observation_len: usize) -> Batch {
        Batch { observation_len, ..Batch::default() }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Mean reward of a row; 0 without rows.
    pub fn mean_reward(&self) -> f32 {
        let sum: f64 = self.rewards.iter().map(|r| f64::from(*r)).sum();
        if self.is_empty() { 0.0 } else { (sum / self.len() as f64) as f32 }
    }

    /// Appends another batch's rows.
    pub fn append(&mut self, other: &Batch) {
        self.observations.extend_from_slice(&other.observations);
        let pairs = [
            (&mut self.actions, &other.actions),
            (&mut self.log_probs, &other.log_probs),
            (&mut self.rewards, &other.rewards),
            (&mut self.values, &other.values),
            (&mut self.advantages, &other.advantages),
            (&mut self.returns, &other.returns),
        ];
        for (to, from) in pairs {
            to.extend_from_slice(from);
        }
        self.trajectories += other.trajectories;
    }

    /// The rows of these numbers, in this order; they count as one trajectory.
    pub fn select(&self, rows: &[usize]) -> Batch {
        let column = |all: &[f32]| rows.iter().map(|row| all[*row]).collect();
        let len = self.observation_len;
        Batch {
            observation_len: len,
            observations: rows
                .iter()
                .flat_map(|row| &self.observations[row * len..(row + 1) * len])
                .copied()
                .collect(),
            actions: column(&self.actions),
            log_probs: column(&self.log_probs),
            rewards: column(&self.rewards),
            values: column(&self.values),
            advantages: column(&self.advantages),
            returns: column(&self.returns),
            trajectories: 1,
        }
    }

    /// Copies a range of consecutive rows.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> Batch {
        self.select(&rows.collect::<Vec<usize>>())
    }

    /// Appends a trajectory of rows with these `values`; `after` is the value of the state behind the last row.
    ///
    /// Advantages are computed by GAE (Schulman et al., 2016, equation 16).
    pub fn push(&mut self, rows: &Trajectory, values: &[f32], after: f32, config: &PpoConfig) {
        let start = self.len();
        self.observations.extend_from_slice(&rows.observations);
        self.actions.extend_from_slice(&rows.actions);
        self.log_probs.extend_from_slice(&rows.log_probs);
        self.rewards.extend_from_slice(&rows.rewards);
        self.values.extend_from_slice(values);
        self.advantages.resize(start + rows.rewards.len(), 0.0);
        self.returns.resize(start + rows.rewards.len(), 0.0);
        let (mut next, mut advantage) = (after, 0.0);
        for n in (0..rows.rewards.len()).rev() {
            let delta = rows.rewards[n] + config.gamma * next - values[n];
            advantage = delta + config.gamma * config.gae_lambda * advantage;
            self.advantages[start + n] = advantage;
            self.returns[start + n] = advantage + values[n];
            next = values[n];
        }
        self.trajectories += 1;
    }

    /// Brings the advantages to mean 0 and deviation 1.
    pub fn normalise_advantages(&mut self) {
        normalise(&mut self.advantages);
    }

    /// Share of the returns' variance that the values explain; 0 where there is none.
    pub fn explained_variance(&self) -> f32 {
        let errors: Vec<f32> = self.returns.iter().zip(&self.values).map(|(r, v)| r - v).collect();
        let ((_, of_errors), (_, of_returns)) = (moments(&errors), moments(&self.returns));
        if of_returns > 0.0 { (1.0 - (of_errors / of_returns).powi(2)) as f32 } else { 0.0 }
    }

    /// # Errors
    /// No rows, or arrays that do not fit rows of `observation_len` numbers.
    pub fn check(&self, observation_len: usize) -> Result<(), LearnError> {
        let rows = self.len();
        if rows == 0 {
            return Err(LearnError::Empty);
        }
        let arrays = [
            ("observations", self.observations.len(), rows * observation_len),
            ("log-probabilities", self.log_probs.len(), rows),
            ("advantages", self.advantages.len(), rows),
            ("returns", self.returns.len(), rows),
            ("values", self.values.len(), rows),
        ];
        for (what, found, expected) in arrays {
            if found != expected {
                return Err(LearnError::Batch { what, found, rows, expected });
            }
        }
        Ok(())
    }
}

/// Brings numbers to mean 0 and deviation 1.
pub(crate) fn normalise(numbers: &mut [f32]) {
    let (mean, std) = moments(numbers);
    let factor = (1.0 / (std + 1e-8)) as f32;
    numbers.iter_mut().for_each(|x| *x = (*x - mean as f32) * factor);
}

/// Mean and standard deviation, summed in order.
pub(crate) fn moments(numbers: &[f32]) -> (f64, f64) {
    let n = numbers.len().max(1) as f64;
    let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

/// Rows of one agent, in the order of time, not yet judged.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Trajectory {
    /// All observations, row by row.
    pub observations: Vec<f32>,
    pub actions: Vec<f32>,
    pub log_probs: Vec<f32>,
    /// The actions' rewards: one fewer while the last action's outcome is not known.
    pub rewards: Vec<f32>,
    /// The observation that followed the last reward.
    pub following: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_are_those_worked_out_by_hand() {
        let config = PpoConfig { gamma: 0.5, gae_lambda: 0.5, ..PpoConfig::default() };
        let rows =
            Trajectory { rewards: vec![1.0, 2.0, 3.0], actions: vec![0.0; 3], ..Trajectory::default() };
        let mut batch = Batch::new(0);
        batch.push(&rows, &[4.0, 8.0, 2.0], 16.0, &config);
        // Deltas 1 + 0.5 * 8 - 4 = 1, 2 + 0.5 * 2 - 8 = -5, 3 + 0.5 * 16 - 2 = 9; each counts a quarter a step earlier.
        assert_eq!(batch.advantages, [1.0 + 0.25 * (-5.0 + 0.25 * 9.0), -5.0 + 0.25 * 9.0, 9.0]);
        assert_eq!(batch.returns, [4.3125, 5.25, 11.0]);
        assert_eq!(batch.trajectories, 1);
    }
}

//! What was done and what came of it, as rows to learn from.

use crate::{Actor, ActorCritic, End, LearnError, Policy, PpoConfig, Rng};

/// Half of ln 2 pi.
const HALF_LN_TAU: f32 = 0.918_938_5;

/// Logarithm of the density of `action` under a normal distribution.
#[inline(always)]
pub fn log_prob(action: f32, mean: f32, log_std: f32, inverse_std: f32) -> f32 {
    let z = (action - mean) * inverse_std;
    -0.5 * z * z - log_std - HALF_LN_TAU
}

/// Rows, one after the other: trajectory by trajectory, in the order of time.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Batch {
    /// Numbers in an observation.
    pub observation_len: usize,
    /// All observations, row by row.
    pub observations: Vec<f32>,
    /// Actions as they were chosen, before any bound. Those of live flows have been bounded already, as datapaths say only
    /// what was done; [`crate::online`] weights those at the bound by 0.
    pub actions: Vec<f32>,
    /// Their log-probabilities under the policy that chose them.
    pub log_probs: Vec<f32>,
    /// What each brought.
    pub rewards: Vec<f32>,
    /// The critic's values of the observations.
    pub values: Vec<f32>,
    /// Generalised advantage estimates.
    pub advantages: Vec<f32>,
    /// Advantage plus value: what the critic should have said.
    pub returns: Vec<f32>,
    /// How many trajectories.
    pub trajectories: usize,
}

impl Batch {
    /// An empty one.
    pub fn new(observation_len: usize) -> Batch {
        Batch { observation_len, ..Batch::default() }
    }

    /// Rows.
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

    /// Consecutive rows.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> Batch {
        self.select(&rows.collect::<Vec<usize>>())
    }

    /// Appends a trajectory of rows whose values were `values`; `after` is the value of what followed the last one.
    /// The advantages are those of GAE (Schulman et al., 2016, equation 16).
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
    /// Actions.
    pub actions: Vec<f32>,
    /// Their log-probabilities.
    pub log_probs: Vec<f32>,
    /// Their rewards: one fewer while the last action's outcome is not known.
    pub rewards: Vec<f32>,
    /// What followed the last reward.
    pub following: Vec<f32>,
}

/// An actor that follows a policy, exploring, and keeps what it saw.
pub struct Recorder {
    networks: ActorCritic,
    std: f32,
    inverse_std: f32,
    log_std: f32,
    config: PpoConfig,
    rng: Rng,
    agents: Vec<Trajectory>,
    batch: Batch,
    values: Vec<f32>,
}

impl Recorder {
    /// Follows `policy`; `rng` gives its exploration.
    pub fn new(policy: &Policy, config: &PpoConfig, rng: Rng) -> Recorder {
        let std = policy.std();
        Recorder {
            networks: ActorCritic::new(policy),
            std,
            inverse_std: 1.0 / std,
            log_std: policy.log_std(),
            config: *config,
            rng,
            agents: Vec::new(),
            batch: Batch::new(policy.architecture().inputs),
            values: Vec::new(),
        }
    }

    /// Another stream of exploration from here on.
    pub fn explore_by(&mut self, rng: Rng) {
        self.rng = rng;
    }

    /// Closes what is open, agent by agent: an episode has ended. An action whose outcome is not known is dropped.
    pub fn close(&mut self) {
        for agent in 0..self.agents.len() {
            self.close_agent(agent);
        }
    }

    /// All rows so far; what is open is closed first.
    pub fn take(&mut self) -> Batch {
        self.close();
        let empty = Batch::new(self.batch.observation_len);
        std::mem::replace(&mut self.batch, empty)
    }

    fn close_agent(&mut self, agent: usize) {
        let Some(rows) = self.agents.get_mut(agent) else { return };
        let (n, len) = (rows.rewards.len(), self.batch.observation_len);
        rows.observations.truncate(n * len);
        rows.actions.truncate(n);
        rows.log_probs.truncate(n);
        if n > 0 {
            // The value of what followed the last row is that of one row more.
            rows.observations.extend_from_slice(&rows.following);
            self.networks.values(&rows.observations, &mut self.values);
            rows.observations.truncate(n * len);
            self.batch.push(rows, &self.values[..n], self.values[n], &self.config);
        }
        *rows = Trajectory::default();
    }
}

impl Actor for Recorder {
    fn act(&mut self, agent: usize, observation: &[f32]) -> f32 {
        if agent >= self.agents.len() {
            self.agents.resize_with(agent + 1, Trajectory::default);
        }
        let mean = self.networks.mean(observation);
        let action = mean + self.std * self.rng.normal() as f32;
        let rows = &mut self.agents[agent];
        rows.observations.extend_from_slice(observation);
        rows.observations.resize((rows.actions.len() + 1) * self.batch.observation_len, 0.0);
        rows.actions.push(action);
        rows.log_probs.push(log_prob(action, mean, self.log_std, self.inverse_std));
        action
    }

    fn outcome(&mut self, agent: usize, reward: f32, end: End, observation: &[f32]) {
        let len = self.batch.observation_len;
        let Some(rows) = self.agents.get_mut(agent) else { return };
        if rows.rewards.len() < rows.actions.len() {
            rows.rewards.push(reward);
            rows.following.clear();
            rows.following.extend_from_slice(observation);
            rows.following.resize(len, 0.0);
        }
        if end == End::Truncated {
            self.close_agent(agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, testing};

    #[test]
    fn advantages_by_hand() {
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

    #[test]
    fn agents_in_their_own_time() {
        let policy = testing::policy(Architecture::aurora(), 0.0, 1);
        let config = PpoConfig::default();
        let mut recorder = Recorder::new(&policy, &config, Rng::new(1, &[]));
        let seen = |x: f32| [x; 30];
        let mut actions = [Vec::new(), Vec::new()];
        let mut act = |recorder: &mut Recorder, agent: usize, x: f32| {
            actions[agent].push(recorder.act(agent, &seen(x)));
        };
        act(&mut recorder, 1, 0.1);
        act(&mut recorder, 0, 0.2);
        recorder.outcome(1, 1.0, End::No, &seen(0.3));
        act(&mut recorder, 1, 0.3);
        recorder.outcome(1, 2.0, End::Truncated, &seen(0.4));
        recorder.outcome(0, 3.0, End::No, &seen(0.5));
        act(&mut recorder, 0, 0.5);
        act(&mut recorder, 1, 0.6);
        recorder.outcome(1, 4.0, End::No, &seen(0.7));
        let batch = recorder.take();
        // Agent 1's first trajectory was closed first; then agent 0, whose last action had no outcome; then agent 1.
        assert_eq!(batch.rewards, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(batch.trajectories, 3);
        let firsts: Vec<f32> = batch.observations.chunks(30).map(|o| o[0]).collect();
        assert_eq!(firsts, [0.1, 0.3, 0.2, 0.6]);
        assert_eq!(batch.actions, [actions[1][0], actions[1][1], actions[0][0], actions[1][2]]);
        let mut networks = ActorCritic::new(&policy);
        for (n, action) in batch.actions.iter().enumerate() {
            let observation = &batch.observations[30 * n..30 * (n + 1)];
            let mean = networks.mean(observation);
            assert_eq!(batch.log_probs[n], log_prob(*action, mean, 0.0, 1.0));
            assert_eq!(batch.values[n], networks.value(observation));
        }
        let delta = 4.0 + config.gamma * networks.value(&seen(0.7)) - networks.value(&seen(0.6));
        assert_eq!(batch.advantages[3], delta);
        assert!(recorder.take().is_empty());
        batch.check(30).unwrap();
        assert_eq!(batch.mean_reward(), 2.5);
    }

    #[test]
    fn log_probs_are_those_of_a_normal_distribution() {
        let std = 0.5_f32;
        let density = |x: f32| log_prob(x, 0.25, std.ln(), 1.0 / std).exp();
        let sum: f32 = (-4000..4000).map(|n| density(n as f32 * 1e-3) * 1e-3).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert!((density(0.25) - 0.797_884_6).abs() < 1e-6);
    }
}

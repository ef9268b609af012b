//! An actor that keeps what it saw and did as rows to learn from.

use crate::batch::{Batch, Trajectory};
use crate::environment::{Actor, End};
use crate::math::log_prob;
use crate::native::ActorCritic;
use crate::policy::Policy;
use crate::ppo::PpoConfig;
use crate::rng::Rng;

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

    /// Explores by another stream of random numbers from here on.
    pub fn explore_by(&mut self, rng: Rng) {
        self.rng = rng;
    }

    /// Ends the episode of each agent. An action without an outcome is dropped.
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
    use crate::architecture::Architecture;
    use crate::testing;

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
}

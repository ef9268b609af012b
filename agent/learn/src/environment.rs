//! The environments that agents learn in.

use crate::preference::Preference;

/// The way an agent's step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The episode goes on.
    No,
    /// The episode was cut off, so that the value of the last observation counts.
    Truncated,
}

/// Makes the decisions in an environment, and receives the reward of each.
pub trait Actor {
    /// The action of agent `agent` on `observation` (each in [-1, 1]), not yet bounded.
    fn act(&mut self, agent: usize, observation: &[f32]) -> f32;

    /// The reward of `agent`'s last action. Called once for each action, in order; at the latest just after the agent's next one. `observation` is
    /// what followed it.
    fn outcome(&mut self, agent: usize, reward: f32, end: End, observation: &[f32]);
}

/// The reason why an environment takes no preference.
#[derive(Debug, thiserror::Error)]
pub enum PreferenceError {
    #[error("the environment has one reward, whatever is preferred")]
    OneReward,
    #[error("the environment does not take the preference: {0}")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An environment to learn in: episodes of one or more agents.
pub trait Environment: Send {
    /// Numbers in an observation.
    fn observation_len(&self) -> usize;

    /// Sets the preference of its agents in the episodes that follow. An environment that takes it appends the
    /// preference to its observations and rewards by it.
    ///
    /// # Errors
    /// It does not take it: episodes would be what they were before.
    fn prefer(&mut self, preference: Preference) -> Result<(), PreferenceError> {
        let _ = preference;
        Err(PreferenceError::OneReward)
    }

    /// Runs one episode, drawn from `seed` (and the preference) alone: at most `max_steps` decisions of each agent.
    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor);
}

//! MOCC's online adaptation: a preference that the policy has not seen, learned without forgetting the others; against
//! learning it from nothing (Ma et al., EuroSys 2022, section 6.3).

use super::{Recipe, RecipeError};
use ccplane_learn::{
    Evaluation, Goals, Native, Observer, Policy, Preference, TrainConfig, evaluate, landmarks, train,
};
use serde::Serialize;

/// Decisions that either learns from, at most: as the training of one preference from nothing takes.
const SCRATCH_STEPS: u64 = 1_000_000;
const ADAPT_STEPS: u64 = 150_000;
/// Episodes of an evaluation under the new preference: there is one after each update of either, so that neither is seen to be
/// there before the other only because it is looked at more often.
const EPISODES: usize = 24;
/// Episodes of an evaluation under the old ones: more than landmarks.
const OLD_EPISODES: usize = 48;
/// Rewards are reached at this share.
const REACHED: f32 = 0.9;

/// What came of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Adaptation {
    /// Throughput, latency, loss.
    pub preference: [f32; 3],
    /// The best evaluation of a policy that learned this preference alone, from nothing.
    pub scratch_reward: f32,
    /// Decisions after which it first had 90 % of that; 0 if it began with that.
    pub scratch_steps_to_90: Option<u64>,
    /// The new preference's reward under the policy before it adapted ...
    pub before_reward: f32,
    /// ... and after.
    pub adapted_reward: f32,
    /// Decisions after which the adapting policy first had 90 % of `scratch_reward`; 0 if it began with that.
    pub adapted_steps_to_90: Option<u64>,
    /// Mean reward over all landmarks before ...
    pub old_before: f32,
    /// ... and after.
    pub old_after: f32,
    /// Evaluations while learning from nothing, from before the first update on: decisions, mean reward.
    pub scratch_curve: Vec<(u64, f32)>,
    /// Evaluations while adapting.
    pub adapted_curve: Vec<(u64, f32)>,
}

/// Keeps the evaluations.
struct Curve(Vec<(u64, f32)>);

impl Observer for Curve {
    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> std::io::Result<()> {
        self.0.push((evaluation.steps, evaluation.mean_reward));
        Ok(())
    }
}

impl Recipe {
    /// Teaches `policy` a preference, and a new policy the same from nothing.
    ///
    /// # Errors
    /// Learning fails.
    pub fn adapt(&self, policy: &Policy, preference: Preference) -> Result<Adaptation, RecipeError> {
        let one = Goals::One(preference);
        let all = Goals::Landmarks { bootstrap: 0.0 };
        let old_before = self.mean_reward(policy, &all, OLD_EPISODES)?;
        let initial = self.initial()?;
        let nothing = self.mean_reward(&initial, &one, EPISODES)?;
        let (_, scratch) = self.learn(&initial, nothing, one.clone(), SCRATCH_STEPS)?;
        let before_reward = self.mean_reward(policy, &one, EPISODES)?;
        let goals = Goals::Adapt { new: preference, old: landmarks().to_vec() };
        let (adapted, curve) = self.learn(policy, before_reward, goals, ADAPT_STEPS)?;
        let scratch_reward = scratch.iter().map(|(_, reward)| *reward).fold(f32::MIN, f32::max);
        let first = |curve: &[(u64, f32)]| {
            curve.iter().find(|(_, reward)| *reward >= REACHED * scratch_reward).map(|(steps, _)| *steps)
        };
        Ok(Adaptation {
            preference: preference.weights(),
            scratch_reward,
            scratch_steps_to_90: first(&scratch),
            before_reward,
            adapted_reward: self.mean_reward(&adapted, &one, EPISODES)?,
            adapted_steps_to_90: first(&curve),
            old_before,
            old_after: self.mean_reward(&adapted, &all, OLD_EPISODES)?,
            scratch_curve: scratch,
            adapted_curve: curve,
        })
    }

    fn mean_reward(&self, policy: &Policy, goals: &Goals, episodes: usize) -> Result<f32, RecipeError> {
        let (mut environments, config) = (self.environments()?, &self.train);
        let (seed, steps, threads) = (config.seed, config.episode_steps, config.threads);
        let rewards = evaluate(policy, &mut environments, goals, seed, episodes, steps, threads)?;
        Ok(rewards.iter().sum::<f32>() / rewards.len().max(1) as f32)
    }

    /// Learns from a policy that is worth `reward`; evaluated before the first update and after each.
    fn learn(
        &self,
        from: &Policy,
        reward: f32,
        goals: Goals,
        total_steps: u64,
    ) -> Result<(Policy, Vec<(u64, f32)>), RecipeError> {
        let config = TrainConfig {
            goals,
            total_steps,
            eval_every: 1,
            eval_episodes: EPISODES,
            checkpoint_every: 0,
            plateau: None,
            ..self.train.clone()
        };
        let mut learner = Native::new(from, self.ppo)?;
        let mut curve = Curve(vec![(0, reward)]);
        let report = train(&mut learner, &mut self.environments()?, &config, None, &mut curve)?;
        Ok((report.best, curve.0))
    }
}

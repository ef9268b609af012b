//! MOCC's online adaptation: a preference that the policy has not seen, learned without forgetting the others; against
//! learning it from nothing (Ma et al., EuroSys 2022, section 6.3).

use super::{HELD_OUT, Recipe, RecipeError};
use ccplane_learn::{
    Evaluation, Goals, LANDMARKS, Native, Observer, Policy, Preference, Rng, TrainConfig, evaluate,
    landmarks, train,
};
use serde::Serialize;

/// Decisions that either learns from, at most: as the training of one preference from nothing takes.
const SCRATCH_STEPS: u64 = 1_000_000;
const ADAPT_STEPS: u64 = 150_000;
/// Episodes of an evaluation while it learns: there is one after each update of either. Otherwise one could seem to get
/// there before the other only because it is evaluated more often.
const EPISODES: usize = 24;
/// Held-out episodes under the new preference; on these, and on those under the old ones, nothing has been chosen.
const HELD_OUT_EPISODES: usize = 72;
/// Held-out episodes under each old preference.
const OLD_EPISODES: usize = 32;
/// Links on which the adapted policy is chosen, apart from those of training and of the final comparison; episodes under each landmark.
const CHOSEN: u64 = 0xc405;
const CHOSEN_EPISODES: usize = 16;
/// Share of its reward that an old preference may lose on those links.
const MOST_LOST: f32 = 0.025;
/// Candidates lie at these shares of the way from the old weights to the adapted ones.
const SHARES: [f32; 3] = [1.0, 0.5, 0.25];
/// Rewards are reached at this share.
const REACHED: f32 = 0.9;
/// Share of a curve that its end is judged by.
const TAIL: usize = 10;

/// The result of an adaptation. Rewards are on held-out links but for those of the curves, by which policies are
/// chosen.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Adaptation {
    pub preference: [f32; 3],
    /// The reward of a policy that learned this preference alone, from nothing.
    pub scratch_reward: f32,
    /// The best evaluation of that policy, which decisions are counted against.
    pub scratch_best: f32,
    /// The share by which its last tenth of evaluations is better than the tenth before: what it had still to learn.
    pub scratch_rise: f32,
    /// Decisions after which it first had 90 % of its best; 0 if it began with that.
    pub scratch_steps_to_90: Option<u64>,
    /// The new preference's reward under the policy before it adapted ...
    pub before_reward: f32,
    pub adapted_reward: f32,
    /// Decisions after which the adapting policy first had 90 % of `scratch_best`; 0 if it began with that.
    pub adapted_steps_to_90: Option<u64>,
    /// Mean reward over all landmarks before ...
    pub old_before: f32,
    pub old_after: f32,
    /// The largest loss among the landmarks, as a share of the landmark's reward; negative if none lost anything.
    pub old_worst_loss: f32,
    /// Evaluations while learning from nothing, from before the first update on: decisions, mean reward.
    pub scratch_curve: Vec<(u64, f32)>,
    pub adapted_curve: Vec<(u64, f32)>,
}

impl Adaptation {
    /// Decisions until 90 % of what learning from nothing gained was gained, from nothing and by adapting: rewards do not
    /// begin at 0.
    pub fn steps_to_gain(&self) -> [Option<u64>; 2] {
        let nothing = self.scratch_curve.first().map_or(0.0, |(_, reward)| *reward);
        let wanted = nothing + REACHED * (self.scratch_best - nothing);
        [&self.scratch_curve, &self.adapted_curve].map(|curve| first(curve, wanted))
    }
}

/// Decisions at the first evaluation that is worth so much.
fn first(curve: &[(u64, f32)], wanted: f32) -> Option<u64> {
    curve.iter().find(|(_, reward)| *reward >= wanted).map(|(steps, _)| *steps)
}

/// The share by which the last tenth of a curve is higher than the tenth before.
fn rise(curve: &[(u64, f32)]) -> f32 {
    let tail = (curve.len() / TAIL).max(1);
    let mean = |part: &[(u64, f32)]| part.iter().map(|(_, r)| *r).sum::<f32>() / part.len().max(1) as f32;
    let (before, last) = curve.split_at(curve.len().saturating_sub(tail));
    let before = mean(&before[before.len().saturating_sub(tail)..]);
    if before == 0.0 { 0.0 } else { (mean(last) - before) / before.abs() }
}

/// An observer that keeps the evaluations.
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
        let initial = self.initial()?;
        let nothing = mean(&self.rewards(&initial, &one, self.train.seed, EPISODES)?);
        let (scratch, scratch_curve) = self.learn(&initial, nothing, one.clone(), SCRATCH_STEPS)?;
        let begins = mean(&self.rewards(policy, &one, self.train.seed, EPISODES)?);
        let goals = Goals::Adapt { new: preference, old: landmarks().to_vec() };
        let (adapted, adapted_curve) = self.learn(policy, begins, goals, ADAPT_STEPS)?;
        let adapted = self.retaining(policy, &adapted, &one)?;
        let scratch_best = scratch_curve.iter().map(|(_, reward)| *reward).fold(f32::MIN, f32::max);
        let held_out = Rng::new(self.train.seed, &[HELD_OUT]).bits();
        let worth = |policy| self.worth(policy, &one, held_out);
        let old = |policy| self.by_landmark(policy, held_out, OLD_EPISODES);
        let (old_before, old_after) = (old(policy)?, old(&adapted)?);
        Ok(Adaptation {
            preference: preference.weights(),
            scratch_reward: worth(&scratch)?,
            scratch_best,
            scratch_rise: rise(&scratch_curve),
            scratch_steps_to_90: first(&scratch_curve, REACHED * scratch_best),
            before_reward: worth(policy)?,
            adapted_reward: worth(&adapted)?,
            adapted_steps_to_90: first(&adapted_curve, REACHED * scratch_best),
            old_before: mean(&old_before),
            old_after: mean(&old_after),
            old_worst_loss: worst_loss(&old_before, &old_after),
            scratch_curve,
            adapted_curve,
        })
    }

    /// The policy between `before` and `adapted` that is worth most under the new preference, of those under which no landmark
    /// loses more than [`MOST_LOST`]; `before` itself loses nothing.
    fn retaining(&self, before: &Policy, adapted: &Policy, new: &Goals) -> Result<Policy, RecipeError> {
        let chosen_on = Rng::new(self.train.seed, &[CHOSEN]).bits();
        let old_before = self.by_landmark(before, chosen_on, CHOSEN_EPISODES)?;
        let mut best = (self.worth(before, new, chosen_on)?, before.clone());
        for share in SHARES {
            let between = before.towards(adapted, share)?;
            let old = self.by_landmark(&between, chosen_on, CHOSEN_EPISODES)?;
            let worst = worst_loss(&old_before, &old);
            let worth = self.worth(&between, new, chosen_on)?;
            if worst <= MOST_LOST && worth > best.0 {
                best = (worth, between);
            }
        }
        Ok(best.1)
    }

    fn worth(&self, policy: &Policy, goals: &Goals, seed: u64) -> Result<f32, RecipeError> {
        Ok(mean(&self.rewards(policy, goals, seed, HELD_OUT_EPISODES)?))
    }

    /// Mean rewards under each landmark, each on the same links for every policy.
    fn by_landmark(&self, policy: &Policy, seed: u64, episodes: usize) -> Result<Vec<f32>, RecipeError> {
        let all = Goals::Landmarks { bootstrap: 0.0 };
        let rewards = self.rewards(policy, &all, seed, episodes * LANDMARKS)?;
        let of = |n: usize| rewards.iter().skip(n).step_by(LANDMARKS).copied().collect::<Vec<f32>>();
        Ok((0..LANDMARKS).map(|n| mean(&of(n))).collect())
    }

    fn rewards(
        &self,
        policy: &Policy,
        goals: &Goals,
        seed: u64,
        episodes: usize,
    ) -> Result<Vec<f32>, RecipeError> {
        let (mut environments, config) = (self.environments()?, &self.train);
        let (steps, threads) = (config.episode_steps, config.threads);
        Ok(evaluate(policy, &mut environments, goals, seed, episodes, steps, threads)?)
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

/// The largest share of its reward that any landmark lost; negative where all gained.
fn worst_loss(before: &[f32], after: &[f32]) -> f32 {
    let lost = before.iter().zip(after).map(|(before, after)| (before - after) / before.abs());
    lost.fold(f32::NEG_INFINITY, f32::max)
}

fn mean(rewards: &[f32]) -> f32 {
    rewards.iter().sum::<f32>() / rewards.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_says_when_it_was_there_and_whether_it_still_rises() {
        let curve: Vec<(u64, f32)> = (0..40).map(|n| (100 * n, 0.5 + 0.01 * n.min(20) as f32)).collect();
        assert_eq!(
            (first(&curve, 0.5), first(&curve, 0.595), first(&curve, 0.8)),
            (Some(0), Some(1000), None)
        );
        assert_eq!((rise(&curve), rise(&[])), (0.0, 0.0));
        assert!((rise(&curve[..20]) - 0.02 / 0.665).abs() < 1e-5, "{}", rise(&curve[..20]));
    }
}

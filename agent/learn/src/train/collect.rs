//! Runs episodes on all threads, with results in the order of the episodes.

use super::{TrainConfig, stream};
use crate::batch::Batch;
use crate::environment::{Actor, End, Environment, PreferenceError};
use crate::learner::Learner;
use crate::native::ActorCritic;
use crate::policy::Policy;
use crate::preference::Goals;
use crate::rng::Rng;
use crate::rollout::Recorder;
use std::sync::{Mutex, PoisonError};

/// Runs `episodes` episodes; environment `n` of N runs those numbered n, n + N ... Each thread has one `worker`.
fn run<W, R: Send>(
    environments: &mut [Box<dyn Environment>],
    episodes: usize,
    threads: usize,
    worker: impl Fn() -> W + Sync,
    episode: impl Fn(&mut W, &mut dyn Environment, usize) -> R + Sync,
) -> Vec<R> {
    let count = environments.len();
    let threads = threads.min(count).min(episodes);
    let queue = Mutex::new(environments.iter_mut().enumerate());
    let results = Mutex::new(Vec::with_capacity(episodes));
    let work = || {
        let mut worker = worker();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((first, environment)) = next else { break };
            for n in (first..episodes).step_by(count) {
                let result = episode(&mut worker, environment.as_mut(), n);
                results.lock().unwrap_or_else(PoisonError::into_inner).push((n, result));
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The rows of update `update`, `traversed` updates after the first of the goals' second phase.
pub(super) fn collect(
    learner: &dyn Learner,
    environments: &mut [Box<dyn Environment>],
    config: &TrainConfig,
    update: u64,
    traversed: Option<u64>,
) -> Result<Batch, PreferenceError> {
    let (policy, ppo, seed) = (learner.policy(), learner.config(), config.seed);
    let parts: Vec<Result<Batch, PreferenceError>> = run(
        environments,
        config.episodes(),
        config.threads,
        || Recorder::new(policy, ppo, Rng::new(seed, &[])),
        |recorder, environment, n| {
            let name = |stream| Rng::new(seed, &[stream, update, n as u64]);
            recorder.explore_by(name(stream::EXPLORE));
            if let Some(preference) = config.goals.training(traversed, n, &mut name(stream::GOAL)) {
                environment.prefer(preference)?;
            }
            environment.episode(name(stream::EPISODE).bits(), config.episode_steps, recorder);
            Ok(recorder.take())
        },
    );
    let mut batch = Batch::new(policy.architecture().inputs);
    for part in parts {
        batch.append(&part?);
    }
    Ok(batch)
}

/// Returns the mean reward of a decision in each of `episodes` episodes, which follow from `seed`. `policy` decides
/// without exploration, its actions bounded as its specification says.
///
/// # Errors
/// An environment that does not take what `goals` prefer.
pub fn evaluate(
    policy: &Policy,
    environments: &mut [Box<dyn Environment>],
    goals: &Goals,
    seed: u64,
    episodes: usize,
    episode_steps: usize,
    threads: usize,
) -> Result<Vec<f32>, PreferenceError> {
    let rewards: Vec<Result<f32, PreferenceError>> = run(
        environments,
        episodes,
        threads,
        || Greedy::new(policy),
        |greedy, environment, n| {
            if let Some(preference) = goals.evaluation(n) {
                environment.prefer(preference)?;
            }
            let seed = Rng::new(seed, &[stream::EVALUATION, n as u64]).bits();
            environment.episode(seed, episode_steps, greedy);
            Ok(greedy.take())
        },
    );
    rewards.into_iter().collect()
}

/// Follows a policy without exploration.
struct Greedy {
    networks: ActorCritic,
    bound: f32,
    sum: f64,
    rewards: u64,
}

impl Greedy {
    fn new(policy: &Policy) -> Greedy {
        let bound = policy.spec().action().bound() as f32;
        Greedy { networks: ActorCritic::new(policy), bound, sum: 0.0, rewards: 0 }
    }

    fn take(&mut self) -> f32 {
        let mean = self.sum / self.rewards.max(1) as f64;
        (self.sum, self.rewards) = (0.0, 0);
        mean as f32
    }
}

impl Actor for Greedy {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        self.networks.mean(observation).clamp(-self.bound, self.bound)
    }

    fn outcome(&mut self, _agent: usize, reward: f32, _end: End, _observation: &[f32]) {
        self.sum += f64::from(reward);
        self.rewards += 1;
    }
}

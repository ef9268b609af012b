//! Training: episodes of many environments at once, update after update, the same bits with any number of threads.
//!
//! Randomness comes from streams named by (seed, update, episode), so nothing depends on who ran an episode when. A run
//! that is resumed from a checkpoint goes on as if it had never been interrupted.

mod checkpoint;
mod collect;
mod plateau;

pub use checkpoint::Checkpoint;
pub use collect::evaluate;
pub use plateau::{Plateau, PlateauState};

use crate::environment::{Environment, PreferenceError};
use crate::error::LearnError;
use crate::learner::{Learner, UpdateStats};
use crate::policy::{Policy, PolicyError};
use crate::preference::Goals;
use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Streams of random numbers, by use.
mod stream {
    pub(super) const ORDER: u64 = 1;
    pub(super) const EXPLORE: u64 = 2;
    pub(super) const EPISODE: u64 = 3;
    pub(super) const GOAL: u64 = 4;
    pub(super) const EVALUATION: u64 = 5;
}

/// The settings of a training.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Everything random follows from it.
    pub seed: u64,
    /// Decisions to learn from, at most.
    pub total_steps: u64,
    /// Decisions of each agent in an episode.
    pub episode_steps: usize,
    /// Decisions of an update, where environments have one agent: so many episodes as this takes, at least one.
    pub steps_per_update: usize,
    /// Updates from one evaluation to the next.
    pub eval_every: u64,
    /// The number of episodes of an evaluation, always the same ones.
    pub eval_episodes: usize,
    /// Updates from one checkpoint to the next; 0 for none.
    pub checkpoint_every: u64,
    /// Threads that run episodes; at least 1.
    pub threads: usize,
    /// The time when to stop before `total_steps`.
    pub plateau: Option<Plateau>,
    pub goals: Goals,
    /// A digest of the environments and the learner's back end, from which the bits also follow. A checkpoint goes on
    /// only with the same.
    pub identity: String,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            seed: 1,
            total_steps: 2_000_000,
            episode_steps: 400,
            steps_per_update: 8192,
            eval_every: 10,
            eval_episodes: 16,
            checkpoint_every: 50,
            threads: 1,
            plateau: Some(Plateau::default()),
            goals: Goals::Own,
            identity: String::new(),
        }
    }
}

impl TrainConfig {
    /// Episodes of an update.
    pub fn episodes(&self) -> usize {
        (self.steps_per_update / self.episode_steps.max(1)).max(1)
    }

    fn check(&self, environments: usize) -> Result<(), TrainError> {
        let counts = [
            ("environments", environments),
            ("episode_steps", self.episode_steps),
            ("steps_per_update", self.steps_per_update),
            ("eval_every", self.eval_every as usize),
            ("eval_episodes", self.eval_episodes),
            ("threads", self.threads),
        ];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(TrainError::Zero { name }),
            None => Ok(()),
        }
    }

    fn progress(&self, steps: u64) -> f32 {
        (steps as f64 / self.total_steps.max(1) as f64).min(1.0) as f32
    }
}

/// The state of a training beside its learner.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub updates: u64,
    pub steps: u64,
    /// The first update, from 0, of the goals' second phase.
    pub traversal_from: Option<u64>,
    pub plateau: PlateauState,
    /// The best evaluation's mean reward.
    pub best_reward: Option<f32>,
}

/// The statistics of one update, for observers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Update {
    /// The update's number, counted from 1.
    pub update: u64,
    /// Decisions learned from so far.
    pub steps: u64,
    /// All that there will be, at most.
    pub total_steps: u64,
    /// Trajectories of this update.
    pub episodes: usize,
    /// Mean reward of a decision, exploring.
    pub mean_reward: f32,
    pub learning_rate: f32,
    pub std: f32,
    pub stats: UpdateStats,
}

/// The rewards of a policy that decides without exploration.
#[derive(Clone, PartialEq, Debug)]
pub struct Evaluation {
    pub update: u64,
    /// Decisions learned from before it.
    pub steps: u64,
    /// Mean over the episodes of the mean reward of a decision.
    pub mean_reward: f32,
    pub rewards: Vec<f32>,
}

/// Hears how a training goes, and may end it.
pub trait Observer {
    /// Called after each update.
    ///
    /// # Errors
    /// Ends the training.
    fn updated(&mut self, update: &Update) -> std::io::Result<()> {
        let _ = update;
        Ok(())
    }

    /// Called after each evaluation.
    ///
    /// # Errors
    /// Ends the training.
    fn evaluated(&mut self, evaluation: &Evaluation, policy: &Policy) -> std::io::Result<()> {
        let _ = (evaluation, policy);
        Ok(())
    }

    /// Called when a checkpoint is due, and at the end.
    ///
    /// # Errors
    /// Ends the training.
    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> std::io::Result<()> {
        let _ = checkpoint;
        Ok(())
    }

    /// Asked after each update: whether to stop here.
    fn stopped(&mut self) -> bool {
        false
    }
}

/// An observer that ignores everything.
impl Observer for () {}

/// The reason why a training ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// All steps are done.
    Steps,
    /// Evaluations no longer improved.
    Plateau,
    /// The observer asked for the end.
    Observer,
}

/// The outcome of a training.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainReport {
    pub stop: Stop,
    pub progress: Progress,
    /// The policy of the best evaluation; the last one where there was none.
    pub best: Policy,
    pub last: Policy,
}

/// The reason why a training failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A count that has to be at least 1.
    #[error("{name} is 0, at least 1 is needed")]
    Zero { name: &'static str },
    /// Environments that show something else than the policy sees.
    #[error("environment {index} has observations of {found} numbers, the policy takes {expected}")]
    Observations {
        /// The environment's index, counted from 0.
        index: usize,
        found: usize,
        expected: usize,
    },
    /// A checkpoint of a training with other settings: going on would be neither the one nor the other.
    #[error("the checkpoint's training had other settings: {checkpoint}; now: {now}")]
    Resume { checkpoint: String, now: String },
    /// Episodes without a decision.
    #[error("update {update}: none of the episodes had a decision")]
    NoRows {
        /// The update's number, counted from 1.
        update: u64,
    },
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// A policy is none.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An environment does not accept a preference of the goals.
    #[error(transparent)]
    Preference(#[from] PreferenceError),
    #[error("what observes the training failed: {0}")]
    Observer(#[from] std::io::Error),
}

/// Trains `learner` in `environments`, from the beginning or from a checkpoint.
///
/// # Errors
/// Settings that do not fit; a learner that diverges; an observer that fails.
pub fn train(
    learner: &mut dyn Learner,
    environments: &mut [Box<dyn Environment>],
    config: &TrainConfig,
    resume: Option<&Checkpoint>,
    observer: &mut dyn Observer,
) -> Result<TrainReport, TrainError> {
    config.check(environments.len())?;
    let expected = learner.architecture().inputs;
    for (index, environment) in environments.iter().enumerate() {
        let found = environment.observation_len();
        if found != expected {
            return Err(TrainError::Observations { index, found, expected });
        }
    }
    let mut run = Run::begin(learner, environments, config, resume)?;
    let stop = loop {
        if run.progress.steps >= config.total_steps {
            break Stop::Steps;
        }
        run.update(observer)?;
        let updates = run.progress.updates;
        let plateau = updates % config.eval_every == 0 && run.evaluate(observer)?;
        if config.checkpoint_every != 0 && updates % config.checkpoint_every == 0 {
            observer.checkpoint(&run.checkpoint())?;
        }
        if observer.stopped() {
            break Stop::Observer;
        }
        if plateau {
            break Stop::Plateau;
        }
    };
    if stop != Stop::Observer && run.progress.updates % config.eval_every != 0 {
        run.evaluate(observer)?;
    }
    observer.checkpoint(&run.checkpoint())?;
    let last = run.policy();
    let best = run.best.take().unwrap_or_else(|| last.clone());
    Ok(TrainReport { stop, progress: run.progress, best, last })
}

struct Run<'a> {
    learner: &'a mut dyn Learner,
    environments: &'a mut [Box<dyn Environment>],
    config: &'a TrainConfig,
    fingerprint: String,
    /// Steps that the policy had learned from before.
    before: u64,
    progress: Progress,
    best: Option<Policy>,
}

impl<'a> Run<'a> {
    fn begin(
        learner: &'a mut dyn Learner,
        environments: &'a mut [Box<dyn Environment>],
        config: &'a TrainConfig,
        resume: Option<&Checkpoint>,
    ) -> Result<Run<'a>, TrainError> {
        let fingerprint = checkpoint::fingerprint(config, learner.config(), environments.len());
        let (mut progress, mut best) = (Progress::default(), None);
        if let Some(from) = resume {
            if from.fingerprint != fingerprint {
                return Err(TrainError::Resume { checkpoint: from.fingerprint.clone(), now: fingerprint });
            }
            learner.restore(&from.state)?;
            progress = from.progress.clone();
            best = from.best.clone();
        }
        let before = learner.policy().provenance.steps.saturating_sub(if resume.is_some() {
            progress.steps
        } else {
            0
        });
        Ok(Run { learner, environments, config, fingerprint, before, progress, best })
    }

    fn update(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (config, update) = (self.config, self.progress.updates);
        let share = config.progress(self.progress.steps);
        if config.goals.traverses(share) {
            self.progress.traversal_from.get_or_insert(update);
        }
        let traversed = self.progress.traversal_from.map(|first| update - first);
        let batch = collect::collect(self.learner, self.environments, config, update, traversed)?;
        if batch.is_empty() {
            return Err(TrainError::NoRows { update: update + 1 });
        }
        let learning_rate = self.learner.config().learning_rate_at(share);
        let mut order = Rng::new(config.seed, &[stream::ORDER, update]);
        let stats = self.learner.update(&batch, learning_rate, &mut order)?;
        self.progress.updates += 1;
        self.progress.steps += batch.len() as u64;
        observer.updated(&Update {
            update: update + 1,
            steps: self.progress.steps,
            total_steps: config.total_steps,
            episodes: batch.trajectories,
            mean_reward: batch.mean_reward(),
            learning_rate,
            std: self.learner.policy().std(),
            stats,
        })?;
        Ok(())
    }

    /// True if evaluations no longer improve.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<bool, TrainError> {
        let config = self.config;
        let policy = self.policy();
        let rewards = evaluate(
            &policy,
            self.environments,
            &config.goals,
            config.seed,
            config.eval_episodes,
            config.episode_steps,
            config.threads,
        )?;
        let mean_reward = rewards.iter().sum::<f32>() / rewards.len().max(1) as f32;
        let Progress { updates, steps, .. } = self.progress;
        let evaluation = Evaluation { update: updates, steps, mean_reward, rewards };
        if self.progress.best_reward.is_none_or(|best| mean_reward > best) {
            self.progress.best_reward = Some(mean_reward);
            self.best = Some(policy.clone());
        }
        observer.evaluated(&evaluation, &policy)?;
        Ok(config.plateau.is_some_and(|plateau| plateau.reached(&mut self.progress.plateau, mean_reward)))
    }

    /// The policy as it is now, with its steps counted.
    fn policy(&self) -> Policy {
        let mut policy = self.learner.policy().clone();
        policy.provenance.steps = self.before + self.progress.steps;
        policy
    }

    fn checkpoint(&self) -> Checkpoint {
        let mut state = self.learner.state();
        state.policy.provenance.steps = self.before + self.progress.steps;
        Checkpoint {
            state,
            best: self.best.clone(),
            progress: self.progress.clone(),
            fingerprint: self.fingerprint.clone(),
        }
    }
}

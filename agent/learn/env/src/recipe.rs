//! Recipes of the built-in policies: the algorithm, its links and settings, and the comparison of the result with
//! others.

mod adapt;
mod identity;

pub use adapt::Adaptation;

use crate::compare::{LinkPerformance, NoDecider, outcome};
use crate::decider::{Decider, Integer, Learning};
use crate::environment::Links;
use crate::error::EnvError;
use crate::family::{Family, PublishedLinks, Range, RealLinks};
use crate::flow::Prepared;
use crate::spec;
use ccplane_alg::Algorithm;
use ccplane_algs::{Aurora, AuroraConfig, BBR, COPA, CUBIC, Mocc};
use ccplane_learn::{
    Actor, ActorCritic, Architecture, End, Environment, Goals, LearnError, Plateau, Policy, PolicyError,
    PpoConfig, PreferenceError, Rng, TrainConfig, TrainError,
};
use ccplane_program::vm::{Decision, Knobs};
use ccplane_quantize::{Options, QuantizeError, quantize};
use ccplane_snapshot::{DeployOptions, PolicySpec, Snapshot, SpecError};
use serde::Serialize;
use std::sync::Arc;

/// Environments of a training; its bits depend on their number, not on the threads'.
const ENVIRONMENTS: usize = 16;
/// Episodes that a snapshot is fitted to.
pub const VISITED_EPISODES: u32 = 40;
/// Decisions in each of those episodes.
const VISITED_STEPS: usize = 400;
/// Held-out episodes that policies are compared on, and about how many decisions each has.
const COMPARED: (u64, usize) = (60, 300);
/// The discount under which an action counts for some thirty intervals, within which its effect on a queue shows.
const GAMMA: f32 = 0.97;
/// Deviation of actions at first, natural logarithm: with half of it, training ends where it happened to begin.
const LOG_STD: f32 = 0.7;
/// Names of random streams.
const HELD_OUT: u64 = 0x4e1d;
const VISITS: u64 = 0x7151;

/// A training's algorithm, links, networks and settings.
#[derive(Clone)]
pub struct Recipe {
    pub algorithm: Arc<dyn Algorithm>,
    /// The algorithm of flows that share some of the links.
    pub rival: Option<Arc<dyn Algorithm>>,
    pub family: Family,
    /// The policy's inputs and action.
    pub spec: PolicySpec,
    pub architecture: Architecture,
    pub ppo: PpoConfig,
    pub train: TrainConfig,
}

/// The reason why a recipe, or what came of it, is none.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Preference(#[from] PreferenceError),
}

impl Recipe {
    /// Aurora on the links that people have.
    ///
    /// # Errors
    /// None with these settings.
    pub fn aurora() -> Result<Recipe, RecipeError> {
        Ok(Recipe {
            algorithm: Arc::new(Aurora::default()),
            rival: Some(Arc::new(CUBIC)),
            family: Family::Real(RealLinks::default()),
            spec: spec::aurora(spec::Steps::REAL)?,
            architecture: Architecture::aurora(),
            ppo: ppo(),
            train: TrainConfig { total_steps: 3_000_000, ..training() },
        })
    }

    /// Aurora as published: its links, its reward, its own start; PPO with our settings.
    ///
    /// # Errors
    /// None with these settings.
    pub fn published() -> Result<Recipe, RecipeError> {
        Ok(Recipe {
            algorithm: Arc::new(Aurora { config: AuroraConfig::published() }),
            rival: None,
            family: Family::Published(PublishedLinks::default()),
            spec: spec::aurora(spec::Steps::PUBLISHED)?,
            ..Recipe::aurora()?
        })
    }

    /// MOCC on the links that people have, over all landmarks.
    ///
    /// # Errors
    /// None with these settings.
    pub fn mocc() -> Result<Recipe, RecipeError> {
        Ok(Recipe {
            algorithm: Arc::new(Mocc::default()),
            spec: spec::mocc(spec::Steps::REAL)?,
            architecture: Architecture::mocc(),
            ppo: PpoConfig { entropy_coef: 0.002, ..ppo() },
            family: Family::Real(RealLinks { rivals: 0.35, ..RealLinks::default() }),
            train: TrainConfig {
                steps_per_update: 4096,
                total_steps: 4_000_000,
                goals: Goals::Landmarks { bootstrap: 0.3 },
                eval_episodes: 72,
                ..training()
            },
            ..Recipe::aurora()?
        })
    }

    /// The same on links nine in ten of which lose 0.5 to 20 % of all packets at random; published ones stay as they are.
    #[must_use]
    pub fn lossy(self) -> Recipe {
        let family = match self.family {
            Family::Real(links) => Family::Real(RealLinks { lossy: 0.9, loss: Range(0.005, 0.2), ..links }),
            published @ Family::Published(_) => published,
        };
        Recipe { family, ..self }
    }

    /// Returns the links that the algorithm is trained on.
    ///
    /// # Errors
    /// The algorithm's programs, the family's ranges.
    pub fn links(&self) -> Result<Links, EnvError> {
        Links::new(Arc::clone(&self.algorithm), self.rival.clone(), self.family, self.spec.clone())
    }

    /// Returns as many environments as a training takes.
    ///
    /// # Errors
    /// As [`Recipe::links`].
    pub fn environments(&self) -> Result<Vec<Box<dyn Environment>>, EnvError> {
        let links = self.links()?;
        Ok((0..ENVIRONMENTS).map(|_| Box::new(links.clone()) as Box<dyn Environment>).collect())
    }

    /// The policy before it has learned anything.
    ///
    /// # Errors
    /// An architecture that does not fit the specification.
    pub fn initial(&self) -> Result<Policy, PolicyError> {
        Policy::initial(self.architecture.clone(), self.spec.clone(), self.ppo.log_std_init, self.train.seed)
    }

    /// `policy` as a snapshot, fitted to the states that it visits in `episodes` episodes, which follow from the training's seed.
    ///
    /// # Errors
    /// A policy of other inputs; it cannot be true enough.
    pub fn snapshot(
        &self,
        policy: &Policy,
        episodes: u32,
        options: &Options,
    ) -> Result<Snapshot, RecipeError> {
        let visited = self.visited(policy, episodes)?;
        Ok(quantize(policy.actor(), policy.spec(), &visited, options)?)
    }

    /// The history cells that `policy` decides on where it was trained, whatever it is asked to prefer.
    fn visited(&self, policy: &Policy, episodes: u32) -> Result<Vec<Vec<i32>>, EnvError> {
        let (rival, spec) = (self.rival.clone(), policy.spec().clone());
        let mut links = Links::new(Arc::clone(&self.algorithm), rival, self.family, spec)?;
        let mut visited = Vec::new();
        for n in 0..u64::from(episodes) {
            if let Some(preference) = self.train.goals.evaluation(n as usize) {
                links.prefer(preference)?;
            }
            let seed = Rng::new(self.train.seed, &[VISITS, n]).bits();
            let scenario = self.family.draw(seed, VISITED_STEPS, self.rival.is_some());
            let mut visiting = Visiting { greedy: Greedy::new(policy), visited: &mut visited };
            crate::run(
                &scenario,
                links.algorithms(),
                seed,
                VISITED_STEPS,
                &mut visiting,
                &mut crate::NoObserver,
            )?;
        }
        Ok(visited)
    }

    /// Compares the float policy, its snapshot and other algorithms on the same held-out links.
    ///
    /// # Errors
    /// An algorithm's programs.
    pub fn compare(&self, policy: &Policy, snapshot: &Snapshot) -> Result<Vec<Line>, RecipeError> {
        let image = snapshot.image(&DeployOptions::ONLY);
        let learned = Prepared::new(Arc::clone(&self.algorithm))?;
        let name = self.algorithm.name();
        let mut lines = vec![
            self.line(format!("{name} (float)"), &learned, || Box::new(Greedy::new(policy)))?,
            self.line(name.to_owned(), &learned, || Box::new(Integer::new(*snapshot.shape(), &image)))?,
        ];
        let others: [Arc<dyn Algorithm>; 3] = [Arc::new(CUBIC), Arc::new(BBR), Arc::new(COPA)];
        for other in others {
            let name = other.name().to_owned();
            lines.push(self.line(name, &Prepared::new(other)?, || Box::new(NoDecider))?);
        }
        Ok(lines)
    }

    fn line<'d>(
        &self,
        name: String,
        first: &Prepared,
        decider: impl Fn() -> Box<dyn Decider + 'd>,
    ) -> Result<Line, RecipeError> {
        let mut algorithms = vec![first.clone()];
        algorithms.extend(self.rival.clone().map(Prepared::new).transpose()?);
        let outcomes = (0..COMPARED.0)
            .map(|n| {
                let seed = Rng::new(self.train.seed, &[HELD_OUT, n]).bits();
                let mut scenario = self.family.draw(seed, COMPARED.1, self.rival.is_some());
                scenario.until_ns /= crate::family::RTTS_PER_STEP;
                // Each starts as it does by itself.
                scenario.flows.iter_mut().for_each(|flow| flow.start_rate = None);
                outcome(&scenario, &algorithms, seed, &mut *decider())
            })
            .collect::<Result<Vec<LinkPerformance>, EnvError>>()?;
        let mean =
            |of: fn(&LinkPerformance) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
        Ok(Line {
            name,
            used: mean(|o| o.used),
            rtt_ratio: mean(|o| o.rtt_ratio),
            queue_p95_ms: mean(|o| o.queue_p95_ms),
            loss: mean(|o| o.loss),
            jain: mean_of(outcomes.iter().filter_map(|o| o.jain)),
        })
    }
}

/// One algorithm's means over the held-out links.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    pub name: String,
    /// Share of the link's capacity that was used, 0 to 1.
    pub used: f64,
    /// Mean RTT over the path's own.
    pub rtt_ratio: f64,
    /// 95th percentile of the queueing delay, milliseconds.
    pub queue_p95_ms: f64,
    /// Share of packets that were lost.
    pub loss: f64,
    /// Jain's index over the flows of a link, of those links that several share; `None` where there are none.
    pub jain: Option<f64>,
}

/// Returns the mean; `None` if there are no values.
fn mean_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns settings that learn small networks on small batches.
fn ppo() -> PpoConfig {
    PpoConfig { gamma: GAMMA, learning_rate: 7e-4, epochs: 10, log_std_init: LOG_STD, ..PpoConfig::default() }
}

fn training() -> TrainConfig {
    let plateau = Plateau { window: 5, patience: 30, min_gain: 0.005 };
    TrainConfig {
        steps_per_update: 8192,
        eval_every: 20,
        eval_episodes: 48,
        plateau: Some(plateau),
        ..TrainConfig::default()
    }
}

/// A float policy without exploration, as a decider.
pub(crate) struct Greedy<'a> {
    spec: &'a PolicySpec,
    actor: GreedyActor,
}

struct GreedyActor {
    networks: ActorCritic,
    bound: f32,
}

impl Actor for GreedyActor {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        self.networks.mean(observation).clamp(-self.bound, self.bound)
    }

    fn outcome(&mut self, _agent: usize, _reward: f32, _end: End, _observation: &[f32]) {}
}

impl<'a> Greedy<'a> {
    fn new(policy: &'a Policy) -> Greedy<'a> {
        let bound = policy.spec().action().bound() as f32;
        Greedy { spec: policy.spec(), actor: GreedyActor { networks: ActorCritic::new(policy), bound } }
    }
}

impl Decider for Greedy<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        Learning::new(self.spec, &mut self.actor).decide(agent, cells, knobs)
    }
}

/// Keeps what a policy sees.
struct Visiting<'a> {
    greedy: Greedy<'a>,
    visited: &'a mut Vec<Vec<i32>>,
}

impl Decider for Visiting<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        self.visited.push(cells.to_vec());
        self.greedy.decide(agent, cells, knobs)
    }
}

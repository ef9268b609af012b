//! Learning from live flows: rows in, small PPO updates, and the figures by which a push is decided.
//!
//! A flow's row says what its policy saw, what it then did, and what the interval before was worth; so each row closes the
//! one before it. Who acted is a deployment's float policy, under a normal distribution with that deployment's noise;
//! rows of several deployments make one batch.
//!
//! Deployments lag behind the learner. Plain PPO would clip its moves at 20 % around what is *deployed*, and never get
//! far enough for a push to be necessary. So the objective is decoupled (Hilton et al., Batch size-invariance for
//! policy optimization, 2022): ratios are clipped around the learner's own policy before the update. Each row's
//! advantage is weighted by the importance ratio of that policy to the deployment, at most [`MAX_WEIGHT`]; from what
//! was done at the action's bound only values are learned. The deviation is not learned: how much live flows may
//! explore is not the learner's choice, so it is the latest deployment's.

mod fidelity;
mod stability;

pub use fidelity::{Fidelity, NECESSITY};
pub use stability::{Stability, StabilityConfig};

use crate::batch::{Batch, Trajectory};
use crate::error::LearnError;
use crate::learner::{Learner, UpdateStats};
use crate::math;
use crate::math::log_prob;
use crate::native::{ActorCritic, Native};
use crate::policy::Policy;
use crate::ppo::PpoConfig;
use crate::preference::Replay;
use crate::rng::Rng;
use ccplane_snapshot::PolicySpec;
use stability::Window;
use std::collections::BTreeMap;

/// The number of latest deployments whose rows are accepted.
pub const MAX_DEPLOYMENTS: usize = 8;
/// An action further from its deployment's mean than so many deviations is not that deployment's.
pub const MAX_DEVIATIONS: f32 = 8.0;

/// Deviations of actions that can be learned from.
pub const NOISE: std::ops::RangeInclusive<f32> = 1e-4..=7.0;
/// Largest importance weight of a row.
pub const MAX_WEIGHT: f32 = 2.0;

/// The settings of learning from live flows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OnlineConfig {
    /// The updates' settings. Advantages are always normalised, each objective's by themselves.
    pub ppo: PpoConfig,
    /// Rows that make an update.
    pub rows: usize,
    /// Rows that wait, at most: further ones are dropped.
    pub max_rows: usize,
    /// The largest number of flows with waiting rows. One more flow [interrupts](OnlineLearner::interrupt) the flow whose
    /// last row is the oldest.
    pub max_flows: usize,
    /// Old objectives that are replayed beside a new one, at most: 0 for none.
    pub replayed_objectives: usize,
    /// The time when the policy counts as converged.
    pub stability: StabilityConfig,
    /// The order of rows, and which are replayed, follow from it.
    pub seed: u64,
}

impl Default for OnlineConfig {
    fn default() -> OnlineConfig {
        let ppo = PpoConfig {
            learning_rate: 3e-4,
            decay: crate::Decay::Constant,
            target_kl: Some(0.02),
            ..PpoConfig::default()
        };
        OnlineConfig {
            ppo,
            rows: 1024,
            max_rows: 1 << 16,
            max_flows: 4096,
            replayed_objectives: 8,
            stability: StabilityConfig::default(),
            seed: 1,
        }
    }
}

/// A row of one flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OnlineRow<'a> {
    /// The flow, by any number that is its own.
    pub flow: u64,
    /// The observation of its policy: the program's history cells.
    pub cells: &'a [i32],
    /// The action that it took, Q16, noise included.
    pub action_q16: i32,
    /// The reward of the action in the flow's row before this one.
    pub reward: f32,
    /// The deployment that decided.
    pub uid: u32,
}

/// The number of rows that were taken, and of those refused by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RowCounts {
    pub taken: u64,
    /// Rows of deployments that are not known (any more).
    pub unknown_deployment: u64,
    /// Rows of deployments whose noise is outside [`NOISE`].
    pub without_noise: u64,
    /// Rows with an action that the deployment would not have taken, or a reward that is no number.
    pub implausible: u64,
    /// Dropped because too many waited.
    pub overflowed: u64,
}

/// The statistics of an online update.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OnlineUpdate {
    /// The update's number, counted from 1.
    pub update: u64,
    pub rows: usize,
    /// Rows of old objectives that were learned from, too.
    pub replayed: usize,
    /// Mean reward of the new rows.
    pub mean_reward: f32,
    /// Mean change of the bounded action on the new rows, as a share of the action's range.
    pub shift: f32,
    /// The effective sample size (Kish) of the importance weights, as a share of the rows, because other policies
    /// acted in them. It is 1 where the deployment is the learner's policy and no action was at its bound.
    pub effective_share: f32,
    pub stats: UpdateStats,
}

/// The reason why a row is not learned from.
enum Refusal {
    Overflow,
    UnknownDeployment,
    WithoutNoise,
    Implausible,
}

struct Deployment {
    uid: u32,
    networks: ActorCritic,
    std: f32,
}

/// One flow's rows: the last one's outcome is yet to come.
#[derive(Default)]
struct FlowRows {
    rows: Trajectory,
    cells: Vec<i32>,
    /// [`RowCounts::taken`] at its last row.
    last_row: u64,
}

/// Learns from live flows.
pub struct OnlineLearner {
    learner: Native,
    config: OnlineConfig,
    spec: PolicySpec,
    deployments: Vec<Deployment>,
    flows: BTreeMap<u64, FlowRows>,
    /// Trajectories that were interrupted, and their cells.
    closed: Vec<FlowRows>,
    waiting: usize,
    counts: RowCounts,
    updates: u64,
    steps: u64,
    replay: Replay,
    window: Window,
    /// The last batch's cells, for [`OnlineLearner::fidelity`].
    last_cells: Vec<i32>,
    observation: Vec<f32>,
}

impl OnlineLearner {
    /// Goes on from `policy`.
    ///
    /// # Errors
    /// Settings out of their range.
    pub fn new(policy: &Policy, config: OnlineConfig) -> Result<OnlineLearner, LearnError> {
        Ok(OnlineLearner {
            learner: Native::new(policy, PpoConfig { normalise_advantages: false, ..config.ppo })?,
            spec: policy.spec().clone(),
            deployments: Vec::new(),
            flows: BTreeMap::new(),
            closed: Vec::new(),
            waiting: 0,
            counts: RowCounts::default(),
            updates: 0,
            steps: policy.provenance.steps,
            replay: Replay::new(config.replayed_objectives, config.rows),
            window: Window::default(),
            last_cells: Vec::new(),
            observation: vec![0.0; policy.architecture().inputs],
            config,
        })
    }

    /// The deployment `uid` is made from `policy` and explores with this deviation of its actions. The oldest of too many
    /// deployments is forgotten.
    pub fn deployed(&mut self, uid: u32, policy: &Policy, noise_std: f32) {
        if explores(noise_std) {
            self.learner.fix_log_std(math::ln(f64::from(noise_std)) as f32);
        }
        self.deployments.retain(|deployment| deployment.uid != uid);
        if self.deployments.len() == MAX_DEPLOYMENTS {
            self.deployments.remove(0);
        }
        self.deployments.push(Deployment { uid, networks: ActorCritic::new(policy), std: noise_std });
    }

    /// Takes a row; true if it will be learned from. One that is not ends its flow's trajectory, as its successor's reward
    /// is not that of a row that is known.
    pub fn take(&mut self, row: OnlineRow<'_>) -> bool {
        match self.read(&row) {
            Ok((action, log_prob)) => {
                self.counts.taken += 1;
                self.make_room(row.flow);
                let flow = self.flows.entry(row.flow).or_default();
                flow.last_row = self.counts.taken;
                if flow.rows.rewards.len() < flow.rows.actions.len() {
                    flow.rows.rewards.push(row.reward);
                    self.waiting += 1;
                }
                flow.rows.observations.extend_from_slice(&self.observation);
                flow.rows.actions.push(action);
                flow.rows.log_probs.push(log_prob);
                flow.cells
                    .extend((0..self.observation.len()).map(|n| row.cells.get(n).copied().unwrap_or(0)));
                true
            }
            Err(refusal) => {
                *match refusal {
                    Refusal::Overflow => &mut self.counts.overflowed,
                    Refusal::UnknownDeployment => &mut self.counts.unknown_deployment,
                    Refusal::WithoutNoise => &mut self.counts.without_noise,
                    Refusal::Implausible => &mut self.counts.implausible,
                } += 1;
                self.interrupt(row.flow);
                false
            }
        }
    }

    /// Room for one more flow, unless it is known.
    fn make_room(&mut self, flow: u64) {
        if self.flows.len() >= self.config.max_flows && !self.flows.contains_key(&flow) {
            let silent = self.flows.iter().min_by_key(|(_, rows)| rows.last_row).map(|(flow, _)| *flow);
            if let Some(silent) = silent {
                self.interrupt(silent);
            }
        }
    }

    /// The row's action and its log-probability, with its observation in `self.observation`.
    fn read(&mut self, row: &OnlineRow<'_>) -> Result<(f32, f32), Refusal> {
        if self.waiting >= self.config.max_rows {
            return Err(Refusal::Overflow);
        }
        let deployment = self.deployments.iter_mut().find(|d| d.uid == row.uid);
        let deployment = deployment.ok_or(Refusal::UnknownDeployment)?;
        let std = deployment.std;
        if !explores(std) {
            return Err(Refusal::WithoutNoise);
        }
        self.spec.normalise(row.cells, &mut self.observation);
        let mean = deployment.networks.mean(&self.observation);
        let action = (f64::from(row.action_q16) / 65536.0) as f32;
        let bound = self.spec.action().bound() as f32;
        // A deployment bounds its actions, so where the mean is beyond, the action is at the bound.
        if (action - mean.clamp(-bound, bound)).abs() > MAX_DEVIATIONS * std || !row.reward.is_finite() {
            return Err(Refusal::Implausible);
        }
        Ok((action, log_prob(action, mean, math::ln(f64::from(std)) as f32, 1.0 / std)))
    }

    /// Rows of this flow are missing, or the flow has ended: what follows is another trajectory.
    pub fn interrupt(&mut self, flow: u64) {
        if let Some(rows) = self.flows.remove(&flow)
            && !rows.rows.rewards.is_empty()
        {
            self.closed.push(rows);
        }
    }

    /// Rows that wait to be learned from.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the counts of rows so far.
    pub fn counts(&self) -> RowCounts {
        self.counts
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Policy {
        let mut policy = self.learner.policy().clone();
        policy.provenance.steps = self.steps;
        policy
    }

    /// One update, if enough rows wait.
    ///
    /// # Errors
    /// Learning has diverged: the learner goes on from its latest deployment only after [`OnlineLearner::restart`].
    pub fn learn(&mut self) -> Result<Option<OnlineUpdate>, LearnError> {
        if self.waiting < self.config.rows.max(1) {
            return Ok(None);
        }
        let batch = self.batch();
        let mut rng = Rng::new(self.config.seed, &[self.updates]);
        let objective = self.objective();
        let mut joined = self.replay.join(objective, &batch, &mut rng);
        let mut before = Vec::new();
        ActorCritic::new(self.learner.policy()).means(&joined.observations, &mut before);
        let bound = self.spec.action().bound() as f32;
        let effective_share = decouple(&mut joined, &before, self.learner.policy(), bound);
        let stats = self.learner.update(&joined, self.config.ppo.learning_rate, &mut rng)?;
        self.replay.keep(objective, &batch);
        let mut after = Vec::new();
        ActorCritic::new(self.learner.policy()).means(&batch.observations, &mut after);
        let shift = Fidelity::of(before.into_iter().zip(after), bound).map_or(0.0, |f| f.mean);
        self.updates += 1;
        self.steps += batch.len() as u64;
        let mean_reward = batch.mean_reward();
        self.window.push(&self.config.stability, mean_reward, stats.approx_kl);
        let (rows, replayed) = (batch.len(), joined.len() - batch.len());
        Ok(Some(OnlineUpdate {
            update: self.updates,
            rows,
            replayed,
            mean_reward,
            shift,
            effective_share,
            stats,
        }))
    }

    /// Goes on from `policy`, forgetting all rows and what they said of stability; deployments and counts stay.
    ///
    /// # Errors
    /// A policy of another architecture.
    pub fn restart(&mut self, policy: &Policy) -> Result<(), LearnError> {
        self.learner.load(policy)?;
        if let Some(deployment) = self.deployments.iter().rev().find(|deployment| explores(deployment.std)) {
            self.learner.fix_log_std(math::ln(f64::from(deployment.std)) as f32);
        }
        self.flows.clear();
        self.closed.clear();
        self.waiting = 0;
        self.steps = policy.provenance.steps;
        self.window = Window::default();
        Ok(())
    }

    /// Conditions have changed or another snapshot was pushed: stability is judged by what follows.
    pub fn unsettle(&mut self) {
        self.window = Window::default();
    }

    /// Whether the policy has converged: LiteFlow's condition of correctness.
    pub fn stability(&self) -> Stability {
        self.window.stability(&self.config.stability)
    }

    /// Measures how far the policy has moved from the deployed one over the last batch's inputs: LiteFlow's condition
    /// of necessity. `deployed` gives the deployed snapshot's action on a program's history cells. `None` before the
    /// first batch.
    pub fn fidelity(&mut self, mut deployed: impl FnMut(&[i32]) -> f32) -> Option<Fidelity> {
        let mut networks = ActorCritic::new(self.learner.policy());
        let (spec, observation) = (&self.spec, &mut self.observation);
        let pairs = self.last_cells.chunks_exact(observation.len()).map(|cells| {
            spec.normalise(cells, observation);
            (networks.mean(observation), deployed(cells))
        });
        Fidelity::of(pairs, spec.action().bound() as f32)
    }

    /// [`OnlineLearner::fidelity`] against the float policy of deployment `uid`; `None` if it is not known.
    pub fn fidelity_to(&mut self, uid: u32) -> Option<Fidelity> {
        let deployment = self.deployments.iter().find(|deployment| deployment.uid == uid)?;
        let (mut networks, spec) = (deployment.networks.clone(), self.spec.clone());
        let mut observation = vec![0.0; spec.inputs().len()];
        self.fidelity(|cells| {
            spec.normalise(cells, &mut observation);
            networks.mean(&observation)
        })
    }

    /// Returns all rows with a known outcome, with the critic's present values; a flow's last row stays.
    fn batch(&mut self) -> Batch {
        let mut networks = ActorCritic::new(self.learner.policy());
        let len = self.observation.len();
        let mut batch = Batch::new(len);
        let mut values = Vec::new();
        self.last_cells.clear();
        for flow in self.closed.iter_mut().chain(self.flows.values_mut()) {
            let n = flow.rows.rewards.len();
            if n == 0 {
                continue;
            }
            networks.values(&flow.rows.observations, &mut values);
            let open = Trajectory {
                observations: flow.rows.observations.split_off(n * len),
                actions: flow.rows.actions.split_off(n),
                log_probs: flow.rows.log_probs.split_off(n),
                ..Trajectory::default()
            };
            batch.push(&flow.rows, &values[..n], values[n], &self.config.ppo);
            let open_cells = flow.cells.split_off(n * len);
            self.last_cells.append(&mut flow.cells);
            *flow = FlowRows { rows: open, cells: open_cells, last_row: flow.last_row };
        }
        self.closed.clear();
        self.waiting = 0;
        batch
    }

    /// Names the objective that most rows of the last batch have: the preference's cells, hashed. 0 without preferences.
    fn objective(&self) -> u64 {
        let Some(preference) = self.learner.architecture().preference else { return 0 };
        let len = self.observation.len();
        let mut counts: BTreeMap<&[i32], usize> = BTreeMap::new();
        for cells in self.last_cells.chunks_exact(len) {
            *counts.entry(&cells[len - preference.inputs..]).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let words: Vec<u64> = most.map_or(Vec::new(), |(cells, _)| cells.iter().map(|c| *c as u64).collect());
        Rng::new(0, &words).bits()
    }
}

/// Whether something can be learned from actions of this deviation.
fn explores(noise_std: f32) -> bool {
    NOISE.contains(&noise_std)
}

/// Turns log-probabilities under the deployments into those under `policy`, whose means are given, and returns the effective
/// share of the rows.
///
/// Advantages are weighted by the ratio of the two, and by 0 where the action is at its bound. There a datapath reports the
/// bounded action, so the density at the bound is not its probability.
fn decouple(batch: &mut Batch, means: &[f32], policy: &Policy, bound: f32) -> f32 {
    let inverse_std = 1.0 / policy.std();
    let (mut sum, mut squares) = (0.0_f64, 0.0_f64);
    let rows = batch.actions.iter().zip(means).zip(&mut batch.log_probs).zip(&mut batch.advantages);
    for (((action, mean), behaviour), advantage) in rows {
        let own = log_prob(*action, *mean, policy.log_std(), inverse_std);
        let inside = action.abs() < bound;
        let weight = if inside { math::exp(own - *behaviour).min(MAX_WEIGHT) } else { 0.0 };
        *behaviour = own;
        *advantage *= weight;
        sum += f64::from(weight);
        squares += f64::from(weight) * f64::from(weight);
    }
    (sum * sum / (squares * batch.len().max(1) as f64).max(f64::MIN_POSITIVE)) as f32
}

//! The digital twin: PPO in a simulated link that is like the flows' own.
//!
//! A live flow gives some twenty intervals a second, and learning from them takes exploration noise on live flows. A
//! simulated one gives tens of thousands and harms nobody. So the path is estimated from what the datapath samples
//! ([`super::estimate`]); when it has changed, training goes on from what is deployed in links drawn around the
//! estimate, until rewards on a fixed set of them stand still; and the result is quantised on, and compared with what
//! is deployed on, the states that live flows visit. That it is better on live flows is for the canary to show.
//!
//! A policy that takes a preference trains under those that live flows state, and now and then under a landmark, so that
//! the others are not forgotten.

use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::estimate::{Estimator, Path};
use super::learner::{Learn, Pressure};
use super::mailbox::LoopId;
use ccplane_alg::Algorithm;
use ccplane_core::{Batch, Candidate, Decision, Verdict};
use ccplane_env::{EnvError, Family, Links, Range, RealLinks};
use ccplane_learn::{
    Actor, ActorCritic, Batch as Rollout, Decay, End, Environment, LearnError, Learner, Native, Policy,
    PpoConfig, Preference, Recorder, Rng, landmarks,
};
use ccplane_snapshot::{Hash, Snapshot};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Comparisons over which rewards stand still when a policy has converged.
const STILL: usize = 20;
/// By how much they may rise meanwhile, of one.
const STILL_RISE: f64 = 0.01;
/// By how much a policy must be better in simulation to be worth a try.
const LEAST_GAIN: f64 = 0.005;
/// Deviation of actions in simulation, natural logarithm, at least and at most: what was trained to its end hardly
/// explores.
const LOG_STD: (f32, f32) = (-0.3, 0.5);
const LEARNING_RATE: f32 = 7e-4;
/// As the built-in policies are trained: rewards on lossy links are mostly noise.
const SHAPING: f32 = 5.0;
const EPOCHS: usize = 10;
const TARGET_KL: f32 = 0.02;
/// Preferences of live flows that are trained for, at most.
const MAX_PREFERENCES: usize = 16;
/// One episode in so many is under a landmark preference.
const LANDMARK_EVERY: u64 = 4;
/// A path whose queue was never longer, bandwidth-delay products, has not been filled.
const FILLED_BDP: f64 = 0.25;
/// What a path may carry, of what it was seen to deliver: filled, and not.
const FILLED_ROOM: f64 = 2.0;
const UNFILLED_ROOM: f64 = 4.0;
/// Share of episodes that start anywhere below and above the link's rate: a change finds flows there.
const COLD: f64 = 0.5;
/// Bits per second in a Mb/s of payload bytes.
const BYTES_PER_MBIT: f64 = 125_000.0;

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// Decisions of one episode.
    episode_steps: usize,
    /// Decisions that make an update.
    update_steps: usize,
    /// Links on which policies are compared, always the same.
    evaluations: u64,
    /// Updates between two comparisons.
    evaluate_every: u64,
    /// Updates after which a training is given up.
    max_updates: u64,
}

const SCHEDULE: Schedule =
    Schedule { episode_steps: 256, update_steps: 8192, evaluations: 32, evaluate_every: 2, max_updates: 80 };

/// What flows decide by.
struct Deployed {
    policy: Policy,
    snapshot: Arc<Snapshot>,
}

/// A training that is under way.
struct Training {
    schedule: Schedule,
    path: Path,
    links: Links,
    learner: Native,
    rollout: Rollout,
    preferences: Vec<Preference>,
    episodes: u64,
    updates: u64,
    /// Reward of what is deployed, on the links of comparison.
    baseline: f64,
    rewards: Vec<f64>,
    best: Option<(f64, Policy)>,
}

/// A twin of one algorithm's flows.
pub(crate) struct Twin {
    algorithm: Arc<dyn Algorithm>,
    seed: u64,
    schedule: Schedule,
    deployed: Deployed,
    offered: Option<(Hash, Policy, Arc<Snapshot>)>,
    estimator: Estimator,
    states: States,
    /// What live flows prefer, percents; empty where the policy takes no preference.
    preferences: BTreeSet<[i32; 3]>,
    /// The path for which there is nothing more to learn.
    settled: Option<Path>,
    training: Option<Box<Training>>,
    trainings: u64,
    /// A policy that waits for live states to be held against.
    ready: Option<(Policy, Claim)>,
}

/// Why there is no twin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TwinError {
    #[error(transparent)]
    Environment(#[from] EnvError),
    #[error(transparent)]
    Learner(#[from] LearnError),
}

impl Twin {
    /// Of flows of `algorithm`, which start with `snapshot`, made from `policy`.
    pub(crate) fn new(
        algorithm: Arc<dyn Algorithm>,
        policy: Policy,
        snapshot: Arc<Snapshot>,
        seed: u64,
    ) -> Twin {
        Twin {
            algorithm,
            seed,
            schedule: SCHEDULE,
            deployed: Deployed { policy, snapshot },
            offered: None,
            estimator: Estimator::default(),
            states: States::default(),
            preferences: BTreeSet::new(),
            settled: None,
            training: None,
            trainings: 0,
            ready: None,
        }
    }

    /// Starts to train, if the path is not what was trained for.
    fn begin(&mut self) {
        if self.offered.is_some() || self.ready.is_some() {
            return;
        }
        let Some((path, flows)) = self.estimator.path() else { return };
        let known = self.training.as_ref().map(|t| &t.path).or(self.settled.as_ref());
        if known.is_some_and(|known| !path.differs(known)) {
            return;
        }
        self.trainings += 1;
        let seed = self.seed.wrapping_add(self.trainings << 32);
        let of = |p: &[i32; 3]| Preference::new(p[0] as f32, p[1] as f32, p[2] as f32);
        let preferences = self.preferences.iter().filter_map(of).collect();
        let (algorithm, policy) = (self.algorithm.clone(), &self.deployed.policy);
        let twin = (path, flows, preferences);
        match Training::new(self.schedule, algorithm, policy, twin, seed) {
            Ok(training) => {
                info!(
                    algorithm = self.algorithm.name(),
                    ?path,
                    flows,
                    "the path has changed: training in its twin"
                );
                self.states.clear();
                self.training = Some(Box::new(training));
            }
            Err(error) => {
                warn!(algorithm = self.algorithm.name(), %error, ?path, "no twin of this path");
                self.settled = Some(path);
            }
        }
    }

    /// One turn of a training.
    fn train(&mut self) {
        let Some(training) = &mut self.training else { return };
        let seed = self.seed.wrapping_add(self.trainings << 32);
        let claim = match training.turn(seed) {
            Ok(None) => return,
            Ok(Some(claim)) => claim,
            Err(error) => {
                warn!(algorithm = self.algorithm.name(), %error, "training in the twin is given up");
                self.settled = Some(training.path);
                self.training = None;
                return;
            }
        };
        let Some(training) = self.training.take() else { return };
        info!(
            algorithm = self.algorithm.name(),
            updates = training.updates,
            baseline = training.baseline,
            best = training.best.as_ref().map(|(reward, _)| *reward),
            converged = claim.converged,
            "training in the twin has ended"
        );
        self.settled = Some(training.path);
        self.ready = training.best.map(|(_, policy)| (policy, claim));
    }

    fn offer(&mut self) -> Option<Candidate> {
        if self.states.len() < LEAST_STATES {
            return None;
        }
        let (policy, claim) = self.ready.take()?;
        match candidate(&policy, &self.deployed.snapshot, &self.states, claim) {
            Ok(candidate) => {
                self.offered = Some((candidate.snapshot.hash(), policy, candidate.snapshot.clone()));
                Some(candidate)
            }
            Err(error) => {
                info!(algorithm = self.algorithm.name(), %error, verdict = "unsafe", "not pushed");
                None
            }
        }
    }
}

impl Learn for Twin {
    fn take(&mut self, from: LoopId, batch: &Batch) {
        self.estimator.take(from, batch);
        let takes_preference = self.deployed.policy.architecture().preference.is_some();
        for (_, row) in &batch.rows {
            self.states.push(&row.inputs);
            if takes_preference
                && self.preferences.len() < MAX_PREFERENCES
                && let Some(preference) = row.inputs.last_chunk::<3>()
            {
                self.preferences.insert(*preference);
            }
        }
        self.begin();
    }

    fn hear(&mut self, decision: &Decision) {
        let Some((hash, policy, snapshot)) = &self.offered else { return };
        if decision.snapshot != Some(*hash) {
            return;
        }
        match decision.verdict {
            Verdict::Trial { .. } => return,
            Verdict::Promoted | Verdict::Pushed => {
                self.deployed = Deployed { policy: policy.clone(), snapshot: snapshot.clone() };
            }
            Verdict::Busy => {
                // Another trial is under way: learn it anew when that is over.
                self.settled = None;
            }
            _ => debug!(verdict = decision.verdict.name(), "the twin's policy is not taken"),
        }
        self.offered = None;
    }

    fn withdraw(&mut self) {
        self.offered = None;
        self.settled = None;
    }

    fn step(&mut self, budget: Duration) -> Option<Candidate> {
        let start = cpu_time();
        while self.training.is_some() && cpu_time().saturating_sub(start) < budget {
            self.train();
        }
        self.offer()
    }

    fn pressure(&self) -> Pressure {
        if self.training.is_some() { Pressure::Adapting } else { Pressure::Steady }
    }
}

impl Training {
    fn new(
        schedule: Schedule,
        algorithm: Arc<dyn Algorithm>,
        policy: &Policy,
        (path, flows, preferences): (Path, usize, Vec<Preference>),
        seed: u64,
    ) -> Result<Training, TwinError> {
        let mut links = Links::new(algorithm, None, family(&path, flows), policy.spec().clone())?;
        let config = PpoConfig {
            learning_rate: LEARNING_RATE,
            decay: Decay::Constant,
            target_kl: Some(TARGET_KL),
            shaping: SHAPING,
            epochs: EPOCHS,
            entropy_coef: 0.0,
            ..PpoConfig::default()
        };
        let log_std = policy.log_std().clamp(LOG_STD.0, LOG_STD.1);
        let explores = policy.with_parameters(policy.actor().clone(), policy.critic().clone(), log_std);
        let learner = Native::new(&explores.map_err(LearnError::from)?, config)?;
        let baseline = reward(policy, &mut links, &preferences, (schedule, seed));
        let rollout = Rollout::new(policy.architecture().inputs);
        Ok(Training {
            schedule,
            path,
            links,
            learner,
            rollout,
            preferences,
            episodes: 0,
            updates: 0,
            baseline,
            rewards: Vec::new(),
            best: None,
        })
    }

    /// One episode, and an update when there are enough; the claim, once it has ended.
    fn turn(&mut self, seed: u64) -> Result<Option<Claim>, LearnError> {
        let config = *self.learner.config();
        self.episodes += 1;
        let mut recorder = Recorder::new(self.learner.policy(), &config, Rng::new(seed, &[1, self.episodes]));
        self.prefer();
        // Not among the links of comparison.
        let drawn = seed.wrapping_add(self.schedule.evaluations + self.episodes);
        self.links.episode(drawn, self.schedule.episode_steps, &mut recorder);
        self.rollout.append(&recorder.take());
        if self.rollout.len() < self.schedule.update_steps {
            return Ok(None);
        }
        let empty = Rollout::new(self.learner.policy().architecture().inputs);
        let rollout = std::mem::replace(&mut self.rollout, empty);
        self.learner.update(&rollout, LEARNING_RATE, &mut Rng::new(seed, &[2, self.updates]))?;
        self.updates += 1;
        if !self.updates.is_multiple_of(self.schedule.evaluate_every) {
            return Ok(None);
        }
        let found = reward(self.learner.policy(), &mut self.links, &self.preferences, (self.schedule, seed));
        self.rewards.push(found);
        if self.best.as_ref().is_none_or(|(best, _)| found > *best) {
            self.best = Some((found, self.learner.policy().clone()));
        }
        Ok(self.ended())
    }

    /// What the next episode's flows prefer.
    fn prefer(&mut self) {
        let n = self.episodes as usize;
        let preference = if self.preferences.is_empty() {
            return;
        } else if self.episodes.is_multiple_of(LANDMARK_EVERY) {
            let landmarks = landmarks();
            landmarks.get(n / LANDMARK_EVERY as usize % landmarks.len().max(1)).copied()
        } else {
            self.preferences.get(n % self.preferences.len()).copied()
        };
        if let Some(preference) = preference {
            self.links.prefer(preference);
        }
    }

    fn ended(&self) -> Option<Claim> {
        let before = self.rewards.len().checked_sub(STILL)?;
        let best = |rewards: &[f64]| rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (earlier, later) = (best(&self.rewards[..before]), best(&self.rewards[before..]));
        let rise = if before == 0 { f64::INFINITY } else { (later - earlier).max(0.0) };
        let converged = rise <= STILL_RISE;
        let gain = best(&self.rewards) - self.baseline - LEAST_GAIN;
        (converged || self.updates >= self.schedule.max_updates).then_some(Claim {
            converged,
            stability: rise,
            gain: Some(gain),
        })
    }
}

/// Links around an estimate. The rate goes further up than down: a flow that does not fill its path does not show it.
fn family(path: &Path, flows: usize) -> Family {
    let around = |value: f64, low: f64, high: f64, min: f64, max: f64| {
        Range((value * low).clamp(min, max), (value * high).clamp(min, max))
    };
    let several = flows.clamp(2, 8) as f64;
    let room = if path.queue_bdp < FILLED_BDP { UNFILLED_ROOM } else { FILLED_ROOM };
    Family::Real(RealLinks {
        rate_mbit: around(path.bytes_per_s / BYTES_PER_MBIT, 0.8, room, 0.2, 10_000.0),
        cold: COLD,
        rtt_ms: around(path.rtt_us / 1000.0, 0.9, 1.1, 0.1, 2000.0),
        queue_bdp: around(path.queue_bdp.max(0.5), 0.5, 1.5, 0.05, 50.0),
        lossy: if path.loss > 5e-4 { 0.9 } else { 0.05 },
        loss: around(path.loss.max(5e-4), 0.5, 1.5, 1e-4, 0.3),
        stepping: 0.1,
        walking: if path.variation > 0.2 { 0.5 } else { 0.1 },
        crossed: 0.1,
        shared: if flows > 1 { 0.5 } else { 0.2 },
        flows: Range(2.0, several),
        rivals: 0.0,
        ..RealLinks::default()
    })
}

/// Mean reward of a policy, without exploration, on the links of comparison.
fn reward(
    policy: &Policy,
    links: &mut Links,
    preferences: &[Preference],
    (schedule, seed): (Schedule, u64),
) -> f64 {
    let mut judge = Judge { networks: ActorCritic::new(policy), sum: 0.0, count: 0 };
    for n in 0..schedule.evaluations {
        if let Some(preference) = preferences.get(n as usize % preferences.len().max(1)) {
            links.prefer(*preference);
        }
        links.episode(seed.wrapping_add(n), schedule.episode_steps, &mut judge);
    }
    judge.sum / f64::from(judge.count.max(1))
}

struct Judge {
    networks: ActorCritic,
    sum: f64,
    count: u32,
}

impl Actor for Judge {
    fn act(&mut self, _: usize, observation: &[f32]) -> f32 {
        self.networks.mean(observation)
    }
    fn outcome(&mut self, _: usize, reward: f32, _: End, _: &[f32]) {
        self.sum += f64::from(reward);
        self.count += 1;
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::Row;
    use ccplane_contract::FlowId;
    use ccplane_core::{DatapathId, Measure};
    use ccplane_env::spec::{self, Steps};
    use ccplane_learn::Architecture;
    use ccplane_quantize::{Options, Width, quantize};

    const SMALL: Schedule = Schedule {
        episode_steps: 128,
        update_steps: 1024,
        evaluations: 4,
        evaluate_every: 2,
        max_updates: 24,
    };

    /// States all over the inputs' ranges.
    fn states(policy: &Policy, count: u64) -> Vec<Vec<i32>> {
        let mut rng = Rng::new(7, &[]);
        let inputs = policy.spec().inputs();
        let mut state = || {
            let cell = |f: &ccplane_snapshot::Feature| f.lo + (rng.uniform() * f64::from(f.hi - f.lo)) as i32;
            inputs.iter().map(cell).collect()
        };
        (0..count).map(|_| state()).collect()
    }

    /// Of flows whose policy has learned nothing.
    fn twin() -> Twin {
        let spec = spec::aurora(Steps::REAL).unwrap();
        let policy = Policy::initial(Architecture::aurora(), spec, -0.5, 1).unwrap();
        let options = Options { bits: Width::W16, ..Options::default() };
        let snapshot = quantize(policy.actor(), policy.spec(), &states(&policy, 200), &options).unwrap();
        let algorithm: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
        Twin { schedule: SMALL, ..Twin::new(algorithm, policy, Arc::new(snapshot), 1) }
    }

    /// Five seconds of a flow of this rate, from `at_s` on.
    fn five_seconds(twin: &mut Twin, at_s: u64, mbit: u64) {
        for cells in states(&twin.deployed.policy, 25).into_iter().enumerate() {
            let (n, inputs) = (at_s * 5 + cells.0 as u64, cells.1);
            let measure = Measure {
                flow: FlowId(1),
                at_us: n * 200_000,
                bytes_acked: n * mbit * 25_000,
                delivered: n * mbit * 17,
                lost: 0,
                srtt_us: 42_000,
                min_rtt_us: 40_000,
            };
            let row = Row { at_us: 0, slot: 0, snapshot: 1, inputs, action_q16: 0, reward: 0.0 };
            let batch = Batch {
                datapath: DatapathId(0),
                algorithm: "aurora",
                slot: 0,
                rows: vec![(FlowId(1), row); 4],
                dropped: 0,
                measures: vec![measure],
            };
            twin.take(LoopId(0), &batch);
        }
    }

    fn decision(candidate: &Candidate, verdict: Verdict) -> Decision {
        Decision {
            at_us: 0,
            datapath: DatapathId(0),
            slot: 0,
            algorithm: "aurora",
            snapshot: Some(candidate.snapshot.hash()),
            uid: None,
            origin: candidate.origin,
            comparison: None,
            verdict,
        }
    }

    fn learn(twin: &mut Twin) -> Option<Candidate> {
        while twin.pressure() == Pressure::Adapting {
            if let Some(candidate) = twin.step(Duration::from_millis(50)) {
                return Some(candidate);
            }
        }
        twin.step(Duration::ZERO)
    }

    #[test]
    fn a_path_that_has_changed_is_learned_once() {
        let mut twin = twin();
        assert_eq!(twin.pressure(), Pressure::Steady, "nothing is known of the path");
        five_seconds(&mut twin, 0, 10);
        let candidate = learn(&mut twin).expect("a candidate");
        let evidence = *candidate.origin.evidence().unwrap();
        assert!(evidence.gain.unwrap() > 0.0 && evidence.fidelity_mean > 0.0, "{evidence:?}");
        assert_eq!(candidate.snapshot.shape(), twin.deployed.snapshot.shape());
        twin.hear(&decision(&candidate, Verdict::Promoted));
        assert_eq!(twin.deployed.snapshot.hash(), candidate.snapshot.hash());
        five_seconds(&mut twin, 5, 10);
        assert_eq!(twin.pressure(), Pressure::Steady, "the path is as it was");
        five_seconds(&mut twin, 10, 40);
        assert_eq!(twin.pressure(), Pressure::Adapting);
        let next = learn(&mut twin).expect("a candidate");
        twin.hear(&decision(&next, Verdict::RolledBack(ccplane_core::Why::Worse)));
        assert_eq!(
            twin.deployed.snapshot.hash(),
            candidate.snapshot.hash(),
            "what was rolled back is forgotten"
        );
    }
}

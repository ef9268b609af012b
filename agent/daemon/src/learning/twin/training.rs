//! One training in a twin: PPO from what is deployed, in links drawn around an estimate of the flows' own.

use crate::learning::adjust::{Search, TWIN_STARTS};
use crate::learning::candidate::Claim;
use crate::learning::estimate::{Path, apart};
use ccplane_alg::Algorithm;
use ccplane_env::{EnvError, Family, Links, Range, RealLinks};
use ccplane_learn::{
    Actor, ActorCritic, Batch as Rollout, Decay, End, Environment, LearnError, Learner, Native, Policy,
    PpoConfig, Preference, Recorder, Rng, landmarks,
};
use ccplane_snapshot::Feature;
use std::sync::Arc;

/// By how much rewards may rise over [`Schedule::still`] comparisons where they stand still.
const STILL_RISE: f64 = 0.01;
/// The reward by which a policy may be worse than the shipped one on links to which the path may change. A larger loss is
/// taken off its gain, since the path may become like any of them.
const MOST_LOST: f64 = 0.02;
/// Reward that a policy may cost on the path itself, where it saves at least [`LEAST_SAVED`] on the other links.
const MOST_PREMIUM: f64 = 0.01;
const LEAST_SAVED: f64 = 0.15;
/// Share of the reward saved on the other links that counts as gain.
const INSURED: f64 = 0.1;
/// One episode in so many is on such a link, and one in so many of those that policies are chosen by.
const GENERAL_EVERY: u64 = 3;
const CHOSEN_EVERY: u64 = 2;
/// Factors by which a path's rate and round trip may change. Many such links lose packets, which shows
/// the policies that give way to losses.
const BECOMES_RATE: (f64, f64) = (0.2, 5.0);
const BECOMES_RTT: (f64, f64) = (0.25, 4.0);
const BECOMES_QUEUE: (f64, f64) = (0.3, 5.0);
const BECOMES_LOSSY: f64 = 0.7;
/// Shares of packets that such a link loses, at least, and at most where the path itself loses less than two thirds of that.
const BECOMES_LOSS: (f64, f64) = (0.002, 0.08);
const BECOMES_LOSSES: f64 = 1.5;
const BECOMES_SHARED: f64 = 0.5;
const BECOMES_FLOWS: f64 = 4.0;
/// By how much a policy that is known must be better to be tried before anything near to it is played.
const QUICK_GAIN: f64 = 0.15;
/// By how much a policy must be better in simulation to be worth a try: less could hardly be shown on live flows.
const LEAST_GAIN: f64 = 0.03;
/// Deviation of actions in simulation, natural logarithm, at least and at most. What was trained to its end hardly
/// explores, and on a path that is new to it never finds out.
const LOG_STD: (f32, f32) = (0.7, 1.0);
const LEARNING_RATE: f32 = 7e-4;
/// An action shows within some twenty intervals.
const GAMMA: f32 = 0.95;
const EPOCHS: usize = 10;
const TARGET_KL: f32 = 0.02;
/// One simulated state in so many is kept.
const STATE_EVERY: usize = 16;
/// A policy that is worse on this share of the links of comparison is played on no others.
const FIRST_LINKS: u64 = 3;
/// One episode in so many is under a landmark preference.
const LANDMARK_EVERY: u64 = 4;

/// A path whose queue was never longer, bandwidth-delay products, has not been filled.
const FILLED_BDP: f64 = 0.25;
/// Bounds of a path's capacity as factors of its delivery rate: at least, and at most where it is filled, and where not. A flow that takes
/// random losses for a full queue comes down to a small share of its path: so it may also be what was delivered before.
const LEAST_ROOM: f64 = 0.8;
const FILLED_ROOM: f64 = 2.0;
const UNFILLED_ROOM: f64 = 4.0;
/// Round trips of the links around an estimate, of its own; queues and random losses.
const RTTS: (f64, f64) = (0.9, 1.1);
const QUEUES: (f64, f64) = (0.5, 2.0);
const LOSSES: (f64, f64) = (0.5, 1.5);
/// The range of the queue of a path that was never filled, bandwidth-delay products.
const UNKNOWN_QUEUE: (f64, f64) = (0.2, 4.0);
/// Random losses below this are none.
const LEAST_LOSS: f64 = 5e-4;
/// Share of packets that a link loses at random, at most.
const MOST_LOSS: f64 = 0.3;
/// Flows of one link, at most.
const MAX_FLOWS: usize = 8;
/// Share of episodes that start anywhere below and above the link's rate: a change finds flows there.
const COLD: f64 = 0.25;
/// By how much a path may differ from what was trained for, natural logarithms.
const RATE_LIMIT: f64 = 0.4;
const RTT_LIMIT: f64 = 0.25;
const LOSS_LIMIT: f64 = 0.7;
/// Shares of packets lost that differ by less are alike.
const LOSS_STEP: f64 = 0.004;
/// Bytes per second of a Mb/s.
const BYTES_PER_MBIT: f64 = 125_000.0;

/// The amount that is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Decisions of one episode.
    pub(super) episode_steps: usize,
    /// Decisions that make an update.
    pub(super) update_steps: usize,
    /// The number of links on which policies are compared, always the same ones.
    pub(super) evaluations: u64,
    /// Updates between two comparisons.
    pub(super) evaluate_every: u64,
    /// Comparisons over which rewards stand still when a policy has converged.
    pub(super) still: usize,
    /// Updates after which a training ends, converged or not.
    pub(super) max_updates: u64,
    /// Policies beside the best known one that are played before any is trained.
    pub(super) tries: u32,
}

/// Some seconds of a core.
pub(super) const SCHEDULE: Schedule = Schedule {
    episode_steps: 256,
    update_steps: 4096,
    evaluations: 24,
    evaluate_every: 2,
    still: 8,
    max_updates: 200,
    tries: 24,
};

/// Reasons why there is no training.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrainingError {
    #[error(transparent)]
    Environment(#[from] EnvError),
    #[error(transparent)]
    Learner(#[from] LearnError),
}

/// The policies with which the deployed one is compared.
pub(super) struct Known {
    pub(super) shipped: Policy,
    /// Policies that might replace the deployed one.
    pub(super) others: Vec<Policy>,
    /// Whether what is near to the best of them might, too.
    pub(super) adjusted: bool,
}

/// Result of a training.
pub(super) struct Trained {
    pub(super) policy: Policy,
    pub(super) claim: Claim,
    pub(super) updates: u64,
    /// Inputs of the policy where it was trained, as history cells.
    pub(super) states: Vec<Vec<i32>>,
}

/// A training that is under way.
pub(super) struct Training {
    schedule: Schedule,
    pub(super) path: Path,
    links: Links,
    /// Links that the path may change to, and what ships with the algorithm for them.
    general: Links,
    shipped: Policy,
    config: PpoConfig,
    /// Policies that are compared with the deployed one before any is trained.
    others: Vec<Policy>,
    /// The number of policies beside the best of them that are still to be played.
    tries: u32,
    search: Option<Search>,
    /// The best one's reward on the first of the links of comparison.
    first: f64,
    /// Learns from the best of them on; none before that is known.
    learner: Option<Native>,
    rollout: Rollout,
    preferences: Vec<Preference>,
    seed: u64,
    episodes: u64,
    updates: u64,
    /// Decisions that were simulated since they were last asked for.
    decisions: u64,
    /// The deployed policy, and its reward on the links of comparison.
    deployed: Policy,
    baseline: f64,
    rewards: Vec<f64>,
    best: (f64, Policy),
}

impl Training {
    pub(super) fn new(
        schedule: Schedule,
        algorithm: Arc<dyn Algorithm>,
        policy: &Policy,
        known: Known,
        path: Path,
        preferences: Vec<Preference>,
        seed: u64,
    ) -> Result<Training, TrainingError> {
        let Known { shipped, others, adjusted } = known;
        // What is better for one preference may be worse for others.
        let adjusted = adjusted && preferences.is_empty();
        let general = Links::new(algorithm.clone(), None, neighbours(&path), policy.spec().clone())?;
        let links = Links::new(algorithm, None, family(&path), policy.spec().clone())?;
        let config = PpoConfig {
            learning_rate: LEARNING_RATE,
            decay: Decay::Constant,
            target_kl: Some(TARGET_KL),
            gamma: GAMMA,
            epochs: EPOCHS,
            entropy_coef: 0.0,
            ..PpoConfig::default()
        };
        let rollout = Rollout::new(policy.architecture().inputs);
        let mut training = Training {
            schedule,
            path,
            links,
            general,
            shipped,
            config,
            others,
            tries: if adjusted { schedule.tries } else { 0 },
            search: None,
            first: f64::NEG_INFINITY,
            learner: None,
            rollout,
            preferences,
            seed,
            episodes: 0,
            updates: 0,
            decisions: 0,
            deployed: policy.clone(),
            baseline: 0.0,
            rewards: Vec::new(),
            best: (0.0, policy.clone()),
        };
        training.baseline = training.judge(policy, 0)?.mean();
        training.best.0 = training.baseline;
        Ok(training)
    }

    /// Compares the next known policy, or simulates one episode and updates the policy when there are enough.
    ///
    /// Returns the result at the end of the training.
    pub(super) fn turn(&mut self) -> Result<Option<Trained>, TrainingError> {
        if let Some(policy) = self.others.pop() {
            let found = self.judge(&policy, 0)?.mean();
            if found > self.best.0 {
                self.best = (found, policy);
            }
            // Flows that have come down do not wait for what is better still.
            let is_quick = self.best.0 > self.baseline + QUICK_GAIN;
            let is_last = self.others.is_empty() && (self.tries == 0 || is_quick);
            return if is_last { self.known() } else { Ok(None) };
        }
        if self.tries > 0 {
            self.tries -= 1;
            self.adjust()?;
            return if self.tries == 0 { self.known() } else { Ok(None) };
        }
        let mut learner = match self.learner.take() {
            Some(learner) => learner,
            None => self.learner()?,
        };
        let trained = self.learn(&mut learner);
        self.learner = Some(learner);
        trained
    }

    /// Plays one policy beside the best so far; one that is worse on the first links is played on no more.
    fn adjust(&mut self) -> Result<(), TrainingError> {
        let first = self.schedule.evaluations.div_ceil(FIRST_LINKS);
        let mut search = match self.search.take() {
            Some(search) => search,
            None => {
                let best = self.best.1.clone();
                let mut judge = Judge::of(&best);
                self.play(&mut judge, 0, 0..first)?;
                self.first = judge.mean();
                Search::beside(best, &TWIN_STARTS, Rng::new(self.seed, &[3]))
            }
        };
        let policy = search.next()?;
        let mut judge = Judge::of(&policy);
        self.play(&mut judge, 0, 0..first)?;
        let on_first = judge.mean();
        let mut is_best = on_first > self.first;
        if is_best {
            self.play(&mut judge, 0, first..self.schedule.evaluations)?;
            is_best = judge.mean() > self.best.0;
        }
        if is_best {
            self.first = on_first;
            self.best = (judge.mean(), policy);
        }
        search.on_verdict(is_best);
        self.search = Some(search);
        Ok(())
    }

    /// The best of what is known already, where it is better by enough: then there is no need to train.
    fn known(&mut self) -> Result<Option<Trained>, TrainingError> {
        if self.best.1 == self.deployed {
            return Ok(None);
        }
        let (gain, states) = self.gain()?;
        let claim = Claim { converged: true, stability: 0.0, gain: Some(gain), steers: true };
        let policy = self.best.1.clone();
        Ok((gain > 0.0).then_some(Trained { policy, claim, updates: 0, states }))
    }

    /// Makes a learner that starts from the best policy so far.
    fn learner(&self) -> Result<Native, TrainingError> {
        let policy = &self.best.1;
        let log_std = policy.log_std().clamp(LOG_STD.0, LOG_STD.1);
        let explores = policy.with_parameters(policy.actor().clone(), policy.critic().clone(), log_std);
        Ok(Native::new(&explores.map_err(LearnError::from)?, self.config)?)
    }

    /// One episode, and an update when there are enough.
    fn learn(&mut self, learner: &mut Native) -> Result<Option<Trained>, TrainingError> {
        self.episodes += 1;
        let mut recorder =
            Recorder::new(learner.policy(), &self.config, Rng::new(self.seed, &[1, self.episodes]));
        self.prefer()?;
        // Not among the links of comparison.
        let drawn = self.seed.wrapping_add(2 * self.schedule.evaluations + self.episodes);
        let is_general = self.episodes.is_multiple_of(GENERAL_EVERY);
        let links = if is_general { &mut self.general } else { &mut self.links };
        links.episode(drawn, self.schedule.episode_steps, &mut recorder);
        let recorded = recorder.take();
        self.decisions += recorded.len() as u64;
        self.rollout.append(&recorded);
        if self.rollout.len() < self.schedule.update_steps {
            return Ok(None);
        }
        let empty = Rollout::new(learner.policy().architecture().inputs);
        let rollout = std::mem::replace(&mut self.rollout, empty);
        learner.update(&rollout, LEARNING_RATE, &mut Rng::new(self.seed, &[2, self.updates]))?;
        self.updates += 1;
        if !self.updates.is_multiple_of(self.schedule.evaluate_every) {
            return Ok(None);
        }
        let policy = learner.policy().clone();
        let found = self.judge(&policy, 0)?.mean();
        self.rewards.push(found);
        if found > self.best.0 {
            self.best = (found, policy);
        }
        self.ended()
    }

    /// Draws the preference of the next episode's flows.
    fn prefer(&mut self) -> Result<(), EnvError> {
        let n = self.episodes as usize;
        let preference = if self.preferences.is_empty() {
            return Ok(());
        } else if self.episodes.is_multiple_of(LANDMARK_EVERY) {
            let landmarks = landmarks();
            landmarks.get(n / LANDMARK_EVERY as usize % landmarks.len().max(1)).copied()
        } else {
            self.preferences.get(n % self.preferences.len()).copied()
        };
        let Some(preference) = preference else { return Ok(()) };
        self.general.prefer(preference)?;
        self.links.prefer(preference)
    }

    /// Returns the training's result, if it has ended.
    fn ended(&mut self) -> Result<Option<Trained>, TrainingError> {
        let Some(before) = self.rewards.len().checked_sub(self.schedule.still) else { return Ok(None) };
        let best = |rewards: &[f64]| rewards.iter().copied().fold(self.baseline, f64::max);
        let rise = best(&self.rewards[before..]) - best(&self.rewards[..before]);
        let stability = rise.max(0.0);
        let converged = before > 0 && stability <= STILL_RISE;
        if !converged && self.updates < self.schedule.max_updates {
            return Ok(None);
        }
        let (gain, states) = self.gain()?;
        let claim = Claim { converged, stability, gain: Some(gain), steers: true };
        Ok(Some(Trained { policy: self.best.1.clone(), claim, updates: self.updates, states }))
    }

    /// Returns the best policy's gain over the deployed one, less the margin of a trial and its losses elsewhere,
    /// and states that it sees. One that costs this path next to nothing and saves much elsewhere is worth a share of that: the path
    /// may change before anything is learned of what it has become. The best of many is so in part by luck: links that neither has been chosen on tell.
    fn gain(&mut self) -> Result<(f64, Vec<Vec<i32>>), TrainingError> {
        let (policy, deployed) = (self.best.1.clone(), self.deployed.clone());
        let judge = self.judge(&policy, 1)?;
        let here = judge.mean() - self.judge(&deployed, 1)?.mean();
        let gain = here - LEAST_GAIN;
        if here < -MOST_PREMIUM {
            return Ok((gain, judge.states));
        }
        let elsewhere = self.judge_elsewhere(&policy)?;
        let lost = self.judge_elsewhere(&self.shipped.clone())? - elsewhere;
        let gain = gain - (lost - MOST_LOST).max(0.0);
        let saved = elsewhere - self.judge_elsewhere(&deployed)?;
        let insured = if saved >= LEAST_SAVED { INSURED * saved + here } else { gain };
        Ok((gain.max(insured), judge.states))
    }

    /// Runs a policy, without exploration, on one set of links.
    fn judge(&mut self, policy: &Policy, set: u64) -> Result<Judge, EnvError> {
        let mut judge = Judge::of(policy);
        self.play(&mut judge, set, 0..self.schedule.evaluations)?;
        Ok(judge)
    }

    /// Has `judge` play these links of one set; policies are chosen by set 0.
    fn play(&mut self, judge: &mut Judge, set: u64, links: std::ops::Range<u64>) -> Result<(), EnvError> {
        let before = judge.asked;
        for n in links {
            if let Some(preference) = self.preferences.get(n as usize % self.preferences.len().max(1)) {
                self.general.prefer(*preference)?;
                self.links.prefer(*preference)?;
            }
            let drawn = self.seed.wrapping_add(set * self.schedule.evaluations + n);
            let is_general = set == 0 && (n + 1).is_multiple_of(CHOSEN_EVERY);
            let links = if is_general { &mut self.general } else { &mut self.links };
            links.episode(drawn, self.schedule.episode_steps, judge);
        }
        self.decisions += (judge.asked - before) as u64;
        Ok(())
    }

    /// Returns a policy's reward on links that the path may change to.
    fn judge_elsewhere(&mut self, policy: &Policy) -> Result<f64, EnvError> {
        std::mem::swap(&mut self.links, &mut self.general);
        let judge = self.judge(policy, 1);
        std::mem::swap(&mut self.links, &mut self.general);
        Ok(judge?.mean())
    }

    /// Decisions that were simulated since this was last asked.
    pub(super) fn take_decisions(&mut self) -> u64 {
        std::mem::take(&mut self.decisions)
    }
}

/// Mean reward of a policy's decisions, and some of the states that they were made in.
struct Judge {
    networks: ActorCritic,
    inputs: Vec<Feature>,
    asked: usize,
    states: Vec<Vec<i32>>,
    sum: f64,
    count: u32,
}

impl Judge {
    fn of(policy: &Policy) -> Judge {
        let (networks, inputs) = (ActorCritic::new(policy), policy.spec().inputs().to_vec());
        Judge { networks, inputs, asked: 0, states: Vec::new(), sum: 0.0, count: 0 }
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }
}

impl Actor for Judge {
    fn act(&mut self, _: usize, observation: &[f32]) -> f32 {
        self.asked += 1;
        if self.asked.is_multiple_of(STATE_EVERY) {
            let cell = |(x, f): (&f32, &Feature)| {
                f.lo + ((f64::from(*x) + 1.0) / 2.0 * (f64::from(f.hi) - f64::from(f.lo))).round() as i32
            };
            self.states.push(observation.iter().zip(&self.inputs).map(cell).collect());
        }
        self.networks.mean(observation)
    }
    fn outcome(&mut self, _: usize, reward: f32, _: End, _: &[f32]) {
        self.sum += f64::from(reward);
        self.count += 1;
    }
}

/// Returns the largest capacity that a path may have, payload bytes per second.
fn most(path: &Path) -> f64 {
    if path.queue_bdp < FILLED_BDP {
        (path.bytes_per_s * UNFILLED_ROOM).max(path.most_bytes_per_s * FILLED_ROOM)
    } else {
        path.bytes_per_s * FILLED_ROOM
    }
}

/// Whether a policy trained for the one path does for the other. A flow that learns to fill its path delivers more of it.
pub(super) fn covers(trained: &Path, path: &Path) -> bool {
    let lost = (trained.loss.max(LEAST_LOSS), path.loss.max(LEAST_LOSS));
    let loss = (lost.0 - lost.1).abs() < LOSS_STEP || !apart(lost.0, lost.1, LOSS_LIMIT);
    let rate = path.bytes_per_s;
    let rate =
        rate < most(trained) && (rate > trained.bytes_per_s || !apart(rate, trained.bytes_per_s, RATE_LIMIT));
    loss && rate && !apart(trained.rtt_us, path.rtt_us, RTT_LIMIT)
}

/// Links around an estimate. The rate goes further up than down: a flow that does not fill its path does not show it.
fn family(path: &Path) -> Family {
    let between = |low: f64, high: f64, min: f64, max: f64| Range(low.clamp(min, max), high.clamp(min, max));
    let around = |value: f64, (low, high): (f64, f64), min, max| between(value * low, value * high, min, max);
    let (least, most) = (path.bytes_per_s * LEAST_ROOM / BYTES_PER_MBIT, most(path) / BYTES_PER_MBIT);
    let several = path.flows.clamp(2, MAX_FLOWS) as f64;
    let fewest = (several / 2.0).max(2.0);
    let queue = if path.queue_bdp < FILLED_BDP {
        Range(path.queue_bdp.max(UNKNOWN_QUEUE.0), UNKNOWN_QUEUE.1)
    } else {
        around(path.queue_bdp, QUEUES, 0.05, 50.0)
    };
    Family::Real(RealLinks {
        rate_mbit: between(least, most, 0.2, 10_000.0),
        cold: COLD,
        rtt_ms: around(path.rtt_us / 1000.0, RTTS, 0.1, 2000.0),
        queue_bdp: queue,
        lossy: if path.loss > LEAST_LOSS { 0.9 } else { 0.05 },
        loss: around(path.loss.max(LEAST_LOSS), LOSSES, 1e-4, MOST_LOSS),
        stepping: 0.05,
        walking: if path.variation > 0.3 { 0.3 } else { 0.05 },
        crossed: 0.05,
        shared: if path.flows > 1 { 0.9 } else { 0.1 },
        flows: Range(fewest, several),
        rivals: 0.0,
        ..RealLinks::default()
    })
}

/// Links that a path may change to.
fn neighbours(path: &Path) -> Family {
    let around = |value: f64, (low, high): (f64, f64), min: f64, max: f64| {
        Range((value * low).clamp(min, max), (value * high).clamp(min, max))
    };
    // Flows that have come down do not show what the path carries.
    let rate_mbit = path.most_bytes_per_s.max(path.bytes_per_s) / BYTES_PER_MBIT;
    Family::Real(RealLinks {
        rate_mbit: around(rate_mbit, BECOMES_RATE, 0.2, 10_000.0),
        cold: COLD,
        rtt_ms: around(path.rtt_us / 1000.0, BECOMES_RTT, 0.1, 2000.0),
        queue_bdp: Range(BECOMES_QUEUE.0, BECOMES_QUEUE.1),
        lossy: BECOMES_LOSSY,
        loss: Range(BECOMES_LOSS.0, BECOMES_LOSS.1.max(BECOMES_LOSSES * path.loss).min(MOST_LOSS)),
        stepping: 0.05,
        walking: 0.05,
        crossed: 0.05,
        shared: BECOMES_SHARED,
        flows: Range(2.0, BECOMES_FLOWS),
        rivals: 0.0,
        ..RealLinks::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path {
        bytes_per_s: 1_250_000.0,
        most_bytes_per_s: 1_250_000.0,
        flows: 1,
        rtt_us: 40_000.0,
        queue_bdp: 0.1,
        loss: 0.01,
        variation: 0.0,
    };

    #[test]
    fn a_path_is_another_where_the_policy_may_be_wrong() {
        let covered = |path: Path| covers(&PATH, &path);
        assert!(covered(Path { bytes_per_s: 1_000_000.0, ..PATH }));
        assert!(
            covered(Path { bytes_per_s: 4_900_000.0, ..PATH }),
            "trained for what it may not have filled"
        );
        assert!(!covered(Path { bytes_per_s: 5_100_000.0, ..PATH }));
        assert!(!covered(Path { bytes_per_s: 600_000.0, ..PATH }));
        assert!(covered(Path { loss: 0.013, ..PATH }) && !covered(Path { loss: 0.03, ..PATH }));
        assert!(!covered(Path { rtt_us: 60_000.0, ..PATH }));
        let came_down = Path { bytes_per_s: 60_000.0, ..PATH };
        assert!(covers(&came_down, &PATH), "it may come up again");
        let filled = Path { queue_bdp: 1.0, ..PATH };
        assert!(!covers(&filled, &Path { bytes_per_s: 2_600_000.0, ..PATH }));
    }

    /// A path that a few packets fill: what is calmer beside the shipped policy is better there, and no worse elsewhere.
    #[test]
    fn what_is_calmer_is_found_by_play_before_anything_is_trained() {
        let algorithm: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
        let source = algorithm.policies().into_iter().next().unwrap();
        let shipped = Policy::from_bytes(&source.policy).unwrap();
        let short = Path {
            bytes_per_s: 980_000.0,
            most_bytes_per_s: 980_000.0,
            flows: 1,
            rtt_us: 20_000.0,
            queue_bdp: 0.6,
            loss: 0.012,
            variation: 0.1,
        };
        let known = Known { shipped: shipped.clone(), others: Vec::new(), adjusted: true };
        let mut training = Training::new(SCHEDULE, algorithm, &shipped, known, short, Vec::new(), 1).unwrap();
        for _ in 1..SCHEDULE.tries {
            assert!(training.turn().unwrap().is_none());
        }
        let found = training.turn().unwrap().expect("found by play");
        assert_eq!(found.updates, 0);
        assert!(found.claim.gain.is_some_and(|gain| gain > 0.0) && found.policy != shipped);
    }

    #[test]
    fn every_estimate_has_links() {
        for queue_bdp in [0.0, 0.1, 3.0, 100.0] {
            for loss in [0.0, 0.1, 1.0] {
                for rtt_us in [1.0, 1e5, 1e9] {
                    let path = Path { queue_bdp, loss, rtt_us, ..PATH };
                    assert!(family(&path).check().is_ok(), "{path:?}");
                    assert!(neighbours(&path).check().is_ok(), "{path:?}");
                }
            }
        }
    }
}

//! The digital twin: PPO in a simulated link that is like the flows' own.
//!
//! A live flow gives some twenty intervals a second, and learning from them takes exploration noise on live flows. A
//! simulated one gives tens of thousands and harms nobody. So the path is estimated from what the datapath samples
//! ([`super::estimate`]); when it has changed ([`super::change`]), policies beside the best known one are played
//! ([`super::adjust`]). Where none is better by enough, training ([`training`]) goes on from the deployed policy in
//! links drawn around the estimate. It ends when rewards on a fixed set of them stand still. The result is quantised
//! on the states that live flows visit, and compared with the deployed policy on them. To these come the states that
//! it visits itself in the twin, where live flows may be soon. That it is better on live flows is for the trial to
//! show.
//!
//! A policy that takes a preference trains under those that live flows state. Now and then it trains under a landmark,
//! so that the others are not forgotten.

mod training;

use super::budget::Pressure;
use super::candidate::{Claim, States, candidate};
use super::change::{Detection, Quantity, Watch};
use super::deployed::Deployments;
use super::estimate::{Estimator, Path};
use super::learner::{Learn, Meter};
use super::mailbox::LoopId;
use ccplane_alg::Algorithm;
use ccplane_core::{Batch, Candidate, Decision, Verdict};
use ccplane_learn::Preference;
use ccplane_snapshot::Hash;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};
use training::{Known, SCHEDULE, Schedule, Trained, Training, covers};

/// Preferences of live flows that are trained for: the latest.
const MAX_PREFERENCES: usize = 16;
/// The time for which a path is left alone after a training that came to nothing, microseconds of the datapath's clock;
/// twice as long after each further one.
const RETRY_US: u64 = 60_000_000;
const MAX_RETRIES: u32 = 6;

/// States of live flows that an offer waits for, and for how long, microseconds: flows that have collapsed hardly decide, and simulated
/// states come to theirs.
const LEAST_STATES: usize = 8;
const STATES_WAIT_US: u64 = 1_000_000;

/// A path that has been trained for.
#[derive(Clone, Copy, Debug)]
struct Settled {
    path: Path,
    /// When to try again; never where flows decide by what was learned.
    retry_at_us: Option<u64>,
    /// Trainings that came to nothing.
    failed_trainings: u32,
}

/// A twin of one algorithm's flows.
pub(crate) struct Twin {
    algorithm: Arc<dyn Algorithm>,
    seed: u64,
    meter: Meter,
    schedule: Schedule,
    deployments: Deployments,
    /// The policy that waits for a verdict; `None` once it has one.
    offered: Option<Hash>,
    withdrawn: Option<Hash>,
    estimator: Estimator,
    watch: Watch,
    /// Whether the path may be another than what was trained for: it is looked at once, when enough is known of it.
    is_unsure: bool,
    /// Whether flows alternate between the offered and the deployed policy.
    is_on_trial: bool,
    states: States,
    /// Preferences of live flows in percent, latest last; empty where the policy takes none.
    preferences: VecDeque<[i32; 3]>,
    settled: Option<Settled>,
    training: Option<Box<Training>>,
    pub(super) trainings: u64,
    /// Offers that flows decide by now, or did.
    pub(super) promotions: u64,
    /// Changes of the path so far.
    pub(super) changes: u64,
    /// A policy that waits for live states to be held against, and since when.
    ready: Option<(Path, Trained)>,
    ready_at_us: u64,
    /// The datapath's clock, microseconds.
    now_us: u64,
}

impl Twin {
    /// Makes the learner of the flows of `algorithm`, which start with the policy of `deployments`.
    pub(super) fn new(
        algorithm: Arc<dyn Algorithm>,
        deployments: Deployments,
        seed: u64,
        meter: Meter,
    ) -> Twin {
        Twin {
            algorithm,
            seed,
            meter,
            schedule: SCHEDULE,
            deployments,
            offered: None,
            withdrawn: None,
            estimator: Estimator::default(),
            watch: Watch::default(),
            is_unsure: true,
            is_on_trial: false,
            states: States::default(),
            preferences: VecDeque::new(),
            settled: None,
            training: None,
            trainings: 0,
            promotions: 0,
            changes: 0,
            ready: None,
            ready_at_us: 0,
            now_us: 0,
        }
    }

    /// Follows the path from second to second; what is known of it from before a change is forgotten.
    fn watch(&mut self) {
        while let Some(second) = self.estimator.second(self.now_us) {
            if second.is_another {
                self.watch.restart();
                self.is_unsure = true;
            }
            let Some(detection) = self.watch.push(second.block, self.is_on_trial) else { continue };
            match detection {
                Detection::Changed(quantity) => {
                    info!(algorithm = self.algorithm.name(), at_us = self.now_us, %quantity, "the path has changed");
                    self.changes += 1;
                }
                Detection::Returned => {
                    info!(
                        algorithm = self.algorithm.name(),
                        at_us = self.now_us,
                        "the path is again what it was"
                    );
                    // What was being learned since is for a path that has passed.
                    self.training = None;
                    self.ready = None;
                }
            }
            self.estimator.forget(self.now_us, detection == Detection::Changed(Quantity::Rtt));
            self.states.clear();
            self.is_unsure = true;
        }
    }

    /// Starts to train, if the path is not what was trained for.
    fn start_if_changed(&mut self) {
        let due = self.settled.and_then(|s| s.retry_at_us).is_some_and(|at_us| at_us <= self.now_us);
        let is_free = self.training.is_none() && self.offered.is_none();
        if !(self.is_unsure || due && is_free) || !self.watch.is_anchored() {
            return;
        }
        let Some(path) = self.estimator.path(self.now_us) else { return };
        self.is_unsure = false;
        let training = self.training.as_ref().map(|t| &t.path).or(self.ready.as_ref().map(|(p, ..)| p));
        let known = training.or(self.settled.as_ref().map(|s| &s.path));
        if known.is_none_or(|known| !covers(known, &path)) || due && is_free {
            self.begin(path);
        }
    }

    fn begin(&mut self, path: Path) {
        self.trainings += 1;
        // What was learned for another path is not wanted any more, also where it is being tried.
        self.ready = None;
        self.withdrawn = self.offered.take();
        self.is_on_trial = false;
        let seed = self.seed.wrapping_add(self.trainings << 32);
        let of = |p: &[i32; 3]| Preference::new(p[0] as f32, p[1] as f32, p[2] as f32);
        let preferences = self.preferences.iter().filter_map(of).collect();
        let policy = self.deployments.policy();
        // What was known came to nothing here.
        let is_new = self.settled.is_none_or(|s| s.failed_trainings == 0 || !covers(&s.path, &path));
        let others = if is_new { self.deployments.others() } else { Vec::new() };
        let known = Known { shipped: self.deployments.shipped().clone(), others, adjusted: is_new };
        match Training::new(self.schedule, self.algorithm.clone(), policy, known, path, preferences, seed) {
            Ok(mut training) => {
                self.meter.simulated(training.take_decisions());
                info!(
                    algorithm = self.algorithm.name(),
                    at_us = self.now_us,
                    ?path,
                    "training in a twin of the path"
                );
                self.training = Some(Box::new(training));
            }
            Err(error) => {
                warn!(algorithm = self.algorithm.name(), %error, ?path, "no twin of this path");
                self.training = None;
                self.settle(path, false);
            }
        }
    }

    /// One turn of a training.
    fn train(&mut self) {
        let Some(training) = &mut self.training else { return };
        let path = training.path;
        let turned = training.turn();
        self.meter.simulated(training.take_decisions());
        let trained = match turned {
            Ok(None) => return,
            Ok(Some(trained)) => trained,
            Err(error) => {
                warn!(algorithm = self.algorithm.name(), %error, "training in the twin is given up");
                self.training = None;
                return self.settle(path, false);
            }
        };
        self.training = None;
        let Trained { claim: Claim { converged, gain, .. }, updates, .. } = trained;
        info!(
            algorithm = self.algorithm.name(),
            at_us = self.now_us,
            updates,
            ?gain,
            converged,
            "training in the twin has ended"
        );
        self.ready = Some((path, trained));
        self.ready_at_us = self.now_us;
    }

    /// Ends the training for `path`: its policy is deployed, or the training failed and is tried again later.
    fn settle(&mut self, path: Path, learned: bool) {
        let before = self.settled.filter(|s| covers(&s.path, &path)).map_or(0, |s| s.failed_trainings);
        let failed_trainings = if learned { 0 } else { (before + 1).min(MAX_RETRIES) };
        let retry_at_us = (!learned).then(|| self.now_us + (RETRY_US << (failed_trainings - 1)));
        self.settled = Some(Settled { path, retry_at_us, failed_trainings });
    }

    fn offer(&mut self) -> Option<Candidate> {
        if self.states.len() < LEAST_STATES && self.now_us < self.ready_at_us + STATES_WAIT_US {
            return None;
        }
        let (path, Trained { policy, claim, states, .. }) = self.ready.take()?;
        // Until it is decided otherwise.
        self.settle(path, false);
        match candidate(&policy, self.deployments.snapshot(), &self.states.with(states), claim) {
            Ok(candidate) => {
                self.offered = Some(candidate.snapshot.hash());
                self.deployments.made(policy, candidate.snapshot.shared().clone());
                Some(candidate)
            }
            Err(error) => {
                info!(algorithm = self.algorithm.name(), %error, verdict = "unsafe", "not pushed");
                None
            }
        }
    }

    /// Keeps the preference that a flow's inputs end with.
    fn prefer(&mut self, inputs: &[i32]) {
        let Some(preference) = inputs.last_chunk::<3>() else { return };
        if self.preferences.back() == Some(preference) {
            return;
        }
        self.preferences.retain(|p| p != preference);
        if self.preferences.len() >= MAX_PREFERENCES {
            self.preferences.pop_front();
        }
        self.preferences.push_back(*preference);
    }
}

impl Learn for Twin {
    fn take(&mut self, from: LoopId, batch: &Batch) {
        self.estimator.take(from, batch);
        self.now_us = batch.measures.iter().map(|m| m.at_us).fold(self.now_us, u64::max);
        let takes_preference = self.deployments.policy().architecture().preference.is_some();
        for (_, row) in &batch.rows {
            self.states.push(&row.inputs);
            if takes_preference {
                self.prefer(&row.inputs);
            }
        }
        self.watch();
        self.start_if_changed();
    }

    fn on_decision(&mut self, decision: &Decision) {
        self.deployments.on_decision(decision);
        let Decision { at_us, verdict, comparison, .. } = decision;
        debug!(
            algorithm = self.algorithm.name(),
            at_us,
            verdict = verdict.name(),
            ?comparison,
            "the slot has decided"
        );
        if self.offered.is_none() || decision.snapshot != self.offered {
            return;
        }
        match decision.verdict {
            Verdict::Trial { .. } => {
                self.is_on_trial = true;
                return;
            }
            Verdict::Promoted | Verdict::Pushed => {
                self.promotions += 1;
                self.watch.restart_under_another_policy();
                // What flows decide by now may show more of the path.
                self.is_unsure = true;
                if let Some(path) = self.settled.map(|s| s.path) {
                    self.settle(path, true);
                }
            }
            _ => debug!(verdict = decision.verdict.name(), "the twin's policy is not taken"),
        }
        self.offered = None;
        if std::mem::take(&mut self.is_on_trial) {
            self.watch.restart();
        }
    }

    fn not_asked(&mut self) {
        self.offered = None;
    }

    fn withdrawn(&mut self) -> Option<Hash> {
        self.withdrawn.take()
    }

    fn step(&mut self, budget: Duration) -> Option<Candidate> {
        let start = self.meter.used();
        while self.training.is_some() && self.meter.used().saturating_sub(start) < budget {
            self.train();
        }
        self.offer()
    }

    fn used(&self) -> Duration {
        self.meter.used()
    }

    fn pressure(&self) -> Pressure {
        if self.training.is_some() { Pressure::Adapting } else { Pressure::Steady }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ccplane_alg::Row;
    use ccplane_contract::{FlowId, TransportStats};
    use ccplane_core::{DatapathId, Measure, Origin, Why};
    use ccplane_env::spec::{self, Steps};
    use ccplane_learn::{Architecture, Policy, Rng};
    use ccplane_quantize::{Options, Width, quantize};
    use ccplane_snapshot::Snapshot;

    const SMALL: Schedule = Schedule {
        episode_steps: 128,
        update_steps: 1024,
        evaluations: 4,
        evaluate_every: 1,
        still: 3,
        max_updates: 60,
        tries: 0,
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
    pub(crate) fn policy_and_snapshot(seed: u64) -> (Policy, Arc<Snapshot>) {
        let spec = spec::aurora(Steps::REAL).unwrap();
        let policy = Policy::initial(Architecture::aurora(), spec, -0.5, seed).unwrap();
        let options = Options { bits: Width::W16, ..Options::default() };
        let snapshot = quantize(policy.actor(), policy.spec(), &states(&policy, 200), &options).unwrap();
        (policy, Arc::new(snapshot))
    }

    pub(crate) fn decided(snapshot: Hash, verdict: Verdict) -> Decision {
        Decision {
            at_us: 0,
            datapath: Some(DatapathId(0)),
            slot: 0,
            algorithm: "aurora",
            snapshot: Some(snapshot),
            uid: None,
            origin: Origin::Shipped,
            comparison: None,
            verdict,
        }
    }

    fn twin() -> Twin {
        let (policy, snapshot) = policy_and_snapshot(1);
        let deployments = Deployments::new("aurora", policy, snapshot, None);
        let algorithm: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
        Twin { schedule: SMALL, ..Twin::new(algorithm, deployments, 1, Meter::Thread) }
    }

    /// Twelve seconds of a flow of this rate that fills a short queue, from `at_s` on.
    fn twelve_seconds(twin: &mut Twin, at_s: u64, mbit: u64) {
        for cells in states(twin.deployments.policy(), 60).into_iter().enumerate() {
            let (n, inputs) = (at_s * 5 + cells.0 as u64, cells.1);
            let transport = TransportStats {
                bytes_acked: n * mbit * 25_000,
                delivered: n * mbit * 17,
                srtt_us: if n % 5 == 0 { 60_000 } else { 42_000 },
                min_rtt_us: 40_000,
                ..TransportStats::default()
            };
            let measure = Measure { flow: FlowId(1), at_us: n * 200_000, transport };
            let row = Row {
                at_us: 0,
                slot: 0,
                snapshot: 1,
                inputs,
                action_q16: 0,
                reward: 0.0,
                follows: true,
                target_q16: None,
            };
            let batch = Batch {
                datapath: DatapathId(0),
                algorithm: "aurora",
                slot: 0,
                rows: vec![(FlowId(1), row); 32],
                dropped: 0,
                measures: vec![measure],
            };
            twin.take(LoopId(0), &batch);
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
        twelve_seconds(&mut twin, 0, 10);
        let candidate = learn(&mut twin).expect("a candidate");
        let evidence = *candidate.origin.evidence().unwrap();
        assert!(evidence.converged && evidence.gain.unwrap() > 0.0 && evidence.safe, "{evidence:?}");
        assert!(evidence.fidelity_mean > 0.05, "{evidence:?}");
        let hash = candidate.snapshot.hash();
        assert_eq!(candidate.snapshot.shape(), twin.deployments.snapshot().shape());
        twelve_seconds(&mut twin, 12, 10);
        assert_eq!(twin.pressure(), Pressure::Steady, "it waits for a verdict");
        twin.on_decision(&decided(hash, Verdict::Promoted));
        assert_eq!(twin.deployments.snapshot().hash(), hash);
        twelve_seconds(&mut twin, 24, 10);
        assert_eq!(twin.pressure(), Pressure::Steady, "the path is as it was");
        twelve_seconds(&mut twin, 36, 40);
        assert_eq!(twin.pressure(), Pressure::Adapting);
        assert_eq!(twin.withdrawn(), None, "nothing is on trial");
        let next = learn(&mut twin).expect("a candidate");
        twin.on_decision(&decided(next.snapshot.hash(), Verdict::RolledBack(Why::Worse)));
        assert_eq!(twin.deployments.snapshot().hash(), hash, "what was rolled back is forgotten");
        twelve_seconds(&mut twin, 48, 40);
        assert_eq!(twin.pressure(), Pressure::Steady, "not at once again");
        twelve_seconds(&mut twin, 48 + RETRY_US / 1_000_000, 40);
        assert_eq!(twin.pressure(), Pressure::Adapting, "but some time later");
    }

    #[test]
    fn samples_of_before_and_after_a_change_are_not_mixed() {
        let mut twin = twin();
        twelve_seconds(&mut twin, 0, 10);
        let known = twin.training.as_ref().unwrap().path;
        assert!((known.bytes_per_s / 1_250_000.0 - 1.0).abs() < 0.05, "{known:?}");
        twelve_seconds(&mut twin, 12, 80);
        let path = twin.training.as_ref().unwrap().path;
        assert!((path.bytes_per_s / 10_000_000.0 - 1.0).abs() < 0.05, "{path:?}");
    }

    #[test]
    fn what_was_learned_for_another_path_is_withdrawn() {
        let mut twin = twin();
        twelve_seconds(&mut twin, 0, 10);
        let candidate = learn(&mut twin).expect("a candidate");
        twin.on_decision(&decided(
            candidate.snapshot.hash(),
            Verdict::Trial { share: 1, trying: 1, flows: 1 },
        ));
        // That it delivers more may be the candidate's doing.
        twelve_seconds(&mut twin, 12, 40);
        assert_eq!(twin.withdrawn(), None);
        (24..60).step_by(12).for_each(|at_s| twelve_seconds(&mut twin, at_s, 2));
        assert_eq!((twin.withdrawn(), twin.withdrawn()), (Some(candidate.snapshot.hash()), None));
        assert_eq!(twin.pressure(), Pressure::Adapting);
    }
}

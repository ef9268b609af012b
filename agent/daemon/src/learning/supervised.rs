//! Supervised learning beside live flows: a network is fitted to what turned out to be right, such as the size of a flow that ended.
//!
//! Rows hold what a decision saw and its target. Most are examples to learn from; each eighth is kept apart, and says how far the fitted
//! network and the deployed one are off. What is fitted goes on from the fit before, so that it converges. Whether it is pushed,
//! and what becomes of it, is for the rules of deployment, as with all that is learned.

use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::deployed::Deployments;
use super::learner::{Learn, Meter};
use super::mailbox::LoopId;
use super::rows::{ONE_Q16, normalised};
use ccplane_core::{Batch, Candidate, Decision, Verdict};
use ccplane_learn::{ActorCritic, ImitateConfig, LearnError, Policy, Rng, Targets, regress};
use ccplane_snapshot::Hash;
use std::collections::VecDeque;
use std::time::Duration;
use tracing::{debug, warn};

/// Examples that are kept to learn from, and those kept apart.
const MAX_EXAMPLES: usize = 8192;
const MAX_VALIDATION: usize = 1024;
/// One example of so many is kept apart.
const VALIDATION_EVERY: u64 = 8;
/// New rows before each fit: fewer change little, and a fit takes a tenth of a second of a core.
const ROWS_PER_FIT: u64 = 512;
/// A fit has converged whose error differs from that of the fit before by at most this share of the deployed network's error.
const CONVERGED: f64 = 0.05;
/// The deployed error counts as an octave at least: of a network that is good already, fits differ by chance.
const LEAST_ERROR: f64 = 1.0;
const FIT: ImitateConfig =
    ImitateConfig { epochs: 8, minibatch: 64, learning_rate: 3e-3, weight_decay: 1e-4 };
/// Examples whose fit takes as long as one simulated decision does: each is some 27,000 multiplications.
const EXAMPLES_PER_DECISION: u64 = 2;
/// The stream of random numbers that the order of examples is drawn from.
const ORDER: u64 = 5;

/// A decision's inputs, and the action that would have been right.
struct Example {
    inputs: Vec<i32>,
    target: f32,
}

/// Fits its algorithm's policy to the targets of rows.
pub(super) struct Supervised {
    name: &'static str,
    meter: Meter,
    deployments: Deployments,
    rng: Rng,
    examples: VecDeque<Example>,
    validation: VecDeque<Example>,
    states: States,
    /// Rows with a target so far, and how many there were at the last fit.
    taken: u64,
    fitted_at: u64,
    /// The outcome of the last fit, with its error; `None` where the next one goes on from what is deployed.
    fitted: Option<(Policy, f64)>,
    /// The policy that waits for a verdict.
    offered: Option<Hash>,
}

impl Supervised {
    pub(super) fn new(name: &'static str, deployments: Deployments, seed: u64, meter: Meter) -> Supervised {
        Supervised {
            name,
            meter,
            deployments,
            rng: Rng::new(seed, &[ORDER]),
            examples: VecDeque::new(),
            validation: VecDeque::new(),
            states: States::default(),
            taken: 0,
            fitted_at: 0,
            fitted: None,
            offered: None,
        }
    }

    fn keep(&mut self, example: Example) {
        self.taken += 1;
        let (kept, most) = if self.taken.is_multiple_of(VALIDATION_EVERY) {
            (&mut self.validation, MAX_VALIDATION)
        } else {
            (&mut self.examples, MAX_EXAMPLES)
        };
        if kept.len() >= most {
            kept.pop_front();
        }
        kept.push_back(example);
    }

    fn fit(&mut self) -> Result<Option<Candidate>, LearnError> {
        let deployed = self.deployments.policy();
        let from = self.fitted.as_ref().map_or(deployed, |(policy, _)| policy);
        let mut targets = Targets::default();
        for example in &self.examples {
            targets.observations.extend(normalised(deployed, &example.inputs));
            targets.targets.push(example.target);
        }
        let rows = targets.targets.len() as u64;
        let mut policy = regress(from, &targets, &FIT, &mut self.rng)?;
        policy.provenance.steps = policy.provenance.steps.saturating_add(rows * FIT.epochs as u64);
        self.meter.simulated(rows.div_ceil(EXAMPLES_PER_DECISION));
        let (error, before) = (error(&policy, &self.validation), error(deployed, &self.validation));
        let last = self.fitted.as_ref().map(|(_, error)| *error);
        let stability = last.map_or(1.0, |last| (error - last).abs() / before.max(LEAST_ERROR));
        debug!(algorithm = self.name, rows, error, deployed = before, stability, "fitted");
        self.fitted = Some((policy.clone(), error));
        if stability > CONVERGED {
            return Ok(None);
        }
        let claim = Claim { converged: true, stability, gain: Some(before - error), steers: false };
        let made = candidate(&policy, self.deployments.snapshot(), &self.states, claim);
        let candidate = self.deployments.offered(self.name, policy, made);
        self.offered = candidate.as_ref().map(|candidate| candidate.snapshot.hash()).or(self.offered);
        Ok(candidate)
    }
}

/// Root of the mean squared error of a policy's actions.
fn error(policy: &Policy, examples: &VecDeque<Example>) -> f64 {
    let mut network = ActorCritic::new(policy);
    let squares = examples.iter().map(|example| {
        let action = network.mean(&normalised(policy, &example.inputs));
        f64::from(action - example.target).powi(2)
    });
    (squares.sum::<f64>() / examples.len().max(1) as f64).sqrt()
}

impl Learn for Supervised {
    fn take(&mut self, _: LoopId, batch: &Batch) {
        let inputs = self.deployments.policy().architecture().inputs;
        for (_, row) in &batch.rows {
            let Some(target_q16) = row.target_q16.filter(|_| row.inputs.len() == inputs) else { continue };
            self.states.push(&row.inputs);
            self.keep(Example { inputs: row.inputs.clone(), target: target_q16 as f32 / ONE_Q16 });
        }
    }

    fn on_decision(&mut self, decision: &Decision) {
        self.deployments.on_decision(decision);
        if self.offered.is_none() || decision.snapshot != self.offered {
            return;
        }
        match decision.verdict {
            Verdict::Trial { .. } => return,
            // What flows are not better by is not gone on from.
            Verdict::RolledBack(_) | Verdict::Unsafe => self.fitted = None,
            _ => {}
        }
        self.offered = None;
    }

    fn not_asked(&mut self) {
        self.offered = None;
    }

    fn step(&mut self, _budget: Duration) -> Option<Candidate> {
        let is_due = self.taken >= self.fitted_at + ROWS_PER_FIT && self.states.len() >= LEAST_STATES;
        if !is_due || self.offered.is_some() {
            return None;
        }
        self.fitted_at = self.taken;
        self.fit().unwrap_or_else(|error| {
            warn!(algorithm = self.name, %error, "learning starts over from what is deployed");
            self.fitted = None;
            None
        })
    }

    fn used(&self) -> Duration {
        self.meter.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::decided;
    use ccplane_alg::{Algorithm, Row};
    use ccplane_algs::{PATH_FEATURES, PATH_INPUTS, Path, SIZE_INPUTS, Size, log2_q16};
    use ccplane_contract::FlowId;
    use ccplane_core::{DatapathId, PushRules, Why};
    use ccplane_snapshot::Snapshot;
    use std::sync::Arc;

    const LOOP: LoopId = LoopId(2);

    fn learner() -> Supervised {
        learner_of(&Size::default())
    }

    fn learner_of(algorithm: &dyn Algorithm) -> Supervised {
        let (name, source) = (algorithm.name(), algorithm.policies().remove(0));
        let policy = Policy::from_bytes(&source.policy).unwrap();
        let snapshot = Arc::new(Snapshot::built_in(source.snapshot).unwrap());
        Supervised::new(name, Deployments::new(name, policy, snapshot, None), 1, Meter::NOMINAL)
    }

    fn row(slot: u8, inputs: Vec<i32>, target_q16: i32) -> Row {
        Row {
            at_us: 0,
            slot,
            snapshot: 1,
            inputs,
            action_q16: 0,
            reward: 0.0,
            follows: true,
            target_q16: Some(target_q16),
        }
    }

    /// A batch of flows whose size is the first input times the size that the shipped network expects.
    fn batch(rng: &mut Rng, rows: usize, most_octaves: f64) -> Batch {
        let rows = (0..rows).map(|_| {
            let share = rng.uniform();
            let mut inputs = vec![0; SIZE_INPUTS];
            inputs[0] = (share * 65_536.0) as i32;
            let size_bytes = (2f64.powf(10.0 + share * most_octaves)) as u64;
            (FlowId(1), row(4, inputs, log2_q16(size_bytes) - (16 << 16)))
        });
        let (datapath, measures) = (DatapathId(0), Vec::new());
        Batch { datapath, algorithm: "size", slot: 4, rows: rows.collect(), dropped: 0, measures }
    }

    /// Paths on which flows took longer the longer the round trip was, and the more was marked; nothing else matters.
    fn batch_of_paths(rng: &mut Rng, rows: usize) -> Batch {
        let at = |name: &str| PATH_FEATURES.iter().position(|feature| *feature == name).unwrap();
        let (rtt, marked) = (at("rtt_long"), at("marked"));
        let rows = (0..rows).map(|_| {
            let inputs: Vec<i32> = (0..PATH_INPUTS).map(|_| (rng.uniform() * 65_536.0) as i32).collect();
            let surplus_q16 = 4 * inputs[rtt] + 2 * inputs[marked] - (3 << 16);
            (FlowId(1), row(5, inputs, surplus_q16))
        });
        let (datapath, measures) = (DatapathId(0), Vec::new());
        Batch { datapath, algorithm: "path", slot: 5, rows: rows.collect(), dropped: 0, measures }
    }

    /// Feeds rows until something is offered.
    fn until_offered(learner: &mut Supervised, rng: &mut Rng, most_octaves: f64) -> Candidate {
        until_offered_of(learner, || batch(rng, ROWS_PER_FIT as usize, most_octaves))
    }

    fn until_offered_of(learner: &mut Supervised, mut batch: impl FnMut() -> Batch) -> Candidate {
        let offer = (0..100).find_map(|_| {
            learner.take(LOOP, &batch());
            learner.step(Duration::ZERO)
        });
        offer.expect("a candidate")
    }

    #[test]
    fn what_flows_turn_out_to_be_is_learned_and_offered_once_it_has_converged() {
        let (mut learner, mut rng) = (learner(), Rng::new(1, &[]));
        let candidate = until_offered(&mut learner, &mut rng, 12.0);
        let evidence = *candidate.origin.evidence().unwrap();
        assert!(evidence.converged && evidence.safe && evidence.gain.unwrap() > 0.5, "{evidence:?}");
        assert!(PushRules::default().is_necessary(&evidence), "{evidence:?}");
        let (_, error) = learner.fitted.clone().unwrap();
        assert!(error < 0.75, "{error} octaves off");
        learner.take(LOOP, &batch(&mut rng, ROWS_PER_FIT as usize, 12.0));
        assert!(learner.step(Duration::ZERO).is_none(), "one trial at a time");

        let hash = candidate.snapshot.hash();
        learner.on_decision(&decided(hash, Verdict::Promoted));
        assert_eq!(learner.deployments.snapshot().hash(), hash);
        // It knows these flows now: another fit brings next to nothing.
        let again = *until_offered(&mut learner, &mut rng, 12.0).origin.evidence().unwrap();
        assert!(!PushRules::default().is_necessary(&again), "{again:?}");
    }

    #[test]
    fn what_paths_turn_out_to_be_worth_is_learned_as_well() {
        let (mut learner, mut rng) = (learner_of(&Path::default()), Rng::new(2, &[]));
        let mut batches = || batch_of_paths(&mut rng, ROWS_PER_FIT as usize);
        let candidate = until_offered_of(&mut learner, &mut batches);
        let evidence = *candidate.origin.evidence().unwrap();
        assert!(evidence.converged && evidence.gain.unwrap() > 0.3, "{evidence:?}");
        let (policy, error) = learner.fitted.clone().unwrap();
        assert!(error < 0.75, "{error} octaves off");
        // A path with a longer round trip scores worse, whatever else is measured there.
        let mut network = ActorCritic::new(&policy);
        let mut score = |rtt_long: i32| {
            let mut inputs = [1 << 15; PATH_INPUTS];
            inputs[PATH_FEATURES.iter().position(|feature| *feature == "rtt_long").unwrap()] = rtt_long;
            network.mean(&normalised(&policy, &inputs))
        };
        assert!(score(60_000) > score(5_000) + 1.0, "{} {}", score(60_000), score(5_000));
        // Flows that end like that once more change nothing.
        learner.on_decision(&decided(candidate.snapshot.hash(), Verdict::Promoted));
        let again = *until_offered_of(&mut learner, &mut batches).origin.evidence().unwrap();
        assert!(again.gain.unwrap() < evidence.gain.unwrap() / 2.0, "{again:?} after {evidence:?}");
    }

    #[test]
    fn what_is_rolled_back_is_not_gone_on_from() {
        let (mut learner, mut rng) = (learner(), Rng::new(1, &[]));
        let shipped = learner.deployments.snapshot().hash();
        let hash = until_offered(&mut learner, &mut rng, 12.0).snapshot.hash();
        learner.on_decision(&decided(hash, Verdict::Trial { share: u16::MAX, trying: 0, flows: 0 }));
        assert!(learner.offered.is_some(), "it runs");
        learner.on_decision(&decided(hash, Verdict::RolledBack(Why::Worse)));
        assert!(learner.fitted.is_none() && learner.offered.is_none());
        assert_eq!(learner.deployments.snapshot().hash(), shipped);
    }

    #[test]
    fn rows_without_a_target_or_of_another_network_teach_nothing() {
        let mut learner = learner();
        let mut rows = batch(&mut Rng::new(1, &[]), 3, 1.0);
        rows.rows[0].1.target_q16 = None;
        rows.rows[1].1.inputs.pop();
        learner.take(LOOP, &rows);
        assert_eq!((learner.taken, learner.states.len()), (1, 1));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut learner, mut rng) = (learner(), Rng::new(1, &[]));
        learner.take(LOOP, &batch(&mut rng, 2 * MAX_EXAMPLES + 8 * MAX_VALIDATION, 1.0));
        assert_eq!((learner.examples.len(), learner.validation.len()), (MAX_EXAMPLES, MAX_VALIDATION));
    }
}

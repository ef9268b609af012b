//! Learning from live flows alone: PPO on what they did, exploration noise included; and trials of policies beside the deployed one.
//!
//! One flow makes some twenty rows a second, of which PPO needs thousands for a step. A trial compares two whole
//! policies by some hundred rows and needs no noise. So flows meanwhile try the policies in reserve, then those that
//! [`super::adjust`] draws near the deployed one.

use super::adjust::{LIVE_STARTS, Search};
use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::deployed::Deployments;
use super::learner::{Learn, Meter};
use super::mailbox::LoopId;
use super::rows::FlowNumbers;
use ccplane_core::{Batch, Candidate, Decision, Verdict};
use ccplane_learn::online::{OnlineConfig, OnlineLearner, OnlineRow, OnlineUpdate};
use ccplane_learn::{LearnError, Policy, Rng};
use ccplane_snapshot::Hash;
use std::collections::BTreeSet;
use std::time::Duration;
use tracing::{debug, warn};

/// The stream of random numbers that policies to be tried are drawn from.
const PLAYED: u64 = 4;
/// Updates between two candidates: a policy that moves little is offered seldom.
const UPDATES_PER_OFFER: u64 = 8;

/// Policies that flows try in a row without taking one; then there is no further trial until they decide by another policy.
const MOST_FAILED: u32 = 24;

/// Policies near the deployed one, which live flows try one after the other.
struct Play {
    /// The snapshot that flows decide by.
    deployed: Hash,
    /// Known policies that were not tried yet.
    known: Vec<Policy>,
    search: Option<Search>,
    /// Trials in a row after which flows kept what they had.
    failed: u32,
    /// Names the random stream.
    seed: u64,
}

impl Play {
    fn new(deployments: &Deployments, seed: u64) -> Play {
        let (deployed, known) = (deployments.snapshot().hash(), deployments.others());
        Play { deployed, known, search: None, failed: 0, seed }
    }

    /// The next policy to be tried.
    fn next(&mut self, deployments: &Deployments) -> Result<Option<Policy>, LearnError> {
        if self.deployed != deployments.snapshot().hash() {
            *self = Play::new(deployments, self.seed.wrapping_add(1));
        }
        // What is better for one preference may be worse for others.
        let takes_preference = deployments.policy().architecture().preference.is_some();
        if self.failed >= MOST_FAILED || takes_preference {
            return Ok(None);
        }
        if let Some(policy) = self.known.pop() {
            return Ok(Some(policy));
        }
        let beside =
            || Search::beside(deployments.policy().clone(), &LIVE_STARTS, Rng::new(self.seed, &[PLAYED]));
        self.search.get_or_insert_with(beside).next().map(Some)
    }

    /// Hears whether flows decide by the policy that they tried last.
    fn on_verdict(&mut self, taken: Option<Hash>) {
        self.failed = if taken.is_some() { 0 } else { self.failed + 1 };
        self.deployed = taken.unwrap_or(self.deployed);
        if let Some(search) = &mut self.search {
            search.on_verdict(taken.is_some());
        }
    }
}

/// Learns from live flows.
pub(crate) struct Live {
    name: &'static str,
    online: OnlineLearner,
    noise: f32,
    meter: Meter,
    deployments: Deployments,
    /// The policy that waits for a verdict, and whether flows try it because it lies near.
    offered: Option<Hash>,
    is_played: bool,
    play: Play,
    /// Offers that flows decided by, or do.
    pub(super) promotions: u64,
    flows: FlowNumbers,
    states: States,
    updates: u64,
    offered_at: u64,
}

impl Live {
    /// # Errors
    /// Settings that learning does not take.
    pub(crate) fn new(
        name: &'static str,
        deployments: Deployments,
        noise: f32,
        seed: u64,
        meter: Meter,
    ) -> Result<Live, LearnError> {
        let play = Play::new(&deployments, seed);
        let online =
            OnlineLearner::new(deployments.policy(), OnlineConfig { seed, ..OnlineConfig::default() })?;
        Ok(Live {
            name,
            online,
            noise,
            meter,
            deployments,
            offered: None,
            is_played: false,
            play,
            promotions: 0,
            flows: FlowNumbers::default(),
            states: States::default(),
            updates: 0,
            offered_at: 0,
        })
    }

    /// Ends the trajectories that `batch` does not go on with: those of flows that have ended, which are not sampled any
    /// more, and where rows were dropped all of its datapath's.
    fn interrupt(&mut self, from: LoopId, batch: &Batch) {
        let sampled: BTreeSet<u64> = batch.measures.iter().map(|m| m.flow.0).collect();
        let Live { flows, online, .. } = self;
        flows.retain(|(loop_id, datapath, flow), number| {
            let here = (*loop_id, *datapath) == (from, batch.datapath);
            let ended = here && !sampled.is_empty() && !sampled.contains(flow);
            if ended || (here && batch.dropped > 0) {
                online.interrupt(number);
            }
            !ended
        });
    }

    /// Starts again from the deployed policy.
    fn restart(&mut self) {
        if let Err(error) = self.online.restart(self.deployments.policy()) {
            warn!(algorithm = self.name, %error, "the learner cannot go on from what is deployed");
        }
    }

    fn offer(&mut self) -> Option<Candidate> {
        if self.offered.is_some() || self.states.len() < LEAST_STATES {
            return None;
        }
        let stability = self.online.stability();
        self.is_played = !stability.converged || self.updates < self.offered_at + UPDATES_PER_OFFER;
        let (policy, stability) = if self.is_played {
            match self.play.next(&self.deployments) {
                Ok(policy) => (policy?, 0.0),
                Err(error) => {
                    warn!(algorithm = self.name, %error, "no policy beside what is deployed");
                    self.play.on_verdict(None);
                    return None;
                }
            }
        } else {
            self.offered_at = self.updates;
            (self.online.policy(), stability.slope)
        };
        self.propose(policy, stability)
    }

    fn propose(&mut self, policy: Policy, stability: f64) -> Option<Candidate> {
        let claim = Claim { converged: true, stability, gain: None, steers: true };
        let widened = self.is_played.then(|| self.states.widened(policy.spec().inputs()));
        let states = widened.as_ref().unwrap_or(&self.states);
        let made = candidate(&policy, self.deployments.snapshot(), states, claim);
        let candidate = self.deployments.offered(self.name, policy, made);
        match &candidate {
            Some(candidate) => self.offered = Some(candidate.snapshot.hash()),
            None if self.is_played => self.play.on_verdict(None),
            None => {}
        }
        candidate
    }
}

impl Learn for Live {
    fn take(&mut self, from: LoopId, batch: &Batch) {
        self.interrupt(from, batch);
        for (flow, row) in &batch.rows {
            self.states.push(&row.inputs);
            let (flow, _) = self.flows.of((from, batch.datapath, flow.0));
            if !row.follows {
                self.online.interrupt(flow);
            }
            self.online.take(OnlineRow {
                flow,
                cells: &row.inputs,
                action_q16: row.action_q16,
                reward: row.reward,
                uid: row.snapshot,
            });
        }
    }

    fn on_decision(&mut self, decision: &Decision) {
        self.deployments.on_decision(decision);
        let Decision { at_us, verdict, comparison, origin, .. } = decision;
        let evidence = origin.evidence();
        debug!(
            algorithm = self.name,
            at_us,
            verdict = verdict.name(),
            ?comparison,
            ?evidence,
            "the slot has decided"
        );
        // Of what was pushed by hand it is not known what it was made from: its rows are not learned from.
        if let (Some(uid), Verdict::Trial { .. } | Verdict::Pushed | Verdict::TakenOver) =
            (decision.uid, &decision.verdict)
            && let Some(policy) = decision.snapshot.and_then(|hash| self.deployments.policy_of(hash))
        {
            self.online.deployed(uid.0, policy, self.noise);
        }
        if self.offered.is_none() || decision.snapshot != self.offered {
            return;
        }
        match decision.verdict {
            Verdict::Trial { .. } => return,
            Verdict::Promoted | Verdict::Pushed => {
                self.promotions += 1;
                if self.is_played {
                    self.play.on_verdict(self.offered);
                    self.restart();
                } else {
                    self.online.unsettle();
                }
            }
            // What could not be tried is neither good nor bad.
            Verdict::Busy if self.is_played => {}
            _ if self.is_played => self.play.on_verdict(None),
            Verdict::RolledBack(_) | Verdict::Unsafe => self.restart(),
            _ => {}
        }
        self.offered = None;
    }

    fn not_asked(&mut self) {
        self.offered = None;
    }

    fn step(&mut self, _budget: Duration) -> Option<Candidate> {
        match self.online.learn() {
            Ok(None) => {}
            Ok(Some(OnlineUpdate { update, rows, mean_reward, shift, .. })) => {
                self.updates = update;
                self.meter.simulated(rows as u64);
                debug!(algorithm = self.name, update, rows, mean_reward, shift, "learned from live rows");
            }
            Err(error) => {
                warn!(algorithm = self.name, %error, "learning starts over from what is deployed");
                self.restart();
                return None;
            }
        }
        self.offer()
    }

    fn used(&self) -> Duration {
        self.meter.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::{decided, policy_and_snapshot};
    use ccplane_alg::Row;
    use ccplane_contract::{FlowId, SnapshotUid, TransportStats};
    use ccplane_core::{DatapathId, Measure, Why};
    use ccplane_learn::{ActorCritic, Policy, Rng};

    const NOISE: f32 = 0.4;
    const LOOP: LoopId = LoopId(0);
    const DEPLOYED: u32 = 7;

    /// A learner whose flows decide by the policy that it returns.
    fn live() -> (Live, Policy) {
        let (policy, snapshot) = policy_and_snapshot(1);
        let hash = snapshot.hash();
        let deployments = Deployments::new("aurora", policy.clone(), snapshot, None);
        let mut live = Live::new("aurora", deployments, NOISE, 1, Meter::Thread).unwrap();
        live.play.failed = MOST_FAILED;
        live.on_decision(&Decision { uid: Some(SnapshotUid(DEPLOYED)), ..decided(hash, Verdict::Pushed) });
        (live, policy)
    }

    fn batch(rows: Vec<(FlowId, Row)>) -> Batch {
        let (datapath, measures) = (DatapathId(0), Vec::new());
        Batch { datapath, algorithm: "aurora", slot: 0, rows, dropped: 0, measures }
    }

    fn row(snapshot: u32) -> Row {
        let (inputs, follows) = (vec![0; 30], true);
        Row { at_us: 0, slot: 0, snapshot, inputs, action_q16: 0, reward: 1.0, follows, target_q16: None }
    }

    /// Takes rows of flow 1; how many then wait to be learned from.
    fn waiting(live: &mut Live, rows: impl IntoIterator<Item = Row>) -> usize {
        live.take(LOOP, &batch(rows.into_iter().map(|row| (FlowId(1), row)).collect()));
        live.online.waiting()
    }

    /// Eight flows that act by `policy` for a while. Nothing that they do makes a difference.
    fn act(live: &mut Live, policy: &Policy, rng: &mut Rng) {
        let mut networks = ActorCritic::new(policy);
        let mut observation = vec![0.0; policy.architecture().inputs];
        for _ in 0..160 {
            let mut decide = |flow| {
                let cell = |f: &ccplane_snapshot::Feature| {
                    f.lo + (rng.uniform() * (f64::from(f.hi) - f64::from(f.lo))) as i32
                };
                let inputs: Vec<i32> = policy.spec().inputs().iter().map(cell).collect();
                policy.spec().normalise(&inputs, &mut observation);
                let action = networks.mean(&observation) + NOISE * rng.normal() as f32;
                let (action_q16, reward) = ((action * 65536.0) as i32, rng.normal() as f32);
                (FlowId(flow), Row { inputs, action_q16, reward, ..row(DEPLOYED) })
            };
            live.take(LOOP, &batch((0..8).map(&mut decide).collect()));
        }
    }

    #[test]
    fn rows_of_known_deployments_are_learned_from() {
        let (mut live, _) = live();
        assert_eq!(waiting(&mut live, [row(DEPLOYED), row(DEPLOYED), row(DEPLOYED)]), 2);
        assert_eq!(waiting(&mut live, [row(8), row(DEPLOYED)]), 2, "another's reward closes no row");
        let counts = live.online.counts();
        assert_eq!((counts.taken, counts.unknown_deployment), (4, 1));
        // Of what is pushed by hand it is not known what it was made from.
        live.on_decision(&Decision { uid: Some(SnapshotUid(8)), ..decided(Hash([9; 32]), Verdict::Pushed) });
        waiting(&mut live, [row(8)]);
        assert_eq!(live.online.counts().unknown_deployment, 2);
    }

    #[test]
    fn gaps_interrupt_what_they_concern() {
        let (mut live, _) = live();
        let gap = Row { follows: false, ..row(DEPLOYED) };
        assert_eq!(waiting(&mut live, [row(DEPLOYED), row(DEPLOYED), gap, row(DEPLOYED)]), 2);
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 3, "it goes on from batch to batch");
        let dropped = |datapath| Batch {
            datapath: DatapathId(datapath),
            dropped: 1,
            ..batch(vec![(FlowId(1), row(DEPLOYED))])
        };
        live.take(LOOP, &dropped(1));
        live.take(LoopId(1), &dropped(0));
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 4, "rows of others were dropped");
        live.take(LOOP, &dropped(0));
        assert_eq!(live.online.waiting(), 4, "its own were");
        let of = |flow| Measure { flow: FlowId(flow), at_us: 0, transport: TransportStats::default() };
        live.take(LOOP, &Batch { measures: vec![of(1)], ..batch(Vec::new()) });
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 5, "it still runs");
        live.take(LOOP, &Batch { measures: vec![of(2)], ..batch(Vec::new()) });
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 5, "another flow of its name");
    }

    #[test]
    fn flows_try_policies_near_until_many_have_failed() {
        let (mut live, deployed) = live();
        live.play.failed = 0;
        act(&mut live, &deployed, &mut Rng::new(3, &[]));
        let trials = |live: &mut Live, verdict: &Verdict| {
            let tried = (0..2 * MOST_FAILED).map_while(|_| {
                let hash = live.step(Duration::ZERO)?.snapshot.hash();
                assert!(live.step(Duration::ZERO).is_none(), "one trial at a time");
                live.on_decision(&decided(hash, verdict.clone()));
                Some(hash)
            });
            tried.collect::<BTreeSet<Hash>>().len()
        };
        assert_eq!(trials(&mut live, &Verdict::RolledBack(Why::Worse)), MOST_FAILED as usize);
        assert_eq!(live.deployments.policy().actor(), deployed.actor());
        live.play.failed = MOST_FAILED - 1;
        assert_eq!(trials(&mut live, &Verdict::Promoted), 2 * MOST_FAILED as usize, "each is a beginning");
        assert_ne!(live.deployments.policy().actor(), deployed.actor());
        assert_eq!(live.online.policy().actor(), live.deployments.policy().actor(), "it goes on from there");
    }

    #[test]
    fn a_rollback_goes_back_to_what_is_deployed() {
        let (mut live, deployed) = live();
        let mut rng = Rng::new(3, &[]);
        let mut until_offered = |live: &mut Live| {
            let offer = (0..100).find_map(|_| {
                act(live, &deployed, &mut rng);
                live.step(Duration::ZERO)
            });
            offer.expect("a candidate")
        };
        let candidate = until_offered(&mut live);
        assert!(candidate.origin.evidence().unwrap().converged && live.updates >= UPDATES_PER_OFFER);
        let hash = candidate.snapshot.hash();
        let learned = live.online.policy();
        assert_ne!(learned.actor(), deployed.actor());
        // Its canaries' rows are understood.
        let flows = Verdict::Trial { share: 1 << 14, trying: 1, flows: 4 };
        live.on_decision(&Decision { uid: Some(SnapshotUid(8)), ..decided(hash, flows) });
        waiting(&mut live, [row(8)]);
        assert_eq!(live.online.counts().unknown_deployment, 0);
        live.on_decision(&decided(hash, Verdict::RolledBack(Why::Worse)));
        assert_eq!(live.online.policy().actor(), deployed.actor());
        assert_eq!((live.online.waiting(), live.offered), (0, None));

        let next = until_offered(&mut live);
        let learned = live.online.policy();
        live.on_decision(&decided(next.snapshot.hash(), Verdict::Promoted));
        assert_eq!(live.deployments.snapshot().hash(), next.snapshot.hash());
        assert_eq!(live.online.policy().actor(), learned.actor(), "it goes on from there");
        assert!(!live.online.stability().converged, "and what it brings is to be seen");
    }
}

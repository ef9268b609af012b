//! Learning from the rows of live flows alone: PPO on what they did, exploration noise included.

use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::deployed::Deployments;
use super::learner::{Learn, Meter, Pressure};
use super::mailbox::LoopId;
use ccplane_core::{Batch, Candidate, DatapathId, Decision, Verdict};
use ccplane_learn::LearnError;
use ccplane_learn::online::{OnlineConfig, OnlineLearner, OnlineRow, OnlineUpdate};
use ccplane_snapshot::Hash;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tracing::{debug, info, warn};

/// Flows that are told apart; of more, all are forgotten.
const MAX_FLOWS: usize = 1 << 16;
/// Updates between two candidates: a policy that moves little is offered seldom.
const UPDATES_PER_OFFER: u64 = 8;

/// Learns from live flows.
pub(crate) struct Live {
    name: &'static str,
    online: OnlineLearner,
    noise: f32,
    meter: Meter,
    deployments: Deployments,
    /// What waits for a verdict.
    offered: Option<Hash>,
    flows: BTreeMap<(LoopId, DatapathId, u64), u64>,
    states: States,
    next_flow: u64,
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
        let online =
            OnlineLearner::new(deployments.policy(), OnlineConfig { seed, ..OnlineConfig::default() })?;
        Ok(Live {
            name,
            online,
            noise,
            meter,
            deployments,
            offered: None,
            flows: BTreeMap::new(),
            states: States::default(),
            next_flow: 0,
            updates: 0,
            offered_at: 0,
        })
    }

    /// One number for a flow of whatever loop and datapath.
    fn flow(&mut self, name: (LoopId, DatapathId, u64)) -> u64 {
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&name) {
            self.flows.clear();
        }
        *self.flows.entry(name).or_insert_with(|| {
            self.next_flow += 1;
            self.next_flow
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
                online.interrupt(*number);
            }
            !ended
        });
    }

    /// Goes on from what is deployed.
    fn restart(&mut self) {
        if let Err(error) = self.online.restart(self.deployments.policy()) {
            warn!(algorithm = self.name, %error, "the learner cannot go on from what is deployed");
        }
    }

    fn offer(&mut self) -> Option<Candidate> {
        let stability = self.online.stability();
        if self.offered.is_some()
            || !stability.converged
            || self.states.len() < LEAST_STATES
            || self.updates < self.offered_at + UPDATES_PER_OFFER
        {
            return None;
        }
        self.offered_at = self.updates;
        let policy = self.online.policy();
        let claim = Claim { converged: stability.converged, stability: stability.slope, gain: None };
        match candidate(&policy, self.deployments.snapshot(), &self.states, claim) {
            Ok(candidate) => {
                self.offered = Some(candidate.snapshot.hash());
                self.deployments.made(policy, candidate.snapshot.shared().clone());
                Some(candidate)
            }
            Err(error) => {
                info!(algorithm = self.name, %error, verdict = "unsafe", "not pushed");
                None
            }
        }
    }
}

impl Learn for Live {
    fn take(&mut self, from: LoopId, batch: &Batch) {
        self.interrupt(from, batch);
        for (flow, row) in &batch.rows {
            self.states.push(&row.inputs);
            let flow = self.flow((from, batch.datapath, flow.0));
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

    fn hear(&mut self, decision: &Decision) {
        self.deployments.hear(decision);
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
            Verdict::Promoted | Verdict::Pushed => self.online.unsettle(),
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
            Ok(None) => return None,
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

    fn pressure(&self) -> Pressure {
        Pressure::Steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::{decided, policy_and_snapshot};
    use ccplane_alg::Row;
    use ccplane_contract::{FlowId, SnapshotUid};
    use ccplane_core::{Measure, Why};
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
        live.hear(&Decision { uid: Some(SnapshotUid(DEPLOYED)), ..decided(hash, Verdict::Pushed) });
        (live, policy)
    }

    fn batch(rows: Vec<(FlowId, Row)>) -> Batch {
        let (datapath, measures) = (DatapathId(0), Vec::new());
        Batch { datapath, algorithm: "aurora", slot: 0, rows, dropped: 0, measures }
    }

    fn row(snapshot: u32) -> Row {
        let (inputs, follows) = (vec![0; 30], true);
        Row { at_us: 0, slot: 0, snapshot, inputs, action_q16: 0, reward: 1.0, follows }
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
        live.hear(&Decision { uid: Some(SnapshotUid(8)), ..decided(Hash([9; 32]), Verdict::Pushed) });
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
        let of = |flow| Measure {
            flow: FlowId(flow),
            at_us: 0,
            bytes_acked: 0,
            delivered: 0,
            lost: 0,
            srtt_us: 0,
            min_rtt_us: 0,
        };
        live.take(LOOP, &Batch { measures: vec![of(1)], ..batch(Vec::new()) });
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 5, "it still runs");
        live.take(LOOP, &Batch { measures: vec![of(2)], ..batch(Vec::new()) });
        assert_eq!(waiting(&mut live, [row(DEPLOYED)]), 5, "another flow of its name");
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
        live.hear(&Decision { uid: Some(SnapshotUid(8)), ..decided(hash, flows) });
        waiting(&mut live, [row(8)]);
        assert_eq!(live.online.counts().unknown_deployment, 0);
        live.hear(&decided(hash, Verdict::RolledBack(Why::Worse)));
        assert_eq!(live.online.policy().actor(), deployed.actor());
        assert_eq!((live.online.waiting(), live.offered), (0, None));

        let next = until_offered(&mut live);
        let learned = live.online.policy();
        live.hear(&decided(next.snapshot.hash(), Verdict::Promoted));
        assert_eq!(live.deployments.snapshot().hash(), next.snapshot.hash());
        assert_eq!(live.online.policy().actor(), learned.actor(), "it goes on from there");
        assert!(!live.online.stability().converged, "and what it brings is to be seen");
    }
}

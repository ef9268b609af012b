//! Learning from the rows of live flows alone: PPO on what they did, exploration noise included.

use super::candidate::{Claim, LEAST_STATES, States, candidate};
use super::deployed::Deployments;
use super::learner::{Learn, Pressure};
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
    ) -> Result<Live, LearnError> {
        let online =
            OnlineLearner::new(deployments.policy(), OnlineConfig { seed, ..OnlineConfig::default() })?;
        Ok(Live {
            name,
            online,
            noise,
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
                self.deployments.made(policy, candidate.snapshot.clone());
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

    fn pressure(&self) -> Pressure {
        Pressure::Steady
    }
}

//! The core's part in learning: rows go out, snapshots come in, and flows whose policy had no answer are handled.

use crate::action::DatapathId;
use crate::attached::{Attached, next_uid};
use crate::core::Core;
use crate::deploy::SlotDeployment;
use crate::deploy::{Candidate, Decision, Deployment, Verdict};
use crate::flow::NativeReason;
use crate::limits::MAX_DECISIONS;
use crate::rows::{Batch, Measure};
use crate::start::start;
use ccplane_contract::{DatapathError, FlowId, FlowStats, Mode, SlotStats, SnapshotUid};
use ccplane_snapshot::Hash;
use std::collections::VecDeque;

/// A slot of a datapath.
#[derive(Clone, Copy, Debug)]
pub struct SlotView<'a> {
    pub datapath: DatapathId,
    pub slot: u8,
    pub algorithm: &'static str,
    pub active: Option<&'a Deployment>,
    /// The deployment in a trial, if one is under way.
    pub canary: Option<&'a Deployment>,
    pub last_good: Option<&'a Deployment>,
}

impl Core {
    /// The rows of a batch interval, once it has ended; a driver calls this after each turn.
    pub fn take_rows(&mut self) -> Vec<Batch> {
        if std::mem::take(&mut self.rows_due) { self.rows.take() } else { Vec::new() }
    }

    /// Every slot of every datapath.
    pub fn slots(&self) -> impl Iterator<Item = SlotView<'_>> {
        self.datapaths.iter().flat_map(|(datapath, attached)| {
            attached.slots.iter().map(|(slot, slot_deployment)| SlotView {
                datapath: *datapath,
                slot: *slot,
                algorithm: slot_deployment.algorithm(),
                active: slot_deployment.active.as_ref(),
                canary: slot_deployment.canary(),
                last_good: slot_deployment.last_good.as_ref(),
            })
        })
    }

    /// Iterates over the recent decisions, oldest first; at most [`MAX_DECISIONS`].
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// Takes the decisions since the last call, oldest first; at most [`MAX_DECISIONS`].
    pub fn take_decisions(&mut self) -> VecDeque<Decision> {
        std::mem::take(&mut self.decided)
    }

    /// Offers a snapshot to every datapath that has this slot of the algorithm. What becomes of it is among the
    /// decisions, unless this says false: no datapath has the slot ([`Decision::no_slot`]).
    pub fn propose(&mut self, algorithm: &str, slot: u8, candidate: &Candidate, now_us: u64) -> bool {
        let mut found = false;
        let ids: Vec<DatapathId> = self.datapaths.keys().copied().collect();
        for id in ids {
            let flows = self.flows_of(id, algorithm);
            let Some(attached) = self.datapaths.get_mut(&id) else { continue };
            let Attached { slots, queue, .. } = attached;
            let Some(slot_deployment) = slots.get_mut(&slot).filter(|s| s.algorithm() == algorithm) else {
                continue;
            };
            found = true;
            let mut uid = || next_uid(&mut self.next_uid);
            if let Some(push) = slot_deployment.propose(candidate.clone(), &flows, &mut uid, now_us) {
                queue.push(push);
            }
        }
        self.collect();
        found
    }

    /// Takes a candidate back: trials of it end, and what flows decided by before stays.
    pub fn withdraw(&mut self, algorithm: &str, slot: u8, candidate: Hash) {
        let slots = self.datapaths.values_mut().filter_map(|attached| attached.slots.get_mut(&slot));
        slots.filter(|s| s.algorithm() == algorithm).for_each(|s| s.withdraw(candidate));
    }

    /// Rolls a slot back on every datapath: drops what is on trial, else makes the last good snapshot active again.
    ///
    /// # Errors
    /// Why nothing was rolled back anywhere; `None`: no datapath has the slot.
    pub fn roll_back(&mut self, slot: u8) -> Result<(), Option<Verdict>> {
        let mut outcome = Err(None);
        for attached in self.datapaths.values_mut() {
            let Some(slot_deployment) = attached.slots.get_mut(&slot) else { continue };
            match slot_deployment.roll_back() {
                Ok(command) => {
                    attached.queue.push(command);
                    outcome = Ok(());
                }
                Err(verdict) if outcome.is_err() => outcome = Err(Some(verdict)),
                Err(_) => {}
            }
        }
        outcome
    }

    /// Whether a datapath's slots and flows are to be looked at.
    #[inline]
    pub fn wants_slots(&self, id: DatapathId, now_us: u64) -> bool {
        now_us >= self.nothing_until_us && self.is_check_due(id, now_us)
    }

    fn is_check_due(&self, id: DatapathId, now_us: u64) -> bool {
        self.datapaths.get(&id).is_some_and(|d| !d.slots.is_empty() && now_us >= d.next_slots_us)
    }

    /// Takes in a datapath's slots and flows: what an earlier agent left in the slots, which flows the monitor has taken
    /// off a snapshot, and which wait for another one.
    pub fn observe_slots(&mut self, id: DatapathId, slots: &[SlotStats], flows: &[FlowStats], now_us: u64) {
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let mut busy = false;
        for stats in slots {
            for uid in [stats.active, stats.canary, stats.last_good].into_iter().flatten() {
                self.next_uid = beyond(self.next_uid, uid);
            }
            let Some(slot_deployment) = attached.slots.get_mut(&stats.slot) else { continue };
            if let Some(command) = slot_deployment.sync(stats, now_us) {
                attached.queue.push(command);
            }
        }
        let mut asking = vec![0usize; usize::from(u8::MAX) + 1];
        let mut fallen = Vec::new();
        for stats in flows {
            let Some(state) = self.flows.get(&(id, stats.flow)) else { continue };
            let Ok(steered) = &state.steered else { continue };
            let Some(policy) = &stats.policy else { continue };
            for slot in &steered.program.policy_slots {
                let Some(slot_deployment) = attached.slots.get_mut(slot) else { continue };
                asking[usize::from(*slot)] += 1;
                slot_deployment.watch(stats, policy);
                self.rows.measure(id, slot_deployment.algorithm(), *slot, Measure::from(stats));
                let active = slot_deployment.active.as_ref().map_or(0, |d| d.uid.0);
                let is_new = active != 0 && active != policy.level_uid && active != state.restarted_for;
                if stats.mode == Mode::NativePolicy && is_new {
                    fallen.push((stats, active));
                }
            }
        }
        for (slot, slot_deployment) in &mut attached.slots {
            if let Some(command) = slot_deployment.watched(asking[usize::from(*slot)]) {
                attached.queue.push(command);
            }
            busy |= slot_deployment.is_busy();
        }
        let period_us =
            if busy { self.config.batch_us } else { self.config.slots_every_us.max(self.config.batch_us) };
        attached.next_slots_us = now_us.saturating_add(period_us);
        for (stats, active) in fallen {
            self.restart(id, stats, active);
        }
        self.collect();
    }

    /// Starts a flow's algorithm again, from the window that the flow has now: its slot holds a snapshot that it has not
    /// failed on.
    fn restart(&mut self, id: DatapathId, stats: &FlowStats, active: u32) {
        let Some(state) = self.flows.get_mut(&(id, stats.flow)) else { return };
        let Some(attached) = self.datapaths.get_mut(&id) else { return };
        let Ok(steered) = &state.steered else { return };
        let Some(entry) = self.catalog.entry(steered.name) else { return };
        let algorithm = steered.algorithm.clone();
        state.restarted_for = active;
        state.acted = None;
        state.counters.restarts += 1;
        state.info.init_cwnd_bytes =
            u64::from(stats.transport.snd_cwnd).saturating_mul(u64::from(stats.transport.mss_bytes)).max(1);
        if stats.transport.min_rtt_us > 0 {
            state.info.min_rtt_us = Some(stats.transport.min_rtt_us);
        }
        match start(entry, algorithm, attached, stats.flow, state, None) {
            Ok(again) => {
                if let Ok(before) = std::mem::replace(&mut state.steered, Ok(again)) {
                    self.end(before, false);
                }
            }
            Err(reason) => {
                self.counters.panics += u64::from(matches!(reason, NativeReason::Panicked(_)));
                self.go_native(id, stats.flow, reason);
            }
        }
    }

    /// Advances every slot's deployment to `now_us` and queues the commands that are due.
    pub(crate) fn tick_slots(&mut self, now_us: u64) {
        for attached in self.datapaths.values_mut() {
            let Attached { slots, queue, next_batch_us, .. } = attached;
            if slots.is_empty() {
                continue;
            }
            slots.values_mut().filter_map(SlotDeployment::tick).for_each(|command| queue.push(command));
            if now_us < *next_batch_us {
                continue;
            }
            *next_batch_us = now_us.saturating_add(self.config.batch_us);
            self.rows_due = true;
            slots.values_mut().filter_map(SlotDeployment::end_batch).for_each(|command| queue.push(command));
        }
        self.collect();
    }

    /// Takes the result of a command for a slot; `deploys`: one that moves a snapshot.
    pub(crate) fn slot_result(
        &mut self,
        id: DatapathId,
        slot: u8,
        deploys: bool,
        result: Result<(), DatapathError>,
    ) {
        let now_us = self.now_us;
        let attached = self.datapaths.get_mut(&id);
        let Some(slot_deployment) = attached.and_then(|a| a.slots.get_mut(&slot)) else { return };
        if deploys {
            slot_deployment.done(result, now_us);
        } else {
            slot_deployment.defined(result, now_us);
        }
        let algorithm = slot_deployment.algorithm();
        if let crate::deploy::SlotState::Refused(error) = &slot_deployment.state {
            let error = error.clone();
            for flow in self.flows_of(id, algorithm) {
                if self.leave_arm(id, flow) {
                    continue;
                }
                self.go_native(id, flow, NativeReason::SlotRefused { slot, error: error.clone() });
            }
        }
        self.collect();
    }

    /// The steered flows of an algorithm.
    fn flows_of(&self, id: DatapathId, algorithm: &str) -> Vec<FlowId> {
        let range = (id, FlowId(u64::MIN))..=(id, FlowId(u64::MAX));
        let steered = self.flows.range(range).filter(|(_, f)| f.runs(algorithm));
        steered.map(|((_, flow), _)| *flow).collect()
    }

    /// Keeps the decisions of the slots.
    pub(crate) fn collect(&mut self) {
        for slot_deployment in self.datapaths.values_mut().flat_map(|d| d.slots.values_mut()) {
            for decision in slot_deployment.decided.drain(..) {
                for to in [&mut self.decisions, &mut self.decided] {
                    if to.len() >= MAX_DECISIONS {
                        to.pop_front();
                    }
                    to.push_back(decision.clone());
                }
            }
        }
    }
}

/// The next number, such that it is not `seen`'s and does not reach it soon.
fn beyond(next: u32, seen: SnapshotUid) -> u32 {
    // Numbers wrap: a number is behind if it is less than half the circle away.
    if next.wrapping_sub(seen.0) > u32::MAX / 2 || next == seen.0 { seen.0.wrapping_add(1) } else { next }
}

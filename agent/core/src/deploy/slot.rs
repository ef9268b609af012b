//! One slot of one datapath: its snapshots, its trial, and the requests for it.

use super::compare::{Comparison, Finding};
use super::switchback::{Switchback, Turn, Windows, place};
use super::{Candidate, Decision, Deployment, Evidence, Origin, PushRules, Verdict, Why};
use crate::action::{Command, DatapathId};
use ccplane_contract::{DatapathError, FlowId, FlowStats, Mode, Part, SlotStats, SnapshotUid};
use ccplane_infer::{FlowPolicy, Level, Shape};
use ccplane_snapshot::{DeployOptions, Hash};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

/// A flow without a reward for so long is idle: a trial cannot count on it. Microseconds.
const IDLE_US: u64 = 5_000_000;
/// The weight of a new reward in the mean of late: of the last thirty or so.
const RECENT_WEIGHT: f64 = 1.0 / 32.0;
/// The number of active flows below which all of them alternate between the snapshots. A share of so few would be one or two
/// flows, which the others say little about.
const FEW_FLOWS: usize = 8;
/// A share that every flow takes, but for one in 2^16.
const ALL: u16 = u16::MAX;

/// States of a slot at its datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    Pending,
    Defined,
    /// Flows that ask it run the native algorithm.
    Refused(Arc<DatapathError>),
}

/// A snapshot that some flows try.
struct Trial {
    deployment: Deployment,
    switchback: Box<Switchback>,
    /// Its learner does not want it any more.
    withdrawn: bool,
}

/// The share of the flows that is to try a snapshot.
#[derive(Clone, Copy)]
struct Canaries {
    /// Their share of the flows, in 2^-16.
    share: u16,
    /// The number of canary flows.
    trying: usize,
    flows: usize,
}

/// The recent rewards of a flow.
#[derive(Clone, Copy)]
struct Recent {
    /// When the last one came, microseconds.
    at_us: u64,
    /// Their mean outside trials, each new one [`RECENT_WEIGHT`] of it.
    mean: Option<f64>,
}

/// A command that the datapath has not answered yet.
enum Asked {
    Push { deployment: Deployment, image: Arc<[u64]>, part: Part, trial: Option<(Box<Switchback>, Canaries)> },
    Share(u16),
    Promote,
    Rollback(Why),
}

pub(crate) struct SlotDeployment {
    datapath: DatapathId,
    algorithm: &'static str,
    slot: u8,
    shape: Shape,
    rules: Arc<PushRules>,
    windows: Windows,
    pub state: SlotState,
    pub active: Option<Deployment>,
    pub last_good: Option<Deployment>,
    trial: Option<Trial>,
    asked: Option<Asked>,
    /// Whether that is on its way to the datapath, so that it can no more be taken back.
    is_sent: bool,
    /// The datapath may have a canary that is not ours: the last look found one, or a command has failed since. A roll-back
    /// would drop that first.
    may_have_orphan: bool,
    /// The datapath could not do it yet: it is asked again at the next tick.
    retry: bool,
    /// Recent rewards by flow.
    rewarded: BTreeMap<FlowId, Recent>,
    /// Flows that left a deployment, by the monitor.
    tripped: BTreeSet<FlowId>,
    pub decided: Vec<Decision>,
}

impl SlotDeployment {
    pub fn new(
        datapath: DatapathId,
        algorithm: &'static str,
        slot: u8,
        shape: Shape,
        rules: Arc<PushRules>,
        batch_us: u64,
    ) -> SlotDeployment {
        SlotDeployment {
            datapath,
            algorithm,
            slot,
            shape,
            windows: rules.windows(batch_us),
            rules,
            state: SlotState::Pending,
            active: None,
            last_good: None,
            trial: None,
            asked: None,
            is_sent: false,
            may_have_orphan: false,
            retry: false,
            rewarded: BTreeMap::new(),
            tripped: BTreeSet::new(),
            decided: Vec::new(),
        }
    }

    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Returns the deployment that some flows try, if a trial is under way.
    pub fn canary(&self) -> Option<&Deployment> {
        self.trial.as_ref().map(|t| &t.deployment)
    }

    /// Whether its flows are to be looked at more often.
    pub fn is_busy(&self) -> bool {
        self.trial.is_some() || self.asked.is_some()
    }

    /// Returns the command that defines the slot.
    pub fn define(&self) -> Command {
        Command::DefineSlot { slot: self.slot, shape: self.shape }
    }

    /// Judges a candidate; pushes it if it is worth it. `flows`: those that ask the slot.
    pub fn propose(
        &mut self,
        candidate: Candidate,
        flows: &[FlowId],
        next_uid: &mut dyn FnMut() -> NonZeroU32,
        now_us: u64,
    ) -> Option<Command> {
        if let Some(verdict) = self.objection(&candidate) {
            self.decide(Some(&candidate), None, verdict, now_us);
            return None;
        }
        let Candidate { snapshot, origin } = candidate;
        let share = self.share(&origin);
        let uid = next_uid();
        let PushRules { pin, noise_q16, .. } = *self.rules;
        let image: Arc<[u64]> = snapshot.image(&DeployOptions { uid, noise_q16, pin }).into();
        let uid = SnapshotUid(uid.get());
        let deployment = Deployment { uid, snapshot: Some(snapshot.hash()), origin, since_us: now_us };
        let (part, trial) = match (share, &self.active) {
            (Some(share), Some(active)) => {
                let canaries = self.choose(share, flows, now_us);
                let before = self.rewarded.iter().filter_map(|(flow, r)| Some((*flow, r.mean?))).collect();
                let trial = Switchback::new(
                    self.windows,
                    uid.0,
                    active.uid.0,
                    canaries.share,
                    before,
                    origin.evidence().is_some_and(Evidence::is_rescue),
                );
                (Part::Canary { share: trial.current_share() }, Some((Box::new(trial), canaries)))
            }
            _ => (Part::Active, None),
        };
        self.asked = Some(Asked::Push { deployment, image: image.clone(), part, trial });
        Some(Command::Push { slot: self.slot, image, part })
    }

    /// The share of the flows that try a candidate first; `None`: all flows take it at once.
    fn share(&self, origin: &Origin) -> Option<f64> {
        self.active.as_ref()?;
        match origin {
            Origin::Shipped | Origin::TakenOver | Origin::Operator { force: true, .. } => None,
            Origin::Operator { share: Some(share), force: false } => Some(*share),
            Origin::Operator { share: None, force: false } | Origin::Learned(_) => {
                Some(self.rules.canary_share)
            }
        }
    }

    /// The flows that try a candidate: of those that are not idle this share, at least one and not all; or all flows.
    fn choose(&self, share: f64, flows: &[FlowId], now_us: u64) -> Canaries {
        let all = Canaries { share: ALL, trying: flows.len(), flows: flows.len() };
        let is_idle =
            |flow: &FlowId| self.rewarded.get(flow).is_none_or(|r| now_us >= r.at_us.saturating_add(IDLE_US));
        let mut places: Vec<u16> = flows.iter().filter(|f| !is_idle(f)).map(|f| place(*f)).collect();
        if places.len() < FEW_FLOWS {
            return all;
        }
        places.sort_unstable();
        let wanted = (share * places.len() as f64).round() as usize;
        // Below the first one that is not to try it; flows of one place try it together, or not.
        let share = places[wanted.clamp(1, places.len() - 1)];
        if places[0] >= share {
            return all;
        }
        let trying = flows.iter().filter(|f| place(**f) < share).count();
        Canaries { share, trying, flows: flows.len() }
    }

    /// Returns the reason why a candidate is not pushed, if there is one.
    fn objection(&self, candidate: &Candidate) -> Option<Verdict> {
        if *candidate.snapshot.shape() != self.shape {
            return Some(Verdict::Unfit);
        }
        if let SlotState::Refused(error) = &self.state {
            return Some(Verdict::Refused(error.clone()));
        }
        if let Origin::Learned(evidence) = &candidate.origin {
            if !evidence.safe {
                return Some(Verdict::Unsafe);
            }
            if !evidence.converged {
                return Some(Verdict::NotConverged);
            }
            if !self.rules.is_necessary(evidence) {
                return Some(Verdict::NotNecessary);
            }
        }
        if self.is_busy() {
            return Some(Verdict::Busy);
        }
        (self.rules.pin && self.share(&candidate.origin).is_some()).then_some(Verdict::Pinned)
    }

    /// The learner takes its candidate back: a trial of it ends with this batch interval.
    pub fn withdraw(&mut self, candidate: Hash) {
        if let Some(trial) = self.trial.as_mut().filter(|t| t.deployment.snapshot == Some(candidate)) {
            trial.withdrawn = true;
        }
    }

    /// Rolls back by hand: drops what is on trial, else goes back to the last good snapshot.
    ///
    /// # Errors
    /// Why not.
    pub fn roll_back(&mut self) -> Result<Command, Verdict> {
        if self.asked.is_some() || self.may_have_orphan {
            return Err(Verdict::Busy);
        }
        if self.trial.is_none() && self.last_good.is_none() {
            let nothing = DatapathError::NoSnapshot { slot: self.slot, what: "last good snapshot" };
            return Err(Verdict::Refused(Arc::new(nothing)));
        }
        Ok(self.ask_rollback(Why::Operator))
    }

    fn ask_rollback(&mut self, why: Why) -> Command {
        self.asked = Some(Asked::Rollback(why));
        Command::Rollback { slot: self.slot }
    }

    /// Whether a command that was queued is still wanted, and so on its way from now on.
    pub fn send(&mut self, command: &Command) -> bool {
        let is_wanted = self.wants(command);
        self.is_sent |= is_wanted && !matches!(command, Command::DefineSlot { .. });
        is_wanted
    }

    fn wants(&self, command: &Command) -> bool {
        match (command, &self.asked) {
            (Command::Push { image, .. }, Some(Asked::Push { image: wanted, .. })) => {
                Arc::ptr_eq(image, wanted)
            }
            (Command::Share { share, .. }, Some(Asked::Share(wanted))) => share == wanted,
            (Command::Promote { .. }, Some(Asked::Promote)) => true,
            (Command::Rollback { .. }, Some(Asked::Rollback(_))) => true,
            (Command::DefineSlot { .. }, _) => true,
            _ => false,
        }
    }

    /// Takes the result of the slot's definition.
    pub fn defined(&mut self, result: Result<(), DatapathError>, now_us: u64) {
        let Err(error) = result else {
            // What was pushed may have been refused before.
            if self.state == SlotState::Pending {
                self.state = SlotState::Defined;
            }
            return;
        };
        let error = Arc::new(error);
        self.state = SlotState::Refused(error.clone());
        // What is on its way has an end of its own.
        let waits = |asked: &mut Asked| matches!(asked, Asked::Push { .. }) && !self.is_sent;
        if let Some(Asked::Push { deployment, .. }) = self.asked.take_if(waits) {
            self.decide_on(&deployment, None, Verdict::Refused(error), now_us);
        }
    }

    /// The datapath is detached: what was on trial or on its way ends here.
    pub fn gone(&mut self, now_us: u64) {
        if let Some(Asked::Push { deployment, .. }) = self.asked.take() {
            self.decide_on(&deployment, None, Verdict::NoSlot, now_us);
        }
        if let Some(trial) = self.trial.take() {
            self.end(&trial, Verdict::RolledBack(Why::Gone), now_us);
        }
    }

    /// Says how a trial has ended.
    fn end(&mut self, trial: &Trial, verdict: Verdict, now_us: u64) {
        self.decide_on(&trial.deployment, trial.switchback.last, verdict, now_us);
    }

    /// Takes the result of the last command.
    pub fn done(&mut self, result: Result<(), DatapathError>, now_us: u64) {
        self.is_sent = false;
        if matches!(result, Err(DatapathError::SlotBusy { .. })) {
            self.retry = self.asked.is_some();
            return;
        }
        let Some(asked) = self.asked.take() else { return };
        if let Err(error) = result {
            self.refused(asked, error, now_us);
            return;
        }
        match asked {
            Asked::Push { mut deployment, trial, .. } => {
                deployment.since_us = now_us;
                self.pushed(deployment, trial, now_us);
            }
            Asked::Share(_) => {}
            Asked::Promote => {
                let Some(trial) = self.trial.take() else { return };
                self.last_good = self.active.replace(trial.deployment.clone()).or(self.last_good.take());
                self.tripped.clear();
                self.end(&trial, Verdict::Promoted, now_us);
            }
            Asked::Rollback(why) => self.rolled_back(why, now_us),
        }
    }

    fn pushed(&mut self, deployment: Deployment, trial: Option<(Box<Switchback>, Canaries)>, now_us: u64) {
        self.tripped.clear();
        self.may_have_orphan = false;
        let Some((switchback, canaries)) = trial else {
            self.decide_on(&deployment, None, Verdict::Pushed, now_us);
            self.last_good = self.active.replace(deployment).or(self.last_good.take());
            self.trial = None;
            return;
        };
        let Canaries { share, trying, flows } = canaries;
        self.decide_on(&deployment, None, Verdict::Trial { share, trying, flows }, now_us);
        self.trial = Some(Trial { deployment, switchback, withdrawn: false });
    }

    fn rolled_back(&mut self, why: Why, now_us: u64) {
        self.tripped.clear();
        self.may_have_orphan = false;
        if let Some(trial) = self.trial.take() {
            self.end(&trial, Verdict::RolledBack(why), now_us);
        } else if why != Why::Orphaned
            && let Some(left) = self.active.take()
        {
            self.active = self.last_good.take();
            self.decide_on(&left, None, Verdict::RolledBack(why), now_us);
        }
    }

    fn refused(&mut self, asked: Asked, error: DatapathError, now_us: u64) {
        self.may_have_orphan = true;
        let error = Arc::new(error);
        match asked {
            Asked::Push { deployment, .. } => {
                if matches!(deployment.origin, Origin::Shipped) {
                    self.state = SlotState::Refused(error.clone());
                }
                self.decide_on(&deployment, None, Verdict::Refused(error), now_us);
            }
            // What was on trial is not there.
            Asked::Share(_) | Asked::Promote | Asked::Rollback(_) => {
                if let Some(trial) = self.trial.take() {
                    self.end(&trial, Verdict::Refused(error), now_us);
                }
            }
        }
    }

    /// Returns the command that the datapath could not carry out before, if it is to be asked again.
    pub fn tick(&mut self) -> Option<Command> {
        if !std::mem::take(&mut self.retry) {
            return None;
        }
        let slot = self.slot;
        self.asked.as_ref().map(|asked| match asked {
            Asked::Push { image, part, .. } => Command::Push { slot, image: image.clone(), part: *part },
            Asked::Share(share) => Command::Share { slot, share: *share },
            Asked::Promote => Command::Promote { slot },
            Asked::Rollback(_) => Command::Rollback { slot },
        })
    }

    /// A flow's action under deployment `uid` was this good.
    pub fn reward(&mut self, flow: FlowId, uid: u32, reward: f64, now_us: u64) {
        let recent = self.rewarded.entry(flow).or_insert(Recent { at_us: now_us, mean: None });
        recent.at_us = now_us;
        if let Some(trial) = &mut self.trial {
            trial.switchback.reward(flow, uid, reward);
        } else if self.active.as_ref().is_some_and(|active| active.uid.0 == uid) {
            let mean = recent.mean.unwrap_or(reward);
            recent.mean = Some(mean + RECENT_WEIGHT * (reward - mean));
        }
    }

    /// The end of a batch interval: a window of a trial may be over, or the trial.
    pub fn end_batch(&mut self) -> Option<Command> {
        let trial = self.trial.as_mut().filter(|_| self.asked.is_none())?;
        if trial.withdrawn {
            return Some(self.ask_rollback(Why::Withdrawn));
        }
        match trial.switchback.end_batch(self.rules.margin) {
            Turn::Wait => None,
            Turn::Switch => {
                let share = trial.switchback.current_share();
                self.asked = Some(Asked::Share(share));
                Some(Command::Share { slot: self.slot, share })
            }
            Turn::Over(Finding::Better | Finding::NoWorse) => {
                self.asked = Some(Asked::Promote);
                Some(Command::Promote { slot: self.slot })
            }
            Turn::Over(Finding::Worse) => Some(self.ask_rollback(Why::Worse)),
            Turn::Over(Finding::Open) => Some(self.ask_rollback(Why::Inconclusive)),
        }
    }

    /// Takes over the slot as the datapath reports it; an earlier agent may have filled it.
    pub fn sync(&mut self, stats: &SlotStats, now_us: u64) -> Option<Command> {
        // Before the slot's definition has ended nothing of ours can be there, whatever its number: agents that start in
        // the same second count from the same one.
        if let Some(Asked::Push { deployment, .. }) = &self.asked
            && matches!(deployment.origin, Origin::Shipped)
            && !self.is_sent
            && stats.active.is_some()
            && (self.state == SlotState::Pending || stats.active != Some(deployment.uid))
        {
            // The slot is in use: what flows decide by stays.
            self.asked = None;
        }
        if self.asked.is_some() {
            return None;
        }
        let mut known: Vec<Deployment> =
            self.active.take().into_iter().chain(self.last_good.take()).collect();
        known.extend(self.trial.as_ref().map(|t| t.deployment.clone()));
        let find = |uid: Option<SnapshotUid>| {
            let uid = uid?;
            let snapshot = Hash::from_words(stats.active_name).filter(|_| Some(uid) == stats.active);
            let found = known.iter().find(|d| d.uid == uid).cloned();
            Some(found.unwrap_or(Deployment { uid, snapshot, origin: Origin::TakenOver, since_us: now_us }))
        };
        self.active = find(stats.active);
        self.last_good = find(stats.last_good);
        if let Some(found) = self.active.clone().filter(|found| known.iter().all(|d| d.uid != found.uid)) {
            self.decide_on(&found, None, Verdict::TakenOver, now_us);
        }
        if let Some(gone) = self.trial.take_if(|t| Some(t.deployment.uid) != stats.canary) {
            self.end(&gone, Verdict::RolledBack(Why::Gone), now_us);
        }
        let orphan = find(stats.canary).filter(|_| self.trial.is_none());
        self.may_have_orphan = orphan.is_some();
        let orphan = orphan?;
        self.decide_on(&orphan, None, Verdict::RolledBack(Why::Orphaned), now_us);
        Some(self.ask_rollback(Why::Orphaned))
    }

    /// Takes the policy state of one flow that asks the slot; after the last one comes [`SlotDeployment::watched`].
    pub fn watch(&mut self, stats: &FlowStats, policy: &FlowPolicy) {
        let left = policy.level != Level::Chosen || stats.mode == Mode::NativePolicy;
        let tripped = match (&self.trial, &self.active) {
            // It may be back on the active snapshot since: what it once left stays noted.
            (Some(trial), _) => policy.level_uid == trial.deployment.uid.0,
            (None, active) => left && active.as_ref().is_some_and(|d| d.uid.0 == policy.level_uid),
        };
        if tripped {
            self.tripped.insert(stats.flow);
        } else {
            self.tripped.remove(&stats.flow);
        }
    }

    /// Rolls back what the monitor has taken flows off: a snapshot on trial at the first one; one that was promoted
    /// when that are half of `flows`.
    pub fn watched(&mut self, flows: usize) -> Option<Command> {
        if self.asked.is_some() || self.tripped.is_empty() {
            return None;
        }
        let replaced = self.last_good.is_some() && 2 * self.tripped.len() >= flows;
        (self.trial.is_some() || replaced).then(|| self.ask_rollback(Why::Tripped))
    }

    /// Entries that it keeps of single flows.
    pub fn flow_entries(&self) -> usize {
        let trial = self.trial.as_ref().map_or(0, |t| t.switchback.flow_entries());
        self.rewarded.len() + self.tripped.len() + trial
    }

    /// Forgets a flow that ended.
    pub fn forget(&mut self, flow: FlowId) {
        self.tripped.remove(&flow);
        self.rewarded.remove(&flow);
        if let Some(trial) = &mut self.trial {
            trial.switchback.forget(flow);
        }
        if let Some(Asked::Push { trial: Some((switchback, _)), .. }) = &mut self.asked {
            switchback.forget(flow);
        }
    }

    fn decide(&mut self, of: Option<&Candidate>, uid: Option<SnapshotUid>, verdict: Verdict, now_us: u64) {
        let Some(candidate) = of else { return };
        self.decided.push(Decision {
            at_us: now_us,
            datapath: Some(self.datapath),
            slot: self.slot,
            algorithm: self.algorithm,
            snapshot: Some(candidate.snapshot.hash()),
            uid,
            origin: candidate.origin,
            comparison: None,
            verdict,
        });
    }

    fn decide_on(&mut self, of: &Deployment, comparison: Option<Comparison>, verdict: Verdict, now_us: u64) {
        self.decided.push(Decision {
            at_us: now_us,
            datapath: Some(self.datapath),
            slot: self.slot,
            algorithm: self.algorithm,
            snapshot: of.snapshot,
            uid: Some(of.uid),
            origin: of.origin,
            comparison,
            verdict,
        });
    }
}

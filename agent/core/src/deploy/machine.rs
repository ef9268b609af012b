//! One slot of one datapath: what it holds, what is on trial, what is asked of it.

use super::compare::{self, Comparison, Finding, MAX_LOOKS, Sample, compare};
use super::{Candidate, Decision, Deployment, Necessity, Origin, PushRules, Verdict, Why};
use crate::{Command, DatapathId};
use ccplane_contract::{DatapathError, FlowId, FlowStats, Mode, Part, SlotStats, SnapshotUid};
use ccplane_infer::{FlowPolicy, Level, Shape, spread};
use ccplane_snapshot::DeployOptions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Measurements of the active snapshot that are kept for a trial in time, and for how long, microseconds: what it was worth
/// under other conditions says nothing of what it would be worth now.
const MAX_RECENT: usize = 192;
const RECENT_US: u64 = 10_000_000;
/// Flows and deployments whose rewards are summed in one batch; further ones wait for the next batch.
const MAX_SUMS: usize = 1 << 16;
/// A share that every flow takes, but for one in 2^16.
const ALL: u16 = u16::MAX;

/// How a slot stands with its datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// On its way.
    Pending,
    /// Defined.
    Defined,
    /// Flows that ask it run the native algorithm.
    Refused(Arc<DatapathError>),
}

/// A snapshot that some flows try.
struct Trial {
    deployment: Deployment,
    /// Compared with what was before, rather than with the other flows.
    in_time: bool,
    canary: Sample,
    active: Sample,
    looks: u32,
    last: Option<Comparison>,
}

/// What was asked of the datapath and has not ended.
enum Asked {
    Push { deployment: Deployment, image: Arc<[u64]>, part: Part, trying: usize, flows: usize },
    Promote,
    Rollback(Why),
}

pub(crate) struct Machine {
    datapath: DatapathId,
    algorithm: &'static str,
    slot: u8,
    shape: Shape,
    rules: Arc<PushRules>,
    pub state: SlotState,
    pub active: Option<Deployment>,
    pub last_good: Option<Deployment>,
    trial: Option<Trial>,
    asked: Option<Asked>,
    /// The datapath could not do it yet: it is asked again at the next tick.
    retry: bool,
    /// Rewards of this batch by flow and deployment: their sum and number.
    sums: BTreeMap<(FlowId, u32), (f64, u32)>,
    /// Measurements of the active snapshot, and when they were made.
    recent: VecDeque<(u64, f64)>,
    /// Flows that left a deployment, by the monitor.
    tripped: BTreeSet<FlowId>,
    pub decided: Vec<Decision>,
}

impl Machine {
    pub fn new(
        datapath: DatapathId,
        algorithm: &'static str,
        slot: u8,
        shape: Shape,
        rules: Arc<PushRules>,
    ) -> Machine {
        Machine {
            datapath,
            algorithm,
            slot,
            shape,
            rules,
            state: SlotState::Pending,
            active: None,
            last_good: None,
            trial: None,
            asked: None,
            retry: false,
            sums: BTreeMap::new(),
            recent: VecDeque::new(),
            tripped: BTreeSet::new(),
            decided: Vec::new(),
        }
    }

    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// What some flows try, and since when.
    pub fn canary(&self) -> Option<&Deployment> {
        self.trial.as_ref().map(|t| &t.deployment)
    }

    /// Whether its flows are to be looked at more often.
    pub fn is_busy(&self) -> bool {
        self.trial.is_some() || self.asked.is_some()
    }

    /// What defines the slot.
    pub fn define(&self) -> Command {
        Command::DefineSlot { slot: self.slot, shape: self.shape }
    }

    /// Judges a candidate; pushes it if it is worth it. `flows`: those that ask the slot.
    pub fn propose(
        &mut self,
        candidate: Candidate,
        flows: &[FlowId],
        next_uid: &mut dyn FnMut() -> SnapshotUid,
        now_us: u64,
    ) -> Option<Command> {
        if let Some(verdict) = self.objection(&candidate) {
            self.decide(Some(&candidate), None, verdict, now_us);
            return None;
        }
        let Candidate { snapshot, origin } = candidate;
        let (part, trying) = match origin {
            Origin::Shipped | Origin::TakenOver | Origin::Operator { force: true, .. } => {
                (Part::Active, flows.len())
            }
            _ if self.active.is_none() => (Part::Active, flows.len()),
            Origin::Operator { share: Some(share), .. } => choose(share, flows),
            Origin::Operator { share: None, .. } | Origin::Learned(_) => {
                choose(self.rules.canary_share, flows)
            }
        };
        let uid = next_uid();
        let PushRules { pin, noise_q16, .. } = *self.rules;
        let image: Arc<[u64]> = snapshot.image(&DeployOptions { uid: uid.0, noise_q16, pin }).into();
        let deployment = Deployment { uid, snapshot: Some(snapshot), origin, since_us: now_us };
        self.asked = Some(Asked::Push { deployment, image: image.clone(), part, trying, flows: flows.len() });
        Some(Command::Push { slot: self.slot, image, part })
    }

    /// Why a candidate is not pushed.
    fn objection(&self, candidate: &Candidate) -> Option<Verdict> {
        if *candidate.snapshot.shape() != self.shape {
            return Some(Verdict::Unfit);
        }
        if let SlotState::Refused(error) = &self.state {
            return Some(Verdict::Refused(error.clone()));
        }
        if let Origin::Learned(evidence) = &candidate.origin {
            let loss = match self.rules.necessity {
                Necessity::Mean => evidence.fidelity_mean,
                Necessity::Min => evidence.fidelity_min,
            };
            if !evidence.safe {
                return Some(Verdict::Unsafe);
            }
            if !evidence.converged {
                return Some(Verdict::NotConverged);
            }
            let no_gain = evidence.gain.is_some_and(|gain| gain <= 0.0 || gain.is_nan());
            if loss <= self.rules.alpha || loss.is_nan() || no_gain {
                return Some(Verdict::NotNecessary);
            }
        }
        self.is_busy().then_some(Verdict::Busy)
    }

    /// Rolls back by hand: drops what is on trial, else goes back to the last good snapshot.
    ///
    /// # Errors
    /// Why not.
    pub fn roll_back(&mut self) -> Result<Command, Verdict> {
        if self.asked.is_some() {
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

    /// Whether a command that was queued is still wanted.
    pub fn wants(&self, command: &Command) -> bool {
        match (command, &self.asked) {
            (Command::Push { image, .. }, Some(Asked::Push { image: wanted, .. })) => {
                Arc::ptr_eq(image, wanted)
            }
            (Command::Promote { .. }, Some(Asked::Promote)) => true,
            (Command::Rollback { .. }, Some(Asked::Rollback(_))) => true,
            (Command::DefineSlot { .. }, _) => true,
            _ => false,
        }
    }

    /// How the slot's definition ended.
    pub fn defined(&mut self, result: Result<(), DatapathError>) {
        self.state = match result {
            Ok(()) => SlotState::Defined,
            Err(error) => {
                self.asked = None;
                SlotState::Refused(Arc::new(error))
            }
        };
    }

    /// How the last command ended.
    pub fn done(&mut self, result: Result<(), DatapathError>, now_us: u64) {
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
            Asked::Push { mut deployment, part, trying, flows, .. } => {
                deployment.since_us = now_us;
                self.pushed(deployment, part, trying, flows, now_us);
            }
            Asked::Promote => {
                let Some(trial) = self.trial.take() else { return };
                self.last_good = self.active.replace(trial.deployment.clone()).or(self.last_good.take());
                self.recent.clear();
                self.tripped.clear();
                self.decide_on(&trial.deployment, trial.last, Verdict::Promoted, now_us);
            }
            Asked::Rollback(why) => self.rolled_back(why, now_us),
        }
    }

    fn pushed(&mut self, deployment: Deployment, part: Part, trying: usize, flows: usize, now_us: u64) {
        self.tripped.clear();
        let Part::Canary { share } = part else {
            self.decide_on(&deployment, None, Verdict::Pushed, now_us);
            self.last_good = self.active.replace(deployment).or(self.last_good.take());
            self.trial = None;
            self.recent.clear();
            return;
        };
        let in_time = share == ALL;
        self.decide_on(&deployment, None, Verdict::Trial { share, trying, flows, in_time }, now_us);
        let fresh = self.recent.iter().filter(|(at_us, _)| at_us + RECENT_US >= now_us);
        let active = if in_time { fresh.map(|(_, mean)| *mean).collect() } else { Sample::default() };
        self.trial =
            Some(Trial { deployment, in_time, canary: Sample::default(), active, looks: 0, last: None });
        self.sums.clear();
    }

    fn rolled_back(&mut self, why: Why, now_us: u64) {
        self.tripped.clear();
        if let Some(trial) = self.trial.take() {
            self.decide_on(&trial.deployment, trial.last, Verdict::RolledBack(why), now_us);
        } else if why != Why::Orphaned
            && let Some(left) = self.active.take()
        {
            self.active = self.last_good.take();
            self.recent.clear();
            self.decide_on(&left, None, Verdict::RolledBack(why), now_us);
        }
    }

    fn refused(&mut self, asked: Asked, error: DatapathError, now_us: u64) {
        let error = Arc::new(error);
        match asked {
            Asked::Push { deployment, .. } => {
                if matches!(deployment.origin, Origin::Shipped) {
                    self.state = SlotState::Refused(error.clone());
                }
                self.decide_on(&deployment, None, Verdict::Refused(error), now_us);
            }
            // What was on trial is not there.
            Asked::Promote | Asked::Rollback(_) => {
                if let Some(trial) = self.trial.take() {
                    self.decide_on(&trial.deployment, trial.last, Verdict::Refused(error), now_us);
                }
            }
        }
    }

    /// What is to be asked again.
    pub fn tick(&mut self) -> Option<Command> {
        if !std::mem::take(&mut self.retry) {
            return None;
        }
        let slot = self.slot;
        self.asked.as_ref().map(|asked| match asked {
            Asked::Push { image, part, .. } => Command::Push { slot, image: image.clone(), part: *part },
            Asked::Promote => Command::Promote { slot },
            Asked::Rollback(_) => Command::Rollback { slot },
        })
    }

    /// A flow's action under deployment `uid` was this good.
    pub fn reward(&mut self, flow: FlowId, uid: u32, reward: f64) {
        if self.sums.len() < MAX_SUMS || self.sums.contains_key(&(flow, uid)) {
            let (sum, count) = self.sums.entry((flow, uid)).or_default();
            *sum += reward;
            *count += 1;
        }
    }

    /// The end of a batch interval: each flow's mean reward is one measurement.
    pub fn end_batch(&mut self, now_us: u64) -> Option<Command> {
        let active = self.active.as_ref().map_or(0, |d| d.uid.0);
        let settled =
            self.trial.as_ref().is_none_or(|t| now_us >= t.deployment.since_us + self.rules.settle_us);
        for ((_, uid), (sum, count)) in std::mem::take(&mut self.sums) {
            let mean = sum / f64::from(count.max(1));
            match &mut self.trial {
                Some(trial) if settled && uid == trial.deployment.uid.0 => trial.canary.add(mean),
                Some(trial) if settled && uid == active && !trial.in_time => trial.active.add(mean),
                None if uid == active => {
                    self.recent.push_back((now_us, mean));
                    if self.recent.len() > MAX_RECENT {
                        self.recent.pop_front();
                    }
                }
                _ => {}
            }
        }
        self.look(now_us)
    }

    /// Looks at the trial, if it is time.
    fn look(&mut self, now_us: u64) -> Option<Command> {
        let late = |trial: &Trial, rules: &PushRules| now_us >= trial.deployment.since_us + rules.timeout_us;
        let trial = self.trial.as_mut().filter(|_| self.asked.is_none())?;
        let late = late(trial, &self.rules);
        let smaller =
            if trial.in_time { trial.canary.count } else { trial.canary.count.min(trial.active.count) };
        let finding = if trial.looks < MAX_LOOKS && smaller >= compare::needed(trial.looks) {
            trial.looks += 1;
            let comparison = compare(trial.canary, trial.active, self.rules.margin);
            trial.last = Some(comparison);
            comparison.finding
        } else {
            Finding::Open
        };
        match finding {
            Finding::NoWorse => {
                self.asked = Some(Asked::Promote);
                Some(Command::Promote { slot: self.slot })
            }
            Finding::Worse => Some(self.ask_rollback(Why::Worse)),
            Finding::Open if late || trial.looks == MAX_LOOKS => Some(self.ask_rollback(Why::Inconclusive)),
            Finding::Open => None,
        }
    }

    /// What the datapath says of the slot: it may have been an earlier agent's.
    pub fn sync(&mut self, stats: &SlotStats, now_us: u64) -> Option<Command> {
        // Before the slot's definition has ended nothing of ours can be there, whatever its number: agents that start in
        // the same second count from the same one.
        if let Some(Asked::Push { deployment, .. }) = &self.asked
            && matches!(deployment.origin, Origin::Shipped)
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
            let found = known.iter().find(|d| d.uid == uid).cloned();
            Some(found.unwrap_or(Deployment {
                uid,
                snapshot: None,
                origin: Origin::TakenOver,
                since_us: now_us,
            }))
        };
        self.active = find(stats.active);
        self.last_good = find(stats.last_good);
        if let Some(gone) = self.trial.take_if(|t| Some(t.deployment.uid) != stats.canary) {
            self.decide_on(&gone.deployment, gone.last, Verdict::RolledBack(Why::Gone), now_us);
        }
        let orphan = find(stats.canary).filter(|_| self.trial.is_none())?;
        self.decide_on(&orphan, None, Verdict::RolledBack(Why::Orphaned), now_us);
        Some(self.ask_rollback(Why::Orphaned))
    }

    /// What the datapath says of a flow that asks the slot. Called for all of them, then [`Machine::watched`].
    pub fn watch(&mut self, stats: &FlowStats, policy: &FlowPolicy) {
        let uid = policy.level_uid;
        let left = policy.level != Level::Chosen || stats.mode == Mode::NativePolicy;
        let judged = self.canary().or(self.active.as_ref()).is_some_and(|d| d.uid.0 == uid);
        if left && judged {
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

    /// A flow ended.
    pub fn forget(&mut self, flow: FlowId) {
        self.tripped.remove(&flow);
    }

    fn decide(&mut self, of: Option<&Candidate>, uid: Option<SnapshotUid>, verdict: Verdict, now_us: u64) {
        let Some(candidate) = of else { return };
        self.decided.push(Decision {
            at_us: now_us,
            datapath: self.datapath,
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
            datapath: self.datapath,
            slot: self.slot,
            algorithm: self.algorithm,
            snapshot: of.snapshot.as_ref().map(|s| s.hash()),
            uid: Some(of.uid),
            origin: of.origin,
            comparison,
            verdict,
        });
    }
}

/// The canary's share of these flows, and how many take it: at least one and not all. With fewer than two, all.
fn choose(share: f64, flows: &[FlowId]) -> (Part, usize) {
    if flows.len() < 2 {
        return (Part::Canary { share: ALL }, flows.len());
    }
    let mut keys: Vec<u16> = flows.iter().map(|f| (spread(f.0) >> 48) as u16).collect();
    keys.sort_unstable();
    let wanted = (share * flows.len() as f64).round() as usize;
    let wanted = wanted.clamp(1, flows.len() - 1);
    // Below the first key that is not to take it; two flows of one key take it together.
    let share = keys[wanted];
    let trying = keys.iter().filter(|k| **k < share).count();
    if trying == 0 { (Part::Canary { share: ALL }, flows.len()) } else { (Part::Canary { share }, trying) }
}

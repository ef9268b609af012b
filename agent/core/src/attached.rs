//! State of one attached datapath: its programs, slots, and waiting commands.

use crate::action::{Command, DatapathId, Fields};
use crate::catalog::{Compiled, Entry};
use crate::deploy::Candidate;
use crate::deploy::{Origin, PushRules, SlotDeployment, SlotState};
use crate::flow::NativeReason;
use crate::panics::catch;
use crate::queue::Queue;
use ccplane_alg::{Control, Request};
use ccplane_contract::{Capabilities, DatapathError, FlowId, ProgramUid};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

/// States of a program at a datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InstallState {
    Pending,
    /// Flows may be set to it.
    Installed,
    /// Flows of its algorithm run the native algorithm there.
    Refused(Arc<DatapathError>),
}

/// A program on a datapath.
#[derive(Clone, Copy, Debug)]
pub struct InstallView<'a> {
    pub datapath: DatapathId,
    pub program: &'a Compiled,
    pub state: &'a InstallState,
}

pub(crate) struct Attached {
    pub capabilities: Capabilities,
    pub programs: BTreeMap<ProgramUid, (Arc<Compiled>, InstallState)>,
    pub slots: BTreeMap<u8, SlotDeployment>,
    pub queue: Queue,
    /// The programs that flows start with before the core hears of them, each with its algorithm.
    pub first: Vec<(&'static str, Arc<Compiled>)>,
    /// Events were dropped since the flows were last reconciled.
    pub missed: bool,
    pub next_heartbeat_us: u64,
    pub next_batch_us: u64,
    pub next_slots_us: u64,
    /// The flows that may change their arm.
    pub choosing: BTreeSet<FlowId>,
    pub next_sample_us: u64,
    /// Hosted algorithms to whose hosts this datapath's flows are still to be announced.
    pub announce: BTreeSet<&'static str>,
}

impl Attached {
    /// Asks for the policies and programs of an algorithm that it does not have.
    pub fn install(&mut self, entry: &Entry, deploy: &mut Deploy<'_>) {
        if self.lacks(entry) {
            return;
        }
        for policy in &entry.policies {
            let slots = &mut self.slots;
            slots.entry(policy.slot()).or_insert_with(|| {
                let (slot, snapshot) = (policy.slot(), policy.snapshot().clone());
                let rules = deploy.rules.clone();
                let (shape, batch_us) = (*snapshot.shape(), deploy.batch_us);
                let mut slot_deployment =
                    SlotDeployment::new(deploy.datapath, entry.name, slot, shape, rules, batch_us);
                // An earlier agent's slot keeps what it holds: it is looked at before anything is pushed.
                self.next_slots_us = deploy.now_us;
                self.queue.push(slot_deployment.define());
                let first = Candidate { snapshot, origin: Origin::Shipped };
                let mut uid = || next_uid(deploy.next_uid);
                if let Some(push) = slot_deployment.propose(first, &[], &mut uid, deploy.now_us) {
                    self.queue.push(push);
                }
                slot_deployment
            });
        }
        entry.programs.iter().for_each(|program| self.install_program(program));
    }

    /// Asks that flows to come start with the programs of an algorithm, where the datapath decides on packets; with none,
    /// where there is no algorithm.
    pub fn install_first(&mut self, entry: Option<&Entry>) {
        let decides = self.capabilities.decides_on_packets();
        let entry = entry.filter(|entry| decides && !self.lacks(entry));
        let before = std::mem::take(&mut self.first);
        if let Some(entry) = entry {
            if before.iter().any(|(name, _)| *name == entry.name) {
                self.first = before;
                return;
            }
            let mut control = Control::default();
            if catch(|| entry.algorithm.first(&mut control)).is_ok() {
                self.queue_first(entry, &control);
            }
        }
        let hook_of = |program: &Compiled| program.program().hook();
        for (_, program) in before {
            if !self.first.iter().any(|(_, now)| hook_of(now) == hook_of(&program)) {
                self.queue.push(Command::ClearFirst { hook: hook_of(&program) });
            }
        }
    }

    fn queue_first(&mut self, entry: &Entry, control: &Control) {
        for Request { program, fields } in control.requests() {
            let Some(program) = program.and_then(|name| entry.program(name)) else { continue };
            let command = Command::SetFirst { uid: program.uid(), fields: Fields::new() };
            if self.queue.push_bounded(command, |to| program.resolve(fields, to)).is_ok() {
                self.first.push((entry.name, Arc::clone(program)));
            }
        }
    }

    /// Asks for one program that it does not have.
    pub fn install_program(&mut self, program: &Arc<Compiled>) {
        self.programs.entry(program.uid()).or_insert_with(|| {
            let install = Command::Install { uid: program.uid(), program: program.program().clone() };
            self.queue.push(install);
            (program.clone(), InstallState::Pending)
        });
    }

    /// Whether the algorithm asks policies and the datapath runs none.
    fn lacks(&self, entry: &Entry) -> bool {
        !entry.policies.is_empty() && !self.capabilities.policy
    }

    /// Returns the reason why an algorithm's flows cannot be steered here, if there is one.
    pub fn refusal(&self, entry: &Entry) -> Option<NativeReason> {
        if self.lacks(entry) {
            return Some(NativeReason::NoPolicies { kind: self.capabilities.kind });
        }
        let refused = entry.policies.iter().find_map(|p| match &self.slots.get(&p.slot())?.state {
            SlotState::Refused(error) => {
                Some(NativeReason::SlotRefused { slot: p.slot(), error: error.clone() })
            }
            SlotState::Pending | SlotState::Defined => None,
        });
        if refused.is_some() {
            return refused;
        }
        entry.programs.iter().find_map(|program| self.refusal_of(program))
    }

    /// Returns the reason for which a program does not run on this datapath.
    pub fn refusal_of(&self, program: &Compiled) -> Option<NativeReason> {
        match self.programs.get(&program.uid()) {
            Some((_, InstallState::Refused(error))) => {
                let program = program.name().to_owned();
                Some(NativeReason::InstallRefused { program, error: error.clone() })
            }
            _ => None,
        }
    }
}

/// Parts of the core that policies are installed with.
pub(crate) struct Deploy<'a> {
    pub datapath: DatapathId,
    pub rules: &'a Arc<PushRules>,
    pub next_uid: &'a mut u32,
    pub batch_us: u64,
    pub now_us: u64,
}

/// The next deployment's number.
pub(crate) fn next_uid(next: &mut u32) -> NonZeroU32 {
    let uid = NonZeroU32::new(*next).unwrap_or(NonZeroU32::MIN);
    *next = uid.get().wrapping_add(1);
    uid
}

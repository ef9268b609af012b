//! A program on one flow: its registers, what its policies keep, and what the agent has staged for the next ACK.

use ccplane_contract::{Field, ProgramUid, SlotTable, apply_fields};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Flow, Machine, Prims};
use std::cell::RefCell;
use std::rc::Rc;

/// An installed program.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) uid: ProgramUid,
    pub(crate) program: Rc<Program>,
    /// Runs it for all flows, unless it has too many constants.
    machine: Option<Rc<RefCell<Machine>>>,
}

impl Installed {
    pub(crate) fn new(uid: ProgramUid, program: &Program) -> Installed {
        let machine = Machine::new(program).ok().map(|machine| Rc::new(RefCell::new(machine)));
        Installed { uid, program: Rc::new(program.clone()), machine }
    }
}

/// What a program did on an ACK, besides setting window and rate.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Invoked {
    /// The report registers, if it reported.
    pub(crate) report: Option<Vec<i64>>,
    /// It asked a policy: a report is a row of a batch.
    pub(crate) asked: bool,
}

/// The program side of one flow.
#[derive(Debug)]
pub(crate) struct Steering {
    vm: Flow,
    policy: FlowPolicy,
    /// The running program's policy had no answer: it does not run any more.
    gave_up: bool,
    running: Option<Installed>,
    /// Starts at the next ACK.
    next: Option<Installed>,
    /// Set at the next ACK, after `next` has started; at most one value a field.
    fields: Vec<(Field, i64)>,
}

impl Steering {
    pub(crate) fn new(cwnd_bytes: i64) -> Steering {
        let vm = Flow::idle(cwnd_bytes);
        Steering {
            vm,
            policy: FlowPolicy::default(),
            gave_up: false,
            running: None,
            next: None,
            fields: Vec::new(),
        }
    }

    /// The program that will run at the next ACK.
    pub(crate) fn program(&self) -> Option<&Installed> {
        self.next.as_ref().or(self.running.as_ref())
    }

    /// Whether the flow runs the program, or is about to.
    pub(crate) fn uses(&self, uid: ProgramUid) -> bool {
        [&self.running, &self.next].into_iter().flatten().any(|p| p.uid == uid)
    }

    /// Stages a program change. Registers staged for the old program are void, a window or rate is not.
    pub(crate) fn stage_program(&mut self, program: Installed, fields: &[(Field, i64)]) {
        self.next = Some(program);
        self.fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
        self.stage_fields(fields);
    }

    /// Stages field updates, which must have passed [`ccplane_contract::check_fields`].
    pub(crate) fn stage_fields(&mut self, fields: &[(Field, i64)]) {
        for (field, value) in fields.iter().copied() {
            // What is no decision must not hide an earlier one.
            let decides = match field {
                Field::Cwnd => value > 0,
                Field::Rate => value >= 0,
                Field::Reg(_) => true,
            };
            if !decides {
                continue;
            }
            match self.fields.iter_mut().find(|(f, _)| *f == field) {
                Some((_, staged)) => *staged = value,
                None => self.fields.push((field, value)),
            }
        }
    }

    /// Forgets the program and all that is staged.
    pub(crate) fn release(&mut self) {
        (self.running, self.next) = (None, None);
        self.gave_up = false;
        self.fields.clear();
        self.vm.rate_bytes_per_s = 0;
    }

    /// One ACK of the flow named `key`.
    pub(crate) fn on_ack(&mut self, prims: &Prims, key: u64, slots: &SlotTable) -> Invoked {
        if let Some(next) = self.next.take() {
            self.vm.start(&next.program, prims.get(Prim::AckNow));
            self.running = Some(next);
            self.gave_up = false;
        }
        let Some(Installed { program, machine, .. }) = &self.running else { return Invoked::default() };
        apply_fields(&mut self.vm, program, &self.fields);
        self.fields.clear();
        let mut report = [0; MAX_REGS];
        let mut policies = slots.policies(key, &mut self.policy);
        let outcome = match machine {
            Some(machine) => {
                machine.borrow_mut().invoke_with(&mut self.vm, prims, &mut policies, &mut report)
            }
            None => self.vm.invoke_with(program, prims, &mut policies, &mut report),
        };
        self.gave_up = outcome.native;
        let report = outcome.report.then(|| report[..program.report_len()].to_vec());
        Invoked { report, asked: outcome.asked }
    }

    /// The program's window from now on is this one, which the flow had while it was not steered.
    pub(crate) fn resume_from(&mut self, cwnd_bytes: i64) {
        self.vm.cwnd_bytes = cwnd_bytes;
    }

    /// Whether a policy had no answer, and no other program is set yet.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up && self.next.is_none()
    }

    /// What is kept for its policies.
    pub(crate) fn policy(&self) -> &FlowPolicy {
        &self.policy
    }

    pub(crate) fn vm(&self) -> &Flow {
        &self.vm
    }
}

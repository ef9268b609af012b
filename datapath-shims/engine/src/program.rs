//! Installed programs, and what a flow runs of one: a machine of its own.

use crate::steering::Ready;
use ccplane_contract::{Field, ProgramUid, apply_fields};
use ccplane_program::ir::{MAX_REGS, Program};
use ccplane_program::vm::{Flow, Machine, Outcome, Policies, Prims};
use std::sync::Arc;

/// An installed program, laid out once.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) uid: ProgramUid,
    pub(crate) program: Arc<Program>,
    pub(crate) asks_policy: bool,
    /// Unless it has too many constants.
    machine: Option<Machine>,
}

impl Installed {
    pub(crate) fn new(uid: ProgramUid, program: &Program) -> Installed {
        Installed {
            uid,
            program: Arc::new(program.clone()),
            asks_policy: program.uses_policy(),
            machine: Machine::new(program).ok(),
        }
    }

    /// For one flow.
    pub(crate) fn load(&self) -> Loaded {
        let machine = self.machine.clone().map(Box::new);
        Loaded { uid: self.uid, program: Arc::clone(&self.program), machine }
    }
}

/// A program on one flow. The machine holds the flow's registers.
#[derive(Debug)]
pub(crate) struct Loaded {
    uid: ProgramUid,
    program: Arc<Program>,
    machine: Option<Box<Machine>>,
}

impl Ready for Loaded {
    fn uid(&self) -> ProgramUid {
        self.uid
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn start(&mut self, flow: &mut Flow, now_us: i64) {
        flow.start(&self.program, now_us);
        if let Some(machine) = &mut self.machine {
            machine.load(flow);
        }
    }

    fn set(&mut self, flow: &mut Flow, fields: &[(Field, i64)]) {
        if let Some(machine) = &self.machine {
            let regs = machine.regs();
            flow.regs[..regs.len()].copy_from_slice(regs);
        }
        apply_fields(flow, &self.program, fields);
        if let Some(machine) = &mut self.machine {
            machine.load(flow);
        }
    }

    #[inline]
    fn invoke<P: Policies + ?Sized>(
        &mut self,
        flow: &mut Flow,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        match &mut self.machine {
            Some(machine) => machine.step(flow, prims, policies, report),
            None => flow.invoke_with(&self.program, prims, policies, report),
        }
    }

    fn regs<'a>(&'a self, flow: &'a Flow) -> &'a [i64] {
        match &self.machine {
            Some(machine) => machine.regs(),
            None => &flow.regs[..self.program.regs().len()],
        }
    }
}

//! Installed programs, as simulated flows run them.

use ccplane_contract::{Field, ProgramUid, apply_fields};
use ccplane_engine::steering::Ready;
use ccplane_program::ir::{MAX_REGS, Program};
use ccplane_program::vm::{Flow, Machine, Outcome, Policies, Prims};
use std::cell::RefCell;
use std::rc::Rc;

/// An installed program. Flows take turns on its machine, which so stays in the processor's cache.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) uid: ProgramUid,
    pub(crate) program: Rc<Program>,
    /// Unless it has too many constants.
    machine: Option<Rc<RefCell<Machine>>>,
}

impl Installed {
    pub(crate) fn new(uid: ProgramUid, program: &Program) -> Installed {
        let machine = Machine::new(program).ok().map(|machine| Rc::new(RefCell::new(machine)));
        Installed { uid, program: Rc::new(program.clone()), machine }
    }
}

impl Ready for Installed {
    fn uid(&self) -> ProgramUid {
        self.uid
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn start(&mut self, flow: &mut Flow, now_us: i64) {
        flow.start(&self.program, now_us);
    }

    fn set(&mut self, flow: &mut Flow, fields: &[(Field, i64)]) {
        apply_fields(flow, &self.program, fields);
    }

    #[inline]
    fn invoke<P: Policies + ?Sized>(
        &mut self,
        flow: &mut Flow,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        match &self.machine {
            Some(machine) => machine.borrow_mut().invoke_with(flow, prims, policies, report),
            None => flow.invoke_with(&self.program, prims, policies, report),
        }
    }

    fn regs<'a>(&'a self, flow: &'a Flow) -> &'a [i64] {
        &flow.regs[..self.program.regs().len()]
    }
}

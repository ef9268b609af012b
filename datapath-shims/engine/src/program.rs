//! Installed programs in two forms: a machine for each flow, or one that all flows of a thread share.

use crate::runner::{NamedProgram, Runnable};
use ccplane_contract::{Field, ProgramUid, apply_fields};
use ccplane_program::ir::{Hook, MAX_REGS, Program};
use ccplane_program::vm::{FastVm, InvokeOutcome, Policies, PrimValues, ProgramState};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// An installed program, compiled once.
#[derive(Debug)]
pub struct Installed {
    pub(crate) named: NamedProgram,
    pub(crate) asks_policy: bool,
    /// Unless it has too many constants.
    machine: Option<FastVm>,
}

impl Installed {
    pub(crate) fn new(uid: ProgramUid, program: &Arc<Program>) -> Installed {
        Installed {
            named: NamedProgram { uid, program: Arc::clone(program) },
            asks_policy: program.uses_policy(),
            machine: FastVm::new(program).ok(),
        }
    }

    /// Makes a copy for one flow.
    pub(crate) fn load(&self) -> Loaded {
        let machine = self.machine.clone().map(Box::new);
        Loaded { named: self.named.clone(), machine }
    }
}

/// A program that flows start with, and its first values.
#[derive(Clone, Debug)]
pub(crate) struct First {
    pub(crate) program: Arc<Installed>,
    pub(crate) fields: Vec<(Field, i64)>,
}

/// The programs that flows start with, by hook.
pub(crate) type FirstPrograms = [Option<First>; Hook::ALL.len()];

/// A program on one flow, whose machine holds the flow's registers.
#[derive(Debug)]
pub(crate) struct Loaded {
    named: NamedProgram,
    machine: Option<Box<FastVm>>,
}

impl Runnable for Loaded {
    fn named(&self) -> &NamedProgram {
        &self.named
    }

    fn start(&mut self, flow: &mut ProgramState, now_us: i64) {
        flow.start(&self.named.program, now_us);
        if let Some(machine) = &mut self.machine {
            machine.load(flow);
        }
    }

    fn set(&mut self, flow: &mut ProgramState, fields: &[(Field, i64)]) {
        if let Some(machine) = &self.machine {
            let regs = machine.regs();
            flow.regs[..regs.len()].copy_from_slice(regs);
        }
        apply_fields(flow, &self.named.program, fields);
        if let Some(machine) = &mut self.machine {
            machine.load(flow);
        }
    }

    #[inline]
    fn invoke<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        match &mut self.machine {
            Some(machine) => machine.step(flow, prims, policies, report),
            None => flow.invoke_with(&self.named.program, prims, policies, report),
        }
    }

    fn regs<'a>(&'a self, flow: &'a ProgramState) -> &'a [i64] {
        match &self.machine {
            Some(machine) => machine.regs(),
            None => &flow.regs[..self.named.program.regs().len()],
        }
    }
}

/// An installed program for flows of one thread, which share its machine, so that it stays in the processor's cache.
#[derive(Clone, Debug)]
pub struct SharedProgram {
    named: NamedProgram,
    /// The machine that runs it, unless the program has too many constants.
    machine: Option<Rc<RefCell<FastVm>>>,
}

impl SharedProgram {
    /// Compiles a program that was installed under this uid.
    pub fn new(uid: ProgramUid, program: &Arc<Program>) -> SharedProgram {
        let machine = FastVm::new(program).ok().map(|machine| Rc::new(RefCell::new(machine)));
        SharedProgram { named: NamedProgram { uid, program: Arc::clone(program) }, machine }
    }
}

impl Runnable for SharedProgram {
    fn named(&self) -> &NamedProgram {
        &self.named
    }

    fn start(&mut self, flow: &mut ProgramState, now_us: i64) {
        flow.start(&self.named.program, now_us);
    }

    fn set(&mut self, flow: &mut ProgramState, fields: &[(Field, i64)]) {
        apply_fields(flow, &self.named.program, fields);
    }

    #[inline]
    fn invoke<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        match &self.machine {
            Some(machine) => machine.borrow_mut().invoke_with(flow, prims, policies, report),
            None => flow.invoke_with(&self.named.program, prims, policies, report),
        }
    }

    fn regs<'a>(&'a self, flow: &'a ProgramState) -> &'a [i64] {
        &flow.regs[..self.named.program.regs().len()]
    }
}

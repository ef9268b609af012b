//! Rewards that are known before the action that follows them.
//!
//! A program decides and reports on the same ACK, so that an interval's reward reaches its algorithm after the next
//! action. Who steps an environment from outside has to hear both the other way round. Until then nothing of the ACK
//! depends on the action but what it sets. So a second run of the program, in which the policy leaves all as it is,
//! makes the same report of the interval; a second agent's side of the flow hears that one and says what the interval
//! was worth.

use crate::interval::{Compiled, Interval};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Report};
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::{Decision, FastVm, Knobs, Policies, PrimValues, ProgramState};
use std::sync::Arc;

/// The second agent's side of a flow. Nothing that it asks for is done.
pub(crate) struct Shadow {
    agent: Box<dyn Flow>,
    control: Control,
    /// The flow's state before its last ACK.
    before: ProgramState,
    /// A machine for the second run, where one can run the flow's program.
    machine: Option<Box<FastVm>>,
}

impl Shadow {
    pub(crate) fn new(algorithm: &Arc<dyn Algorithm>, info: &FlowInfo) -> Shadow {
        let mut control = Control::default();
        let agent = algorithm.flow(info, &mut control);
        Shadow { agent, control, before: ProgramState::idle(0), machine: None }
    }

    /// Takes note that the flow is under another program.
    pub(crate) fn program(&mut self, compiled: &Compiled) {
        self.machine = compiled.machine.clone().map(Box::new);
    }

    /// Hears a report, and returns the reward that it stands for.
    fn hears(&mut self, now_us: u64, report: &Report<'_>) -> Option<f32> {
        self.control.clear();
        self.agent.on_report(now_us, report, &mut self.control);
        self.control.take_rows().first().map(|row| row.reward)
    }
}

/// One ACK, before its program has run.
pub(crate) struct Foresight<'a, M> {
    shadow: &'a mut Shadow,
    /// Whether the report was foreseen.
    seen: bool,
    interval: Interval<'a>,
    prims: &'a M,
}

impl<'a, M: PrimValues> Foresight<'a, M> {
    /// `before` is the flow's state, whose registers are `regs`.
    pub(crate) fn new(
        shadow: &'a mut Shadow,
        before: &ProgramState,
        regs: &[i64],
        interval: Interval<'a>,
        prims: &'a M,
    ) -> Foresight<'a, M> {
        shadow.before.copy_used(before, regs, &interval.compiled.program);
        Foresight { shadow, seen: false, interval, prims }
    }

    /// The reward of the interval that ends now; `None` where none does, or it was asked for before.
    pub(crate) fn reward(&mut self) -> Option<f32> {
        if std::mem::replace(&mut self.seen, true) {
            return None;
        }
        let (program, mut values) = (&self.interval.compiled.program, [0; MAX_REGS]);
        let Shadow { before, machine, .. } = &mut *self.shadow;
        let outcome = match machine {
            Some(machine) => machine.invoke_with(before, self.prims, &mut LeavesAll, &mut values),
            None => before.invoke_with(program, self.prims, &mut LeavesAll, &mut values),
        };
        if !outcome.report {
            return None;
        }
        self.shadow.hears(self.interval.now_us, &self.interval.report(&values))
    }

    /// Takes a report that no decision went before.
    pub(crate) fn missed(self, report: &Report<'_>) {
        if !self.seen {
            self.shadow.hears(self.interval.now_us, report);
        }
    }
}

/// A policy that answers, and changes nothing.
struct LeavesAll;

impl Policies for LeavesAll {
    fn decide(&mut self, _slot: u8, _inputs: &[i32], _knobs: &mut Knobs) -> Decision {
        Decision::Action { action_q16: 0, snapshot: 1 }
    }
}

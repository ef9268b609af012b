//! The program that runs on one flow, the flow's registers, and the changes that are staged for its next ACK.

use ccplane_contract::registry::Change;
use ccplane_contract::suite::{Observation, PolicyObservation, Sending};
use ccplane_contract::{Field, Mode, ProgramUid, mss_register};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Program};
use ccplane_program::vm::{InvokeOutcome, Policies, PrimValues, ProgramState};
use std::sync::Arc;

/// A program under the uid that it was installed as.
#[derive(Clone, Debug)]
pub struct NamedProgram {
    pub uid: ProgramUid,
    pub program: Arc<Program>,
}

/// A program loaded for a flow. Datapaths differ in whether flows share the machine that runs it.
pub trait Runnable {
    fn named(&self) -> &NamedProgram;
    fn uid(&self) -> ProgramUid {
        self.named().uid
    }
    fn program(&self) -> &Program {
        &self.named().program
    }
    /// Puts a flow into its initial state: [`ProgramState::start`].
    fn start(&mut self, flow: &mut ProgramState, now_us: i64);
    /// Sets fields of a flow that it runs on: [`ccplane_contract::apply_fields`].
    fn set(&mut self, flow: &mut ProgramState, fields: &[(Field, i64)]);
    /// Decides on one ACK by [`ProgramState::invoke_with`].
    fn invoke<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome;
    /// The registers of a flow that it runs on.
    fn regs<'a>(&'a self, flow: &'a ProgramState) -> &'a [i64];
}

/// Changes that the agent has staged for a flow's next ACK.
#[derive(Clone, Debug)]
pub struct Staged<R> {
    /// The program that starts at that ACK.
    next: Option<R>,
    /// Values to set once that program has started; at most one a field.
    fields: Vec<(Field, i64)>,
}

impl<R> Default for Staged<R> {
    fn default() -> Self {
        Staged { next: None, fields: Vec::new() }
    }
}

impl<R: Runnable> Staged<R> {
    /// The program that will start.
    pub fn program(&self) -> Option<&R> {
        self.next.as_ref()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.next.is_none() && self.fields.is_empty()
    }

    /// Stages a program change; hands back one that was staged before and never started. Registers staged for the old
    /// program are void, a window or rate is not.
    pub fn stage_program(&mut self, program: R, fields: &[(Field, i64)]) -> Option<R> {
        let before = self.next.replace(program);
        self.fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
        self.stage_fields(fields);
        before
    }

    /// Stages field updates, which must have passed [`ccplane_contract::check_fields`].
    pub fn stage_fields(&mut self, fields: &[(Field, i64)]) {
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

    /// Stages a change that the registry has admitted.
    pub fn stage(&mut self, change: Change<'_, R>) {
        match change.program.filter(|_| change.starts) {
            Some((_, entry)) => drop(self.stage_program(entry.loaded, change.fields)),
            None => self.stage_fields(change.fields),
        }
    }

    /// Forgets all of it; hands back the program.
    pub fn clear(&mut self) -> Option<R> {
        self.fields.clear();
        self.next.take()
    }
}

/// The outcome of an ACK without a program: no report, no policy asked.
const NOTHING: InvokeOutcome = InvokeOutcome { report: false, asked: false, native: false };

/// A flow's registers, and the program that runs on it.
#[derive(Clone, Debug)]
pub struct ProgramRunner<R> {
    flow: ProgramState,
    running: Option<R>,
    /// Whether the running program's policy had no answer, so that the program does not run any more.
    lacks_decision: bool,
    /// The segment size at the flow's start, bytes, which is the one that the agent knows.
    first_mss_bytes: i64,
    /// The segment size that the running program was told last, bytes.
    told_mss_bytes: i64,
}

impl<R: Runnable> ProgramRunner<R> {
    /// Creates a runner without a program, with a window and a segment size in bytes.
    pub fn new(cwnd_bytes: i64, mss_bytes: i64) -> ProgramRunner<R> {
        ProgramRunner {
            flow: ProgramState::idle(cwnd_bytes),
            running: None,
            lacks_decision: false,
            first_mss_bytes: mss_bytes,
            told_mss_bytes: mss_bytes,
        }
    }

    /// The program that runs, or ran until its policy had no answer.
    #[inline]
    pub fn running(&self) -> Option<&R> {
        self.running.as_ref()
    }

    /// The flow's window, rate, histories and faults; its registers are [`ProgramRunner::regs`].
    #[inline]
    pub fn flow(&self) -> &ProgramState {
        &self.flow
    }

    /// The running program's registers.
    pub fn regs(&self) -> &[i64] {
        self.running.as_ref().map_or(&[], |running| running.regs(&self.flow))
    }

    /// Whether a policy of the running program had no answer.
    #[inline]
    pub fn lacks_decision(&self) -> bool {
        self.lacks_decision
    }

    /// Returns the mode that an invocation now would run in; `has_next` says that a program is staged.
    #[inline]
    pub fn mode_now(&self, agent_silent: bool, has_next: bool) -> Mode {
        if !has_next && self.running.is_none() {
            Mode::NativeNoProgram
        } else if !has_next && self.lacks_decision {
            Mode::NativePolicy
        } else if agent_silent {
            Mode::NativeAgentSilent
        } else {
            Mode::Program
        }
    }

    /// Applies the staged changes at an ACK of this time, microseconds; returns the program that was replaced.
    pub fn take(&mut self, staged: &mut Staged<R>, now_us: i64) -> Option<R> {
        let mut before = None;
        if let Some(mut next) = staged.next.take() {
            next.start(&mut self.flow, now_us);
            before = self.running.replace(next);
            self.lacks_decision = false;
            self.told_mss_bytes = self.first_mss_bytes;
        }
        if let Some(running) = &mut self.running {
            running.set(&mut self.flow, &staged.fields);
            staged.fields.clear();
        }
        before
    }

    /// Runs the program, if there is one, on an ACK at this segment size, bytes.
    #[inline]
    pub fn invoke<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        mss_bytes: i64,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        if mss_bytes != self.told_mss_bytes {
            self.tell_mss(mss_bytes);
        }
        let Some(running) = &mut self.running else { return NOTHING };
        let outcome = running.invoke(&mut self.flow, prims, policies, report);
        self.lacks_decision = outcome.native;
        outcome
    }

    /// Updates the program's [`ccplane_contract::MSS_REGISTER`] if it holds the previous segment size.
    #[cold]
    fn tell_mss(&mut self, mss_bytes: i64) {
        let told_bytes = std::mem::replace(&mut self.told_mss_bytes, mss_bytes);
        let Some(running) = &mut self.running else { return };
        let Some(register) = mss_register(running.program()) else { return };
        if running.regs(&self.flow).get(usize::from(register)) == Some(&told_bytes) {
            running.set(&mut self.flow, &[(Field::Reg(register), mss_bytes)]);
        }
    }

    /// Removes the program and its rate; returns the program.
    pub fn release(&mut self) -> Option<R> {
        self.lacks_decision = false;
        self.flow.rate_bytes_per_s = 0;
        self.running.take()
    }

    /// Returns the state that the contract's suite checks, but for the report; `asked` says that the ACK asked a policy.
    pub fn observe(&self, policy: &FlowPolicy, asked: bool) -> Option<Observation> {
        let program = self.running()?.program();
        let native = self.lacks_decision;
        Some(Observation {
            regs: self.regs().to_vec(),
            cwnd_bytes: self.flow.cwnd_bytes,
            rate_bytes_per_s: self.flow.rate_bytes_per_s,
            faults: self.flow.faults,
            report: None,
            sending: Sending::of(&self.flow),
            policy: Some(PolicyObservation::new(program, &self.flow, policy, asked, native)),
        })
    }

    /// Sets the priority and the path that hold until a program sets others.
    pub fn begin_from(&mut self, priority: i64, path: i64) {
        (self.flow.priority, self.flow.path) = (priority, path);
    }

    /// Sets the window, bytes, to the one that the flow had while no program controlled it.
    pub(crate) fn resume_from(&mut self, cwnd_bytes: i64) {
        self.flow.cwnd_bytes = cwnd_bytes;
    }
}

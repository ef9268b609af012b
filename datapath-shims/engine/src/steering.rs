//! The program side of one flow: its registers, the program that runs, and what is staged for its next ACK.

use ccplane_contract::{Field, ProgramUid, mss_register};
use ccplane_program::ir::{MAX_REGS, Program};
use ccplane_program::vm::{Flow, Outcome, Policies, Prims};

/// A program made ready to run on a flow. Datapaths differ in whether flows share what runs it.
pub trait Ready {
    /// Its name.
    fn uid(&self) -> ProgramUid;
    /// What it is.
    fn program(&self) -> &Program;
    /// Puts a flow into its initial state: [`Flow::start`].
    fn start(&mut self, flow: &mut Flow, now_us: i64);
    /// Sets fields of a flow that it runs on: [`ccplane_contract::apply_fields`].
    fn set(&mut self, flow: &mut Flow, fields: &[(Field, i64)]);
    /// One ACK of a flow that it runs on: [`Flow::invoke_with`].
    fn invoke<P: Policies + ?Sized>(
        &mut self,
        flow: &mut Flow,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome;
    /// The registers of a flow that it runs on.
    fn regs<'a>(&'a self, flow: &'a Flow) -> &'a [i64];
}

/// What the agent has staged for a flow's next ACK.
#[derive(Clone, Debug)]
pub struct Staged<R> {
    /// Starts then.
    next: Option<R>,
    /// Set after it has started; at most one value a field.
    fields: Vec<(Field, i64)>,
}

impl<R> Default for Staged<R> {
    fn default() -> Self {
        Staged { next: None, fields: Vec::new() }
    }
}

impl<R: Ready> Staged<R> {
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

    /// Forgets all of it; hands back the program.
    pub fn clear(&mut self) -> Option<R> {
        self.fields.clear();
        self.next.take()
    }
}

/// What no program asks of a datapath.
const NOTHING: Outcome = Outcome { report: false, asked: false, native: false };

/// A flow's registers, and the program that runs on it.
#[derive(Clone, Debug)]
pub struct Steering<R> {
    flow: Flow,
    running: Option<R>,
    /// The running program's policy had no answer: it does not run any more.
    gave_up: bool,
    /// The segment size of the flow's start, bytes, which is the one that the agent knows.
    first_mss_bytes: i64,
    /// The one that the running program was told last.
    told_mss_bytes: i64,
}

impl<R: Ready> Steering<R> {
    /// Under no program, with this window and this segment size, bytes.
    pub fn new(cwnd_bytes: i64, mss_bytes: i64) -> Steering<R> {
        Steering {
            flow: Flow::idle(cwnd_bytes),
            running: None,
            gave_up: false,
            first_mss_bytes: mss_bytes,
            told_mss_bytes: mss_bytes,
        }
    }

    /// The program that runs, or ran until its policy had no answer.
    #[inline]
    pub fn running(&self) -> Option<&R> {
        self.running.as_ref()
    }

    /// Its window, rate, histories and faults; its registers are [`Steering::regs`].
    #[inline]
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The running program's registers.
    pub fn regs(&self) -> &[i64] {
        self.running.as_ref().map_or(&[], |running| running.regs(&self.flow))
    }

    /// Whether a policy of the running program had no answer.
    #[inline]
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// What was staged takes effect, at an ACK of this time. Hands back the program that another one replaced.
    pub fn take(&mut self, staged: &mut Staged<R>, now_us: i64) -> Option<R> {
        let mut before = None;
        if let Some(mut next) = staged.next.take() {
            next.start(&mut self.flow, now_us);
            before = self.running.replace(next);
            self.gave_up = false;
            self.told_mss_bytes = self.first_mss_bytes;
        }
        if let Some(running) = &mut self.running {
            running.set(&mut self.flow, &staged.fields);
            staged.fields.clear();
        }
        before
    }

    /// One ACK under the running program, if there is one, at this segment size, bytes.
    #[inline]
    pub fn invoke<P: Policies + ?Sized>(
        &mut self,
        mss_bytes: i64,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        if mss_bytes != self.told_mss_bytes {
            self.tell_mss(mss_bytes);
        }
        let Some(running) = &mut self.running else { return NOTHING };
        let outcome = running.invoke(&mut self.flow, prims, policies, report);
        self.gave_up = outcome.native;
        outcome
    }

    /// For what the running program keeps in [`ccplane_contract::MSS_REGISTER`].
    #[cold]
    fn tell_mss(&mut self, mss_bytes: i64) {
        let told_bytes = std::mem::replace(&mut self.told_mss_bytes, mss_bytes);
        let Some(running) = &mut self.running else { return };
        let Some(register) = mss_register(running.program()) else { return };
        if running.regs(&self.flow).get(usize::from(register)) == Some(&told_bytes) {
            running.set(&mut self.flow, &[(Field::Reg(register), mss_bytes)]);
        }
    }

    /// Forgets the program and its rate; hands it back.
    pub fn release(&mut self) -> Option<R> {
        self.gave_up = false;
        self.flow.rate_bytes_per_s = 0;
        self.running.take()
    }

    /// The program's window from now on is this one, which the flow had while it was not steered.
    pub(crate) fn resume_from(&mut self, cwnd_bytes: i64) {
        self.flow.cwnd_bytes = cwnd_bytes;
    }
}

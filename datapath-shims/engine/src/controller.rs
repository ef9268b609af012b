//! The choice between a flow's program and its native algorithm, and the congestion window that results.

use crate::native::{MAX_CWND_PACKETS, Reno};
use crate::runner::{ProgramRunner, Runnable, Staged};
use ccplane_contract::{Mode, ProgramUid};
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::{InvokeOutcome, Policies, Prims};

/// A flow's program and its native algorithm. One of them controls the flow, and hands its window to the other.
#[derive(Clone, Debug)]
pub struct FlowController<R> {
    runner: ProgramRunner<R>,
    /// The native algorithm, which decides while no program controls the flow.
    pub reno: Reno,
    mode: Mode,
    mss_bytes: u64,
}

impl<R: Runnable> FlowController<R> {
    /// Creates a controller in native mode with this window. A segment has at least one byte.
    pub fn new(cwnd_packets: u64, mss_bytes: u32) -> FlowController<R> {
        let mss_bytes = u64::from(mss_bytes.max(1));
        let cwnd_packets = cwnd_packets.clamp(1, MAX_CWND_PACKETS);
        FlowController {
            runner: ProgramRunner::new((cwnd_packets * mss_bytes) as i64, mss_bytes as i64),
            reno: Reno::new(cwnd_packets),
            mode: Mode::NativeNoProgram,
            mss_bytes,
        }
    }

    /// The current mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The runner of the flow's program.
    #[inline]
    pub fn runner(&self) -> &ProgramRunner<R> {
        &self.runner
    }

    /// Sets the segment size, bytes, for the program as well: [`ccplane_contract::MSS_REGISTER`].
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.mss_bytes = u64::from(mss_bytes.max(1));
    }

    /// Returns the program that runs at the next ACK: the staged one, or else the running one.
    pub fn next_program<'a>(&'a self, staged: &'a Staged<R>) -> Option<&'a R> {
        staged.program().or(self.runner.running())
    }

    /// Whether the flow runs the program, or will at its next ACK.
    pub fn uses(&self, staged: &Staged<R>, uid: ProgramUid) -> bool {
        [staged.program(), self.runner.running()].into_iter().flatten().any(|program| program.uid() == uid)
    }

    /// The segment size, bytes.
    #[inline]
    pub fn mss_bytes(&self) -> u64 {
        self.mss_bytes
    }

    /// Returns the mode that an ACK now would run in; `has_next` says that a program is staged.
    #[inline]
    pub fn mode_now(&self, agent_silent: bool, has_next: bool) -> Mode {
        self.runner.mode_now(agent_silent, has_next)
    }

    /// Changes the mode; whichever side takes over starts from the current window.
    #[inline]
    pub fn choose(&mut self, mode: Mode) {
        if mode != self.mode {
            self.switch_to(mode);
        }
    }

    fn switch_to(&mut self, mode: Mode) {
        match (self.mode, mode) {
            (Mode::Program, _) => self.reno.take_over(self.wanted_packets()),
            (_, Mode::Program) => self.runner.resume_from(self.wanted_bytes() as i64),
            _ => {}
        }
        self.mode = mode;
    }

    /// Applies the staged changes at an ACK of this time, microseconds; returns the program that was replaced.
    pub fn take(&mut self, staged: &mut Staged<R>, now_us: i64) -> Option<R> {
        self.runner.take(staged, now_us)
    }

    /// Runs the program on one ACK. If a policy has no answer, the native algorithm takes over from its window.
    #[inline]
    pub fn invoke<P: Policies + ?Sized>(
        &mut self,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        let outcome = self.runner.invoke(self.mss_bytes as i64, prims, policies, report);
        if outcome.native {
            self.choose(Mode::NativePolicy);
        }
        outcome
    }

    /// Returns the flow to the native algorithm at the current window, and removes the program, which is returned.
    pub fn release(&mut self) -> Option<R> {
        self.choose(Mode::NativeNoProgram);
        self.runner.release()
    }

    /// The window that the program or the native algorithm wants, bytes.
    #[inline]
    pub fn wanted_bytes(&self) -> u64 {
        if self.mode == Mode::Program {
            self.runner.flow().cwnd_bytes.max(0) as u64
        } else {
            self.reno.cwnd_packets * self.mss_bytes
        }
    }

    /// The wanted window in whole packets, from 1 to [`MAX_CWND_PACKETS`].
    #[inline]
    pub fn wanted_packets(&self) -> u64 {
        if self.mode == Mode::Program {
            (self.wanted_bytes() / self.mss_bytes).clamp(1, MAX_CWND_PACKETS)
        } else {
            self.reno.cwnd_packets.clamp(1, MAX_CWND_PACKETS)
        }
    }

    /// The rate that the program sets, bytes per second; 0 when it sets none, or when no program controls the flow.
    #[inline]
    pub fn program_rate(&self) -> u64 {
        if self.mode == Mode::Program { self.runner.flow().rate_bytes_per_s.max(0) as u64 } else { 0 }
    }
}

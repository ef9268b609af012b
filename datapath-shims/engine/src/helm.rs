//! Who steers a flow: its program, or the native algorithm; and the window that comes of it.

use crate::native::{MAX_CWND_PACKETS, Reno};
use crate::steering::{Ready, Staged, Steering};
use ccplane_contract::Mode;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::vm::{Outcome, Policies, Prims};

/// A flow's program and its native algorithm, of which one steers. Who takes over goes on from the other's window.
#[derive(Clone, Debug)]
pub struct Helm<R> {
    steering: Steering<R>,
    /// Decides while no program steers.
    pub reno: Reno,
    mode: Mode,
    mss_bytes: u64,
}

impl<R: Ready> Helm<R> {
    /// Steered natively, with this window. A segment has at least one byte.
    pub fn new(cwnd_packets: u64, mss_bytes: u32) -> Helm<R> {
        let mss_bytes = u64::from(mss_bytes.max(1));
        let cwnd_packets = cwnd_packets.clamp(1, MAX_CWND_PACKETS);
        Helm {
            steering: Steering::new((cwnd_packets * mss_bytes) as i64, mss_bytes as i64),
            reno: Reno::new(cwnd_packets),
            mode: Mode::NativeNoProgram,
            mss_bytes,
        }
    }

    /// Who steers.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The program side.
    #[inline]
    pub fn steering(&self) -> &Steering<R> {
        &self.steering
    }

    /// The segment size from now on, for the program as well: [`ccplane_contract::MSS_REGISTER`].
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.mss_bytes = u64::from(mss_bytes.max(1));
    }

    /// The segment size, bytes.
    #[inline]
    pub fn mss_bytes(&self) -> u64 {
        self.mss_bytes
    }

    /// Who would steer at an ACK now; `has_next`: a program is staged.
    #[inline]
    pub fn mode_now(&self, agent_silent: bool, has_next: bool) -> Mode {
        if !has_next && self.steering.running().is_none() {
            Mode::NativeNoProgram
        } else if !has_next && self.steering.gave_up() {
            Mode::NativePolicy
        } else if agent_silent {
            Mode::NativeAgentSilent
        } else {
            Mode::Program
        }
    }

    /// Who steers from now on.
    #[inline]
    pub fn choose(&mut self, mode: Mode) {
        if mode != self.mode {
            self.hand_over(mode);
        }
    }

    fn hand_over(&mut self, mode: Mode) {
        match (self.mode, mode) {
            (Mode::Program, _) => self.reno.take_over(self.wanted_packets()),
            (_, Mode::Program) => self.steering.resume_from(self.wanted_bytes() as i64),
            _ => {}
        }
        self.mode = mode;
    }

    /// What was staged takes effect, at an ACK of this time that the program steers. Hands back the program that another
    /// one replaced.
    pub fn take(&mut self, staged: &mut Staged<R>, now_us: i64) -> Option<R> {
        self.steering.take(staged, now_us)
    }

    /// One ACK under the program. Where a policy had no answer, the native algorithm goes on from there.
    #[inline]
    pub fn invoke<P: Policies + ?Sized>(
        &mut self,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        let outcome = self.steering.invoke(self.mss_bytes as i64, prims, policies, report);
        if outcome.native {
            self.choose(Mode::NativePolicy);
        }
        outcome
    }

    /// Hands the flow to the native algorithm, from its window, and forgets the program, which is handed back.
    pub fn release(&mut self) -> Option<R> {
        self.choose(Mode::NativeNoProgram);
        self.steering.release()
    }

    /// The window that the program or the native algorithm wants, bytes.
    #[inline]
    pub fn wanted_bytes(&self) -> u64 {
        if self.mode == Mode::Program {
            self.steering.flow().cwnd_bytes.max(0) as u64
        } else {
            self.reno.cwnd_packets * self.mss_bytes
        }
    }

    /// That window in whole packets: at least one, at most [`MAX_CWND_PACKETS`].
    #[inline]
    pub fn wanted_packets(&self) -> u64 {
        if self.mode == Mode::Program {
            (self.wanted_bytes() / self.mss_bytes).clamp(1, MAX_CWND_PACKETS)
        } else {
            self.reno.cwnd_packets.clamp(1, MAX_CWND_PACKETS)
        }
    }

    /// The rate that the program sets, bytes per second; 0 when it sets none, or none steers.
    #[inline]
    pub fn program_rate(&self) -> u64 {
        if self.mode == Mode::Program { self.steering.flow().rate_bytes_per_s.max(0) as u64 } else { 0 }
    }
}

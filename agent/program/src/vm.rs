//! The reference executor: what a program means. No allocation, no panics, no float.
//!
//! Every other executor (BPF, C, [`FastVm`]) gives the same bits on the same input.

mod fast;

pub use fast::{FastVm, TooManyConstants};

use crate::ir::{
    ACK_PRIM_COUNT, MAX_PATHS, MAX_POLICY_INPUTS, MAX_PRIORITY, PRIM_COUNT, Prim, Program, RegKind, Src,
};
use crate::ir::{Clause, Dst, INFINITY, Inst, MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S, MAX_REGS, MAX_TMPS, Op};

/// The values of a hook's primitives at one invocation.
pub trait PrimValues {
    /// Returns the value of one primitive; 0 for one of another hook.
    fn get(&self, prim: Prim) -> i64;
}

/// The primitives of one ACK, indexed by [`Prim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prims([i64; ACK_PRIM_COUNT]);

impl Default for Prims {
    /// All zero, and no RTT sample.
    fn default() -> Self {
        let mut p = Prims([0; ACK_PRIM_COUNT]);
        p.set(Prim::FlowRttSampleUs, 0);
        p
    }
}

impl Prims {
    /// Sets one primitive. An RTT sample of 0 or less means "none" and reads as [`INFINITY`], as in libccp;
    /// `Flow.was_timeout` becomes 0 or 1.
    pub fn set(&mut self, prim: Prim, value: i64) -> &mut Self {
        if let Some(at) = self.0.get_mut(prim as usize) {
            *at = match prim {
                Prim::FlowRttSampleUs if value <= 0 => INFINITY,
                Prim::FlowWasTimeout => i64::from(value != 0),
                _ => value,
            };
        }
        self
    }
    /// Returns the value of one primitive; 0 for one of another hook.
    #[inline]
    pub fn get(&self, prim: Prim) -> i64 {
        self.0.get(prim as usize).copied().unwrap_or(0)
    }
}

impl PrimValues for Prims {
    #[inline]
    fn get(&self, prim: Prim) -> i64 {
        Prims::get(self, prim)
    }
}

/// The primitives of a packet or of a flow's start, indexed by [`Prim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendPrims([i64; PRIM_COUNT - ACK_PRIM_COUNT]);

impl Default for SendPrims {
    fn default() -> Self {
        SendPrims([0; PRIM_COUNT - ACK_PRIM_COUNT])
    }
}

impl SendPrims {
    /// Sets one primitive; one of [`crate::ir::Hook::Ack`] is left out.
    pub fn set(&mut self, prim: Prim, value: i64) -> &mut Self {
        if let Some(at) = (prim as usize).checked_sub(ACK_PRIM_COUNT) {
            self.0[at] = value;
        }
        self
    }
}

impl PrimValues for SendPrims {
    #[inline]
    fn get(&self, prim: Prim) -> i64 {
        (prim as usize).checked_sub(ACK_PRIM_COUNT).map_or(0, |at| self.0[at])
    }
}

/// One flow's state under one program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramState {
    /// The register file, in the program's declaration order.
    pub regs: [i64; MAX_REGS],
    /// Congestion window, bytes. Kept exactly; a datapath rounds a copy to packets.
    pub cwnd_bytes: i64,
    /// Pacing rate, bytes per second; 0 when the program has set none.
    pub rate_bytes_per_s: i64,
    /// Priority, 0 (served first) to [`MAX_PRIORITY`].
    pub priority: i64,
    /// The number of the path, below [`MAX_PATHS`].
    pub path: i64,
    /// The count of sent bytes from which on the program runs again.
    pub decide_at_bytes: i64,
    /// The clock when `Micros` read 0, microseconds.
    pub micros_zero_us: i64,
    /// Saturations and divisions by zero since the flow started.
    pub faults: u64,
    /// The cells of all histories: see [`Program::history_cells`].
    pub histories: [i32; MAX_POLICY_INPUTS],
    /// The last answer of a policy, Q16; 0 if it was none.
    pub action_q16: i64,
    /// The deployment that decided it; 0 before the first answer, and if the last was none.
    pub snapshot: u32,
}

/// The state that a policy's decision may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// The congestion window, bytes.
    pub cwnd_bytes: i64,
    /// Pacing rate, bytes per second; 0 when none was set.
    pub rate_bytes_per_s: i64,
}

/// The outcome of a policy's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The action, Q16, by this deployment.
    Action {
        /// The action after noise and bound, Q16.
        action_q16: i64,
        snapshot: u32,
    },
    /// No decision can be had: the flow becomes the native algorithm's when the invocation ends.
    Native,
}

/// Whoever holds the snapshots that `(policy slot)` asks.
pub trait Policies {
    /// Decides in slot `slot` from `inputs`, the program's history cells, and changes `knobs` as the action says.
    fn decide(&mut self, slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision;
}

/// A policy source without snapshots, under which no policy ever decides.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoPolicies;

impl Policies for NoPolicies {
    fn decide(&mut self, _: u8, _: &[i32], _: &mut Knobs) -> Decision {
        Decision::Native
    }
}

/// The requests of one invocation to the datapath, beyond [`ProgramState::cwnd_bytes`] and [`ProgramState::rate_bytes_per_s`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvokeOutcome {
    /// Send a report: the first [`Program::report_len`] values that [`ProgramState::invoke`] left in its buffer.
    pub report: bool,
    /// A policy was asked.
    pub asked: bool,
    /// A policy had no answer: the flow is the native algorithm's from now on.
    pub native: bool,
}

impl ProgramState {
    /// A flow that starts running `program` at `now_us` with this window.
    pub fn new(program: &Program, cwnd_bytes: i64, now_us: i64) -> ProgramState {
        let mut flow = ProgramState::idle(cwnd_bytes);
        flow.start(program, now_us);
        flow
    }

    /// A flow under no program yet, with this window.
    pub fn idle(cwnd_bytes: i64) -> ProgramState {
        ProgramState {
            regs: [0; MAX_REGS],
            cwnd_bytes,
            rate_bytes_per_s: 0,
            priority: 0,
            path: 0,
            decide_at_bytes: 0,
            micros_zero_us: 0,
            faults: 0,
            histories: [0; MAX_POLICY_INPUTS],
            action_q16: 0,
            snapshot: 0,
        }
    }

    /// Switches to `program`: registers to their initial values, `Micros`, histories and the last action to 0; window,
    /// rate and faults stay.
    pub fn start(&mut self, program: &Program, now_us: i64) {
        self.regs = [0; MAX_REGS];
        for (reg, decl) in self.regs.iter_mut().zip(program.regs()) {
            *reg = decl.init;
        }
        self.micros_zero_us = now_us;
        self.histories = [0; MAX_POLICY_INPUTS];
        self.action_q16 = 0;
        self.snapshot = 0;
    }

    /// Becomes `other`, whose registers are `regs`; of registers and histories only those that `program` has are copied.
    pub fn copy_used(&mut self, other: &ProgramState, regs: &[i64], program: &Program) {
        self.regs[..regs.len()].copy_from_slice(regs);
        let cells = program.policy_inputs();
        self.histories[..cells].copy_from_slice(&other.histories[..cells]);
        // Each field by name: who adds one is told here.
        let ProgramState {
            regs: _,
            cwnd_bytes,
            rate_bytes_per_s,
            priority,
            path,
            decide_at_bytes,
            micros_zero_us,
            faults,
            histories: _,
            action_q16,
            snapshot,
        } = *other;
        (self.cwnd_bytes, self.rate_bytes_per_s) = (cwnd_bytes, rate_bytes_per_s);
        (self.priority, self.path, self.decide_at_bytes) = (priority, path, decide_at_bytes);
        (self.micros_zero_us, self.faults) = (micros_zero_us, faults);
        (self.action_q16, self.snapshot) = (action_q16, snapshot);
    }

    /// Runs `program`, which asks no policy, on one ACK: [`ProgramState::invoke_with`] and [`NoPolicies`].
    pub fn invoke(
        &mut self,
        program: &Program,
        prims: &Prims,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        self.invoke_with(program, prims, &mut NoPolicies, report)
    }

    /// Runs `program` on one ACK. If the outcome says report, `report` holds the register file as the
    /// program left it, and the volatile registers are back at their initial values.
    pub fn invoke_with<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        program: &Program,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        let now_us = prims.get(program.hook().clock());
        let (cwnd_before, rate_before) = (self.cwnd_bytes, self.rate_bytes_per_s);
        let (priority_before, path_before) = (self.priority, self.path);
        let mut run = Run {
            prims,
            now_us,
            tmps: [0; MAX_TMPS],
            micros_us: now_us.saturating_sub(self.micros_zero_us),
            should_report: false,
            should_continue: false,
            asked: false,
            native: false,
            flow: self,
            program,
            policies,
        };
        for clause in program.clauses() {
            if run.clause(clause) && !run.should_continue {
                break;
            }
        }
        let outcome = InvokeOutcome { report: run.should_report, asked: run.asked, native: run.native };
        // A window that is not positive, or a negative rate, is no decision.
        if self.cwnd_bytes <= 0 {
            self.cwnd_bytes = cwnd_before;
        }
        self.cwnd_bytes = self.cwnd_bytes.min(MAX_CWND_BYTES);
        if self.rate_bytes_per_s < 0 {
            self.rate_bytes_per_s = rate_before;
        }
        self.rate_bytes_per_s = self.rate_bytes_per_s.min(MAX_RATE_BYTES_PER_S);
        // Nor is a priority or a path that there never is.
        if !(0..=MAX_PRIORITY).contains(&self.priority) {
            self.priority = priority_before;
        }
        if !(0..MAX_PATHS as i64).contains(&self.path) {
            self.path = path_before;
        }
        if outcome.report {
            *report = self.regs;
            for (reg, decl) in self.regs.iter_mut().zip(program.regs()) {
                if decl.volatile && decl.kind != RegKind::Local {
                    *reg = decl.init;
                }
            }
        }
        outcome
    }
}

struct Run<'a, P: ?Sized, M> {
    flow: &'a mut ProgramState,
    program: &'a Program,
    policies: &'a mut P,
    prims: &'a M,
    now_us: i64,
    tmps: [i64; MAX_TMPS],
    micros_us: i64,
    should_report: bool,
    should_continue: bool,
    asked: bool,
    native: bool,
}

impl<P: Policies + ?Sized, M: PrimValues> Run<'_, P, M> {
    /// Runs one clause; true if its guard held.
    fn clause(&mut self, clause: &Clause) -> bool {
        let program = self.program;
        self.block(program.insts().get(clause.guard_range()));
        let holds = self.read(clause.guard) != 0;
        if holds {
            self.block(program.insts().get(clause.body_range()));
        }
        holds
    }

    fn block(&mut self, insts: Option<&[Inst]>) {
        for inst in insts.unwrap_or_default() {
            self.step(inst);
        }
    }

    #[inline]
    fn step(&mut self, inst: &Inst) {
        let b = self.read(inst.b);
        if inst.op == Op::Bind {
            return self.write(inst.dst, b);
        }
        let a = self.read(inst.a);
        let value = match inst.op {
            Op::Bind => b,
            Op::Add => self.add(a, b),
            Op::Sub => match a.checked_sub(b) {
                Some(v) => v,
                None => self.fault(a.saturating_sub(b)),
            },
            Op::Mul => self.mul(a, b),
            Op::Div => self.div(a, b),
            Op::Eq => i64::from(a == b),
            Op::Lt => i64::from(a < b),
            Op::Gt => i64::from(a > b),
            Op::Le => i64::from(a <= b),
            Op::Ge => i64::from(a >= b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::MaxWrap => wrapped_max(a, b),
            Op::And => a & b,
            Op::Or => a | b,
            Op::Ewma => self.ewma(inst.dst, a, b),
            Op::If if a != 0 => b,
            Op::NotIf if a == 0 => b,
            Op::If | Op::NotIf => return,
            Op::History => return self.append(a),
            Op::Policy => return self.ask(a),
        };
        self.write(inst.dst, value);
    }

    #[inline]
    fn read(&self, src: Src) -> i64 {
        match src {
            Src::Imm(v) => v,
            Src::Bool(v) => i64::from(v),
            Src::Reg(r) => self.flow.regs[usize::from(r) % MAX_REGS],
            Src::Tmp(t) => self.tmps[usize::from(t) % MAX_TMPS],
            Src::Prim(p) => self.prims.get(p),
            Src::Cwnd => self.flow.cwnd_bytes,
            Src::Rate => self.flow.rate_bytes_per_s,
            Src::Priority => self.flow.priority,
            Src::Path => self.flow.path,
            Src::DecideAt => self.flow.decide_at_bytes,
            Src::Micros => self.micros_us,
            Src::PolicyAction => self.flow.action_q16,
            Src::PolicySnapshot => i64::from(self.flow.snapshot),
        }
    }

    /// Appends an interval to a history: the oldest makes room.
    fn append(&mut self, history: i64) {
        let history = history as usize;
        let cells = self.program.history_cells(history);
        let Some(decl) = self.program.histories().get(history) else { return };
        let Some(cells) = self.flow.histories.get_mut(cells) else { return };
        cells.copy_within(decl.regs.len().., 0);
        let newest = cells.len() - decl.regs.len();
        for (cell, reg) in cells[newest..].iter_mut().zip(&decl.regs) {
            let value = self.flow.regs[usize::from(*reg) % MAX_REGS];
            *cell = value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        }
    }

    fn ask(&mut self, slot: i64) {
        self.asked = true;
        let inputs = self.program.policy_inputs().min(MAX_POLICY_INPUTS);
        let flow = &mut *self.flow;
        let mut knobs = Knobs { cwnd_bytes: flow.cwnd_bytes, rate_bytes_per_s: flow.rate_bytes_per_s };
        match self.policies.decide(slot as u8, &flow.histories[..inputs], &mut knobs) {
            Decision::Action { action_q16, snapshot } => {
                flow.cwnd_bytes = knobs.cwnd_bytes;
                flow.rate_bytes_per_s = knobs.rate_bytes_per_s;
                flow.action_q16 = action_q16;
                flow.snapshot = snapshot;
            }
            Decision::Native => {
                // A report of this invocation is no row of the decision before.
                (flow.action_q16, flow.snapshot) = (0, 0);
                self.native = true;
            }
        }
    }

    #[inline]
    fn write(&mut self, dst: Dst, value: i64) {
        match dst {
            Dst::Reg(r) => self.flow.regs[usize::from(r) % MAX_REGS] = value,
            Dst::Tmp(t) => self.tmps[usize::from(t) % MAX_TMPS] = value,
            Dst::Cwnd => self.flow.cwnd_bytes = value,
            Dst::Rate => self.flow.rate_bytes_per_s = value,
            Dst::Priority => self.flow.priority = value,
            Dst::Path => self.flow.path = value,
            Dst::DecideAt => self.flow.decide_at_bytes = value,
            Dst::Micros => {
                self.micros_us = value;
                self.flow.micros_zero_us = self.now_us.saturating_sub(value);
            }
            Dst::ShouldReport => self.should_report = value != 0,
            Dst::ShouldContinue => self.should_continue = value != 0,
        }
    }

    /// The old value of a destination that an operation may read.
    fn read_dst(&self, dst: Dst) -> i64 {
        match dst {
            Dst::Reg(r) => self.read(Src::Reg(r)),
            Dst::Tmp(t) => self.read(Src::Tmp(t)),
            Dst::Cwnd => self.flow.cwnd_bytes,
            Dst::Rate => self.flow.rate_bytes_per_s,
            Dst::Priority => self.flow.priority,
            Dst::Path => self.flow.path,
            Dst::DecideAt => self.flow.decide_at_bytes,
            Dst::Micros => self.micros_us,
            Dst::ShouldReport => i64::from(self.should_report),
            Dst::ShouldContinue => i64::from(self.should_continue),
        }
    }

    #[cold]
    fn fault(&mut self, value: i64) -> i64 {
        self.flow.faults = self.flow.faults.wrapping_add(1);
        value
    }
    #[inline]
    fn add(&mut self, a: i64, b: i64) -> i64 {
        match a.checked_add(b) {
            Some(v) => v,
            None => self.fault(a.saturating_add(b)),
        }
    }
    #[inline]
    fn mul(&mut self, a: i64, b: i64) -> i64 {
        match a.checked_mul(b) {
            Some(v) => v,
            None => self.fault(a.saturating_mul(b)),
        }
    }
    #[inline]
    fn div(&mut self, a: i64, b: i64) -> i64 {
        if b == 0 {
            return self.fault(0);
        }
        match a.checked_div(b) {
            Some(v) => v,
            None => self.fault(i64::MAX),
        }
    }
    fn ewma(&mut self, dst: Dst, a: i64, b: i64) -> i64 {
        let old = self.read_dst(dst);
        if old == 0 {
            return b;
        }
        let kept = self.mul(a, old);
        let weight = match EWMA_DENOM.checked_sub(a) {
            Some(w) => w,
            None => self.fault(EWMA_DENOM.saturating_sub(a)),
        };
        let fresh = self.mul(weight, b);
        let sum = self.add(kept, fresh);
        self.div(sum, EWMA_DENOM)
    }
}

/// The denominator of `ewma`'s weights (libccp's `CCP_FRAC_DENOM`).
pub const EWMA_DENOM: i64 = 10;

/// libccp's `wrapped_max`: the operand that is ahead in 32-bit sequence space, on the operands' low 32
/// bits; where one operand is 0, the other one unchanged.
pub fn wrapped_max(a: i64, b: i64) -> i64 {
    if a == 0 {
        return b;
    }
    if b == 0 {
        return a;
    }
    let (a32, b32) = (a as u32, b as u32);
    // libccp's dif32: one less than the modular distance when it wraps.
    let dif = |left: u32, right: u32| {
        if right > left { right - left } else { (u32::MAX - left).wrapping_add(right) }
    };
    if dif(b32, a32) < dif(a32, b32) { i64::from(a32) } else { i64::from(b32) }
}

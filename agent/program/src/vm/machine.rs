//! What the reference does, several times faster: for training and for datapaths in user space.
//!
//! All that instructions read and write lies in one array of cells, so that an operand is an index and nothing is
//! left to decode but the operation.

use super::{Decision, EWMA_DENOM, Flow, Knobs, Outcome, Policies, Prims, wrapped_max};
use crate::ir::{
    Clause, Dst, Inst, MAX_CWND_BYTES, MAX_POLICY_INPUTS, MAX_RATE_BYTES_PER_S, MAX_REGS, MAX_TMPS,
};
use crate::ir::{Op, PRIM_COUNT, Prim, Program, RegId, RegKind, Src};
use alloc::vec::Vec;
use core::fmt;

/// As many as a byte can name.
const CELLS: usize = 256;
const TMPS: usize = MAX_REGS;
const PRIMS: usize = TMPS + MAX_TMPS;
const CWND: usize = PRIMS + PRIM_COUNT;
const RATE: usize = CWND + 1;
const MICROS: usize = RATE + 1;
const ACTION: usize = MICROS + 1;
const SNAPSHOT: usize = ACTION + 1;
const REPORT: usize = SNAPSHOT + 1;
const CONTINUE: usize = REPORT + 1;
const CONSTANTS: usize = CONTINUE + 1;
/// Different constants of one program.
const MAX_CONSTANTS: usize = CELLS - CONSTANTS;

/// A program has more different constants than a [`Machine`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyConstants {
    /// How many are allowed.
    pub limit: usize,
}

impl fmt::Display for TooManyConstants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} different constants", self.limit)
    }
}

impl core::error::Error for TooManyConstants {}

/// What a step does: an [`Op`] on `cells[a]` and `cells[b]` into `cells[dst]`, or one of the last three. One flat list
/// (a variant that holds an `Op` made the machine a third slower), so that a step is decoded by one jump.
#[derive(Clone, Copy, Debug)]
enum Action {
    Bind,
    Add,
    Sub,
    Mul,
    Div,
    Eq,
    Lt,
    Gt,
    Le,
    Ge,
    Min,
    Max,
    MaxWrap,
    And,
    Or,
    Ewma,
    If,
    NotIf,
    History,
    Policy,
    /// `cells[MICROS]` was written: where `b` is [`ALWAYS`], or `cells[a]` is `b`.
    MoveMicros,
    /// Goes to step `dst, b` unless `cells[a]`.
    Unless,
    /// A clause ran: the end, unless it said `(fallthrough)`.
    Leave,
}

impl From<Op> for Action {
    fn from(op: Op) -> Action {
        match op {
            Op::Bind => Action::Bind,
            Op::Add => Action::Add,
            Op::Sub => Action::Sub,
            Op::Mul => Action::Mul,
            Op::Div => Action::Div,
            Op::Eq => Action::Eq,
            Op::Lt => Action::Lt,
            Op::Gt => Action::Gt,
            Op::Le => Action::Le,
            Op::Ge => Action::Ge,
            Op::Min => Action::Min,
            Op::Max => Action::Max,
            Op::MaxWrap => Action::MaxWrap,
            Op::And => Action::And,
            Op::Or => Action::Or,
            Op::Ewma => Action::Ewma,
            Op::If => Action::If,
            Op::NotIf => Action::NotIf,
            Op::History => Action::History,
            Op::Policy => Action::Policy,
        }
    }
}

const ALWAYS: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Step {
    action: Action,
    dst: u8,
    a: u8,
    b: u8,
}

#[derive(Clone, Debug)]
struct History {
    cells: core::ops::Range<usize>,
    regs: Vec<RegId>,
}

/// A program made ready to run, for any number of flows, one at a time.
#[derive(Clone, Debug)]
pub struct Machine {
    steps: Vec<Step>,
    histories: Vec<History>,
    inputs: usize,
    regs: usize,
    /// Those that it reads.
    prims: Vec<Prim>,
    /// Registers that a report resets, and to what.
    volatile: Vec<(RegId, i64)>,
    cells: [i64; CELLS],
    constants: usize,
}

impl Machine {
    /// Lays a program out.
    ///
    /// # Errors
    /// [`TooManyConstants`]; the reference runs it all the same.
    pub fn new(program: &Program) -> Result<Machine, TooManyConstants> {
        let volatile = program.regs().iter().zip(0..);
        let history = |(n, h): (usize, &crate::ir::HistoryDecl)| History {
            cells: program.history_cells(n),
            regs: h.regs.clone(),
        };
        let mut machine = Machine {
            steps: Vec::new(),
            histories: program.histories().iter().enumerate().map(history).collect(),
            inputs: program.policy_inputs().min(MAX_POLICY_INPUTS),
            regs: program.regs().len().min(MAX_REGS),
            prims: Prim::ALL.into_iter().filter(|prim| program.reads_prim(*prim)).collect(),
            volatile: volatile
                .filter(|(decl, _)| decl.volatile && decl.kind != RegKind::Local)
                .map(|(decl, reg)| (reg, decl.init))
                .collect(),
            cells: [0; CELLS],
            constants: 0,
        };
        program.clauses().iter().try_for_each(|clause| machine.lay_out(program, clause))?;
        Ok(machine)
    }

    fn lay_out(&mut self, program: &Program, clause: &Clause) -> Result<(), TooManyConstants> {
        let block = |range| program.insts().get(range).unwrap_or_default();
        block(clause.guard_range()).iter().try_for_each(|inst| self.inst(inst))?;
        let unless = self.steps.len();
        let conditional = clause.guard != Src::Bool(true);
        if conditional {
            let guard = self.cell(clause.guard)?;
            self.steps.push(Step { action: Action::Unless, dst: 0, a: guard, b: 0 });
        }
        block(clause.body_range()).iter().try_for_each(|inst| self.inst(inst))?;
        self.steps.push(Step { action: Action::Leave, dst: 0, a: 0, b: 0 });
        if conditional {
            // At most three steps an instruction or clause: fits 16 bits.
            let [low, high] = (self.steps.len() as u16).to_le_bytes();
            (self.steps[unless].dst, self.steps[unless].b) = (low, high);
        }
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), TooManyConstants> {
        let action = Action::from(inst.op);
        if let (Op::History | Op::Policy, Src::Imm(n)) = (inst.op, inst.a) {
            self.steps.push(Step { action, dst: 0, a: n as u8, b: 0 });
            return Ok(());
        }
        let (a, b) = (if inst.op == Op::Bind { 0 } else { self.cell(inst.a)? }, self.cell(inst.b)?);
        let dst = match inst.dst {
            Dst::Reg(r) => usize::from(r) % MAX_REGS,
            Dst::Tmp(t) => TMPS + usize::from(t) % MAX_TMPS,
            Dst::Cwnd => CWND,
            Dst::Rate => RATE,
            Dst::Micros => MICROS,
            Dst::ShouldReport => REPORT,
            Dst::ShouldContinue => CONTINUE,
        };
        self.steps.push(Step { action, dst: dst as u8, a, b });
        if inst.dst == Dst::Micros {
            let b = match inst.op {
                Op::If => 1,
                Op::NotIf => 0,
                _ => ALWAYS,
            };
            self.steps.push(Step { action: Action::MoveMicros, dst: 0, a, b });
        }
        Ok(())
    }

    fn cell(&mut self, src: Src) -> Result<u8, TooManyConstants> {
        let cell = match src {
            Src::Imm(value) => self.constant(value)?,
            Src::Bool(value) => self.constant(value.into())?,
            Src::Reg(r) => usize::from(r) % MAX_REGS,
            Src::Tmp(t) => TMPS + usize::from(t) % MAX_TMPS,
            Src::Prim(prim) => PRIMS + prim as usize,
            Src::Cwnd => CWND,
            Src::Rate => RATE,
            Src::Micros => MICROS,
            Src::PolicyAction => ACTION,
            Src::PolicySnapshot => SNAPSHOT,
        };
        Ok(cell as u8)
    }

    fn constant(&mut self, value: i64) -> Result<usize, TooManyConstants> {
        let known = &self.cells[CONSTANTS..CONSTANTS + self.constants];
        let at = known.iter().position(|c| *c == value).unwrap_or(self.constants);
        if at == MAX_CONSTANTS {
            return Err(TooManyConstants { limit: MAX_CONSTANTS });
        }
        self.constants = self.constants.max(at + 1);
        self.cells[CONSTANTS + at] = value;
        Ok(CONSTANTS + at)
    }

    /// Does what [`Flow::invoke_with`] does with the program, to a flow that has [started](Flow::start) it.
    pub fn invoke_with<P: Policies + ?Sized>(
        &mut self,
        flow: &mut Flow,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        self.load(flow);
        let outcome = self.step(flow, prims, policies, report);
        flow.regs[..self.regs].copy_from_slice(self.regs());
        outcome
    }

    /// Takes over a flow's registers, for [`Machine::step`].
    pub fn load(&mut self, flow: &Flow) {
        self.cells[..self.regs].copy_from_slice(&flow.regs[..self.regs]);
    }

    /// The registers taken over, as they are now.
    pub fn regs(&self) -> &[i64] {
        &self.cells[..self.regs]
    }

    /// The same, to be set from outside.
    pub fn regs_mut(&mut self) -> &mut [i64] {
        &mut self.cells[..self.regs]
    }

    /// As [`Machine::invoke_with`], on the registers that were [loaded](Machine::load): the flow's own stay as they are.
    /// Saves copying them twice an ACK, for a machine that serves one flow.
    pub fn step<P: Policies + ?Sized>(
        &mut self,
        flow: &mut Flow,
        prims: &Prims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Outcome {
        let now_us = prims.get(Prim::AckNow);
        // One by one: to read as vectors what was just written as numbers would stall the processor.
        for prim in &self.prims {
            self.cells[PRIMS + *prim as usize] = prims.get(*prim);
        }
        self.cells[CWND] = flow.cwnd_bytes;
        self.cells[RATE] = flow.rate_bytes_per_s;
        self.cells[MICROS] = now_us.saturating_sub(flow.micros_zero_us);
        self.cells[ACTION] = flow.action_q16;
        self.cells[SNAPSHOT] = flow.snapshot.into();
        self.cells[REPORT] = 0;
        self.cells[CONTINUE] = 0;
        let mut outcome = self.run(flow, now_us, policies);
        outcome.report = self.cells[REPORT] != 0;
        // A window that is not positive, or a negative rate, is no decision.
        if self.cells[CWND] > 0 {
            flow.cwnd_bytes = self.cells[CWND];
        }
        flow.cwnd_bytes = flow.cwnd_bytes.min(MAX_CWND_BYTES);
        if self.cells[RATE] >= 0 {
            flow.rate_bytes_per_s = self.cells[RATE];
        }
        flow.rate_bytes_per_s = flow.rate_bytes_per_s.min(MAX_RATE_BYTES_PER_S);
        if outcome.report {
            *report = [0; MAX_REGS];
            report[..self.regs].copy_from_slice(&self.cells[..self.regs]);
            self.volatile.iter().for_each(|(reg, init)| self.cells[usize::from(*reg)] = *init);
        }
        outcome
    }

    #[inline]
    fn run<P: Policies + ?Sized>(&mut self, flow: &mut Flow, now_us: i64, policies: &mut P) -> Outcome {
        let mut outcome = Outcome { report: false, asked: false, native: false };
        // In variables of their own: what is written to cells cannot have moved the steps.
        let (steps, cells, inputs) = (self.steps.as_slice(), &mut self.cells, self.inputs);
        let mut next = 0;
        while let Some(step) = steps.get(next) {
            next += 1;
            let (dst, a, b) = (step.dst, step.a, step.b);
            let (x, y) = (cells[usize::from(a)], cells[usize::from(b)]);
            let to = &mut cells[usize::from(dst)];
            match step.action {
                Action::Bind => *to = y,
                Action::Add => *to = x.checked_add(y).unwrap_or_else(|| fault(flow, x.saturating_add(y))),
                Action::Sub => *to = x.checked_sub(y).unwrap_or_else(|| fault(flow, x.saturating_sub(y))),
                Action::Mul => *to = mul(flow, x, y),
                Action::Div => *to = div(flow, x, y),
                Action::Eq => *to = i64::from(x == y),
                Action::Lt => *to = i64::from(x < y),
                Action::Gt => *to = i64::from(x > y),
                Action::Le => *to = i64::from(x <= y),
                Action::Ge => *to = i64::from(x >= y),
                Action::Min => *to = x.min(y),
                Action::Max => *to = x.max(y),
                Action::MaxWrap => *to = wrapped_max(x, y),
                Action::And => *to = x & y,
                Action::Or => *to = x | y,
                Action::Ewma => *to = ewma(flow, *to, x, y),
                Action::If => *to = if x != 0 { y } else { *to },
                Action::NotIf => *to = if x == 0 { y } else { *to },
                Action::History => append(&self.histories, usize::from(a), cells, &mut flow.histories),
                Action::Policy => {
                    outcome.asked = true;
                    outcome.native |= !ask(policies, a, &flow.histories[..inputs], cells);
                    flow.action_q16 = cells[ACTION];
                    flow.snapshot = cells[SNAPSHOT] as u32;
                }
                Action::MoveMicros if b == ALWAYS || (x != 0) == (b != 0) => {
                    flow.micros_zero_us = now_us.saturating_sub(cells[MICROS]);
                }
                Action::MoveMicros => {}
                Action::Unless if x == 0 => next = usize::from(u16::from_le_bytes([dst, b])),
                Action::Unless => {}
                Action::Leave if cells[CONTINUE] == 0 => break,
                Action::Leave => {}
            }
        }
        outcome
    }
}

#[cold]
fn fault(flow: &mut Flow, value: i64) -> i64 {
    flow.faults = flow.faults.wrapping_add(1);
    value
}

#[inline]
fn mul(flow: &mut Flow, a: i64, b: i64) -> i64 {
    a.checked_mul(b).unwrap_or_else(|| fault(flow, a.saturating_mul(b)))
}

#[inline]
fn div(flow: &mut Flow, a: i64, b: i64) -> i64 {
    if b == 0 {
        return fault(flow, 0);
    }
    a.checked_div(b).unwrap_or_else(|| fault(flow, i64::MAX))
}

fn ewma(flow: &mut Flow, old: i64, a: i64, b: i64) -> i64 {
    if old == 0 {
        return b;
    }
    let kept = mul(flow, a, old);
    let weight = EWMA_DENOM.checked_sub(a).unwrap_or_else(|| fault(flow, EWMA_DENOM.saturating_sub(a)));
    let fresh = mul(flow, weight, b);
    let sum = kept.checked_add(fresh).unwrap_or_else(|| fault(flow, kept.saturating_add(fresh)));
    div(flow, sum, EWMA_DENOM)
}

fn append(histories: &[History], history: usize, cells: &[i64; CELLS], to: &mut [i32; MAX_POLICY_INPUTS]) {
    let Some(History { cells: range, regs }) = histories.get(history) else { return };
    let Some(to) = to.get_mut(range.clone()) else { return };
    to.copy_within(regs.len().., 0);
    let newest = to.len() - regs.len();
    for (cell, reg) in to[newest..].iter_mut().zip(regs) {
        *cell = cells[usize::from(*reg)].clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    }
}

/// False if there was no answer.
fn ask<P: Policies + ?Sized>(policies: &mut P, slot: u8, inputs: &[i32], cells: &mut [i64; CELLS]) -> bool {
    let mut knobs = Knobs { cwnd_bytes: cells[CWND], rate_bytes_per_s: cells[RATE] };
    let Decision::Action { action_q16, snapshot } = policies.decide(slot, inputs, &mut knobs) else {
        (cells[ACTION], cells[SNAPSHOT]) = (0, 0);
        return false;
    };
    cells[CWND] = knobs.cwnd_bytes;
    cells[RATE] = knobs.rate_bytes_per_s;
    cells[ACTION] = action_q16;
    cells[SNAPSHOT] = snapshot.into();
    true
}

//! A virtual machine that computes the same as the reference several times faster, for training and for datapaths in
//! user space.
//!
//! All that instructions read and write lies in one array of cells. So an operand is an index, and only the
//! operation is left to decode.

mod guard;

use super::{Decision, EWMA_DENOM, InvokeOutcome, Knobs, Policies, PrimValues, ProgramState, wrapped_max};
use crate::ir::{
    Clause, Dst, Hook, Inst, MAX_CWND_BYTES, MAX_PATHS, MAX_POLICY_INPUTS, MAX_PRIORITY,
    MAX_RATE_BYTES_PER_S, MAX_REGS, MAX_TMPS,
};
use crate::ir::{Op, Prim, Program, RegId, RegKind, Src};
use alloc::vec::Vec;
use core::fmt;
use guard::Chain;

/// The number of cells, as many as a byte can name.
const CELLS: usize = 256;
// What goes in and out in pairs does not lie side by side: copied as one vector right after it was written as two numbers,
// it would stall the processor.
const CWND: usize = 0;
const MICROS: usize = 1;
const RATE: usize = 2;
// A program sets window and rate or priority and path, never both.
const PRIORITY: usize = CWND;
const PATH: usize = RATE;
const SNAPSHOT: usize = 3;
const ACTION: usize = 4;
const REPORT: usize = 5;
const CONTINUE: usize = 6;
const DECIDE_AT: usize = 7;
/// Registers, temporaries, what is read of an ACK, constants: one behind the other, without gaps. Of an ACK's cache misses most
/// would be those.
const REGS: usize = 8;

/// A program has more different constants than a [`FastVm`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyConstants {
    /// The number of constants that fit beside its registers and what it reads.
    pub limit: usize,
}

impl fmt::Display for TooManyConstants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} different constants", self.limit)
    }
}

impl core::error::Error for TooManyConstants {}

/// Declares [`Action`]: one for each [`Op`], and those of its own.
macro_rules! actions {
    ($($op:ident)*; $($(#[$doc:meta])* $own:ident)*) => {
        /// The operation of one step: an [`Op`] on `cells[a]` and `cells[b]` into `cells[dst]`, or one of the last eleven.
        /// The list is flat, so that one jump decodes a step: with a variant that holds an `Op` the machine was a third slower.
        #[derive(Clone, Copy, Debug)]
        enum Action {
            $($op,)*
            $($(#[$doc])* $own,)*
        }

        impl From<Op> for Action {
            fn from(op: Op) -> Action {
                match op {
                    $(Op::$op => Action::$op,)*
                }
            }
        }
    };
}

actions! {
    Bind Add Sub Mul Div Eq Lt Gt Le Ge Min Max MaxWrap And Or Ewma If NotIf History Policy;
    /// `cells[MICROS]` was written: where `b` is [`ALWAYS`], or `cells[a]` is `b`.
    MoveMicros
    /// Goes to step `dst, b` unless `cells[a]`.
    Unless
    /// [`Action::Lt`], and the step after it, which is an `Unless` of what comes of it; most guards are of these.
    UnlessLt
    /// The same of [`Action::Gt`].
    UnlessGt
    /// The same of [`Action::Eq`].
    UnlessEq
    /// The same of [`Action::Le`].
    UnlessLe
    /// The same of [`Action::Ge`].
    UnlessGe
    /// The same of [`Action::Or`].
    UnlessOr
    /// [`Action::Lt`], and the step after it, which is an `If` of what comes of it.
    IfLt
    /// The same of [`Action::Gt`].
    IfGt
    /// The end of a clause that ran: leaves the program unless the clause said `(fallthrough)`.
    Leave
}

impl Action {
    /// The action that goes on with the `Unless` behind it, if there is one.
    fn or_leave(self) -> Action {
        match self {
            Action::Lt => Action::UnlessLt,
            Action::Gt => Action::UnlessGt,
            Action::Eq => Action::UnlessEq,
            Action::Le => Action::UnlessLe,
            Action::Ge => Action::UnlessGe,
            Action::Or => Action::UnlessOr,
            other => other,
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

impl Step {
    /// Returns the step that an [`Action::Unless`] goes to.
    #[inline]
    fn target(&self) -> usize {
        usize::from(u16::from_le_bytes([self.dst, self.b]))
    }
}

#[derive(Clone, Debug)]
struct History {
    cells: core::ops::Range<usize>,
    regs: Vec<RegId>,
}

/// A program made ready to run, for any number of flows, one at a time.
#[derive(Clone, Debug)]
pub struct FastVm {
    hook: Hook,
    steps: Vec<Step>,
    histories: Vec<History>,
    inputs: usize,
    regs: usize,
    /// The primitives that it reads, in the order of their cells, which begin at `prims_at`.
    prims: Vec<Prim>,
    prims_at: usize,
    /// Registers that a report resets, and to what.
    volatile: Vec<(RegId, i64)>,
    cells: Cells,
    constants: usize,
    /// All clauses run, whichever did before: nothing says so at run time.
    goes_on: bool,
}

/// The cells, which begin at the start of a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Cells([i64; CELLS]);

impl FastVm {
    /// Lays a program out.
    ///
    /// # Errors
    /// [`TooManyConstants`]; the reference runs it all the same.
    pub fn new(program: &Program) -> Result<FastVm, TooManyConstants> {
        let volatile = program.regs().iter().zip(0..);
        let history = |(n, h): (usize, &crate::ir::HistoryDecl)| History {
            cells: program.history_cells(n),
            regs: h.regs.clone(),
        };
        let regs = program.regs().len().min(MAX_REGS);
        let mut machine = FastVm {
            hook: program.hook(),
            steps: Vec::new(),
            histories: program.histories().iter().enumerate().map(history).collect(),
            inputs: program.policy_inputs().min(MAX_POLICY_INPUTS),
            regs,
            prims: Prim::ALL.into_iter().filter(|prim| program.reads_prim(*prim)).collect(),
            prims_at: REGS + regs + tmps(program),
            volatile: volatile
                .filter(|(decl, _)| decl.volatile && decl.kind != RegKind::Local)
                .map(|(decl, reg)| (reg, decl.init))
                .collect(),
            cells: Cells([0; CELLS]),
            constants: 0,
            goes_on: goes_on(program),
        };
        program.clauses().iter().try_for_each(|clause| machine.lay_out(program, clause))?;
        Ok(machine)
    }

    fn lay_out(&mut self, program: &Program, clause: &Clause) -> Result<(), TooManyConstants> {
        let block = |range| program.insts().get(range).unwrap_or_default();
        let exits = self.guard(block(clause.guard_range()), clause.guard)?;
        let body_at = self.steps.len();
        for inst in block(clause.body_range()) {
            if !(self.goes_on && inst.dst == Dst::ShouldContinue) {
                self.inst(inst)?;
                self.fuse_if(body_at);
            }
        }
        if !self.goes_on {
            self.steps.push(Step { action: Action::Leave, dst: 0, a: 0, b: 0 });
        }
        // At most three steps an instruction or clause: fits 16 bits.
        let [low, high] = (self.steps.len() as u16).to_le_bytes();
        exits.into_iter().for_each(|exit| (self.steps[exit].dst, self.steps[exit].b) = (low, high));
        Ok(())
    }

    /// Lays out a guard; returns the steps that leave the clause.
    fn guard(&mut self, insts: &[Inst], guard: Src) -> Result<Vec<usize>, TooManyConstants> {
        let (chain, mut exits, guard_at) = (Chain::new(insts, guard), Vec::new(), self.steps.len());
        for at in 0..=insts.len() {
            for test in chain.tests.iter().filter(|test| test.before == at && test.value != Src::Bool(true)) {
                let value = self.cell(test.value)?;
                if let Some(last) = self.steps[guard_at..].last_mut().filter(|last| last.dst == value) {
                    last.action = last.action.or_leave();
                }
                exits.push(self.steps.len());
                self.steps.push(Step { action: Action::Unless, dst: 0, a: value, b: 0 });
            }
            if let Some(inst) = insts.get(at).filter(|_| !chain.joins.contains(&at)) {
                self.inst(inst)?;
            }
        }
        Ok(exits)
    }

    /// Makes one of the last two steps, if both are behind `from`, and the first is compared for the second.
    fn fuse_if(&mut self, from: usize) {
        if let Some([.., compare, then]) = self.steps.get_mut(from..)
            && matches!(then.action, Action::If)
            && then.a == compare.dst
        {
            compare.action = match compare.action {
                Action::Lt => Action::IfLt,
                Action::Gt => Action::IfGt,
                other => other,
            };
        }
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), TooManyConstants> {
        let action = Action::from(inst.op);
        if let (Op::History | Op::Policy, Src::Imm(n)) = (inst.op, inst.a) {
            self.steps.push(Step { action, dst: 0, a: n as u8, b: 0 });
            return Ok(());
        }
        let (a, b) = (if inst.op == Op::Bind { 0 } else { self.cell(inst.a)? }, self.cell(inst.b)?);
        let dst = match inst.dst {
            Dst::Reg(r) => self.reg(r),
            Dst::Tmp(t) => self.tmp(t),
            Dst::Cwnd => CWND,
            Dst::Rate => RATE,
            Dst::Priority => PRIORITY,
            Dst::Path => PATH,
            Dst::DecideAt => DECIDE_AT,
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
            Src::Reg(r) => self.reg(r),
            Src::Tmp(t) => self.tmp(t),
            // It is there: the program reads it.
            Src::Prim(prim) => self.prims_at + self.prims.iter().position(|p| *p == prim).unwrap_or(0),
            Src::Cwnd => CWND,
            Src::Rate => RATE,
            Src::Priority => PRIORITY,
            Src::Path => PATH,
            Src::DecideAt => DECIDE_AT,
            Src::Micros => MICROS,
            Src::PolicyAction => ACTION,
            Src::PolicySnapshot => SNAPSHOT,
        };
        Ok(cell as u8)
    }

    fn reg(&self, reg: RegId) -> usize {
        REGS + usize::from(reg) % self.regs.max(1)
    }

    fn tmp(&self, tmp: u8) -> usize {
        REGS + self.regs + usize::from(tmp)
    }

    fn constant(&mut self, value: i64) -> Result<usize, TooManyConstants> {
        let first = self.prims_at + self.prims.len();
        let known = &self.cells.0[first..first + self.constants];
        let at = known.iter().position(|c| *c == value).unwrap_or(self.constants);
        let limit = CELLS - first;
        if at == limit {
            return Err(TooManyConstants { limit });
        }
        self.constants = self.constants.max(at + 1);
        self.cells.0[first + at] = value;
        Ok(first + at)
    }

    /// Does what [`ProgramState::invoke_with`] does with the program, to a flow that has [started](ProgramState::start) it.
    pub fn invoke_with<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        self.load(flow);
        let outcome = self.step(flow, prims, policies, report);
        flow.regs[..self.regs].copy_from_slice(self.regs());
        outcome
    }

    /// Takes over a flow's registers, for [`FastVm::step`].
    pub fn load(&mut self, flow: &ProgramState) {
        let regs = self.regs_mut();
        regs.copy_from_slice(&flow.regs[..regs.len()]);
    }

    /// The registers taken over, as they are now.
    pub fn regs(&self) -> &[i64] {
        &self.cells.0[REGS..REGS + self.regs]
    }

    /// The same, to be set from outside.
    pub fn regs_mut(&mut self) -> &mut [i64] {
        &mut self.cells.0[REGS..REGS + self.regs]
    }

    /// Like [`FastVm::invoke_with`], on the registers that were [loaded](FastVm::load): the flow's own stay as they are.
    /// Saves copying them twice an ACK, for a machine that serves one flow.
    pub fn step<P: Policies + ?Sized, M: PrimValues>(
        &mut self,
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        let now_us = prims.get(self.hook.clock());
        // One by one: to read as vectors what was just written as numbers would stall the processor.
        let cells = &mut self.cells.0;
        for (prim, cell) in self.prims.iter().zip(&mut cells[self.prims_at..]) {
            *cell = prims.get(*prim);
        }
        if self.hook.sets_window() {
            cells[CWND] = flow.cwnd_bytes;
            cells[RATE] = flow.rate_bytes_per_s;
        } else {
            cells[PRIORITY] = flow.priority;
            cells[PATH] = flow.path;
            cells[DECIDE_AT] = flow.decide_at_bytes;
        }
        cells[MICROS] = now_us.saturating_sub(flow.micros_zero_us);
        cells[ACTION] = flow.action_q16;
        cells[SNAPSHOT] = flow.snapshot.into();
        cells[REPORT] = 0;
        cells[CONTINUE] = 0;
        let mut outcome = self.run(flow, now_us, policies);
        let cells = &mut self.cells.0;
        outcome.report = cells[REPORT] != 0;
        if self.hook.sets_window() {
            // A window that is not positive, or a negative rate, is no decision.
            if cells[CWND] > 0 {
                flow.cwnd_bytes = cells[CWND];
            }
            flow.cwnd_bytes = flow.cwnd_bytes.min(MAX_CWND_BYTES);
            if cells[RATE] >= 0 {
                flow.rate_bytes_per_s = cells[RATE];
            }
            flow.rate_bytes_per_s = flow.rate_bytes_per_s.min(MAX_RATE_BYTES_PER_S);
        } else {
            if (0..=MAX_PRIORITY).contains(&cells[PRIORITY]) {
                flow.priority = cells[PRIORITY];
            }
            if (0..MAX_PATHS as i64).contains(&cells[PATH]) {
                flow.path = cells[PATH];
            }
            flow.decide_at_bytes = cells[DECIDE_AT];
        }
        if outcome.report {
            *report = [0; MAX_REGS];
            report[..self.regs].copy_from_slice(&cells[REGS..REGS + self.regs]);
            self.volatile.iter().for_each(|(reg, init)| cells[REGS + usize::from(*reg)] = *init);
        }
        outcome
    }

    #[inline]
    fn run<P: Policies + ?Sized>(
        &mut self,
        flow: &mut ProgramState,
        now_us: i64,
        policies: &mut P,
    ) -> InvokeOutcome {
        let mut outcome = InvokeOutcome { report: false, asked: false, native: false };
        // In variables of their own: what is written to cells cannot have moved the steps.
        let (steps, cells, inputs) = (self.steps.as_slice(), &mut self.cells.0, self.inputs);
        let sets_window = self.hook.sets_window();
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
                    outcome.native |= !ask(policies, a, sets_window, flow, inputs, cells);
                    flow.action_q16 = cells[ACTION];
                    flow.snapshot = cells[SNAPSHOT] as u32;
                }
                Action::MoveMicros if b == ALWAYS || (x != 0) == (b != 0) => {
                    flow.micros_zero_us = now_us.saturating_sub(cells[MICROS]);
                }
                Action::MoveMicros => {}
                Action::Unless if x == 0 => next = step.target(),
                Action::IfLt | Action::IfGt => {
                    let holds = if matches!(step.action, Action::IfLt) { x < y } else { x > y };
                    *to = holds.into();
                    if let Some(then) = steps.get(next).filter(|_| holds) {
                        cells[usize::from(then.dst)] = cells[usize::from(then.b)];
                    }
                    next += 1;
                }
                Action::UnlessLt => {
                    *to = i64::from(x < y);
                    next = go(steps, next, *to);
                }
                Action::UnlessGt => {
                    *to = i64::from(x > y);
                    next = go(steps, next, *to);
                }
                Action::UnlessEq => {
                    *to = i64::from(x == y);
                    next = go(steps, next, *to);
                }
                Action::UnlessLe => {
                    *to = i64::from(x <= y);
                    next = go(steps, next, *to);
                }
                Action::UnlessGe => {
                    *to = i64::from(x >= y);
                    next = go(steps, next, *to);
                }
                Action::UnlessOr => {
                    *to = x | y;
                    next = go(steps, next, *to);
                }
                Action::Unless => {}
                Action::Leave if cells[CONTINUE] == 0 => break,
                Action::Leave => {}
            }
        }
        outcome
    }
}

/// Temporaries that a program uses.
fn tmps(program: &Program) -> usize {
    let dst = |inst: &Inst| if let Dst::Tmp(tmp) = inst.dst { usize::from(tmp) + 1 } else { 0 };
    let src = |src: Src| if let Src::Tmp(tmp) = src { usize::from(tmp) + 1 } else { 0 };
    let of_insts = program.insts().iter().flat_map(|inst| [dst(inst), src(inst.a), src(inst.b)]);
    of_insts.chain(program.clauses().iter().map(|clause| src(clause.guard))).max().unwrap_or(0).min(MAX_TMPS)
}

/// Whether the first clause always runs and says that the others are to run too, and nothing takes that back.
fn goes_on(program: &Program) -> bool {
    let says = |inst: &&Inst| inst.dst == Dst::ShouldContinue;
    let yes = |inst: &Inst| inst.op == Op::Bind && inst.b == Src::Bool(true);
    program.insts().iter().filter(says).all(yes)
        && program.clauses().first().is_some_and(|first| {
            let body = program.insts().get(first.body_range()).unwrap_or_default();
            first.guard == Src::Bool(true) && body.iter().any(|inst| says(&inst))
        })
}

/// Returns the step that a guard goes on with whose `Unless` is at `at`.
#[inline]
fn go(steps: &[Step], at: usize, guard: i64) -> usize {
    match steps.get(at) {
        Some(unless) if guard == 0 => unless.target(),
        _ => at + 1,
    }
}

#[cold]
fn fault(flow: &mut ProgramState, value: i64) -> i64 {
    flow.faults = flow.faults.wrapping_add(1);
    value
}

#[inline]
fn mul(flow: &mut ProgramState, a: i64, b: i64) -> i64 {
    a.checked_mul(b).unwrap_or_else(|| fault(flow, a.saturating_mul(b)))
}

#[inline]
fn div(flow: &mut ProgramState, a: i64, b: i64) -> i64 {
    if b == 0 {
        return fault(flow, 0);
    }
    a.checked_div(b).unwrap_or_else(|| fault(flow, i64::MAX))
}

fn ewma(flow: &mut ProgramState, old: i64, a: i64, b: i64) -> i64 {
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
        *cell = cells[REGS + usize::from(*reg)].clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    }
}

/// Asks a policy slot; returns false where it has no answer. At a hook that sets no window, the action changes the flow's
/// own window and rate, which no program reads there.
fn ask<P: Policies + ?Sized>(
    policies: &mut P,
    slot: u8,
    sets_window: bool,
    flow: &mut ProgramState,
    inputs: usize,
    cells: &mut [i64; CELLS],
) -> bool {
    let (cwnd_bytes, rate_bytes_per_s) =
        if sets_window { (cells[CWND], cells[RATE]) } else { (flow.cwnd_bytes, flow.rate_bytes_per_s) };
    let mut knobs = Knobs { cwnd_bytes, rate_bytes_per_s };
    let decision = policies.decide(slot, &flow.histories[..inputs], &mut knobs);
    let Decision::Action { action_q16, snapshot } = decision else {
        (cells[ACTION], cells[SNAPSHOT]) = (0, 0);
        return false;
    };
    if sets_window {
        (cells[CWND], cells[RATE]) = (knobs.cwnd_bytes, knobs.rate_bytes_per_s);
    } else {
        (flow.cwnd_bytes, flow.rate_bytes_per_s) = (knobs.cwnd_bytes, knobs.rate_bytes_per_s);
    }
    cells[ACTION] = action_q16;
    cells[SNAPSHOT] = snapshot.into();
    true
}

//! The intermediate representation of a fold program: small, typed, verified once.
//!
//! A program is a hook, a register file and a list of clauses. Each invocation (at [`Hook::Ack`] one ACK) runs the clauses in
//! order: the guard's instructions, then, if the guard is true, the body's. A clause that ran ends the
//! invocation unless `(fallthrough)` was executed; as in libccp, one `(fallthrough)` holds for the rest
//! of the invocation.
//!
//! All values are signed 64-bit; `+ - *` saturate, `x / 0 = 0`, and each saturation or division by zero
//! counts in the flow's `faults`. Booleans are 0 or 1. Nothing aborts midway.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub use crate::hook::{ACK_PRIM_COUNT, Hook, MAX_PATHS, MAX_PRIORITY, PAST_SIZES, PRIM_COUNT, Prim, Type};

/// Report, control and local registers of one program, together.
pub const MAX_REGS: usize = 96;
/// Temporaries alive within one expression.
pub const MAX_TMPS: usize = 16;
/// Instructions of one program.
pub const MAX_INSTS: usize = 1024;
/// `when` clauses of one program.
pub const MAX_CLAUSES: usize = 64;
/// Histories that one program may keep.
pub const MAX_HISTORIES: usize = 4;
/// Past intervals that a history keeps.
pub const MAX_HISTORY_DEPTH: usize = 32;
/// Cells of all histories of one program together: the inputs of its policies.
pub const MAX_POLICY_INPUTS: usize = 64;
/// Policy slots that a program can name, from 0.
pub const MAX_POLICY_SLOTS: usize = 16;
/// `+infinity`, and the value of `Flow.rtt_sample_us` when the ACK gave no sample.
pub const INFINITY: i64 = i64::MAX;
/// Largest congestion window a program can set, in bytes.
pub const MAX_CWND_BYTES: i64 = 1 << 40;
/// Largest rate a program can set, in bytes per second.
pub const MAX_RATE_BYTES_PER_S: i64 = 1 << 40;

/// The parties that see a register and that may write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegKind {
    /// Leaves with each report, in declaration order.
    Report,
    /// Private to the program; the agent may update it.
    Control,
    /// First bound inside a clause; private to the program; 0 when the program starts.
    Local,
}

/// A register that a program declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegDecl {
    /// The name as the program spells it, `Report.` prefix included.
    pub name: String,
    pub kind: RegKind,
    pub ty: Type,
    /// Reset to `init` after each report.
    pub volatile: bool,
    /// Value when the program starts.
    pub init: i64,
}

/// Index into a program's register file; below [`MAX_REGS`] in a verified program.
pub type RegId = u8;

/// An operand that an instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Src {
    Imm(i64),
    Bool(bool),
    Reg(RegId),
    /// A temporary, below [`MAX_TMPS`].
    Tmp(u8),
    /// A primitive of this ACK.
    Prim(Prim),
    /// The congestion window, bytes.
    Cwnd,
    /// Pacing rate, bytes per second; 0 when the program has set none.
    Rate,
    /// The flow's priority, 0 (served first) to [`MAX_PRIORITY`].
    Priority,
    /// The number of the flow's path, below [`MAX_PATHS`].
    Path,
    /// The count of sent bytes from which on the program runs again.
    DecideAt,
    /// Microseconds since the program started or last wrote `Micros`.
    Micros,
    /// The last answer of a policy, Q16, after noise and bound; 0 before the first, and if it was none.
    PolicyAction,
    /// The deployment that decided it; 0 where there is none.
    PolicySnapshot,
}

/// The place that an instruction writes its result to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dst {
    Reg(RegId),
    Tmp(u8),
    /// The congestion window, bytes.
    Cwnd,
    /// Pacing rate, bytes per second.
    Rate,
    /// The flow's priority.
    Priority,
    /// The number of the flow's path.
    Path,
    /// The count of sent bytes from which on the program runs again.
    DecideAt,
    /// Moves the origin of `Micros` so that it reads this value now.
    Micros,
    /// `(report)`: true sends a report when the invocation ends.
    ShouldReport,
    /// `(fallthrough)`: true lets the clauses after this one run.
    ShouldContinue,
}

/// An operation. `a` and `b` are the instruction's operands, `old` the destination's value before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Op {
    /// `b` (`a` is ignored).
    Bind,
    /// `a + b`, saturating.
    Add,
    /// `a - b`, saturating.
    Sub,
    /// `a * b`, saturating.
    Mul,
    /// `a / b` toward zero, saturating; 0 when `b` is 0.
    Div,
    Eq,
    Lt,
    Gt,
    Le,
    Ge,
    Min,
    Max,
    /// The later of two 32-bit sequence numbers; the other one where one is 0. See [`crate::vm::wrapped_max`].
    MaxWrap,
    And,
    Or,
    /// `(a*old + (10-a)*b) / 10`, each step saturating; `b` when `old` is 0.
    Ewma,
    /// `b` if `a` is true, else `old`.
    If,
    /// `b` if `a` is false, else `old`.
    NotIf,
    /// Appends the current values of history `a` (an immediate index), each saturated to 32 bits, to the flow's history.
    /// Writes nothing.
    History,
    /// Asks policy slot `a` (an immediate) with the cells of all histories, and applies its action: see
    /// [`crate::vm::Policies`]. Writes nothing else.
    Policy,
}

impl Op {
    /// Every operation; its place is its number in messages, so the order never changes.
    pub const ALL: [Op; 20] = [
        Op::Bind,
        Op::Add,
        Op::Sub,
        Op::Mul,
        Op::Div,
        Op::Eq,
        Op::Lt,
        Op::Gt,
        Op::Le,
        Op::Ge,
        Op::Min,
        Op::Max,
        Op::MaxWrap,
        Op::And,
        Op::Or,
        Op::Ewma,
        Op::If,
        Op::NotIf,
        Op::History,
        Op::Policy,
    ];

    /// Whether the operation reads its destination's old value.
    pub const fn reads_dst(self) -> bool {
        matches!(self, Op::Ewma | Op::If | Op::NotIf)
    }
}

/// An operation with its operands and the place of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    pub op: Op,
    /// The place of the result; ignored by [`Op::History`] and [`Op::Policy`].
    pub dst: Dst,
    pub a: Src,
    pub b: Src,
}

/// One `when` clause: `guard_insts` instructions from `start`, then `body_insts` more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clause {
    /// Index of the guard's first instruction.
    pub start: u16,
    /// Instructions of the guard.
    pub guard_insts: u16,
    /// Instructions of the body, which follow the guard's.
    pub body_insts: u16,
    /// The place of the guard's value once its instructions ran.
    pub guard: Src,
}

impl Clause {
    /// The guard's instructions, as a range.
    pub fn guard_range(&self) -> core::ops::Range<usize> {
        let start = usize::from(self.start);
        start..start + usize::from(self.guard_insts)
    }
    /// The body's instructions, as a range.
    pub fn body_range(&self) -> core::ops::Range<usize> {
        let start = usize::from(self.start) + usize::from(self.guard_insts);
        start..start + usize::from(self.body_insts)
    }
}

/// The registers that one `(history k reg...)` keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryDecl {
    /// Intervals kept, at most [`MAX_HISTORY_DEPTH`].
    pub depth: u8,
    /// Registers kept, in order.
    pub regs: Vec<RegId>,
}

impl HistoryDecl {
    /// Numbers that it keeps.
    pub fn cells(&self) -> usize {
        usize::from(self.depth) * self.regs.len()
    }
}

/// A verified program: immutable, every index in range, every operand of the right type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    hook: Hook,
    regs: Vec<RegDecl>,
    insts: Vec<Inst>,
    clauses: Vec<Clause>,
    histories: Vec<HistoryDecl>,
    lines: Lines,
}

/// The lines of a source text that registers and instructions come from; programs are equal whatever their lines.
#[derive(Clone, Default, Debug)]
struct Lines {
    regs: Vec<u32>,
    insts: Vec<u32>,
}

impl PartialEq for Lines {
    fn eq(&self, _: &Lines) -> bool {
        true
    }
}

impl Eq for Lines {}

/// The reasons to refuse a program, whether a hand or the compiler assembled it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// More of `what` than `limit`.
    TooMany {
        /// The kind of item of which there are too many.
        what: &'static str,
        found: usize,
        limit: usize,
    },
    /// Instruction `inst` names a register, temporary or history that does not exist.
    BadIndex {
        /// Index of the instruction.
        inst: usize,
    },
    /// Instruction `inst` (or the guard of clause `inst`) has an operand of the wrong type.
    BadType {
        /// Index of the instruction.
        inst: usize,
    },
    /// Instruction `inst` (or the guard of clause `inst`) reads or sets what the program's hook does not have.
    NotOfHook {
        /// Index of the instruction.
        inst: usize,
    },
    /// A clause's instructions lie outside the program.
    BadClause {
        /// Index of the clause.
        clause: usize,
    },
    /// Instruction `inst` reads a temporary that no earlier instruction of its block wrote.
    UnsetTmp {
        /// Index of the instruction.
        inst: usize,
    },
    /// Report registers must come first, then control registers, then locals.
    RegOrder,
    /// Register `reg` starts at a value that is not of its type, or is a local that does not start at 0.
    BadInit {
        /// Index of the register.
        reg: usize,
    },
    /// History `history` keeps nothing, for no interval, or a register that does not exist.
    BadHistory {
        /// Index of the history.
        history: usize,
    },
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyError::TooMany { what, found, limit } => {
                write!(f, "{found} {what}, at most {limit} are allowed")
            }
            VerifyError::BadIndex { inst } => write!(f, "instruction {inst}: index out of range"),
            VerifyError::BadType { inst } => write!(f, "instruction {inst}: operand of the wrong type"),
            VerifyError::NotOfHook { inst } => {
                write!(f, "instruction {inst}: not to be had at the program's hook")
            }
            VerifyError::BadClause { clause } => write!(f, "clause {clause}: instructions out of range"),
            VerifyError::UnsetTmp { inst } => {
                write!(f, "instruction {inst}: temporary read before it was written")
            }
            VerifyError::RegOrder => write!(f, "registers must be ordered report, control, local"),
            VerifyError::BadInit { reg } => write!(f, "register {reg}: initial value not of its type"),
            VerifyError::BadHistory { history } => {
                write!(f, "history {history}: no such registers or intervals")
            }
        }
    }
}

impl core::error::Error for VerifyError {}

impl Program {
    /// Verifies the parts of a program of [`Hook::Ack`].
    ///
    /// # Errors
    /// The first rule of [`VerifyError`] that they break.
    pub fn new(
        regs: Vec<RegDecl>,
        insts: Vec<Inst>,
        clauses: Vec<Clause>,
        histories: Vec<HistoryDecl>,
    ) -> Result<Program, VerifyError> {
        Program::at(Hook::Ack, regs, insts, clauses, histories)
    }

    /// Verifies the parts of a program of any hook.
    ///
    /// # Errors
    /// The first rule of [`VerifyError`] that they break.
    pub fn at(
        hook: Hook,
        regs: Vec<RegDecl>,
        insts: Vec<Inst>,
        clauses: Vec<Clause>,
        histories: Vec<HistoryDecl>,
    ) -> Result<Program, VerifyError> {
        let program = Program { hook, regs, insts, clauses, histories, lines: Lines::default() };
        program.verify()?;
        Ok(program)
    }

    /// Remembers the line of the source text, from 1, of each register and each instruction.
    pub(crate) fn with_lines(self, regs: Vec<u32>, insts: Vec<u32>) -> Program {
        Program { lines: Lines { regs, insts }, ..self }
    }

    /// The line that declares or first binds a register; `None` for a program that no text was compiled to.
    pub fn reg_line(&self, reg: usize) -> Option<u32> {
        self.lines.regs.get(reg).copied()
    }

    /// The line that an instruction comes from; `None` for a program that no text was compiled to.
    pub fn inst_line(&self, inst: usize) -> Option<u32> {
        self.lines.insts.get(inst).copied()
    }

    /// Returns the place where the program decides.
    pub fn hook(&self) -> Hook {
        self.hook
    }
    /// Declared registers: report, then control, then local.
    pub fn regs(&self) -> &[RegDecl] {
        &self.regs
    }
    /// Returns the instructions of all clauses, in program order.
    pub fn insts(&self) -> &[Inst] {
        &self.insts
    }
    /// The clauses, in order of evaluation.
    pub fn clauses(&self) -> &[Clause] {
        &self.clauses
    }
    /// Returns the histories that the program keeps for its policies.
    pub fn histories(&self) -> &[HistoryDecl] {
        &self.histories
    }
    /// The cells of a history among those of all, which a policy gets in this order: interval by interval, oldest
    /// first. Empty if there is no such history.
    pub fn history_cells(&self, history: usize) -> core::ops::Range<usize> {
        let start = self.histories.iter().take(history).map(HistoryDecl::cells).sum();
        start..start + self.histories.get(history).map_or(0, HistoryDecl::cells)
    }
    /// The inputs of its policies: the cells of all histories.
    pub fn policy_inputs(&self) -> usize {
        self.histories.iter().map(HistoryDecl::cells).sum()
    }
    /// The slots of its policies, each once, in order of first use.
    pub fn policy_slots(&self) -> Vec<u8> {
        let mut slots = Vec::new();
        for inst in self.insts.iter().filter(|i| i.op == Op::Policy) {
            if let Src::Imm(slot) = inst.a
                && !slots.contains(&(slot as u8))
            {
                slots.push(slot as u8);
            }
        }
        slots
    }
    /// Returns the number of registers that a report carries: those with an index below this.
    pub fn report_len(&self) -> usize {
        self.regs.iter().filter(|r| r.kind == RegKind::Report).count()
    }
    /// The register of this name, `Report.` prefix included.
    pub fn reg(&self, name: &str) -> Option<RegId> {
        self.regs.iter().position(|r| r.name == name).map(|i| i as RegId)
    }
    /// Whether any instruction reads this primitive.
    pub fn reads_prim(&self, prim: Prim) -> bool {
        let is = |s: Src| s == Src::Prim(prim);
        self.insts.iter().any(|i| is(i.b) || (i.op != Op::Bind && is(i.a)))
            || self.clauses.iter().any(|c| is(c.guard))
    }
    /// Whether any instruction's result goes to this place.
    pub fn writes(&self, dst: Dst) -> bool {
        self.insts.iter().any(|i| i.dst == dst && !matches!(i.op, Op::History | Op::Policy))
    }
    /// Whether the program keeps a history or asks a policy, which only some back ends can do.
    pub fn uses_policy(&self) -> bool {
        self.insts.iter().any(|i| matches!(i.op, Op::History | Op::Policy))
    }

    fn verify(&self) -> Result<(), VerifyError> {
        let limit = |what, found, limit| {
            if found > limit { Err(VerifyError::TooMany { what, found, limit }) } else { Ok(()) }
        };
        limit("registers", self.regs.len(), MAX_REGS)?;
        limit("instructions", self.insts.len(), MAX_INSTS)?;
        limit("clauses", self.clauses.len(), MAX_CLAUSES)?;
        limit("histories", self.histories.len(), MAX_HISTORIES)?;
        for (n, h) in self.histories.iter().enumerate() {
            limit("history intervals", usize::from(h.depth), MAX_HISTORY_DEPTH)?;
            let missing = h.regs.iter().any(|r| usize::from(*r) >= self.regs.len());
            if h.depth == 0 || h.regs.is_empty() || missing {
                return Err(VerifyError::BadHistory { history: n });
            }
        }
        limit("history cells", self.histories.iter().map(HistoryDecl::cells).sum(), MAX_POLICY_INPUTS)?;
        for (n, r) in self.regs.iter().enumerate() {
            if (r.ty == Type::Bool && !matches!(r.init, 0 | 1)) || (r.kind == RegKind::Local && r.init != 0) {
                return Err(VerifyError::BadInit { reg: n });
            }
        }
        let rank = |k: RegKind| match k {
            RegKind::Report => 0,
            RegKind::Control => 1,
            RegKind::Local => 2,
        };
        if self.regs.windows(2).any(|w| rank(w[0].kind) > rank(w[1].kind)) {
            return Err(VerifyError::RegOrder);
        }
        let mut next = 0;
        for (n, c) in self.clauses.iter().enumerate() {
            if c.guard_range().start != next || c.body_range().end > self.insts.len() {
                return Err(VerifyError::BadClause { clause: n });
            }
            next = c.body_range().end;
            let mut tmps = [None; MAX_TMPS];
            self.verify_block(c.guard_range(), &mut tmps)?;
            if self.src_type(c.guard, &tmps, n)? != Type::Bool {
                return Err(VerifyError::BadType { inst: n });
            }
            let mut tmps = [None; MAX_TMPS];
            self.verify_block(c.body_range(), &mut tmps)?;
        }
        if next != self.insts.len() {
            return Err(VerifyError::BadClause { clause: self.clauses.len() });
        }
        Ok(())
    }

    fn verify_block(
        &self,
        range: core::ops::Range<usize>,
        tmps: &mut [Option<Type>; MAX_TMPS],
    ) -> Result<(), VerifyError> {
        for n in range {
            let i = self.insts[n];
            let want = |ok: bool| if ok { Ok(()) } else { Err(VerifyError::BadType { inst: n }) };
            let a = || self.src_type(i.a, tmps, n);
            let b = || self.src_type(i.b, tmps, n);
            let result = match i.op {
                Op::Bind => b()?,
                Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Min | Op::Max | Op::MaxWrap => {
                    want(a()? == Type::Num && b()? == Type::Num)?;
                    Type::Num
                }
                Op::Eq | Op::Lt | Op::Gt | Op::Le | Op::Ge => {
                    want(a()? == Type::Num && b()? == Type::Num)?;
                    Type::Bool
                }
                Op::And | Op::Or => {
                    want(a()? == Type::Bool && b()? == Type::Bool)?;
                    Type::Bool
                }
                Op::Ewma => {
                    want(a()? == Type::Num && b()? == Type::Num)?;
                    Type::Num
                }
                Op::If | Op::NotIf => {
                    want(a()? == Type::Bool)?;
                    b()?
                }
                Op::History => {
                    let Src::Imm(h) = i.a else { return Err(VerifyError::BadType { inst: n }) };
                    if h < 0 || h as usize >= self.histories.len() {
                        return Err(VerifyError::BadIndex { inst: n });
                    }
                    continue;
                }
                Op::Policy => {
                    let Src::Imm(slot) = i.a else { return Err(VerifyError::BadType { inst: n }) };
                    if !(0..MAX_POLICY_SLOTS as i64).contains(&slot) {
                        return Err(VerifyError::BadIndex { inst: n });
                    }
                    continue;
                }
            };
            match i.dst {
                Dst::Reg(r) => {
                    let decl = self.regs.get(usize::from(r)).ok_or(VerifyError::BadIndex { inst: n })?;
                    // A number may hold a truth value, as 0 or 1.
                    want(decl.ty == result || decl.ty == Type::Num)?;
                }
                Dst::Tmp(t) => {
                    // A conditional write would leave the temporary unset on one path.
                    want(!i.op.reads_dst())?;
                    *tmps.get_mut(usize::from(t)).ok_or(VerifyError::BadIndex { inst: n })? = Some(result);
                }
                Dst::Cwnd | Dst::Rate => {
                    self.at_hook(self.hook.sets_window(), n)?;
                    want(result == Type::Num)?;
                }
                Dst::Priority | Dst::Path | Dst::DecideAt => {
                    self.at_hook(!self.hook.sets_window(), n)?;
                    want(result == Type::Num)?;
                }
                Dst::Micros => want(result == Type::Num)?,
                Dst::ShouldReport | Dst::ShouldContinue => want(result == Type::Bool && !i.op.reads_dst())?,
            }
        }
        Ok(())
    }

    fn at_hook(&self, has: bool, inst: usize) -> Result<(), VerifyError> {
        if has { Ok(()) } else { Err(VerifyError::NotOfHook { inst }) }
    }

    fn src_type(&self, src: Src, tmps: &[Option<Type>; MAX_TMPS], inst: usize) -> Result<Type, VerifyError> {
        match src {
            Src::Imm(_) => Ok(Type::Num),
            Src::Bool(_) => Ok(Type::Bool),
            Src::Reg(r) => self.regs.get(usize::from(r)).map(|d| d.ty).ok_or(VerifyError::BadIndex { inst }),
            Src::Tmp(t) => tmps
                .get(usize::from(t))
                .ok_or(VerifyError::BadIndex { inst })?
                .ok_or(VerifyError::UnsetTmp { inst }),
            Src::Prim(p) => self.at_hook(p.is_of(self.hook), inst).map(|()| p.ty()),
            Src::Cwnd | Src::Rate => self.at_hook(self.hook.sets_window(), inst).map(|()| Type::Num),
            Src::Priority | Src::Path | Src::DecideAt => {
                self.at_hook(!self.hook.sets_window(), inst).map(|()| Type::Num)
            }
            Src::Micros | Src::PolicyAction | Src::PolicySnapshot => Ok(Type::Num),
        }
    }
}

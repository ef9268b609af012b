//! Lowering to the bytecode of stock CCP datapaths (libccp 1.x), and its limits.
//!
//! The bytes are those of libccp's `struct ExpressionMsg[]` and `struct InstructionMsg[]` (serialize.h), as an
//! INSTALL message carries them. They equal those of portus 0.9 with these exceptions, each of which makes
//! libccp do what the program says:
//!
//! - `||` whose value is kept is `MAX`; portus sends `ADD`, which makes true + true = 2.
//! - A local that an invocation may read before binding it becomes a control register of our own: libccp
//!   leaves in locals what the flow's previous program wrote there.
//! - `(>= a b)` is `max(a, b) == a` and `(<= a b)` is `min(a, b) == a`, which hold exactly then.
//! - Portus may need more than [`MAX_TMPS`] temporaries (libccp then computes wrong values without an error)
//!   or [`MAX_INSTS`] instructions. There temporaries are reused and results written without a detour.
//!
//! What no lowering can mend: libccp computes with unsigned numbers and abandons an invocation midway at an
//! underflow, a division by zero and some overflows; its infinity is 4294967295; `Ack.now` moves during an
//! invocation; `Cwnd` and `Rate` are cut to 32 bits, and `Rate` is not applied when 0; an immediate has 32 bits.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::ir::{Clause, Dst, Hook, INFINITY, Inst, Op, Prim, Program, RegDecl, RegId, RegKind, Src};
use crate::lang::words::spelling;

mod lift;

pub use lift::{LiftError, Lifted, lift, measured};

/// Limits of a program that differ between libccp and portus's compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most report registers.
    pub reports: usize,
    /// The most control registers, those that the lowering adds included.
    pub controls: usize,
    /// The most local registers.
    pub locals: usize,
    /// The largest immediate, and the largest initial value.
    pub immediate: i64,
}

impl Limits {
    /// The limits of the datapath itself (serialize.h); the largest 32-bit number is its infinity.
    pub const LIBCCP: Limits =
        Limits { reports: 110, controls: 110, locals: 8, immediate: STOCK_INFINITY as i64 - 1 };
    /// The limits of portus's compiler.
    pub const PORTUS: Limits = Limits { reports: 16, controls: 16, locals: 6, immediate: (1 << 31) - 1 };
}

/// Temporaries of one expression.
pub const MAX_TMPS: usize = 8;
/// Instructions. libccp accepts one more and then never returns: its 8-bit index wraps.
pub const MAX_INSTS: usize = 255;
/// libccp's `+infinity`, also what it reads as `Flow.rtt_sample_us` when there is no sample.
pub const STOCK_INFINITY: u32 = u32::MAX;
/// The initial value that libccp replaces by infinity.
pub const INFINITY_MARK: i64 = 0x3fff_ffff;
/// Bytes of one expression, and of one instruction.
pub const ENTRY_BYTES: usize = 16;

/// A register as stock messages name it: libccp's register type and index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StockReg {
    /// One of libccp's register types.
    pub kind: u8,
    /// Index within that type; the value itself for an immediate.
    pub index: u32,
}

impl StockReg {
    /// The congestion window, bytes.
    pub const CWND: StockReg = implicit(4);
    /// Pacing rate, bytes per second.
    pub const RATE: StockReg = implicit(5);
    const EVENT_FLAG: StockReg = implicit(0);
    const SHOULD_CONTINUE: StockReg = implicit(1);
    const SHOULD_REPORT: StockReg = implicit(2);
    const MICROS: StockReg = implicit(3);
}

const CONTROL: u8 = 0;
const IMMEDIATE: u8 = 1;
const IMPLICIT: u8 = 2;
const LOCAL: u8 = 3;
const PRIMITIVE: u8 = 4;
const VOLATILE_REPORT: u8 = 5;
const REPORT: u8 = 6;
const TMP: u8 = 7;
const VOLATILE_CONTROL: u8 = 8;

const fn implicit(index: u32) -> StockReg {
    StockReg { kind: IMPLICIT, index }
}

const fn immediate(value: u32) -> StockReg {
    StockReg { kind: IMMEDIATE, index: value }
}

const fn tmp(index: u32) -> StockReg {
    StockReg { kind: TMP, index }
}

/// libccp's instructions, by their opcodes (ccp_priv.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum StockOp {
    /// Writes `left + right`.
    Add = 0,
    /// Writes `right` as it is.
    Bind = 1,
    /// Declares `left` with initial value `right`.
    Def = 2,
    /// Writes `left / right`, rounded down.
    Div = 3,
    /// Writes whether `left == right`.
    Equiv = 4,
    /// Writes `(left*dst + (10-left)*right) / 10`.
    Ewma = 5,
    /// Writes whether `left > right`.
    Gt = 6,
    /// Writes `right` if `left` is true.
    If = 7,
    /// Writes whether `left < right`.
    Lt = 8,
    /// Writes the larger operand.
    Max = 9,
    /// Writes the later of two 32-bit sequence numbers.
    MaxWrap = 10,
    /// Writes the smaller operand.
    Min = 11,
    /// Writes `left * right`.
    Mul = 12,
    /// Writes `right` if `left` is false.
    NotIf = 13,
    /// Writes `left - right`.
    Sub = 14,
}

impl StockOp {
    /// Every opcode, in order.
    pub const ALL: [StockOp; 15] = [
        StockOp::Add,
        StockOp::Bind,
        StockOp::Def,
        StockOp::Div,
        StockOp::Equiv,
        StockOp::Ewma,
        StockOp::Gt,
        StockOp::If,
        StockOp::Lt,
        StockOp::Max,
        StockOp::MaxWrap,
        StockOp::Min,
        StockOp::Mul,
        StockOp::NotIf,
        StockOp::Sub,
    ];
}

/// A program in stock bytecode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stock {
    bytes: Vec<u8>,
    expressions: usize,
    instructions: usize,
    regs: Vec<StockReg>,
    reports: usize,
}

impl Stock {
    /// The expressions, then the instructions: what follows the counts in an INSTALL message.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Returns the number of expressions (clauses).
    pub fn num_expressions(&self) -> u32 {
        self.expressions as u32
    }
    /// Returns the number of instructions, initialisations included.
    pub fn num_instructions(&self) -> u32 {
        self.instructions as u32
    }
    /// Returns the number of values that a MEASURE message of this program carries; value `i` is that of register
    /// `i`.
    pub fn report_len(&self) -> usize {
        self.reports
    }
    /// Returns libccp's place of the register.
    pub fn reg(&self, reg: RegId) -> Option<StockReg> {
        self.regs.get(usize::from(reg)).copied()
    }
    /// The register as UPDATE_FIELDS and CHANGE_PROG name it; `None` for one that the agent may not update.
    pub fn update_reg(&self, reg: RegId) -> Option<StockReg> {
        let stock = self.reg(reg)?;
        matches!(stock.kind, CONTROL | VOLATILE_CONTROL).then_some(stock)
    }
}

/// The name of one of libccp's register types, in words.
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        CONTROL => "control",
        IMMEDIATE => "immediate",
        IMPLICIT => "implicit",
        LOCAL => "local",
        PRIMITIVE => "primitive",
        VOLATILE_REPORT => "volatile report",
        REPORT => "report",
        TMP => "temporary",
        VOLATILE_CONTROL => "volatile control",
        _ => "unknown",
    }
}

/// A reported value as ours: libccp's infinity, and anything beyond our range, is [`INFINITY`].
pub fn reported(value: u64) -> i64 {
    match i64::try_from(value) {
        Ok(v) if v != i64::from(STOCK_INFINITY) => v,
        _ => INFINITY,
    }
}

/// The reason why a program cannot run on a stock datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// More of `what` than `limit`.
    TooMany {
        /// The kind of item of which there are too many.
        what: &'static str,
        found: usize,
        limit: usize,
    },
    /// An expression of clause `clause` needs too many temporaries.
    TooManyTmps {
        /// Index of the clause.
        clause: usize,
        limit: usize,
    },
    /// Instruction `inst` uses a number that is negative or too large.
    Immediate {
        /// Index of the instruction in our IR.
        inst: usize,
        value: i64,
        /// The largest number allowed.
        limit: i64,
    },
    /// A register's initial value is negative, too large, or the one that libccp reads as infinity.
    Init {
        reg: String,
        value: i64,
        /// The largest number allowed.
        limit: i64,
    },
    /// Instruction `inst` has no stock counterpart.
    Unsupported {
        /// Index of the instruction in our IR.
        inst: usize,
        /// The language feature, as programs spell it.
        feature: &'static str,
    },
}

impl Refusal {
    /// The line of the program's text that is too much; `None` where no single line is, or the text is not known.
    pub fn line(&self, program: &Program) -> Option<u32> {
        let nth = |kind, n| {
            let mut of_kind = program.regs().iter().enumerate().filter(move |(_, r)| r.kind == kind);
            of_kind.nth(n).map(|(reg, _)| reg)
        };
        match self {
            Refusal::TooMany { what: REPORTS, limit, .. } => program.reg_line(nth(RegKind::Report, *limit)?),
            Refusal::TooMany { what: CONTROLS, limit, .. } => {
                program.reg_line(nth(RegKind::Control, *limit)?)
            }
            Refusal::TooMany { what: LOCALS, limit, .. } => program.reg_line(nth(RegKind::Local, *limit)?),
            Refusal::TooMany { .. } => None,
            Refusal::TooManyTmps { clause, .. } => {
                program.inst_line(program.clauses().get(*clause)?.guard_range().start)
            }
            Refusal::Immediate { inst, .. } | Refusal::Unsupported { inst, .. } => program.inst_line(*inst),
            Refusal::Init { reg, .. } => {
                program.reg_line(program.regs().iter().position(|decl| decl.name == *reg)?)
            }
        }
    }

    /// The reason in words, with its line of the program's text where there is one.
    pub fn explain(&self, program: &Program) -> String {
        match self.line(program) {
            Some(line) => format!("line {line}: {}", Reason(self)),
            None => format!("{}", Reason(self)),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stock CCP datapaths cannot run this program: {}", Reason(self))
    }
}

/// A refusal without the words that say who refuses.
struct Reason<'a>(&'a Refusal);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::TooMany { what, found, limit } => {
                write!(f, "it needs {found} {what}, stock CCP has {limit}")
            }
            Refusal::TooManyTmps { limit, .. } => {
                write!(f, "an expression needs more than {limit} temporaries, all that stock CCP has")
            }
            Refusal::Immediate { value, limit, .. } => {
                write!(f, "it uses {value}, stock CCP's numbers are between 0 and {limit}")
            }
            Refusal::Init { reg, value, .. } if *value == INFINITY_MARK => {
                write!(f, "`{reg}` starts at {value}, which stock CCP reads as infinity")
            }
            Refusal::Init { reg, value, limit } => {
                write!(f, "`{reg}` starts at {value}, stock CCP's numbers are between 0 and {limit}")
            }
            Refusal::Unsupported { feature, .. } => write!(f, "stock CCP has no `{feature}`"),
        }
    }
}

impl core::error::Error for Refusal {}

/// The way results reach their registers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Lowers as portus does: each operation gets a temporary of its own, a bind copies it.
    Portus,
    /// Temporaries are reused, operations write registers directly.
    Compact,
}

/// Lowers a program to libccp's bytecode.
///
/// # Errors
/// The first limit of libccp that it exceeds.
pub fn lower(program: &Program) -> Result<Stock, Refusal> {
    lower_within(program, &Limits::LIBCCP)
}

/// Lowers a program to libccp's bytecode within these limits.
///
/// # Errors
/// The first limit that it exceeds.
pub fn lower_within(program: &Program, limits: &Limits) -> Result<Stock, Refusal> {
    if program.hook() != Hook::Ack {
        return Err(Refusal::Unsupported { inst: 0, feature: HOOK });
    }
    match Lowering::run(program, limits, Style::Portus) {
        Err(Refusal::TooManyTmps { .. } | Refusal::TooMany { what: INSTRUCTIONS, .. }) => {
            Lowering::run(program, limits, Style::Compact)
        }
        done => done,
    }
}

const REPORTS: &str = "report registers";
const CONTROLS: &str = "control registers";
const LOCALS: &str = "locals";
const INSTRUCTIONS: &str = "instructions";
const HOOK: &str = "hook";

#[derive(Clone, Copy)]
struct StockInst {
    op: StockOp,
    res: StockReg,
    left: StockReg,
    right: StockReg,
}

struct Lowering<'p> {
    program: &'p Program,
    limits: &'p Limits,
    style: Style,
    regs: Vec<StockReg>,
    insts: Vec<StockInst>,
    clause: usize,
    /// Portus style: the next temporary.
    next_tmp: u32,
    /// Portus style: where each temporary of the IR is.
    tmps: [u32; crate::ir::MAX_TMPS],
}

/// The demands that an instruction's surroundings make on its lowering.
#[derive(Clone, Copy, Default)]
struct Context {
    /// Temporaries of the IR that hold a value before it, one bit each.
    live: u32,
    /// Whether a register keeps its boolean result, which must be 0 or 1 then.
    kept: bool,
}

impl Lowering<'_> {
    fn run(program: &Program, limits: &Limits, style: Style) -> Result<Stock, Refusal> {
        let mut lowering = Lowering {
            program,
            limits,
            style,
            regs: Vec::new(),
            insts: Vec::new(),
            clause: 0,
            next_tmp: 0,
            tmps: [0; crate::ir::MAX_TMPS],
        };
        let reports = lowering.registers()?;
        let mut bytes = Vec::new();
        for (n, clause) in program.clauses().iter().enumerate() {
            lowering.clause = n;
            let guard = lowering.insts.len();
            lowering.guard(clause)?;
            let body = lowering.insts.len();
            lowering.block(clause.body_range(), 0, false)?;
            for word in [guard, body - guard, body, lowering.insts.len() - body] {
                bytes.extend((word as u32).to_le_bytes());
            }
        }
        limit(INSTRUCTIONS, lowering.insts.len(), MAX_INSTS)?;
        for inst in &lowering.insts {
            bytes.push(inst.op as u8);
            for reg in [inst.res, inst.left, inst.right] {
                bytes.push(reg.kind);
                bytes.extend(reg.index.to_le_bytes());
            }
        }
        Ok(Stock {
            bytes,
            expressions: program.clauses().len(),
            instructions: lowering.insts.len(),
            regs: lowering.regs,
            reports,
        })
    }

    /// Numbers the registers and emits their initialisations; returns how many are reported.
    fn registers(&mut self) -> Result<usize, Refusal> {
        let carried = carried_locals(self.program);
        let (mut reports, mut controls, mut locals) = (0, 0, 0);
        for (decl, carried) in self.program.regs().iter().zip(carried) {
            let (kind, count) = match decl.kind {
                RegKind::Report if decl.volatile => (VOLATILE_REPORT, &mut reports),
                RegKind::Report => (REPORT, &mut reports),
                RegKind::Control if decl.volatile => (VOLATILE_CONTROL, &mut controls),
                RegKind::Control => (CONTROL, &mut controls),
                RegKind::Local if carried => (CONTROL, &mut controls),
                RegKind::Local => (LOCAL, &mut locals),
            };
            self.regs.push(StockReg { kind, index: *count });
            *count += 1;
        }
        limit(REPORTS, reports as usize, self.limits.reports)?;
        limit(CONTROLS, controls as usize, self.limits.controls)?;
        limit(LOCALS, locals as usize, self.limits.locals)?;
        self.initialise()?;
        Ok(reports as usize)
    }

    /// One DEF each, in the order of the names, as portus emits them.
    fn initialise(&mut self) -> Result<(), Refusal> {
        let mut defs: Vec<(&RegDecl, StockReg)> = self
            .program
            .regs()
            .iter()
            .zip(self.regs.iter().copied())
            .filter(|(_, r)| r.kind != LOCAL)
            .collect();
        defs.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        for (decl, reg) in defs {
            let value = match decl.init {
                INFINITY => STOCK_INFINITY,
                v if (0..=self.limits.immediate).contains(&v) && v != INFINITY_MARK => v as u32,
                value => {
                    let limit = self.limits.immediate;
                    return Err(Refusal::Init { reg: decl.name.clone(), value, limit });
                }
            };
            self.insts.push(StockInst { op: StockOp::Def, res: reg, left: reg, right: immediate(value) });
        }
        Ok(())
    }

    fn guard(&mut self, clause: &Clause) -> Result<(), Refusal> {
        let range = clause.guard_range();
        let last = range.clone().next_back().and_then(|i| self.program.insts().get(i));
        // The operation that computes the guard writes the flag itself.
        let direct = matches!(last, Some(i) if i.op != Op::Bind && matches!((i.dst, clause.guard),
            (Dst::Tmp(dst), Src::Tmp(guard)) if dst == guard));
        self.block(range.clone(), src_bit(clause.guard), direct)?;
        if !direct {
            let flag = self.src(clause.guard, range.start)?;
            self.push(StockOp::Bind, StockReg::EVENT_FLAG, StockReg::EVENT_FLAG, flag);
        }
        Ok(())
    }

    /// Lowers a block. Temporaries in `live` are read after it; `to_flag` sends its last result to the event flag.
    fn block(&mut self, range: Range<usize>, live: u32, to_flag: bool) -> Result<(), Refusal> {
        let insts = self.program.insts().get(range.clone()).unwrap_or_default();
        for ((n, inst), context) in range.clone().zip(insts).zip(contexts(insts, live)) {
            let flag = (to_flag && n + 1 == range.end).then_some(StockReg::EVENT_FLAG);
            self.inst(n, inst, context, flag)?;
        }
        Ok(())
    }

    fn inst(
        &mut self,
        n: usize,
        inst: &Inst,
        context: Context,
        flag: Option<StockReg>,
    ) -> Result<(), Refusal> {
        if context.live == 0 {
            self.next_tmp = 0;
        }
        let unsupported = || Refusal::Unsupported { inst: n, feature: spelling(inst.op) };
        if matches!(inst.op, Op::History | Op::Policy) {
            return Err(unsupported());
        }
        let b = self.src(inst.b, n)?;
        if inst.op == Op::Bind {
            let dst = self.dst(inst.dst)?;
            self.push(StockOp::Bind, dst, dst, b);
            return Ok(());
        }
        let a = self.src(inst.a, n)?;
        let op = match inst.op {
            Op::Add => StockOp::Add,
            Op::Sub => StockOp::Sub,
            // Of 0 and 1.
            Op::Mul | Op::And => StockOp::Mul,
            Op::Div => StockOp::Div,
            Op::Eq => StockOp::Equiv,
            Op::Lt => StockOp::Lt,
            Op::Gt => StockOp::Gt,
            Op::Min => StockOp::Min,
            Op::Max => StockOp::Max,
            Op::MaxWrap => StockOp::MaxWrap,
            Op::Or if context.kept => StockOp::Max,
            Op::Or => StockOp::Add,
            Op::Ewma => StockOp::Ewma,
            Op::If => StockOp::If,
            Op::NotIf => StockOp::NotIf,
            Op::Le | Op::Ge => return self.or_equal(inst, context, (a, b), flag),
            Op::Bind | Op::History | Op::Policy => return Err(unsupported()),
        };
        self.result(inst, flag, op, a, b)
    }

    /// `max(a, b) == a`, or `min(a, b) == a`. `Ack.now` is read once only: libccp's moves between two reads.
    fn or_equal(
        &mut self,
        inst: &Inst,
        context: Context,
        (a, b): (StockReg, StockReg),
        flag: Option<StockReg>,
    ) -> Result<(), Refusal> {
        let now = StockReg { kind: PRIMITIVE, index: Prim::AckNow as u32 };
        if a == now && b == now {
            return self.result(inst, flag, StockOp::Equiv, immediate(0), immediate(0));
        }
        let (extreme_of_a, extreme_of_b) = match inst.op {
            Op::Ge => (StockOp::Max, StockOp::Min),
            _ => (StockOp::Min, StockOp::Max),
        };
        let (op, again) = if a == now { (extreme_of_b, b) } else { (extreme_of_a, a) };
        let extreme = self.scratch(context)?;
        self.push(op, extreme, a, b);
        self.result(inst, flag, StockOp::Equiv, extreme, again)
    }

    /// Emits `op` so that its result arrives where the instruction wants it.
    fn result(
        &mut self,
        inst: &Inst,
        flag: Option<StockReg>,
        op: StockOp,
        a: StockReg,
        b: StockReg,
    ) -> Result<(), Refusal> {
        if let Some(flag) = flag {
            self.push(op, flag, a, b);
            return Ok(());
        }
        let direct = inst.op.reads_dst() || self.style == Style::Compact || matches!(inst.dst, Dst::Tmp(_));
        if direct {
            let dst = self.dst(inst.dst)?;
            self.push(op, dst, a, b);
        } else {
            let value = self.new_tmp()?;
            self.push(op, value, a, b);
            let dst = self.dst(inst.dst)?;
            self.push(StockOp::Bind, dst, dst, value);
        }
        Ok(())
    }

    fn push(&mut self, op: StockOp, res: StockReg, left: StockReg, right: StockReg) {
        self.insts.push(StockInst { op, res, left, right });
    }

    fn too_many_tmps(&self) -> Refusal {
        Refusal::TooManyTmps { clause: self.clause, limit: MAX_TMPS }
    }

    fn new_tmp(&mut self) -> Result<StockReg, Refusal> {
        let t = self.next_tmp;
        self.next_tmp += 1;
        if t as usize >= MAX_TMPS { Err(self.too_many_tmps()) } else { Ok(tmp(t)) }
    }

    /// A temporary for a value that the next instruction consumes.
    fn scratch(&mut self, context: Context) -> Result<StockReg, Refusal> {
        match self.style {
            Style::Portus => self.new_tmp(),
            Style::Compact => {
                let t = context.live.trailing_ones();
                if t as usize >= MAX_TMPS { Err(self.too_many_tmps()) } else { Ok(tmp(t)) }
            }
        }
    }

    fn dst(&mut self, dst: Dst) -> Result<StockReg, Refusal> {
        Ok(match dst {
            Dst::Reg(r) => self.reg(r),
            Dst::Tmp(t) => {
                let place = match self.style {
                    Style::Portus => self.new_tmp()?,
                    Style::Compact if usize::from(t) >= MAX_TMPS => return Err(self.too_many_tmps()),
                    Style::Compact => tmp(u32::from(t)),
                };
                if let Some(slot) = self.tmps.get_mut(usize::from(t)) {
                    *slot = place.index;
                }
                place
            }
            Dst::Cwnd => StockReg::CWND,
            Dst::Rate => StockReg::RATE,
            Dst::Priority | Dst::Path | Dst::DecideAt => {
                return Err(Refusal::Unsupported { inst: 0, feature: HOOK });
            }
            Dst::Micros => StockReg::MICROS,
            Dst::ShouldReport => StockReg::SHOULD_REPORT,
            Dst::ShouldContinue => StockReg::SHOULD_CONTINUE,
        })
    }

    fn reg(&self, r: RegId) -> StockReg {
        self.regs.get(usize::from(r)).copied().unwrap_or(immediate(0))
    }

    fn src(&self, src: Src, inst: usize) -> Result<StockReg, Refusal> {
        Ok(match src {
            Src::Imm(INFINITY) => immediate(STOCK_INFINITY),
            Src::Imm(v) if (0..=self.limits.immediate).contains(&v) => immediate(v as u32),
            Src::Imm(value) => return Err(Refusal::Immediate { inst, value, limit: self.limits.immediate }),
            Src::Bool(b) => immediate(u32::from(b)),
            Src::Reg(r) => self.reg(r),
            Src::Tmp(t) => tmp(self.tmps.get(usize::from(t)).copied().unwrap_or(0)),
            Src::Prim(p) => StockReg { kind: PRIMITIVE, index: p as u32 },
            Src::Cwnd => StockReg::CWND,
            Src::Rate => StockReg::RATE,
            Src::Priority | Src::Path | Src::DecideAt => {
                return Err(Refusal::Unsupported { inst, feature: HOOK });
            }
            Src::Micros => StockReg::MICROS,
            Src::PolicyAction => return Err(Refusal::Unsupported { inst, feature: "Policy.action" }),
            Src::PolicySnapshot => return Err(Refusal::Unsupported { inst, feature: "Policy.snapshot" }),
        })
    }
}

fn limit(what: &'static str, found: usize, limit: usize) -> Result<(), Refusal> {
    if found > limit { Err(Refusal::TooMany { what, found, limit }) } else { Ok(()) }
}

fn bit(t: u8) -> u32 {
    1u32.checked_shl(u32::from(t)).unwrap_or(0)
}

fn src_bit(src: Src) -> u32 {
    if let Src::Tmp(t) = src { bit(t) } else { 0 }
}

/// One pass from the end of a block, at which `live` temporaries are still to be read.
fn contexts(insts: &[Inst], mut live: u32) -> Vec<Context> {
    let mut kept_tmps = 0;
    let mut contexts: Vec<Context> = insts
        .iter()
        .rev()
        .map(|inst| {
            let kept = match inst.dst {
                Dst::Tmp(t) => {
                    let kept = kept_tmps & bit(t) != 0;
                    kept_tmps &= !bit(t);
                    live &= !bit(t);
                    kept
                }
                _ => true,
            };
            let a = if inst.op == Op::Bind { 0 } else { src_bit(inst.a) };
            live |= a | src_bit(inst.b);
            if kept {
                kept_tmps |= match inst.op {
                    Op::And | Op::Or => a | src_bit(inst.b),
                    Op::Bind | Op::If | Op::NotIf => src_bit(inst.b),
                    _ => 0,
                };
            }
            Context { live, kept }
        })
        .collect();
    contexts.reverse();
    contexts
}

/// Returns for each register whether it is a local that an invocation may read before it binds it.
fn carried_locals(program: &Program) -> Vec<bool> {
    let is_local = |r: RegId| program.regs().get(usize::from(r)).is_some_and(|d| d.kind == RegKind::Local);
    let mut carried = alloc::vec![false; program.regs().len()];
    let mut read = |src: Src, bound: &[bool]| {
        if let Src::Reg(r) = src
            && is_local(r)
            && !bound[usize::from(r)]
        {
            carried[usize::from(r)] = true;
        }
    };
    // Bound in every invocation that comes as far as the clause at hand: by the guards before it, and by the
    // bodies of those that always hold.
    let mut always = alloc::vec![false; program.regs().len()];
    for clause in program.clauses() {
        let mut bound = always.clone();
        let mut block = |range: Range<usize>, bound: &mut Vec<bool>| {
            for inst in program.insts().get(range).unwrap_or_default() {
                if inst.op != Op::Bind {
                    read(inst.a, bound);
                }
                read(inst.b, bound);
                if let Dst::Reg(r) = inst.dst {
                    if inst.op.reads_dst() {
                        read(Src::Reg(r), bound);
                    } else if let Some(b) = bound.get_mut(usize::from(r)) {
                        *b = true;
                    }
                }
            }
        };
        block(clause.guard_range(), &mut bound);
        always.clone_from(&bound);
        block(clause.body_range(), &mut bound);
        if clause.guard == Src::Bool(true) {
            always = bound;
        } else {
            read(clause.guard, &always);
        }
    }
    carried
}

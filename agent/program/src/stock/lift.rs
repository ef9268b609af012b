//! Lifts stock bytecode to our IR, so that programs of stock agents (portus) run on our executors.
//!
//! The lifted program does on each ACK what libccp's machine does, as long as that computes with numbers that
//! both show alike: `0` to `2^63`, none of them 4294967295 but for `+infinity`. Where libccp would abandon the
//! program, ours goes on. Stock registers have no types and no names: here all are numbers, and are called
//! `Report.r0`, `c0`, `l0`.
//!
//! libccp's machine has corners that no compiler uses; a program that uses one is refused ([`LiftError`]).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::{
    CONTROL, ENTRY_BYTES, IMMEDIATE, IMPLICIT, INFINITY_MARK, LOCAL, MAX_TMPS, PRIMITIVE, REPORT,
    STOCK_INFINITY, StockInst, StockOp, StockReg, TMP, VOLATILE_CONTROL, VOLATILE_REPORT,
};
use crate::ir::{
    Clause, Dst, INFINITY, Inst, MAX_REGS, Op, Prim, Program, RegDecl, RegId, RegKind, Src, Type, VerifyError,
};

/// A stock program as ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lifted {
    pub program: Program,
    reports: u8,
    controls: u8,
}

impl Lifted {
    /// The register that UPDATE_FIELDS and CHANGE_PROG name; `None` for what is no control register of the program.
    pub fn update_reg(&self, reg: StockReg) -> Option<RegId> {
        let index = u8::try_from(reg.index).ok().filter(|i| *i < self.controls)?;
        matches!(reg.kind, CONTROL | VOLATILE_CONTROL).then_some(self.reports + index)
    }

    /// Returns libccp's place of a register of the program.
    pub fn stock_reg(&self, reg: RegId) -> Option<StockReg> {
        let decl = self.program.regs().get(usize::from(reg))?;
        let (kind, first) = match decl.kind {
            RegKind::Report => (REPORT, 0),
            RegKind::Control => (CONTROL, self.reports),
            RegKind::Local => (LOCAL, self.reports + self.controls),
        };
        Some(StockReg { kind, index: u32::from(reg - first) })
    }
}

/// Our value as stock messages carry it: [`INFINITY`] is libccp's, and negative numbers, which it has not, are 0.
pub fn measured(value: i64) -> u64 {
    if value == INFINITY { u64::from(STOCK_INFINITY) } else { u64::try_from(value).unwrap_or(0) }
}

/// The reason why stock bytecode is no program of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LiftError {
    /// The bytes hold fewer expressions than claimed, or no whole number of instructions.
    Short,
    /// Instruction `inst` has an unknown operation, register type or register, or writes what cannot be written.
    Malformed {
        /// Index of the stock instruction.
        inst: usize,
    },
    /// Expression `clause` names instructions that do not exist.
    BadRange {
        /// Index of the expression.
        clause: usize,
    },
    /// The condition of expression `clause` leaves the event flag as it was.
    NoFlag {
        /// Index of the expression.
        clause: usize,
    },
    /// Instruction `inst` uses a corner of libccp's machine: a definition after the first other instruction, the
    /// event flag outside of a condition, a conditional or an average of a temporary.
    Unsupported {
        /// Index of the stock instruction.
        inst: usize,
    },
    /// Report or control registers are not defined once each, without gaps.
    Definitions,
    /// The lifted program breaks a rule of ours, such as a limit.
    Verify(VerifyError),
}

impl fmt::Display for LiftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiftError::Short => f.write_str("the bytecode is shorter than it says"),
            LiftError::Malformed { inst } => write!(f, "instruction {inst} is malformed"),
            LiftError::BadRange { clause } => {
                write!(f, "expression {clause} names instructions that do not exist")
            }
            LiftError::NoFlag { clause } => write!(f, "the condition of expression {clause} has no value"),
            LiftError::Unsupported { inst } => write!(f, "instruction {inst} does what no compiler emits"),
            LiftError::Definitions => f.write_str("registers are not defined once each, without gaps"),
            LiftError::Verify(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for LiftError {}

/// Lifts what follows the counts in an INSTALL message: `expressions` expressions, then instructions.
///
/// # Errors
/// See [`LiftError`].
pub fn lift(expressions: usize, bytes: &[u8]) -> Result<Lifted, LiftError> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() || entries.len() < expressions {
        return Err(LiftError::Short);
    }
    let (events, insts) = entries.split_at(expressions);
    let insts: Vec<StockInst> =
        insts.iter().enumerate().map(|(inst, e)| decode(inst, e)).collect::<Result<_, _>>()?;
    let defs = insts.iter().take_while(|i| i.op == StockOp::Def).count();
    let (definitions, code) = insts.split_at(defs);
    if let Some(late) = code.iter().position(|i| i.op == StockOp::Def) {
        return Err(LiftError::Unsupported { inst: defs + late });
    }
    let file = registers(definitions, code)?;
    let (reports, controls) = (file.reports, file.controls);
    let mut lifting = Lifting { insts: &insts, file, out: Vec::new(), types: [None; TMPS] };
    let mut clauses = Vec::new();
    for (clause, event) in events.iter().enumerate() {
        let range = |from: usize| {
            let at = word(event, from) as usize;
            let end = at.saturating_add(word(event, from + 4) as usize);
            if end > insts.len() { Err(LiftError::BadRange { clause }) } else { Ok(at..end) }
        };
        clauses.push(lifting.clause(clause, range(0)?, range(8)?)?);
    }
    let regs = lifting.file.regs;
    let program = Program::new(regs, lifting.out, clauses, Vec::new()).map_err(LiftError::Verify)?;
    Ok(Lifted { program, reports, controls })
}

fn word(entry: &[u8; ENTRY_BYTES], at: usize) -> u32 {
    let bytes = entry.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_le_bytes(bytes.unwrap_or_default())
}

fn decode(inst: usize, entry: &[u8; ENTRY_BYTES]) -> Result<StockInst, LiftError> {
    let reg = |at: usize| StockReg { kind: entry[at], index: word(entry, at + 1) };
    let op = StockOp::ALL.get(usize::from(entry[0])).ok_or(LiftError::Malformed { inst })?;
    Ok(StockInst { op: *op, res: reg(1), left: reg(6), right: reg(11) })
}

/// The registers of a lifted program: reports, controls, then libccp's locals and two of our own.
struct File {
    regs: Vec<RegDecl>,
    reports: u8,
    controls: u8,
    locals: u8,
}

/// Registers in which truth values become numbers, one for each operand.
const SCRATCH: u8 = 2;

fn registers(definitions: &[StockInst], code: &[StockInst]) -> Result<File, LiftError> {
    let mut reports = Vec::new();
    let mut controls = Vec::new();
    for (inst, def) in definitions.iter().enumerate() {
        let (all, kind, volatile) = match def.left.kind {
            REPORT | VOLATILE_REPORT => (&mut reports, RegKind::Report, def.left.kind == VOLATILE_REPORT),
            CONTROL | VOLATILE_CONTROL => {
                (&mut controls, RegKind::Control, def.left.kind == VOLATILE_CONTROL)
            }
            _ => return Err(LiftError::Malformed { inst }),
        };
        let init = match def.right {
            StockReg { kind: IMMEDIATE, index: STOCK_INFINITY } => INFINITY,
            StockReg { kind: IMMEDIATE, index } if i64::from(index) == INFINITY_MARK => INFINITY,
            StockReg { kind: IMMEDIATE, index } => i64::from(index),
            _ => return Err(LiftError::Malformed { inst }),
        };
        let prefix = if kind == RegKind::Report { "Report.r" } else { "c" };
        let name = format!("{prefix}{}", def.left.index);
        all.push((def.left.index, RegDecl { name, kind, ty: Type::Num, volatile, init }));
    }
    for all in [&mut reports, &mut controls] {
        all.sort_by_key(|(index, _)| *index);
        if all.iter().enumerate().any(|(n, (index, _))| n != *index as usize) {
            return Err(LiftError::Definitions);
        }
    }
    let used = code.iter().flat_map(|i| [i.res, i.left, i.right]).filter(|r| r.kind == LOCAL);
    let locals = used.map(|r| r.index.saturating_add(1)).max().unwrap_or(0);
    let count = |found: usize| {
        u8::try_from(found)
            .ok()
            .filter(|n| usize::from(*n) <= MAX_REGS)
            .ok_or(LiftError::Verify(VerifyError::TooMany { what: "registers", found, limit: MAX_REGS }))
    };
    let locals = count(locals as usize)?;
    let (report_count, control_count) = (count(reports.len())?, count(controls.len())?);
    count(reports.len() + controls.len() + usize::from(locals + SCRATCH))?;
    let mut regs: Vec<RegDecl> = reports.into_iter().chain(controls).map(|(_, decl)| decl).collect();
    let local =
        |name: String| RegDecl { name, kind: RegKind::Local, ty: Type::Num, volatile: false, init: 0 };
    regs.extend((0..locals).map(|n| local(format!("l{n}"))));
    regs.extend((0..SCRATCH).map(|n| local(format!("scratch{n}"))));
    Ok(File { regs, reports: report_count, controls: control_count, locals })
}

/// Temporaries of the lifted program: libccp's, the event flag, and two in which numbers become truth values.
const TMPS: usize = MAX_TMPS + 3;
const FLAG: u8 = MAX_TMPS as u8;
const TRUTH: u8 = FLAG + 1;

struct Lifting<'a> {
    insts: &'a [StockInst],
    file: File,
    out: Vec<Inst>,
    /// The type of each temporary's value; `None` before it is written.
    types: [Option<Type>; TMPS],
}

/// An operand, and which of the two it is.
#[derive(Clone, Copy)]
struct Operand {
    src: Src,
    ty: Type,
    side: u8,
}

impl Lifting<'_> {
    fn clause(
        &mut self,
        clause: usize,
        condition: Range<usize>,
        body: Range<usize>,
    ) -> Result<Clause, LiftError> {
        let start = self.out.len();
        self.types = [None; TMPS];
        // `(when true ...)` binds the flag to 1 and does nothing else.
        let constant = match self.insts.get(condition.clone()) {
            Some([StockInst { op: StockOp::Bind, res: StockReg::EVENT_FLAG, right, .. }])
                if right.kind == IMMEDIATE =>
            {
                Some(Src::Bool(right.index != 0))
            }
            _ => None,
        };
        let guard = match constant {
            Some(guard) => guard,
            None => {
                for n in condition {
                    self.inst(n, true)?;
                }
                let ty = self.types[usize::from(FLAG)].ok_or(LiftError::NoFlag { clause })?;
                self.truth(Operand { src: Src::Tmp(FLAG), ty, side: 0 })
            }
        };
        let guard_end = self.out.len();
        self.types = [None; TMPS];
        for n in body {
            self.inst(n, false)?;
        }
        // A program too long for these is refused for its instructions.
        let length = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        Ok(Clause {
            start: length(start),
            guard_insts: length(guard_end - start),
            body_insts: length(self.out.len() - guard_end),
            guard,
        })
    }

    fn inst(&mut self, n: usize, in_condition: bool) -> Result<(), LiftError> {
        let Some(inst) = self.insts.get(n).copied() else { return Ok(()) };
        if inst.res == StockReg::EVENT_FLAG && !in_condition {
            return Err(LiftError::Unsupported { inst: n });
        }
        let dst = self.dst(n, inst.res)?;
        let b = self.operand(n, inst.right, 1)?;
        if inst.op == StockOp::Bind {
            return self.bind(n, Op::Bind, dst, Src::Imm(0), b);
        }
        let a = self.operand(n, inst.left, 0)?;
        let op = match inst.op {
            StockOp::If | StockOp::NotIf => {
                let op = if inst.op == StockOp::If { Op::If } else { Op::NotIf };
                let condition = self.truth(a);
                return self.bind(n, op, dst, condition, b);
            }
            // Of truth values these are what they say, also where the sum would be 2: the flag is true either way.
            StockOp::Mul | StockOp::Min if (a.ty, b.ty) == (Type::Bool, Type::Bool) => Op::And,
            StockOp::Max if (a.ty, b.ty) == (Type::Bool, Type::Bool) => Op::Or,
            StockOp::Add if (a.ty, b.ty, dst) == (Type::Bool, Type::Bool, Dst::Tmp(FLAG)) => Op::Or,
            StockOp::Add => Op::Add,
            StockOp::Sub => Op::Sub,
            StockOp::Mul => Op::Mul,
            StockOp::Div => Op::Div,
            StockOp::Equiv => Op::Eq,
            StockOp::Lt => Op::Lt,
            StockOp::Gt => Op::Gt,
            StockOp::Min => Op::Min,
            StockOp::Max => Op::Max,
            StockOp::MaxWrap => Op::MaxWrap,
            StockOp::Ewma => Op::Ewma,
            StockOp::Bind | StockOp::Def => return Err(LiftError::Unsupported { inst: n }),
        };
        let (a, b) = match op {
            Op::And | Op::Or => (a.src, b.src),
            _ => (self.number(a), self.number(b)),
        };
        let ty =
            if matches!(op, Op::And | Op::Or | Op::Eq | Op::Lt | Op::Gt) { Type::Bool } else { Type::Num };
        self.emit(n, Inst { op, dst, a, b }, ty)
    }

    /// `op` that hands on its second operand, which its destination must be able to take.
    fn bind(&mut self, n: usize, op: Op, dst: Dst, a: Src, b: Operand) -> Result<(), LiftError> {
        let (b, ty) = match dst {
            Dst::Cwnd | Dst::Rate | Dst::Priority | Dst::Path | Dst::DecideAt | Dst::Micros => {
                (self.number(b), Type::Num)
            }
            Dst::ShouldReport | Dst::ShouldContinue => (self.truth(b), Type::Bool),
            Dst::Reg(_) | Dst::Tmp(_) => (b.src, b.ty),
        };
        self.emit(n, Inst { op, dst, a, b }, ty)
    }

    fn emit(&mut self, n: usize, mut inst: Inst, ty: Type) -> Result<(), LiftError> {
        match inst.dst {
            Dst::Tmp(_) | Dst::ShouldReport | Dst::ShouldContinue if inst.op.reads_dst() => {
                return Err(LiftError::Unsupported { inst: n });
            }
            Dst::Tmp(t) => {
                if let Some(slot) = self.types.get_mut(usize::from(t)) {
                    *slot = Some(ty);
                }
            }
            // A computed value of the other type goes there by way of a scratch.
            Dst::Cwnd | Dst::Rate | Dst::Micros if ty == Type::Bool => {
                let dst = inst.dst;
                inst.dst = Dst::Reg(self.scratch(0));
                self.out.push(inst);
                inst = Inst { op: Op::Bind, dst, a: Src::Imm(0), b: Src::Reg(self.scratch(0)) };
            }
            Dst::ShouldReport | Dst::ShouldContinue if ty == Type::Num => {
                let dst = inst.dst;
                inst.dst = Dst::Reg(self.scratch(0));
                self.out.push(inst);
                inst = Inst { op: Op::Gt, dst, a: Src::Reg(self.scratch(0)), b: Src::Imm(0) };
            }
            _ => {}
        }
        self.out.push(inst);
        Ok(())
    }

    /// The operand as a number.
    fn number(&mut self, operand: Operand) -> Src {
        if operand.ty == Type::Num {
            return operand.src;
        }
        let reg = self.scratch(operand.side);
        self.out.push(Inst { op: Op::Bind, dst: Dst::Reg(reg), a: Src::Imm(0), b: operand.src });
        Src::Reg(reg)
    }

    /// Whether the operand is not 0.
    fn truth(&mut self, operand: Operand) -> Src {
        match operand {
            Operand { src: Src::Imm(value), .. } => Src::Bool(value != 0),
            Operand { ty: Type::Bool, src, .. } => src,
            Operand { src, side, .. } => {
                let dst = Dst::Tmp(TRUTH + side);
                self.out.push(Inst { op: Op::Gt, dst, a: src, b: Src::Imm(0) });
                Src::Tmp(TRUTH + side)
            }
        }
    }

    fn scratch(&self, side: u8) -> RegId {
        self.file.reports + self.file.controls + self.file.locals + side
    }

    fn operand(&self, inst: usize, reg: StockReg, side: u8) -> Result<Operand, LiftError> {
        let malformed = LiftError::Malformed { inst };
        let tmp = |t: u8| self.types.get(usize::from(t)).copied().flatten();
        let (src, ty) = match (reg.kind, u8::try_from(reg.index)) {
            (IMMEDIATE, _) if reg.index == STOCK_INFINITY => (Src::Imm(INFINITY), Type::Num),
            (IMMEDIATE, _) => (Src::Imm(i64::from(reg.index)), Type::Num),
            (PRIMITIVE, Ok(index)) => {
                let prim = *Prim::ACK.get(usize::from(index)).ok_or(malformed)?;
                (Src::Prim(prim), prim.ty())
            }
            (TMP, Ok(t)) if usize::from(t) < MAX_TMPS => {
                (Src::Tmp(t), tmp(t).ok_or(LiftError::Unsupported { inst })?)
            }
            (IMPLICIT, _) => match reg {
                StockReg::CWND => (Src::Cwnd, Type::Num),
                StockReg::RATE => (Src::Rate, Type::Num),
                StockReg::MICROS => (Src::Micros, Type::Num),
                StockReg::EVENT_FLAG => (Src::Tmp(FLAG), tmp(FLAG).ok_or(LiftError::Unsupported { inst })?),
                _ => return Err(LiftError::Unsupported { inst }),
            },
            _ => (Src::Reg(self.reg(inst, reg)?), Type::Num),
        };
        Ok(Operand { src, ty, side })
    }

    fn dst(&self, inst: usize, reg: StockReg) -> Result<Dst, LiftError> {
        Ok(match (reg.kind, u8::try_from(reg.index)) {
            (TMP, Ok(t)) if usize::from(t) < MAX_TMPS => Dst::Tmp(t),
            (IMPLICIT, _) => match reg {
                StockReg::EVENT_FLAG => Dst::Tmp(FLAG),
                StockReg::SHOULD_CONTINUE => Dst::ShouldContinue,
                StockReg::SHOULD_REPORT => Dst::ShouldReport,
                StockReg::MICROS => Dst::Micros,
                StockReg::CWND => Dst::Cwnd,
                StockReg::RATE => Dst::Rate,
                _ => return Err(LiftError::Malformed { inst }),
            },
            _ => Dst::Reg(self.reg(inst, reg)?),
        })
    }

    /// A register that was defined, or a local.
    fn reg(&self, inst: usize, reg: StockReg) -> Result<RegId, LiftError> {
        let File { reports, controls, locals, .. } = self.file;
        let (first, count) = match reg.kind {
            REPORT | VOLATILE_REPORT => (0, reports),
            CONTROL | VOLATILE_CONTROL => (reports, controls),
            LOCAL => (reports + controls, locals),
            _ => return Err(LiftError::Malformed { inst }),
        };
        let index = u8::try_from(reg.index).ok().filter(|i| *i < count);
        index.map(|i| first + i).ok_or(LiftError::Malformed { inst })
    }
}

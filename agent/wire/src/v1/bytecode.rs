//! INSTALL's payload: stock bytecode, checked against what libccp's machine can really do.
//!
//! libccp copies a program without looking at it. Here every opcode, register type, register index and range
//! of instructions is checked. So a [`Bytecode`] can neither hang the machine nor reach outside its
//! registers.

use ccplane_program::ir::Prim;
use ccplane_program::stock::Stock;
pub use ccplane_program::stock::StockOp as Op;

use crate::bytes::Reader;
use crate::list::Item;
use crate::{DecodeError, EncodeError, List, Out};

/// Events of one program (`MAX_EXPRESSIONS`, serialize.h).
pub const MAX_EVENTS: usize = 256;
/// Instructions of one program. serialize.h says 256, but the machine counts them in a u8: the 256th hangs
/// it.
pub const MAX_INSTS: usize = 255;
/// Report registers (`MAX_REPORT_REG`); portus's compiler stops at 16.
pub const MAX_REPORT_REGS: u8 = 110;
/// Control registers (`MAX_CONTROL_REG`); portus's compiler stops at 16.
pub const MAX_CONTROL_REGS: u8 = 110;
/// Temporaries (`MAX_TMP_REG`). portus emits up to 16: libccp then computes with whatever lies there.
pub const MAX_TMPS: u8 = 8;
/// Locals (`MAX_LOCAL_REG`); portus's compiler stops at 6.
pub const MAX_LOCALS: u8 = 8;

/// Bytes of an event.
pub(super) const EVENT_BYTES: usize = 16;
/// Bytes of an instruction.
pub(super) const INST_BYTES: usize = 16;

/// A register index below `LIMIT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Index<const LIMIT: u8>(u8);

impl<const LIMIT: u8> Index<LIMIT> {
    /// `None` if `index` is not below `LIMIT`.
    pub const fn new(index: u8) -> Option<Self> {
        if index < LIMIT { Some(Index(index)) } else { None }
    }

    /// Returns the index as a number.
    pub const fn get(self) -> u8 {
        self.0
    }

    fn from_wire(found: u32, field: &'static str) -> Result<Self, DecodeError> {
        u8::try_from(found).ok().and_then(Self::new).ok_or(DecodeError::TooLarge {
            field,
            found: u64::from(found),
            limit: u64::from(LIMIT.saturating_sub(1)),
        })
    }
}

/// The implicit registers of libccp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Special {
    /// The register in which an event's condition leaves its value.
    EventFlag = 0,
    ShouldContinue = 1,
    ShouldReport = 2,
    /// Microseconds since the program started or last wrote it.
    Micros = 3,
    Cwnd = 4,
    /// Pacing rate, bytes per second.
    Rate = 5,
}

impl Special {
    /// Every implicit register, in order.
    pub const ALL: [Special; 6] = [
        Special::EventFlag,
        Special::ShouldContinue,
        Special::ShouldReport,
        Special::Micros,
        Special::Cwnd,
        Special::Rate,
    ];
}

/// An operand or a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reg {
    Control {
        index: Index<MAX_CONTROL_REGS>,
        /// Reset at each report.
        volatile: bool,
    },
    Imm(u32),
    Special(Special),
    Local(Index<MAX_LOCALS>),
    /// A primitive that the datapath measured.
    Prim(Prim),
    Report {
        index: Index<MAX_REPORT_REGS>,
        /// Reset at each report.
        volatile: bool,
    },
    Tmp(Index<MAX_TMPS>),
}

impl Reg {
    /// Returns the register's kind as errors name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Reg::Control { .. } => "a control register",
            Reg::Imm(_) => "an immediate",
            Reg::Special(_) => "an implicit register",
            Reg::Local(_) => "a local",
            Reg::Prim(_) => "a primitive",
            Reg::Report { .. } => "a report register",
            Reg::Tmp(_) => "a temporary",
        }
    }

    /// Takes `type u8 | index u32`.
    pub(super) fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let (ty, n) = (r.u8(field)?, r.u32(field)?);
        Self::from_wire(ty, n, field)
    }

    /// The register of this type and index.
    pub(super) fn from_wire(ty: u8, n: u32, field: &'static str) -> Result<Self, DecodeError> {
        let too_large =
            |limit: usize| DecodeError::TooLarge { field, found: u64::from(n), limit: limit as u64 };
        Ok(match ty {
            0 | 8 => Reg::Control { index: Index::from_wire(n, field)?, volatile: ty == 8 },
            1 => Reg::Imm(n),
            2 => Reg::Special(pick(&Special::ALL, n).ok_or_else(|| too_large(Special::ALL.len() - 1))?),
            3 => Reg::Local(Index::from_wire(n, field)?),
            4 => Reg::Prim(pick(&Prim::ACK, n).ok_or_else(|| too_large(Prim::ACK.len() - 1))?),
            5 | 6 => Reg::Report { index: Index::from_wire(n, field)?, volatile: ty == 5 },
            7 => Reg::Tmp(Index::from_wire(n, field)?),
            _ => return Err(DecodeError::Unknown { field, found: u64::from(ty) }),
        })
    }

    pub(super) fn write(self, out: &mut impl Out) -> Result<(), EncodeError> {
        let (ty, n) = match self {
            Reg::Control { index, volatile } => (if volatile { 8 } else { 0 }, u32::from(index.0)),
            Reg::Imm(n) => (1, n),
            Reg::Special(s) => (2, s as u32),
            Reg::Local(index) => (3, u32::from(index.0)),
            Reg::Prim(p) => (4, p as u32),
            Reg::Report { index, volatile } => (if volatile { 5 } else { 6 }, u32::from(index.0)),
            Reg::Tmp(index) => (7, u32::from(index.0)),
        };
        out.put(&[ty])?;
        out.put(&n.to_le_bytes())
    }
}

fn pick<T: Copy>(all: &[T], n: u32) -> Option<T> {
    usize::try_from(n).ok().and_then(|n| all.get(n).copied())
}

/// One instruction of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Inst {
    pub op: Op,
    /// The register of the result: neither an immediate nor a primitive.
    pub dst: Reg,
    pub left: Reg,
    pub right: Reg,
}

impl Inst {
    /// A definition declares a report or control register and gives it a number; nothing else writes to what
    /// cannot be written.
    fn check(&self) -> Result<(), DecodeError> {
        let not_allowed = |field, reg: Reg| Err(DecodeError::NotAllowed { field, found: reg.name() });
        if matches!(self.dst, Reg::Imm(_) | Reg::Prim(_)) {
            return not_allowed("result register", self.dst);
        }
        if self.op == Op::Def {
            if !matches!(self.left, Reg::Report { .. } | Reg::Control { .. }) {
                return not_allowed("defined register", self.left);
            }
            if !matches!(self.right, Reg::Imm(_)) {
                return not_allowed("initial value", self.right);
            }
        }
        Ok(())
    }
}

impl<'a> Item<'a> for Inst {
    const WHAT: &'static str = "instruction";

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let found = r.u8("opcode")?;
        let op = pick(&Op::ALL, u32::from(found))
            .ok_or(DecodeError::Unknown { field: "opcode", found: u64::from(found) })?;
        let dst = Reg::read(r, "result register")?;
        let left = Reg::read(r, "left register")?;
        let right = Reg::read(r, "right register")?;
        let inst = Inst { op, dst, left, right };
        inst.check()?;
        Ok(inst)
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        out.put(&[self.op as u8])?;
        self.dst.write(out)?;
        self.left.write(out)?;
        self.right.write(out)
    }
}

/// One `when`: indices into the program's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Event {
    /// First instruction of the condition.
    pub flag_start: u32,
    /// Instructions of the condition.
    pub flag_insts: u32,
    /// First instruction of the body.
    pub body_start: u32,
    /// Instructions of the body.
    pub body_insts: u32,
}

impl Event {
    fn check(&self, insts: usize) -> Result<(), DecodeError> {
        let parts = [
            ("end of condition", self.flag_start, self.flag_insts),
            ("end of body", self.body_start, self.body_insts),
        ];
        for (field, start, len) in parts {
            let (found, limit) = (u64::from(start) + u64::from(len), insts as u64);
            if found > limit {
                return Err(DecodeError::TooLarge { field, found, limit });
            }
        }
        Ok(())
    }
}

impl<'a> Item<'a> for Event {
    const WHAT: &'static str = "event";

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Event {
            flag_start: r.u32("start of condition")?,
            flag_insts: r.u32("length of condition")?,
            body_start: r.u32("start of body")?,
            body_insts: r.u32("length of body")?,
        })
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        for n in [self.flag_start, self.flag_insts, self.body_start, self.body_insts] {
            out.put(&n.to_le_bytes())?;
        }
        Ok(())
    }
}

/// A program that libccp runs as it is meant: every index is in range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytecode<'a> {
    events: List<'a, Event>,
    insts: List<'a, Inst>,
}

impl<'a> Bytecode<'a> {
    /// Checks events and instructions, and makes a program of them.
    ///
    /// # Errors
    /// `TooMany` events or instructions; `NotAllowed` for a destination or a definition; `TooLarge` for an
    /// event that reaches outside the instructions.
    pub fn new(events: &'a [Event], insts: &'a [Inst]) -> Result<Self, DecodeError> {
        for (index, inst) in insts.iter().enumerate() {
            inst.check().map_err(|e| at("instruction", index, e))?;
        }
        Self::check(events.into(), insts.into())
    }

    /// Parses what a compiler emitted: `events` events, then instructions until the end.
    ///
    /// # Errors
    /// As [`Bytecode::new`]; `Unknown` opcodes and register types; `TooLarge` register indices; `Short`
    /// bytes.
    pub fn from_bytes(events: usize, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let insts = bytes.len().saturating_sub(events.saturating_mul(EVENT_BYTES)).div_ceil(INST_BYTES);
        Self::read(&mut Reader::new(bytes), events, insts)
    }

    pub(super) fn read(r: &mut Reader<'a>, events: usize, insts: usize) -> Result<Self, DecodeError> {
        check_counts(events, insts)?;
        let events = List::read(r, events)?;
        let insts = List::read(r, insts)?;
        Self::check(events, insts)
    }

    fn check(events: List<'a, Event>, insts: List<'a, Inst>) -> Result<Self, DecodeError> {
        check_counts(events.len(), insts.len())?;
        for (index, event) in events.iter().enumerate() {
            event.check(insts.len()).map_err(|e| at("event", index, e))?;
        }
        Ok(Bytecode { events, insts })
    }

    /// The events, in order of evaluation.
    pub fn events(&self) -> &List<'a, Event> {
        &self.events
    }

    /// The instructions, definitions first.
    pub fn insts(&self) -> &List<'a, Inst> {
        &self.insts
    }

    /// The events, then the instructions: what [`ccplane_program::stock::lift`] takes.
    ///
    /// # Errors
    /// None for parts that were checked.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::with_capacity(self.bytes());
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.events.len() * EVENT_BYTES + self.insts.len() * INST_BYTES
    }

    pub(super) fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        self.events.write(out)?;
        self.insts.write(out)
    }
}

impl<'a> TryFrom<&'a Stock> for Bytecode<'a> {
    type Error = DecodeError;

    fn try_from(stock: &'a Stock) -> Result<Self, DecodeError> {
        Bytecode::from_bytes(stock.num_expressions() as usize, stock.bytes())
    }
}

fn check_counts(events: usize, insts: usize) -> Result<(), DecodeError> {
    for (field, found, limit) in [("events", events, MAX_EVENTS), ("instructions", insts, MAX_INSTS)] {
        if found > limit {
            return Err(DecodeError::TooMany { field, found, limit });
        }
    }
    Ok(())
}

fn at(what: &'static str, index: usize, error: DecodeError) -> DecodeError {
    DecodeError::At { what, index, error: Box::new(error) }
}

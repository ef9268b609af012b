//! A program's canonical, compact form: what INSTALL carries.

use ccplane_program::ir::{
    Clause, Dst, HistoryDecl, Hook, Inst, MAX_CLAUSES, MAX_HISTORIES, MAX_INSTS, MAX_REGS, Op, Prim, Program,
    RegDecl, RegKind, Src, Type,
};

use crate::bytes::{Reader, all_or_nothing, put_count, put_text};
use crate::{DecodeError, EncodeError, Out};

/// Longest name of a register, bytes.
pub const MAX_REG_NAME_BYTES: usize = 255;
/// Registers of one history.
pub const MAX_HISTORY_REGS: usize = MAX_REGS;

/// Bits of the histories' number below those of the hook.
const HOOK_SHIFT: u32 = 6;
const BOOL: u8 = 1 << 2;
const VOLATILE: u8 = 1 << 3;
/// Bytes of the longest varint.
const MAX_VARINT_BYTES: usize = 10;

/// The inverse of [`Op::ALL`]; a new operation does not compile until it has a number.
const fn op_number(op: Op) -> u8 {
    match op {
        Op::Bind => 0,
        Op::Add => 1,
        Op::Sub => 2,
        Op::Mul => 3,
        Op::Div => 4,
        Op::Eq => 5,
        Op::Lt => 6,
        Op::Gt => 7,
        Op::Le => 8,
        Op::Ge => 9,
        Op::Min => 10,
        Op::Max => 11,
        Op::MaxWrap => 12,
        Op::And => 13,
        Op::Or => 14,
        Op::Ewma => 15,
        Op::If => 16,
        Op::NotIf => 17,
        Op::History => 18,
        Op::Policy => 19,
    }
}

/// Appends a program in its canonical form:
/// ```text
/// program  regs u8 | histories, bits 0-5, hook, bits 6-7: u8 | clauses u8 | insts u16 | reg* | history* | clause* | inst*
/// reg      name text | kind, bits 0-1, bool bit 2, volatile bit 3: u8 | init varint
/// history  depth u8 | n u8 | n registers u8
/// clause   guard_insts u16 | body_insts u16 | guard operand          clauses follow each other without gaps
/// inst     op u8 | destination u8 [index u8] | operand a | operand b
/// operand  0 varint | 1 false | 2 true | 3 reg u8 | 4 tmp u8 | 5 prim u8 | 6 Cwnd | 7 Rate | 8 Micros
///          | 9 Policy.action | 10 Policy.snapshot | 11 Priority | 12 Path | 13 DecideAt
/// dest.    0 reg u8 | 1 tmp u8 | 2 Cwnd | 3 Rate | 4 Micros | 5 ShouldReport | 6 ShouldContinue
///          | 7 Priority | 8 Path | 9 DecideAt
/// varint   LEB128 of the zigzag form, shortest
/// ```
///
/// # Errors
/// `TooMany` bytes in a register's name or registers in a history, `Full`; nothing is written then.
pub fn encode_program(program: &Program, out: &mut impl Out) -> Result<(), EncodeError> {
    all_or_nothing(out, |out| write_program(program, out))
}

fn write_program(program: &Program, out: &mut impl Out) -> Result<(), EncodeError> {
    put_u8(out, "registers", program.regs().len(), MAX_REGS)?;
    // Programs of the first hook keep the form that they had before there were others.
    let histories = program.histories().len();
    if histories > MAX_HISTORIES {
        return Err(EncodeError::TooMany { field: "histories", found: histories, limit: MAX_HISTORIES });
    }
    out.put(&[histories as u8 | (program.hook() as u8) << HOOK_SHIFT])?;
    put_u8(out, "clauses", program.clauses().len(), MAX_CLAUSES)?;
    put_count(out, "instructions", program.insts().len(), MAX_INSTS)?;
    for reg in program.regs() {
        put_text(out, "register name", &reg.name, MAX_REG_NAME_BYTES)?;
        let kind = match reg.kind {
            RegKind::Report => 0,
            RegKind::Control => 1,
            RegKind::Local => 2,
        };
        let ty = if reg.ty == Type::Bool { BOOL } else { 0 };
        out.put(&[kind | ty | if reg.volatile { VOLATILE } else { 0 }])?;
        put_varint(out, reg.init)?;
    }
    for history in program.histories() {
        out.put(&[history.depth])?;
        put_u8(out, "history registers", history.regs.len(), MAX_HISTORY_REGS)?;
        out.put(&history.regs)?;
    }
    for clause in program.clauses() {
        out.put(&clause.guard_insts.to_le_bytes())?;
        out.put(&clause.body_insts.to_le_bytes())?;
        put_src(out, clause.guard)?;
    }
    for inst in program.insts() {
        out.put(&[op_number(inst.op)])?;
        put_dst(out, inst.dst)?;
        put_src(out, inst.a)?;
        put_src(out, inst.b)?;
    }
    Ok(())
}

/// Parses and verifies a program that is all of `bytes`.
///
/// # Errors
/// `Program` when it does not verify; `Length` when bytes are left over; the rest names its field.
pub fn decode_program(bytes: &[u8]) -> Result<Program, DecodeError> {
    let mut r = Reader::new(bytes);
    let program = read_program(&mut r)?;
    match r.left() {
        0 => Ok(program),
        left => Err(DecodeError::Length { found: bytes.len(), expected: bytes.len() - left }),
    }
}

pub(super) fn read_hook(r: &mut Reader<'_>) -> Result<Hook, DecodeError> {
    hook_of(r.u8("hook")?)
}

/// The inverse of a hook's number.
fn hook_of(found: u8) -> Result<Hook, DecodeError> {
    let hook = Hook::ALL.get(usize::from(found)).copied();
    hook.ok_or(DecodeError::Unknown { field: "hook", found: u64::from(found) })
}

pub(super) fn read_program(r: &mut Reader<'_>) -> Result<Program, DecodeError> {
    let regs = read_u8(r, "registers", MAX_REGS)?;
    let found = r.u8("histories")?;
    let hook = hook_of(found >> HOOK_SHIFT)?;
    let histories = usize::from(found & ((1 << HOOK_SHIFT) - 1));
    if histories > MAX_HISTORIES {
        return Err(DecodeError::TooMany { field: "histories", found: histories, limit: MAX_HISTORIES });
    }
    let clauses = read_u8(r, "clauses", MAX_CLAUSES)?;
    let insts = r.count("instructions", MAX_INSTS)?;

    let regs = read_each(r, "register", regs, read_reg)?;
    let histories = read_each(r, "history", histories, |r| {
        let depth = r.u8("depth")?;
        let n = read_u8(r, "history registers", MAX_HISTORY_REGS)?;
        Ok(HistoryDecl { depth, regs: r.bytes(n, "history registers")?.to_vec() })
    })?;
    let mut start = 0_u16;
    let clauses = read_each(r, "clause", clauses, |r| {
        let (guard_insts, body_insts) = (r.u16("guard_insts")?, r.u16("body_insts")?);
        let clause = Clause { start, guard_insts, body_insts, guard: read_src(r, hook)? };
        start = u16::try_from(clause.body_range().end).map_err(|_| DecodeError::TooMany {
            field: "instructions",
            found: clause.body_range().end,
            limit: MAX_INSTS,
        })?;
        Ok(clause)
    })?;
    let insts = read_each(r, "instruction", insts, |r| {
        let found = r.u8("op")?;
        let op = Op::ALL.get(usize::from(found)).copied();
        let op = op.ok_or(DecodeError::Unknown { field: "op", found: u64::from(found) })?;
        Ok(Inst { op, dst: read_dst(r, hook)?, a: read_src(r, hook)?, b: read_src(r, hook)? })
    })?;
    Ok(Program::at(hook, regs, insts, clauses, histories)?)
}

fn read_each<'a, T>(
    r: &mut Reader<'a>,
    what: &'static str,
    n: usize,
    mut one: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    (0..n)
        .map(|index| one(r).map_err(|error| DecodeError::At { what, index, error: Box::new(error) }))
        .collect()
}

fn read_reg(r: &mut Reader<'_>) -> Result<RegDecl, DecodeError> {
    let name = r.text("register name", MAX_REG_NAME_BYTES)?.to_owned();
    let flags = r.u8("register flags")?;
    let kind = match flags & !(BOOL | VOLATILE) {
        0 => RegKind::Report,
        1 => RegKind::Control,
        2 => RegKind::Local,
        _ => return Err(DecodeError::Unknown { field: "register flags", found: u64::from(flags) }),
    };
    let ty = if flags & BOOL != 0 { Type::Bool } else { Type::Num };
    Ok(RegDecl { name, kind, ty, volatile: flags & VOLATILE != 0, init: read_varint(r, "init")? })
}

fn put_src(out: &mut impl Out, src: Src) -> Result<(), EncodeError> {
    match src {
        Src::Imm(n) => {
            out.put(&[0])?;
            put_varint(out, n)
        }
        Src::Bool(false) => out.put(&[1]),
        Src::Bool(true) => out.put(&[2]),
        Src::Reg(i) => out.put(&[3, i]),
        Src::Tmp(i) => out.put(&[4, i]),
        Src::Prim(p) => out.put(&[5, p as u8]),
        Src::Cwnd => out.put(&[6]),
        Src::Rate => out.put(&[7]),
        Src::Micros => out.put(&[8]),
        Src::PolicyAction => out.put(&[9]),
        Src::PolicySnapshot => out.put(&[10]),
        Src::Priority => out.put(&[11]),
        Src::Path => out.put(&[12]),
        Src::DecideAt => out.put(&[13]),
    }
}

fn read_src(r: &mut Reader<'_>, hook: Hook) -> Result<Src, DecodeError> {
    const FIELD: &str = "operand";
    Ok(match r.u8(FIELD)? {
        0 => Src::Imm(read_varint(r, FIELD)?),
        1 => Src::Bool(false),
        2 => Src::Bool(true),
        3 => Src::Reg(r.u8(FIELD)?),
        4 => Src::Tmp(r.u8(FIELD)?),
        5 => {
            let found = r.u8(FIELD)?;
            let prim = Prim::ALL.get(usize::from(found)).copied().filter(|prim| prim.is_of(hook));
            Src::Prim(prim.ok_or(DecodeError::Unknown { field: "primitive", found: u64::from(found) })?)
        }
        6 if hook.sets_window() => Src::Cwnd,
        7 if hook.sets_window() => Src::Rate,
        8 => Src::Micros,
        9 => Src::PolicyAction,
        10 => Src::PolicySnapshot,
        11 if !hook.sets_window() => Src::Priority,
        12 if !hook.sets_window() => Src::Path,
        13 if !hook.sets_window() => Src::DecideAt,
        found => return Err(DecodeError::Unknown { field: FIELD, found: u64::from(found) }),
    })
}

fn put_dst(out: &mut impl Out, dst: Dst) -> Result<(), EncodeError> {
    match dst {
        Dst::Reg(i) => out.put(&[0, i]),
        Dst::Tmp(i) => out.put(&[1, i]),
        Dst::Cwnd => out.put(&[2]),
        Dst::Rate => out.put(&[3]),
        Dst::Micros => out.put(&[4]),
        Dst::ShouldReport => out.put(&[5]),
        Dst::ShouldContinue => out.put(&[6]),
        Dst::Priority => out.put(&[7]),
        Dst::Path => out.put(&[8]),
        Dst::DecideAt => out.put(&[9]),
    }
}

fn read_dst(r: &mut Reader<'_>, hook: Hook) -> Result<Dst, DecodeError> {
    const FIELD: &str = "destination";
    Ok(match r.u8(FIELD)? {
        0 => Dst::Reg(r.u8(FIELD)?),
        1 => Dst::Tmp(r.u8(FIELD)?),
        2 if hook.sets_window() => Dst::Cwnd,
        3 if hook.sets_window() => Dst::Rate,
        4 => Dst::Micros,
        5 => Dst::ShouldReport,
        6 => Dst::ShouldContinue,
        7 if !hook.sets_window() => Dst::Priority,
        8 if !hook.sets_window() => Dst::Path,
        9 if !hook.sets_window() => Dst::DecideAt,
        found => return Err(DecodeError::Unknown { field: FIELD, found: u64::from(found) }),
    })
}

fn put_u8(out: &mut impl Out, field: &'static str, found: usize, limit: usize) -> Result<(), EncodeError> {
    match u8::try_from(found) {
        Ok(n) if found <= limit => out.put(&[n]),
        _ => Err(EncodeError::TooMany { field, found, limit }),
    }
}

fn read_u8(r: &mut Reader<'_>, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
    let found = usize::from(r.u8(field)?);
    if found > limit { Err(DecodeError::TooMany { field, found, limit }) } else { Ok(found) }
}

fn put_varint(out: &mut impl Out, n: i64) -> Result<(), EncodeError> {
    let mut left = ((n << 1) ^ (n >> 63)) as u64;
    while left >= 0x80 {
        out.put(&[left as u8 | 0x80])?;
        left >>= 7;
    }
    out.put(&[left as u8])
}

fn read_varint(r: &mut Reader<'_>, field: &'static str) -> Result<i64, DecodeError> {
    let mut zigzag = 0_u64;
    for i in 0..MAX_VARINT_BYTES {
        let byte = r.u8(field)?;
        // The tenth byte holds the 64th bit only; a last byte of 0 would be a longer form of the number.
        let last = byte & 0x80 == 0;
        if (i == MAX_VARINT_BYTES - 1 && byte > 1) || (i > 0 && byte == 0) {
            return Err(DecodeError::Unknown { field, found: u64::from(byte) });
        }
        zigzag |= u64::from(byte & 0x7f) << (7 * i);
        if last {
            break;
        }
    }
    Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn operations_and_their_numbers_agree() {
        for (n, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op_number(op)), n, "{op:?}");
        }
    }

    #[test]
    fn varints_are_exact_and_shortest() {
        for (n, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
            (i64::MAX, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, n).unwrap();
            assert_eq!(out, bytes, "{n}");
            assert_eq!(read_varint(&mut Reader::new(bytes), "n"), Ok(n));
        }
        for overlong in
            [&[0x80, 0][..], &[0xff; 11], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]]
        {
            assert!(matches!(
                read_varint(&mut Reader::new(overlong), "n"),
                Err(DecodeError::Unknown { field: "n", .. })
            ));
        }
    }
}

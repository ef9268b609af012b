//! A program as text: registers, histories, and the instructions of each clause.

use alloc::string::{String, ToString};
use core::fmt::{self, Write};

use crate::ir::{Dst, Hook, INFINITY, Inst, Op, Program, RegId, RegKind, Src, Type};
use crate::lang::words::spelling;

/// The whole program, one register or instruction a line.
pub fn disassemble(program: &Program) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_program(&mut out, program);
    out
}

/// One instruction, as `dst <- op a b`, with the program's register names.
pub fn instruction(program: &Program, inst: &Inst) -> String {
    let (a, b) = (src(program, inst.a), src(program, inst.b));
    let dst = match inst.dst {
        Dst::Reg(r) => reg(program, r),
        Dst::Tmp(t) => tmp(t),
        Dst::Cwnd => "Cwnd".into(),
        Dst::Rate => "Rate".into(),
        Dst::Priority => "Priority".into(),
        Dst::Path => "Path".into(),
        Dst::DecideAt => "DecideAt".into(),
        Dst::Micros => "Micros".into(),
        Dst::ShouldReport => "report".into(),
        Dst::ShouldContinue => "fallthrough".into(),
    };
    let mut out = String::new();
    let _ = match inst.op {
        Op::Bind => write!(out, "{dst} <- {b}"),
        Op::History | Op::Policy => write!(out, "{} {a}", spelling(inst.op)),
        op => write!(out, "{dst} <- {} {a} {b}", spelling(op)),
    };
    out
}

fn write_program(out: &mut String, program: &Program) -> fmt::Result {
    if program.hook() != Hook::Ack {
        writeln!(out, "hook {}", program.hook().name())?;
    }
    for (n, r) in program.regs().iter().enumerate() {
        let kind = match r.kind {
            RegKind::Report => "report",
            RegKind::Control => "control",
            RegKind::Local => "local",
        };
        let init = if r.ty == Type::Bool { (r.init != 0).to_string() } else { number(r.init) };
        let volatile = if r.volatile { " volatile" } else { "" };
        writeln!(out, "r{n:<3} {kind:<8}{} = {init}{volatile}", r.name)?;
    }
    for (n, h) in program.histories().iter().enumerate() {
        write!(out, "h{n:<3} {} intervals of", h.depth)?;
        for r in &h.regs {
            write!(out, " {}", reg(program, *r))?;
        }
        out.push('\n');
    }
    for (n, clause) in program.clauses().iter().enumerate() {
        writeln!(out, "clause {n}")?;
        write_block(out, program, clause.guard_range())?;
        writeln!(out, "      when {}", src(program, clause.guard))?;
        write_block(out, program, clause.body_range())?;
    }
    Ok(())
}

fn write_block(out: &mut String, program: &Program, range: core::ops::Range<usize>) -> fmt::Result {
    let first = range.start;
    for (n, inst) in program.insts().get(range).unwrap_or_default().iter().enumerate() {
        writeln!(out, "{:>4}  {}", first + n, instruction(program, inst))?;
    }
    Ok(())
}

fn reg(program: &Program, r: RegId) -> String {
    program.regs().get(usize::from(r)).map_or_else(|| "?".into(), |d| d.name.clone())
}

fn tmp(t: u8) -> String {
    let mut out = String::from("t");
    let _ = write!(out, "{t}");
    out
}

fn number(n: i64) -> String {
    if n == INFINITY { "+infinity".into() } else { n.to_string() }
}

fn src(program: &Program, src: Src) -> String {
    match src {
        Src::Imm(n) => number(n),
        Src::Bool(b) => b.to_string(),
        Src::Reg(r) => reg(program, r),
        Src::Tmp(t) => tmp(t),
        Src::Prim(p) => p.name().into(),
        Src::Cwnd => "Cwnd".into(),
        Src::Rate => "Rate".into(),
        Src::Priority => "Priority".into(),
        Src::Path => "Path".into(),
        Src::DecideAt => "DecideAt".into(),
        Src::Micros => "Micros".into(),
        Src::PolicyAction => "Policy.action".into(),
        Src::PolicySnapshot => "Policy.snapshot".into(),
    }
}

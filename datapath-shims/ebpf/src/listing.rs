//! A compiled program as text, in the words of the kernel's own listings (kernel/bpf/disasm.c).

use std::fmt::Write as _;

use ccplane_program::disasm;
use ccplane_program::ir::Program;

use crate::btf::Btf;
use crate::codegen;
use crate::error::EbpfError;
use crate::host::TcpHost;
use crate::kernel::{Kernel, Maps};
use crate::policy::Slots;
use ccplane_infer::Shape;
use ccplane_nn_codegen::asm::Insn;

/// The first half of a 64-bit load, which takes two instructions.
const LD_IMM64: u8 = 0x18;

/// Lists the BPF instructions that a program becomes on this machine's kernel, grouped by our instruction.
///
/// Map descriptors are shown as 0. `shapes` are those of the policy slots that the program may ask; one whose shape is
/// missing has no answer.
///
/// # Errors
/// The kernel's type information cannot be read, or a jump gets too long.
pub fn listing(program: &Program, shapes: &[(u8, Shape)]) -> Result<String, EbpfError> {
    let kernel = Kernel::new(&Btf::kernel()?)?;
    let maps = Maps { ctl: 0, flows: 0, free: 0, ring: 0, slots: 0, policy: 0 };
    let shape = |slot| shapes.iter().find(|(n, _)| usize::from(*n) == slot).map(|(_, shape)| *shape);
    let slots = Slots { map: 0, shapes: std::array::from_fn(shape) };
    let compiled = codegen::compile(program, 0, &TcpHost { kernel: &kernel, maps, instance: 0 }, &slots)?;
    let mut out = String::new();
    let mut under = None;
    let mut second_half = false;
    for (at, insn) in compiled.insns.iter().enumerate() {
        if second_half {
            second_half = false;
            continue;
        }
        let of = Some((compiled.slot_at(at), compiled.ir_at(at)));
        if of != under {
            under = of;
            let _ = writeln!(out, "; {}", header(program, &slots, compiled.slot_at(at), compiled.ir_at(at)));
        }
        second_half = insn.code == LD_IMM64;
        let high = compiled.insns.get(at + 1).filter(|_| second_half).map_or(0, |i| i.imm);
        let _ = writeln!(out, "{at:5}: {}", text(insn, high));
    }
    let _ = writeln!(out, "{} instructions", compiled.insns.len());
    Ok(out)
}

/// The heading of a group of instructions.
fn header(program: &Program, slots: &Slots, slot: Option<u8>, ir: Option<usize>) -> String {
    let Some(slot) = slot else {
        let instruction = ir.and_then(|n| program.insts().get(n)).map(|i| disasm::instruction(program, i));
        return instruction.unwrap_or_else(|| "around the program".to_owned());
    };
    match slots.shapes.get(usize::from(slot)).copied().flatten() {
        None => format!("policy slot {slot}, which has no shape: no answer"),
        Some(shape) => {
            let outputs = (0..shape.layers()).map(|layer| format!(" -> {}", shape.layer(layer).1));
            format!("policy slot {slot}: {}{}", shape.inputs(), outputs.collect::<String>())
        }
    }
}

fn text(insn: &Insn, high: i32) -> String {
    let Insn { code, regs, off, imm } = *insn;
    let (dst, src) = (format!("r{}", regs & 0xf), format!("r{}", regs >> 4));
    let operand = if code & 0x08 != 0 { src.clone() } else { imm.to_string() };
    let size = ["u32", "u16", "u8", "u64"][usize::from(code >> 3 & 3)];
    match code & 0x07 {
        0x00 => {
            let value = i64::from(high) << 32 | i64::from(imm as u32);
            match regs >> 4 {
                0 => format!("{dst} = {value:#x} ll"),
                1 => format!("{dst} = map"),
                _ => format!("{dst} = map value +{high}"),
            }
        }
        0x01 => format!("{dst} = *({size} *)({src} {off:+})"),
        0x02 => format!("*({size} *)({dst} {off:+}) = {imm}"),
        0x03 if code & 0xe0 == 0xc0 => format!("lock *({size} *)({dst} {off:+}) {} {src}", atomic(imm)),
        0x03 => format!("*({size} *)({dst} {off:+}) = {src}"),
        0x04 | 0x07 => arithmetic(code, &dst, &operand),
        _ => jump(code, regs, off, imm, &dst, &operand),
    }
}

fn atomic(imm: i32) -> &'static str {
    match imm & 0xf0 {
        0xf0 => "cmpxchg",
        0xe0 => "xchg",
        _ => "fetch_add",
    }
}

fn arithmetic(code: u8, dst: &str, operand: &str) -> String {
    let width = if code & 0x07 == 0x04 { "(u32) " } else { "" };
    let op = match code & 0xf0 {
        0x00 => "+=",
        0x10 => "-=",
        0x20 => "*=",
        0x30 => "/=",
        0x40 => "|=",
        0x50 => "&=",
        0x60 => "<<=",
        0x70 => ">>=",
        0x80 => return format!("{dst} = -{dst}"),
        0x90 => "%=",
        0xa0 => "^=",
        0xb0 => "=",
        0xc0 => "s>>=",
        _ => return format!("{dst} = be16 {dst}"),
    };
    format!("{dst} {op} {width}{operand}")
}

fn jump(code: u8, regs: u8, off: i16, imm: i32, dst: &str, operand: &str) -> String {
    let op = match code & 0xf0 {
        0x00 => return format!("goto {off:+}"),
        0x10 => "==",
        0x20 => ">",
        0x30 => ">=",
        0x40 => "&",
        0x50 => "!=",
        0x60 => "s>",
        0x70 => "s>=",
        0x80 if regs >> 4 == 0 => return format!("call helper {imm}"),
        0x80 if regs >> 4 == 1 => return format!("call pc{imm:+}"),
        0x80 => return format!("call kernel function {imm}"),
        0x90 => return "exit".to_owned(),
        0xa0 => "<",
        0xb0 => "<=",
        0xc0 => "s<",
        _ => "s<=",
    };
    format!("if {dst} {op} {operand} goto {off:+}")
}

#[cfg(test)]
mod tests {
    use super::text;
    use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Insn, R, Size};

    fn last(build: impl FnOnce(&mut Asm)) -> String {
        let mut asm = Asm::default();
        build(&mut asm);
        asm.exit();
        let insns: Vec<Insn> = asm.finish().unwrap().insns;
        text(&insns[0], insns.get(1).map_or(0, |i| i.imm))
    }

    #[test]
    fn reads_like_the_kernels_listings() {
        assert_eq!(last(|a| a.alu(Alu::Add, R::R1, R::R2)), "r1 += r2");
        assert_eq!(last(|a| a.mov_imm(R::R3, -7)), "r3 = -7");
        assert_eq!(last(|a| a.mov_imm(R::R3, 1 << 40)), "r3 = 0x10000000000 ll");
        assert_eq!(last(|a| a.load(Size::B8, R::R1, R::R6, 16)), "r1 = *(u64 *)(r6 +16)");
        assert_eq!(last(|a| a.store(Size::B4, R::R10, -8, R::R1)), "*(u32 *)(r10 -8) = r1");
        assert_eq!(last(|a| a.store_imm(Size::B1, R::R1, 2, 5)), "*(u8 *)(r1 +2) = 5");
        assert_eq!(last(|a| a.fetch_add(R::R1, 0, R::R2)), "lock *(u64 *)(r1 +0) fetch_add r2");
        assert_eq!(last(|a| a.cmpxchg32(R::R1, 4, R::R2)), "lock *(u32 *)(r1 +4) cmpxchg r2");
        assert_eq!(last(|a| a.xchg(Size::B8, R::R1, 8, R::R2)), "lock *(u64 *)(r1 +8) xchg r2");
        assert_eq!(last(|a| a.zext32(R::R4)), "r4 = (u32) r4");
        let branch = |a: &mut Asm| {
            let to = a.label();
            a.jump_if_imm(R::R1, Cond::Slt, 3, to);
            a.exit();
            a.bind(to);
        };
        assert_eq!(last(branch), "if r1 s< 3 goto +1");
        let call = |a: &mut Asm| {
            let to = a.label();
            a.call_sub(to);
            a.exit();
            a.bind(to);
        };
        assert_eq!(last(call), "call pc+1");
        assert_eq!(last(|_| {}), "exit");
    }
}

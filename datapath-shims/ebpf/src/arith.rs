//! Arithmetic that takes more than an instruction or two: the rare cases of saturating operations.
//!
//! [`crate::codegen`] emits this out of line. STACK_A and STACK_B are lost.

use crate::frame::{REC, STACK_A, STACK_B};
use crate::layout::rec;
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Label, R, Size};

/// Emits `reg += u32::MAX`.
fn add_u32_max(asm: &mut Asm, reg: R) {
    // u32::MAX is added as 2^32 - 1, in immediates that BPF can hold.
    asm.alu_imm(Alu::Add, reg, i32::MAX);
    asm.alu_imm(Alu::Add, reg, i32::MAX);
    asm.alu_imm(Alu::Add, reg, 1);
}

/// Emits R0 = the distance from `from` to `to`, both of 32 bits: without a wrap their difference, else one less than the modular distance.
pub fn wrapped_distance(asm: &mut Asm, to: R, from: R) {
    let no_wrap = asm.label();
    asm.mov(R::R0, to);
    asm.alu(Alu::Sub, R::R0, from);
    asm.jump_if(to, Cond::Gt, from, no_wrap);
    add_u32_max(asm, R::R0);
    asm.bind(no_wrap);
}

/// Emits the saturation of R0, a wrapped sum or difference: it becomes the bound that it passed.
pub fn saturate_by_sign(asm: &mut Asm) {
    asm.alu_imm(Alu::Arsh, R::R0, 63);
    asm.mov_imm(R::R1, i64::MIN);
    asm.alu(Alu::Xor, R::R0, R::R1);
}

/// Emits R0 = R1 - R2, saturating but not counted; continues at `done`. R1 and R2 are lost.
pub fn saturating_sub_uncounted(asm: &mut Asm, done: Label) {
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Sub, R::R0, R::R2);
    asm.alu(Alu::Xor, R::R2, R::R1);
    asm.alu(Alu::Xor, R::R1, R::R0);
    asm.alu(Alu::And, R::R1, R::R2);
    asm.jump_if_imm(R::R1, Cond::Sge, 0, done);
    saturate_by_sign(asm);
}

/// Emits the count of a fault; R1 is lost.
pub fn fault(asm: &mut Asm) {
    asm.load(Size::B8, R::R1, REC, rec::FAULTS as i16);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B8, REC, rec::FAULTS as i16, R::R1);
}

/// Emits R1 = |R1| and R2 = |R2|.
fn magnitudes(asm: &mut Asm) {
    for r in [R::R1, R::R2] {
        let positive = asm.label();
        asm.jump_if_imm(r, Cond::Sge, 0, positive);
        asm.neg(r);
        asm.bind(positive);
    }
}

/// Emits R0 = -R0 if the signs of the operands differ, as [`STACK_A`] tells, and continues at `back`. R1 is lost.
fn negate_by_sign(asm: &mut Asm, back: Label) {
    asm.load(Size::B8, R::R1, R::R10, STACK_A);
    asm.jump_if_imm(R::R1, Cond::Sge, 0, back);
    asm.neg(R::R0);
    asm.jump(back);
}

/// Emits R0 = R1 * R2, saturating.
pub fn slow_mul(asm: &mut Asm, back: Label) {
    let overflow = asm.label();
    asm.mov_imm(R::R0, 0);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, back);
    asm.jump_if_imm(R::R2, Cond::Eq, 0, back);
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Xor, R::R0, R::R2);
    asm.store(Size::B8, R::R10, STACK_A, R::R0);
    magnitudes(asm);
    asm.store(Size::B8, R::R10, STACK_B, R::R2);
    // The largest magnitude of the product: 2^63 - 1, or 2^63 if it is negative.
    asm.alu_imm(Alu::Rsh, R::R0, 63);
    asm.mov_imm(R::R2, i64::MAX);
    asm.alu(Alu::Add, R::R0, R::R2);
    asm.load(Size::B8, R::R2, R::R10, STACK_B);
    asm.alu(Alu::Div, R::R0, R::R2);
    asm.jump_if(R::R1, Cond::Gt, R::R0, overflow);
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Mul, R::R0, R::R2);
    negate_by_sign(asm, back);
    asm.bind(overflow);
    asm.load(Size::B8, R::R0, R::R10, STACK_A);
    asm.alu_imm(Alu::Arsh, R::R0, 63);
    asm.mov_imm(R::R1, i64::MAX);
    asm.alu(Alu::Xor, R::R0, R::R1);
    fault(asm);
}

/// Emits R0 = R1 / R2 toward zero, saturating; 0 when R2 is 0.
pub fn slow_div(asm: &mut Asm, back: Label) {
    let (by_zero, divide, overflow) = (asm.label(), asm.label(), asm.label());
    asm.jump_if_imm(R::R2, Cond::Eq, 0, by_zero);
    asm.mov_imm(R::R0, i64::MIN);
    asm.jump_if(R::R1, Cond::Ne, R::R0, divide);
    asm.jump_if_imm(R::R2, Cond::Eq, -1, overflow);
    asm.bind(divide);
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Xor, R::R0, R::R2);
    asm.store(Size::B8, R::R10, STACK_A, R::R0);
    magnitudes(asm);
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Div, R::R0, R::R2);
    negate_by_sign(asm, back);
    asm.bind(overflow);
    asm.mov_imm(R::R0, i64::MAX);
    fault(asm);
    asm.jump(back);
    asm.bind(by_zero);
    asm.mov_imm(R::R0, 0);
    fault(asm);
}

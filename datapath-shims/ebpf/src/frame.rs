//! A compiled program's registers and stack frame.

use crate::layout::rec;
use ccplane_nn_codegen::asm::{Asm, R, Size};
use ccplane_program::ir::{ACK_PRIM_COUNT, Prim};

/// The register of the flow's record, through the whole program.
pub const REC: R = R::R7;
/// The register of the invocation's flags.
pub const FLAGS: R = R::R9;
/// Flag: the program executed `(report)`.
pub const FLAG_REPORT: i32 = 1;
/// Flag: the program executed `(fallthrough)`.
pub const FLAG_CONTINUE: i32 = 2;
/// Flag: a policy was asked.
pub const FLAG_ASKED: i32 = 4;
/// Flag: the policy had no answer.
pub const FLAG_NATIVE: i32 = 8;

/// Registers of the first temporaries.
pub const TMP_REGS: [R; 3] = [R::R3, R::R4, R::R5];

/// Stack slot of `Micros`.
pub const STACK_MICROS: i16 = -240;
/// Stack slot of the first output's value before the invocation.
pub const STACK_CWND_BEFORE: i16 = -248;
/// Stack slot of the second output's value before the invocation.
pub const STACK_RATE_BEFORE: i16 = -256;
/// First stack slot of [`crate::arith`]'s scratch space.
pub const STACK_A: i16 = -264;
/// Second stack slot of [`crate::arith`]'s scratch space.
pub const STACK_B: i16 = -272;
/// Stack slot of `ewma`'s first product.
pub const STACK_EWMA: i16 = -280;
/// Stack slots where TMP_REGS are saved while a policy is asked.
pub const STACK_TMPS: i16 = -288;
/// The stack from here down belongs to the host.
pub const STACK_HOST: i16 = STACK_TMPS - 8 * TMP_REGS.len() as i16;

/// The base register and offset of a primitive: on the stack at [`Hook::Ack`](ccplane_program::ir::Hook::Ack), in the
/// host's memory at R8 elsewhere.
pub fn prim_place(prim: Prim) -> (R, i16) {
    match prim as i16 {
        ack if ack < ACK_PRIM_COUNT as i16 => (R::R10, -8 * (ack + 1)),
        other => (R::R8, 8 * (other - ACK_PRIM_COUNT as i16)),
    }
}

/// Emits the load of a primitive.
pub fn load_prim(asm: &mut Asm, to: R, prim: Prim) {
    let (base, off) = prim_place(prim);
    asm.load(Size::B8, to, base, off);
}

/// The stack slot of a temporary that has no register.
pub fn tmp_slot(tmp: u8) -> i16 {
    -120 - 8 * (i16::from(tmp) - TMP_REGS.len() as i16 + 1)
}

/// The offset of a program's register in the flow's record.
pub fn reg_off(reg: u8) -> i16 {
    rec::REGS as i16 + 8 * i16::from(reg)
}

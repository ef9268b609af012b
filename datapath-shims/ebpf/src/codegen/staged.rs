//! Changes that do not come with an ACK: those that the agent staged for a flow, and the flow's segment size.
//!
//! The dispatcher that sees the next ACK claims a staged change, and the flow's program applies it.

use ccplane_contract::mss_register;
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Label, R, Size};
use ccplane_program::ir::{RegId, RegKind};

use super::{Gen, Host};
use crate::frame::{REC, load_prim, reg_off};
use crate::layout::{NO_INSTANCE, STAGE_RELEASE, mode, rec, stage};
use crate::policy;

/// Emits the claim of the staged change for the flow at `record`, if any; jumps to `nothing` otherwise. R0 and R1 are
/// lost.
fn claim(asm: &mut Asm, record: R, nothing: Label) {
    asm.mov_imm(R::R0, i64::from(stage::READY));
    asm.mov_imm(R::R1, i64::from(stage::APPLYING));
    asm.cmpxchg32(record, rec::STAGE_STATE as i16, R::R1);
    asm.jump_if_imm(R::R0, Cond::Ne, stage::READY as i32, nothing);
}

/// Emits the claim of the staged change for the flow at `record`, and leaves the slot of the program that runs next in R1.
///
/// Jumps to `start` if that is a program, to `keep` if the running one stays, to `done` if there is nothing to claim.
/// Goes on if there is to be no program. Fields that were set while a policy's lack of an answer keeps the program from
/// running wait for the next one. R0 and R2 are lost.
pub fn claim_program(asm: &mut Asm, record: R, keep: Label, start: Label, done: Label) {
    let runs = asm.label();
    asm.load(Size::B4, R::R1, record, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::POLICY as i32, runs);
    asm.load(Size::B4, R::R1, record, rec::STAGE_SLOT as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, done);
    asm.bind(runs);
    claim(asm, record, done);
    asm.load(Size::B4, R::R1, record, rec::STAGE_SLOT as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, keep);
    asm.mov_imm(R::R2, i64::from(STAGE_RELEASE));
    asm.jump_if(R::R1, Cond::Ne, R::R2, start);
    asm.mov_imm(R::R1, 0);
}

/// Emits the choice of the flow's next program after [`claim_program`], which left its slot in R1: code that goes on here writes that slot
/// into the record, and where the running one stays, `keep` is bound behind it.
///
/// A change for [`NO_INSTANCE`] ends there; with any other, it jumps to `done`. R1 is lost.
pub fn choose_program(asm: &mut Asm, record: R, keep: Label, done: Label) {
    let steered = asm.label();
    asm.store(Size::B4, record, rec::SLOT as i16, R::R1);
    asm.load(Size::B4, R::R1, record, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::POLICY as i32, steered);
    asm.store_imm(Size::B4, record, rec::MODE as i16, mode::NO_PROGRAM as i32);
    asm.bind(steered);
    asm.bind(keep);
    asm.load(Size::B4, R::R1, record, rec::STAGE_INSTANCE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, NO_INSTANCE as i32, done);
    end_change(asm, record);
}

/// Emits the release of a claimed change of the flow at `record`. R1 is lost.
pub fn end_change(asm: &mut Asm, record: R) {
    asm.mov_imm(R::R1, i64::from(stage::EMPTY));
    asm.xchg(Size::B4, record, rec::STAGE_STATE as i16, R::R1);
}

/// Emits the dispatcher's handling of staged changes, for hosts that run without one. R0 and R1 are lost.
pub fn claim_staged(asm: &mut Asm) {
    let nothing = asm.label();
    asm.load(Size::B4, R::R1, REC, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, stage::READY as i32, nothing);
    claim(asm, REC, nothing);
    asm.bind(nothing);
}

/// Labels of a program that takes a new segment size out of line.
pub(super) struct SegmentSizeUpdate {
    register: RegId,
    entry: Label,
    back: Label,
}

impl Gen<'_> {
    /// Emits the check whether the segment size still is the one in the program's register, if it keeps one
    /// ([`ccplane_contract::MSS_REGISTER`]).
    pub(super) fn follow_mss(&mut self, host: &dyn Host) -> Option<SegmentSizeUpdate> {
        let register = mss_register(self.program)?;
        let asm = &mut self.asm;
        let (entry, back) = (asm.label(), asm.label());
        host.load_mss(asm);
        asm.load(Size::B4, R::R2, REC, rec::PROGRAM_MSS as i16);
        asm.jump_if(R::R1, Cond::Ne, R::R2, entry);
        asm.bind(back);
        Some(SegmentSizeUpdate { register, entry, back })
    }

    /// Emits the update of the segment size, from R2 to R1.
    pub(super) fn update_mss(&mut self, SegmentSizeUpdate { register, entry, back }: SegmentSizeUpdate) {
        let asm = &mut self.asm;
        asm.bind(entry);
        asm.store(Size::B4, REC, rec::PROGRAM_MSS as i16, R::R1);
        asm.load(Size::B8, R::R0, REC, reg_off(register));
        asm.jump_if(R::R0, Cond::Ne, R::R2, back);
        asm.store(Size::B8, REC, reg_off(register), R::R1);
        asm.jump(back);
    }

    /// Emits the application of the claimed change. The agent bounded the values already.
    pub(super) fn apply_staged(&mut self, instance: u32, done: Label) {
        let asm = &mut self.asm;
        let (keep, applied) = (asm.label(), asm.label());
        asm.load(Size::B4, R::R1, REC, rec::STAGE_INSTANCE as i16);
        asm.mov_imm(R::R2, i64::from(instance));
        asm.jump_if(R::R1, Cond::Ne, R::R2, applied);
        asm.load(Size::B4, R::R1, REC, rec::STAGE_SLOT as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, keep);
        load_prim(asm, R::R1, self.program.hook().clock());
        asm.store(Size::B8, REC, rec::MICROS_ZERO as i16, R::R1);
        self.reset(|_| true);
        let asm = &mut self.asm;
        policy::start(asm, self.program, REC);
        asm.load(Size::B4, R::R1, REC, rec::FIRST_MSS as i16);
        asm.store(Size::B4, REC, rec::PROGRAM_MSS as i16, R::R1);
        asm.bind(keep);
        for (bit, from, to) in [(1, rec::STAGE_CWND, rec::CWND), (2, rec::STAGE_RATE, rec::RATE)] {
            let skip = asm.label();
            asm.load(Size::B4, R::R1, REC, rec::STAGE_BITS as i16);
            asm.alu_imm(Alu::And, R::R1, bit);
            asm.jump_if_imm(R::R1, Cond::Eq, 0, skip);
            asm.load(Size::B8, R::R1, REC, from as i16);
            asm.store(Size::B8, REC, to as i16, R::R1);
            if to == rec::CWND {
                asm.store_imm(Size::B8, REC, rec::UNDO_CWND as i16, 0);
            }
            asm.bind(skip);
        }
        asm.load(Size::B8, R::R2, REC, rec::STAGE_MASK as i16);
        asm.load(Size::B8, R::R3, REC, rec::STAGE_MASK_HIGH as i16);
        for (n, decl) in self.program.regs().iter().enumerate() {
            if decl.kind == RegKind::Control {
                let skip = asm.label();
                asm.mov(R::R1, if n < 64 { R::R2 } else { R::R3 });
                asm.alu_imm(Alu::Rsh, R::R1, n as i32 % 64);
                asm.alu_imm(Alu::And, R::R1, 1);
                asm.jump_if_imm(R::R1, Cond::Eq, 0, skip);
                asm.load(Size::B8, R::R1, REC, rec::STAGE_REGS as i16 + 8 * n as i16);
                asm.store(Size::B8, REC, reg_off(n as u8), R::R1);
                asm.bind(skip);
            }
        }
        asm.bind(applied);
        asm.mov_imm(R::R1, i64::from(stage::EMPTY));
        asm.xchg(Size::B4, REC, rec::STAGE_STATE as i16, R::R1);
        asm.jump(done);
    }
}

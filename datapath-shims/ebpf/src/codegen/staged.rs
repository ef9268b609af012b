//! What changes beside the ACKs: what the agent staged for a flow, which is claimed by whoever sees the ACK first and
//! applied by the flow's own program, and the flow's segment size.

use ccplane_asm::{Alu, Asm, Cond, Label, R, Size};
use ccplane_contract::mss_register;
use ccplane_program::ir::{Prim, RegId, RegKind};

use super::{Gen, Host, REC, prim_slot, reg_off};
use crate::layout::{rec, stage};
use crate::policy;

/// Claims what the agent staged for the flow at `record`, if anything; jumps to `nothing` otherwise. R0 and R1
/// are lost.
pub fn claim(asm: &mut Asm, record: R, nothing: Label) {
    asm.mov_imm(R::R0, i64::from(stage::READY));
    asm.mov_imm(R::R1, i64::from(stage::APPLYING));
    asm.cmpxchg32(record, rec::STAGE_STATE as i16, R::R1);
    asm.jump_if_imm(R::R0, Cond::Ne, stage::READY as i32, nothing);
}

/// What a dispatcher does with staged changes, for hosts that run without one. R0 and R1 are lost.
pub fn claim_staged(asm: &mut Asm) {
    let nothing = asm.label();
    asm.load(Size::B4, R::R1, REC, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, stage::READY as i32, nothing);
    claim(asm, REC, nothing);
    asm.bind(nothing);
}

/// Where a program goes on that has just been told of another segment size.
pub(super) struct Told {
    register: RegId,
    entry: Label,
    back: Label,
}

impl Gen<'_> {
    /// Looks whether the segment size is what the program was told last, if it keeps it ([`ccplane_contract::MSS_REGISTER`]).
    pub(super) fn follow_mss(&mut self, host: &dyn Host) -> Option<Told> {
        let register = mss_register(self.program)?;
        let asm = &mut self.asm;
        let (entry, back) = (asm.label(), asm.label());
        host.load_mss(asm);
        asm.load(Size::B4, R::R2, REC, rec::TOLD_MSS as i16);
        asm.jump_if(R::R1, Cond::Ne, R::R2, entry);
        asm.bind(back);
        Some(Told { register, entry, back })
    }

    /// The size is R1 and was R2.
    pub(super) fn tell_mss(&mut self, Told { register, entry, back }: Told) {
        let asm = &mut self.asm;
        asm.bind(entry);
        asm.store(Size::B4, REC, rec::TOLD_MSS as i16, R::R1);
        asm.load(Size::B8, R::R0, REC, reg_off(register));
        asm.jump_if(R::R0, Cond::Ne, R::R2, back);
        asm.store(Size::B8, REC, reg_off(register), R::R1);
        asm.jump(back);
    }

    /// Applies what was claimed for this ACK. The agent bounded the values already.
    pub(super) fn apply_staged(&mut self, instance: u32, done: Label) {
        let asm = &mut self.asm;
        let (keep, applied) = (asm.label(), asm.label());
        asm.load(Size::B4, R::R1, REC, rec::STAGE_INSTANCE as i16);
        asm.mov_imm(R::R2, i64::from(instance));
        asm.jump_if(R::R1, Cond::Ne, R::R2, applied);
        asm.load(Size::B4, R::R1, REC, rec::STAGE_SLOT as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, keep);
        asm.load(Size::B8, R::R1, R::R10, prim_slot(Prim::AckNow));
        asm.store(Size::B8, REC, rec::MICROS_ZERO as i16, R::R1);
        self.reset(|_| true);
        let asm = &mut self.asm;
        policy::start(asm, self.program, REC);
        asm.load(Size::B4, R::R1, REC, rec::FIRST_MSS as i16);
        asm.store(Size::B4, REC, rec::TOLD_MSS as i16, R::R1);
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

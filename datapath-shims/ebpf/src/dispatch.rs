//! Assembles `cong_control`, the program that the kernel runs on each ACK.
//!
//! It samples statistics, claims what the agent staged, checks the heartbeat and tail-calls the flow's program. If
//! there is none, or the agent is silent, it runs the kernel's own Reno on the spot.

use crate::codegen::{choose_program, claim_program, end_change};
use crate::kernel::{Kernel, Maps, TCP_CA_CWR, TCP_CA_LOSS, lookup, sample, take_window};
use crate::layout::{ctl, mode, rec, stage};
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};

/// Registers of the context, the socket, the flow's record (0 for none) and the ACK's time.
const CTX: R = R::R6;
const SK: R = R::R7;
const RECORD: R = R::R8;
const NOW: R = R::R9;
/// Register of the control page, until the first call.
const CTL: R = R::R3;

/// Assembles the program `cong_control`.
///
/// # Errors
/// A bug in this file.
pub fn dispatcher(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (unknown, native, silent, no_program, staged, claimed, sampled, take_sample, resumed, resume) = (
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
        asm.label(),
    );
    asm.mov(CTX, R::R1);
    asm.load(Size::B8, SK, CTX, 0);
    lookup(&mut asm, k, maps, SK, unknown);
    asm.mov(RECORD, R::R0);
    k.get(&mut asm, NOW, SK, "tcp_mstamp");
    asm.map_value(CTL, maps.ctl, 0);
    asm.load(Size::B8, R::R1, RECORD, rec::SAMPLED_AT_US as i16);
    asm.load(Size::B8, R::R2, CTL, ctl::SAMPLE_US as i16);
    asm.alu(Alu::Add, R::R1, R::R2);
    asm.jump_if(NOW, Cond::Ge, R::R1, take_sample);
    asm.bind(sampled);

    asm.load(Size::B4, R::R1, RECORD, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, stage::READY as i32, staged);
    asm.bind(claimed);
    asm.load(Size::B4, R::R4, RECORD, rec::SLOT as i16);
    asm.jump_if_imm(R::R4, Cond::Eq, 0, no_program);
    jump_if_silent(&mut asm, silent);
    asm.load(Size::B4, R::R1, RECORD, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::PROGRAM as i32, resume);
    asm.bind(resumed);
    asm.mov(R::R1, CTX);
    asm.map(R::R2, maps.slots);
    asm.mov(R::R3, R::R4);
    asm.alu_imm(Alu::Sub, R::R3, 1);
    asm.call(Helper::TailCall);

    // Only a slot that was emptied falls through to here.
    asm.bind(no_program);
    asm.load(Size::B4, R::R4, RECORD, rec::MODE as i16);
    asm.jump_if_imm(R::R4, Cond::Eq, mode::POLICY as i32, native);
    asm.mov_imm(R::R4, i64::from(mode::NO_PROGRAM));
    asm.jump(native);
    asm.bind(silent);
    asm.mov_imm(R::R4, i64::from(mode::AGENT_SILENT));
    asm.bind(native);
    hand_over(&mut asm, k);
    native_reno(&mut asm, k);

    asm.bind(unknown);
    asm.mov_imm(RECORD, 0);
    native_reno(&mut asm, k);

    // What this ACK brought is the program's first sample: the native algorithm has recorded what came before.
    asm.bind(resume);
    asm.store_imm(Size::B4, RECORD, rec::MODE as i16, mode::PROGRAM as i32);
    take_window(&mut asm, k, SK, RECORD);
    asm.jump(resumed);
    asm.bind(take_sample);
    sample(&mut asm, k, SK, RECORD);
    asm.jump(sampled);
    asm.bind(staged);
    claim_change(&mut asm, claimed);
    asm.finish().map(|done| done.insns)
}

/// Emits a jump to `silent` if the agent's heartbeat is too old. R1 and R2 are lost.
fn jump_if_silent(asm: &mut Asm, silent: Label) {
    asm.load(Size::B8, R::R1, CTL, ctl::HEARTBEAT_US as i16);
    asm.load(Size::B8, R::R2, CTL, ctl::TIMEOUT_US as i16);
    asm.alu(Alu::Add, R::R1, R::R2);
    asm.jump_if(NOW, Cond::Gt, R::R1, silent);
}

/// Emits the claim of a change for the program that runs next, and the dispatcher's part of it: the choice of that
/// program.
///
/// A change without a program ends there. Under a silent agent, changes wait, as its programs do.
fn claim_change(asm: &mut Asm, done: Label) {
    let (keep, start) = (asm.label(), asm.label());
    jump_if_silent(asm, done);
    claim_program(asm, RECORD, keep, start, done);
    asm.bind(start);
    choose_program(asm, RECORD, keep, done);
    asm.jump(done);
}

/// Emits the switch to the native algorithm: the mode becomes R4, a claimed change without a program is dropped, and a
/// paced flow gets a window that it can use without pacing.
fn hand_over(asm: &mut Asm, k: &Kernel) {
    let (unclaimed, done) = (asm.label(), asm.label());
    asm.load(Size::B4, R::R1, RECORD, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, stage::APPLYING as i32, unclaimed);
    end_change(asm, RECORD);
    asm.bind(unclaimed);
    asm.load(Size::B4, R::R5, RECORD, rec::MODE as i16);
    asm.store(Size::B4, RECORD, rec::MODE as i16, R::R4);
    asm.jump_if_imm(R::R5, Cond::Ne, mode::PROGRAM as i32, done);
    asm.load(Size::B8, R::R4, CTX, k.rs_arg);
    k.unpace(asm, SK, R::R4, RECORD, done);
    asm.bind(done);
}

/// Emits the kernel's Reno, with the other duties of a `cong_control`, and the end.
fn native_reno(asm: &mut Asm, k: &Kernel) {
    /// The register of the rate sample, which replaces NOW.
    const RS: R = NOW;
    let (grow, pace, unknown) = (asm.label(), asm.label(), asm.label());
    asm.load(Size::B8, RS, CTX, k.rs_arg);
    k.get(asm, R::R1, SK, "ca_state");
    asm.jump_if_imm(R::R1, Cond::Lt, TCP_CA_CWR, grow);
    asm.jump_if_imm(R::R1, Cond::Eq, TCP_CA_LOSS, grow);
    k.get(asm, R::R1, SK, "snd_ssthresh");
    k.conserve(asm, TCP_CA_CWR, SK, RS, RECORD);
    k.set(asm, SK, "snd_cwnd", R::R1);
    asm.jump(pace);
    asm.bind(grow);
    asm.mov(R::R1, SK);
    asm.mov_imm(R::R2, 0);
    k.get(asm, R::R3, RS, "rs.acked_sacked");
    asm.call_kfunc(k.reno_cong_avoid);
    asm.bind(pace);
    k.get(asm, R::R1, SK, "snd_cwnd");
    k.default_pacing(asm, SK, R::R1);
    asm.jump_if_imm(RECORD, Cond::Eq, 0, unknown);
    k.save_counters(asm, SK, RECORD);
    asm.bind(unknown);
    asm.exit0();
}

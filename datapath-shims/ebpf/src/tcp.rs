//! The struct_ops members besides `cong_control`: a flow's start, end, and changes of state.

use crate::dispatch::dispatcher;
use crate::events::lifecycle_event;
use crate::kernel::{Kernel, Maps, STACK_KEY, STACK_S1, TCP_CA_LOSS, give_id, lookup, sample, take_window};
use crate::layout::{FLAG_TIMEOUT, ctl, event, mode, rec};
use ccplane_contract::{PAIRED_BYTES_PER_S, PAIRED_QUEUE_SEGMENTS};
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};

const USEC_PER_SEC: i32 = 1_000_000;

/// Assembles the program of one struct_ops member.
///
/// # Errors
/// A bug in this file.
pub fn member(name: &str, k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    match name {
        "init" => init(k, maps),
        "release" => release(k, maps),
        "ssthresh" => ssthresh(k, maps),
        "undo_cwnd" => undo_cwnd(k, maps),
        "set_state" => set_state(k, maps),
        "min_tso_segs" => min_tso_segs(k),
        _ => dispatcher(k, maps),
    }
}

/// Assembles `ssthresh`: a loss episode begins.
///
/// It returns what the kernel's Reno returns, and records the window that the program has before it learns of the loss.
fn ssthresh(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let unknown = asm.label();
    asm.load(Size::B8, R::R6, R::R1, 0);
    lookup(&mut asm, k, maps, R::R6, unknown);
    asm.load(Size::B8, R::R1, R::R0, rec::CWND as i16);
    asm.store(Size::B8, R::R0, rec::UNDO_CWND as i16, R::R1);
    answer_of(asm, unknown, k.reno_ssthresh)
}

/// Assembles `undo_cwnd`: the episode was spurious, because packets were late, not lost (RFC 3522, RFC 3708, RFC 5682).
///
/// The program gets its window back, unless the agent has set another since. Losses not yet reported to it are not
/// reported any more.
fn undo_cwnd(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (unknown, keep) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R6, R::R1, 0);
    lookup(&mut asm, k, maps, R::R6, unknown);
    asm.load(Size::B8, R::R1, R::R0, rec::UNDO_CWND as i16);
    asm.load(Size::B8, R::R2, R::R0, rec::CWND as i16);
    asm.jump_if(R::R1, Cond::Sle, R::R2, keep);
    asm.store(Size::B8, R::R0, rec::CWND as i16, R::R1);
    asm.bind(keep);
    k.get(&mut asm, R::R1, R::R6, "lost");
    asm.store(Size::B4, R::R0, rec::LAST_LOST as i16, R::R1);
    asm.store_imm(Size::B4, R::R0, rec::FLAGS as i16, 0);
    answer_of(asm, unknown, k.reno_undo_cwnd)
}

/// Ends a program at `out` with what a function of the kernel answers about the socket in R6.
fn answer_of(mut asm: Asm, out: Label, kfunc: u32) -> Result<Vec<Insn>, AsmError> {
    asm.bind(out);
    asm.mov(R::R1, R::R6);
    asm.call_kfunc(kfunc);
    asm.exit();
    asm.finish().map(|done| done.insns)
}

fn set_state(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let out = asm.label();
    asm.load(Size::B8, R::R2, R::R1, 8);
    asm.alu_imm(Alu::And, R::R2, 0xff);
    asm.jump_if_imm(R::R2, Cond::Ne, TCP_CA_LOSS, out);
    asm.load(Size::B8, R::R6, R::R1, 0);
    lookup(&mut asm, k, maps, R::R6, out);
    asm.store_imm(Size::B4, R::R0, rec::FLAGS as i16, FLAG_TIMEOUT);
    asm.finish_at(out)
}

/// Assembles `min_tso_segs`: the least segments of a burst (`tcp_tso_autosize`).
///
/// It is two, as the kernel's default, where the flow has a queue of some segments, and one where it has not: behind room for
/// one packet half of each pair is lost. From [`PAIRED_BYTES_PER_S`] on a millisecond holds two anyway.
fn min_tso_segs(k: &Kernel) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (one, two) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R6, R::R1, 0);
    k.get(&mut asm, R::R2, R::R6, "pacing_rate");
    asm.mov_imm(R::R3, i64::from(PAIRED_BYTES_PER_S));
    asm.jump_if(R::R2, Cond::Ge, R::R3, two);
    // srtt_us is kept times 8.
    k.get(&mut asm, R::R1, R::R6, "srtt_us");
    asm.alu_imm(Alu::Rsh, R::R1, 3);
    asm.load(Size::B4, R::R3, R::R6, k.rtt_min);
    asm.jump_if(R::R1, Cond::Le, R::R3, one);
    asm.alu(Alu::Sub, R::R1, R::R3);
    asm.alu(Alu::Mul, R::R1, R::R2);
    asm.alu_imm(Alu::Div, R::R1, USEC_PER_SEC);
    k.get(&mut asm, R::R3, R::R6, "mss_cache");
    asm.alu_imm(Alu::Mul, R::R3, PAIRED_QUEUE_SEGMENTS as i32);
    asm.jump_if(R::R1, Cond::Lt, R::R3, one);
    asm.bind(two);
    asm.exit_with(2);
    asm.bind(one);
    asm.exit_with(1);
    asm.finish().map(|done| done.insns)
}

/// Assembles `init`: takes a free record for the flow and reports that it started.
fn init(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (full, out) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R6, R::R1, 0);
    asm.store_imm(Size::B8, R::R10, STACK_S1, 0);
    asm.map(R::R1, maps.free);
    asm.mov(R::R2, R::R10);
    asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_S1));
    asm.call(Helper::MapPopElem);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, full);
    asm.load(Size::B4, R::R1, R::R10, STACK_S1);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B4, R::R6, k.off("ca_priv"), R::R1);
    lookup(&mut asm, k, maps, R::R6, out);
    asm.mov(R::R7, R::R0);

    // All fields but those that a program sets when it starts.
    for off in (0..rec::STAGE_REGS).chain(rec::NOISE..rec::HISTORY).step_by(8) {
        asm.store_imm(Size::B8, R::R7, off as i16, 0);
    }
    asm.store_imm(Size::B4, R::R7, rec::MODE as i16, mode::NO_PROGRAM as i32);
    identity(&mut asm, k, R::R6);
    take_window(&mut asm, k, R::R6, R::R7);
    k.save_counters(&mut asm, R::R6, R::R7);
    sample(&mut asm, k, R::R6, R::R7);

    // The id comes last: a record with an id is complete.
    give_id(&mut asm, maps, R::R7, STACK_S1);
    lifecycle_event(&mut asm, k, maps, R::R6, event::CREATED, out);
    asm.jump(out);

    asm.bind(full);
    asm.map_value(R::R1, maps.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::TABLE_FULL as i16, R::R2);
    asm.finish_at(out)
}

fn release(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (sent, out) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R6, R::R1, 0);
    lookup(&mut asm, k, maps, R::R6, out);
    asm.mov(R::R7, R::R0);
    lifecycle_event(&mut asm, k, maps, R::R6, event::CLOSED, sent);
    asm.bind(sent);
    asm.mov_imm(R::R1, 0);
    asm.xchg(Size::B8, R::R7, rec::ID as i16, R::R1);
    asm.store_imm(Size::B4, R::R6, k.off("ca_priv"), 0);
    asm.map(R::R1, maps.free);
    asm.mov(R::R2, R::R10);
    asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_KEY));
    asm.mov_imm(R::R3, 0);
    asm.call(Helper::MapPushElem);
    asm.finish_at(out)
}

/// Emits the copy of addresses and ports of the socket `sk`, and of the name that it chose, into the record in R7.
pub fn identity(asm: &mut Asm, k: &Kernel, sk: R) {
    let (v6, done) = (asm.label(), asm.label());
    k.get(asm, R::R1, sk, "family");
    asm.store(Size::B4, R::R7, rec::FAMILY as i16, R::R1);
    k.get(asm, R::R2, sk, "sport");
    asm.store(Size::B4, R::R7, rec::LOCAL_PORT as i16, R::R2);
    k.get(asm, R::R2, sk, "dport");
    asm.be16(R::R2);
    asm.store(Size::B4, R::R7, rec::REMOTE_PORT as i16, R::R2);
    k.get(asm, R::R2, sk, "snd_cwnd");
    asm.store(Size::B4, R::R7, rec::INIT_CWND as i16, R::R2);
    k.get(asm, R::R2, sk, "mss_cache");
    asm.store(Size::B4, R::R7, rec::FIRST_MSS as i16, R::R2);
    asm.jump_if_imm(R::R1, Cond::Ne, libc::AF_INET, v6);
    for (from, to) in [("saddr", rec::LOCAL_ADDR), ("daddr", rec::REMOTE_ADDR)] {
        k.get(asm, R::R2, sk, from);
        asm.store(Size::B4, R::R7, to as i16, R::R2);
    }
    asm.jump(done);
    asm.bind(v6);
    if k.has("saddr6") {
        for (from, to) in [("saddr6", rec::LOCAL_ADDR), ("daddr6", rec::REMOTE_ADDR)] {
            for word in (0..16).step_by(4) {
                asm.load(Size::B4, R::R2, sk, k.off(from) + word);
                asm.store(Size::B4, R::R7, to as i16 + word, R::R2);
            }
        }
    }
    asm.bind(done);
    let unnamed = asm.label();
    asm.load(Size::B8, R::R1, sk, k.icsk_ca_ops);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, unnamed);
    for word in (0..16).step_by(8) {
        asm.load(Size::B8, R::R2, R::R1, k.ca_name + word);
        asm.store(Size::B8, R::R7, rec::CHOSEN as i16 + word, R::R2);
    }
    asm.bind(unnamed);
    k.cgroup_id(asm, R::R1, sk);
    asm.store(Size::B8, R::R7, rec::CGROUP as i16, R::R1);
}

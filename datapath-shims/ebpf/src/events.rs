//! Code that writes events to the ring buffer.

use crate::frame::{FLAG_ASKED, FLAGS, REC, load_prim};
use crate::kernel::{Kernel, Maps};
use crate::layout::{ctl, event, rec};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};
use ccplane_program::ir::Prim;

/// The flags `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`.
const RB_NO_WAKEUP: i64 = 1;
const RB_FORCE_WAKEUP: i64 = 2;

/// Emits the reservation of an event of `len` values of the flow in [`REC`]; it fills the head and leaves the event in
/// R0.
///
/// Jumps to `full` when there is no room, which is counted.
fn begin_event(asm: &mut Asm, maps: Maps, kind: i32, len: usize, full: Label) {
    let ok = asm.label();
    asm.map(R::R1, maps.ring);
    asm.mov_imm(R::R2, i64::from(event::VALUES) + 8 * len as i64);
    asm.mov_imm(R::R3, 0);
    asm.call(Helper::RingbufReserve);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, ok);
    asm.map_value(R::R1, maps.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::DROPPED as i16, R::R2);
    asm.jump(full);
    asm.bind(ok);
    asm.store_imm(Size::B4, R::R0, event::KIND as i16, kind);
    asm.load(Size::B8, R::R1, REC, rec::ID as i16);
    asm.store(Size::B8, R::R0, event::FLOW as i16, R::R1);
    asm.store_imm(Size::B4, R::R0, event::LEN as i16, len as i32);
}

/// Emits the submission of the event in R0, of the flow in [`REC`].
///
/// It wakes the agent only if the agent sleeps; and, if a program that `asks` reports, only if the program asked no
/// policy: else the report is a row of a batch. An event that wakes the agent also says on which processor it did.
fn submit_event(asm: &mut Asm, maps: Maps, asks: bool) {
    let (quiet, done) = (asm.label(), asm.label());
    asm.mov(R::R1, R::R0);
    if asks {
        asm.mov_imm(R::R2, RB_NO_WAKEUP);
        asm.jump_if_imm(FLAGS, Cond::Set, FLAG_ASKED, quiet);
    }
    // The agent first says that it sleeps, then checks for events; this side works in the opposite order, and the
    // processor must not reorder it. Any atomic operation is a full barrier; this one is on a line that is ours
    // already.
    asm.mov_imm(R::R2, 0);
    asm.fetch_add(REC, rec::ID as i16, R::R2);
    asm.map_value(R::R3, maps.ctl, 0);
    asm.mov_imm(R::R2, RB_NO_WAKEUP);
    asm.load(Size::B4, R::R4, R::R3, ctl::WAITING as i16);
    asm.jump_if_imm(R::R4, Cond::Eq, 0, quiet);
    asm.mov_imm(R::R2, RB_FORCE_WAKEUP);
    asm.call(Helper::RingbufSubmit);
    // Behind the submission, which takes the event out of a register: the agent goes by several wakes that agree.
    asm.call(Helper::GetSmpProcessorId);
    asm.alu_imm(Alu::Add, R::R0, 1);
    asm.map_value(R::R1, maps.ctl, 0);
    asm.store(Size::B4, R::R1, ctl::WAKER_CORE as i16, R::R0);
    asm.jump(done);
    asm.bind(quiet);
    asm.call(Helper::RingbufSubmit);
    asm.bind(done);
}

/// Emits the report of the flow in [`REC`] by the program `instance`, at `clock`; the program `asks` policies or not.
pub fn send_report(asm: &mut Asm, maps: Maps, (instance, clock): (u32, Prim), report_len: usize, asks: bool) {
    let full = asm.label();
    asm.load(Size::B4, R::R1, REC, rec::SEQ as i16);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B4, REC, rec::SEQ as i16, R::R1);
    begin_event(asm, maps, event::REPORT, report_len, full);
    asm.load(Size::B4, R::R1, REC, rec::SEQ as i16);
    asm.store(Size::B4, R::R0, event::SEQ as i16, R::R1);
    asm.store_imm(Size::B4, R::R0, event::INSTANCE as i16, instance as i32);
    load_prim(asm, R::R1, clock);
    asm.store(Size::B8, R::R0, event::AT_US as i16, R::R1);
    for n in 0..report_len {
        asm.load(Size::B8, R::R1, REC, rec::REGS as i16 + 8 * n as i16);
        asm.store(Size::B8, R::R0, event::VALUES as i16 + 8 * n as i16, R::R1);
    }
    submit_event(asm, maps, asks);
    asm.bind(full);
}

/// Emits the event that the flow in [`REC`], of socket `sk`, started or ended.
pub fn lifecycle_event(asm: &mut Asm, k: &Kernel, maps: Maps, sk: R, kind: i32, full: Label) {
    begin_event(asm, maps, kind, 0, full);
    asm.store_imm(Size::B4, R::R0, event::SEQ as i16, 0);
    asm.store_imm(Size::B4, R::R0, event::INSTANCE as i16, 0);
    k.get(asm, R::R1, sk, "tcp_mstamp");
    asm.store(Size::B8, R::R0, event::AT_US as i16, R::R1);
    submit_event(asm, maps, false);
}

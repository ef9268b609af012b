//! Code for a flow's start and end: its record, and what is known of its destination.

use super::header::{CTX, Output, STACK_NEXT, TP, skb};
use super::layout::{first, flow, page, peer, peer_key, storage};
use super::maps::PacketMaps;
use super::measure::{FlowPhase, measure};
use super::record::{find_record, find_storage, give_record, make_storage, take_record, write_output};
use crate::events::lifecycle_event;
use crate::frame::REC;
use crate::kernel::{Kernel, STACK_KEY, give_id};
use crate::layout::{event, rec, stage};
use crate::tcp::identity;
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};
use ccplane_program::ir::{MAX_REGS, PAST_SIZES};

/// The register of the packet's time, nanoseconds.
pub const NOW: R = R::R9;
/// Stack slot of what a program of the start decided.
const STACK_CONNECT: i16 = STACK_NEXT;
const NSEC_PER_USEC: i32 = 1000;
/// The state of a connection that is open (`sk_state`, include/net/tcp_states.h).
pub const TCP_ESTABLISHED: i32 = 1;
const TCP_SYN_SENT: i32 = 2;
const TCP_CLOSE: i32 = 7;
const TCP_CLOSE_WAIT: i32 = 8;
/// States in which a flow may begin: others are those of listeners, and of sockets that end.
const BEGINS: i32 = 1 << TCP_ESTABLISHED | 1 << TCP_SYN_SENT | 1 << TCP_CLOSE_WAIT;
/// The flag `BPF_ANY`: an entry is set, new or not.
const ANY: i64 = 0;
/// The factor of [`hash`] (Knuth's multiplicative hashing).
const SPREAD: i64 = 0x9e37_79b1;

/// Emits the packet's time in [`NOW`].
pub fn packet_time(asm: &mut Asm) {
    let known = asm.label();
    asm.load(Size::B8, NOW, CTX, skb::TSTAMP);
    asm.jump_if_imm(NOW, Cond::Ne, 0, known);
    asm.call(Helper::KtimeGetNs);
    asm.mov(NOW, R::R0);
    asm.bind(known);
}

/// Emits the start of the flow whose first packet is in [`CTX`] and whose socket in [`TP`].
///
/// The code continues at `known`, with the registers of a known flow, or at `out`.
pub fn begin(asm: &mut Asm, k: &Kernel, maps: &PacketMaps, output: &Output, [known, out]: [Label; 2]) {
    let sends = asm.label();
    asm.mov(R::R1, TP);
    asm.call(Helper::SkcToTcpSock);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
    asm.mov(TP, R::R0);
    packet_time(asm);
    k.get(asm, R::R1, TP, "state");
    asm.jump_if_imm(R::R1, Cond::Gt, TCP_CLOSE_WAIT, out);
    asm.mov_imm(R::R2, 1);
    asm.alu(Alu::Lsh, R::R2, R::R1);
    asm.alu_imm(Alu::And, R::R2, BEGINS);
    asm.jump_if_imm(R::R2, Cond::Eq, 0, out);
    // Who only acknowledges is no flow that could be scheduled.
    asm.jump_if_imm(R::R1, Cond::Eq, TCP_SYN_SENT, sends);
    k.get(asm, R::R1, TP, "bytes_sent");
    asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
    asm.bind(sends);
    take_record(asm, maps, out);
    make_storage_for(asm, maps, out);
    identity(asm, k, TP);
    hash(asm);
    asm.store(Size::B8, REC, flow::SOCKET as i16, TP);
    // This packet's bytes are counted already; where it is the first one with data, none were sent before.
    let counted = asm.label();
    k.get(asm, R::R1, TP, "data_segs_out");
    asm.load(Size::B4, R::R2, CTX, skb::GSO_SEGS);
    asm.jump_if(R::R1, Cond::Le, R::R2, counted);
    k.get(asm, R::R1, TP, "bytes_sent");
    asm.store(Size::B8, REC, flow::LAST_BYTES as i16, R::R1);
    asm.bind(counted);
    asm.store(Size::B8, REC, flow::LAST_NS as i16, NOW);
    asm.mov(R::R1, NOW);
    asm.alu_imm(Alu::Div, R::R1, NSEC_PER_USEC);
    asm.store(Size::B8, REC, flow::STARTED_US as i16, R::R1);
    for (counter, to) in
        [("delivered", flow::DELIVERED), ("delivered_ce", flow::MARKED), ("lost", flow::LOST)]
    {
        k.get(asm, R::R1, TP, counter);
        asm.store(Size::B4, REC, to as i16, R::R1);
    }
    greet_peer(asm, maps, Count::Yes);
    let undecided = asm.label();
    asm.load(Size::B8, R::R1, R::R10, STACK_CONNECT);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, undecided);
    asm.mov(R::R2, R::R1);
    asm.alu_imm(Alu::And, R::R2, 0xff);
    asm.store(Size::B8, REC, rec::PRIORITY as i16, R::R2);
    asm.store(Size::B4, REC, flow::PRIORITY as i16, R::R2);
    asm.alu_imm(Alu::Rsh, R::R1, 8);
    asm.alu_imm(Alu::And, R::R1, 0xff);
    asm.store(Size::B8, REC, rec::PATH as i16, R::R1);
    asm.store(Size::B4, REC, flow::PATH as i16, R::R1);
    asm.store(Size::B4, REC, flow::SAMPLED_PATH as i16, R::R1);
    asm.store_imm(Size::B4, REC, flow::CONNECTED as i16, 1);
    write_output(asm, maps, output);
    asm.bind(undecided);
    start_with_first(asm, maps);
    announce(asm, k, maps);
    k.as_tcp_sock(asm, TP);
    asm.jump(known);
}

/// Emits the program that flows start with, as the agent would have staged it, unless the agent is changing it.
fn start_with_first(asm: &mut Asm, maps: &PacketMaps) {
    /// The registers of what the agent left, and of its version.
    const FIRST: R = R::R2;
    const VERSION: R = R::R3;
    let none = asm.label();
    asm.map_value(FIRST, maps.common.ctl, page::FIRST);
    asm.load(Size::B4, VERSION, FIRST, first::VERSION as i16);
    asm.load(Size::B4, R::R1, FIRST, first::SLOT as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
    asm.store(Size::B4, REC, rec::STAGE_SLOT as i16, R::R1);
    for (from, to) in [(first::INSTANCE, rec::STAGE_INSTANCE), (first::UID, rec::UID)] {
        asm.load(Size::B4, R::R1, FIRST, from as i16);
        asm.store(Size::B4, REC, to as i16, R::R1);
    }
    let masks = [(first::MASK, rec::STAGE_MASK), (first::MASK_HIGH, rec::STAGE_MASK_HIGH)];
    let regs = (0..8 * MAX_REGS as u32).step_by(8).map(|n| (first::REGS + n, rec::STAGE_REGS + n));
    for (from, to) in masks.into_iter().chain(regs) {
        asm.load(Size::B8, R::R1, FIRST, from as i16);
        asm.store(Size::B8, REC, to as i16, R::R1);
    }
    let same = asm.label();
    asm.load(Size::B4, R::R1, FIRST, first::VERSION as i16);
    asm.jump_if(R::R1, Cond::Eq, VERSION, same);
    asm.store_imm(Size::B4, REC, rec::UID as i16, 0);
    asm.jump(none);
    asm.bind(same);
    asm.store_imm(Size::B4, REC, rec::STAGE_STATE as i16, stage::READY as i32);
    asm.bind(none);
}

/// Emits the record's index into the socket's storage, and what a program of the start left there onto the stack; gives the record
/// back where there is no storage.
fn make_storage_for(asm: &mut Asm, maps: &PacketMaps, out: Label) {
    let (none, made) = (asm.label(), asm.label());
    make_storage(asm, maps, TP, none);
    asm.load(Size::B4, R::R1, R::R10, STACK_KEY);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B4, R::R0, storage::INDEX as i16, R::R1);
    asm.load(Size::B4, R::R1, R::R0, storage::CONNECT as i16);
    asm.store(Size::B8, R::R10, STACK_CONNECT, R::R1);
    asm.jump(made);
    asm.bind(none);
    give_record(asm, maps);
    asm.jump(out);
    asm.bind(made);
}

/// Emits the flow's id and the event that it started. The id comes last: a record with an id is complete.
fn announce(asm: &mut Asm, k: &Kernel, maps: &PacketMaps) {
    let full = asm.label();
    give_id(asm, maps.common, REC, STACK_KEY);
    lifecycle_event(asm, k, maps.common, TP, event::CREATED, full);
    asm.bind(full);
}

/// Emits the hash of addresses and ports, 32 bits; R1-R3 are lost.
pub fn hash(asm: &mut Asm) {
    let addresses = (rec::LOCAL_ADDR..rec::LOCAL_ADDR + 32).step_by(4);
    asm.load(Size::B4, R::R1, REC, rec::LOCAL_PORT as i16);
    asm.mov_imm(R::R3, SPREAD);
    for word in [rec::REMOTE_PORT].into_iter().chain(addresses) {
        asm.alu(Alu::Mul, R::R1, R::R3);
        asm.mov(R::R2, R::R1);
        asm.alu_imm(Alu::Rsh, R::R2, 29);
        asm.alu(Alu::Xor, R::R1, R::R2);
        asm.load(Size::B4, R::R2, REC, word as i16);
        asm.alu(Alu::Xor, R::R1, R::R2);
    }
    asm.alu(Alu::Mul, R::R1, R::R3);
    asm.mov(R::R2, R::R1);
    asm.alu_imm(Alu::Rsh, R::R2, 32);
    asm.alu(Alu::Xor, R::R1, R::R2);
    asm.store(Size::B4, REC, flow::HASH as i16, R::R1);
}

/// Whether a flow counts among those of its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    Yes,
    No,
}

/// Emits what is known of the flow's destination into its record; R0-R5 are lost.
pub fn greet_peer(asm: &mut Asm, maps: &PacketMaps, count: Count) {
    let (known, local, unknown) = (asm.label(), asm.label(), asm.label());
    for (from, to, bytes) in [(rec::REMOTE_ADDR, peer_key::ADDR, 16), (rec::CGROUP, peer_key::CGROUP, 8)] {
        for word in (0..bytes).step_by(8) {
            asm.load(Size::B8, R::R1, REC, (from + word) as i16);
            asm.store(Size::B8, REC, (flow::PEER_KEY + to + word) as i16, R::R1);
        }
    }
    // One end's port is the service's, the other one is drawn from the upper range.
    asm.load(Size::B4, R::R1, REC, rec::REMOTE_PORT as i16);
    asm.load(Size::B4, R::R2, REC, rec::LOCAL_PORT as i16);
    asm.jump_if_imm(R::R2, Cond::Eq, 0, local);
    asm.jump_if(R::R1, Cond::Lt, R::R2, local);
    asm.mov(R::R1, R::R2);
    asm.bind(local);
    asm.store(Size::B4, REC, (flow::PEER_KEY + peer_key::PORT) as i16, R::R1);
    asm.load(Size::B4, R::R1, REC, rec::FAMILY as i16);
    asm.store(Size::B4, REC, (flow::PEER_KEY + peer_key::FAMILY) as i16, R::R1);

    look_up_peer(asm, maps);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, known);
    if count == Count::Yes {
        // The flow's primitives are not in use yet.
        for word in (0..peer::BYTES).step_by(8) {
            asm.store_imm(Size::B8, REC, (flow::PRIMS + word) as i16, 0);
        }
        peer_arguments(asm, maps);
        asm.mov(R::R3, REC);
        asm.alu_imm(Alu::Add, R::R3, flow::PRIMS as i32);
        asm.mov_imm(R::R4, ANY);
        asm.call(Helper::MapUpdateElem);
        look_up_peer(asm, maps);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, unknown);
    } else {
        asm.jump(unknown);
    }
    asm.bind(known);
    let copied = [(peer::FLOWS, flow::PEER_FLOWS), (peer::STARTED_US, flow::PEER_STARTED_US)];
    let sizes = (0..8 * PAST_SIZES as u32).step_by(8).map(|n| (peer::SIZES + n, flow::PEER_SIZES + n));
    for (from, to) in copied.into_iter().chain(sizes) {
        asm.load(Size::B8, R::R1, R::R0, from as i16);
        asm.store(Size::B8, REC, to as i16, R::R1);
    }
    if count == Count::Yes {
        asm.mov_imm(R::R1, 1);
        asm.fetch_add(R::R0, peer::FLOWS as i16, R::R1);
        asm.load(Size::B8, R::R1, REC, flow::STARTED_US as i16);
        asm.store(Size::B8, R::R0, peer::STARTED_US as i16, R::R1);
    }
    asm.bind(unknown);
}

/// Emits R0 = what is known of the flow's destination, or 0.
fn look_up_peer(asm: &mut Asm, maps: &PacketMaps) {
    peer_arguments(asm, maps);
    asm.call(Helper::MapLookupElem);
}

fn peer_arguments(asm: &mut Asm, maps: &PacketMaps) {
    asm.map(R::R1, maps.peers);
    asm.mov(R::R2, REC);
    asm.alu_imm(Alu::Add, R::R2, flow::PEER_KEY as i32);
}

/// Assembles the program that each change of a TCP socket's state runs: it ends the flow of one that closes.
///
/// # Errors
/// A bug in this file.
pub fn on_state(k: &Kernel, maps: &PacketMaps) -> Result<Vec<Insn>, AsmError> {
    /// Offset of the new state in the tracepoint's arguments; the socket comes first.
    const NEW_STATE: i16 = 16;
    let mut asm = Asm::default();
    let (unknown, sent, out) = (asm.label(), asm.label(), asm.label());
    asm.load(Size::B8, R::R2, R::R1, NEW_STATE);
    asm.zext32(R::R2);
    asm.jump_if_imm(R::R2, Cond::Ne, TCP_CLOSE, out);
    asm.load(Size::B8, TP, R::R1, 0);
    find_storage(&mut asm, maps, TP, out);
    asm.mov(R::R6, R::R0);
    find_record(&mut asm, maps, out);
    asm.store_imm(Size::B8, R::R6, storage::INDEX as i16, 0);
    asm.mov(R::R1, TP);
    asm.call(Helper::SkcToTcpSock);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
    asm.mov(TP, R::R0);
    measure(&mut asm, k, maps, FlowPhase::Ends);
    look_up_peer(&mut asm, maps);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, unknown);
    for n in (1..PAST_SIZES as u32).rev() {
        asm.load(Size::B8, R::R1, R::R0, (peer::SIZES + 8 * (n - 1)) as i16);
        asm.store(Size::B8, R::R0, (peer::SIZES + 8 * n) as i16, R::R1);
    }
    k.get(&mut asm, R::R1, TP, "bytes_sent");
    asm.store(Size::B8, R::R0, peer::SIZES as i16, R::R1);
    asm.bind(unknown);
    lifecycle_event(&mut asm, k, maps.common, TP, event::CLOSED, sent);
    asm.bind(sent);
    asm.store_imm(Size::B8, REC, flow::SOCKET as i16, 0);
    asm.mov_imm(R::R1, 0);
    asm.xchg(Size::B8, REC, rec::ID as i16, R::R1);
    give_record(&mut asm, maps);
    asm.finish_at(out)
}

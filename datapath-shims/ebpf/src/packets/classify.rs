//! Assembles the classifier: it finds a packet's flow, and either marks the packet as was decided or has the flow's program decide.

use super::header::{
    CB_LINK, CTX, HeaderOffset, Output, REDIRECTED, TP, exit_next, read_tcp_header, skb, stamp,
};
use super::layout::{flow, page};
use super::lifecycle::{NOW, TCP_ESTABLISHED, begin};
use super::maps::PacketMaps;
use super::measure::{FlowPhase, measure};
use super::record::{find_cached, find_record, find_storage, put_into_cache};
use crate::codegen::{choose_program, claim_program, end_change};
use crate::frame::REC;
use crate::kernel::{Kernel, STACK_KEY};
use crate::layout::{mode, rec, stage};
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};

/// Registers between calls: of the control page, of the gap before the packet, of the bytes sent before and with it.
const PAGE: R = R::R3;
const GAP: R = R::R4;
const BEFORE: R = R::R5;
const BYTES: R = R::R0;
/// States of sockets (include/net/tcp_states.h).
const TCP_FIN_WAIT1: i32 = 4;
const TCP_LAST_ACK: i32 = 9;
const TCP_CLOSING: i32 = 11;
/// The flag of a TCP header that ends a flow.
const FIN: i32 = 1;

/// Assembles the classifier for devices with a link header of `link_bytes`.
///
/// # Errors
/// A bug in this file.
pub fn classifier(
    k: &Kernel,
    maps: &PacketMaps,
    output: &Output,
    link_bytes: u32,
) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let labels = Labels::new(&mut asm);
    let Labels { uncached, found, known, clock, timed, silent, due, sampled, ending, goes_on, .. } = labels;
    let Labels { empty, other, decide, apply, out, .. } = labels;
    asm.mov(CTX, R::R1);
    if output.devices {
        asm.load(Size::B4, R::R1, CTX, skb::TC_INDEX);
        asm.jump_if_imm(R::R1, Cond::Eq, REDIRECTED, out);
    }
    asm.load(Size::B8, TP, CTX, skb::SK);
    asm.jump_if_imm(TP, Cond::Eq, 0, out);
    find_cached(&mut asm, maps, uncached);
    asm.bind(found);
    asm.load(Size::B8, NOW, CTX, skb::TSTAMP);
    asm.jump_if_imm(NOW, Cond::Eq, 0, clock);
    asm.bind(timed);
    k.as_tcp_sock(&mut asm, TP);
    asm.bind(known);
    asm.map_value(PAGE, maps.common.ctl, 0);
    asm.load(Size::B8, R::R1, PAGE, page::DEADLINE_NS as i16);
    asm.jump_if(NOW, Cond::Gt, R::R1, silent);
    asm.load(Size::B8, R::R1, REC, flow::NEXT_SAMPLE_NS as i16);
    asm.jump_if(NOW, Cond::Ge, R::R1, due);
    asm.bind(sampled);
    // The socket has counted this packet already. All of its packets pass here, so the difference is this one's.
    k.get(&mut asm, BYTES, TP, "bytes_sent");
    asm.load(Size::B8, BEFORE, REC, flow::LAST_BYTES as i16);
    asm.store(Size::B8, REC, flow::LAST_BYTES as i16, BYTES);
    k.get(&mut asm, R::R1, TP, "state");
    asm.jump_if_imm(R::R1, Cond::Ne, TCP_ESTABLISHED, ending);
    asm.bind(goes_on);
    asm.jump_if(BYTES, Cond::Eq, BEFORE, empty);
    asm.load(Size::B8, R::R1, REC, flow::LAST_NS as i16);
    asm.mov(GAP, NOW);
    asm.alu(Alu::Sub, GAP, R::R1);
    asm.store(Size::B8, REC, flow::LAST_NS as i16, NOW);
    asm.load(Size::B4, R::R1, REC, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, stage::EMPTY as i32, decide);
    asm.load(Size::B4, R::R1, REC, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::PROGRAM as i32, other);
    asm.load(Size::B8, R::R1, PAGE, page::FLOWLET_NS as i16);
    asm.jump_if(GAP, Cond::Sgt, R::R1, decide);
    asm.load(Size::B8, R::R2, REC, flow::DECIDE_AT as i16);
    asm.jump_if(BEFORE, Cond::Ge, R::R2, decide);
    asm.bind(apply);
    stamp(&mut asm, output, HeaderOffset::Bytes(link_bytes));
    asm.bind(out);
    exit_next(&mut asm);
    rare_cases(&mut asm, k, maps, output, &labels);
    decision(&mut asm, k, maps, link_bytes, &labels);
    asm.finish().map(|done| done.insns)
}

/// The places in the classifier's code; those of most packets are in its first part.
#[derive(Clone, Copy)]
struct Labels {
    /// The cache does not know the packet's flow; it is found.
    uncached: Label,
    found: Label,
    /// The flow is new; its record is there.
    first: Label,
    known: Label,
    /// The packet has no time stamp; its time is known.
    clock: Label,
    timed: Label,
    /// The agent has been silent.
    silent: Label,
    /// A sample is due; it is taken.
    due: Label,
    sampled: Label,
    /// The connection is being opened or closed; its packets are as others.
    ending: Label,
    goes_on: Label,
    /// The packet carries no data.
    empty: Label,
    /// The flow has no program that runs.
    other: Label,
    /// The packet is a decision; the last one.
    decide: Label,
    last: Label,
    /// The place where the packet gets the flow's decision, which stays as it is.
    apply: Label,
    out: Label,
}

impl Labels {
    fn new(asm: &mut Asm) -> Labels {
        let mut label = || asm.label();
        Labels {
            uncached: label(),
            found: label(),
            first: label(),
            known: label(),
            clock: label(),
            timed: label(),
            silent: label(),
            due: label(),
            sampled: label(),
            ending: label(),
            goes_on: label(),
            empty: label(),
            other: label(),
            decide: label(),
            last: label(),
            apply: label(),
            out: label(),
        }
    }
}

/// Emits what few packets need: flows that are new or not in the cache, samples, flows without a program.
fn rare_cases(asm: &mut Asm, k: &Kernel, maps: &PacketMaps, output: &Output, labels: &Labels) {
    let Labels { uncached, found, first, known, clock, timed, silent, due, sampled, .. } = *labels;
    let Labels { ending, goes_on, empty, other, decide, last, apply, out, .. } = *labels;
    let (connected, closes) = (asm.label(), asm.label());
    asm.bind(uncached);
    find_storage(asm, maps, TP, first);
    find_record(asm, maps, first);
    put_into_cache(asm, maps);
    asm.jump(found);
    asm.bind(first);
    begin(asm, k, maps, output, [known, out]);
    asm.bind(clock);
    asm.call(Helper::KtimeGetNs);
    asm.mov(NOW, R::R0);
    asm.jump(timed);
    asm.bind(silent);
    asm.load(Size::B4, R::R1, REC, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::PROGRAM as i32, out);
    asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::AGENT_SILENT as i32);
    asm.jump(out);
    asm.bind(due);
    take_sample(asm, k, maps);
    asm.jump(sampled);
    // A flow whose last packet has left is not decided about any more.
    asm.bind(ending);
    for state in [TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING] {
        asm.jump_if_imm(R::R1, Cond::Eq, state, closes);
    }
    asm.jump(goes_on);
    asm.bind(closes);
    asm.load(Size::B4, R::R1, REC, flow::ENDED as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, 0, empty);
    asm.store(Size::B8, REC, flow::BEFORE as i16, BEFORE);
    read_tcp_header(asm, out);
    asm.alu_imm(Alu::And, R::R1, FIN);
    asm.jump_if_imm(R::R1, Cond::Ne, 0, last);
    asm.load(Size::B8, BYTES, REC, flow::LAST_BYTES as i16);
    asm.load(Size::B8, BEFORE, REC, flow::BEFORE as i16);
    asm.map_value(PAGE, maps.common.ctl, 0);
    asm.jump(goes_on);

    asm.bind(empty);
    asm.load(Size::B4, R::R1, REC, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, mode::PROGRAM as i32, apply);
    asm.jump(connected);
    asm.bind(other);
    asm.jump_if_imm(R::R1, Cond::Eq, mode::AGENT_SILENT as i32, decide);
    asm.bind(connected);
    asm.load(Size::B4, R::R1, REC, flow::CONNECTED as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, 0, apply);
    asm.jump(out);
}

/// Emits the decision of the flow's program. For the last packet, whose payload it counts as sent already, it shows 0 bytes.
fn decision(asm: &mut Asm, k: &Kernel, maps: &PacketMaps, link_bytes: u32, labels: &Labels) {
    let Labels { decide, last, apply, out, .. } = *labels;
    let (run, fresh, follows) = (asm.label(), asm.label(), asm.label());
    asm.bind(last);
    asm.store_imm(Size::B4, REC, flow::ENDED as i16, 1);
    asm.load(Size::B8, R::R1, REC, flow::LAST_BYTES as i16);
    asm.store(Size::B8, REC, flow::BEFORE as i16, R::R1);
    asm.store_imm(Size::B4, REC, flow::PAYLOAD as i16, 0);
    asm.store_imm(Size::B4, REC, flow::FRESH as i16, 0);
    asm.load(Size::B8, GAP, REC, flow::LAST_NS as i16);
    asm.mov(R::R1, NOW);
    asm.alu(Alu::Sub, R::R1, GAP);
    asm.store(Size::B8, REC, flow::GAP_NS as i16, R::R1);
    asm.jump(run);

    asm.bind(decide);
    asm.store(Size::B8, REC, flow::BEFORE as i16, BEFORE);
    asm.alu(Alu::Sub, BYTES, BEFORE);
    asm.store(Size::B4, REC, flow::PAYLOAD as i16, BYTES);
    // No data went out before the first: the time since the handshake is no pause.
    asm.jump_if_imm(BEFORE, Cond::Ne, 0, follows);
    asm.mov_imm(GAP, 0);
    asm.bind(follows);
    asm.store(Size::B8, REC, flow::GAP_NS as i16, GAP);
    asm.mov_imm(R::R2, 1);
    k.get(asm, R::R1, TP, "packets_out");
    asm.jump_if_imm(R::R1, Cond::Eq, 0, fresh);
    asm.load(Size::B8, R::R1, PAGE, page::FLOWLET_NS as i16);
    asm.jump_if(GAP, Cond::Sgt, R::R1, fresh);
    asm.mov_imm(R::R2, 0);
    asm.bind(fresh);
    asm.store(Size::B4, REC, flow::FRESH as i16, R::R2);
    asm.bind(run);
    run_program(asm, maps, link_bytes);
    asm.load(Size::B4, R::R1, REC, flow::CONNECTED as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, 0, apply);
    asm.jump(out);
}

/// Emits a sample of the flow; [`PAGE`] is as before.
fn take_sample(asm: &mut Asm, k: &Kernel, maps: &PacketMaps) {
    measure(asm, k, maps, FlowPhase::GoesOn);
    asm.map_value(PAGE, maps.common.ctl, 0);
    asm.load(Size::B8, R::R1, PAGE, page::SAMPLE_NS as i16);
    asm.alu(Alu::Add, R::R1, NOW);
    asm.store(Size::B8, REC, flow::NEXT_SAMPLE_NS as i16, R::R1);
}

/// Emits the claim of what is staged, and the flow's program, from which nothing comes back; goes on where the flow has none.
fn run_program(asm: &mut Asm, maps: &PacketMaps, link_bytes: u32) {
    let (claimed, none, unclaimed, kept) = (asm.label(), asm.label(), asm.label(), asm.label());
    claim_change(asm, claimed);
    asm.bind(claimed);
    asm.load(Size::B4, R::R3, REC, rec::SLOT as i16);
    asm.jump_if_imm(R::R3, Cond::Eq, 0, none);
    asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::PROGRAM as i32);
    asm.load(Size::B4, R::R1, R::R10, STACK_KEY);
    asm.store(Size::B4, CTX, skb::CB, R::R1);
    asm.mov_imm(R::R1, link_bytes.into());
    asm.store(Size::B4, CTX, CB_LINK, R::R1);
    asm.mov(R::R1, CTX);
    asm.map(R::R2, maps.common.slots);
    asm.alu_imm(Alu::Sub, R::R3, 1);
    asm.call(Helper::TailCall);
    // Only a slot that was emptied falls through to here.
    asm.bind(none);
    asm.load(Size::B4, R::R1, REC, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, stage::APPLYING as i32, unclaimed);
    end_change(asm, REC);
    asm.bind(unclaimed);
    asm.load(Size::B4, R::R1, REC, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, mode::POLICY as i32, kept);
    asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::NO_PROGRAM as i32);
    asm.bind(kept);
}

/// Emits the claim of a staged change and the choice of the program that runs next, as the dispatcher of acknowledgements does.
fn claim_change(asm: &mut Asm, done: Label) {
    let (keep, start, set) = (asm.label(), asm.label(), asm.label());
    claim_program(asm, REC, keep, start, done);
    asm.jump(set);
    // A flow that never had a program keeps what was decided when it connected.
    asm.bind(start);
    asm.store_imm(Size::B4, REC, flow::CONNECTED as i16, 0);
    asm.bind(set);
    choose_program(asm, REC, keep, done);
}

//! Code that measures flows and their paths.

use super::header::TP;
use super::layout::{flow, path};
use super::maps::PacketMaps;
use super::record::{find_record, find_storage};
use crate::frame::REC;
use crate::kernel::{Kernel, sample};
use crate::layout::rec;
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, R, Size};
use ccplane_program::ir::MAX_PATHS;

/// A path that no flow has measured for longer than this has no round-trip time, microseconds.
pub const FRESH_US: i32 = 1_000_000;
/// The exponent of a new sample's weight in the moving averages, which is 2^-3.
const SMOOTHING: i32 = 3;
/// Least time between two measurements at acknowledgements, microseconds.
const ROUND_TRIP_US: i32 = 500;

/// Callbacks and flags of `BPF_PROG_TYPE_SOCK_OPS` (include/uapi/linux/bpf.h).
mod sock_ops {
    pub(crate) const ACTIVE_ESTABLISHED: i32 = 4;
    pub(crate) const PASSIVE_ESTABLISHED: i32 = 5;
    pub(crate) const RTT: i32 = 12;
    pub(crate) const RTT_FLAG: i32 = 1 << 3;
    /// Offsets in `struct bpf_sock_ops`.
    pub(crate) const OP: i16 = 0;
    pub(crate) const FLAGS: i16 = 84;
    pub(crate) const SK: i16 = 184;
}

/// Whether the flow goes on or ends with the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowPhase {
    GoesOn,
    Ends,
}

/// Emits `to` = what is known of the path of this number; `number` is lost.
fn path_at(asm: &mut Asm, maps: &PacketMaps, to: R, number: R) {
    asm.alu_imm(Alu::And, number, MAX_PATHS as i32 - 1);
    asm.alu_imm(Alu::Lsh, number, path::BYTES.trailing_zeros() as i32);
    asm.map_value(to, maps.paths, 0);
    asm.alu(Alu::Add, to, number);
}

/// Emits a sample of the flow, and what it tells of its path. The record is in [`REC`], the socket in [`TP`]; R0-R5 are
/// lost.
pub fn measure(asm: &mut Asm, k: &Kernel, maps: &PacketMaps, after: FlowPhase) {
    /// The register of the path.
    const PATH: R = R::R5;
    let done = asm.label();
    sample(asm, k, TP, REC);
    asm.load(Size::B4, R::R1, REC, flow::PATH as i16);
    path_at(asm, maps, PATH, R::R1);
    count_in_flight(asm, k, maps, after);
    smooth_rtt(asm, k);
    k.get(asm, R::R1, TP, "delivered");
    asm.load(Size::B4, R::R2, REC, flow::DELIVERED as i16);
    asm.mov(R::R0, R::R1);
    asm.alu(Alu::Sub, R::R1, R::R2);
    asm.zext32(R::R1);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, done);
    asm.store(Size::B4, REC, flow::DELIVERED as i16, R::R0);
    grown(asm, k, "delivered_ce", flow::MARKED);
    share(asm, path::MARKED);
    grown(asm, k, "lost", flow::LOST);
    asm.alu(Alu::Add, R::R1, R::R3);
    share(asm, path::LOST);
    asm.bind(done);
    asm.load(Size::B8, R::R1, REC, rec::SAMPLED_AT_US as i16);
    asm.store(Size::B8, PATH, path::SAMPLED_US as i16, R::R1);
}

/// Emits the flow's part of its path's bytes in flight; R0-R4 are lost.
fn count_in_flight(asm: &mut Asm, k: &Kernel, maps: &PacketMaps, after: FlowPhase) {
    let same = asm.label();
    match after {
        FlowPhase::Ends => asm.mov_imm(R::R1, 0),
        FlowPhase::GoesOn => {
            k.in_flight(asm, R::R1, TP, R::R2);
            k.get(asm, R::R2, TP, "mss_cache");
            asm.alu(Alu::Mul, R::R1, R::R2);
        }
    }
    asm.load(Size::B8, R::R2, REC, flow::IN_FLIGHT as i16);
    asm.load(Size::B4, R::R3, REC, flow::SAMPLED_PATH as i16);
    asm.load(Size::B4, R::R4, REC, flow::PATH as i16);
    asm.jump_if(R::R3, Cond::Eq, R::R4, same);
    asm.store(Size::B4, REC, flow::SAMPLED_PATH as i16, R::R4);
    path_at(asm, maps, R::R4, R::R3);
    asm.neg(R::R2);
    asm.fetch_add(R::R4, path::IN_FLIGHT as i16, R::R2);
    asm.mov_imm(R::R2, 0);
    asm.bind(same);
    asm.store(Size::B8, REC, flow::IN_FLIGHT as i16, R::R1);
    asm.alu(Alu::Sub, R::R1, R::R2);
    asm.fetch_add(R::R5, path::IN_FLIGHT as i16, R::R1);
}

/// Emits the path's smoothed round-trip time; R1-R4 are lost.
fn smooth_rtt(asm: &mut Asm, k: &Kernel) {
    let (first, done) = (asm.label(), asm.label());
    k.get(asm, R::R1, TP, "srtt_us");
    asm.alu_imm(Alu::Rsh, R::R1, 3);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, done);
    asm.load(Size::B8, R::R2, R::R5, path::RTT_US as i16);
    asm.jump_if_imm(R::R2, Cond::Eq, 0, first);
    asm.load(Size::B8, R::R3, R::R5, path::SAMPLED_US as i16);
    asm.alu_imm(Alu::Add, R::R3, FRESH_US);
    asm.load(Size::B8, R::R4, REC, rec::SAMPLED_AT_US as i16);
    asm.jump_if(R::R4, Cond::Gt, R::R3, first);
    asm.alu(Alu::Sub, R::R1, R::R2);
    asm.alu_imm(Alu::Arsh, R::R1, SMOOTHING);
    asm.alu(Alu::Add, R::R1, R::R2);
    asm.bind(first);
    asm.store(Size::B8, R::R5, path::RTT_US as i16, R::R1);
    asm.bind(done);
}

/// Emits R3 = what the socket's counter has grown by since the last sample; R2 and R4 are lost.
fn grown(asm: &mut Asm, k: &Kernel, counter: &str, last: u32) {
    k.get(asm, R::R3, TP, counter);
    asm.load(Size::B4, R::R2, REC, last as i16);
    asm.store(Size::B4, REC, last as i16, R::R3);
    asm.alu(Alu::Sub, R::R3, R::R2);
    asm.zext32(R::R3);
}

/// Emits the path's share at `offset`, of which R3 in R1 packets is a sample; R2 and R4 are lost.
fn share(asm: &mut Asm, offset: u32) {
    asm.mov(R::R4, R::R3);
    asm.alu_imm(Alu::Lsh, R::R4, 16);
    asm.alu(Alu::Div, R::R4, R::R1);
    asm.load(Size::B8, R::R2, R::R5, offset as i16);
    asm.alu(Alu::Sub, R::R4, R::R2);
    asm.alu_imm(Alu::Arsh, R::R4, SMOOTHING);
    asm.alu(Alu::Add, R::R4, R::R2);
    asm.store(Size::B8, R::R5, offset as i16, R::R4);
}

/// Assembles the program that sockets of the control group run when they connect, and on each round-trip time.
///
/// # Errors
/// A bug in this file.
pub fn on_round_trip(k: &Kernel, maps: &PacketMaps) -> Result<Vec<Insn>, AsmError> {
    /// The verdict of all programs of this type.
    const OK: i64 = 1;
    let mut asm = Asm::default();
    let (ask, out) = (asm.label(), asm.label());
    asm.mov(R::R6, R::R1);
    asm.load(Size::B4, R::R1, R::R6, sock_ops::OP);
    for connected in [sock_ops::ACTIVE_ESTABLISHED, sock_ops::PASSIVE_ESTABLISHED] {
        asm.jump_if_imm(R::R1, Cond::Eq, connected, ask);
    }
    asm.jump_if_imm(R::R1, Cond::Ne, sock_ops::RTT, out);
    asm.load(Size::B8, TP, R::R6, sock_ops::SK);
    asm.jump_if_imm(TP, Cond::Eq, 0, out);
    find_storage(&mut asm, maps, TP, out);
    find_record(&mut asm, maps, out);
    asm.mov(R::R1, TP);
    asm.call(Helper::SkcToTcpSock);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
    asm.mov(TP, R::R0);
    k.get(&mut asm, R::R1, TP, "tcp_mstamp");
    asm.load(Size::B8, R::R2, REC, rec::SAMPLED_AT_US as i16);
    asm.alu_imm(Alu::Add, R::R2, ROUND_TRIP_US);
    asm.jump_if(R::R1, Cond::Lt, R::R2, out);
    measure(&mut asm, k, maps, FlowPhase::GoesOn);
    asm.jump(out);
    asm.bind(ask);
    asm.mov(R::R1, R::R6);
    asm.load(Size::B4, R::R2, R::R6, sock_ops::FLAGS);
    asm.alu_imm(Alu::Or, R::R2, sock_ops::RTT_FLAG);
    asm.call(Helper::SockOpsCbFlagsSet);
    asm.bind(out);
    asm.mov_imm(R::R0, OK);
    asm.exit();
    asm.finish().map(|done| done.insns)
}

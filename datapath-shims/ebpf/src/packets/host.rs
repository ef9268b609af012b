//! The [`Host`] in which compiled programs decide about packets.

use super::header::{CTX, HeaderOffset, Output, exit_next, read_tcp_header, skb, stamp};
use super::layout::{flow, path};
use super::maps::PacketMaps;
use super::measure::FRESH_US;
use super::record::{look_up_record, write_output};
use crate::codegen::Host;
use crate::events::send_report;
use crate::frame::{REC, load_prim};
use crate::kernel::{Kernel, STACK_KEY};
use crate::layout::{mode, rec};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, R, Size};
use ccplane_program::ir::{PAST_SIZES, Prim, Program};

/// The register of the packet's socket, until the invocation begins and its flags take the register.
const SOCKET: R = R::R9;
/// The register of the flow's primitives.
const PRIMS: R = R::R8;
const NSEC_PER_USEC: i32 = 1000;

/// Runs a compiled program on a packet. R6 is the packet, R8 its primitives.
pub struct PacketHost<'a> {
    pub kernel: &'a Kernel,
    pub maps: PacketMaps,
    pub output: Output,
    /// Identifies the program in its reports.
    pub instance: u32,
    /// The number of paths.
    pub paths: usize,
    /// Whether the program asks for what takes the packet's sequence number.
    pub reads_header: bool,
}

/// Whether a program reads what takes the packet's header.
pub fn reads_header(program: &Program) -> bool {
    program.reads_prim(Prim::FlowBytesWaiting)
}

impl Host for PacketHost<'_> {
    fn enter(&self, asm: &mut Asm) {
        let k = self.kernel;
        let (none, found) = (asm.label(), asm.label());
        asm.mov(CTX, R::R1);
        asm.load(Size::B4, R::R1, CTX, skb::CB);
        asm.store(Size::B4, R::R10, STACK_KEY, R::R1);
        look_up_record(asm, &self.maps, none);
        asm.load(Size::B8, R::R1, CTX, skb::SK);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
        asm.mov(SOCKET, R::R1);
        k.as_tcp_sock(asm, SOCKET);
        asm.mov(PRIMS, REC);
        asm.alu_imm(Alu::Add, PRIMS, flow::PRIMS as i32);
        if self.reads_header {
            read_tcp_header(asm, none);
        }
        asm.jump(found);
        asm.bind(none);
        exit_next(asm);
        asm.bind(found);
    }

    fn load_prim(&self, asm: &mut Asm, prim: Prim) {
        let k = self.kernel;
        match prim {
            // TCP has divided the time of the packet's stamp already.
            Prim::Now => k.get(asm, R::R1, SOCKET, "tcp_mstamp"),
            Prim::PacketBytes => asm.load(Size::B4, R::R1, REC, flow::PAYLOAD as i16),
            Prim::FlowBytesSent => asm.load(Size::B8, R::R1, REC, flow::BEFORE as i16),
            Prim::FlowBytesWaiting => bytes_waiting(asm, k),
            Prim::FlowGapUs => load_us(asm, flow::GAP_NS),
            Prim::PathCount => asm.mov_imm(R::R1, self.paths.max(1) as i64),
            prim => load_known(asm, &self.maps, prim),
        }
    }

    fn load_mss(&self, asm: &mut Asm) {
        self.kernel.get(asm, R::R1, SOCKET, "mss_cache");
    }

    fn apply(&self, asm: &mut Asm) {
        asm.load(Size::B4, R::R1, REC, flow::DECISIONS as i16);
        asm.alu_imm(Alu::Add, R::R1, 1);
        asm.store(Size::B4, REC, flow::DECISIONS as i16, R::R1);
        enforce(asm, self.paths);
        write_output(asm, &self.maps, &self.output);
    }

    fn report(&self, asm: &mut Asm, report_len: usize, asks: bool) {
        send_report(asm, self.maps.common, (self.instance, Prim::Now), report_len, asks);
    }

    fn give_up(&self, asm: &mut Asm) {
        asm.store_imm(Size::B4, REC, rec::SLOT as i16, 0);
        asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::POLICY as i32);
        exit_next(asm);
    }

    fn leave(&self, asm: &mut Asm) {
        stamp(asm, &self.output, HeaderOffset::InControlBlock);
    }
}

/// Emits R1 = the bytes in the send buffer that neither went out before nor go out with this packet. R0 and R2 are lost.
fn bytes_waiting(asm: &mut Asm, k: &Kernel) {
    let (sent, new) = (asm.label(), asm.label());
    k.get(asm, R::R0, SOCKET, "snd_nxt");
    asm.load(Size::B4, R::R1, REC, flow::SEQUENCE as i16);
    asm.load(Size::B4, R::R2, REC, flow::PAYLOAD as i16);
    asm.alu(Alu::Add, R::R1, R::R2);
    // The later one of both, where sequence numbers wrap.
    asm.mov(R::R2, R::R1);
    asm.alu(Alu::Sub, R::R2, R::R0);
    asm.sext32(R::R2);
    asm.jump_if_imm(R::R2, Cond::Sge, 0, new);
    asm.mov(R::R1, R::R0);
    asm.bind(new);
    k.get(asm, R::R0, SOCKET, "write_seq");
    asm.alu(Alu::Sub, R::R0, R::R1);
    asm.mov(R::R1, R::R0);
    asm.sext32(R::R1);
    asm.jump_if_imm(R::R1, Cond::Sge, 0, sent);
    asm.mov_imm(R::R1, 0);
    asm.bind(sent);
}

/// Emits R1 = a time in the record, which has it in nanoseconds, in microseconds.
pub fn load_us(asm: &mut Asm, at: u32) {
    asm.load(Size::B8, R::R1, REC, at as i16);
    asm.alu_imm(Alu::Div, R::R1, NSEC_PER_USEC);
}

/// Emits R1 = a primitive that the record, or what is known of paths, holds. R2 and R3 are lost.
pub fn load_known(asm: &mut Asm, maps: &PacketMaps, prim: Prim) {
    let sizes = [Prim::PeerSize1, Prim::PeerSize2, Prim::PeerSize3, Prim::PeerSize4];
    const _: () = assert!(PAST_SIZES == 4);
    match prim {
        Prim::FlowAgeUs => since(asm, flow::STARTED_US),
        Prim::PeerGapUs => since(asm, flow::PEER_STARTED_US),
        Prim::FlowLocalPort => asm.load(Size::B4, R::R1, REC, rec::LOCAL_PORT as i16),
        Prim::FlowRemotePort => asm.load(Size::B4, R::R1, REC, rec::REMOTE_PORT as i16),
        Prim::FlowCgroup => asm.load(Size::B8, R::R1, REC, rec::CGROUP as i16),
        Prim::FlowHash => asm.load(Size::B4, R::R1, REC, flow::HASH as i16),
        Prim::PeerFlows => asm.load(Size::B8, R::R1, REC, flow::PEER_FLOWS as i16),
        prim => match sizes.iter().position(|size| *size == prim) {
            Some(n) => asm.load(Size::B8, R::R1, REC, (flow::PEER_SIZES + 8 * n as u32) as i16),
            None => of_path(asm, maps, prim),
        },
    }
}

/// Emits R1 = the time since a moment in the record, microseconds; 0 where there was none. R2 is lost.
fn since(asm: &mut Asm, moment: u32) {
    let (never, done) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R2, REC, moment as i16);
    asm.jump_if_imm(R::R2, Cond::Eq, 0, never);
    load_prim(asm, R::R1, Prim::Now);
    asm.alu(Alu::Sub, R::R1, R::R2);
    asm.jump_if_imm(R::R1, Cond::Sge, 0, done);
    asm.bind(never);
    asm.mov_imm(R::R1, 0);
    asm.bind(done);
}

/// Emits R1 = what is known of a path. R2 and R3 are lost.
fn of_path(asm: &mut Asm, maps: &PacketMaps, prim: Prim) {
    let fields = [path::RTT_US, path::MARKED, path::LOST, path::IN_FLIGHT];
    let n = (prim as usize).saturating_sub(Prim::Path0RttUs as usize);
    let base = path::BYTES * (n / fields.len()) as u32;
    let field = fields[n % fields.len()];
    let done = asm.label();
    asm.map_value(R::R2, maps.paths, base);
    if field == path::RTT_US {
        load_prim(asm, R::R3, Prim::Now);
        asm.alu_imm(Alu::Sub, R::R3, FRESH_US);
        asm.mov_imm(R::R1, 0);
        let fresh = asm.label();
        asm.load(Size::B8, R::R0, R::R2, path::SAMPLED_US as i16);
        asm.jump_if(R::R0, Cond::Sge, R::R3, fresh);
        asm.jump(done);
        asm.bind(fresh);
    }
    asm.load(Size::B8, R::R1, R::R2, field as i16);
    if field == path::IN_FLIGHT {
        asm.jump_if_imm(R::R1, Cond::Sge, 0, done);
        asm.mov_imm(R::R1, 0);
    }
    asm.bind(done);
}

/// Emits the decision into force as far as it reorders nothing: what is served later at once, what is served earlier, and another
/// path, where a flowlet begins. A path that is none of so many is no decision. R1-R3 are lost.
pub fn enforce(asm: &mut Asm, paths: usize) {
    let (fresh, kept, done) = (asm.label(), asm.label(), asm.label());
    asm.load(Size::B8, R::R1, REC, rec::PRIORITY as i16);
    asm.load(Size::B4, R::R3, REC, flow::FRESH as i16);
    asm.jump_if_imm(R::R3, Cond::Ne, 0, fresh);
    asm.load(Size::B4, R::R2, REC, flow::PRIORITY as i16);
    asm.jump_if(R::R1, Cond::Le, R::R2, done);
    asm.jump(kept);
    asm.bind(fresh);
    asm.load(Size::B8, R::R2, REC, rec::PATH as i16);
    asm.jump_if_imm(R::R2, Cond::Ge, paths.max(1) as i32, kept);
    asm.store(Size::B4, REC, flow::PATH as i16, R::R2);
    asm.bind(kept);
    asm.store(Size::B4, REC, flow::PRIORITY as i16, R::R1);
    asm.bind(done);
}

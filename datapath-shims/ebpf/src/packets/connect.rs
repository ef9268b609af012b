//! Programs of a flow's start: they run where a socket of the control group connects, before its first packet is routed.

use super::header::Output;
use super::host::{enforce, load_known, load_us};
use super::layout::{flow, page, storage};
use super::lifecycle::{Count, greet_peer, hash};
use super::maps::PacketMaps;
use super::record::{give_record, make_storage, take_record, write_output};
use crate::codegen::Host;
use crate::frame::REC;
use crate::kernel::{Kernel, STACK_S1};
use crate::layout::{mode, rec, stage};
use ccplane_contract::DatapathError;
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, R, Size};
use ccplane_program::ir::{Prim, Program};

/// The register of the context.
const CTX: R = R::R6;
/// The register of the flow's primitives.
const PRIMS: R = R::R8;
/// The register of the socket, until the invocation begins.
const SOCKET: R = R::R9;
/// The verdict that lets the socket connect.
const ALLOW: i64 = 1;
/// `SOL_SOCKET` with `SO_PRIORITY` and `SO_MARK`.
const SOL_SOCKET: i64 = libc::SOL_SOCKET as i64;
const SO_PRIORITY: i64 = libc::SO_PRIORITY as i64;
const SO_MARK: i64 = libc::SO_MARK as i64;
/// Offset of the mark in `struct bpf_sock`.
const SOCK_MARK: i16 = 16;
/// The instance of a program that no agent sets on flows.
pub const INSTANCE: u32 = 1;

/// Returns the program with these registers' values at its start, which is anew for each flow.
///
/// # Errors
/// `Refused`: none that a program which was verified meets.
pub fn with_fields(program: &Program, fields: &[(u8, i64)]) -> Result<Program, DatapathError> {
    let mut regs = program.regs().to_vec();
    for (reg, value) in fields {
        if let Some(decl) = regs.get_mut(usize::from(*reg)) {
            decl.init = *value;
        }
    }
    let (insts, clauses) = (program.insts().to_vec(), program.clauses().to_vec());
    Program::at(program.hook(), regs, insts, clauses, program.histories().to_vec())
        .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })
}

/// Offsets in `struct bpf_sock_addr` (include/uapi/linux/bpf.h).
mod addr {
    pub(crate) const IP4: i16 = 4;
    pub(crate) const IP6: i16 = 8;
    pub(crate) const PORT: i16 = 24;
    pub(crate) const PROTOCOL: i16 = 36;
    pub(crate) const SK: i16 = 64;
}

/// The address family of the sockets that a program runs for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

/// Runs a compiled program where a socket connects. R6 is the context, R8 the primitives.
pub struct ConnectHost<'a> {
    pub kernel: &'a Kernel,
    pub maps: PacketMaps,
    pub output: Output,
    pub family: Family,
    /// The number of paths.
    pub paths: usize,
}

impl ConnectHost<'_> {
    /// Emits the flow's identity as far as it is known before it has one; the socket is in [`SOCKET`].
    fn identify(&self, asm: &mut Asm) {
        let k = self.kernel;
        let (family, words) = match self.family {
            Family::V4 => (libc::AF_INET, vec![(addr::IP4, 0)]),
            Family::V6 => (libc::AF_INET6, (0..16).step_by(4).map(|n| (addr::IP6 + n, n)).collect()),
        };
        asm.store_imm(Size::B4, REC, rec::FAMILY as i16, family);
        for (from, to) in words {
            asm.load(Size::B4, R::R1, CTX, from);
            asm.store(Size::B4, REC, rec::REMOTE_ADDR as i16 + to, R::R1);
        }
        asm.load(Size::B4, R::R1, CTX, addr::PORT);
        asm.be16(R::R1);
        asm.store(Size::B4, REC, rec::REMOTE_PORT as i16, R::R1);
        k.get(asm, R::R1, SOCKET, "sport");
        asm.store(Size::B4, REC, rec::LOCAL_PORT as i16, R::R1);
        k.cgroup_id(asm, R::R1, SOCKET);
        asm.store(Size::B8, REC, rec::CGROUP as i16, R::R1);
    }

    /// Emits one option of the socket, whose value is in R1.
    fn set_option(asm: &mut Asm, option: i64) {
        asm.store(Size::B4, R::R10, STACK_S1, R::R1);
        asm.mov(R::R1, CTX);
        asm.mov_imm(R::R2, SOL_SOCKET);
        asm.mov_imm(R::R3, option);
        asm.mov(R::R4, R::R10);
        asm.alu_imm(Alu::Add, R::R4, i32::from(STACK_S1));
        asm.mov_imm(R::R5, 4);
        asm.call(Helper::SetSockOpt);
    }
}

impl Host for ConnectHost<'_> {
    fn enter(&self, asm: &mut Asm) {
        let (out, goes_on) = (asm.label(), asm.label());
        asm.mov(CTX, R::R1);
        asm.load(Size::B4, R::R1, CTX, addr::PROTOCOL);
        asm.jump_if_imm(R::R1, Cond::Ne, libc::IPPROTO_TCP, out);
        asm.call(Helper::KtimeGetNs);
        asm.mov(PRIMS, R::R0);
        asm.map_value(R::R2, self.maps.common.ctl, 0);
        asm.load(Size::B8, R::R1, R::R2, page::DEADLINE_NS as i16);
        asm.jump_if(PRIMS, Cond::Gt, R::R1, out);
        asm.load(Size::B8, R::R1, CTX, addr::SK);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
        asm.call(Helper::SkcToTcpSock);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
        asm.mov(SOCKET, R::R0);
        // The record is the flow's only while it connects: what it is decided stays with the socket.
        take_record(asm, &self.maps, out);
        asm.store(Size::B8, REC, flow::LAST_NS as i16, PRIMS);
        self.identify(asm);
        hash(asm);
        greet_peer(asm, &self.maps, Count::No);
        asm.store_imm(Size::B4, REC, rec::STAGE_STATE as i16, stage::APPLYING as i32);
        asm.store_imm(Size::B4, REC, rec::STAGE_SLOT as i16, 1);
        asm.store_imm(Size::B4, REC, rec::STAGE_INSTANCE as i16, INSTANCE as i32);
        asm.mov(PRIMS, REC);
        asm.alu_imm(Alu::Add, PRIMS, flow::PRIMS as i32);
        asm.jump(goes_on);
        asm.bind(out);
        asm.mov_imm(R::R0, ALLOW);
        asm.exit();
        asm.bind(goes_on);
    }

    fn load_prim(&self, asm: &mut Asm, prim: Prim) {
        match prim {
            Prim::Now => load_us(asm, flow::LAST_NS),
            Prim::PathCount => asm.mov_imm(R::R1, self.paths.max(1) as i64),
            prim => load_known(asm, &self.maps, prim),
        }
    }

    fn load_mss(&self, asm: &mut Asm) {
        asm.mov_imm(R::R1, 0);
    }

    fn apply(&self, asm: &mut Asm) {
        asm.store_imm(Size::B4, REC, flow::FRESH as i16, 1);
        enforce(asm, self.paths);
        write_output(asm, &self.maps, &self.output);
    }

    /// Does nothing: programs of the start that report are not installed, since their flow has no name yet.
    fn report(&self, _: &mut Asm, _: usize, _: bool) {}

    fn give_up(&self, asm: &mut Asm) {
        asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::POLICY as i32);
    }

    fn leave(&self, asm: &mut Asm) {
        let out = asm.label();
        asm.load(Size::B4, R::R1, REC, rec::MODE as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, mode::POLICY as i32, out);
        asm.load(Size::B8, R::R1, CTX, addr::SK);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
        asm.mov(PRIMS, R::R1);
        make_storage(asm, &self.maps, PRIMS, out);
        asm.load(Size::B4, R::R1, REC, rec::PATH as i16);
        asm.alu_imm(Alu::Lsh, R::R1, 8);
        asm.load(Size::B4, R::R2, REC, rec::PRIORITY as i16);
        asm.alu(Alu::Or, R::R1, R::R2);
        asm.alu_imm(Alu::Or, R::R1, storage::DECIDED);
        asm.store(Size::B4, R::R0, storage::CONNECT as i16, R::R1);
        asm.load(Size::B4, R::R1, REC, flow::SKB_PRIORITY as i16);
        ConnectHost::set_option(asm, SO_PRIORITY);
        if self.output.mark_mask != 0 {
            asm.load(Size::B4, R::R1, PRIMS, SOCK_MARK);
            asm.mov_imm(R::R2, i64::from(!self.output.mark_mask));
            asm.alu(Alu::And, R::R1, R::R2);
            asm.load(Size::B4, R::R2, REC, flow::MARK as i16);
            asm.alu(Alu::Or, R::R1, R::R2);
            ConnectHost::set_option(asm, SO_MARK);
        }
        asm.bind(out);
        give_record(asm, &self.maps);
        asm.mov_imm(R::R0, ALLOW);
        asm.exit();
    }
}

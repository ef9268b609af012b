//! The tracing programs that follow flows, as BPF instructions.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::btf::{Btf, BtfError, Field};
use crate::error::EbpfError;
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};

use super::layout::{COMM_BYTES, ctl, event, flow};
use super::{RecordOptions, Scope};

/// The prefix of the programs' names.
pub const PREFIX: &str = "ccplane_rec_";
/// Deepest cgroup that can be named; the kernel allows 2^31.
pub const MAX_LEVEL: u32 = 1024;

/// Values of the kernel's `enum tcp_state` (include/net/tcp_states.h).
const TCP_ESTABLISHED: i32 = 1;
const TCP_SYN_SENT: i32 = 2;
const TCP_SYN_RECV: i32 = 3;
const TCP_CLOSE: i32 = 7;
/// The bit of `sock.sk_flags` that a received FIN sets (`SOCK_DONE`).
const SOCK_DONE_BIT: i32 = 1;
/// Flag of an update: an element of the same key stays.
const BPF_NOEXIST: i64 = 1;
const EEXIST: i32 = 17;
const NS_PER_US: u64 = 1_000;

/// The place on the stack of the map's key, which is the socket.
const KEY: i16 = -8;
/// The place of what a read of kernel memory gives.
const READ: i16 = -16;
/// The place of the new flow.
const NEW: i16 = -24 - flow::BYTES as i16;

/// Descriptors of the recorder's maps.
#[derive(Clone, Copy)]
pub struct RecordMaps {
    flows: i32,
    ctl: i32,
    namespaces: i32,
    ring: i32,
}

impl RecordMaps {
    /// Names the maps for programs; the descriptors must stay open until those are loaded.
    pub fn new(flows: &OwnedFd, ctl: &OwnedFd, namespaces: &OwnedFd, ring: &OwnedFd) -> RecordMaps {
        let [flows, ctl, namespaces, ring] = [flows, ctl, namespaces, ring].map(AsRawFd::as_raw_fd);
        RecordMaps { flows, ctl, namespaces, ring }
    }
}

/// A program and the tracepoint that it attaches to.
pub struct Program {
    pub name: &'static str,
    /// BTF id of the tracepoint's type.
    pub attach_to: u32,
    pub insns: Vec<Insn>,
}

/// Offsets of the running kernel.
pub struct Offsets {
    net: i16,
    net_inum: i16,
    cgroup: i16,
    cgroup_level: i16,
    cgroup_ancestors: i16,
    cgroup_kn: i16,
    kn_id: i16,
    family: i16,
    remote_port: i16,
    local_port: i16,
    remote: i16,
    local: i16,
    /// The IPv6 addresses, remote and local, where the kernel has them.
    v6: Option<(i16, i16)>,
    sk_flags: i16,
    bytes_received: i16,
    /// Writers that wait for room in the send buffer.
    write_pending: i16,
}

impl Offsets {
    /// Finds the offsets in the kernel's BTF.
    ///
    /// # Errors
    /// The first field that this kernel lacks.
    pub fn new(btf: &Btf) -> Result<Offsets, BtfError> {
        let off = |owner, path: &str| btf.field(owner, path).map(|f: Field| f.offset as i16);
        let sock = |path: &str| off("tcp_sock", &format!("inet_conn.icsk_inet.{path}"));
        let v6 = || {
            Ok::<_, BtfError>((
                sock("sk.__sk_common.skc_v6_daddr")?,
                sock("sk.__sk_common.skc_v6_rcv_saddr")?,
            ))
        };
        Ok(Offsets {
            net: sock("sk.__sk_common.skc_net")?,
            net_inum: off("net", "ns.inum")?,
            cgroup: sock("sk.sk_cgrp_data.cgroup")?,
            cgroup_level: off("cgroup", "level")?,
            cgroup_ancestors: off("cgroup", "ancestors")?,
            cgroup_kn: off("cgroup", "kn")?,
            kn_id: off("kernfs_node", "id")?,
            family: sock("sk.__sk_common.skc_family")?,
            remote_port: sock("sk.__sk_common.skc_dport")?,
            // `skc_num` is 0 by the time that a socket closes.
            local_port: sock("inet_sport")?,
            remote: sock("sk.__sk_common.skc_daddr")?,
            local: sock("sk.__sk_common.skc_rcv_saddr")?,
            v6: v6().ok(),
            sk_flags: sock("sk.__sk_common.skc_flags")?,
            bytes_received: off("tcp_sock", "bytes_received")?,
            write_pending: sock("sk.sk_write_pending")?,
        })
    }
}

/// Assembles all programs.
///
/// # Errors
/// A tracepoint that this kernel lacks.
pub fn all(
    btf: &Btf,
    offsets: &Offsets,
    maps: RecordMaps,
    options: &RecordOptions,
) -> Result<Vec<Program>, EbpfError> {
    let e = Emitter { k: offsets, maps, options };
    let at = |tracepoint| btf.tracepoint_id(tracepoint);
    Ok(vec![
        Program { name: "ccplane_rec_st", attach_to: at("inet_sock_set_state")?, insns: e.state()? },
        Program { name: "ccplane_rec_rd", attach_to: at("tcp_rcv_space_adjust")?, insns: e.read()? },
        Program { name: "ccplane_rec_wr", attach_to: at("sock_send_length")?, insns: e.wrote()? },
        Program { name: "ccplane_rec_wt", attach_to: at("tcp_probe")?, insns: e.waits()? },
    ])
}

/// Writes the programs; R6 is the socket and R7 the flow in all of them.
struct Emitter<'a> {
    k: &'a Offsets,
    maps: RecordMaps,
    options: &'a RecordOptions,
}

impl Emitter<'_> {
    /// The flow of R6 to R7, or on to `none`.
    fn find(&self, asm: &mut Asm, none: Label) {
        asm.store(Size::B8, R::R10, KEY, R::R6);
        asm.map(R::R1, self.maps.flows);
        stack_address(asm, R::R2, KEY);
        asm.call(Helper::MapLookupElem);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, none);
        asm.mov(R::R7, R::R0);
    }

    /// Adds one to a count.
    fn count(&self, asm: &mut Asm, at: u32) {
        asm.map_value(R::R1, self.maps.ctl, at);
        asm.mov_imm(R::R2, 1);
        asm.fetch_add(R::R1, 0, R::R2);
    }

    /// Follows a change of state of a socket: a flow starts or ends.
    fn state(&self) -> Result<Vec<Insn>, AsmError> {
        let mut asm = Asm::default();
        let (out, connects, accepted, closes) = (asm.label(), asm.label(), asm.label(), asm.label());
        asm.load(Size::B8, R::R6, R::R1, 0);
        asm.load(Size::B4, R::R8, R::R1, 8);
        asm.load(Size::B4, R::R9, R::R1, 16);
        asm.jump_if_imm(R::R9, Cond::Eq, TCP_CLOSE, closes);
        asm.jump_if_imm(R::R9, Cond::Eq, TCP_SYN_SENT, connects);
        asm.jump_if_imm(R::R9, Cond::Ne, TCP_ESTABLISHED, out);
        asm.jump_if_imm(R::R8, Cond::Eq, TCP_SYN_RECV, accepted);
        asm.jump(out);

        let start = asm.label();
        asm.bind(connects);
        asm.mov_imm(R::R8, flow::CONNECTED.into());
        asm.mov_imm(R::R9, 0);
        asm.jump(start);
        asm.bind(accepted);
        asm.mov_imm(R::R8, 0);
        asm.mov_imm(R::R9, BPF_NOEXIST);
        asm.bind(start);
        self.begin(&mut asm, out);
        asm.jump(out);

        asm.bind(closes);
        self.find(&mut asm, out);
        self.end(&mut asm);
        asm.finish_at(out)
    }

    /// Starts a flow of flags R8, by an update of flags R9, if the socket R6 is in scope.
    fn begin(&self, asm: &mut Asm, out: Label) {
        self.in_scope(asm, out);
        let kept = asm.label();
        for word in (0..flow::BYTES as i16).step_by(8) {
            asm.store_imm(Size::B8, R::R10, NEW + word, 0);
        }
        asm.store(Size::B8, R::R10, NEW + flow::FLAGS, R::R8);
        asm.call(Helper::KtimeGetNs);
        asm.store(Size::B8, R::R10, NEW + flow::START_NS, R::R0);
        asm.map_value(R::R1, self.maps.ctl, ctl::STARTED);
        asm.mov_imm(R::R2, 1);
        asm.fetch_add(R::R1, 0, R::R2);
        asm.store(Size::B8, R::R10, NEW + flow::ID, R::R2);
        asm.store(Size::B8, R::R10, KEY, R::R6);
        asm.map(R::R1, self.maps.flows);
        stack_address(asm, R::R2, KEY);
        stack_address(asm, R::R3, NEW);
        asm.mov(R::R4, R::R9);
        asm.call(Helper::MapUpdateElem);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
        asm.sext32(R::R0);
        asm.jump_if_imm(R::R0, Cond::Eq, -EEXIST, kept);
        self.count(asm, ctl::MISSED_FLOWS);
        // One that was not followed, or was already, did not start.
        asm.bind(kept);
        asm.map_value(R::R1, self.maps.ctl, ctl::STARTED);
        asm.mov_imm(R::R2, -1);
        asm.fetch_add(R::R1, 0, R::R2);
    }

    /// Goes on to `out` unless the socket R6 is a TCP one in scope.
    fn in_scope(&self, asm: &mut Asm, out: Label) {
        asm.mov(R::R1, R::R6);
        asm.call(Helper::SkcToTcpSock);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
        match &self.options.scope {
            Scope::Namespaces(_) => {
                asm.load(Size::B8, R::R1, R::R0, self.k.net);
                asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
                asm.load(Size::B4, R::R1, R::R1, self.k.net_inum);
                asm.store(Size::B4, R::R10, READ, R::R1);
                asm.map(R::R1, self.maps.namespaces);
                stack_address(asm, R::R2, READ);
                asm.call(Helper::MapLookupElem);
                asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
            }
            Scope::Cgroup { id, level } => {
                asm.load(Size::B8, R::R1, R::R0, self.k.cgroup);
                asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
                asm.load(Size::B4, R::R2, R::R1, self.k.cgroup_level);
                asm.jump_if_imm(R::R2, Cond::Lt, *level as i32, out);
                // The ancestors are an array without end, which loads cannot index.
                let ancestor = i32::from(self.k.cgroup_ancestors) + 8 * *level as i32;
                for offset in [ancestor, self.k.cgroup_kn.into(), self.k.kn_id.into()] {
                    asm.mov(R::R3, R::R1);
                    asm.alu_imm(Alu::Add, R::R3, offset);
                    stack_address(asm, R::R1, READ);
                    asm.mov_imm(R::R2, 8);
                    asm.call(Helper::ProbeReadKernel);
                    asm.jump_if_imm(R::R0, Cond::Ne, 0, out);
                    asm.load(Size::B8, R::R1, R::R10, READ);
                }
                asm.mov_imm(R::R2, *id as i64);
                asm.jump_if(R::R1, Cond::Ne, R::R2, out);
            }
        }
    }

    /// Reports the flow R7 of the socket R6, which has closed, and forgets it.
    fn end(&self, asm: &mut Asm) {
        let (out, forget, lost, v6, addressed) =
            (asm.label(), asm.label(), asm.label(), asm.label(), asm.label());
        self.report_burst(asm);
        asm.mov(R::R1, R::R6);
        asm.call(Helper::SkcToTcpSock);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, forget);
        asm.mov(R::R9, R::R0);
        asm.call(Helper::KtimeGetNs);
        asm.mov(R::R8, R::R0);
        self.reserve(asm, event::END, event::END_LEN, lost);
        asm.store(Size::B8, R::R0, event::END_NS as i16, R::R8);
        let copied = [
            (flow::FLAGS, event::FLAGS, Size::B4),
            (flow::START_NS, event::START_NS, Size::B8),
            (flow::SENT, event::BYTES, Size::B8),
            (flow::COMM, event::COMM, Size::B8),
            (flow::COMM + 8, event::COMM + 8, Size::B8),
        ];
        for (from, to, size) in copied {
            asm.load(size, R::R1, R::R7, from);
            asm.store(size, R::R0, to as i16, R::R1);
        }
        // The kernel counts the peer's FIN as a byte.
        asm.load(Size::B8, R::R1, R::R9, self.k.bytes_received);
        asm.load(Size::B8, R::R2, R::R9, self.k.sk_flags);
        asm.alu_imm(Alu::Rsh, R::R2, SOCK_DONE_BIT);
        asm.alu_imm(Alu::And, R::R2, 1);
        asm.alu(Alu::Sub, R::R1, R::R2);
        asm.store(Size::B8, R::R0, event::RECEIVED as i16, R::R1);
        for (from, to) in [(self.k.local_port, event::LOCAL_PORT), (self.k.remote_port, event::REMOTE_PORT)] {
            asm.load(Size::B2, R::R1, R::R9, from);
            asm.be16(R::R1);
            asm.store(Size::B4, R::R0, to as i16, R::R1);
        }
        asm.load(Size::B2, R::R1, R::R9, self.k.family);
        asm.store(Size::B4, R::R0, event::FAMILY as i16, R::R1);
        let places = [(self.k.local, event::LOCAL), (self.k.remote, event::REMOTE)];
        if self.k.v6.is_some() {
            asm.jump_if_imm(R::R1, Cond::Eq, super::AF_INET6 as i32, v6);
        }
        for (from, to) in places {
            asm.load(Size::B4, R::R1, R::R9, from);
            asm.store(Size::B8, R::R0, to as i16, R::R1);
            asm.store_imm(Size::B8, R::R0, to as i16 + 8, 0);
        }
        asm.jump(addressed);
        asm.bind(v6);
        if let Some((remote, local)) = self.k.v6 {
            for (from, to) in [(local, event::LOCAL), (remote, event::REMOTE)] {
                for half in [0, 8] {
                    asm.load(Size::B8, R::R1, R::R9, from + half);
                    asm.store(Size::B8, R::R0, to as i16 + half, R::R1);
                }
            }
        }
        asm.bind(addressed);
        submit(asm);
        asm.jump(forget);
        asm.bind(lost);
        self.count(asm, ctl::LOST_EVENTS);
        asm.bind(forget);
        asm.store(Size::B8, R::R10, KEY, R::R6);
        asm.map(R::R1, self.maps.flows);
        stack_address(asm, R::R2, KEY);
        asm.call(Helper::MapDeleteElem);
        asm.bind(out);
    }

    /// A record of the ring in R0, with its kind and the number of the flow R7; or on to `full`.
    fn reserve(&self, asm: &mut Asm, kind: u32, bytes: u32, full: Label) {
        asm.map(R::R1, self.maps.ring);
        asm.mov_imm(R::R2, bytes.into());
        asm.mov_imm(R::R3, 0);
        asm.call(Helper::RingbufReserve);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, full);
        asm.store_imm(Size::B4, R::R0, event::KIND as i16, kind as i32);
        asm.load(Size::B8, R::R1, R::R7, flow::ID);
        asm.store(Size::B8, R::R0, event::FLOW as i16, R::R1);
    }

    /// Reports the burst of the flow R7, if it has one, and starts none.
    fn report_burst(&self, asm: &mut Asm) {
        let (out, lost) = (asm.label(), asm.label());
        asm.load(Size::B8, R::R1, R::R7, flow::BURST_BYTES);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
        self.reserve(asm, event::BURST, event::BURST_LEN, lost);
        asm.store_imm(Size::B4, R::R0, event::FLAGS as i16, 0);
        for (from, to) in [(flow::BURST_START_NS, event::START_NS), (flow::BURST_BYTES, event::BYTES)] {
            asm.load(Size::B8, R::R1, R::R7, from);
            asm.store(Size::B8, R::R0, to as i16, R::R1);
        }
        asm.store_imm(Size::B8, R::R7, flow::BURST_BYTES, 0);
        submit(asm);
        asm.jump(out);
        asm.bind(lost);
        asm.store_imm(Size::B8, R::R7, flow::BURST_BYTES, 0);
        self.count(asm, ctl::LOST_EVENTS);
        asm.bind(out);
    }

    /// Notes the process that reads, for flows that are not named yet.
    fn read(&self) -> Result<Vec<Insn>, AsmError> {
        let mut asm = Asm::default();
        let out = asm.label();
        asm.load(Size::B8, R::R6, R::R1, 0);
        self.find(&mut asm, out);
        name_flow(&mut asm);
        asm.finish_at(out)
    }

    /// A write has returned: its bytes count.
    fn wrote(&self) -> Result<Vec<Insn>, AsmError> {
        let mut asm = Asm::default();
        let out = asm.label();
        asm.load(Size::B8, R::R6, R::R1, 0);
        asm.load(Size::B8, R::R9, R::R1, 8);
        asm.sext32(R::R9);
        asm.jump_if_imm(R::R9, Cond::Sle, 0, out);
        self.find(&mut asm, out);
        name_flow(&mut asm);
        self.touch(&mut asm);
        for at in [flow::SENT, flow::BURST_BYTES] {
            asm.mov(R::R1, R::R9);
            asm.fetch_add(R::R7, at, R::R1);
        }
        asm.finish_at(out)
    }

    /// A packet has come while a write waits for room: the flow is not silent, though no write returns.
    fn waits(&self) -> Result<Vec<Insn>, AsmError> {
        let mut asm = Asm::default();
        let out = asm.label();
        asm.load(Size::B8, R::R6, R::R1, 0);
        asm.load(Size::B4, R::R1, R::R6, self.k.write_pending);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
        self.find(&mut asm, out);
        self.touch(&mut asm);
        asm.finish_at(out)
    }

    /// The flow R7 is active now: a burst ends if it was silent for long before, and one starts if there is none. R8 is lost.
    fn touch(&self, asm: &mut Asm) {
        let (goes_on, begun) = (asm.label(), asm.label());
        asm.call(Helper::KtimeGetNs);
        asm.mov(R::R8, R::R0);
        asm.load(Size::B8, R::R1, R::R7, flow::LAST_NS);
        asm.alu(Alu::Sub, R::R0, R::R1);
        asm.mov_imm(R::R1, (self.options.burst_gap_us * NS_PER_US) as i64);
        // Another processor may have been here since the clock was read.
        asm.jump_if(R::R0, Cond::Sle, R::R1, goes_on);
        self.report_burst(asm);
        asm.store_imm(Size::B8, R::R7, flow::BURST_START_NS, 0);
        asm.bind(goes_on);
        asm.load(Size::B8, R::R1, R::R7, flow::BURST_START_NS);
        asm.jump_if_imm(R::R1, Cond::Ne, 0, begun);
        asm.store(Size::B8, R::R7, flow::BURST_START_NS, R::R8);
        asm.bind(begun);
        asm.store(Size::B8, R::R7, flow::LAST_NS, R::R8);
    }
}

/// Gives the flow R7 the current process's name, unless it has one.
fn name_flow(asm: &mut Asm) {
    let named = asm.label();
    asm.load(Size::B4, R::R1, R::R7, flow::FLAGS);
    asm.alu_imm(Alu::And, R::R1, flow::NAMED);
    asm.jump_if_imm(R::R1, Cond::Ne, 0, named);
    asm.mov(R::R1, R::R7);
    asm.alu_imm(Alu::Add, R::R1, flow::COMM.into());
    asm.mov_imm(R::R2, COMM_BYTES as i64);
    asm.call(Helper::GetCurrentComm);
    asm.load(Size::B4, R::R1, R::R7, flow::FLAGS);
    asm.alu_imm(Alu::Or, R::R1, flow::NAMED);
    asm.store(Size::B4, R::R7, flow::FLAGS, R::R1);
    asm.bind(named);
}

fn submit(asm: &mut Asm) {
    asm.mov(R::R1, R::R0);
    asm.mov_imm(R::R2, 0);
    asm.call(Helper::RingbufSubmit);
}

fn stack_address(asm: &mut Asm, to: R, at: i16) {
    asm.mov(to, R::R10);
    asm.alu_imm(Alu::Add, to, at.into());
}

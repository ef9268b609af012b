//! The kernel side: the struct_ops programs that steer TCP flows, and the [`Host`] in which compiled programs
//! run on them.
//!
//! `cong_control` is a dispatcher: it samples statistics, looks after the heartbeat and tail-calls the flow's
//! program. Where there is none, or the agent is silent, it runs the kernel's own Reno on the spot.

use crate::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, Label, R, Size};
use crate::btf::{Btf, BtfError, Field};
use crate::codegen::{Host, REC, STACK_HOST, no_sample_is_infinity, prim_slot};
use crate::layout::{FLAG_TIMEOUT, INDEX_BITS, STAGE_RELEASE, ctl, event, mode, rec, stage};
use ccplane_program::ir::Prim;

/// The kernel's `TCP_CA_CWR`, `TCP_CA_Recovery` and `TCP_CA_Loss` (include/uapi/linux/tcp.h).
const TCP_CA_CWR: i32 = 2;
const TCP_CA_RECOVERY: i32 = 3;
const TCP_CA_LOSS: i32 = 4;
/// `SK_PACING_NEEDED` (include/net/sock.h): the stack paces by itself, without fq.
const SK_PACING_NEEDED: i32 = 1;
/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`.
const RB_NO_WAKEUP: i64 = 1;
const RB_FORCE_WAKEUP: i64 = 2;
const USEC_PER_SEC: i64 = 1_000_000;
/// Smallest window applied, packets.
const MIN_CWND_PKTS: i64 = 1;
/// Scratch slots of the host.
const STACK_KEY: i16 = STACK_HOST;
const STACK_S1: i16 = STACK_HOST - 8;

/// Where the running kernel keeps what the programs read and write.
pub struct Kernel {
    fields: std::collections::HashMap<&'static str, Field>,
    rtt_min: i16,
    cgroup: Option<(i16, i16, i16)>,
    icsk_ca_ops: Field,
    ca_name: Field,
    /// Offset of `rate_sample` in `cong_control`'s arguments.
    rs_arg: i16,
    /// `struct tcp_congestion_ops`.
    pub ops_type: u32,
    /// Its member `cong_control`.
    pub cong_control: u32,
    reno_cong_avoid: u32,
    reno_ssthresh: u32,
    reno_undo_cwnd: u32,
    iter_func: u32,
}

/// Fields by short name: where they are, and in what.
const SOCK_FIELDS: &[(&str, &str)] = &[
    ("ca_priv", "inet_conn.icsk_ca_priv"),
    ("ca_state", "inet_conn.icsk_ca_state"),
    ("pacing_rate", "inet_conn.icsk_inet.sk.sk_pacing_rate"),
    ("max_pacing_rate", "inet_conn.icsk_inet.sk.sk_max_pacing_rate"),
    ("pacing_status", "inet_conn.icsk_inet.sk.sk_pacing_status"),
    ("family", "inet_conn.icsk_inet.sk.__sk_common.skc_family"),
    ("daddr", "inet_conn.icsk_inet.sk.__sk_common.skc_daddr"),
    ("saddr", "inet_conn.icsk_inet.sk.__sk_common.skc_rcv_saddr"),
    ("dport", "inet_conn.icsk_inet.sk.__sk_common.skc_dport"),
    ("sport", "inet_conn.icsk_inet.sk.__sk_common.skc_num"),
    ("snd_cwnd", "snd_cwnd"),
    ("snd_cwnd_clamp", "snd_cwnd_clamp"),
    ("snd_ssthresh", "snd_ssthresh"),
    ("mss_cache", "mss_cache"),
    ("srtt_us", "srtt_us"),
    ("packets_out", "packets_out"),
    ("sacked_out", "sacked_out"),
    ("lost_out", "lost_out"),
    ("retrans_out", "retrans_out"),
    ("bytes_acked", "bytes_acked"),
    ("delivered", "delivered"),
    ("delivered_ce", "delivered_ce"),
    ("lost", "lost"),
    ("tcp_mstamp", "tcp_mstamp"),
    ("write_seq", "write_seq"),
    ("snd_una", "snd_una"),
];
/// Fields that a kernel without IPv6 lacks.
const SOCK_FIELDS_V6: &[(&str, &str)] = &[
    ("daddr6", "inet_conn.icsk_inet.sk.__sk_common.skc_v6_daddr"),
    ("saddr6", "inet_conn.icsk_inet.sk.__sk_common.skc_v6_rcv_saddr"),
];
const SAMPLE_FIELDS: &[(&str, &str)] = &[
    ("rs.rtt_us", "rtt_us"),
    ("rs.losses", "losses"),
    ("rs.delivered", "delivered"),
    ("rs.interval_us", "interval_us"),
    ("rs.snd_interval_us", "snd_interval_us"),
    ("rs.acked_sacked", "acked_sacked"),
];

/// The struct_ops members that we fill, and the function of the kernel whose BTF id an iterator needs.
pub const OPS: [&str; 6] = ["init", "release", "ssthresh", "undo_cwnd", "set_state", "cong_control"];
const OPS_STRUCT: &str = "tcp_congestion_ops";

impl Kernel {
    /// Finds everything in the kernel's BTF.
    ///
    /// # Errors
    /// The first thing that this kernel lacks.
    pub fn new(btf: &Btf) -> Result<Kernel, BtfError> {
        let mut fields = std::collections::HashMap::new();
        for (name, path) in SOCK_FIELDS {
            fields.insert(*name, btf.field("tcp_sock", path)?);
        }
        for (name, path) in SOCK_FIELDS_V6 {
            if let Ok(f) = btf.field("tcp_sock", path) {
                fields.insert(*name, f);
            }
        }
        for (name, path) in SAMPLE_FIELDS {
            fields.insert(*name, btf.field("rate_sample", path)?);
        }
        let off = |owner, path| btf.field(owner, path).map(|f| f.offset as i16);
        let cgroup = (|| {
            Ok::<_, BtfError>((
                off("tcp_sock", "inet_conn.icsk_inet.sk.sk_cgrp_data.cgroup")?,
                off("cgroup", "kn")?,
                off("kernfs_node", "id")?,
            ))
        })();
        let (cong_control, args) = btf.func_member(OPS_STRUCT, "cong_control")?;
        Ok(Kernel {
            fields,
            rtt_min: off("tcp_sock", "rtt_min")? + off("minmax_sample", "v")?,
            cgroup: cgroup.ok(),
            icsk_ca_ops: btf.field("tcp_sock", "inet_conn.icsk_ca_ops")?,
            ca_name: btf.field(OPS_STRUCT, "name")?,
            rs_arg: 8 * (args as i16 - 1),
            ops_type: btf.struct_id(OPS_STRUCT)?,
            cong_control,
            reno_cong_avoid: btf.func_id("tcp_reno_cong_avoid")?,
            reno_ssthresh: btf.func_id("tcp_reno_ssthresh")?,
            reno_undo_cwnd: btf.func_id("tcp_reno_undo_cwnd")?,
            iter_func: btf.func_id("bpf_iter_tcp")?,
        })
    }

    /// The BTF id that the adopting iterator attaches to.
    pub fn iter_func(&self) -> u32 {
        self.iter_func
    }

    fn off(&self, name: &str) -> i16 {
        self.fields.get(name).map_or(0, |f| f.offset as i16)
    }

    /// `to = base->name`, zero-extended; a bit field is shifted down.
    fn get(&self, asm: &mut Asm, to: R, base: R, name: &str) {
        let Some(f) = self.fields.get(name) else { return asm.mov_imm(to, 0) };
        asm.load(Size::of(f.bytes).unwrap_or(Size::B8), to, base, f.offset as i16);
        if let Some((shift, width)) = f.bits {
            if shift != 0 {
                asm.alu_imm(Alu::Rsh, to, shift as i32);
            }
            asm.alu_imm(Alu::And, to, (1 << width) - 1);
        }
    }

    fn set(&self, asm: &mut Asm, base: R, name: &str, from: R) {
        let Some(f) = self.fields.get(name) else { return };
        asm.store(Size::of(f.bytes).unwrap_or(Size::B8), base, f.offset as i16, from);
    }

    /// `to = packets in flight`; `scratch` is lost.
    fn in_flight(&self, asm: &mut Asm, to: R, sk: R, scratch: R) {
        self.get(asm, to, sk, "packets_out");
        for (name, op) in [("sacked_out", Alu::Sub), ("lost_out", Alu::Sub), ("retrans_out", Alu::Add)] {
            self.get(asm, scratch, sk, name);
            asm.alu(op, to, scratch);
        }
    }

    /// Without this, a flow of a `cong_control` keeps the pacing rate that it started with, and segmentation
    /// offload reads it: the formula of `tcp_update_pacing_rate`, at its slow-start ratio throughout. R0-R3
    /// are lost; `cwnd` (R1) in packets.
    fn default_pacing(&self, asm: &mut Asm, sk: R, cwnd: R) {
        let (larger, no_srtt, bounded) = (asm.label(), asm.label(), asm.label());
        self.get(asm, R::R2, sk, "packets_out");
        asm.jump_if(cwnd, Cond::Ge, R::R2, larger);
        asm.mov(cwnd, R::R2);
        asm.bind(larger);
        self.get(asm, R::R0, sk, "mss_cache");
        // srtt_us is kept times 8.
        asm.mov_imm(R::R2, 2 * 8 * USEC_PER_SEC);
        asm.alu(Alu::Mul, R::R0, R::R2);
        asm.alu(Alu::Mul, R::R0, cwnd);
        self.get(asm, R::R2, sk, "srtt_us");
        asm.jump_if_imm(R::R2, Cond::Eq, 0, no_srtt);
        asm.alu(Alu::Div, R::R0, R::R2);
        asm.bind(no_srtt);
        self.get(asm, R::R2, sk, "max_pacing_rate");
        asm.jump_if(R::R0, Cond::Le, R::R2, bounded);
        asm.mov(R::R0, R::R2);
        asm.bind(bounded);
        self.set(asm, sk, "pacing_rate", R::R0);
    }
}

/// The maps, by descriptor.
#[derive(Clone, Copy)]
pub struct Maps {
    /// The control page.
    pub ctl: i32,
    /// Flow records.
    pub flows: i32,
    /// Indices of free records.
    pub free: i32,
    /// Events.
    pub ring: i32,
    /// Programs.
    pub slots: i32,
}

/// `R0 = &flows[ca_priv - 1]`, or a jump to `none`. R1, R2 are lost.
fn lookup(asm: &mut Asm, k: &Kernel, maps: Maps, sk: R, none: Label) {
    asm.load(Size::B4, R::R1, sk, k.off("ca_priv"));
    asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
    asm.alu_imm(Alu::Sub, R::R1, 1);
    asm.store(Size::B4, R::R10, STACK_KEY, R::R1);
    asm.map(R::R1, maps.flows);
    asm.mov(R::R2, R::R10);
    asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_KEY));
    asm.call(Helper::MapLookupElem);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, none);
}

/// Reserves an event of `len` values, fills its head and leaves it in R0; jumps to `full` (counted) when
/// there is no room. `at_us` must not be R0-R5.
fn begin_event(asm: &mut Asm, maps: Maps, kind: i32, flow: R, len: usize, full: Label) {
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
    asm.load(Size::B8, R::R1, flow, rec::ID as i16);
    asm.store(Size::B8, R::R0, event::FLOW as i16, R::R1);
    asm.store_imm(Size::B4, R::R0, event::LEN as i16, len as i32);
}

/// Submits the event in R0; wakes the agent only if it said that it sleeps.
fn submit_event(asm: &mut Asm, maps: Maps) {
    let quiet = asm.label();
    asm.mov(R::R1, R::R0);
    asm.map_value(R::R3, maps.ctl, 0);
    asm.mov_imm(R::R2, RB_NO_WAKEUP);
    asm.load(Size::B4, R::R4, R::R3, ctl::WAITING as i16);
    asm.jump_if_imm(R::R4, Cond::Eq, 0, quiet);
    asm.mov_imm(R::R2, RB_FORCE_WAKEUP);
    asm.bind(quiet);
    asm.call(Helper::RingbufSubmit);
}

/// Sends the report registers of the flow in [`REC`], for the program `instance`.
pub fn send_report(asm: &mut Asm, maps: Maps, instance: u32, report_len: usize) {
    let full = asm.label();
    asm.load(Size::B4, R::R1, REC, rec::SEQ as i16);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B4, REC, rec::SEQ as i16, R::R1);
    begin_event(asm, maps, event::REPORT, REC, report_len, full);
    asm.load(Size::B4, R::R1, REC, rec::SEQ as i16);
    asm.store(Size::B4, R::R0, event::SEQ as i16, R::R1);
    asm.store_imm(Size::B4, R::R0, event::INSTANCE as i16, instance as i32);
    asm.load(Size::B8, R::R1, R::R10, prim_slot(Prim::AckNow));
    asm.store(Size::B8, R::R0, event::AT_US as i16, R::R1);
    for n in 0..report_len {
        asm.load(Size::B8, R::R1, REC, rec::REGS as i16 + 8 * n as i16);
        asm.store(Size::B8, R::R0, event::VALUES as i16 + 8 * n as i16, R::R1);
    }
    submit_event(asm, maps);
    asm.bind(full);
}

/// Runs a compiled program on a TCP flow. R6 is the socket, R8 the rate sample.
pub struct TcpHost<'a> {
    /// The running kernel.
    pub kernel: &'a Kernel,
    /// The datapath's maps.
    pub maps: Maps,
    /// Identifies the program in its reports.
    pub instance: u32,
}

impl TcpHost<'_> {
    /// R1 = rs->delivered * mss * 1e6 / interval, or 0.
    fn rate(&self, asm: &mut Asm, interval: &str) {
        let k = self.kernel;
        let (none, done) = (asm.label(), asm.label());
        k.get(asm, R::R1, R::R8, "rs.delivered");
        asm.sext32(R::R1);
        asm.jump_if_imm(R::R1, Cond::Sle, 0, none);
        k.get(asm, R::R2, R::R8, interval);
        asm.jump_if_imm(R::R2, Cond::Sle, 0, none);
        k.get(asm, R::R3, R::R6, "mss_cache");
        asm.alu(Alu::Mul, R::R1, R::R3);
        asm.alu_imm(Alu::Mul, R::R1, USEC_PER_SEC as i32);
        asm.alu(Alu::Div, R::R1, R::R2);
        asm.jump(done);
        asm.bind(none);
        asm.mov_imm(R::R1, 0);
        asm.bind(done);
    }

    /// R1 = packets newly SACKed on this ACK.
    fn newly_sacked(&self, asm: &mut Asm) {
        let some = asm.label();
        self.kernel.get(asm, R::R1, R::R6, "sacked_out");
        asm.load(Size::B4, R::R2, REC, rec::LAST_SACKED as i16);
        asm.alu(Alu::Sub, R::R1, R::R2);
        asm.jump_if_imm(R::R1, Cond::Sge, 0, some);
        asm.mov_imm(R::R1, 0);
        asm.bind(some);
    }

    fn newly_marked(&self, asm: &mut Asm) {
        self.kernel.get(asm, R::R1, R::R6, "delivered_ce");
        asm.load(Size::B4, R::R2, REC, rec::LAST_CE as i16);
        asm.alu(Alu::Sub, R::R1, R::R2);
        asm.zext32(R::R1);
    }

    fn times_mss(&self, asm: &mut Asm) {
        self.kernel.get(asm, R::R2, R::R6, "mss_cache");
        asm.alu(Alu::Mul, R::R1, R::R2);
    }
}

impl Host for TcpHost<'_> {
    fn enter(&self, asm: &mut Asm) {
        let (none, found) = (asm.label(), asm.label());
        asm.load(Size::B8, R::R6, R::R1, 0);
        asm.load(Size::B8, R::R8, R::R1, self.kernel.rs_arg);
        lookup(asm, self.kernel, self.maps, R::R6, none);
        asm.mov(REC, R::R0);
        asm.jump(found);
        asm.bind(none);
        asm.exit0();
        asm.bind(found);
    }

    fn load_prim(&self, asm: &mut Asm, prim: Prim) {
        let k = self.kernel;
        match prim {
            Prim::AckNow => k.get(asm, R::R1, R::R6, "tcp_mstamp"),
            Prim::AckBytesAcked => {
                k.get(asm, R::R1, R::R6, "bytes_acked");
                asm.load(Size::B8, R::R2, REC, rec::LAST_BYTES_ACKED as i16);
                asm.store(Size::B8, REC, rec::LAST_BYTES_ACKED as i16, R::R1);
                asm.alu(Alu::Sub, R::R1, R::R2);
            }
            Prim::AckPacketsMisordered => self.newly_sacked(asm),
            Prim::AckBytesMisordered => {
                self.newly_sacked(asm);
                self.times_mss(asm);
            }
            Prim::AckPacketsAcked => {
                let some = asm.label();
                self.newly_sacked(asm);
                k.get(asm, R::R2, R::R8, "rs.acked_sacked");
                asm.alu(Alu::Sub, R::R2, R::R1);
                asm.mov(R::R1, R::R2);
                asm.jump_if_imm(R::R1, Cond::Sge, 0, some);
                asm.mov_imm(R::R1, 0);
                asm.bind(some);
            }
            Prim::AckEcnPackets => self.newly_marked(asm),
            Prim::AckEcnBytes => {
                self.newly_marked(asm);
                self.times_mss(asm);
            }
            Prim::AckLostPktsSample => {
                let some = asm.label();
                k.get(asm, R::R1, R::R8, "rs.losses");
                asm.sext32(R::R1);
                asm.jump_if_imm(R::R1, Cond::Sge, 0, some);
                asm.mov_imm(R::R1, 0);
                asm.bind(some);
            }
            Prim::FlowPacketsInFlight => k.in_flight(asm, R::R1, R::R6, R::R2),
            Prim::FlowBytesInFlight => {
                k.in_flight(asm, R::R1, R::R6, R::R2);
                self.times_mss(asm);
            }
            Prim::FlowBytesPending => {
                k.get(asm, R::R1, R::R6, "write_seq");
                k.get(asm, R::R2, R::R6, "snd_una");
                asm.alu(Alu::Sub, R::R1, R::R2);
                asm.zext32(R::R1);
            }
            Prim::FlowRateIncoming => self.rate(asm, "rs.interval_us"),
            Prim::FlowRateOutgoing => self.rate(asm, "rs.snd_interval_us"),
            Prim::FlowRttSampleUs => {
                k.get(asm, R::R1, R::R8, "rs.rtt_us");
                no_sample_is_infinity(asm);
            }
            Prim::FlowWasTimeout => {
                asm.load(Size::B4, R::R1, REC, rec::FLAGS as i16);
                asm.alu_imm(Alu::And, R::R1, FLAG_TIMEOUT);
                asm.store_imm(Size::B4, REC, rec::FLAGS as i16, 0);
            }
        }
    }

    fn apply(&self, asm: &mut Asm) {
        let k = self.kernel;
        let (not_small, clamped, open, paced, unpaced, pacing_on, done) = (
            asm.label(),
            asm.label(),
            asm.label(),
            asm.label(),
            asm.label(),
            asm.label(),
            asm.label(),
        );
        // What the next ACK's differences are taken from.
        k.get(asm, R::R1, R::R6, "sacked_out");
        asm.store(Size::B4, REC, rec::LAST_SACKED as i16, R::R1);
        k.get(asm, R::R1, R::R6, "delivered_ce");
        asm.store(Size::B4, REC, rec::LAST_CE as i16, R::R1);

        asm.load(Size::B8, R::R1, REC, rec::CWND as i16);
        k.get(asm, R::R2, R::R6, "mss_cache");
        asm.alu(Alu::Div, R::R1, R::R2);
        asm.jump_if_imm(R::R1, Cond::Ge, MIN_CWND_PKTS as i32, not_small);
        asm.mov_imm(R::R1, MIN_CWND_PKTS);
        asm.bind(not_small);
        k.get(asm, R::R2, R::R6, "snd_cwnd_clamp");
        asm.jump_if(R::R1, Cond::Le, R::R2, clamped);
        asm.mov(R::R1, R::R2);
        asm.bind(clamped);
        // In fast recovery no more than was delivered may leave, or a cumulative ACK lets a burst out: the
        // kernel's own PRR (RFC 6937) is off while a cong_control is set.
        k.get(asm, R::R2, R::R6, "ca_state");
        asm.jump_if_imm(R::R2, Cond::Ne, TCP_CA_RECOVERY, open);
        let some = asm.label();
        k.in_flight(asm, R::R2, R::R6, R::R3);
        k.get(asm, R::R3, R::R8, "rs.acked_sacked");
        asm.jump_if_imm(R::R3, Cond::Ne, 0, some);
        asm.mov_imm(R::R3, 1);
        asm.bind(some);
        asm.alu(Alu::Add, R::R2, R::R3);
        asm.jump_if(R::R1, Cond::Le, R::R2, open);
        asm.mov(R::R1, R::R2);
        asm.bind(open);
        k.set(asm, R::R6, "snd_cwnd", R::R1);

        asm.load(Size::B8, R::R2, REC, rec::RATE as i16);
        asm.jump_if_imm(R::R2, Cond::Ne, 0, paced);
        asm.bind(unpaced);
        k.default_pacing(asm, R::R6, R::R1);
        asm.jump(done);
        asm.bind(paced);
        k.get(asm, R::R1, R::R6, "max_pacing_rate");
        let bounded = asm.label();
        asm.jump_if(R::R2, Cond::Le, R::R1, bounded);
        asm.mov(R::R2, R::R1);
        asm.bind(bounded);
        k.set(asm, R::R6, "pacing_rate", R::R2);
        k.get(asm, R::R1, R::R6, "pacing_status");
        asm.jump_if_imm(R::R1, Cond::Ne, 0, pacing_on);
        asm.mov_imm(R::R1, i64::from(SK_PACING_NEEDED));
        k.set(asm, R::R6, "pacing_status", R::R1);
        asm.bind(pacing_on);
        asm.bind(done);
    }

    fn report(&self, asm: &mut Asm, report_len: usize) {
        send_report(asm, self.maps, self.instance, report_len);
    }

    fn leave(&self, asm: &mut Asm) {
        asm.exit0();
    }
}

/// The program of one struct_ops member.
///
/// # Errors
/// A bug in this file.
pub fn member(name: &str, k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    match name {
        "init" => init(k, maps),
        "release" => release(k, maps),
        "ssthresh" => reno_call(k.reno_ssthresh),
        "undo_cwnd" => reno_call(k.reno_undo_cwnd),
        "set_state" => set_state(k, maps),
        _ => dispatcher(k, maps),
    }
}

fn reno_call(func: u32) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    asm.load(Size::B8, R::R1, R::R1, 0);
    asm.call_kfunc(func);
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
    asm.bind(out);
    asm.exit0();
    asm.finish().map(|done| done.insns)
}

/// Takes a free record for the flow and says that it started.
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

    for off in (rec::SLOT..rec::STAGE_REGS).step_by(8) {
        asm.store_imm(Size::B8, R::R7, off as i16, 0);
    }
    asm.store_imm(Size::B4, R::R7, rec::MODE as i16, mode::NO_PROGRAM as i32);
    identity(&mut asm, k);
    resync(&mut asm, k, R::R6, R::R7);
    sample(&mut asm, k, R::R6, R::R7);

    // The id comes last: a record with an id is complete.
    asm.map_value(R::R1, maps.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::NEXT_FLOW as i16, R::R2);
    asm.alu_imm(Alu::Add, R::R2, 1);
    asm.alu_imm(Alu::Lsh, R::R2, INDEX_BITS as i32);
    asm.load(Size::B4, R::R1, R::R10, STACK_S1);
    asm.alu(Alu::Or, R::R2, R::R1);
    asm.store(Size::B8, R::R7, rec::ID as i16, R::R2);
    lifecycle_event(&mut asm, k, maps, event::CREATED, out);
    asm.jump(out);

    asm.bind(full);
    asm.map_value(R::R1, maps.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::TABLE_FULL as i16, R::R2);
    asm.bind(out);
    asm.exit0();
    asm.finish().map(|done| done.insns)
}

fn release(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let (sent, out) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R6, R::R1, 0);
    lookup(&mut asm, k, maps, R::R6, out);
    asm.mov(R::R7, R::R0);
    lifecycle_event(&mut asm, k, maps, event::CLOSED, sent);
    asm.bind(sent);
    asm.store_imm(Size::B8, R::R7, rec::ID as i16, 0);
    asm.store_imm(Size::B4, R::R6, k.off("ca_priv"), 0);
    asm.map(R::R1, maps.free);
    asm.mov(R::R2, R::R10);
    asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_KEY));
    asm.mov_imm(R::R3, 0);
    asm.call(Helper::MapPushElem);
    asm.bind(out);
    asm.exit0();
    asm.finish().map(|done| done.insns)
}

fn lifecycle_event(asm: &mut Asm, k: &Kernel, maps: Maps, kind: i32, full: Label) {
    begin_event(asm, maps, kind, R::R7, 0, full);
    asm.store_imm(Size::B4, R::R0, event::SEQ as i16, 0);
    asm.store_imm(Size::B4, R::R0, event::INSTANCE as i16, 0);
    k.get(asm, R::R1, R::R6, "tcp_mstamp");
    asm.store(Size::B8, R::R0, event::AT_US as i16, R::R1);
    submit_event(asm, maps);
}

/// Copies what names the flow into its record.
fn identity(asm: &mut Asm, k: &Kernel) {
    let (v6, done) = (asm.label(), asm.label());
    k.get(asm, R::R1, R::R6, "family");
    asm.store(Size::B4, R::R7, rec::FAMILY as i16, R::R1);
    k.get(asm, R::R2, R::R6, "sport");
    asm.store(Size::B4, R::R7, rec::LOCAL_PORT as i16, R::R2);
    k.get(asm, R::R2, R::R6, "dport");
    asm.be16(R::R2);
    asm.store(Size::B4, R::R7, rec::REMOTE_PORT as i16, R::R2);
    k.get(asm, R::R2, R::R6, "snd_cwnd");
    asm.store(Size::B4, R::R7, rec::INIT_CWND as i16, R::R2);
    asm.jump_if_imm(R::R1, Cond::Ne, libc::AF_INET, v6);
    for (from, to) in [("saddr", rec::LOCAL_ADDR), ("daddr", rec::REMOTE_ADDR)] {
        k.get(asm, R::R2, R::R6, from);
        asm.store(Size::B4, R::R7, to as i16, R::R2);
    }
    asm.jump(done);
    asm.bind(v6);
    if k.fields.contains_key("saddr6") {
        for (from, to) in [("saddr6", rec::LOCAL_ADDR), ("daddr6", rec::REMOTE_ADDR)] {
            for word in (0..16).step_by(4) {
                asm.load(Size::B4, R::R2, R::R6, k.off(from) + word);
                asm.store(Size::B4, R::R7, to as i16 + word, R::R2);
            }
        }
    }
    asm.bind(done);
    if let Some((cgroup, kn, id)) = k.cgroup {
        let none = asm.label();
        asm.load(Size::B8, R::R1, R::R6, cgroup);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
        asm.load(Size::B8, R::R1, R::R1, kn);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
        asm.load(Size::B8, R::R1, R::R1, id);
        asm.store(Size::B8, R::R7, rec::CGROUP as i16, R::R1);
        asm.bind(none);
    }
}

/// Starts the program's view of the flow from what the flow is now.
fn resync(asm: &mut Asm, k: &Kernel, sk: R, record: R) {
    k.get(asm, R::R1, sk, "snd_cwnd");
    k.get(asm, R::R2, sk, "mss_cache");
    asm.alu(Alu::Mul, R::R1, R::R2);
    asm.store(Size::B8, record, rec::CWND as i16, R::R1);
    k.get(asm, R::R1, sk, "bytes_acked");
    asm.store(Size::B8, record, rec::LAST_BYTES_ACKED as i16, R::R1);
    k.get(asm, R::R1, sk, "sacked_out");
    asm.store(Size::B4, record, rec::LAST_SACKED as i16, R::R1);
    k.get(asm, R::R1, sk, "delivered_ce");
    asm.store(Size::B4, record, rec::LAST_CE as i16, R::R1);
}

/// Copies the flow's statistics into its record.
fn sample(asm: &mut Asm, k: &Kernel, sk: R, record: R) {
    for (name, to, size) in [
        ("snd_cwnd", rec::SND_CWND, Size::B4),
        ("snd_ssthresh", rec::SND_SSTHRESH, Size::B4),
        ("mss_cache", rec::MSS, Size::B4),
        ("srtt_us", rec::SRTT_8US, Size::B4),
        ("packets_out", rec::PACKETS_OUT, Size::B4),
        ("pacing_rate", rec::PACING_RATE, Size::B8),
        ("bytes_acked", rec::BYTES_ACKED, Size::B8),
        ("delivered", rec::DELIVERED, Size::B4),
        ("lost", rec::LOST, Size::B4),
        ("tcp_mstamp", rec::SAMPLED_AT_US, Size::B8),
    ] {
        k.get(asm, R::R1, sk, name);
        asm.store(size, record, to as i16, R::R1);
    }
    asm.load(Size::B4, R::R1, sk, k.rtt_min);
    asm.store(Size::B4, record, rec::MIN_RTT_US as i16, R::R1);
}

/// `cong_control`: R6 context, R7 socket, R8 record.
fn dispatcher(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Asm::default();
    let asm = &mut asm;
    let (native, silent, no_program, staged, staged_done, sampled, take_sample, resumed, resume) = (
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
    asm.mov(R::R6, R::R1);
    asm.load(Size::B8, R::R7, R::R6, 0);
    lookup(asm, k, maps, R::R7, native);
    asm.mov(R::R8, R::R0);
    k.get(asm, R::R9, R::R7, "tcp_mstamp");

    asm.map_value(R::R3, maps.ctl, 0);
    asm.load(Size::B8, R::R1, R::R8, rec::SAMPLED_AT_US as i16);
    asm.load(Size::B8, R::R2, R::R3, ctl::SAMPLE_US as i16);
    asm.alu(Alu::Add, R::R1, R::R2);
    asm.jump_if(R::R9, Cond::Ge, R::R1, take_sample);
    asm.bind(sampled);

    asm.load(Size::B4, R::R1, R::R8, rec::STAGE_STATE as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, stage::READY as i32, staged);
    asm.bind(staged_done);

    asm.load(Size::B4, R::R4, R::R8, rec::SLOT as i16);
    asm.jump_if_imm(R::R4, Cond::Eq, 0, no_program);
    asm.load(Size::B8, R::R1, R::R3, ctl::HEARTBEAT_US as i16);
    asm.load(Size::B8, R::R2, R::R3, ctl::TIMEOUT_US as i16);
    asm.alu(Alu::Add, R::R1, R::R2);
    asm.jump_if(R::R9, Cond::Gt, R::R1, silent);
    asm.load(Size::B4, R::R1, R::R8, rec::MODE as i16);
    asm.jump_if_imm(R::R1, Cond::Ne, mode::PROGRAM as i32, resume);
    asm.bind(resumed);
    asm.mov(R::R1, R::R6);
    asm.map(R::R2, maps.slots);
    asm.mov(R::R3, R::R4);
    asm.alu_imm(Alu::Sub, R::R3, 1);
    asm.call(Helper::TailCall);
    // Only a slot that was emptied gets here.
    asm.bind(no_program);
    asm.store_imm(Size::B4, R::R8, rec::MODE as i16, mode::NO_PROGRAM as i32);
    asm.bind(native);
    run_native(asm, k);
    asm.exit0();

    asm.bind(silent);
    asm.store_imm(Size::B4, R::R8, rec::MODE as i16, mode::AGENT_SILENT as i32);
    asm.jump(native);

    asm.bind(resume);
    asm.store_imm(Size::B4, R::R8, rec::MODE as i16, mode::PROGRAM as i32);
    resync(asm, k, R::R7, R::R8);
    asm.jump(resumed);

    asm.bind(take_sample);
    sample(asm, k, R::R7, R::R8);
    asm.jump(sampled);

    // A program change is the dispatcher's part of what is staged; the rest is the program's.
    asm.bind(staged);
    let release = asm.label();
    asm.load(Size::B4, R::R1, R::R8, rec::STAGE_SLOT as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, staged_done);
    asm.mov_imm(R::R2, i64::from(STAGE_RELEASE));
    asm.jump_if(R::R1, Cond::Eq, R::R2, release);
    asm.store(Size::B4, R::R8, rec::SLOT as i16, R::R1);
    asm.jump(staged_done);
    asm.bind(release);
    asm.mov_imm(R::R0, i64::from(stage::READY));
    asm.mov_imm(R::R1, i64::from(stage::EMPTY));
    asm.cmpxchg32(R::R8, rec::STAGE_STATE as i16, R::R1);
    asm.jump_if_imm(R::R0, Cond::Ne, stage::READY as i32, staged_done);
    asm.store_imm(Size::B4, R::R8, rec::SLOT as i16, 0);
    asm.jump(staged_done);
    std::mem::take(asm).finish().map(|done| done.insns)
}

/// The kernel's Reno, with what a `cong_control` must do besides. R6 context, R7 socket; all else is lost.
fn run_native(asm: &mut Asm, k: &Kernel) {
    let (grow, recovery, pace) = (asm.label(), asm.label(), asm.label());
    asm.load(Size::B8, R::R8, R::R6, k.rs_arg);
    k.get(asm, R::R1, R::R7, "ca_state");
    asm.jump_if_imm(R::R1, Cond::Eq, TCP_CA_RECOVERY, recovery);
    asm.jump_if_imm(R::R1, Cond::Ne, TCP_CA_CWR, grow);
    asm.bind(recovery);
    k.get(asm, R::R1, R::R7, "snd_ssthresh");
    k.get(asm, R::R2, R::R7, "snd_cwnd");
    asm.jump_if(R::R2, Cond::Le, R::R1, pace);
    k.set(asm, R::R7, "snd_cwnd", R::R1);
    asm.jump(pace);
    asm.bind(grow);
    asm.mov(R::R1, R::R7);
    asm.mov_imm(R::R2, 0);
    k.get(asm, R::R3, R::R8, "rs.acked_sacked");
    asm.call_kfunc(k.reno_cong_avoid);
    asm.bind(pace);
    k.get(asm, R::R1, R::R7, "snd_cwnd");
    k.default_pacing(asm, R::R7, R::R1);
}

/// An iterator over the TCP sockets of a namespace that moves those of one congestion control to another.
///
/// # Errors
/// A bug in this file.
pub fn mover(k: &Kernel, maps: Maps) -> Result<Vec<Insn>, AsmError> {
    /// `IPPROTO_TCP` and `TCP_CONGESTION`.
    const SOL_TCP: i64 = 6;
    const TCP_CONGESTION: i64 = 13;
    const NAME_BYTES: i64 = 16;
    let mut asm = Asm::default();
    let out = asm.label();
    asm.load(Size::B8, R::R1, R::R1, 8);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
    asm.call(Helper::SkcToTcpSock);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
    asm.mov(R::R6, R::R0);
    asm.load(Size::B8, R::R1, R::R6, k.icsk_ca_ops.offset as i16);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
    asm.map_value(R::R7, maps.ctl, 0);
    for word in (0..16).step_by(8) {
        asm.load(Size::B8, R::R2, R::R1, k.ca_name.offset as i16 + word);
        asm.load(Size::B8, R::R3, R::R7, ctl::MOVE_FROM as i16 + word);
        asm.jump_if(R::R2, Cond::Ne, R::R3, out);
    }
    asm.mov(R::R1, R::R6);
    asm.mov_imm(R::R2, SOL_TCP);
    asm.mov_imm(R::R3, TCP_CONGESTION);
    asm.mov(R::R4, R::R7);
    asm.alu_imm(Alu::Add, R::R4, ctl::MOVE_TO as i32);
    asm.mov_imm(R::R5, NAME_BYTES);
    asm.call(Helper::SetSockOpt);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, out);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R7, ctl::MOVED as i16, R::R2);
    asm.bind(out);
    asm.exit0();
    asm.finish().map(|done| done.insns)
}

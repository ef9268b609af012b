//! The running kernel as programs see it: offsets of socket fields, and code fragments that need only a socket.

use crate::btf::{Btf, BtfError, Field};
use crate::frame::STACK_HOST;
use crate::layout::{INDEX_BITS, ctl, rec};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};

/// Values of the kernel's `enum tcp_ca_state` (include/uapi/linux/tcp.h).
pub const TCP_CA_CWR: i32 = 2;
/// The state of fast recovery.
pub const TCP_CA_RECOVERY: i32 = 3;
/// The state after a retransmission timeout.
pub const TCP_CA_LOSS: i32 = 4;
const USEC_PER_SEC: i64 = 1_000_000;
/// The kernel's defaults of `tcp_pacing_ss_ratio` and `tcp_pacing_ca_ratio`.
const PACING_SS_PERCENT: i64 = 200;
const PACING_CA_PERCENT: i64 = 120;
/// The kernel's initial window `TCP_INIT_CWND` (include/net/tcp.h), packets.
const INIT_CWND_PKTS: i32 = 10;
/// First scratch slot of the host.
pub const STACK_KEY: i16 = STACK_HOST;
/// Second scratch slot of the host.
pub const STACK_S1: i16 = STACK_HOST - 8;

/// Offsets and ids of the running kernel that the programs use.
pub struct Kernel {
    fields: std::collections::HashMap<&'static str, Field>,
    /// The current minimum of `tcp_sock.rtt_min`.
    pub rtt_min: i16,
    /// The pointers from a socket to the id of its cgroup, if the kernel has cgroups.
    pub cgroup: Option<(i16, i16, i16)>,
    /// Offset of `inet_connection_sock.icsk_ca_ops` in a socket.
    pub icsk_ca_ops: i16,
    pub ca_name: i16,
    /// Offset of `rate_sample` in `cong_control`'s arguments.
    pub rs_arg: i16,
    /// BTF type of `struct tcp_congestion_ops`.
    pub ops_type: u32,
    /// Index of the member `cong_control`.
    pub cong_control: u32,
    /// The BTF id of `tcp_reno_cong_avoid`.
    pub reno_cong_avoid: u32,
    /// The BTF id of `tcp_reno_ssthresh`.
    pub reno_ssthresh: u32,
    /// The BTF id of `tcp_reno_undo_cwnd`.
    pub reno_undo_cwnd: u32,
    /// The BTF id that an iterator over TCP sockets attaches to.
    pub iter_func: u32,
    /// The BTF ids of `bpf_rdonly_cast` and of `struct tcp_sock`.
    cast: Option<(u32, u32)>,
}

/// Fields by short name, each with its structure and path.
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
    ("prr_out", "prr_out"),
    ("prior_cwnd", "prior_cwnd"),
    ("bytes_acked", "bytes_acked"),
    ("delivered", "delivered"),
    ("delivered_ce", "delivered_ce"),
    ("lost", "lost"),
    ("tcp_mstamp", "tcp_mstamp"),
    ("write_seq", "write_seq"),
    ("snd_nxt", "snd_nxt"),
    ("bytes_sent", "bytes_sent"),
    ("data_segs_out", "data_segs_out"),
    ("state", "inet_conn.icsk_inet.sk.__sk_common.skc_state"),
    ("snd_una", "snd_una"),
];
/// Fields that a kernel without IPv6 lacks.
const SOCK_FIELDS_V6: &[(&str, &str)] = &[
    ("daddr6", "inet_conn.icsk_inet.sk.__sk_common.skc_v6_daddr"),
    ("saddr6", "inet_conn.icsk_inet.sk.__sk_common.skc_v6_rcv_saddr"),
];
const SAMPLE_FIELDS: &[(&str, &str)] = &[
    ("rs.rtt_us", "rtt_us"),
    ("rs.delivered", "delivered"),
    ("rs.interval_us", "interval_us"),
    ("rs.snd_interval_us", "snd_interval_us"),
    ("rs.acked_sacked", "acked_sacked"),
];

/// The struct_ops members that this datapath fills: those that some kernels lack come first, `cong_control` last.
pub const OPS: [&str; 7] =
    [MIN_TSO_SEGS, "init", "release", "ssthresh", "undo_cwnd", "set_state", "cong_control"];
/// Kernels with another hook in its place keep their own segment bursts.
pub const MIN_TSO_SEGS: &str = "min_tso_segs";
const OPS_STRUCT: &str = "tcp_congestion_ops";

impl Kernel {
    /// Finds all offsets and ids in the kernel's BTF.
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
        // (sk, rs) before Linux 6.10, (sk, ack, flag, rs) since.
        let (cong_control, args) = btf.func_member(OPS_STRUCT, "cong_control")?;
        // Since Linux 6.4; without it a datapath would end with its agent.
        btf.func_id("bpf_struct_ops_link_create")?;
        Ok(Kernel {
            fields,
            rtt_min: off("tcp_sock", "rtt_min")? + off("minmax_sample", "v")?,
            cgroup: cgroup.ok(),
            icsk_ca_ops: off("tcp_sock", "inet_conn.icsk_ca_ops")?,
            ca_name: off(OPS_STRUCT, "name")?,
            rs_arg: rate_sample_arg(args),
            ops_type: btf.struct_id(OPS_STRUCT)?,
            cong_control,
            reno_cong_avoid: btf.func_id("tcp_reno_cong_avoid")?,
            reno_ssthresh: btf.func_id("tcp_reno_ssthresh")?,
            reno_undo_cwnd: btf.func_id("tcp_reno_undo_cwnd")?,
            iter_func: btf.func_id("bpf_iter_tcp")?,
            cast: btf.func_id("bpf_rdonly_cast").ok().zip(btf.struct_id("tcp_sock").ok()),
        })
    }

    /// The field's offset; 0 if this kernel lacks it (see [`Kernel::has`]).
    pub fn off(&self, name: &str) -> i16 {
        self.fields.get(name).map_or(0, |f| f.offset as i16)
    }

    /// Whether this kernel has the field.
    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Emits `to = base->name`, zero-extended; a bit field is shifted down.
    pub fn get(&self, asm: &mut Asm, to: R, base: R, name: &str) {
        let Some(f) = self.fields.get(name) else { return asm.mov_imm(to, 0) };
        asm.load(Size::of(f.bytes).unwrap_or(Size::B8), to, base, f.offset as i16);
        if let Some((shift, width)) = f.bits {
            if shift != 0 {
                asm.alu_imm(Alu::Rsh, to, shift as i32);
            }
            asm.alu_imm(Alu::And, to, (1 << width) - 1);
        }
    }

    /// Emits the view of `sk`, a pointer to what is known to be a TCP socket, as one. R0-R5 are lost.
    ///
    /// Since Linux 6.2 that is a cast, which takes no time; before, the verifier asks for a call that looks whether it is one.
    pub fn as_tcp_sock(&self, asm: &mut Asm, sk: R) {
        asm.mov(R::R1, sk);
        match self.cast {
            Some((cast, tcp_sock)) => {
                asm.mov_imm(R::R2, tcp_sock.into());
                asm.call_kfunc(cast);
                asm.mov(sk, R::R0);
            }
            None => {
                let (is_one, done) = (asm.label(), asm.label());
                asm.call(Helper::SkcToTcpSock);
                asm.jump_if_imm(R::R0, Cond::Ne, 0, is_one);
                asm.mov_imm(R::R0, -1);
                asm.exit();
                asm.bind(is_one);
                asm.mov(sk, R::R0);
                asm.jump(done);
                asm.bind(done);
            }
        }
    }

    /// Emits `to` = the id of the cgroup of socket `sk`; 0 where it is not known.
    pub fn cgroup_id(&self, asm: &mut Asm, to: R, sk: R) {
        let Some((cgroup, kn, id)) = self.cgroup else { return asm.mov_imm(to, 0) };
        let none = asm.label();
        asm.load(Size::B8, to, sk, cgroup);
        asm.jump_if_imm(to, Cond::Eq, 0, none);
        asm.load(Size::B8, to, to, kn);
        asm.jump_if_imm(to, Cond::Eq, 0, none);
        asm.load(Size::B8, to, to, id);
        asm.bind(none);
    }

    /// Emits `base->name = from`.
    pub fn set(&self, asm: &mut Asm, base: R, name: &str, from: R) {
        let Some(f) = self.fields.get(name) else { return };
        asm.store(Size::of(f.bytes).unwrap_or(Size::B8), base, f.offset as i16, from);
    }

    /// Emits `to = packets in flight`; `scratch` is lost.
    pub fn in_flight(&self, asm: &mut Asm, to: R, sk: R, scratch: R) {
        self.get(asm, to, sk, "packets_out");
        for (name, op) in [("sacked_out", Alu::Sub), ("lost_out", Alu::Sub), ("retrans_out", Alu::Add)] {
            self.get(asm, scratch, sk, name);
            asm.alu(op, to, scratch);
        }
    }

    /// Emits `tcp_update_pacing_rate`, which the kernel leaves to a `cong_control`. `cwnd` (R1) is in packets; R0-R3
    /// are lost.
    ///
    /// Segmentation offload sizes its bursts by the rate even where nothing paces.
    pub fn default_pacing(&self, asm: &mut Asm, sk: R, cwnd: R) {
        let (slow_start, larger, no_srtt, bounded) = (asm.label(), asm.label(), asm.label(), asm.label());
        // srtt_us is kept times 8.
        asm.mov_imm(R::R0, PACING_SS_PERCENT * 8 * USEC_PER_SEC / 100);
        self.get(asm, R::R2, sk, "snd_ssthresh");
        asm.alu_imm(Alu::Rsh, R::R2, 1);
        asm.jump_if(cwnd, Cond::Lt, R::R2, slow_start);
        asm.mov_imm(R::R0, PACING_CA_PERCENT * 8 * USEC_PER_SEC / 100);
        asm.bind(slow_start);
        self.get(asm, R::R2, sk, "packets_out");
        asm.jump_if(cwnd, Cond::Ge, R::R2, larger);
        asm.mov(cwnd, R::R2);
        asm.bind(larger);
        self.get(asm, R::R2, sk, "mss_cache");
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

    /// Emits the limit on packets in flight after this ACK while losses are repaired (from the state `from` on): `R1`, a
    /// window in packets, becomes this limit.
    ///
    /// - Recovery: proportional rate reduction (RFC 6937, `tcp_cwnd_reduction` in tcp_input.c), towards this window
    ///   instead of `snd_ssthresh`. The kernel's own is off while a `cong_control` is set, and so is its count of what
    ///   was delivered since: the record keeps it, anew when nothing has been sent yet.
    /// - Loss: twice what was delivered, as in slow start; at least a packet.
    ///
    /// `record` (0 for none) also tells what the last ACK left. R0-R5 are lost.
    pub fn conserve(&self, asm: &mut Asm, from: i32, sk: R, rs: R, record: R) {
        let (done, loss, above, plain) = (asm.label(), asm.label(), asm.label(), asm.label());
        let (bound, below, grown, some) = (asm.label(), asm.label(), asm.label(), asm.label());
        self.get(asm, R::R4, sk, "ca_state");
        asm.jump_if_imm(R::R4, Cond::Lt, from, done);
        self.in_flight(asm, R::R2, sk, R::R3);
        self.get(asm, R::R3, rs, "rs.acked_sacked");
        asm.jump_if_imm(R::R4, Cond::Eq, TCP_CA_LOSS, loss);
        self.count_delivered(asm, sk, rs, record);
        asm.jump_if(R::R2, Cond::Gt, R::R1, above);

        // Room below the window: what was delivered and not yet answered, at least this ACK's, one more if it advanced
        // and found nothing new lost.
        asm.alu(Alu::Sub, R::R5, R::R4);
        asm.jump_if(R::R3, Cond::Sge, R::R5, plain);
        asm.mov(R::R3, R::R5);
        asm.bind(plain);
        asm.jump_if_imm(record, Cond::Eq, 0, bound);
        self.get(asm, R::R0, sk, "bytes_acked");
        asm.load(Size::B8, R::R5, record, rec::LAST_BYTES_ACKED as i16);
        asm.jump_if(R::R0, Cond::Eq, R::R5, bound);
        self.get(asm, R::R0, sk, "lost");
        asm.load(Size::B4, R::R5, record, rec::LAST_LOST as i16);
        asm.jump_if(R::R0, Cond::Ne, R::R5, bound);
        asm.alu_imm(Alu::Add, R::R3, 1);
        asm.bind(bound);
        asm.alu(Alu::Add, R::R3, R::R2);
        asm.jump_if(R::R1, Cond::Le, R::R3, below);
        asm.mov(R::R1, R::R3);
        asm.jump(below);

        // More out than the window: the share of what was delivered that the window is of the one before.
        asm.bind(above);
        asm.mov(R::R0, R::R1);
        asm.alu(Alu::Mul, R::R0, R::R5);
        self.get(asm, R::R5, sk, "prior_cwnd");
        asm.alu(Alu::Add, R::R0, R::R5);
        asm.alu_imm(Alu::Sub, R::R0, 1);
        asm.alu(Alu::Div, R::R0, R::R5);
        asm.mov(R::R1, R::R2);
        asm.jump_if(R::R0, Cond::Le, R::R4, below);
        asm.alu(Alu::Sub, R::R0, R::R4);
        asm.alu(Alu::Add, R::R1, R::R0);

        // The retransmission that starts the recovery always leaves.
        asm.bind(below);
        asm.jump_if_imm(R::R4, Cond::Ne, 0, some);
        asm.jump_if(R::R1, Cond::Gt, R::R2, some);
        asm.mov(R::R1, R::R2);
        asm.alu_imm(Alu::Add, R::R1, 1);
        asm.jump(some);

        asm.bind(loss);
        asm.alu_imm(Alu::Lsh, R::R3, 1);
        asm.jump_if_imm(R::R3, Cond::Ne, 0, grown);
        asm.mov_imm(R::R3, 1);
        asm.bind(grown);
        asm.alu(Alu::Add, R::R2, R::R3);
        asm.jump_if(R::R1, Cond::Le, R::R2, some);
        asm.mov(R::R1, R::R2);
        asm.bind(some);
        asm.jump_if_imm(R::R1, Cond::Ne, 0, done);
        asm.mov_imm(R::R1, 1);
        asm.bind(done);
    }

    /// Emits the update of [`Kernel::conserve`]'s counts where the kernel reduces the window (from TCP_CA_CWR on,
    /// before TCP_CA_LOSS).
    ///
    /// R5 = delivered since that began, R4 = sent since, R3 = delivered by this ACK. R0 is lost.
    pub fn count_delivered(&self, asm: &mut Asm, sk: R, rs: R, record: R) {
        let (counted, count) = (asm.label(), asm.label());
        self.get(asm, R::R3, rs, "rs.acked_sacked");
        self.get(asm, R::R4, sk, "prr_out");
        asm.mov(R::R5, R::R3);
        asm.jump_if_imm(record, Cond::Eq, 0, counted);
        asm.jump_if_imm(R::R4, Cond::Eq, 0, count);
        asm.load(Size::B4, R::R0, record, rec::PRR_DELIVERED as i16);
        asm.alu(Alu::Add, R::R5, R::R0);
        asm.bind(count);
        asm.store(Size::B4, record, rec::PRR_DELIVERED as i16, R::R5);
        asm.bind(counted);
    }

    /// Emits a window that a paced flow can use without pacing: what it has in flight.
    ///
    /// Continues at `done` where there is nothing to change. R1 and R2 are lost.
    pub fn unpace(&self, asm: &mut Asm, sk: R, rs: R, record: R, done: Label) {
        let enough = asm.label();
        asm.load(Size::B8, R::R1, record, rec::RATE as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, done);
        self.in_flight(asm, R::R1, sk, R::R2);
        self.get(asm, R::R2, rs, "rs.acked_sacked");
        asm.alu(Alu::Add, R::R1, R::R2);
        asm.jump_if_imm(R::R1, Cond::Ge, INIT_CWND_PKTS, enough);
        asm.mov_imm(R::R1, i64::from(INIT_CWND_PKTS));
        asm.bind(enough);
        self.get(asm, R::R2, sk, "snd_cwnd");
        asm.jump_if(R::R1, Cond::Ge, R::R2, done);
        self.set(asm, sk, "snd_cwnd", R::R1);
        self.set(asm, sk, "snd_ssthresh", R::R1);
    }

    /// Emits the copy of socket fields to offsets in the record, in these sizes. R1 is lost.
    pub fn copy(&self, asm: &mut Asm, sk: R, record: R, fields: &[(&str, u32, Size)]) {
        for (name, to, size) in fields {
            self.get(asm, R::R1, sk, name);
            asm.store(*size, record, *to as i16, R::R1);
        }
    }

    /// Emits the copy of the counters that the next ACK's differences are taken from. R1 is lost.
    pub fn save_counters(&self, asm: &mut Asm, sk: R, record: R) {
        let fields = [
            ("bytes_acked", rec::LAST_BYTES_ACKED, Size::B8),
            ("sacked_out", rec::LAST_SACKED, Size::B4),
            ("delivered_ce", rec::LAST_CE, Size::B4),
            ("lost", rec::LAST_LOST, Size::B4),
        ];
        self.copy(asm, sk, record, &fields);
        asm.store_imm(Size::B4, record, rec::FLAGS as i16, 0);
    }
}

/// Offset of the rate sample, the last of `cong_control`'s `args` arguments of eight bytes each.
fn rate_sample_arg(args: usize) -> i16 {
    8 * (args as i16 - 1)
}

/// The maps' descriptors.
#[derive(Clone, Copy)]
pub struct Maps {
    pub ctl: i32,
    pub flows: i32,
    /// Indices of free records.
    pub free: i32,
    pub ring: i32,
    pub slots: i32,
    pub policy: i32,
}

/// Emits an id for the flow at `record`, of the next number and of its index, which is on the stack at `index`. R1 and R2 are lost.
pub fn give_id(asm: &mut Asm, maps: Maps, record: R, index: i16) {
    asm.map_value(R::R1, maps.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::NEXT_FLOW as i16, R::R2);
    asm.alu_imm(Alu::Add, R::R2, 1);
    asm.alu_imm(Alu::Lsh, R::R2, INDEX_BITS as i32);
    asm.load(Size::B4, R::R1, R::R10, index);
    asm.alu(Alu::Or, R::R2, R::R1);
    asm.xchg(Size::B8, record, rec::ID as i16, R::R2);
}

/// Emits `R0 = &flows[ca_priv - 1]`, or a jump to `none`. R1 and R2 are lost.
pub fn lookup(asm: &mut Asm, k: &Kernel, maps: Maps, sk: R, none: Label) {
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

/// Emits the program's initial window, which is the flow's current one. R1 and R2 are lost.
pub fn take_window(asm: &mut Asm, k: &Kernel, sk: R, record: R) {
    k.get(asm, R::R1, sk, "snd_cwnd");
    k.get(asm, R::R2, sk, "mss_cache");
    asm.alu(Alu::Mul, R::R1, R::R2);
    asm.store(Size::B8, record, rec::CWND as i16, R::R1);
    asm.store_imm(Size::B8, record, rec::UNDO_CWND as i16, 0);
}

/// Emits the copy of the flow's statistics into its record. R1 is lost.
pub fn sample(asm: &mut Asm, k: &Kernel, sk: R, record: R) {
    let fields = [
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
    ];
    k.copy(asm, sk, record, &fields);
    asm.load(Size::B4, R::R1, sk, k.rtt_min);
    asm.store(Size::B4, record, rec::MIN_RTT_US as i16, R::R1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_cong_control_are_known() {
        assert_eq!((rate_sample_arg(2), rate_sample_arg(4)), (8, 24));
        match Btf::kernel() {
            Ok(btf) => assert!([8, 24].contains(&Kernel::new(&btf).unwrap().rs_arg)),
            Err(e) => ccplane_testing::skipped("both_forms_of_cong_control_are_known", e),
        }
    }
}

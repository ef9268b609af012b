//! The [`Host`] in which compiled programs run on TCP flows.

use crate::codegen::{Host, no_sample_is_infinity};
use crate::events::send_report;
use crate::frame::REC;
use crate::kernel::{Kernel, Maps, TCP_CA_CWR, TCP_CA_LOSS, TCP_CA_RECOVERY, lookup};
use crate::layout::{FLAG_TIMEOUT, mode, rec};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, R, Size};
use ccplane_program::ir::Prim;

/// `SK_PACING_NEEDED` (include/net/sock.h): the stack paces by itself, without fq.
const SK_PACING_NEEDED: i32 = 1;
/// `sk_max_pacing_rate` of a socket that has none: all ones.
const NO_MAX_PACING_RATE: i32 = -1;
/// The value `SK_PACING_NONE`.
const SK_PACING_NONE: i32 = 0;
/// Rate above which the stack's own pacing is off, bytes per second; the window goes on limiting.
///
/// A full segment of 64 KB takes less than 52 us there, and a timer for each costs a third of the throughput (plan
/// `overhead`). Pacing stays on if the application has set a rate that is not to be exceeded (`SO_MAX_PACING_RATE`).
const UNPACED_ABOVE: i32 = 1_250_000_000;
const USEC_PER_SEC: i32 = 1_000_000;
/// Smallest window applied, packets.
const MIN_CWND_PKTS: i64 = 1;

/// Runs a compiled program on a TCP flow. R6 is the socket, R8 the rate sample.
pub struct TcpHost<'a> {
    pub kernel: &'a Kernel,
    pub maps: Maps,
    /// Identifies the program in its reports.
    pub instance: u32,
}

impl TcpHost<'_> {
    /// Emits R1 = rs->delivered * mss * 1e6 / interval, or 0.
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
        asm.alu_imm(Alu::Mul, R::R1, USEC_PER_SEC);
        asm.alu(Alu::Div, R::R1, R::R2);
        asm.jump(done);
        asm.bind(none);
        asm.mov_imm(R::R1, 0);
        asm.bind(done);
    }

    /// Emits R1 = packets newly SACKed on this ACK.
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
                // rate_sample.losses would leave out what a timer (RTO, RACK) marked between two ACKs.
                k.get(asm, R::R1, R::R6, "lost");
                asm.load(Size::B4, R::R2, REC, rec::LAST_LOST as i16);
                asm.alu(Alu::Sub, R::R1, R::R2);
                asm.zext32(R::R1);
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
            }
            // The registry refuses programs of other hooks.
            _ => asm.mov_imm(R::R1, 0),
        }
    }

    fn load_mss(&self, asm: &mut Asm) {
        self.kernel.get(asm, R::R1, R::R6, "mss_cache");
    }

    fn apply(&self, asm: &mut Asm) {
        let k = self.kernel;
        let (not_small, clamped, repaired, counted, kept) =
            (asm.label(), asm.label(), asm.label(), asm.label(), asm.label());
        let (paced, bounded, pacing_on, done) = (asm.label(), asm.label(), asm.label(), asm.label());
        let (slow, fast) = (asm.label(), asm.label());
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
        // A paced flow sends no burst when its window is kept through a loss: recovery leaves the window alone, and
        // only counts, for the native algorithm if the program gives up in the middle.
        k.get(asm, R::R2, R::R6, "ca_state");
        asm.jump_if_imm(R::R2, Cond::Lt, TCP_CA_CWR, kept);
        asm.jump_if_imm(R::R2, Cond::Eq, TCP_CA_LOSS, repaired);
        asm.load(Size::B8, R::R3, REC, rec::RATE as i16);
        asm.jump_if_imm(R::R3, Cond::Ne, 0, counted);
        asm.jump_if_imm(R::R2, Cond::Ge, TCP_CA_RECOVERY, repaired);
        asm.bind(counted);
        k.count_delivered(asm, R::R6, R::R8, REC);
        asm.jump(kept);
        asm.bind(repaired);
        k.conserve(asm, TCP_CA_RECOVERY, R::R6, R::R8, REC);
        asm.bind(kept);
        k.set(asm, R::R6, "snd_cwnd", R::R1);

        asm.load(Size::B8, R::R2, REC, rec::RATE as i16);
        asm.jump_if_imm(R::R2, Cond::Ne, 0, paced);
        k.default_pacing(asm, R::R6, R::R1);
        asm.jump(done);
        asm.bind(paced);
        k.get(asm, R::R1, R::R6, "max_pacing_rate");
        asm.jump_if(R::R2, Cond::Le, R::R1, bounded);
        asm.mov(R::R2, R::R1);
        asm.bind(bounded);
        k.set(asm, R::R6, "pacing_rate", R::R2);
        k.get(asm, R::R1, R::R6, "pacing_status");
        k.get(asm, R::R3, R::R6, "max_pacing_rate");
        asm.jump_if_imm(R::R3, Cond::Ne, NO_MAX_PACING_RATE, slow);
        asm.jump_if_imm(R::R2, Cond::Gt, UNPACED_ABOVE, fast);
        asm.bind(slow);
        asm.jump_if_imm(R::R1, Cond::Ne, SK_PACING_NONE, pacing_on);
        asm.mov_imm(R::R1, i64::from(SK_PACING_NEEDED));
        k.set(asm, R::R6, "pacing_status", R::R1);
        asm.jump(done);
        asm.bind(fast);
        asm.jump_if_imm(R::R1, Cond::Ne, SK_PACING_NEEDED, pacing_on);
        asm.mov_imm(R::R1, i64::from(SK_PACING_NONE));
        k.set(asm, R::R6, "pacing_status", R::R1);
        asm.bind(pacing_on);
        asm.bind(done);
        k.save_counters(asm, R::R6, REC);
    }

    fn report(&self, asm: &mut Asm, report_len: usize, asks: bool) {
        send_report(asm, self.maps, (self.instance, Prim::AckNow), report_len, asks);
    }

    fn give_up(&self, asm: &mut Asm) {
        let done = asm.label();
        asm.store_imm(Size::B4, REC, rec::SLOT as i16, 0);
        asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::POLICY as i32);
        self.kernel.unpace(asm, R::R6, R::R8, REC, done);
        asm.bind(done);
    }

    fn leave(&self, asm: &mut Asm) {
        asm.exit0();
    }
}

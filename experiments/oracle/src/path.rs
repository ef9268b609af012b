//! ACK streams as a flow would see them: one sender behind one bottleneck, in virtual time, from a seed.
//!
//! Not a network to learn from (that is `datapath-shims/netsim`), and not the kit's path, which sends again, paces and
//! measures rates, and whose goldens stand: just real enough that windows grow, overflow the queue, lose packets in
//! bursts, time out, and stand idle.

use std::collections::VecDeque;

use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;

use crate::rng::Rng;

/// Segments delivered after a lost one before it is taken for lost (RFC 5681's duplicate ACKs).
const REORDERING_PKTS: u32 = 3;
/// RFC 6298 has 1 s; Linux has this.
const MIN_RTO_US: u64 = 200_000;
/// ACKs between two changes of what the application does.
const PHASE_ACKS: u64 = 1500;
/// The time that an idle application is silent.
const IDLE_US: u64 = 7_000_000;
/// Segments an application has to send when it limits the flow.
const APP_LIMIT_PKTS: u64 = 4;

/// A bottleneck and its flow.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// Bytes of a segment.
    pub mss_bytes: u64,
    /// Rate of the bottleneck, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Round-trip time without a queue, microseconds.
    pub rtt_us: u64,
    /// Longest queue, microseconds of the bottleneck's rate.
    pub queue_us: u64,
    /// Packets that find a queue longer than this, in microseconds, are marked; 0 for none.
    pub mark_us: u64,
    /// One packet in so many is lost at random; 0 for none.
    pub loss_one_in: usize,
    /// ACKs that arrive within so many microseconds are one.
    pub aggregate_us: u64,
    /// One phase in four each: bulk, application-limited, after idle, after a blackout. Else bulk only.
    pub phases: bool,
}

struct Packet {
    sent_us: u64,
    /// The time when its ACK arrives; `None` if it is lost.
    ack_us: Option<u64>,
    marked: bool,
    overtaken: u32,
}

/// The flow's way through the bottleneck.
pub struct Path {
    config: PathConfig,
    rng: Rng,
    now_us: u64,
    /// The time when the bottleneck has sent all that it has, nanoseconds.
    free_ns: u64,
    flight: VecDeque<Packet>,
    acks: u64,
    timeouts: u64,
    losses: u64,
}

impl Path {
    /// A flow that starts at `now_us`.
    pub fn new(config: PathConfig, seed: u64, now_us: u64) -> Path {
        let rng = Rng::new(seed);
        Path { config, rng, now_us, free_ns: 0, flight: VecDeque::new(), acks: 0, timeouts: 0, losses: 0 }
    }

    /// Packets lost so far, and timeouts.
    pub fn mishaps(&self) -> (u64, u64) {
        (self.losses, self.timeouts)
    }

    /// Returns the measurements of the next ACK, if the window is `cwnd_bytes` until then.
    pub fn next_ack(&mut self, cwnd_bytes: u64) -> Prims {
        let phase = if self.config.phases { self.acks / PHASE_ACKS % 4 } else { 0 };
        if self.config.phases && self.acks.is_multiple_of(PHASE_ACKS) {
            match phase {
                2 => self.now_us += IDLE_US,
                // All that is on its way is lost.
                3 => self.flight.iter_mut().for_each(|p| p.ack_us = None),
                _ => {}
            }
        }
        self.acks += 1;
        let window_pkts = (cwnd_bytes / self.config.mss_bytes).max(1);
        let limit_pkts = if phase == 1 { window_pkts.min(APP_LIMIT_PKTS) } else { window_pkts };
        // After a blackout nothing is sent until its end is noticed.
        if self.flight.is_empty() || self.flight.iter().any(|p| p.ack_us.is_some()) {
            while (self.flight.len() as u64) < limit_pkts {
                self.send();
            }
        }
        let mut prims = Prims::default();
        let first_us = self.flight.iter().filter_map(|p| p.ack_us).min();
        match first_us {
            Some(first_us) => self.deliver(first_us, &mut prims),
            None => self.time_out(&mut prims),
        }
        let in_flight = self.flight.len() as i64;
        prims
            .set(Prim::AckNow, self.now_us as i64)
            .set(Prim::FlowPacketsInFlight, in_flight)
            .set(Prim::FlowBytesInFlight, in_flight * self.config.mss_bytes as i64)
            .set(Prim::FlowRateOutgoing, self.config.rate_bytes_per_s as i64)
            .set(Prim::FlowRateIncoming, self.config.rate_bytes_per_s as i64);
        prims
    }

    fn send(&mut self) {
        let now_ns = self.now_us * 1000;
        let queue_us = self.free_ns.saturating_sub(now_ns) / 1000;
        let unlucky = self.config.loss_one_in > 0 && self.rng.one_in(self.config.loss_one_in);
        let mut packet = Packet { sent_us: self.now_us, ack_us: None, marked: false, overtaken: 0 };
        if queue_us <= self.config.queue_us && !unlucky {
            self.free_ns = self.free_ns.max(now_ns)
                + self.config.mss_bytes * 1_000_000_000 / self.config.rate_bytes_per_s;
            packet.ack_us = Some(self.free_ns / 1000 + self.config.rtt_us);
            packet.marked = self.config.mark_us > 0 && queue_us > self.config.mark_us;
        }
        self.flight.push_back(packet);
    }

    /// The ACK of what arrives from `first_us` on, and the losses that it tells of.
    fn deliver(&mut self, first_us: u64, prims: &mut Prims) {
        let until_us = first_us + self.config.aggregate_us;
        let (mut acked, mut misordered, mut marked, mut lost) = (0, 0, 0, 0);
        let mut sent_us = 0;
        // The bottleneck keeps the order, so that what is delivered now are the first that were not lost.
        let delivered = self.flight.iter().filter(|p| p.ack_us.is_some_and(|at| at <= until_us)).count();
        let mut left = delivered as u32;
        let mut kept = VecDeque::new();
        for mut packet in std::mem::take(&mut self.flight) {
            match packet.ack_us {
                Some(at) if at <= until_us => {
                    let in_order = kept.is_empty();
                    acked += i64::from(in_order);
                    misordered += i64::from(!in_order);
                    marked += i64::from(packet.marked);
                    sent_us = packet.sent_us;
                    self.now_us = self.now_us.max(at);
                    left -= 1;
                }
                None if left > 0 && packet.overtaken + left >= REORDERING_PKTS => lost += 1,
                _ => {
                    packet.overtaken += if packet.ack_us.is_none() { left } else { 0 };
                    kept.push_back(packet);
                }
            }
        }
        self.flight = kept;
        self.losses += lost as u64;
        let mss = self.config.mss_bytes as i64;
        prims
            .set(Prim::AckPacketsAcked, acked)
            .set(Prim::AckBytesAcked, acked * mss)
            .set(Prim::AckPacketsMisordered, misordered)
            .set(Prim::AckBytesMisordered, misordered * mss)
            .set(Prim::AckEcnPackets, marked)
            .set(Prim::AckEcnBytes, marked * mss)
            .set(Prim::AckLostPktsSample, lost)
            .set(Prim::FlowRttSampleUs, self.now_us.saturating_sub(sent_us) as i64);
    }

    /// Produces the first ACK after a retransmission timeout: the retransmission's, which has no RTT
    /// sample (RFC 6298, Karn).
    fn time_out(&mut self, prims: &mut Prims) {
        self.now_us += MIN_RTO_US.max(2 * self.config.rtt_us) + self.config.rtt_us;
        let lost = self.flight.len() as i64;
        self.flight.clear();
        self.timeouts += 1;
        self.losses += lost as u64;
        prims
            .set(Prim::AckPacketsAcked, 1)
            .set(Prim::AckBytesAcked, self.config.mss_bytes as i64)
            .set(Prim::AckLostPktsSample, lost)
            .set(Prim::FlowWasTimeout, 1);
    }
}

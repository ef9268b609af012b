//! A flow's way through one bottleneck, in virtual time and integers: what ACKs say when operations happen.
//!
//! Deliberately small and apart from the simulator: goldens rest on it, so it changes only when the kit does. A
//! sender with selective acknowledgements finds losses by three later deliveries or by its timer (RFC 6298,
//! backing off); delivery rates are taken as Linux does (`net/ipv4/tcp_rate.c`).

use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// Later deliveries after which a packet is taken for lost (RFC 5681's duplicate ACKs).
const REORDERING_PACKETS: u64 = 3;
/// The least retransmission timeout, which is Linux's.
const MIN_RTO_US: u64 = 200_000;
/// Doublings of the timer.
const MAX_BACKOFF: u32 = 6;
/// Packets in flight, whatever the window: the send buffer.
const MAX_FLIGHT: usize = 8192;
/// The content of a bulk flow's send buffer beyond the packets in flight, bytes.
const BULK_PENDING_BYTES: u64 = 4 << 20;

/// A bottleneck and its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// Rate of the bottleneck, bytes of payload per second.
    pub rate_bytes_per_s: u32,
    /// Round trip without a queue, microseconds.
    pub rtt_us: u32,
    /// Longest queue, microseconds of the bottleneck's rate; what comes then is lost.
    pub queue_us: u32,
    /// Payload of a segment, bytes.
    pub mss_bytes: u16,
    /// The window that the flow starts with, packets.
    pub init_cwnd_packets: u16,
}

impl Default for PathConfig {
    /// 12 Mb/s and 40 ms with a queue of one bandwidth-delay product, 41 packets.
    fn default() -> Self {
        PathConfig {
            rate_bytes_per_s: 1_500_000,
            rtt_us: 40_000,
            queue_us: 40_000,
            mss_bytes: 1448,
            init_cwnd_packets: 10,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    InFlight,
    /// Found lost, not sent again yet.
    Lost,
    /// Delivered, with a gap before it.
    Sacked,
}

/// The flow's state when a packet was transmitted, for the delivery rate.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    delivered: u64,
    delivered_us: u64,
    window_sent_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    bytes: u64,
    state: State,
    tx: u64,
    sent_us: u64,
    retransmitted: bool,
    marked: bool,
    stamp: Stamp,
}

/// An ACK on its way back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Arrival {
    at_us: u64,
    tx: u64,
    seq: u64,
}

/// The sums over the packets that one ACK covers.
#[derive(Default)]
struct Acked {
    packets: i64,
    bytes: u64,
    misordered: i64,
    misordered_bytes: u64,
    marked: i64,
    marked_bytes: u64,
    rtt_us: Option<u64>,
    newest: Option<Packet>,
}

/// The flow's way. Time moves in [`RigPath::next_ack`] and [`RigPath::jump`] only.
pub(crate) struct RigPath {
    pub(crate) config: PathConfig,
    now_us: u64,
    /// The time when the bottleneck has sent all that it has, nanoseconds.
    free_ns: u64,
    /// The packets by sequence number, from `first_seq`.
    packets: VecDeque<Packet>,
    first_seq: u64,
    next_tx: u64,
    highest_delivered_tx: u64,
    /// Transmissions in flight, and their packets.
    flight: BTreeMap<u64, u64>,
    flight_bytes: u64,
    /// Packets found lost that wait to be sent again.
    lost: BTreeSet<u64>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    next_paced_us: u64,
    srtt_us: u64,
    min_rtt_us: u64,
    backoff: u32,
    /// The time since which the timer runs.
    timer_us: u64,
    /// The timer has run out, and no ACK has come since.
    timed_out: bool,
    /// The sender waits until the timer runs out.
    stalled: bool,
    delivered: u64,
    delivered_us: u64,
    window_sent_us: u64,
    rates: (u64, u64),
    newly_lost: i64,
    pub(crate) app_limit: Option<u16>,
    pub(crate) idle: bool,
    pub(crate) aggregate_us: u64,
    pub(crate) lose_next: u16,
    pub(crate) mark_next: u16,
    pub(crate) delay_next: (u16, u64),
    dark_until_us: u64,
}

impl RigPath {
    pub(crate) fn new(config: PathConfig, now_us: u64) -> RigPath {
        RigPath {
            config,
            now_us,
            free_ns: 0,
            packets: VecDeque::new(),
            first_seq: 0,
            next_tx: 0,
            highest_delivered_tx: 0,
            flight: BTreeMap::new(),
            flight_bytes: 0,
            lost: BTreeSet::new(),
            arrivals: BinaryHeap::new(),
            next_paced_us: 0,
            srtt_us: 0,
            min_rtt_us: u64::MAX,
            backoff: 0,
            timer_us: now_us,
            timed_out: false,
            stalled: false,
            delivered: 0,
            delivered_us: now_us,
            window_sent_us: now_us,
            rates: (0, 0),
            newly_lost: 0,
            app_limit: None,
            idle: false,
            aggregate_us: 0,
            lose_next: 0,
            mark_next: 0,
            delay_next: (0, 0),
            dark_until_us: 0,
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Payload bytes delivered since the start.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// All that is on its way is lost; the timer will tell.
    pub(crate) fn lose_all(&mut self) {
        self.arrivals.clear();
        self.stalled = !self.flight.is_empty();
    }

    /// Like [`RigPath::lose_all`], and so is what is sent for the next `us` microseconds.
    pub(crate) fn black_out(&mut self, us: u64) {
        self.arrivals.clear();
        self.dark_until_us = self.now_us + us;
    }

    /// The clock moves on while nothing is done.
    pub(crate) fn jump(&mut self, us: u64) {
        self.now_us += us;
    }

    /// The next ACK until `until_us`, if the window (bytes) and the pacing rate (bytes per second, 0: none) are
    /// these till then. `None` when it is that late.
    pub(crate) fn next_ack(&mut self, window_bytes: u64, rate: u64, until_us: u64) -> Option<Prims> {
        loop {
            let send_us = self.may_send(window_bytes).then(|| self.next_paced_us.max(self.now_us));
            let ack_us = self.arrivals.peek().map(|a| (a.0.at_us + self.aggregate_us).max(self.now_us));
            let timer_us =
                (!self.flight.is_empty()).then(|| (self.timer_us + self.rto_us()).max(self.now_us));
            let next_us = [send_us, ack_us, timer_us].into_iter().flatten().min().unwrap_or(u64::MAX);
            if next_us > until_us {
                self.now_us = self.now_us.max(until_us);
                return None;
            }
            self.now_us = next_us;
            if ack_us == Some(next_us) {
                return Some(self.deliver());
            } else if send_us == Some(next_us) {
                self.send(rate);
            } else {
                self.time_out();
            }
        }
    }

    fn rto_us(&self) -> u64 {
        MIN_RTO_US.max(2 * self.srtt_us) << self.backoff
    }

    fn may_send(&self, window_bytes: u64) -> bool {
        let limit = self.app_limit.map_or(MAX_FLIGHT, usize::from);
        let mss = u64::from(self.config.mss_bytes);
        // After a timeout one packet at a time, until the program has seen it.
        let room = if self.timed_out {
            self.flight.is_empty()
        } else {
            self.flight_bytes + mss <= window_bytes.max(mss)
        };
        let fresh = !self.idle && self.flight.len() < limit && self.packets.len() < MAX_FLIGHT;
        room && (!self.lost.is_empty() || fresh) && !self.stalled
    }

    fn send(&mut self, rate: u64) {
        if self.flight.is_empty() {
            (self.window_sent_us, self.delivered_us) = (self.now_us, self.now_us);
            self.timer_us = self.now_us;
        }
        let stamp = Stamp {
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            window_sent_us: self.window_sent_us,
        };
        let again = self.lost.pop_first().map(|seq| (seq - self.first_seq) as usize);
        let index = again.unwrap_or(self.packets.len());
        if again.is_none() {
            let bytes = self.config.mss_bytes.into();
            self.packets.push_back(Packet {
                bytes,
                state: State::InFlight,
                tx: 0,
                sent_us: 0,
                retransmitted: false,
                marked: false,
                stamp,
            });
        }
        self.next_tx += 1;
        let (tx, seq, now_us) = (self.next_tx, self.first_seq + index as u64, self.now_us);
        let packet = &mut self.packets[index];
        packet.state = State::InFlight;
        (packet.tx, packet.sent_us, packet.stamp) = (tx, now_us, stamp);
        packet.retransmitted = again.is_some();
        let bytes = packet.bytes;
        self.flight.insert(tx, seq);
        self.flight_bytes += bytes;
        if rate > 0 {
            self.next_paced_us = now_us + (bytes * 1_000_000).div_ceil(rate);
        }
        if let Some((at_us, marked)) = self.carry(bytes) {
            self.packets[index].marked = marked;
            self.arrivals.push(Reverse(Arrival { at_us, tx, seq }));
        }
    }

    /// Returns the time when the ACK of a packet that is sent now arrives, and whether the packet was marked; `None`:
    /// lost.
    fn carry(&mut self, bytes: u64) -> Option<(u64, bool)> {
        let now_ns = self.now_us * 1000;
        let queue_us = self.free_ns.saturating_sub(now_ns) / 1000;
        let unlucky = take(&mut self.lose_next);
        if unlucky || self.now_us < self.dark_until_us || queue_us > self.config.queue_us.into() {
            return None;
        }
        let rate = u64::from(self.config.rate_bytes_per_s.max(1));
        self.free_ns = self.free_ns.max(now_ns) + bytes * 1_000_000_000 / rate;
        let late_us = if take(&mut self.delay_next.0) { self.delay_next.1 } else { 0 };
        let at_us = self.free_ns / 1000 + u64::from(self.config.rtt_us) + late_us;
        Some((at_us, take(&mut self.mark_next)))
    }

    /// One ACK of all that has arrived.
    fn deliver(&mut self) -> Prims {
        let mut acked = Acked::default();
        while let Some(Reverse(arrival)) = self.arrivals.peek().copied() {
            if arrival.at_us > self.now_us {
                break;
            }
            self.arrivals.pop();
            self.arrive(arrival, &mut acked);
        }
        let was_timeout = std::mem::take(&mut self.timed_out);
        self.backoff = 0;
        self.timer_us = self.now_us;
        self.find_lost();
        if let Some(newest) = acked.newest {
            self.sample_rate(newest.stamp, newest.sent_us);
        }
        if let Some(rtt_us) = acked.rtt_us {
            self.min_rtt_us = self.min_rtt_us.min(rtt_us);
            self.srtt_us = if self.srtt_us == 0 { rtt_us } else { (7 * self.srtt_us + rtt_us) / 8 };
        }
        self.prims(&acked, was_timeout)
    }

    /// Handles the arrival of one packet's ACK.
    fn arrive(&mut self, arrival: Arrival, acked: &mut Acked) {
        let Some(index) = arrival.seq.checked_sub(self.first_seq) else { return };
        let Some(packet) = self.packets.get_mut(index as usize) else { return };
        match packet.state {
            State::Sacked => return,
            State::Lost => {
                self.lost.remove(&arrival.seq);
            }
            State::InFlight => {
                self.flight.remove(&packet.tx);
                self.flight_bytes -= packet.bytes;
            }
        }
        packet.state = State::Sacked;
        let packet = *packet;
        self.delivered += packet.bytes;
        self.delivered_us = self.now_us;
        self.highest_delivered_tx = self.highest_delivered_tx.max(arrival.tx);
        if packet.marked {
            acked.marked += 1;
            acked.marked_bytes += packet.bytes;
        }
        // Karn: an ACK of what was sent twice tells no RTT.
        if !packet.retransmitted {
            acked.rtt_us = Some((self.now_us - packet.sent_us).max(1));
        }
        if acked.newest.is_none_or(|n| n.tx < packet.tx) {
            acked.newest = Some(packet);
        }
        // Each packet counts once: when its hole is filled later, only its bytes do.
        if index > 0 {
            acked.misordered += 1;
            acked.misordered_bytes += packet.bytes;
        } else {
            acked.packets += 1;
        }
        while let Some(first) = self.packets.front().filter(|p| p.state == State::Sacked) {
            acked.bytes += first.bytes;
            self.packets.pop_front();
            self.first_seq += 1;
        }
    }

    fn find_lost(&mut self) {
        while let Some((&tx, &seq)) = self.flight.first_key_value() {
            if tx + REORDERING_PACKETS > self.highest_delivered_tx {
                break;
            }
            self.flight.remove(&tx);
            self.mark_lost(seq);
        }
    }

    fn mark_lost(&mut self, seq: u64) {
        let Some(packet) = self.packets.get_mut((seq - self.first_seq) as usize) else { return };
        packet.state = State::Lost;
        self.flight_bytes -= packet.bytes;
        self.lost.insert(seq);
        self.newly_lost += 1;
    }

    fn time_out(&mut self) {
        for seq in std::mem::take(&mut self.flight).into_values() {
            self.mark_lost(seq);
        }
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.timer_us = self.now_us;
        self.next_paced_us = self.now_us;
        (self.timed_out, self.stalled) = (true, false);
    }

    fn sample_rate(&mut self, stamp: Stamp, sent_us: u64) {
        self.window_sent_us = sent_us;
        let delivered = self.delivered - stamp.delivered;
        let send_us = sent_us.saturating_sub(stamp.window_sent_us);
        let ack_us = self.now_us - stamp.delivered_us;
        // Below the smallest RTT an interval means nothing.
        if send_us.max(ack_us) >= self.min_rtt_us.clamp(1, u64::MAX - 1) || self.min_rtt_us == u64::MAX {
            let rate = |us: u64| (delivered * 1_000_000).checked_div(us).unwrap_or(0);
            self.rates = (rate(send_us), rate(send_us.max(ack_us)));
        }
    }

    fn prims(&mut self, acked: &Acked, was_timeout: bool) -> Prims {
        let pending = match self.app_limit {
            _ if self.idle => self.flight_bytes,
            Some(limit) => u64::from(limit) * u64::from(self.config.mss_bytes),
            None => self.flight_bytes + BULK_PENDING_BYTES,
        };
        let mut prims = Prims::default();
        prims
            .set(Prim::AckPacketsAcked, acked.packets)
            .set(Prim::AckBytesAcked, acked.bytes as i64)
            .set(Prim::AckPacketsMisordered, acked.misordered)
            .set(Prim::AckBytesMisordered, acked.misordered_bytes as i64)
            .set(Prim::AckEcnPackets, acked.marked)
            .set(Prim::AckEcnBytes, acked.marked_bytes as i64)
            .set(Prim::AckLostPktsSample, std::mem::take(&mut self.newly_lost))
            .set(Prim::AckNow, self.now_us as i64)
            .set(Prim::FlowPacketsInFlight, self.flight.len() as i64)
            .set(Prim::FlowBytesInFlight, self.flight_bytes as i64)
            .set(Prim::FlowBytesPending, pending as i64)
            .set(Prim::FlowRateOutgoing, self.rates.0 as i64)
            .set(Prim::FlowRateIncoming, self.rates.1 as i64)
            .set(Prim::FlowRttSampleUs, acked.rtt_us.unwrap_or(0) as i64)
            .set(Prim::FlowWasTimeout, was_timeout.into());
        prims
    }
}

/// Takes one of a count, if there is one.
fn take(count: &mut u16) -> bool {
    let had = *count > 0;
    *count = count.saturating_sub(1);
    had
}

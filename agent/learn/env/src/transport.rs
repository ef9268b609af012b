//! The sender of one flow and its receiver: what is in flight, what each ACK says, what is lost.
//!
//! As `datapath-shims/sim` does it, which follows Linux, but for packets that only count: segments are numbered, all of the
//! same size, and arrive in the order in which they were sent. So three later deliveries mean a loss, and RACK's timer,
//! which waits for reordering, is left out.

use crate::link::NS_PER_S;
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use std::collections::{BTreeSet, VecDeque};

/// Later packets delivered that mean a loss (RFC 6675).
const DUP_THRESHOLD: u64 = 3;
/// Longest that a receiver waits for a packet more (Linux, TCP_DELACK_MIN), nanoseconds.
const ACK_DELAY_NS: u64 = 40_000_000;
/// Least that the retransmission timeout exceeds the RTT by (Linux, TCP_RTO_MIN), nanoseconds.
const MIN_RTO_NS: u64 = 200_000_000;
const MAX_BACKOFF: u32 = 8;
/// The content of a bulk flow's send buffer beyond the packets in flight, bytes.
const PENDING_BYTES: u64 = 4 << 20;
/// A packet that never arrives.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u64,
    sent_ns: u64,
    /// The time when it arrives and its ACK could be back; [`NEVER`] if it does not.
    back_ns: u64,
    /// Delivered packets when it was sent, and when the last of them was.
    delivered: u64,
    delivered_ns: u64,
    /// The time when the window that it belongs to began to be sent.
    window_ns: u64,
}

/// The fate of a packet that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transit {
    /// The packet arrives, and its ACK could be back at this time.
    Back { at_ns: u64 },
    /// The queue had no room.
    Dropped,
    /// The packet was lost at random.
    Lost,
}

/// The kinds of loss recovery, in which the transport limits its sender besides the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recovery {
    /// Fast recovery, until all below segment `until` is delivered.
    Fast { until: u64, prior: u64, sent: u64, delivered: u64 },
    /// Slow start after a timeout.
    Timeout { until: u64 },
}

/// The sender and the receiver of one flow.
#[derive(Debug)]
pub(crate) struct Transport {
    mss_bytes: u64,
    /// Packets that an ACK waits for.
    ack_every: u32,
    ring: VecDeque<Sent>,
    /// Packets of the ring that the next ACK goes over, and how many of them it delivers.
    batch: usize,
    batch_delivers: u32,
    /// The time when it comes at the latest; whether nothing more joins it.
    ack_at_ns: u64,
    complete: bool,
    next_seq: u64,
    transmissions: u64,
    highest: u64,
    /// Segments that are not delivered though later ones are.
    holes: BTreeSet<u64>,
    /// The holes not yet taken for lost: segment, and packets delivered when it was passed over.
    suspects: VecDeque<(u64, u64)>,
    retransmit: VecDeque<u64>,
    una: u64,
    recovery: Option<Recovery>,
    pub(crate) in_flight: u64,
    pub(crate) delivered: u64,
    delivered_ns: u64,
    window_ns: u64,
    pub(crate) lost: u64,
    lost_unreported: u64,
    /// Lost, not dropped from a queue, and not found out yet; and found out since the last report.
    random: BTreeSet<u64>,
    pub(crate) random_losses: u32,
    timeout_unreported: bool,
    srtt_ns: u64,
    var_ns: u64,
    min_rtt_ns: u64,
    backoff: u32,
    rto_at_ns: u64,
    rates: (u64, u64),
}

/// The result of an ACK, beyond the primitives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acked {
    /// The number of newly delivered packets.
    pub(crate) packets: u64,
    /// RTT of the newest of them, nanoseconds.
    pub(crate) rtt_ns: u64,
    /// Whether all before them had arrived, and nothing was lost.
    advanced: bool,
    entered: bool,
}

impl Transport {
    pub(crate) fn new(mss_bytes: u64, ack_every: u32) -> Transport {
        Transport {
            mss_bytes,
            ack_every: ack_every.max(1),
            ring: VecDeque::with_capacity(256),
            batch: 0,
            batch_delivers: 0,
            ack_at_ns: NEVER,
            complete: false,
            next_seq: 0,
            transmissions: 0,
            highest: 0,
            holes: BTreeSet::new(),
            suspects: VecDeque::new(),
            retransmit: VecDeque::new(),
            una: 0,
            recovery: None,
            in_flight: 0,
            delivered: 0,
            delivered_ns: 0,
            window_ns: 0,
            lost: 0,
            lost_unreported: 0,
            random: BTreeSet::new(),
            random_losses: 0,
            timeout_unreported: false,
            srtt_ns: 0,
            var_ns: 0,
            min_rtt_ns: u64::MAX,
            backoff: 0,
            rto_at_ns: NEVER,
            rates: (0, 0),
        }
    }

    /// A packet leaves; `way` says what becomes of it. Calls come in order of both times.
    #[inline]
    pub(crate) fn send(&mut self, now_ns: u64, way: Transit) {
        let seq = match self.retransmit.pop_front() {
            Some(seq) => seq,
            None => {
                self.next_seq += 1;
                self.next_seq - 1
            }
        };
        if self.in_flight == 0 {
            self.window_ns = now_ns;
            self.delivered_ns = now_ns;
        }
        if self.rto_at_ns == NEVER {
            self.rto_at_ns = now_ns + self.rto_ns();
        }
        self.ring.push_back(Sent {
            seq,
            sent_ns: now_ns,
            back_ns: if let Transit::Back { at_ns } = way { at_ns } else { NEVER },
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            window_ns: self.window_ns,
        });
        if way == Transit::Lost {
            self.random.insert(seq);
        }
        self.transmissions += 1;
        self.in_flight += 1;
        if !self.complete {
            self.gather();
        }
    }

    /// Returns the time of the next event without a packet being sent: an ACK, or the retransmission timeout.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.ack_at_ns.min(self.rto_at_ns)
    }

    /// Extends the next ACK by what has been sent.
    #[inline]
    fn gather(&mut self) {
        while let Some(sent) = self.ring.get(self.batch) {
            if sent.back_ns == NEVER {
                self.batch += 1;
                continue;
            }
            if self.batch_delivers > 0 && sent.back_ns > self.ack_at_ns {
                // The receiver's patience is at an end before this one arrives.
                self.complete = true;
                return;
            }
            self.batch += 1;
            self.batch_delivers += 1;
            // Out of order, or filling a hole: an ACK at once.
            let at_once =
                !self.holes.is_empty() || sent.seq != self.highest + u64::from(self.batch_delivers) - 1;
            if self.batch_delivers >= self.ack_every || at_once {
                self.ack_at_ns = sent.back_ns;
                self.complete = true;
                return;
            }
            if self.batch_delivers == 1 {
                self.ack_at_ns = sent.back_ns + ACK_DELAY_NS;
            }
        }
    }

    /// Handles the event that is due: an ACK, which is returned, or the timeout.
    pub(crate) fn on_time(&mut self, now_ns: u64) -> Option<Acked> {
        if self.ack_at_ns <= self.rto_at_ns {
            return Some(self.on_ack(now_ns));
        }
        self.on_timeout(now_ns);
        None
    }

    fn on_ack(&mut self, now_ns: u64) -> Acked {
        let una = self.una;
        let mut newest = None;
        let packets = u64::from(self.batch_delivers);
        for _ in 0..self.batch {
            let Some(sent) = self.ring.pop_front() else { break };
            if sent.back_ns == NEVER {
                self.pass_over(sent.seq);
                continue;
            }
            self.delivered += 1;
            if sent.seq >= self.highest {
                self.highest = sent.seq + 1;
            } else {
                self.holes.remove(&sent.seq);
            }
            newest = Some(sent);
        }
        (self.batch, self.batch_delivers, self.complete, self.ack_at_ns) = (0, 0, false, NEVER);
        self.in_flight -= packets;
        self.una = self.holes.first().copied().unwrap_or(self.highest);
        let entered = self.find_losses();
        let mut rtt_ns = 0;
        if let Some(sent) = newest {
            rtt_ns = now_ns - sent.sent_ns;
            self.sample(rtt_ns);
            self.rate(now_ns, &sent);
        }
        self.backoff = 0;
        self.rto_at_ns = if self.in_flight > 0 { now_ns + self.rto_ns() } else { NEVER };
        let advanced = self.una > una && self.lost_unreported == 0;
        self.gather();
        Acked { packets, rtt_ns, advanced, entered }
    }

    /// A packet did not come though a later one did.
    fn pass_over(&mut self, seq: u64) {
        self.holes.insert(seq);
        self.highest = self.highest.max(seq + 1);
        self.suspects.push_back((seq, self.delivered));
    }

    /// Takes for lost what enough later packets have overtaken; true if a recovery begins.
    fn find_losses(&mut self) -> bool {
        let mut entered = false;
        while let Some((seq, passed)) = self.suspects.front().copied() {
            if self.delivered < passed + DUP_THRESHOLD {
                break;
            }
            self.suspects.pop_front();
            self.lose(seq);
            if self.recovery.is_none() {
                entered = true;
                self.recovery = Some(Recovery::Fast {
                    until: self.next_seq,
                    prior: self.in_flight + 1,
                    sent: self.transmissions,
                    delivered: self.delivered,
                });
            }
        }
        let until = match self.recovery {
            Some(Recovery::Fast { until, .. } | Recovery::Timeout { until }) => until,
            None => return entered,
        };
        if self.una >= until {
            self.recovery = None;
        }
        entered
    }

    fn lose(&mut self, seq: u64) {
        self.retransmit.push_back(seq);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.lost += 1;
        self.lost_unreported += 1;
        self.random_losses += u32::from(self.random.remove(&seq));
    }

    /// All that is in flight counts as lost.
    fn on_timeout(&mut self, now_ns: u64) {
        while let Some((seq, _)) = self.suspects.pop_front() {
            self.lose(seq);
        }
        while let Some(sent) = self.ring.pop_front() {
            self.holes.insert(sent.seq);
            self.highest = self.highest.max(sent.seq + 1);
            self.lose(sent.seq);
        }
        self.in_flight = 0;
        (self.batch, self.batch_delivers, self.complete, self.ack_at_ns) = (0, 0, false, NEVER);
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.recovery = Some(Recovery::Timeout { until: self.next_seq });
        self.timeout_unreported = true;
        self.rto_at_ns = now_ns + self.rto_ns();
    }

    /// The window that may be in flight, packets, where the program wants `wanted`.
    #[inline]
    pub(crate) fn window(&self, wanted: u64, paced: bool, acked: &Acked) -> u64 {
        match self.recovery {
            None => wanted,
            // Pacing keeps what the window holds through a loss from coming out in one burst.
            Some(Recovery::Fast { .. }) if paced => wanted,
            Some(Recovery::Timeout { .. }) => wanted.min(self.in_flight + (2 * acked.packets).max(1)),
            Some(Recovery::Fast { prior, sent, delivered, .. }) => {
                // Proportional rate reduction (RFC 6937).
                let (sent, delivered) =
                    (self.transmissions - sent, self.delivered - delivered + acked.packets);
                let window = if self.in_flight > wanted {
                    self.in_flight + (wanted * delivered).div_ceil(prior.max(1)).saturating_sub(sent)
                } else {
                    let unanswered = delivered.saturating_sub(sent);
                    wanted.min(self.in_flight + unanswered.max(acked.packets) + u64::from(acked.advanced))
                };
                if acked.entered || sent == 0 { window.max(self.in_flight + 1) } else { window }
            }
        }
    }

    /// Fills in the primitives that the program sees of an ACK.
    #[inline]
    pub(crate) fn prims(&mut self, now_ns: u64, acked: &Acked, limited: bool) -> Prims {
        let mut prims = Prims::default();
        let in_flight_bytes = self.in_flight * self.mss_bytes;
        let pending = if limited { in_flight_bytes } else { in_flight_bytes + PENDING_BYTES };
        prims
            .set(Prim::AckBytesAcked, (acked.packets * self.mss_bytes) as i64)
            .set(Prim::AckLostPktsSample, std::mem::take(&mut self.lost_unreported) as i64)
            .set(Prim::AckNow, (now_ns / 1000) as i64)
            .set(Prim::AckPacketsAcked, acked.packets as i64)
            .set(Prim::FlowBytesInFlight, in_flight_bytes as i64)
            .set(Prim::FlowBytesPending, pending as i64)
            .set(Prim::FlowPacketsInFlight, self.in_flight as i64)
            .set(Prim::FlowRateIncoming, self.rates.0 as i64)
            .set(Prim::FlowRateOutgoing, self.rates.1 as i64)
            .set(Prim::FlowRttSampleUs, (acked.rtt_ns / 1000).max(1) as i64)
            .set(Prim::FlowWasTimeout, std::mem::take(&mut self.timeout_unreported).into());
        prims
    }

    fn sample(&mut self, rtt_ns: u64) {
        self.min_rtt_ns = self.min_rtt_ns.min(rtt_ns);
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.var_ns) = (rtt_ns, rtt_ns / 2);
            return;
        }
        self.var_ns = (3 * self.var_ns + self.srtt_ns.abs_diff(rtt_ns)) / 4;
        self.srtt_ns = (7 * self.srtt_ns + rtt_ns) / 8;
    }

    /// The delivery rate (Linux, tcp_rate.c).
    #[inline]
    fn rate(&mut self, now_ns: u64, sent: &Sent) {
        self.delivered_ns = now_ns;
        self.window_ns = sent.sent_ns;
        let send_ns = sent.sent_ns - sent.window_ns;
        let took_ns = send_ns.max(now_ns - sent.delivered_ns);
        if took_ns >= self.min_rtt_ns {
            let bytes = (self.delivered - sent.delivered) * self.mss_bytes * NS_PER_S;
            self.rates = (bytes / took_ns, bytes.checked_div(send_ns).unwrap_or(0));
        }
    }

    fn rto_ns(&self) -> u64 {
        let base_ns =
            if self.srtt_ns == 0 { NS_PER_S } else { self.srtt_ns + (4 * self.var_ns).max(MIN_RTO_NS) };
        base_ns << self.backoff
    }
}

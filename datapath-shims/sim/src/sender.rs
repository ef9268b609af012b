//! The transport of one flow: what was sent, what arrived, what is lost. Decides nothing about windows or rates.
//!
//! Segments are numbered in order of the stream, transmissions in order of sending. So a retransmission that
//! is lost again is found like any other loss (as in RACK, RFC 8985, and QUIC, RFC 9002).

use crate::rtt::{MIN_RTO_NS, Rtt};
use ccplane_engine::rate::{RateSample, RateSampler, SendStamp};
use ccplane_netsim::Delivery;
use std::collections::VecDeque;

/// Later transmissions delivered that mean a loss (RFC 6675 `DupThresh`).
const DUP_THRESHOLD: u64 = 3;

/// Least time that a probe waits beyond two round trips: two of Linux's jiffies (`TCP_TIMEOUT_MIN`) at 250 a second.
const MIN_PROBE_NS: u64 = 8_000_000;

/// Reasons why a flow is in recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recovery {
    /// A loss was found.
    Fast,
    /// The retransmission timer ran out.
    Timeout,
}

/// The changes that one ACK made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Acked {
    /// Payload bytes by which the in-order stream grew, as the kernel's `tp->bytes_acked`: what was delivered
    /// out of order counts when its hole is filled.
    pub in_order_bytes: u64,
    /// Packets delivered in order. Each packet counts once, here or among the misordered ones.
    pub in_order_packets: u64,
    /// Packets delivered with a hole before them.
    pub misordered_packets: u64,
    pub misordered_bytes: u64,
    /// Packets marked lost since the last ACK, by this one or by a timer.
    pub lost_packets: u64,
    pub marked_packets: u64,
    pub marked_bytes: u64,
    /// RTT of the packet sent last, nanoseconds; none if only forgotten transmissions were delivered.
    pub rtt_ns: Option<u64>,
    /// Whether this is the first ACK since the retransmission timer expired.
    pub was_timeout: bool,
}

impl Acked {
    /// Returns the packets delivered, in order or not.
    #[inline]
    pub fn packets(&self) -> u64 {
        self.in_order_packets + self.misordered_packets
    }
}

/// The result of an expiry of the loss timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expired {
    Nothing,
    /// Packets were overdue and are marked lost.
    Losses,
    /// No ACK came for two round trips: one more segment is sent, whose ACK reveals losses.
    Probe,
    /// The retransmission timeout: everything in flight is marked lost.
    Timeout,
}

/// A segment to hand to the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    pub(crate) seq: u64,
    pub(crate) tx: u64,
    pub(crate) payload_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In flight, as its last transmission.
    Outstanding,
    /// Waits for its retransmission.
    Lost,
    Delivered,
}

/// A segment in 8 bytes: many flows' state should fit into a processor's cache.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The lower half of the number of its last transmission. While that is in flight, it is fewer than 2^32 behind the
    /// first one.
    tx: u32,
    /// An MSS is at most 16 KiB.
    payload_bytes: u16,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    stamp: SendStamp,
    /// The lower half of the segment's number. While it is in flight, it is fewer than 2^32 behind `una`.
    seq: u32,
    in_flight: bool,
}

/// Transport state of one flow.
#[derive(Debug)]
pub(crate) struct Sender {
    /// First segment not delivered in order (TCP's `SND.UNA`).
    una: u64,
    /// The segments from `una` on.
    segments: VecDeque<Segment>,
    /// Number of the first transmission in `transmissions`.
    first_tx: u64,
    transmissions: VecDeque<Transmission>,
    /// Segments to retransmit; those that meanwhile arrived are skipped.
    lost: VecDeque<u64>,
    largest_delivered_tx: Option<u64>,
    /// The kind of recovery, which lasts until `una` reaches the segment.
    recovery: Option<(Recovery, u64)>,
    /// Marks are answered again from this segment on.
    mark_answered_until: u64,
    timeout_unreported: bool,
    lost_unreported: u64,
    rto_at_ns: Option<u64>,
    overdue_at_ns: Option<u64>,
    /// Whether it finds losses by time as RACK does and probes for lost tails (RFC 8985).
    rack: bool,
    /// Delivered with a hole before them, and not yet in order (`tp->sacked_out`).
    sacked: u64,
    /// RTT of the last ACK's newest packet (`rack.rtt_us`).
    newest_rtt_ns: u64,
    /// Whether a segment arrived after one that had been sent later (`tp->reord_seen`).
    reordered: bool,
    probe_at_ns: Option<u64>,
    /// No further probe until `una` reaches the segment.
    probed_until: Option<u64>,
    rates: RateSampler,
    pub(crate) rtt: Rtt,
    /// The last valid sample.
    pub(crate) rate: RateSample,
    pub(crate) in_flight_packets: u64,
    pub(crate) in_flight_bytes: u64,
    pub(crate) delivered_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) bytes_acked: u64,
    /// Payload bytes sent for the first time.
    pub(crate) bytes_sent: u64,
}

impl Sender {
    /// A sender whose retransmission timeout exceeds the RTT by at least this; `rack`: as in RFC 8985, not as in RFC 9002.
    pub(crate) fn new(min_rto_ns: u64, rack: bool) -> Sender {
        Sender {
            una: 0,
            segments: VecDeque::new(),
            first_tx: 0,
            transmissions: VecDeque::new(),
            lost: VecDeque::new(),
            largest_delivered_tx: None,
            recovery: None,
            mark_answered_until: 0,
            timeout_unreported: false,
            lost_unreported: 0,
            rto_at_ns: None,
            overdue_at_ns: None,
            rack,
            sacked: 0,
            newest_rtt_ns: 0,
            reordered: false,
            probe_at_ns: None,
            probed_until: None,
            rates: RateSampler::default(),
            rtt: Rtt::new(min_rto_ns),
            rate: RateSample::default(),
            in_flight_packets: 0,
            in_flight_bytes: 0,
            delivered_packets: 0,
            lost_packets: 0,
            bytes_acked: 0,
            bytes_sent: 0,
        }
    }

    /// Reads a word of each part that an ACK touches, so that it is in the cache by then.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.una
            ^ self.first_tx
            ^ self.segments.len() as u64
            ^ self.transmissions.len() as u64
            ^ self.lost.len() as u64
            ^ self.rto_at_ns.unwrap_or(0)
            ^ self.in_flight_packets
            ^ self.delivered_packets
            ^ self.rate.delivery
            ^ self.rtt.srtt_ns()
    }

    /// Takes an ACK that tells of these segments, in order of their arrival.
    pub(crate) fn on_ack(&mut self, now_ns: u64, deliveries: &[Delivery]) -> Acked {
        let mut acked = Acked::default();
        let before = self.bytes_acked;
        // The transmissions sent first and last among those delivered.
        let (mut oldest, mut newest): (Option<SendStamp>, Option<SendStamp>) = (None, None);
        let mut bytes = 0;
        for delivery in deliveries {
            let transmission = self.transmission(delivery.tx);
            let Some(segment_bytes) = self.take_delivery(delivery, &mut acked) else { continue };
            bytes += segment_bytes;
            let Some(stamp) = transmission.map(|t| t.stamp) else { continue };
            oldest = oldest.filter(|s| s.sent_ns <= stamp.sent_ns).or(Some(stamp));
            newest = newest.filter(|s| s.sent_ns > stamp.sent_ns).or(Some(stamp));
            self.reordered |= self.largest_delivered_tx.is_some_and(|largest| delivery.tx < largest);
            self.largest_delivered_tx = self.largest_delivered_tx.max(Some(delivery.tx));
        }
        if bytes > 0 {
            // As in Linux (`tcp_clean_rtx_queue`): what an ACK waited for counts in the smoothed RTT, not in the sample.
            if let (Some(oldest), Some(newest)) = (oldest, newest) {
                acked.rtt_ns = Some(now_ns - newest.sent_ns);
                self.newest_rtt_ns = now_ns - newest.sent_ns;
                self.rtt.sample(now_ns - oldest.sent_ns, now_ns - newest.sent_ns);
            }
            let sample = self.rates.on_delivered(now_ns, bytes, newest, self.rtt.min_ns());
            self.rate = sample.unwrap_or(self.rate);
            self.rto_at_ns = None;
        }
        acked.in_order_bytes = self.bytes_acked - before;
        self.find_losses(now_ns);
        self.arm_rto(now_ns);
        self.arm_probe(now_ns);
        acked.lost_packets = std::mem::take(&mut self.lost_unreported);
        acked.was_timeout = std::mem::take(&mut self.timeout_unreported);
        acked
    }

    /// Counts a segment delivered; its payload bytes unless it was delivered before.
    #[inline]
    fn take_delivery(&mut self, delivery: &Delivery, acked: &mut Acked) -> Option<u64> {
        let in_order = delivery.seq == self.una;
        let bytes = self.deliver(delivery.seq)?;
        if in_order {
            acked.in_order_packets += 1;
            self.advance();
        } else {
            acked.misordered_packets += 1;
            acked.misordered_bytes += bytes;
            self.sacked += 1;
        }
        if delivery.marked {
            acked.marked_packets += 1;
            acked.marked_bytes += bytes;
        }
        Some(bytes)
    }

    /// Whether a mark is to be answered: once for each window (RFC 3168 section 6.1.2).
    pub(crate) fn answers_mark(&mut self) -> bool {
        let answers = self.una >= self.mark_answered_until;
        if answers {
            self.mark_answered_until = self.next_seq();
        }
        answers
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Segment>()
            + self.transmissions.capacity() * size_of::<Transmission>()
            + self.lost.capacity() * size_of::<u64>()
    }

    /// Gives memory back that an ended flow no longer needs.
    pub(crate) fn close(&mut self) {
        (self.segments, self.transmissions, self.lost) = Default::default();
    }

    /// The timer that [`Sender::deadline_ns`] asked for.
    pub(crate) fn on_timer(&mut self, now_ns: u64) -> Expired {
        let due = |at: Option<u64>| at.is_some_and(|at_ns| at_ns <= now_ns);
        if due(self.overdue_at_ns) {
            return if self.find_losses(now_ns) { Expired::Losses } else { Expired::Nothing };
        }
        if !due(self.rto_at_ns) {
            return if due(self.probe_at_ns) { self.probe(now_ns) } else { Expired::Nothing };
        }
        self.probe_at_ns = None;
        self.rtt.back_off();
        while !self.transmissions.is_empty() {
            self.forget_first();
        }
        self.overdue_at_ns = None;
        self.recovery = Some((Recovery::Timeout, self.next_seq()));
        self.timeout_unreported = true;
        self.rto_at_ns = Some(now_ns + self.rtt.rto_ns());
        Expired::Timeout
    }

    /// When [`Sender::on_timer`] has something to do.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let at = |at_ns: Option<u64>| at_ns.unwrap_or(u64::MAX);
        let first = at(self.rto_at_ns).min(at(self.overdue_at_ns)).min(at(self.probe_at_ns));
        (first != u64::MAX).then_some(first)
    }

    /// Sends a lost segment again, else up to `payload_bytes` of new data; `None` when there is neither.
    pub(crate) fn send(&mut self, now_ns: u64, payload_bytes: u32) -> Option<Outgoing> {
        let seq = match self.next_lost() {
            Some(seq) => seq,
            None if payload_bytes == 0 => return None,
            None => {
                let payload_bytes = payload_bytes as u16;
                self.segments.push_back(Segment { tx: 0, payload_bytes, state: State::Lost });
                self.bytes_sent += u64::from(payload_bytes);
                self.next_seq() - 1
            }
        };
        let tx = self.transmissions();
        let segment = self.segments.get_mut((seq - self.una) as usize)?;
        (segment.tx, segment.state) = (tx as u32, State::Outstanding);
        let payload_bytes = u32::from(segment.payload_bytes);
        let stamp = self.rates.on_send(now_ns, self.in_flight_packets == 0);
        self.transmissions.push_back(Transmission { stamp, seq: seq as u32, in_flight: true });
        self.in_flight_packets += 1;
        self.in_flight_bytes += u64::from(payload_bytes);
        self.arm_rto(now_ns);
        self.arm_probe(now_ns);
        Some(Outgoing { seq, tx, payload_bytes })
    }

    /// Returns the number of transmissions that have been made.
    pub(crate) fn transmissions(&self) -> u64 {
        self.first_tx + self.transmissions.len() as u64
    }

    /// Returns the reason why it is in recovery, if it is.
    pub(crate) fn recovery(&self) -> Option<Recovery> {
        self.recovery.map(|(why, _)| why)
    }

    /// When the oldest segment in flight left, by its latest transmission.
    pub(crate) fn oldest_sent_ns(&self) -> Option<u64> {
        self.transmissions.iter().find(|t| t.in_flight).map(|t| t.stamp.sent_ns)
    }

    /// The number of the oldest transmission that is neither delivered nor lost; that of the next one where there is none.
    pub(crate) fn oldest_transmission(&self) -> u64 {
        self.first_tx
    }

    /// Whether all that was sent has arrived.
    pub(crate) fn all_delivered(&self) -> bool {
        self.segments.is_empty()
    }

    fn next_seq(&self) -> u64 {
        self.una + self.segments.len() as u64
    }

    fn transmission(&self, tx: u64) -> Option<Transmission> {
        let index = tx.checked_sub(self.first_tx)?;
        self.transmissions.get(index as usize).copied()
    }

    /// Marks a segment delivered; its payload bytes unless it was already.
    fn deliver(&mut self, seq: u64) -> Option<u64> {
        let index = seq.checked_sub(self.una)?;
        let segment = self.segments.get_mut(index as usize)?;
        let bytes = u64::from(segment.payload_bytes);
        match std::mem::replace(&mut segment.state, State::Delivered) {
            State::Delivered => return None,
            State::Lost => {}
            State::Outstanding => {
                self.in_flight_packets -= 1;
                self.in_flight_bytes -= bytes;
                let behind_first = segment.tx.wrapping_sub(self.first_tx as u32);
                if let Some(t) = self.transmissions.get_mut(behind_first as usize) {
                    t.in_flight = false;
                }
            }
        }
        self.delivered_packets += 1;
        Some(bytes)
    }

    fn advance(&mut self) {
        let first = self.una;
        while let Some(segment) = self.segments.front().filter(|s| s.state == State::Delivered) {
            self.bytes_acked += u64::from(segment.payload_bytes);
            self.segments.pop_front();
            self.una += 1;
        }
        // All but the one that filled the hole.
        self.sacked = self.sacked.saturating_sub((self.una - first).saturating_sub(1));
        if self.recovery.is_some_and(|(_, until)| self.una >= until) {
            self.recovery = None;
        }
    }

    /// Marks lost what later deliveries or time say is; true if anything was.
    fn find_losses(&mut self, now_ns: u64) -> bool {
        self.overdue_at_ns = None;
        let before = self.lost_packets;
        let delay_ns = if self.rack { self.rack_delay_ns() } else { self.rtt.loss_delay_ns() };
        while let Some(first) = self.transmissions.front() {
            if first.in_flight {
                let Some(largest) = self.largest_delivered_tx.filter(|tx| self.first_tx < *tx) else { break };
                let overdue_at_ns = first.stamp.sent_ns + delay_ns;
                let passed_by = !self.rack && self.first_tx + DUP_THRESHOLD <= largest;
                if !passed_by && overdue_at_ns > now_ns {
                    self.overdue_at_ns = Some(overdue_at_ns);
                    break;
                }
            }
            self.forget_first();
        }
        let found = self.lost_packets > before;
        if found && self.recovery.is_none() {
            self.recovery = Some((Recovery::Fast, self.next_seq()));
        }
        found
    }

    /// Returns the age at which a packet is lost if a later one was delivered (`tcp_rack_reo_wnd` in Linux's
    /// tcp_recovery.c).
    fn rack_delay_ns(&self) -> u64 {
        let at_once = !self.reordered && (self.recovery.is_some() || self.sacked >= DUP_THRESHOLD);
        let window_ns = (self.rtt.min_ns() / 4).min(self.rtt.srtt_ns() / 8);
        if at_once { 0 } else { self.newest_rtt_ns + window_ns }
    }

    /// Forgets the first transmission; what was still in flight of it is lost.
    fn forget_first(&mut self) {
        let Some(t) = self.transmissions.pop_front() else { return };
        self.first_tx += 1;
        if !t.in_flight {
            return;
        }
        let behind_una = t.seq.wrapping_sub(self.una as u32);
        if let Some(segment) = self.segments.get_mut(behind_una as usize) {
            segment.state = State::Lost;
            self.in_flight_packets -= 1;
            self.in_flight_bytes -= u64::from(segment.payload_bytes);
            self.lost.push_back(self.una + u64::from(behind_una));
            self.lost_packets += 1;
            self.lost_unreported += 1;
        }
    }

    fn next_lost(&mut self) -> Option<u64> {
        while let Some(seq) = self.lost.pop_front() {
            let segment = seq.checked_sub(self.una).and_then(|i| self.segments.get(i as usize));
            if segment.is_some_and(|s| s.state == State::Lost) {
                return Some(seq);
            }
        }
        None
    }

    /// Arms the probe as `tcp_schedule_loss_probe` in Linux's tcp_output.c does; the timeout comes first
    /// where it is sooner.
    fn arm_probe(&mut self, now_ns: u64) {
        self.probed_until = self.probed_until.filter(|until| self.una < *until);
        let calm = self.recovery.is_none() && self.probed_until.is_none() && self.in_flight_packets > 0;
        self.probe_at_ns = (self.rack && calm).then(|| {
            let slack_ns = if self.in_flight_packets == 1 { MIN_RTO_NS } else { MIN_PROBE_NS };
            let at_ns = now_ns + 2 * self.rtt.srtt_ns() + slack_ns;
            self.rto_at_ns.map_or(at_ns, |rto_at_ns| at_ns.min(rto_at_ns.saturating_sub(1)))
        });
    }

    /// The probe is due; the timeout counts from it.
    fn probe(&mut self, now_ns: u64) -> Expired {
        self.probe_at_ns = None;
        self.probed_until = Some(self.next_seq() + 1);
        self.rto_at_ns = Some(now_ns + self.rtt.rto_ns());
        Expired::Probe
    }

    /// The timer runs while anything is not yet delivered (RFC 6298 section 5).
    fn arm_rto(&mut self, now_ns: u64) {
        if self.all_delivered() {
            self.rto_at_ns = None;
        } else if self.rto_at_ns.is_none() {
            self.rto_at_ns = Some(now_ns + self.rtt.rto_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BYTES: u32 = 1000;

    /// A sender with transmissions 0..n, one a millisecond from time 0.
    fn sent(n: u64) -> Sender {
        let mut sender = Sender::new(MIN_RTO_NS, false);
        for tx in 0..n {
            let out = Outgoing { seq: tx, tx, payload_bytes: BYTES };
            assert_eq!(sender.send(tx * MS, BYTES), Some(out));
        }
        sender
    }

    fn ack(seq: u64) -> [Delivery; 1] {
        retransmitted(seq, seq)
    }

    fn retransmitted(seq: u64, tx: u64) -> [Delivery; 1] {
        [Delivery { seq, tx, marked: false }]
    }

    #[test]
    fn the_third_later_delivery_is_a_loss() {
        let mut s = sent(10);
        let first = s.on_ack(100 * MS, &ack(1));
        assert_eq!((first.misordered_packets, first.misordered_bytes, first.lost_packets), (1, 1000, 0));
        assert_eq!(s.on_ack(100 * MS, &ack(2)).lost_packets, 0);
        assert_eq!(s.recovery(), None);
        assert_eq!(s.on_ack(100 * MS, &ack(3)).lost_packets, 1);
        assert_eq!((s.recovery(), s.in_flight_packets, s.bytes_acked), (Some(Recovery::Fast), 6, 0));
        // The lost one goes first, under a number of its own; so does one that is lost again.
        assert_eq!(s.send(101 * MS, BYTES), Some(Outgoing { seq: 0, tx: 10, payload_bytes: BYTES }));
        (11..14).for_each(|tx| assert_eq!(s.send(102 * MS, BYTES).map(|o| o.tx), Some(tx)));
        (4..10).for_each(|seq| assert_eq!(s.on_ack(105 * MS, &ack(seq)).lost_packets, 0));
        let lost: Vec<u64> =
            (11..14).map(|tx| s.on_ack(201 * MS, &retransmitted(tx - 1, tx)).lost_packets).collect();
        assert_eq!(lost, [0, 0, 1]);
        assert_eq!(s.send(202 * MS, 0).map(|o| o.seq), Some(0));
        let last = s.on_ack(300 * MS, &retransmitted(0, 14));
        assert_eq!((last.in_order_packets, last.in_order_bytes, s.bytes_acked), (1, 13_000, 13_000));
        assert_eq!((s.recovery(), s.all_delivered(), s.deadline_ns()), (None, true, None));
    }

    #[test]
    fn a_packet_overdue_by_an_eighth_is_lost() {
        let mut s = sent(2);
        assert_eq!(s.on_ack(81 * MS, &ack(1)).lost_packets, 0);
        // Sent at 0, RTT 80 ms.
        assert_eq!(s.deadline_ns(), Some(90 * MS));
        assert_eq!(s.on_timer(90 * MS - 1), Expired::Nothing);
        assert_eq!(s.on_timer(90 * MS), Expired::Losses);
        assert_eq!((s.recovery(), s.in_flight_packets), (Some(Recovery::Fast), 0));
        let next = s.on_ack(95 * MS, &ack(0));
        assert_eq!((next.lost_packets, next.was_timeout), (1, false), "told on the next ACK");
    }

    /// RFC 8985, section 6.2, step 4: three packets above the hole, or a recovery under way, need no further wait.
    #[test]
    fn rack_waits_for_a_quarter_of_the_rtt_but_not_in_recovery() {
        let mut s = sent(8);
        s.rack = true;
        // Packet 0 is lost: one later delivery is not enough.
        assert_eq!(s.on_ack(80 * MS, &ack(1)).lost_packets, 0);
        // Sent at 0; RTT 79 ms; a quarter of the smallest RTT is more than an eighth of the smoothed one.
        assert_eq!(s.overdue_at_ns, Some(79 * MS + 79 * MS / 8));
        assert_eq!(s.on_ack(82 * MS, &ack(3)).lost_packets, 0, "two holes, two above");
        let third = s.on_ack(83 * MS, &ack(4));
        assert_eq!((third.lost_packets, s.recovery()), (2, Some(Recovery::Fast)), "both");
        // In recovery the first later delivery is enough, of retransmissions too.
        assert_eq!(s.send(84 * MS, BYTES).map(|o| (o.seq, o.tx)), Some((0, 8)));
        assert_eq!(s.send(85 * MS, BYTES).map(|o| (o.seq, o.tx)), Some((2, 9)));
        assert_eq!(s.on_ack(165 * MS, &retransmitted(2, 9)).lost_packets, 4, "5, 6, 7, and 0 again");
        // What is reordered is waited for.
        let mut s = sent(8);
        s.rack = true;
        s.on_ack(80 * MS, &ack(2));
        s.on_ack(81 * MS, &ack(1));
        assert_eq!(s.on_ack(82 * MS, &[4, 5, 6].map(|seq| ack(seq)[0])).lost_packets, 0);
        assert!(s.overdue_at_ns.is_some_and(|at_ns| at_ns > 82 * MS));
    }

    #[test]
    fn a_silent_tail_is_probed_once() {
        let mut s = sent(3);
        s.rack = true;
        s.on_ack(40 * MS, &ack(0));
        // Two round trips of 40 ms, and two jiffies.
        assert_eq!(s.deadline_ns(), Some(128 * MS));
        assert_eq!(s.on_timer(128 * MS), Expired::Probe);
        assert_eq!(s.send(128 * MS, BYTES).map(|o| o.seq), Some(3));
        assert_eq!(
            s.deadline_ns(),
            Some(128 * MS + s.rtt.rto_ns()),
            "no second one; the timeout counts anew"
        );
        // The probe arrives: what was sent before it is lost.
        let acked = s.on_ack(170 * MS, &ack(3));
        assert_eq!((acked.lost_packets, s.recovery()), (2, Some(Recovery::Fast)));
    }

    #[test]
    fn a_timeout_gives_up_everything_in_flight() {
        let mut s = sent(3);
        assert_eq!(s.deadline_ns(), Some(1000 * MS), "before the first sample");
        assert_eq!(s.on_timer(1000 * MS), Expired::Timeout);
        assert_eq!((s.in_flight_packets, s.in_flight_bytes, s.lost_packets), (0, 0, 3));
        assert_eq!(s.deadline_ns(), Some(3000 * MS), "doubled");
        assert_eq!(s.send(1000 * MS, BYTES).map(|o| (o.seq, o.tx)), Some((0, 3)));
        // What was only late is delivered, gives no RTT, and is not sent again.
        let late = s.on_ack(1010 * MS, &ack(1));
        assert_eq!((late.rtt_ns, late.was_timeout, late.lost_packets), (None, true, 3));
        assert!(!s.on_ack(1011 * MS, &ack(2)).was_timeout, "told once");
        assert_eq!(s.send(1012 * MS, 0), None);
        let repaired = s.on_ack(1020 * MS, &retransmitted(0, 3));
        assert_eq!(repaired.rtt_ns, Some(20 * MS));
        assert!(s.all_delivered() && s.recovery().is_none());
        // A duplicate changes nothing.
        assert_eq!(s.on_ack(1021 * MS, &ack(0)), Acked::default());
    }

    #[test]
    fn an_ack_tells_of_several_segments() {
        let mut s = sent(6);
        let three = [0, 1, 3].map(|seq| Delivery { seq, tx: seq, marked: seq == 1 });
        let acked = s.on_ack(50 * MS, &three);
        assert_eq!((acked.in_order_packets, acked.in_order_bytes), (2, 2000));
        assert_eq!((acked.misordered_packets, acked.misordered_bytes), (1, 1000));
        assert_eq!((acked.marked_packets, acked.marked_bytes), (1, 1000));
        // The one sent last came back after 47 ms, the one sent first after 50.
        assert_eq!((acked.rtt_ns, s.rtt.srtt_ns(), s.rtt.min_ns()), (Some(47 * MS), 50 * MS, 47 * MS));
        assert!(s.answers_mark() && !s.answers_mark());
        s.on_ack(55 * MS, &[2, 4, 5].map(|seq| Delivery { seq, tx: seq, marked: true }));
        assert!(s.all_delivered() && s.answers_mark());
    }

    #[test]
    fn recovery_ends_when_all_sent_before_it_has_arrived() {
        let mut s = sent(5);
        for seq in 1..5 {
            s.on_ack(50 * MS, &ack(seq));
        }
        assert_eq!(s.recovery(), Some(Recovery::Fast));
        s.send(51 * MS, BYTES);
        s.send(51 * MS, BYTES);
        s.on_ack(99 * MS, &retransmitted(0, 5));
        assert_eq!((s.recovery(), s.all_delivered()), (None, false));
    }
}

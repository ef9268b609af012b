//! The transport of one flow, without I/O: what may leave and when, in which trains, and what was lost.
//!
//! [`crate::SimDatapath`] drives it, and so do the environments that policies are trained in. It hears of ACKs and of timers
//! that ran out, hands what leaves to a [`Carrier`], and says when its timers are due. What to want of it decides whoever
//! drives it.

use crate::config::{FlowConfig, HEADER_BYTES, Pacing, Stack};
use crate::reduction::Reduction;
use crate::sender::{Acked, Expired, Recovery, Sender};
use crate::trains::{PAIR, Situation, Trains, least_segments, most_segments, quota};
use ccplane_engine::native::MAX_CWND_PACKETS;
use ccplane_netsim::{Delivery, FlowIndex, Network, Segment};
use ccplane_program::ir::Prim;
use ccplane_program::vm::{Prims, ProgramState};

/// The network timer for losses and the retransmission timeout.
pub const LOSS_TIMER: u8 = 0;
/// The network timer for the next paced packet.
const PACING_TIMER: u8 = 1;
/// Bytes that a bulk flow reports in its send buffer, beyond those in flight.
const BULK_PENDING_BYTES: u64 = 4 << 20;
const NS_PER_S: u64 = 1_000_000_000;

/// The window and the rate that a flow's congestion control wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub window_packets: u64,
    /// Bytes per second; 0 where no rate is set.
    pub rate_bytes_per_s: u64,
    /// Whether the window is below half of the slow start threshold, so that Linux paces it at twice its rate.
    pub in_slow_start: bool,
}

impl Wanted {
    /// Returns the wishes of a program, of which Linux knows no slow start threshold.
    #[inline]
    pub fn of_program(state: &ProgramState, mss_bytes: u32) -> Wanted {
        let window_bytes = state.cwnd_bytes.max(0) as u64;
        Wanted {
            window_packets: (window_bytes / u64::from(mss_bytes.max(1))).clamp(1, MAX_CWND_PACKETS),
            rate_bytes_per_s: state.rate_bytes_per_s.max(0) as u64,
            in_slow_start: true,
        }
    }
}

/// A segment that leaves, and the flow's state just before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    pub seq: u64,
    /// The number of the transmission.
    pub tx: u64,
    pub payload_bytes: u32,
    /// Whether the segment ends a train of several, and so carries PSH.
    pub push: bool,
    /// Payload bytes that had been sent for the first time before this segment.
    pub bytes_sent: u64,
    /// Payload bytes of this segment that are sent for the first time: all or none.
    pub new_bytes: u64,
    /// Payload bytes in flight before this segment.
    pub bytes_in_flight: u64,
}

impl Departure {
    /// Makes the segment that the network carries.
    #[inline]
    pub fn segment(&self) -> Segment {
        // An MSS is at most 16 KiB.
        let bytes = (self.payload_bytes + HEADER_BYTES) as u16;
        Segment { seq: self.seq, tx: self.tx, bytes, push: self.push }
    }
}

/// Takes what a transport sends.
pub trait Carrier {
    /// Takes the next segment, in order of sending.
    fn carry(&mut self, departure: &Departure);
}

/// The times of a transport's timers after it has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a transport without its timers stands still"]
pub struct Deadlines {
    /// When the next paced segment may leave; `None` where pacing holds back nothing.
    pub pacing_ns: Option<u64>,
    /// When a loss, a probe or the retransmission timeout is due.
    pub loss_ns: Option<u64>,
}

impl Deadlines {
    /// Sets the flow's timers in the network.
    #[inline]
    pub fn set(&self, net: &mut Network, flow: FlowIndex) {
        if self.pacing_ns.is_some() {
            net.set_timer(flow, PACING_TIMER, self.pacing_ns);
        }
        net.set_timer(flow, LOSS_TIMER, self.loss_ns);
    }
}

/// The transport of one flow.
#[derive(Debug)]
pub struct Transport {
    mss_bytes: u32,
    pacing: Pacing,
    stack: Stack,
    pub(crate) sender: Sender,
    /// The window applied, packets: the wanted one, held back in recovery.
    window_packets: u64,
    reduction: Reduction,
    /// The recovery before the last ACK or timer.
    recovery_before: Option<Recovery>,
    /// Whether the application had more to send than it was allowed to.
    has_backlog: bool,
    /// When the last packet left, and its payload.
    last_sent: Option<(u64, u64)>,
    /// The trains of a stack that is Linux's.
    trains: Option<Trains>,
    /// Whether a tail loss probe is to be sent, whatever the window.
    probe_due: bool,
}

impl Transport {
    /// A transport that has sent nothing.
    pub fn new(config: &FlowConfig) -> Transport {
        let is_linux = config.stack != Stack::Segments;
        Transport {
            mss_bytes: config.mss_bytes,
            pacing: config.pacing,
            stack: config.stack,
            sender: Sender::new(u64::from(config.min_rto_us) * 1000, is_linux),
            window_packets: config.init_cwnd_packets.into(),
            reduction: Reduction::default(),
            recovery_before: None,
            has_backlog: false,
            last_sent: None,
            trains: is_linux.then(Trains::default),
            probe_due: false,
        }
    }

    /// Ends the handshake, whose round trip is the first RTT sample, as in Linux.
    pub fn connected(&mut self, base_rtt_ns: u64) {
        self.sender.rtt.sample(base_rtt_ns, base_rtt_ns);
    }

    /// Reads a word of each part that an ACK touches, so that it is in the cache by then.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.sender.touch() ^ self.window_packets
    }

    /// Takes an ACK that tells of these segments, in order of their arrival. [`Transport::apply_window`] follows once the
    /// flow's congestion control has decided.
    #[inline]
    pub fn on_ack(&mut self, now_ns: u64, deliveries: &[Delivery]) -> Acked {
        self.recovery_before = self.sender.recovery();
        self.sender.on_ack(now_ns, deliveries)
    }

    /// Processes an expiry of the loss timer, after which [`Transport::apply_window`] follows.
    pub fn on_loss_timer(&mut self, now_ns: u64) -> Expired {
        self.recovery_before = self.sender.recovery();
        let expired = self.sender.on_timer(now_ns);
        self.probe_due = expired == Expired::Probe;
        expired
    }

    /// Whether the last ACK or timer began a fast recovery.
    #[inline]
    pub(crate) fn entered_recovery(&self) -> bool {
        self.recovery_before.is_none() && self.sender.recovery() == Some(Recovery::Fast)
    }

    /// Applies the wanted window after an ACK, or after a timer with nothing acknowledged.
    ///
    /// In recovery the window comes down, and up again, as packets leave the network (as our kernel datapath does it): what a
    /// program keeps through a loss must not come out in one burst, which pacing sees to where it sets a rate. After a timeout
    /// it is slow start.
    #[inline]
    pub fn apply_window(&mut self, wanted: &Wanted, acked: &Acked) {
        let in_flight = self.sender.in_flight_packets;
        let window_packets = match self.sender.recovery() {
            None => wanted.window_packets,
            Some(Recovery::Fast) => self.recovery_window(wanted, acked),
            Some(Recovery::Timeout) => wanted.window_packets.min(in_flight + (2 * acked.packets()).max(1)),
        };
        self.window_packets = window_packets.max(1);
    }

    /// Returns the window in fast recovery.
    fn recovery_window(&mut self, wanted: &Wanted, acked: &Acked) -> u64 {
        let transmissions = self.sender.transmissions();
        if self.entered_recovery() {
            self.reduction = Reduction::from(self.window_packets, transmissions);
        }
        self.reduction.delivered_packets += acked.packets();
        if wanted.rate_bytes_per_s > 0 {
            wanted.window_packets
        } else {
            let in_flight = self.sender.in_flight_packets;
            self.reduction.window(wanted.window_packets, in_flight, transmissions, acked)
        }
    }

    /// Returns what the flow's program sees of an ACK; `pending_bytes` are written and not acknowledged.
    #[inline]
    pub fn prims(&self, now_ns: u64, acked: &Acked, pending_bytes: u64) -> Prims {
        let sender = &self.sender;
        let mut prims = Prims::default();
        let rtt_us = acked.rtt_ns.map_or(0, |ns| (ns / 1000).max(1));
        let mut set = |prim, value: u64| {
            prims.set(prim, i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(Prim::AckBytesAcked, acked.in_order_bytes);
        set(Prim::AckBytesMisordered, acked.misordered_bytes);
        set(Prim::AckEcnBytes, acked.marked_bytes);
        set(Prim::AckEcnPackets, acked.marked_packets);
        set(Prim::AckLostPktsSample, acked.lost_packets);
        set(Prim::AckNow, now_ns / 1000);
        set(Prim::AckPacketsAcked, acked.in_order_packets);
        set(Prim::AckPacketsMisordered, acked.misordered_packets);
        set(Prim::FlowBytesInFlight, sender.in_flight_bytes);
        set(Prim::FlowBytesPending, pending_bytes);
        set(Prim::FlowPacketsInFlight, sender.in_flight_packets);
        set(Prim::FlowRateIncoming, sender.rate.delivery);
        set(Prim::FlowRateOutgoing, sender.rate.sending);
        set(Prim::FlowRttSampleUs, rtt_us);
        set(Prim::FlowWasTimeout, acked.was_timeout.into());
        prims
    }

    /// Sends what window, pacing and application allow; `written_bytes` is all that the application has written so far.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        written_bytes: u64,
        wanted: &Wanted,
        carrier: &mut impl Carrier,
    ) -> Deadlines {
        self.has_backlog = true;
        let mut sending = Sending { now_ns, written_bytes, carrier };
        if std::mem::take(&mut self.probe_due) {
            self.send_one(&mut sending, false);
        }
        let rate = self.pacing_rate(wanted);
        let pacing_ns = match self.trains {
            None => self.transmit_segments(&mut sending, rate),
            Some(mut trains) => {
                let sizing_rate = if rate > 0 { rate } else { self.window_rate(wanted) };
                let pacing_ns = self.transmit_trains(&mut sending, rate, sizing_rate, &mut trains);
                self.trains = Some(trains);
                pacing_ns
            }
        };
        Deadlines { pacing_ns, loss_ns: self.sender.deadline_ns() }
    }

    /// Returns the time until which pacing holds back the next segment.
    fn transmit_segments<C: Carrier>(&mut self, sending: &mut Sending<'_, C>, rate: u64) -> Option<u64> {
        while self.sender.in_flight_packets < self.window_packets {
            let due_ns = self.next_paced_ns(rate);
            if due_ns > sending.now_ns {
                return Some(due_ns);
            }
            if self.send_one(sending, false).is_none() {
                self.has_backlog = false;
                break;
            }
        }
        None
    }

    /// Sends trains as `tcp_write_xmit` in Linux's tcp_output.c does; returns the time until which pacing holds back the next.
    fn transmit_trains<C: Carrier>(
        &mut self,
        sending: &mut Sending<'_, C>,
        rate: u64,
        sizing_rate: u64,
        trains: &mut Trains,
    ) -> Option<u64> {
        let now_ns = sending.now_ns;
        let most_segments = self.most_segments(sizing_rate);
        while self.has_backlog && self.sender.in_flight_packets < self.window_packets {
            if rate > 0 && trains.due_ns() > now_ns {
                return Some(trains.due_ns());
            }
            let situation = Situation {
                now_ns,
                window: self.window_packets,
                in_flight: self.sender.in_flight_packets,
                most_segments,
                in_recovery: self.sender.recovery().is_some(),
                oldest_sent_ns: self.sender.oldest_sent_ns(),
                srtt_ns: self.sender.rtt.srtt_ns(),
            };
            if trains.defers(&situation) {
                break;
            }
            let segments = quota(self.window_packets, self.sender.in_flight_packets).min(most_segments);
            let (mut sent, mut bytes) = (0, 0);
            while sent < segments {
                // A train of several ends with PSH (`__tcp_transmit_skb`).
                let push = segments > 1 && sent + 1 == segments;
                let Some(payload_bytes) = self.send_one(sending, push) else {
                    self.has_backlog = false;
                    break;
                };
                sent += 1;
                bytes += payload_bytes;
            }
            if sent > 0 {
                trains.leave(now_ns, sent, bytes, rate);
            }
        }
        None
    }

    /// Returns the most segments of a train at this rate.
    fn most_segments(&self, sizing_rate: u64) -> u64 {
        let (min_rtt_us, mss_bytes) = (self.sender.rtt.min_ns() / 1000, u64::from(self.mss_bytes));
        let queue_us = (self.sender.rtt.srtt_ns() / 1000).saturating_sub(min_rtt_us);
        let least = match self.stack {
            Stack::Steered => least_segments(sizing_rate, queue_us, mss_bytes),
            Stack::Segments | Stack::Linux => PAIR,
        };
        most_segments(sizing_rate, min_rtt_us, mss_bytes, least)
    }

    /// Sends one segment, whatever the window; its payload bytes, if there is one to send.
    fn send_one<C: Carrier>(&mut self, sending: &mut Sending<'_, C>, push: bool) -> Option<u64> {
        let Sending { now_ns, written_bytes, carrier } = sending;
        let (bytes_sent, bytes_in_flight) = (self.sender.bytes_sent, self.sender.in_flight_bytes);
        let payload_bytes = (*written_bytes - bytes_sent).min(self.mss_bytes.into()) as u32;
        let sent = self.sender.send(*now_ns, payload_bytes)?;
        carrier.carry(&Departure {
            seq: sent.seq,
            tx: sent.tx,
            payload_bytes: sent.payload_bytes,
            push,
            bytes_sent,
            new_bytes: self.sender.bytes_sent - bytes_sent,
            bytes_in_flight,
        });
        self.last_sent = Some((*now_ns, sent.payload_bytes.into()));
        Some(sent.payload_bytes.into())
    }

    /// Bytes per second; 0 when ACK-clocked.
    #[inline]
    pub fn pacing_rate(&self, wanted: &Wanted) -> u64 {
        match wanted.rate_bytes_per_s {
            0 if self.pacing == Pacing::AckClocked => 0,
            0 => self.window_rate(wanted),
            rate => rate,
        }
    }

    /// The rate at which Linux paces the window (`tcp_update_pacing_rate`), bytes per second; 0 before the first RTT
    /// sample.
    fn window_rate(&self, wanted: &Wanted) -> u64 {
        let srtt_ns = self.sender.rtt.srtt_ns();
        if srtt_ns == 0 {
            return 0;
        }
        let percent = if wanted.in_slow_start { 200 } else { 120 };
        let window_bytes = u128::from(wanted.window_packets * u64::from(self.mss_bytes));
        (window_bytes * percent / 100 * u128::from(NS_PER_S) / u128::from(srtt_ns)).max(1) as u64
    }

    /// When the next packet may leave at this rate, judged by the last one.
    fn next_paced_ns(&self, rate: u64) -> u64 {
        match self.last_sent {
            Some((at_ns, bytes)) if rate > 0 => at_ns + bytes * NS_PER_S / rate,
            _ => 0,
        }
    }

    /// Changes the segment size from the next new segment on.
    pub(crate) fn set_mss(&mut self, mss_bytes: u32) {
        self.mss_bytes = mss_bytes;
    }

    pub(crate) fn mss_bytes(&self) -> u32 {
        self.mss_bytes
    }

    /// The window applied, packets.
    pub(crate) fn window_packets(&self) -> u64 {
        self.window_packets
    }

    /// Whether the application had more to send, at the last chance, than window and pacing allowed.
    pub(crate) fn has_backlog(&self) -> bool {
        self.has_backlog
    }

    /// Whether anything was ever sent.
    pub(crate) fn has_sent(&self) -> bool {
        self.last_sent.is_some()
    }

    /// The RTT that the receiver learns from timestamps, nanoseconds; `None` where its stack does not go by it.
    #[inline]
    pub fn timestamped_rtt_ns(&self) -> Option<u64> {
        self.trains.map(|_| self.sender.rtt.srtt_ns())
    }

    /// Written and not yet acknowledged bytes of a flow that always has more to send.
    #[inline]
    pub fn bulk_pending_bytes(&self) -> u64 {
        self.sender.in_flight_bytes + BULK_PENDING_BYTES
    }

    /// Payload acknowledged in order since the start, bytes.
    #[inline]
    pub fn acked_bytes(&self) -> u64 {
        self.sender.bytes_acked
    }

    /// Gives memory back that a flow needs no longer once all of it has arrived.
    pub fn close(&mut self) {
        self.sender.close();
    }

    /// Packets acknowledged since the start, also selectively.
    pub fn delivered_packets(&self) -> u64 {
        self.sender.delivered_packets
    }

    /// Packets marked lost since the start.
    pub fn lost_packets(&self) -> u64 {
        self.sender.lost_packets
    }

    /// The number of the oldest transmission that is neither delivered nor lost; that of the next one where there is none.
    pub fn oldest_transmission(&self) -> u64 {
        self.sender.oldest_transmission()
    }
}

/// A chance to send.
struct Sending<'a, C> {
    now_ns: u64,
    written_bytes: u64,
    carrier: &'a mut C,
}

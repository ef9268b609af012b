//! One flow: its sender, its flow controller, and the window and pacing that result.

use crate::config::{FlowConfig, HEADER_BYTES, MAX_SAMPLES, Native, Pacing, Source, Stack};
use crate::dctcp::Dctcp;
use crate::hosts::{Outbound, SimHosts};
use crate::reduction::Reduction;
use crate::sender::{Acked, Expired, Recovery, Sender};
use crate::trains::{PAIR, Situation, Trains, least_segments, most_segments, quota};
use ccplane_contract::registry::Change;
use ccplane_contract::{FlowId, FlowInfo, FlowStats, Mode, ProgramUid, SlotTable, TransportStats};
use ccplane_engine::SharedProgram;
use ccplane_engine::controller::FlowController;
use ccplane_engine::runner::{Runnable, Staged};
use ccplane_infer::FlowPolicy;
use ccplane_netsim::{Delivery, FlowIndex, Network, Segment};
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::Prims;

/// The network timer for losses and the retransmission timeout.
pub(crate) const LOSS_TIMER: u8 = 0;
/// The network timer for the next paced packet.
pub(crate) const PACING_TIMER: u8 = 1;
/// Bytes that a bulk flow reports in its send buffer, beyond those in flight.
const BULK_PENDING_BYTES: u64 = 4 << 20;
const NS_PER_S: u64 = 1_000_000_000;

/// One flow at one time, for plots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    pub at_us: u64,
    /// Congestion window as the program or the native algorithm wants it, bytes.
    pub cwnd_bytes: u64,
    /// Pacing rate in force, bytes per second; 0 when ACK-clocked.
    pub pacing_rate: u64,
    /// Smoothed RTT, microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Payload bytes acknowledged in order since the start.
    pub bytes_acked: u64,
    /// Packets acknowledged since the start, also selectively.
    pub delivered: u64,
    /// Payload bytes in flight.
    pub in_flight_bytes: u64,
    /// Packets marked lost since the start.
    pub lost: u64,
}

/// The effects of a program on an ACK, besides window and rate.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Invoked {
    /// The report registers, if it reported.
    pub(crate) report: Option<Vec<i64>>,
    /// Whether it asked a policy, which makes a report a row of a batch.
    pub(crate) asked: bool,
}

/// The network and hosts that a flow's packets go to.
pub(crate) struct Out<'a> {
    pub(crate) net: &'a mut Network,
    /// The hosts' datapath, which decides on packets before they leave.
    pub(crate) hosts: Option<&'a mut SimHosts>,
}

pub(crate) struct SimFlow {
    pub(crate) id: FlowId,
    /// Whether the agent knows of it.
    pub(crate) announced: bool,
    pub(crate) ended: bool,
    pub(crate) info: FlowInfo,
    pub(crate) samples: Vec<Sample>,
    pub(crate) reports: u32,
    mss_bytes: u32,
    pub(crate) source: Source,
    pub(crate) start_us: u64,
    /// The time of its end, microseconds of virtual time.
    pub(crate) ended_us: Option<u64>,
    /// The same time in nanoseconds.
    pub(crate) ended_ns: Option<u64>,
    pacing: Pacing,
    index: FlowIndex,
    sender: Sender,
    controller: FlowController<SharedProgram>,
    staged: Staged<SharedProgram>,
    policy: FlowPolicy,
    /// The window applied, packets: that of the program or Reno, held back in recovery.
    window_packets: u64,
    reduction: Reduction,
    /// Whether the application had more to send than it was allowed to.
    has_backlog: bool,
    /// When the last packet left, and its payload.
    last_sent: Option<(u64, u64)>,
    stack: Stack,
    /// The trains of a stack that is Linux's.
    trains: Option<Trains>,
    /// Whether a tail loss probe is to be sent, whatever the window.
    probe_due: bool,
    /// The state by which it answers marks without a program; `None` as Reno.
    dctcp: Option<Dctcp>,
    send_buffer_bytes: u64,
    /// The last ACK's changes.
    pub(crate) acked: Acked,
}

impl SimFlow {
    pub(crate) fn new(index: FlowIndex, config: &FlowConfig) -> SimFlow {
        let cwnd_packets = u64::from(config.init_cwnd_packets);
        let cwnd_bytes = cwnd_packets * u64::from(config.mss_bytes);
        SimFlow {
            id: FlowId(index.into()),
            announced: false,
            ended: false,
            info: FlowInfo {
                mss_bytes: config.mss_bytes,
                init_cwnd_bytes: cwnd_bytes,
                local: config.local,
                remote: config.remote,
                cgroup: config.cgroup,
                min_rtt_us: None,
            },
            samples: Vec::new(),
            reports: 0,
            mss_bytes: config.mss_bytes,
            source: config.source,
            start_us: config.start_us,
            ended_us: None,
            ended_ns: None,
            pacing: config.pacing,
            index,
            sender: Sender::new(u64::from(config.min_rto_us) * 1000, config.stack != Stack::Segments),
            controller: FlowController::new(cwnd_packets, config.mss_bytes),
            staged: Staged::default(),
            policy: FlowPolicy::default(),
            window_packets: cwnd_packets,
            reduction: Reduction::default(),
            has_backlog: false,
            last_sent: None,
            stack: config.stack,
            trains: (config.stack != Stack::Segments).then(Trains::default),
            probe_due: false,
            dctcp: (config.native == Native::Dctcp).then(Dctcp::new),
            send_buffer_bytes: config.send_buffer_bytes,
            acked: Acked::default(),
        }
    }

    /// Ends the handshake, whose round trip is the first RTT sample, as in Linux.
    pub(crate) fn connected(&mut self, base_rtt_ns: u64) {
        self.sender.rtt.sample(base_rtt_ns, base_rtt_ns);
        self.info.min_rtt_us = u32::try_from(base_rtt_ns / 1000).ok().filter(|us| *us != 0);
    }

    /// Reads a word of each part that an ACK touches, so that it is in the cache by then.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let state = self.controller.runner().flow();
        let program = state.regs[0] ^ state.cwnd_bytes;
        self.sender.touch() ^ program as u64 ^ self.window_packets ^ self.acked.in_order_bytes
    }

    /// Processes an ACK; returns what the program reported.
    pub(crate) fn on_ack(
        &mut self,
        now_ns: u64,
        deliveries: &[Delivery],
        agent_silent: bool,
        slots: &SlotTable,
        report: &mut [i64; MAX_REGS],
    ) -> Invoked {
        let (was, in_flight) = (self.sender.recovery(), self.sender.in_flight_packets);
        let acked = self.sender.on_ack(now_ns, deliveries);
        self.choose_mode(agent_silent);
        let invoked = if self.controller.mode() == Mode::Program {
            let prims = self.prims(now_ns, &acked);
            self.invoke(&prims, slots, report)
        } else {
            if self.entered_recovery(was) {
                self.controller.reno.on_loss(in_flight);
            }
            self.answer_marks(&acked, in_flight);
            if self.has_backlog && self.sender.recovery() != Some(Recovery::Fast) {
                self.controller.reno.on_ack(acked.packets());
            }
            Invoked::default()
        };
        self.apply_window(&acked, self.entered_recovery(was));
        self.acked = acked;
        invoked
    }

    /// Answers the marks of an ACK as the flow's native algorithm does.
    fn answer_marks(&mut self, acked: &Acked, in_flight: u64) {
        match &mut self.dctcp {
            Some(dctcp) => {
                let share = dctcp.on_ack(acked, self.sender.answers_mark());
                if let Some(share) = share.filter(|_| self.sender.recovery().is_none()) {
                    self.controller.reno.on_marks(share);
                }
            }
            None => {
                if acked.marked_packets > 0 && self.sender.recovery().is_none() && self.sender.answers_mark()
                {
                    self.controller.reno.on_loss(in_flight);
                }
            }
        }
    }

    fn invoke(&mut self, prims: &Prims, slots: &SlotTable, report: &mut [i64; MAX_REGS]) -> Invoked {
        if !self.staged.is_empty() {
            self.controller.take(&mut self.staged, prims.get(Prim::AckNow));
        }
        let mut policies = slots.policies(self.id.0, &mut self.policy);
        let outcome = self.controller.invoke(prims, &mut policies, report);
        let values = |program: &SharedProgram| report[..program.program().report_len()].to_vec();
        let running = self.controller.runner().running().filter(|_| outcome.report);
        Invoked { report: running.map(values), asked: outcome.asked }
    }

    /// Processes an expiry of the loss timer.
    pub(crate) fn on_loss_timer(&mut self, now_ns: u64, agent_silent: bool) {
        let (was, in_flight) = (self.sender.recovery(), self.sender.in_flight_packets);
        let expired = self.sender.on_timer(now_ns);
        self.probe_due = expired == Expired::Probe;
        self.choose_mode(agent_silent);
        if self.controller.mode() != Mode::Program {
            match expired {
                Expired::Timeout => self.controller.reno.on_timeout(in_flight),
                Expired::Losses if self.entered_recovery(was) => self.controller.reno.on_loss(in_flight),
                Expired::Losses | Expired::Probe | Expired::Nothing => {}
            }
        }
        self.apply_window(&Acked::default(), self.entered_recovery(was));
    }

    /// Packets that the flow has lost so far.
    pub(crate) fn lost_packets(&self) -> u64 {
        self.sender.lost_packets
    }

    fn entered_recovery(&self, before: Option<Recovery>) -> bool {
        before.is_none() && self.sender.recovery() == Some(Recovery::Fast)
    }

    fn choose_mode(&mut self, agent_silent: bool) {
        self.controller.choose(self.mode_now(agent_silent));
    }

    fn mode_now(&self, agent_silent: bool) -> Mode {
        self.controller.mode_now(agent_silent, self.staged.program().is_some())
    }

    /// The program that will run at the next ACK.
    pub(crate) fn program(&self) -> Option<&SharedProgram> {
        self.controller.next_program(&self.staged)
    }

    /// Whether it runs the program, or is about to.
    pub(crate) fn uses(&self, uid: ProgramUid) -> bool {
        self.controller.uses(&self.staged, uid)
    }

    /// Stages a change for the next ACK.
    pub(crate) fn stage(&mut self, change: Change<'_, SharedProgram>) {
        self.staged.stage(change);
    }

    /// Hands the flow to the native algorithm now, from its current window.
    pub(crate) fn release(&mut self) {
        self.controller.release();
        self.staged.clear();
    }

    /// Changes the segment size from the next new segment on.
    pub(crate) fn set_mss(&mut self, mss_bytes: u32) {
        self.mss_bytes = mss_bytes;
        self.controller.set_mss(mss_bytes);
    }

    /// In recovery the window comes down, and up again, as packets leave the network (as our kernel datapath does it): what a
    /// program keeps through a loss must not come out in one burst, which pacing sees to where it sets a rate. After a timeout
    /// it is slow start.
    fn apply_window(&mut self, acked: &Acked, entered_recovery: bool) {
        let (wanted, in_flight) = (self.controller.wanted_packets(), self.sender.in_flight_packets);
        self.window_packets = match self.sender.recovery() {
            None => wanted,
            Some(Recovery::Fast) => {
                if entered_recovery {
                    self.reduction = Reduction::from(self.window_packets, self.sender.transmissions());
                }
                self.reduction.delivered_packets += acked.packets();
                if self.controller.program_rate() > 0 {
                    wanted
                } else {
                    self.reduction.window(wanted, in_flight, self.sender.transmissions(), acked)
                }
            }
            Some(Recovery::Timeout) => wanted.min(in_flight + (2 * acked.packets()).max(1)),
        };
        self.window_packets = self.window_packets.max(1);
    }

    fn prims(&self, now_ns: u64, acked: &Acked) -> Prims {
        let sender = &self.sender;
        let mut prims = Prims::default();
        let rtt_us = acked.rtt_ns.map_or(0, |ns| (ns / 1000).max(1));
        for (prim, value) in [
            (Prim::AckBytesAcked, acked.in_order_bytes),
            (Prim::AckBytesMisordered, acked.misordered_bytes),
            (Prim::AckEcnBytes, acked.marked_bytes),
            (Prim::AckEcnPackets, acked.marked_packets),
            (Prim::AckLostPktsSample, acked.lost_packets),
            (Prim::AckNow, now_ns / 1000),
            (Prim::AckPacketsAcked, acked.in_order_packets),
            (Prim::AckPacketsMisordered, acked.misordered_packets),
            (Prim::FlowBytesInFlight, sender.in_flight_bytes),
            (Prim::FlowBytesPending, self.pending_bytes(now_ns)),
            (Prim::FlowPacketsInFlight, sender.in_flight_packets),
            (Prim::FlowRateIncoming, sender.rate.delivery),
            (Prim::FlowRateOutgoing, sender.rate.sending),
            (Prim::FlowRttSampleUs, rtt_us),
            (Prim::FlowWasTimeout, acked.was_timeout.into()),
        ] {
            prims.set(prim, i64::try_from(value).unwrap_or(i64::MAX));
        }
        prims
    }

    /// Sends what window, pacing and application allow, and sets the flow's timers.
    pub(crate) fn transmit(&mut self, now_ns: u64, out: &mut Out<'_>) {
        self.has_backlog = true;
        if std::mem::take(&mut self.probe_due) {
            self.send_one(now_ns, out, false);
        }
        match self.trains {
            None => self.transmit_segments(now_ns, out),
            Some(trains) => {
                out.net.tell_rtt(self.index, self.sender.rtt.srtt_ns());
                self.trains = Some(self.transmit_trains(now_ns, out, trains));
            }
        }
        out.net.set_timer(self.index, LOSS_TIMER, self.sender.deadline_ns());
    }

    fn transmit_segments(&mut self, now_ns: u64, out: &mut Out<'_>) {
        let rate = self.pacing_rate();
        while self.sender.in_flight_packets < self.window_packets {
            let due_ns = self.next_paced_ns(rate);
            if due_ns > now_ns {
                out.net.set_timer(self.index, PACING_TIMER, Some(due_ns));
                break;
            }
            if self.send_one(now_ns, out, false).is_none() {
                self.has_backlog = false;
                break;
            }
        }
    }

    /// Sends trains as `tcp_write_xmit` in Linux's tcp_output.c does; returns the trains' new state.
    fn transmit_trains(&mut self, now_ns: u64, out: &mut Out<'_>, mut trains: Trains) -> Trains {
        let rate = self.pacing_rate();
        let sizing_rate = if rate > 0 { rate } else { self.window_rate() };
        let (min_rtt_us, mss_bytes) = (self.sender.rtt.min_ns() / 1000, u64::from(self.mss_bytes));
        let queue_us = (self.sender.rtt.srtt_ns() / 1000).saturating_sub(min_rtt_us);
        let least = match self.stack {
            Stack::Steered => least_segments(sizing_rate, queue_us, mss_bytes),
            Stack::Segments | Stack::Linux => PAIR,
        };
        let most_segments = most_segments(sizing_rate, min_rtt_us, mss_bytes, least);
        while self.has_backlog && self.sender.in_flight_packets < self.window_packets {
            if rate > 0 && trains.due_ns() > now_ns {
                out.net.set_timer(self.index, PACING_TIMER, Some(trains.due_ns()));
                break;
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
                let Some(payload_bytes) = self.send_one(now_ns, out, push) else {
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
        trains
    }

    /// Sends one segment, whatever the window; its payload bytes, if there is one to send.
    fn send_one(&mut self, now_ns: u64, out: &mut Out<'_>, push: bool) -> Option<u64> {
        let payload_bytes = self.unsent_bytes(now_ns).min(self.mss_bytes.into()) as u32;
        let (bytes_sent, bytes_in_flight) = (self.sender.bytes_sent, self.sender.in_flight_bytes);
        let sent = self.sender.send(now_ns, payload_bytes)?;
        if let Some(hosts) = &mut out.hosts {
            let packet = Outbound {
                now_ns,
                payload_bytes: sent.payload_bytes.into(),
                bytes_sent,
                new_bytes: self.sender.bytes_sent - bytes_sent,
                bytes_waiting: self.unsent_bytes(now_ns).min(self.send_buffer_bytes),
                bytes_in_flight,
                tx: sent.tx,
            };
            hosts.on_packet(self.index, &packet, out.net);
        }
        // An MSS is at most 16 KiB.
        let bytes = (sent.payload_bytes + HEADER_BYTES) as u16;
        out.net.send(self.index, Segment { seq: sent.seq, tx: sent.tx, bytes, push });
        self.last_sent = Some((now_ns, sent.payload_bytes.into()));
        Some(sent.payload_bytes.into())
    }

    /// Bytes per second; 0 when ACK-clocked.
    fn pacing_rate(&self) -> u64 {
        match self.controller.program_rate() {
            0 if self.pacing == Pacing::AckClocked => 0,
            0 => self.window_rate(),
            rate => rate,
        }
    }

    /// The rate at which Linux paces the window (`tcp_update_pacing_rate`), bytes per second; 0 before the first RTT
    /// sample.
    fn window_rate(&self) -> u64 {
        let srtt_ns = self.sender.rtt.srtt_ns();
        if srtt_ns == 0 {
            return 0;
        }
        let wanted = self.controller.wanted_packets();
        let slow_start = wanted < self.controller.reno.ssthresh_packets / 2;
        let percent = if slow_start { 200 } else { 120 };
        let window_bytes = u128::from(wanted * u64::from(self.mss_bytes));
        (window_bytes * percent / 100 * u128::from(NS_PER_S) / u128::from(srtt_ns)).max(1) as u64
    }

    /// When the next packet may leave at this rate, judged by the last one.
    fn next_paced_ns(&self, rate: u64) -> u64 {
        match self.last_sent {
            Some((at_ns, bytes)) if rate > 0 => at_ns + bytes * NS_PER_S / rate,
            _ => 0,
        }
    }

    fn written_bytes(&self, now_ns: u64) -> u64 {
        match self.source {
            Source::Bulk => u64::MAX,
            Source::Bytes(total) => total,
            Source::Chunks { bytes, every_us } => {
                let writes = 1 + (now_ns / 1000).saturating_sub(self.start_us) / u64::from(every_us);
                u64::from(bytes).saturating_mul(writes)
            }
        }
    }

    fn unsent_bytes(&self, now_ns: u64) -> u64 {
        if self.ended { 0 } else { self.written_bytes(now_ns) - self.sender.bytes_sent }
    }

    /// Written and not yet acknowledged.
    fn pending_bytes(&self, now_ns: u64) -> u64 {
        match self.source {
            Source::Bulk => self.sender.in_flight_bytes + BULK_PENDING_BYTES,
            _ => self.written_bytes(now_ns) - self.sender.bytes_acked,
        }
    }

    /// Ends the flow, which carries nothing more.
    pub(crate) fn end(&mut self, now_ns: u64) {
        self.ended = true;
        self.ended_us = Some(now_ns / 1000);
        self.ended_ns = Some(now_ns);
        self.release();
        self.sender.close();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.sender.heap_bytes() + self.samples.capacity() * size_of::<Sample>()
    }

    /// Payload bytes in flight.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.sender.in_flight_bytes
    }

    /// The number of the next transmission.
    pub(crate) fn next_tx(&self) -> u64 {
        self.sender.transmissions()
    }

    /// Whether it has sent anything.
    pub(crate) fn has_started(&self) -> bool {
        self.last_sent.is_some()
    }

    /// Whether everything that it will ever carry has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.source, Source::Bytes(total) if self.sender.bytes_acked >= total)
    }

    pub(crate) fn stats(&self, now_us: u64, agent_silent: bool) -> FlowStats {
        let (sender, program) = (&self.sender, self.program());
        let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        let packets = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        FlowStats {
            flow: self.id,
            info: self.info.clone(),
            mode: self.mode_now(agent_silent),
            program: program.map(Runnable::uid),
            transport: TransportStats {
                snd_cwnd: packets(self.window_packets),
                snd_ssthresh: TransportStats::ssthresh(self.controller.reno.ssthresh_packets),
                mss_bytes: self.mss_bytes,
                srtt_us: us(sender.rtt.srtt_ns()),
                min_rtt_us: us(sender.rtt.min_ns()),
                pacing_rate: self.pacing_rate(),
                bytes_acked: sender.bytes_acked,
                delivered: sender.delivered_packets,
                lost: sender.lost_packets,
                unacked: packets(sender.in_flight_packets),
                faults: self.controller.runner().flow().faults,
                reports: self.reports.into(),
            },
            policy: program.filter(|p| p.program().uses_policy()).map(|_| self.policy),
            sampled_at_us: now_us,
        }
    }

    pub(crate) fn take_sample(&mut self, at_us: u64) {
        if self.samples.len() >= MAX_SAMPLES {
            return;
        }
        self.samples.push(Sample {
            at_us,
            cwnd_bytes: self.controller.wanted_bytes(),
            pacing_rate: self.pacing_rate(),
            srtt_us: u32::try_from(self.sender.rtt.srtt_ns() / 1000).unwrap_or(u32::MAX),
            bytes_acked: self.sender.bytes_acked,
            delivered: self.sender.delivered_packets,
            in_flight_bytes: self.sender.in_flight_bytes,
            lost: self.sender.lost_packets,
        });
    }
}

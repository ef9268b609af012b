//! One flow: its application, its flow controller, and the transport that both drive.

use crate::config::{FlowConfig, MAX_SAMPLES, Native, Source};
use crate::dctcp::Dctcp;
use crate::hosts::{Outbound, SimHosts};
use crate::sender::{Acked, Expired, Recovery};
use crate::transport::{Carrier, Departure, Transport, Wanted};
use ccplane_contract::registry::Change;
use ccplane_contract::{FlowId, FlowInfo, FlowStats, Mode, ProgramUid, SlotTable, TransportStats};
use ccplane_engine::SharedProgram;
use ccplane_engine::controller::FlowController;
use ccplane_engine::runner::{Runnable, Staged};
use ccplane_infer::FlowPolicy;
use ccplane_netsim::{Delivery, FlowIndex, Network};
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::Prims;

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

/// One flow's way to the network at one time.
struct Outlet<'o, 'a> {
    out: &'o mut Out<'a>,
    index: FlowIndex,
    now_ns: u64,
    written_bytes: u64,
    send_buffer_bytes: u64,
}

impl Carrier for Outlet<'_, '_> {
    fn carry(&mut self, departure: &Departure) {
        if let Some(hosts) = &mut self.out.hosts {
            let unsent_bytes = self.written_bytes - departure.bytes_sent - departure.new_bytes;
            let packet = Outbound {
                now_ns: self.now_ns,
                payload_bytes: departure.payload_bytes.into(),
                bytes_sent: departure.bytes_sent,
                new_bytes: departure.new_bytes,
                bytes_waiting: unsent_bytes.min(self.send_buffer_bytes),
                bytes_in_flight: departure.bytes_in_flight,
                tx: departure.tx,
            };
            hosts.on_packet(self.index, &packet, self.out.net);
        }
        self.out.net.send(self.index, departure.segment());
    }
}

pub(crate) struct SimFlow {
    pub(crate) id: FlowId,
    /// Whether the agent knows of it.
    pub(crate) announced: bool,
    pub(crate) ended: bool,
    pub(crate) info: FlowInfo,
    pub(crate) samples: Vec<Sample>,
    pub(crate) reports: u32,
    pub(crate) source: Source,
    pub(crate) start_us: u64,
    /// The time of its end, microseconds of virtual time.
    pub(crate) ended_us: Option<u64>,
    /// The same time in nanoseconds.
    pub(crate) ended_ns: Option<u64>,
    index: FlowIndex,
    transport: Transport,
    controller: FlowController<SharedProgram>,
    staged: Staged<SharedProgram>,
    policy: FlowPolicy,
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
            source: config.source,
            start_us: config.start_us,
            ended_us: None,
            ended_ns: None,
            index,
            transport: Transport::new(config),
            controller: FlowController::new(cwnd_packets, config.mss_bytes),
            staged: Staged::default(),
            policy: FlowPolicy::default(),
            dctcp: (config.native == Native::Dctcp).then(Dctcp::new),
            send_buffer_bytes: config.send_buffer_bytes,
            acked: Acked::default(),
        }
    }

    /// Ends the handshake, whose round trip is the first RTT sample, as in Linux.
    pub(crate) fn connected(&mut self, base_rtt_ns: u64) {
        self.transport.connected(base_rtt_ns);
        self.info.min_rtt_us = u32::try_from(base_rtt_ns / 1000).ok().filter(|us| *us != 0);
    }

    /// Reads a word of each part that an ACK touches, so that it is in the cache by then.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let state = self.controller.runner().flow();
        let program = state.regs[0] ^ state.cwnd_bytes;
        self.transport.touch() ^ program as u64 ^ self.acked.in_order_bytes
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
        let in_flight = self.transport.sender.in_flight_packets;
        let acked = self.transport.on_ack(now_ns, deliveries);
        self.choose_mode(agent_silent);
        let invoked = if self.controller.mode() == Mode::Program {
            let prims = self.transport.prims(now_ns, &acked, self.pending_bytes(now_ns));
            self.invoke(&prims, slots, report)
        } else {
            if self.transport.entered_recovery() {
                self.controller.reno.on_loss(in_flight);
            }
            self.answer_marks(&acked, in_flight);
            if self.transport.has_backlog() && self.transport.sender.recovery() != Some(Recovery::Fast) {
                self.controller.reno.on_ack(acked.packets());
            }
            Invoked::default()
        };
        self.transport.apply_window(&self.wanted(), &acked);
        self.acked = acked;
        invoked
    }

    /// Answers the marks of an ACK as the flow's native algorithm does.
    fn answer_marks(&mut self, acked: &Acked, in_flight: u64) {
        let sender = &mut self.transport.sender;
        match &mut self.dctcp {
            Some(dctcp) => {
                let share = dctcp.on_ack(acked, sender.answers_mark());
                if let Some(share) = share.filter(|_| sender.recovery().is_none()) {
                    self.controller.reno.on_marks(share);
                }
            }
            None => {
                if acked.marked_packets > 0 && sender.recovery().is_none() && sender.answers_mark() {
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
        let in_flight = self.transport.sender.in_flight_packets;
        let expired = self.transport.on_loss_timer(now_ns);
        self.choose_mode(agent_silent);
        if self.controller.mode() != Mode::Program {
            match expired {
                Expired::Timeout => self.controller.reno.on_timeout(in_flight),
                Expired::Losses if self.transport.entered_recovery() => {
                    self.controller.reno.on_loss(in_flight);
                }
                Expired::Losses | Expired::Probe | Expired::Nothing => {}
            }
        }
        self.transport.apply_window(&self.wanted(), &Acked::default());
    }

    /// Packets that the flow has lost so far.
    pub(crate) fn lost_packets(&self) -> u64 {
        self.transport.lost_packets()
    }

    /// The wishes of the program, or of the native algorithm.
    fn wanted(&self) -> Wanted {
        let window_packets = self.controller.wanted_packets();
        Wanted {
            window_packets,
            rate_bytes_per_s: self.controller.program_rate(),
            in_slow_start: window_packets < self.controller.reno.ssthresh_packets / 2,
        }
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
        self.transport.set_mss(mss_bytes);
        self.controller.set_mss(mss_bytes);
    }

    /// Sends what window, pacing and application allow, and sets the flow's timers.
    pub(crate) fn transmit(&mut self, now_ns: u64, out: &mut Out<'_>) {
        if let Some(rtt_ns) = self.transport.timestamped_rtt_ns() {
            out.net.tell_rtt(self.index, rtt_ns);
        }
        let (wanted, written_bytes) = (self.wanted(), self.written_bytes(now_ns));
        let (index, send_buffer_bytes) = (self.index, self.send_buffer_bytes);
        let mut outlet = Outlet { out, index, now_ns, written_bytes, send_buffer_bytes };
        let deadlines = self.transport.transmit(now_ns, written_bytes, &wanted, &mut outlet);
        deadlines.set(outlet.out.net, index);
    }

    /// Bytes that the application has written so far; an ended flow's writes no more than it has sent.
    fn written_bytes(&self, now_ns: u64) -> u64 {
        match self.source {
            _ if self.ended => self.transport.sender.bytes_sent,
            Source::Bulk => u64::MAX,
            Source::Bytes(total) => total,
            Source::Chunks { bytes, every_us } => {
                let writes = 1 + (now_ns / 1000).saturating_sub(self.start_us) / u64::from(every_us);
                u64::from(bytes).saturating_mul(writes)
            }
        }
    }

    /// Written and not yet acknowledged.
    fn pending_bytes(&self, now_ns: u64) -> u64 {
        match self.source {
            Source::Bulk => self.transport.bulk_pending_bytes(),
            _ => self.written_bytes(now_ns) - self.transport.sender.bytes_acked,
        }
    }

    /// Ends the flow, which carries nothing more.
    pub(crate) fn end(&mut self, now_ns: u64) {
        self.ended = true;
        self.ended_us = Some(now_ns / 1000);
        self.ended_ns = Some(now_ns);
        self.release();
        self.transport.close();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.transport.sender.heap_bytes() + self.samples.capacity() * size_of::<Sample>()
    }

    /// Payload bytes in flight.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.transport.sender.in_flight_bytes
    }

    /// The number of the next transmission.
    pub(crate) fn next_tx(&self) -> u64 {
        self.transport.sender.transmissions()
    }

    /// Whether it has sent anything.
    pub(crate) fn has_started(&self) -> bool {
        self.transport.has_sent()
    }

    /// Whether everything that it will ever carry has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.source, Source::Bytes(total) if self.transport.sender.bytes_acked >= total)
    }

    pub(crate) fn stats(&self, now_us: u64, agent_silent: bool) -> FlowStats {
        let (transport, sender, program) = (&self.transport, &self.transport.sender, self.program());
        let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        let packets = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        FlowStats {
            flow: self.id,
            info: self.info.clone(),
            mode: self.mode_now(agent_silent),
            program: program.map(Runnable::uid),
            transport: TransportStats {
                snd_cwnd: packets(transport.window_packets()),
                snd_ssthresh: TransportStats::ssthresh(self.controller.reno.ssthresh_packets),
                mss_bytes: transport.mss_bytes(),
                srtt_us: us(sender.rtt.srtt_ns()),
                min_rtt_us: us(sender.rtt.min_ns()),
                pacing_rate: self.transport.pacing_rate(&self.wanted()),
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
        let sender = &self.transport.sender;
        self.samples.push(Sample {
            at_us,
            cwnd_bytes: self.controller.wanted_bytes(),
            pacing_rate: self.transport.pacing_rate(&self.wanted()),
            srtt_us: u32::try_from(sender.rtt.srtt_ns() / 1000).unwrap_or(u32::MAX),
            bytes_acked: sender.bytes_acked,
            delivered: sender.delivered_packets,
            in_flight_bytes: sender.in_flight_bytes,
            lost: sender.lost_packets,
        });
    }
}

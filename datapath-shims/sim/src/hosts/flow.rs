//! One flow as its host decides on it: programs of both hooks, and the priority and path in force.

use super::measure::{Past, integer};
use crate::config::{FlowConfig, Source};
use ccplane_contract::suite::{OutPacket, PacketStream, Steered};
use ccplane_contract::{FlowId, FlowInfo, SlotTable};
use ccplane_engine::SharedProgram;
use ccplane_engine::runner::{ProgramRunner, Runnable, Staged};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{Hook, MAX_PRIORITY, MAX_REGS, Prim};
use ccplane_program::vm::{Measured, SendPrims};

/// A packet on its way out, as its flow's transport sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outbound {
    pub(crate) now_ns: u64,
    /// Payload of the packet; 0 for the end of the flow.
    pub(crate) payload_bytes: u64,
    /// Payload that the flow sent for the first time before this packet.
    pub(crate) bytes_sent: u64,
    /// Payload of the packet that is sent for the first time.
    pub(crate) new_bytes: u64,
    /// Payload that the application wrote and the flow has not sent, as far as the send buffer holds it.
    pub(crate) bytes_waiting: u64,
    /// Payload in flight before this packet.
    pub(crate) bytes_in_flight: u64,
    /// The number of the transmission.
    pub(crate) tx: u64,
}

/// The effects of a program's run, besides priority and path.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Decided {
    /// The report registers, if it reported.
    pub(super) report: Option<Vec<i64>>,
    /// Whether it asked a policy, which makes a report a row of a batch.
    pub(super) asked: bool,
}

/// A flow that runs.
#[derive(Debug)]
pub(crate) struct HostFlow {
    pub(super) id: FlowId,
    pub(super) info: FlowInfo,
    pub(super) announced: bool,
    pub(super) start_us: u64,
    pub(super) reports: u32,
    pub(super) past: Past,
    /// The number of its host's paths to its destination.
    pub(super) paths: usize,
    pub(super) path_count: u8,
    pub(super) bytes_sent: u64,
    pub(super) bytes_in_flight: u64,
    /// Lost packets of which its paths were told.
    lost_packets: u64,
    pub(super) runner: ProgramRunner<SharedProgram>,
    pub(super) staged: Staged<SharedProgram>,
    pub(super) policy: FlowPolicy,
    mss_bytes: u32,
    last_sent_us: Option<u64>,
    /// The priority and the path of what it sends now.
    pub(super) priority: u8,
    pub(super) path: u8,
    /// The first transmissions on each path since the oldest that may be in flight.
    paths_since: Vec<(u64, u8)>,
}

/// Changes of path whose packets may still be in flight; older ones are forgotten.
const MAX_PATH_CHANGES: usize = 16;

impl HostFlow {
    pub(super) fn new(id: FlowId, config: &FlowConfig) -> HostFlow {
        let window_bytes = u64::from(config.init_cwnd_packets) * u64::from(config.mss_bytes);
        HostFlow {
            id,
            info: FlowInfo {
                mss_bytes: config.mss_bytes,
                init_cwnd_bytes: window_bytes,
                local: config.local,
                remote: config.remote,
                cgroup: config.cgroup,
                min_rtt_us: None,
            },
            announced: false,
            start_us: config.start_us,
            reports: 0,
            past: Past::default(),
            paths: 0,
            // A path has at most eight routes.
            path_count: 1 + config.path.other_routes.len() as u8,
            bytes_sent: 0,
            bytes_in_flight: 0,
            lost_packets: 0,
            runner: ProgramRunner::new(integer(window_bytes), config.mss_bytes.into()),
            staged: Staged::default(),
            policy: FlowPolicy::default(),
            mss_bytes: config.mss_bytes,
            last_sent_us: None,
            priority: 0,
            path: 0,
            paths_since: Vec::new(),
        }
    }

    /// A hash of the flow's addresses and ports, 32 bits.
    pub(super) fn hash(&self) -> u32 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        for address in [self.info.local, self.info.remote] {
            match address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets().into_iter().for_each(&mut add),
                std::net::IpAddr::V6(ip) => ip.octets().into_iter().for_each(&mut add),
            }
            address.port().to_be_bytes().into_iter().for_each(&mut add);
        }
        // FNV's low bits are weak: MurmurHash3's finaliser spreads them.
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (hash >> 32) as u32 ^ hash as u32
    }

    /// The program that runs at the next packet.
    pub(super) fn program(&self) -> Option<&SharedProgram> {
        self.staged.program().or(self.runner.running())
    }

    /// Whether a program is to run on this packet: the agent has changed something, the flow has sent as much as the program
    /// wanted to see, it pauses before this packet, or it ends.
    #[inline]
    pub(super) fn is_due(&self, packet: &Outbound, flowlet_us: u64) -> bool {
        !self.staged.is_empty()
            || self.runner.running().is_some()
                && !self.runner.lacks_decision()
                && (packet.payload_bytes == 0
                    || self.is_asked_for(packet.bytes_sent)
                    || self.has_paused(packet, flowlet_us))
    }

    /// Whether the program is to run once the flow has sent so much; where it named no count, or none above 0, it is not.
    #[inline]
    fn is_asked_for(&self, bytes_sent: u64) -> bool {
        let decide_at_bytes = self.runner.flow().decide_at_bytes;
        decide_at_bytes > 0 && integer(bytes_sent) >= decide_at_bytes
    }

    /// Whether a packet is the first of a flowlet.
    #[inline]
    fn has_paused(&self, packet: &Outbound, flowlet_us: u64) -> bool {
        self.last_sent_us.is_none_or(|at_us| packet.now_ns / 1000 - at_us >= flowlet_us)
    }

    /// The primitives that both hooks have, without those of paths.
    pub(super) fn prims(&self, now_us: u64) -> SendPrims {
        let mut prims = SendPrims::default();
        prims
            .set(Prim::Now, integer(now_us))
            .set(Prim::FlowLocalPort, self.info.local.port().into())
            .set(Prim::FlowRemotePort, self.info.remote.port().into())
            .set(Prim::FlowCgroup, integer(self.info.cgroup.unwrap_or(0)))
            .set(Prim::FlowHash, self.hash().into());
        self.past.tell(&mut prims);
        prims
    }

    /// Adds what a packet on its way out shows.
    pub(super) fn tell(&self, packet: &Outbound, prims: &mut SendPrims) {
        let now_us = packet.now_ns / 1000;
        let gap_us = self.last_sent_us.map_or(0, |at_us| now_us - at_us);
        prims
            .set(Prim::PacketBytes, integer(packet.payload_bytes))
            .set(Prim::FlowBytesSent, integer(packet.bytes_sent))
            .set(Prim::FlowBytesWaiting, integer(packet.bytes_waiting))
            .set(Prim::FlowAgeUs, integer(now_us.saturating_sub(self.start_us)))
            .set(Prim::FlowGapUs, integer(gap_us));
    }

    /// Runs the program, after what is staged.
    pub(super) fn decide(
        &mut self,
        prims: &SendPrims,
        slots: &SlotTable,
        report: &mut [i64; MAX_REGS],
    ) -> Decided {
        self.runner.take(&mut self.staged, prims.get(Hook::Send.clock()));
        let mut policies = slots.policies(self.id.0, &mut self.policy);
        let outcome = self.runner.invoke(self.mss_bytes.into(), prims, &mut policies, report);
        let values = |program: &SharedProgram| report[..program.program().report_len()].to_vec();
        let running = self.runner.running().filter(|_| outcome.report);
        Decided { report: running.map(values), asked: outcome.asked }
    }

    /// Takes the decision of another program, that of the flow's start.
    pub(super) fn begin_from(&mut self, first: &ProgramRunner<SharedProgram>) {
        let (priority, path) = (first.flow().priority, first.flow().path);
        self.apply(priority, path, true);
        self.runner.begin_from(priority, path);
    }

    /// Puts what the program wants into force, as far as it cannot reorder packets: a priority that is served later at once;
    /// one that is served earlier, and another path, where a flowlet begins.
    pub(super) fn steer(&mut self, packet: &Outbound, flowlet_us: u64) {
        let is_fresh = packet.bytes_in_flight == 0 || self.has_paused(packet, flowlet_us);
        let (priority, path) = (self.runner.flow().priority, self.runner.flow().path);
        self.apply(priority, path, is_fresh);
    }

    fn apply(&mut self, priority: i64, path: i64, is_fresh: bool) {
        if is_fresh || priority > self.priority.into() {
            self.priority = priority.clamp(0, MAX_PRIORITY) as u8;
        }
        if is_fresh && path < self.path_count.into() {
            self.path = path.max(0) as u8;
        }
    }

    /// Carries a flow of the contract's suite that starts with this program.
    pub(crate) fn carry(program: SharedProgram, stream: &PacketStream) -> Vec<Steered> {
        let mut flow = HostFlow::new(FlowId(0), &FlowConfig::new(Source::Bytes(0), 0));
        flow.path_count = stream.paths;
        flow.start_us = stream.packets.first().map_or(0, |packet| packet.at_us);
        let mut start = ProgramRunner::new(0, flow.mss_bytes.into());
        start.begin_from(0, stream.start_path.into());
        flow.begin_from(&start);
        flow.staged.stage_program(program, &[]);
        let (slots, mut report) = (SlotTable::new(), [0; MAX_REGS]);
        let mut sent = |(packet, tx): (&OutPacket, u64)| {
            let packet = Outbound {
                now_ns: packet.at_us * 1000,
                payload_bytes: packet.bytes,
                bytes_sent: flow.bytes_sent,
                new_bytes: packet.bytes,
                bytes_waiting: packet.waiting_bytes,
                bytes_in_flight: packet.in_flight_bytes,
                tx,
            };
            let decided = flow.is_due(&packet, stream.flowlet_us);
            if decided {
                let mut prims = stream.known;
                prims.set(Prim::Now, integer(packet.now_ns / 1000));
                flow.tell(&packet, &mut prims);
                flow.decide(&prims, &slots, &mut report);
                flow.steer(&packet, stream.flowlet_us);
            }
            flow.sent(&packet);
            flow.bytes_sent += packet.new_bytes;
            Steered { priority: flow.priority, path: flow.path, decided }
        };
        stream.packets.iter().zip(0..).map(&mut sent).collect()
    }

    /// Returns the packets lost since the last call, of so many in all.
    pub(super) fn lost_until(&mut self, lost_packets: u64) -> u64 {
        lost_packets.saturating_sub(std::mem::replace(&mut self.lost_packets, lost_packets))
    }

    /// Notes that a packet leaves on the path in force.
    pub(super) fn sent(&mut self, packet: &Outbound) {
        self.last_sent_us = Some(packet.now_ns / 1000);
        if self.path_count > 1 && self.paths_since.last().is_none_or(|(_, path)| *path != self.path) {
            if self.paths_since.len() >= MAX_PATH_CHANGES {
                self.paths_since.remove(0);
            }
            self.paths_since.push((packet.tx, self.path));
        }
    }

    /// Returns the path that a transmission took.
    pub(super) fn path_of(&self, tx: u64) -> u8 {
        let since = self.paths_since.iter().rev().find(|(first, _)| *first <= tx);
        since.map_or(self.path, |(_, path)| *path)
    }
}

//! A simulated flow as its host decides on it, with what the agent staged.

use crate::config::{FlowConfig, Source};
use ccplane_contract::suite::{OutPacket, PacketStream, PacketTreatment};
use ccplane_contract::{FlowId, FlowInfo, SlotTable};
use ccplane_engine::SharedProgram;
use ccplane_engine::packets::{HostMemory, Outbound, PacketFlow};
use ccplane_engine::runner::{Runnable, Staged};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{Hook, MAX_REGS};
use ccplane_program::vm::{PrimValues, SendPrims};

/// The effects of a program's run, besides priority and path.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Decided {
    /// The report registers, if it reported.
    pub(super) report: Option<Vec<i64>>,
    /// Whether it asked a policy, which makes a report a row of a batch.
    pub(super) asked: bool,
}

impl Decided {
    pub(super) fn reporting(values: &[i64], asked: bool) -> Decided {
        Decided { report: Some(values.to_vec()), asked }
    }
}

/// A flow that runs.
#[derive(Debug)]
pub(crate) struct HostFlow {
    pub(super) id: FlowId,
    pub(super) announced: bool,
    pub(super) reports: u32,
    pub(super) packets: PacketFlow<SharedProgram>,
    pub(super) staged: Staged<SharedProgram>,
    pub(super) policy: FlowPolicy,
}

/// The facts about a flow that its host knows.
pub(super) fn info(config: &FlowConfig) -> FlowInfo {
    FlowInfo {
        mss_bytes: config.mss_bytes,
        init_cwnd_bytes: u64::from(config.init_cwnd_packets) * u64::from(config.mss_bytes),
        local: config.local,
        remote: config.remote,
        cgroup: config.cgroup,
        min_rtt_us: None,
    }
}

impl HostFlow {
    pub(super) fn new(id: FlowId, config: &FlowConfig) -> HostFlow {
        // A path has at most eight routes.
        let path_count = 1 + config.path.other_routes.len() as u8;
        HostFlow {
            id,
            announced: false,
            reports: 0,
            packets: PacketFlow::new(info(config), path_count, config.start_us),
            staged: Staged::default(),
            policy: FlowPolicy::default(),
        }
    }

    /// The program that runs at the next packet.
    pub(super) fn program(&self) -> Option<&SharedProgram> {
        self.staged.program().or(self.packets.runner().running())
    }

    /// Whether a program is to run on this packet: the agent has changed something, or the rules say so.
    #[inline]
    pub(super) fn is_due(&self, packet: &Outbound, flowlet_us: u64) -> bool {
        !self.staged.is_empty() || self.packets.is_due(packet, flowlet_us)
    }

    /// Runs the program, after what is staged.
    pub(super) fn decide(
        &mut self,
        prims: &SendPrims,
        slots: &SlotTable,
        report: &mut [i64; MAX_REGS],
    ) -> Decided {
        self.packets.take(&mut self.staged, prims.get(Hook::Send.clock()));
        let mut policies = slots.policies(self.id.0, &mut self.policy);
        let outcome = self.packets.invoke(prims, &mut policies, report);
        let running = self.packets.runner().running().filter(|_| outcome.report);
        let values = |program: &SharedProgram| report[..program.program().report_len()].to_vec();
        Decided { report: running.map(values), asked: outcome.asked }
    }

    /// Carries a flow of the contract's suite that starts with this program.
    pub(crate) fn carry(program: SharedProgram, stream: &PacketStream) -> Vec<PacketTreatment> {
        let start_us = stream.packets.first().map_or(0, |packet| packet.at_us);
        let info = info(&FlowConfig::new(Source::Bytes(0), 0));
        let mut flow = HostFlow {
            packets: PacketFlow::new(info, stream.paths, start_us),
            ..HostFlow::new(FlowId(0), &FlowConfig::new(Source::Bytes(0), 0))
        };
        flow.packets.begin_at(0, stream.start_path.into());
        flow.staged.stage_program(program, &[]);
        let (slots, mut report) = (SlotTable::new(), [0; MAX_REGS]);
        let mut memory = HostMemory::new(0, 0, 0);
        let mut sent = |(packet, tx): (&OutPacket, u64)| {
            let packet = Outbound {
                now_ns: packet.at_us * 1000,
                payload_bytes: packet.bytes,
                bytes_sent: flow.packets.bytes_sent(),
                new_bytes: packet.bytes,
                bytes_waiting: packet.waiting_bytes,
                bytes_in_flight: packet.in_flight_bytes,
                tx,
            };
            let decided = flow.is_due(&packet, stream.flowlet_us);
            if decided {
                let mut prims = stream.known;
                flow.packets.fill(&packet, &mut prims);
                flow.decide(&prims, &slots, &mut report);
                flow.packets.steer(&packet, stream.flowlet_us, &mut memory);
            }
            flow.packets.sent(&packet);
            let steering = flow.packets.steering();
            PacketTreatment { priority: steering.priority, path: steering.path, decided }
        };
        stream.packets.iter().zip(0..).map(&mut sent).collect()
    }
}

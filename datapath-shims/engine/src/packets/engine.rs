//! A flow whose packets an engine decides about: the transport's end of it.

use super::flow::{Outbound, PacketFlow, Steering};
use super::memory::{HostMemory, PathSample};
use crate::config::PacketsConfig;
use crate::core::Core;
use crate::events::Record;
use crate::mailbox::{SharedFlow, TakesChanges};
use crate::policies::FlowPolicies;
use crate::program::Loaded;
use crate::runner::{ProgramRunner, Runnable, Staged};
use crate::sample::Sample;
use ccplane_contract::{FlowId, FlowInfo, Mode, ProgramUid, TransportStats};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{Hook, MAX_REGS};
use ccplane_program::vm::{InvokeOutcome, SendPrims};
use std::sync::Arc;

/// Time between two samples of a flow that decides, microseconds.
const SAMPLE_EVERY_US: u64 = 10_000;

/// A flow whose packets programs decide about, owned by its transport. Dropping it ends the flow for the agent.
pub struct PacketFlowEngine {
    flow: PacketFlow<Loaded>,
    config: PacketsConfig,
    mode: Mode,
    /// Whether the agent was silent at the last packet.
    agent_is_silent: bool,
    /// Whether the decision about the flow's start is in force.
    has_connected: bool,
    shared: Arc<SharedFlow>,
    core: Arc<Core>,
    policies: FlowPolicies,
    next_sample_us: u64,
    announced: bool,
    reports: u32,
    /// The registers of the last report.
    report: [i64; MAX_REGS],
}

/// A flow that has started.
pub(crate) struct Started {
    pub(crate) flow: PacketFlowEngine,
    /// The program of its start, with its registers.
    pub(crate) ran: ProgramRunner<Loaded>,
    /// The effects of that program; `None` where there was none.
    pub(crate) outcome: Option<InvokeOutcome>,
}

impl TakesChanges for PacketFlow<Loaded> {
    fn drop_program(&mut self) -> Option<Loaded> {
        self.release()
    }

    fn enter_mode(&mut self, agent_silent: bool, has_next: bool) -> Mode {
        self.runner().mode_now(agent_silent, has_next)
    }

    fn take_staged(&mut self, staged: &mut Staged<Loaded>, now_us: i64) -> Option<Loaded> {
        self.take(staged, now_us)
    }

    fn running_uid(&self) -> Option<ProgramUid> {
        self.runner().running().map(Runnable::uid)
    }
}

impl PacketFlowEngine {
    /// Starts a flow with an id that was never used before: the program of its start decides, and the one that flows start with
    /// is staged for its first packet.
    pub(crate) fn start(
        core: &Arc<Core>,
        id: FlowId,
        (info, paths): (FlowInfo, u8),
        memory: &mut HostMemory,
        now_us: u64,
    ) -> PacketFlowEngine {
        let prims = |flow: &PacketFlow<Loaded>, memory: &HostMemory| flow.prims(now_us, memory);
        PacketFlowEngine::start_by(core, id, (info, paths), memory, now_us, prims).flow
    }

    /// Starts a flow as [`PacketFlowEngine::start`] does, by primitives that `prims` knows.
    pub(crate) fn start_by(
        core: &Arc<Core>,
        id: FlowId,
        (info, paths): (FlowInfo, u8),
        memory: &mut HostMemory,
        now_us: u64,
        prims: impl FnOnce(&PacketFlow<Loaded>, &HostMemory) -> SendPrims,
    ) -> Started {
        let mut started = PacketFlowEngine {
            flow: PacketFlow::new(info.clone(), paths, now_us),
            config: core.config.packets.unwrap_or_default(),
            mode: Mode::NativeNoProgram,
            agent_is_silent: false,
            has_connected: false,
            shared: Arc::new(SharedFlow::new(id, info, now_us)),
            core: Arc::clone(core),
            policies: FlowPolicies::new(core, id),
            next_sample_us: now_us,
            announced: false,
            reports: 0,
            report: [0; MAX_REGS],
        };
        started.flow.start(memory, now_us);
        let memory = &*memory;
        let (ran, outcome) = started.connect(now_us, |flow| prims(flow, memory));
        Started { flow: started, ran, outcome }
    }

    fn connect(
        &mut self,
        now_us: u64,
        prims: impl FnOnce(&PacketFlow<Loaded>) -> SendPrims,
    ) -> (ProgramRunner<Loaded>, Option<InvokeOutcome>) {
        let core = Arc::clone(&self.core);
        let (first, is_silent) = (core.first.load(), core.is_silent(now_us));
        let first_of = |hook: Hook| first[hook as usize].as_ref().filter(|_| !is_silent);
        let connect = first_of(Hook::Connect);
        let program = connect.map(|first| (first.program.load(), &first.fields[..]));
        let (ran, outcome) = self.flow.connect_by(program, prims, &mut self.policies, &mut self.report);
        self.has_connected = outcome.is_some();
        if let Some(first) = first_of(Hook::Send) {
            let (program, loaded) = (Arc::clone(&first.program), first.program.load());
            drop(self.shared.stage(|mailbox| mailbox.set(program, loaded, &first.fields)));
        }
        self.announced = core.announce(&self.shared);
        if let (Some(first), Some(outcome)) = (connect, outcome) {
            let named = &first.program.named;
            self.send_report(outcome, named.uid, named.program.report_len(), now_us);
        }
        (ran, outcome)
    }

    /// The flow's id in its datapath.
    pub fn id(&self) -> FlowId {
        self.shared.id
    }

    /// Sets the segment size that programs are told, bytes.
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.flow.set_mss(mss_bytes);
    }

    /// Payload that the flow has sent, bytes.
    pub fn bytes_sent(&self) -> u64 {
        self.flow.bytes_sent()
    }

    /// Decides about a packet that is about to leave, where a decision is due. Returns how the packet is treated; `None` where
    /// nobody has decided, or the agent is silent.
    #[inline]
    pub fn on_packet(&mut self, packet: &Outbound, memory: &mut HostMemory) -> Option<Steering> {
        self.on_packet_by(packet, memory, |flow, memory| flow.prims(packet.now_us(), memory));
        self.steering()
    }

    /// Decides about a packet as [`PacketFlowEngine::on_packet`] does, by primitives that `prims` knows but for the packet's own.
    /// Returns whether the packet was a decision.
    #[inline]
    pub(crate) fn on_packet_by(
        &mut self,
        packet: &Outbound,
        memory: &mut HostMemory,
        prims: impl FnOnce(&PacketFlow<Loaded>, &HostMemory) -> SendPrims,
    ) -> bool {
        let has_changed = self.take_changes(packet.now_us() as i64);
        let flowlet_us = self.config.flowlet_us;
        let decides = self.mode == Mode::Program && (has_changed || self.flow.is_due(packet, flowlet_us));
        if decides {
            let mut prims = prims(&self.flow, memory);
            self.flow.fill(packet, &mut prims);
            self.decide(packet, &prims, memory);
        }
        self.flow.sent(packet);
        decides
    }

    /// The treatment of the flow's packets now; `None` where nobody has decided, or the agent is silent.
    pub fn steering(&self) -> Option<Steering> {
        let decided = self.mode == Mode::Program || self.has_connected;
        (decided && !self.agent_is_silent).then(|| self.flow.steering())
    }

    /// Takes what the agent has staged, at this time, microseconds; returns whether that changed anything.
    #[inline]
    pub(crate) fn take_changes(&mut self, now_us: i64) -> bool {
        let before = self.mode;
        self.agent_is_silent = self.core.is_silent(now_us.max(0) as u64);
        let has_updates = self.shared.has_updates();
        self.mode = if has_updates {
            self.shared.take(&mut self.flow, self.agent_is_silent, now_us)
        } else {
            self.flow.runner().mode_now(self.agent_is_silent, false)
        };
        // A program takes the place of what was decided when the flow started.
        self.has_connected &= self.mode != Mode::Program;
        if self.mode != before {
            self.sample(now_us.max(0) as u64);
        }
        has_updates && !self.shared.has_updates()
    }

    /// Runs the program, if one controls the flow, on a packet of these primitives, and puts its decision into force.
    pub(crate) fn decide(
        &mut self,
        packet: &Outbound,
        prims: &SendPrims,
        memory: &mut HostMemory,
    ) -> Option<InvokeOutcome> {
        if self.mode != Mode::Program {
            return None;
        }
        let outcome = self.flow.invoke(prims, &mut self.policies, &mut self.report);
        if outcome.native {
            self.mode = Mode::NativePolicy;
        }
        self.flow.steer(packet, self.config.flowlet_us, memory);
        let running = self.flow.runner().running();
        let running = running.map(|running| (running.uid(), running.program().report_len()));
        let now_us = packet.now_us();
        if let Some((uid, len)) = running {
            self.send_report(outcome, uid, len, now_us);
        }
        if outcome.report || outcome.native || now_us >= self.next_sample_us {
            self.sample(now_us);
        }
        Some(outcome)
    }

    /// Takes the outcome of packets on the flow's path: losses are those so far, `lost_packets`.
    pub fn on_sample(&mut self, now_us: u64, lost_packets: u64, sample: PathSample, memory: &mut HostMemory) {
        self.flow.on_sample(Some(u64::MAX), now_us, lost_packets, sample, memory);
    }

    /// Notes the payload in flight, bytes.
    pub fn set_in_flight(&mut self, bytes: u64, memory: &mut HostMemory) {
        self.flow.set_in_flight(bytes, memory);
    }

    /// Ends the flow: its program runs once more, on a packet without payload, and its size is remembered.
    pub fn end(mut self, now_ns: u64, memory: &mut HostMemory) {
        self.flow.set_in_flight(0, memory);
        let packet = Outbound { now_ns, bytes_sent: self.flow.bytes_sent(), ..Outbound::default() };
        self.on_packet(&packet, memory);
        self.flow.end(memory);
    }

    /// Sends a report, if the program made one.
    fn send_report(&mut self, outcome: InvokeOutcome, program: ProgramUid, len: usize, at_us: u64) {
        if !outcome.report || !self.announced {
            return;
        }
        self.reports = self.reports.wrapping_add(1);
        let (flow, seq, values) = (self.shared.id, self.reports, self.report);
        let record = Record::Report { flow, program, seq, at_us, len, values };
        self.core.events.push_report(record, outcome.asked, at_us);
    }

    fn sample(&mut self, now_us: u64) {
        self.next_sample_us = now_us.saturating_add(SAMPLE_EVERY_US);
        let flow = &self.flow;
        self.shared.samples.write(Sample {
            mode: self.mode,
            at_us: now_us,
            transport: TransportStats {
                bytes_acked: flow.bytes_sent().saturating_sub(flow.bytes_in_flight()),
                faults: flow.runner().flow().faults,
                reports: self.reports.into(),
                ..TransportStats::new(flow.info().mss_bytes, 0)
            },
            policy: self.policies.state,
        });
    }

    /// Exposes the flow to [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn flow(&mut self) -> &mut PacketFlow<Loaded> {
        &mut self.flow
    }

    /// Exposes the policy state to [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn policy(&self) -> &FlowPolicy {
        &self.policies.state
    }
}

impl Drop for PacketFlowEngine {
    fn drop(&mut self) {
        if self.announced {
            self.core.end(self.shared.id);
        }
    }
}

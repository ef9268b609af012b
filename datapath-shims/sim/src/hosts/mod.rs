//! The datapath of the hosts: programs on packets on their way out, beside the transport's own.
//!
//! Where [`SimConfig::hosts`](crate::SimConfig::hosts) is set, each flow may run a program of `(hook send)`, and begins by one of
//! `(hook connect)`. What they can read is measured here: for each host (an address) the flows that it sent, by destination
//! and service, and its paths to each network (/24 or /48). What they decide goes to [`Network::steer`].
//! When a program runs and what of its decision is in force: [`ccplane_engine::packets`]. A flow without a program has priority 0 and
//! the path of its hash, as with ECMP.

mod flow;

use crate::channel::Channel;
use crate::config::{FlowConfig, HostsConfig};
use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, ON_PACKETS, ProgramUid,
    SlotTable, TransportStats, check_fields,
};
use ccplane_engine::SharedProgram;
use ccplane_engine::packets::HostMemory;
pub(crate) use ccplane_engine::packets::{Outbound, PathSample};
use ccplane_engine::runner::Runnable;
use ccplane_netsim::{FlowIndex, Network};
use ccplane_program::ir::{Hook, MAX_REGS};
use flow::Decided;
pub(crate) use flow::HostFlow;

const NS_PER_US: u64 = 1000;
/// Pairs of application and destination that all hosts remember together.
const MAX_PEERS: usize = 1 << 18;

/// Writes the parts of a [`Shim`] whose flows share programs, and of which it has a table and slots.
macro_rules! shared_programs {
    () => {
        type Loaded = ccplane_engine::SharedProgram;

        ccplane_contract::program_table!(programs);

        fn slot_shape(&self, slot: u8) -> Option<ccplane_infer::Shape> {
            self.slots.shape(slot)
        }

        fn load(
            &mut self,
            uid: ccplane_contract::ProgramUid,
            program: &std::sync::Arc<ccplane_program::ir::Program>,
        ) -> Result<ccplane_engine::SharedProgram, ccplane_contract::DatapathError> {
            Ok(ccplane_engine::SharedProgram::new(uid, program))
        }

        fn program_of(
            &mut self,
            flow: ccplane_contract::FlowId,
        ) -> Result<Option<ccplane_contract::ProgramUid>, ccplane_contract::DatapathError> {
            Ok(self.controllable(flow)?.program().map(ccplane_engine::runner::Runnable::uid))
        }
    };
}
pub(crate) use shared_programs;

/// A program that flows start with, and its first values.
#[derive(Debug)]
struct First {
    program: SharedProgram,
    fields: Vec<(Field, i64)>,
}

/// The hosts' datapath. Its flows have the ids that they have in [`SimDatapath`](crate::SimDatapath).
pub struct SimHosts {
    config: HostsConfig,
    now_ns: u64,
    /// The flows that run, by network index.
    flows: Vec<Option<Box<HostFlow>>>,
    announced: usize,
    programs: Programs<SharedProgram>,
    /// The programs that flows start with, by hook.
    first: [Option<First>; Hook::ALL.len()],
    slots: SlotTable,
    memory: HostMemory,
    channel: Channel,
    heartbeat_ns: u64,
    /// The registers of the last report.
    report: [i64; MAX_REGS],
    /// When the last queued event becomes visible, if the network is to be asked for that time.
    wake_at_ns: Option<u64>,
}

impl SimHosts {
    pub(crate) fn new(config: HostsConfig) -> SimHosts {
        SimHosts {
            now_ns: 0,
            flows: Vec::new(),
            announced: 0,
            programs: Programs::new(config.max_programs).of_hooks(ON_PACKETS),
            first: Default::default(),
            slots: SlotTable::new(),
            memory: HostMemory::new(MAX_PEERS, usize::MAX, config.path_memory_us),
            channel: Channel::new(config.event_capacity),
            heartbeat_ns: 0,
            report: [0; MAX_REGS],
            wake_at_ns: None,
            config,
        }
    }

    pub(crate) fn at(&mut self, now_ns: u64) -> &mut SimHosts {
        self.now_ns = now_ns;
        self
    }

    /// The priority and the path of what a flow sends now; `None` once it has ended.
    pub fn steering(&self, flow: FlowId) -> Option<(u8, u8)> {
        let steering = self.flows.get(usize::try_from(flow.0).ok()?)?.as_ref()?.packets.steering();
        Some((steering.priority, steering.path))
    }

    /// Adds a flow of this host, application and destination, of so many bytes, to those that hosts remember.
    pub fn remember(&mut self, flow: &FlowConfig, bytes: u64) {
        self.memory.remember(&flow::info(flow), bytes, self.now_ns / NS_PER_US);
    }

    /// Whether an event waits for the agent.
    pub(crate) fn has_due(&self, now_ns: u64) -> bool {
        self.channel.has_due(now_ns)
    }

    /// Takes the time at which the network is to wake its caller.
    pub(crate) fn take_wake(&mut self) -> Option<u64> {
        self.wake_at_ns.take()
    }

    pub(crate) fn add(&mut self, index: FlowIndex, config: &FlowConfig) {
        self.flows.resize_with(index as usize, || None);
        self.flows.push(Some(Box::new(HostFlow::new(FlowId(index.into()), config))));
    }

    /// Starts a flow: what is known of its past is measured, and the program of its start decides.
    pub(crate) fn start(&mut self, index: FlowIndex, now_ns: u64, net: &mut Network) {
        self.now_ns = now_ns;
        let silent = self.agent_silent();
        let now_us = now_ns / NS_PER_US;
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        flow.packets.start(&mut self.memory, now_us);
        let connect = self.first[Hook::Connect as usize].as_ref().filter(|_| !silent);
        let program = connect.map(|first| (first.program.clone(), &first.fields[..]));
        let mut policies = self.slots.policies(flow.id.0, &mut flow.policy);
        let outcome = flow.packets.connect(program, &self.memory, &mut policies, &mut self.report);
        let reported = connect.zip(outcome).filter(|(_, outcome)| outcome.report);
        let report = reported.map(|(first, outcome)| {
            let len = first.program.program().report_len();
            (first.program.uid(), Decided::reporting(&self.report[..len], outcome.asked))
        });
        if let Some(program) = self.first[Hook::Send as usize].as_ref().filter(|_| !silent) {
            flow.staged.stage_program(program.program.clone(), &program.fields);
        }
        let steering = flow.packets.steering();
        net.steer(index, steering.priority, steering.path);
        if self.announced < self.config.max_flows {
            flow.announced = true;
            self.announced += 1;
            let event = Event::Created { flow: flow.id, info: flow.packets.info().clone() };
            self.send_event_at(now_ns, event);
            if let Some((uid, decided)) = report {
                self.report(index, uid, decided);
            }
        }
    }

    /// A packet leaves: its flow's program runs if it is due, and what it decided is put into force.
    #[inline]
    pub(crate) fn on_packet(&mut self, index: FlowIndex, packet: &Outbound, net: &mut Network) {
        self.now_ns = packet.now_ns;
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        if flow.is_due(packet, self.config.flowlet_us) {
            self.decide(index, packet, net);
        }
        if let Some(Some(flow)) = self.flows.get_mut(index as usize) {
            flow.packets.sent(packet);
        }
    }

    fn decide(&mut self, index: FlowIndex, packet: &Outbound, net: &mut Network) {
        let silent = self.agent_silent();
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        if silent {
            return;
        }
        let mut prims = flow.packets.prims(packet.now_ns / NS_PER_US, &self.memory);
        flow.packets.fill(packet, &mut prims);
        let decided = flow.decide(&prims, &self.slots, &mut self.report);
        if flow.packets.steer(packet, self.config.flowlet_us, &mut self.memory) {
            let steering = flow.packets.steering();
            net.steer(index, steering.priority, steering.path);
        }
        if let Some(uid) = flow.packets.runner().running().map(Runnable::uid) {
            self.report(index, uid, decided);
        }
    }

    /// Updates the measures of a flow's path at an ACK; `lost_packets` is the flow's count of losses so far.
    pub(crate) fn on_ack(
        &mut self,
        index: FlowIndex,
        now_ns: u64,
        newest_tx: u64,
        lost_packets: u64,
        sample: PathSample,
    ) {
        self.sample(index, now_ns, Some(newest_tx), lost_packets, sample);
    }

    /// Takes what a flow has lost so far, by its timer: on the path in force, which the next packet may leave.
    pub(crate) fn on_lost(&mut self, index: FlowIndex, now_ns: u64, lost_packets: u64) {
        self.sample(index, now_ns, None, lost_packets, PathSample::default());
    }

    fn sample(
        &mut self,
        index: FlowIndex,
        now_ns: u64,
        newest_tx: Option<u64>,
        lost_packets: u64,
        sample: PathSample,
    ) {
        self.now_ns = now_ns;
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        flow.packets.on_sample(newest_tx, now_ns / NS_PER_US, lost_packets, sample, &mut self.memory);
    }

    /// Notes what a flow has in flight.
    #[inline]
    pub(crate) fn in_flight(&mut self, index: FlowIndex, bytes: u64) {
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        flow.packets.set_in_flight(bytes, &mut self.memory);
    }

    /// Ends a flow: its program runs once more, on a packet without payload.
    pub(crate) fn end(&mut self, index: FlowIndex, now_ns: u64, tx: u64, net: &mut Network) {
        self.now_ns = now_ns;
        self.in_flight(index, 0);
        let Some(Some(flow)) = self.flows.get(index as usize) else { return };
        let packet = Outbound { now_ns, bytes_sent: flow.packets.bytes_sent(), tx, ..Outbound::default() };
        self.on_packet(index, &packet, net);
        let Some(mut flow) = self.flows.get_mut(index as usize).and_then(Option::take) else { return };
        flow.packets.end(&mut self.memory);
        if flow.announced {
            self.announced -= 1;
            self.send_event_at(now_ns, Event::Closed { flow: flow.id });
        }
    }

    fn report(&mut self, index: FlowIndex, program: ProgramUid, decided: Decided) {
        let Decided { report: Some(values), asked } = decided else { return };
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        if !flow.announced {
            return;
        }
        flow.reports = flow.reports.wrapping_add(1);
        let at_us = self.now_ns / NS_PER_US;
        let event = Event::Report { flow: flow.id, program, seq: flow.reports, at_us, values: values.into() };
        let batch_ns = self.config.batch_us * NS_PER_US;
        let sent_ns =
            if asked && batch_ns > 0 { self.now_ns.next_multiple_of(batch_ns) } else { self.now_ns };
        self.send_event_at(sent_ns, event);
    }

    /// Queues an event that leaves for the agent at `sent_ns`.
    fn send_event_at(&mut self, sent_ns: u64, event: Event) {
        let due_ns = sent_ns + self.config.agent_latency_us * NS_PER_US;
        if due_ns > self.now_ns && self.channel.last_due_ns() != Some(due_ns) {
            self.wake_at_ns = Some(self.wake_at_ns.map_or(due_ns, |at_ns| at_ns.min(due_ns)));
        }
        self.channel.push(due_ns, event);
    }

    fn agent_silent(&self) -> bool {
        self.now_ns - self.heartbeat_ns > self.config.heartbeat_timeout_us.saturating_mul(NS_PER_US)
    }

    /// A flow that the agent knows of.
    fn controllable(&mut self, flow: FlowId) -> Result<&mut HostFlow, DatapathError> {
        let index = usize::try_from(flow.0).map_err(|_| DatapathError::NoFlow(flow))?;
        let found = self.flows.get_mut(index).and_then(Option::as_deref_mut);
        found.filter(|f| f.announced).ok_or(DatapathError::NoFlow(flow))
    }

    fn live(&self) -> impl Iterator<Item = &HostFlow> {
        self.flows.iter().flatten().map(|flow| &**flow)
    }

    fn mode(&self, flow: &HostFlow) -> Mode {
        match (flow.program().is_some(), flow.packets.runner().lacks_decision(), self.agent_silent()) {
            (false, ..) => Mode::NativeNoProgram,
            (true, true, _) => Mode::NativePolicy,
            (true, false, true) => Mode::NativeAgentSilent,
            (true, false, false) => Mode::Program,
        }
    }
}

impl Shim for SimHosts {
    shared_programs!();

    fn count_users(&self, uid: ProgramUid, _: &SharedProgram) -> usize {
        let runs = |flow: &&HostFlow| {
            let running = flow.packets.runner().running();
            [flow.staged.program(), running].into_iter().flatten().any(|p| p.uid() == uid)
        };
        let first = self.first.iter().flatten().filter(|first| first.program.uid() == uid);
        self.live().filter(runs).count() + first.count()
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, SharedProgram>) -> Result<(), DatapathError> {
        let found = self.controllable(flow)?;
        change.check_started()?;
        found.staged.stage(change);
        Ok(())
    }
}

impl Datapath for SimHosts {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "sim-hosts",
            max_programs: self.config.max_programs,
            max_flows: self.config.max_flows,
            policy: true,
            full_language: true,
            hooks: ON_PACKETS,
        }
    }

    ccplane_contract::program_commands!();

    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let entry = self.programs.get(uid)?;
        check_fields(Some(&entry.program), fields)?;
        let program = entry.loaded.clone();
        let hook = program.program().hook();
        self.first[hook as usize] = Some(First { program, fields: fields.to_vec() });
        Ok(())
    }

    fn is_running(&mut self, flow: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
        Ok(self.controllable(flow)?.program().is_some_and(|program| program.uid() == uid))
    }

    fn clear_first(&mut self, hook: Hook) {
        self.first[hook as usize] = None;
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let flow = self.controllable(flow)?;
        flow.packets.release();
        flow.staged.clear();
        Ok(())
    }

    ccplane_contract::slot_commands!(slots);

    fn heartbeat(&mut self) {
        self.heartbeat_ns = self.now_ns;
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let now_us = self.now_ns / NS_PER_US;
        let stats = |flow: &HostFlow| {
            let (program, packets) = (flow.program(), &flow.packets);
            FlowStats {
                flow: flow.id,
                info: packets.info().clone(),
                mode: self.mode(flow),
                program: program.map(Runnable::uid),
                transport: TransportStats {
                    bytes_acked: packets.bytes_sent().saturating_sub(packets.bytes_in_flight()),
                    faults: packets.runner().flow().faults,
                    reports: flow.reports.into(),
                    ..TransportStats::new(packets.info().mss_bytes, 0)
                },
                policy: program.filter(|p| p.program().uses_policy()).map(|_| flow.policy),
                sampled_at_us: now_us,
            }
        };
        self.live().filter(|flow| flow.announced).map(stats).collect()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.channel.take(self.now_ns, max, events)
    }
}

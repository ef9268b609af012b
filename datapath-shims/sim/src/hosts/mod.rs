//! The datapath of the hosts: programs on packets on their way out, beside the transport's own.
//!
//! Where [`SimConfig::hosts`](crate::SimConfig::hosts) is set, each flow may run a program of `(hook send)`, and begins by one of
//! `(hook connect)`. What they can read is measured here: for each host (an address) the flows that it sent, by destination
//! and service, and its paths to each network (/24 or /48). What they decide goes to [`Network::steer`].
//!
//! A send program runs on the flow's first packet, on each one from `DecideAt` on (where that is above 0), and where a
//! flowlet begins. It also runs on the next packet after a command of the agent. When the flow has ended, it runs once
//! more, on a packet without payload. A priority that is served later takes effect at once; one that is served earlier,
//! and another path, when nothing of the flow is in flight or it has paused for [`HostsConfig::flowlet_us`]: so that no
//! packet overtakes one of its own flow. A flow without a program has priority 0 and the path of its hash, as with
//! ECMP.

mod flow;
mod measure;

use crate::channel::Channel;
use crate::config::{FlowConfig, HostsConfig};
use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Mode, ON_PACKETS, ProgramUid,
    SlotTable, TransportStats, check_fields,
};
use ccplane_engine::SharedProgram;
use ccplane_engine::runner::{ProgramRunner, Runnable, Staged};
use ccplane_infer::Shape;
use ccplane_netsim::{FlowIndex, Network};
use ccplane_program::ir::{Hook, MAX_REGS, Program};
use flow::Decided;
pub(crate) use flow::{HostFlow, Outbound};
pub(crate) use measure::PathSample;
use measure::{Paths, Peers};
use std::sync::Arc;

const NS_PER_US: u64 = 1000;

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
    peers: Peers,
    paths: Paths,
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
            peers: Peers::default(),
            paths: Paths::default(),
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
        let flow = self.flows.get(usize::try_from(flow.0).ok()?)?.as_ref()?;
        Some((flow.priority, flow.path))
    }

    /// Adds a flow of this host, application and destination, of so many bytes, to those that hosts remember.
    pub fn remember(&mut self, flow: &FlowConfig, bytes: u64) {
        let info = HostFlow::new(FlowId(0), flow).info;
        self.peers.start(&info, self.now_ns / NS_PER_US);
        self.peers.end(&info, bytes);
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
        flow.start_us = now_us;
        flow.past = self.peers.start(&flow.info, now_us);
        flow.paths = self.paths.find(&flow.info);
        let hash = flow.hash();
        let mut first = ProgramRunner::new(0, flow.info.mss_bytes.into());
        first.begin_from(0, i64::from(hash) % i64::from(flow.path_count));
        let mut report = None;
        if let Some(program) = self.first[Hook::Connect as usize].as_ref().filter(|_| !silent) {
            let mut prims = flow.prims(now_us);
            self.paths.tell(flow.paths, flow.path_count, now_us, self.config.path_memory_us, &mut prims);
            let mut staged = Staged::default();
            staged.stage_program(program.program.clone(), &program.fields);
            first.take(&mut staged, ccplane_program::vm::Measured::get(&prims, Hook::Connect.clock()));
            let mut policies = self.slots.policies(flow.id.0, &mut flow.policy);
            let outcome = first.invoke(flow.info.mss_bytes.into(), &prims, &mut policies, &mut self.report);
            let len = program.program.program().report_len();
            report =
                outcome.report.then(|| (program.program.uid(), outcome.asked, self.report[..len].to_vec()));
        }
        flow.begin_from(&first);
        if let Some(program) = self.first[Hook::Send as usize].as_ref().filter(|_| !silent) {
            flow.staged.stage_program(program.program.clone(), &program.fields);
        }
        net.steer(index, flow.priority, flow.path);
        if self.announced < self.config.max_flows {
            flow.announced = true;
            self.announced += 1;
            let event = Event::Created { flow: flow.id, info: flow.info.clone() };
            self.tell_at(now_ns, event);
            if let Some((uid, asked, values)) = report {
                self.report(index, uid, Decided { report: Some(values), asked });
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
            flow.sent(packet);
            flow.bytes_sent = packet.bytes_sent + packet.new_bytes;
        }
    }

    fn decide(&mut self, index: FlowIndex, packet: &Outbound, net: &mut Network) {
        let silent = self.agent_silent();
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        if silent {
            return;
        }
        let now_us = packet.now_ns / NS_PER_US;
        let mut prims = flow.prims(now_us);
        flow.tell(packet, &mut prims);
        self.paths.tell(flow.paths, flow.path_count, now_us, self.config.path_memory_us, &mut prims);
        let decided = flow.decide(&prims, &self.slots, &mut self.report);
        let before = (flow.priority, flow.path);
        flow.steer(packet, self.config.flowlet_us);
        if before != (flow.priority, flow.path) {
            net.steer(index, flow.priority, flow.path);
            let in_flight = flow.bytes_in_flight;
            self.paths.carry(flow.paths, (before.1, in_flight), (flow.path, in_flight));
        }
        if let Some(uid) = flow.runner.running().map(Runnable::uid) {
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
        self.now_ns = now_ns;
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        let sample = PathSample { lost: flow.lost_until(lost_packets), ..sample };
        self.paths.sample(flow.paths, flow.path_of(newest_tx), now_ns / NS_PER_US, &sample);
    }

    /// Takes what a flow has lost so far, by its timer: on the path in force, which the next packet may leave.
    pub(crate) fn on_lost(&mut self, index: FlowIndex, now_ns: u64, lost_packets: u64) {
        self.now_ns = now_ns;
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        let sample = PathSample { lost: flow.lost_until(lost_packets), ..PathSample::default() };
        if sample.lost > 0 {
            self.paths.sample(flow.paths, flow.path, now_ns / NS_PER_US, &sample);
        }
    }

    /// Notes what a flow has in flight.
    #[inline]
    pub(crate) fn in_flight(&mut self, index: FlowIndex, bytes: u64) {
        let Some(Some(flow)) = self.flows.get_mut(index as usize) else { return };
        self.paths.carry(flow.paths, (flow.path, flow.bytes_in_flight), (flow.path, bytes));
        flow.bytes_in_flight = bytes;
    }

    /// Ends a flow: its program runs once more, on a packet without payload.
    pub(crate) fn end(&mut self, index: FlowIndex, now_ns: u64, tx: u64, net: &mut Network) {
        self.now_ns = now_ns;
        self.in_flight(index, 0);
        let Some(Some(flow)) = self.flows.get(index as usize) else { return };
        let packet = Outbound {
            now_ns,
            payload_bytes: 0,
            bytes_sent: flow.bytes_sent,
            new_bytes: 0,
            bytes_waiting: 0,
            bytes_in_flight: 0,
            tx,
        };
        self.on_packet(index, &packet, net);
        let Some(flow) = self.flows.get_mut(index as usize).and_then(Option::take) else { return };
        if flow.bytes_sent > 0 {
            self.peers.end(&flow.info, flow.bytes_sent);
        }
        if flow.announced {
            self.announced -= 1;
            self.tell_at(now_ns, Event::Closed { flow: flow.id });
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
        self.tell_at(sent_ns, event);
    }

    /// Queues an event that leaves for the agent at `sent_ns`.
    fn tell_at(&mut self, sent_ns: u64, event: Event) {
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
        match (flow.program().is_some(), flow.runner.lacks_decision(), self.agent_silent()) {
            (false, ..) => Mode::NativeNoProgram,
            (true, true, _) => Mode::NativePolicy,
            (true, false, true) => Mode::NativeAgentSilent,
            (true, false, false) => Mode::Program,
        }
    }
}

impl Shim for SimHosts {
    type Loaded = SharedProgram;

    ccplane_contract::program_table!(programs);

    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        self.slots.shape(slot)
    }

    fn load(&mut self, uid: ProgramUid, program: &Arc<Program>) -> Result<SharedProgram, DatapathError> {
        Ok(SharedProgram::new(uid, program))
    }

    fn count_users(&self, uid: ProgramUid, _: &SharedProgram) -> usize {
        let runs = |flow: &&HostFlow| {
            [flow.staged.program(), flow.runner.running()].into_iter().flatten().any(|p| p.uid() == uid)
        };
        let first = self.first.iter().flatten().filter(|first| first.program.uid() == uid);
        self.live().filter(runs).count() + first.count()
    }

    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        Ok(self.controllable(flow)?.program().map(Runnable::uid))
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, SharedProgram>) -> Result<(), DatapathError> {
        let found = self.controllable(flow)?;
        if let Some((_, entry)) = change.program.as_ref().filter(|_| change.starts)
            && entry.program.hook() != Hook::Send
        {
            let reason = "a flow that runs has started: programs of (hook connect) are set for flows to come";
            return Err(DatapathError::Refused { at: None, reason: reason.to_owned() });
        }
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

    fn ensure_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<bool, DatapathError> {
        if self.controllable(flow)?.program().is_some_and(|program| program.uid() == uid) {
            return Ok(false);
        }
        self.set_program(flow, uid, fields).map(|()| true)
    }

    fn clear_first(&mut self, hook: Hook) {
        self.first[hook as usize] = None;
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let flow = self.controllable(flow)?;
        flow.runner.release();
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
            let program = flow.program();
            FlowStats {
                flow: flow.id,
                info: flow.info.clone(),
                mode: self.mode(flow),
                program: program.map(Runnable::uid),
                transport: TransportStats {
                    bytes_acked: flow.bytes_sent.saturating_sub(flow.bytes_in_flight),
                    faults: flow.runner.flow().faults,
                    reports: flow.reports.into(),
                    ..TransportStats::new(flow.info.mss_bytes, 0)
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

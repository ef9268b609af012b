//! The datapath: a network, its flows, the installed programs, and the channel to the agent.

use crate::channel::Channel;
use crate::config::{FlowConfig, SimConfig, SimError, Source, check_mss};
use crate::flow::{Invoked, Out, Sample, SimFlow};
use crate::hosts::{PathSample, SimHosts};
use crate::transport::LOSS_TIMER;
use ccplane_contract::SlotTable;
use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::{Capabilities, Datapath, DatapathError, Event, FlowId, FlowStats, ProgramUid};
use ccplane_engine::SharedProgram;
use ccplane_engine::runner::Runnable;
use ccplane_netsim::workload::Arrival;
use ccplane_netsim::{CrossConfig, FlowIndex, LinkChange, MANY_FLOWS, Network, Occurrence};
use ccplane_program::ir::MAX_REGS;

const NS_PER_US: u64 = 1000;

/// The reason for which [`SimDatapath::run`] calls the agent.
#[derive(Clone, PartialEq, Debug)]
pub enum Wake {
    Event(Event),
    /// The agent's interval has passed, which is the time for heartbeats and timers.
    Tick,
}

/// The reason for a wake-up of the network; its token holds the kind and the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    Start(FlowIndex),
    Write(FlowIndex),
    Sample,
    /// An event becomes visible to the agent.
    Due,
}

impl Task {
    fn token(self) -> u64 {
        match self {
            Task::Start(flow) => u64::from(flow),
            Task::Write(flow) => 1 << 32 | u64::from(flow),
            Task::Sample => 2 << 32,
            Task::Due => 3 << 32,
        }
    }

    fn of(token: u64) -> Task {
        let flow = token as FlowIndex;
        match token >> 32 {
            0 => Task::Start(flow),
            1 => Task::Write(flow),
            2 => Task::Sample,
            _ => Task::Due,
        }
    }
}

/// Simulated flows that run fold programs, as the [crate's page](crate) describes.
pub struct SimDatapath {
    config: SimConfig,
    net: Network,
    /// The flows by network index, which is also their id; ended flows stay for their samples.
    flows: Vec<SimFlow>,
    announced: usize,
    programs: Programs<SharedProgram>,
    slots: SlotTable,
    channel: Channel,
    heartbeat_ns: u64,
    /// The registers of the last report.
    report: [i64; MAX_REGS],
    hosts: Option<SimHosts>,
}

impl SimDatapath {
    /// A datapath with no flows, at time 0, whose agent is taken to be alive.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn new(config: SimConfig) -> Result<SimDatapath, SimError> {
        config.check()?;
        let mut net = Network::new(config.links.clone(), config.seed)?;
        if config.sample_every_us > 0 {
            net.wake_at(0, Task::Sample.token());
        }
        let channel = Channel::new(config.event_capacity);
        let programs = Programs::new(config.max_programs);
        let hosts = config.hosts.clone().map(SimHosts::new);
        Ok(SimDatapath {
            hosts,
            config,
            net,
            flows: Vec::new(),
            announced: 0,
            programs,
            slots: SlotTable::new(),
            channel,
            heartbeat_ns: 0,
            report: [0; MAX_REGS],
        })
    }

    /// Adds a flow that starts at its time, or now if that has passed.
    ///
    /// # Errors
    /// The first field outside its limits; nothing is changed then.
    pub fn add_flow(&mut self, config: &FlowConfig) -> Result<FlowId, SimError> {
        config.check()?;
        let mut config = FlowConfig { start_us: config.start_us.max(self.now_us()), ..config.clone() };
        config.path = config.network_path();
        let index = self.net.add_flow(&config.path)?;
        self.flows.push(SimFlow::new(index, &config));
        if let Some(hosts) = &mut self.hosts {
            hosts.add(index, &config);
        }
        self.net.wake_at(config.start_us.saturating_mul(NS_PER_US), Task::Start(index).token());
        Ok(FlowId(index.into()))
    }

    /// Adds a flow for each arrival of a workload: like `template`, but starting so much later and carrying so
    /// many bytes.
    ///
    /// # Errors
    /// The first field outside its limits; the flows before it are there then.
    pub fn add_workload(
        &mut self,
        template: &FlowConfig,
        arrivals: impl IntoIterator<Item = Arrival>,
    ) -> Result<Vec<FlowId>, SimError> {
        let flow = |arrival: Arrival| FlowConfig {
            start_us: template.start_us.saturating_add(arrival.start_us),
            source: Source::Bytes(arrival.bytes),
            ..template.clone()
        };
        arrivals.into_iter().map(|arrival| self.add_flow(&flow(arrival))).collect()
    }

    /// Adds a source of traffic without congestion control; its number in [`Network::cross_stats`].
    ///
    /// # Errors
    /// The first field outside its limits; nothing is changed then.
    pub fn add_cross(&mut self, config: &CrossConfig) -> Result<u32, SimError> {
        Ok(self.net.add_cross(config)?)
    }

    /// Makes a link another from now on.
    ///
    /// # Errors
    /// The first field outside its limits, or there is no such link or rate; nothing is changed then.
    pub fn change_link(&mut self, link: u8, change: &LinkChange) -> Result<(), SimError> {
        Ok(self.net.change_link(link, change)?)
    }

    /// Returns the time that a flow took from its start until its last byte was acknowledged, or it was closed,
    /// microseconds; `None` while it runs.
    pub fn completion_us(&self, flow: FlowId) -> Option<u64> {
        let flow = self.flows.get(flow.0 as usize)?;
        Some(flow.ended_us?.saturating_sub(flow.start_us))
    }

    /// The same in nanoseconds.
    pub fn completion_ns(&self, flow: FlowId) -> Option<u64> {
        let flow = self.flows.get(flow.0 as usize)?;
        Some(flow.ended_ns?.saturating_sub(flow.start_us * NS_PER_US))
    }

    /// The hosts' datapath, where there is one: [`SimConfig::hosts`].
    pub fn hosts(&mut self) -> Option<&mut SimHosts> {
        let now_ns = self.net.now_ns();
        self.hosts.as_mut().map(|hosts| hosts.at(now_ns))
    }

    /// Changes a flow's segment size from the next new segment on.
    ///
    /// # Errors
    /// `NoFlow`, or the size is outside its limits.
    pub fn set_mss(&mut self, flow: FlowId, mss_bytes: u32) -> Result<(), SimError> {
        check_mss(mss_bytes)?;
        self.live(flow).ok_or(SimError::NoFlow(flow))?.set_mss(mss_bytes);
        Ok(())
    }

    /// Ends a flow; it sends nothing more.
    ///
    /// # Errors
    /// `NoFlow`.
    pub fn close(&mut self, flow: FlowId) -> Result<(), SimError> {
        let index = self.live(flow).ok_or(SimError::NoFlow(flow))?.id.0 as usize;
        self.end(index);
        Ok(())
    }

    /// The current virtual time, microseconds.
    pub fn now_us(&self) -> u64 {
        self.net.now_ns() / NS_PER_US
    }

    /// The network, for what its links and receivers have counted, and its digest.
    pub fn network(&self) -> &Network {
        &self.net
    }

    /// A flow as it is now, whether the agent knows of it or not, ended or not.
    pub fn stats(&self, flow: FlowId) -> Option<FlowStats> {
        let flow = self.flows.get(flow.0 as usize)?;
        Some(flow.stats(self.now_us(), self.agent_silent()))
    }

    /// A flow's samples so far, also after it ended.
    pub fn samples(&self, flow: FlowId) -> &[Sample] {
        self.flows.get(flow.0 as usize).map_or(&[], |f| &f.samples)
    }

    /// Memory that it holds at the moment, bytes: what its flows, network and channel have allocated.
    pub fn memory_bytes(&self) -> usize {
        let unused = (self.flows.capacity() - self.flows.len()) * size_of::<SimFlow>();
        let flows: usize = self.flows.iter().map(SimFlow::memory_bytes).sum();
        size_of::<Self>() + unused + flows + self.net.memory_bytes() + self.channel.memory_bytes()
    }

    /// Runs until it is `until_us`.
    pub fn step_until(&mut self, until_us: u64) {
        while let Some(occurrence) = self.net.next(until_us.saturating_mul(NS_PER_US)) {
            self.handle(occurrence);
        }
    }

    /// Runs until an event waits for the agent; false if until then it is `until_us`.
    pub fn step_to_event(&mut self, until_us: u64) -> bool {
        while !self.channel.has_due(self.net.now_ns()) {
            match self.net.next(until_us.saturating_mul(NS_PER_US)) {
                Some(occurrence) => self.handle(occurrence),
                None => return false,
            }
        }
        true
    }

    /// Runs until an event of the hosts' datapath waits for the agent; false if until then it is `until_us`.
    pub fn step_to_packet_event(&mut self, until_us: u64) -> bool {
        while !self.hosts.as_ref().is_some_and(|hosts| hosts.has_due(self.net.now_ns())) {
            match self.net.next(until_us.saturating_mul(NS_PER_US)) {
                Some(occurrence) => self.handle(occurrence),
                None => return false,
            }
        }
        true
    }

    /// Runs until `until_us` with an agent beside it: called on each event at the time it happens, and every
    /// `tick_us` (at least 1). What it does takes effect at once; how long it thinks is
    /// [`SimConfig::agent_latency_us`], after which it sees an event. Heartbeats are the agent's to give.
    pub fn run(&mut self, until_us: u64, tick_us: u64, agent: &mut dyn FnMut(u64, Wake, &mut dyn Datapath)) {
        let tick_us = tick_us.max(1);
        let mut next_tick_us = self.now_us() / tick_us * tick_us + tick_us;
        loop {
            let stop_us = until_us.min(next_tick_us);
            while self.step_to_event(stop_us) {
                let mut events = Vec::new();
                self.channel.take(self.net.now_ns(), usize::MAX, &mut events);
                for event in events {
                    agent(self.now_us(), Wake::Event(event), self);
                }
            }
            if stop_us == next_tick_us {
                agent(stop_us, Wake::Tick, self);
                next_tick_us = next_tick_us.saturating_add(tick_us);
            }
            if stop_us == until_us {
                return;
            }
        }
    }

    fn handle(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Ack { flow, .. } => {
                self.touch_next(flow);
                let (now_ns, silent) = (self.net.now_ns(), self.agent_silent());
                let Some(f) = self.flows.get_mut(flow as usize).filter(|f| !f.ended) else { return };
                let acked = self.net.acked();
                let Invoked { report, asked } =
                    f.on_ack(now_ns, acked, silent, &self.slots, &mut self.report);
                if let Some(values) = report {
                    self.report(flow as usize, values, asked);
                }
                self.tell_hosts(flow);
                self.transmit(flow);
            }
            Occurrence::Timer { flow, timer } => {
                let (now_ns, silent) = (self.net.now_ns(), self.agent_silent());
                let Some(f) = self.flows.get_mut(flow as usize).filter(|f| !f.ended) else { return };
                if timer == LOSS_TIMER {
                    f.on_loss_timer(now_ns, silent);
                    if let Some(hosts) = &mut self.hosts {
                        hosts.on_lost(flow, now_ns, f.lost_packets());
                    }
                }
                self.transmit(flow);
            }
            Occurrence::Wake { token } => match Task::of(token) {
                Task::Start(flow) => self.start(flow),
                Task::Write(flow) => self.write(flow),
                Task::Sample => self.sample(),
                Task::Due => {}
            },
        }
    }

    /// Reads what the ACK after this flow's will touch. The processor waits for none of it, and works on meanwhile.
    #[inline]
    fn touch_next(&self, flow: FlowIndex) {
        if self.flows.len() < MANY_FLOWS {
            return;
        }
        let next = self.net.upcoming_ack(flow).and_then(|next| self.flows.get(next as usize));
        if let Some(next) = next {
            std::hint::black_box(next.touch());
        }
    }

    fn start(&mut self, flow: FlowIndex) {
        let base_rtt_ns = self.net.base_rtt_ns(flow).unwrap_or(0);
        let Some(f) = self.flows.get_mut(flow as usize).filter(|f| !f.ended) else { return };
        f.connected(base_rtt_ns);
        if self.announced < self.config.max_flows {
            f.announced = true;
            self.announced += 1;
            let event = Event::Created { flow: f.id, info: f.info.clone() };
            self.send_event(event);
        }
        if let Some(hosts) = &mut self.hosts {
            hosts.start(flow, self.net.now_ns(), &mut self.net);
        }
        self.write(flow);
    }

    /// Tells the hosts' datapath what the flow's last ACK said of its path.
    fn tell_hosts(&mut self, flow: FlowIndex) {
        let now_ns = self.net.now_ns();
        let (Some(hosts), Some(f)) = (&mut self.hosts, self.flows.get(flow as usize)) else { return };
        let newest_tx = self.net.acked().iter().map(|delivery| delivery.tx).max().unwrap_or(0);
        let sample = PathSample {
            rtt_us: f.acked.rtt_ns.map(|ns| (ns / NS_PER_US).max(1)),
            packets: f.acked.packets(),
            marked: f.acked.marked_packets,
            lost: 0,
        };
        hosts.on_ack(flow, now_ns, newest_tx, f.lost_packets(), sample);
    }

    fn write(&mut self, flow: FlowIndex) {
        let Some(f) = self.flows.get(flow as usize).filter(|f| !f.ended) else { return };
        if let Source::Chunks { every_us, .. } = f.source {
            let at_ns = self.net.now_ns() + u64::from(every_us) * NS_PER_US;
            self.net.wake_at(at_ns, Task::Write(flow).token());
        }
        self.transmit(flow);
    }

    fn transmit(&mut self, flow: FlowIndex) {
        let now_ns = self.net.now_ns();
        let Some(f) = self.flows.get_mut(flow as usize) else { return };
        if f.is_complete() {
            self.end(flow as usize);
        } else {
            f.transmit(now_ns, &mut Out { net: &mut self.net, hosts: self.hosts.as_mut() });
            let in_flight = f.bytes_in_flight();
            if let Some(hosts) = &mut self.hosts {
                hosts.in_flight(flow, in_flight);
            }
        }
        self.wake_for_hosts();
    }

    /// Asks for the time at which the hosts' next event becomes visible to the agent.
    fn wake_for_hosts(&mut self) {
        if let Some(at_ns) = self.hosts.as_mut().and_then(SimHosts::take_wake) {
            self.net.wake_at(at_ns, Task::Due.token());
        }
    }

    fn report(&mut self, index: usize, values: Vec<i64>, is_row: bool) {
        let at_us = self.now_us();
        let Some(f) = self.flows.get_mut(index) else { return };
        let Some(program) = f.program().map(Runnable::uid) else { return };
        f.reports = f.reports.wrapping_add(1);
        let event = Event::Report { flow: f.id, program, seq: f.reports, at_us, values: values.into() };
        let batch_ns = self.config.batch_us * NS_PER_US;
        if is_row && batch_ns > 0 {
            self.send_event_at(self.net.now_ns().next_multiple_of(batch_ns), event);
        } else {
            self.send_event(event);
        }
    }

    fn send_event(&mut self, event: Event) {
        self.send_event_at(self.net.now_ns(), event);
    }

    /// Queues an event that leaves for the agent at `sent_ns`.
    fn send_event_at(&mut self, sent_ns: u64, event: Event) {
        let due_ns = sent_ns + self.config.agent_latency_us * NS_PER_US;
        if due_ns > self.net.now_ns() && self.channel.last_due_ns() != Some(due_ns) {
            self.net.wake_at(due_ns, Task::Due.token());
        }
        self.channel.push(due_ns, event);
    }

    fn end(&mut self, index: usize) {
        let at_us = self.now_us();
        let sampling = self.config.sample_every_us > 0;
        let Some(f) = self.flows.get_mut(index) else { return };
        if sampling {
            f.take_sample(at_us);
        }
        let now_ns = self.net.now_ns();
        let tx = f.next_tx();
        f.end(now_ns);
        if std::mem::take(&mut f.announced) {
            let event = Event::Closed { flow: f.id };
            self.announced -= 1;
            self.send_event(event);
        }
        if let Some(hosts) = &mut self.hosts {
            hosts.end(index as FlowIndex, now_ns, tx, &mut self.net);
        }
        self.wake_for_hosts();
        self.net.close(index as FlowIndex);
    }

    fn sample(&mut self) {
        let at_us = self.now_us();
        self.flows.iter_mut().filter(|f| !f.ended && f.has_started()).for_each(|f| f.take_sample(at_us));
        let every_ns = self.config.sample_every_us.saturating_mul(NS_PER_US);
        self.net.wake_at(self.net.now_ns().saturating_add(every_ns), Task::Sample.token());
    }

    fn agent_silent(&self) -> bool {
        let timeout_ns = self.config.heartbeat_timeout_us.saturating_mul(NS_PER_US);
        self.net.now_ns() - self.heartbeat_ns > timeout_ns
    }

    fn live(&mut self, flow: FlowId) -> Option<&mut SimFlow> {
        let index = usize::try_from(flow.0).ok()?;
        self.flows.get_mut(index).filter(|f| !f.ended)
    }

    /// A flow that the agent knows of.
    fn controllable(&mut self, flow: FlowId) -> Result<&mut SimFlow, DatapathError> {
        self.live(flow).filter(|f| f.announced).ok_or(DatapathError::NoFlow(flow))
    }
}

impl Shim for SimDatapath {
    crate::hosts::shared_programs!();

    fn count_users(&self, uid: ProgramUid, _: &SharedProgram) -> usize {
        self.flows.iter().filter(|f| f.uses(uid)).count()
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, SharedProgram>) -> Result<(), DatapathError> {
        self.controllable(flow)?.stage(change);
        Ok(())
    }
}

impl Datapath for SimDatapath {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "sim",
            max_programs: self.config.max_programs,
            max_flows: self.config.max_flows,
            policy: true,
            full_language: true,
            hooks: ccplane_contract::ON_ACKS,
        }
    }

    ccplane_contract::program_commands!();

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.controllable(flow)?.release();
        Ok(())
    }

    ccplane_contract::slot_commands!(slots);

    fn heartbeat(&mut self) {
        self.heartbeat_ns = self.net.now_ns();
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let (now_us, silent) = (self.now_us(), self.agent_silent());
        self.flows.iter().filter(|f| f.announced).map(|f| f.stats(now_us, silent)).collect()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.channel.take(self.net.now_ns(), max, events)
    }
}

//! A datapath to start from. Its flows send over a pipe in memory; all else is as in a real one.
//!
//! Read from top to bottom, and replace the parts marked *yours* by those of your transport:
//! 1. [`TemplateDatapath::pass`] is the transport (*yours*). It delivers packets and calls `on_ack` for each ACK.
//! 2. `on_ack` runs the flow's program, or the native algorithm, and queues the program's report.
//! 3. [`Shim`] loads programs and stages changes. The registry keeps the programs and refuses what is wrong.
//! 4. [`Datapath`] is the agent's handle: it delegates to the registry and to the slot table.
#![forbid(unsafe_code)]

use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::suite::Observation;
use ccplane_contract::{Capabilities, Datapath, DatapathError, Event, FlowId, FlowInfo, FlowStats, Mode};
use ccplane_contract::{ProgramUid, SlotTable, TransportStats};
use ccplane_engine::SharedProgram;
use ccplane_engine::controller::FlowController;
use ccplane_engine::runner::{Runnable, Staged};
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::Prims;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

// Every bound of a datapath is a constant, or a field of its configuration.
const MAX_FLOWS: usize = 64;
const MAX_EVENTS: usize = 1024;
/// Silence of the agent after which flows run the native algorithm, microseconds.
pub const HEARTBEAT_TIMEOUT_US: u64 = 500_000;
/// Round-trip time of the pipe, microseconds.
const RTT_US: u64 = 1000;
/// Packets that the pipe carries in one round trip; it drops the rest.
const PIPE_PACKETS: u64 = 100;

/// A flow: the parts that every datapath needs, and a transport's own counters.
struct PipeFlow {
    info: FlowInfo,
    /// Chooses between the program and the native algorithm, and holds the window of both.
    controller: FlowController<SharedProgram>,
    /// Changes by the agent that take effect at the next ACK.
    staged: Staged<SharedProgram>,
    policy: FlowPolicy,
    counters: TransportStats,
}

impl PipeFlow {
    /// Returns the packets that window and rate allow in one round trip.
    fn allowed_packets(&self) -> u64 {
        let (window, rate) = (self.controller.wanted_packets(), self.controller.program_rate());
        let paced = rate.saturating_mul(RTT_US) / 1_000_000 / self.controller.mss_bytes();
        if rate == 0 { window } else { window.min(paced.max(1)) }
    }
}

/// Flows over a pipe in memory, in a virtual time that only [`TemplateDatapath::pass`] moves.
#[derive(Default)]
pub struct TemplateDatapath {
    programs: Programs<SharedProgram>,
    slots: SlotTable,
    flows: BTreeMap<FlowId, PipeFlow>,
    events: VecDeque<Event>,
    /// Events that did not fit, which the next gap reports.
    dropped: u64,
    now_us: u64,
    heartbeat_us: u64,
}

impl TemplateDatapath {
    /// Starts a flow under an id that was never used before, and announces it; false if there are too many flows.
    pub fn start(&mut self, id: FlowId, info: FlowInfo) -> bool {
        if self.flows.len() >= MAX_FLOWS {
            return false;
        }
        let cwnd_packets = info.init_cwnd_bytes / u64::from(info.mss_bytes.max(1));
        let controller = FlowController::new(cwnd_packets, info.mss_bytes);
        let (staged, policy, counters) = Default::default();
        self.push_event(Event::Created { flow: id, info: info.clone() });
        let flow = PipeFlow { info, controller, staged, policy, counters };
        self.flows.insert(id, flow).is_none()
    }

    /// Ends a flow and announces that.
    pub fn stop(&mut self, id: FlowId) {
        if self.flows.remove(&id).is_some() {
            self.push_event(Event::Closed { flow: id });
        }
    }

    /// Lets time pass, microseconds: in each round trip a flow sends what it may, and gets one ACK (*yours*).
    pub fn pass(&mut self, us: u64) {
        let until_us = self.now_us + us;
        while self.now_us / RTT_US < until_us / RTT_US {
            self.now_us = (self.now_us / RTT_US + 1) * RTT_US;
            for id in self.flows.keys().copied().collect::<Vec<_>>() {
                let Some(flow) = self.flows.get_mut(&id) else { continue };
                let (sent, mss_bytes) = (flow.allowed_packets(), flow.controller.mss_bytes());
                let delivered = sent.min(PIPE_PACKETS);
                flow.counters.bytes_acked += delivered * mss_bytes;
                flow.counters.delivered += delivered;
                flow.counters.lost += sent - delivered;
                // A program sees an ACK as these primitives; those that a transport does not know stay 0.
                let mut prims = Prims::default();
                prims.set(Prim::AckNow, self.now_us as i64).set(Prim::FlowRttSampleUs, RTT_US as i64);
                prims.set(Prim::AckBytesAcked, (delivered * mss_bytes) as i64);
                prims.set(Prim::AckLostPktsSample, (sent - delivered) as i64);
                self.on_ack(id, &prims, delivered, sent - delivered);
            }
        }
        self.now_us = until_us;
    }

    /// Sets a flow's segment size, bytes.
    pub fn set_mss(&mut self, id: FlowId, mss_bytes: u32) {
        self.flows.entry(id).and_modify(|flow| flow.controller.set_mss(mss_bytes));
    }

    /// Returns the state of a flow's program, for the suite.
    pub fn observe(&self, id: FlowId, asked: bool) -> Option<Observation> {
        let flow = self.flows.get(&id)?;
        flow.controller.runner().observe(&flow.policy, asked)
    }

    /// Processes one ACK; returns whether the program asked a policy.
    pub fn on_ack(&mut self, id: FlowId, prims: &Prims, delivered: u64, lost: u64) -> bool {
        let silent = self.is_silent();
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        // The native algorithm controls a flow without a program, or whose agent is silent or policy has no answer.
        let controller = &mut flow.controller;
        controller.choose(controller.mode_now(silent, flow.staged.program().is_some()));
        if controller.mode() != Mode::Program {
            let reno = &mut controller.reno;
            if lost > 0 {
                reno.on_loss(delivered + lost)
            } else {
                reno.on_ack(delivered)
            }
            return false;
        }
        // Staged changes take effect together, before the program runs on this ACK.
        controller.take(&mut flow.staged, prims.get(Prim::AckNow));
        let mut report = [0; MAX_REGS];
        let outcome = controller.invoke(prims, &mut self.slots.policies(id.0, &mut flow.policy), &mut report);
        if let Some(running) = controller.runner().running().filter(|_| outcome.report) {
            flow.counters.reports += 1;
            let values = report[..running.program().report_len()].iter().copied().collect();
            let (program, seq, at_us) = (running.uid(), flow.counters.reports as u32, self.now_us);
            self.push_event(Event::Report { flow: id, program, seq, at_us, values });
        }
        outcome.asked
    }

    /// Queues an event. After one that did not fit, all are dropped until the gap has been reported.
    fn push_event(&mut self, event: Event) {
        if self.dropped == 0 && self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.dropped += 1;
        }
    }

    fn is_silent(&self) -> bool {
        self.now_us - self.heartbeat_us > HEARTBEAT_TIMEOUT_US
    }

    fn flow(&mut self, id: FlowId) -> Result<&mut PipeFlow, DatapathError> {
        self.flows.get_mut(&id).ok_or(DatapathError::NoFlow(id))
    }
}

/// Programs run on the VM here. A datapath that compiles them does so in `load`, and frees them in `unload`.
impl Shim for TemplateDatapath {
    type Loaded = SharedProgram;

    fn programs(&self) -> &Programs<SharedProgram> {
        &self.programs
    }
    fn programs_mut(&mut self) -> &mut Programs<SharedProgram> {
        &mut self.programs
    }
    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        self.slots.shape(slot)
    }
    fn load(&mut self, uid: ProgramUid, program: &Arc<Program>) -> Result<SharedProgram, DatapathError> {
        Ok(SharedProgram::new(uid, program))
    }
    fn count_users(&self, uid: ProgramUid, _: &SharedProgram) -> usize {
        self.flows.values().filter(|f| f.controller.uses(&f.staged, uid)).count()
    }
    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        let PipeFlow { controller, staged, .. } = self.flow(flow)?;
        Ok(controller.next_program(staged).map(Runnable::uid))
    }
    fn stage(&mut self, flow: FlowId, change: Change<'_, SharedProgram>) -> Result<(), DatapathError> {
        self.flow(flow)?.staged.stage(change);
        Ok(())
    }
}

impl Datapath for TemplateDatapath {
    fn capabilities(&self) -> Capabilities {
        let (max_programs, max_flows) = (self.programs.limit(), MAX_FLOWS);
        let hooks = ccplane_contract::ON_ACKS;
        Capabilities { kind: "template", max_programs, max_flows, policy: true, full_language: true, hooks }
    }
    ccplane_contract::program_commands!();

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let flow = self.flow(flow)?;
        flow.controller.release();
        flow.staged.clear();
        Ok(())
    }
    ccplane_contract::slot_commands!(slots);

    fn heartbeat(&mut self) {
        self.heartbeat_us = self.now_us;
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let (silent, sampled_at_us) = (self.is_silent(), self.now_us);
        let stats = |(id, f): (&FlowId, &PipeFlow)| {
            let (controller, program) = (&f.controller, f.controller.next_program(&f.staged));
            FlowStats {
                flow: *id,
                info: f.info.clone(),
                mode: controller.mode_now(silent, f.staged.program().is_some()),
                program: program.map(Runnable::uid),
                transport: TransportStats {
                    snd_cwnd: controller.wanted_packets() as u32,
                    mss_bytes: controller.mss_bytes() as u32,
                    srtt_us: RTT_US as u32,
                    min_rtt_us: RTT_US as u32,
                    pacing_rate: controller.program_rate(),
                    faults: controller.runner().flow().faults,
                    ..f.counters
                },
                policy: program.filter(|p| p.program().uses_policy()).map(|_| f.policy),
                sampled_at_us,
            }
        };
        self.flows.iter().map(stats).collect()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let count = max.min(self.events.len());
        events.extend(self.events.drain(..count));
        if count == max || self.dropped == 0 {
            return count;
        }
        events.push(Event::Dropped { count: std::mem::take(&mut self.dropped) });
        count + 1
    }
}

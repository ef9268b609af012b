//! A whole algorithm on one flow: its agent's side through the real core, its program on the reference VM, over
//! a [`RigPath`]. All that the program and the agent did is kept as a script that any executor can replay.

use crate::monitor::{Monitor, Reported};
use crate::operation::Operation;
use crate::path::{PathConfig, RigPath};
use crate::violation::{Bounds, Violation};
use ccplane_alg::{Algorithm, FlowInfo};
use ccplane_contract::suite::{Script, ScriptStep};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Part, ProgramUid, SlotStats,
    SlotTable, Values, apply_fields, check_fields,
};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm;
use std::sync::Arc;

const DATAPATH: DatapathId = DatapathId(0);
const FLOW: FlowId = FlowId(1);
/// The time when flows start: not at 0, which programs may take for "never".
pub(crate) const START_US: u64 = 1_000_000;
/// The longest time between the agent's heartbeats, microseconds; it also takes rows then.
const TICK_US: u64 = 100_000;

/// Window and rate after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The window register, bytes.
    pub cwnd_bytes: i64,
    /// The rate register, bytes per second; 0: none was set.
    pub rate_bytes_per_s: i64,
}

/// The trajectory of a flow under a stream of operations.
#[derive(Clone, Debug)]
pub struct Trajectory {
    pub points: Vec<Point>,
    /// ACKs that the program ran on.
    pub acks: usize,
    /// Reports that the agent saw.
    pub reports: usize,
    /// Number of packets found lost.
    pub lost_packets: i64,
    /// The number of timeouts that were passed to the program.
    pub timeouts: usize,
    /// Everything that went into the program, in order, for another executor.
    pub script: Script,
}

/// The datapath that the core steers; it keeps the commands.
#[derive(Default)]
struct Recorder {
    programs: Vec<(ProgramUid, Program)>,
    slots: SlotTable,
    defined: Vec<(u8, Shape)>,
    images: Vec<Vec<u64>>,
    steps: Vec<ScriptStep>,
    /// The program that is set, by its place.
    current: Option<usize>,
    released: bool,
    events: Vec<Event>,
}

impl Recorder {
    fn program(&self) -> Option<&Program> {
        self.current.and_then(|n| self.programs.get(n)).map(|(_, program)| program)
    }
}

impl Datapath for Recorder {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "kit",
            max_programs: 64,
            max_flows: 1,
            policy: true,
            full_language: true,
            hooks: ccplane_contract::ON_ACKS,
        }
    }
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.slots.check(program)?;
        self.programs.push((uid, program.clone()));
        Ok(())
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        Err(DatapathError::NoProgram(uid))
    }
    fn set_program(
        &mut self,
        _: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let index = self.programs.iter().position(|(u, _)| *u == uid).ok_or(DatapathError::NoProgram(uid))?;
        check_fields(Some(&self.programs[index].1), fields)?;
        self.current = Some(index);
        self.steps.push(ScriptStep::SetProgram { program: index, fields: fields.to_vec() });
        Ok(())
    }
    fn update(&mut self, _: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        check_fields(self.program(), fields)?;
        self.steps.push(ScriptStep::Update(fields.to_vec()));
        Ok(())
    }
    fn release(&mut self, _: FlowId) -> Result<(), DatapathError> {
        self.released = true;
        Ok(())
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.slots.define(slot, shape)?;
        self.defined.push((slot, *shape));
        Ok(())
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.slots.push(slot, image, part)?;
        self.steps.push(ScriptStep::Push { slot, image: self.images.len(), part });
        self.images.push(image.to_vec());
        Ok(())
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.promote(slot)?;
        self.steps.push(ScriptStep::Promote(slot));
        Ok(())
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.rollback(slot)?;
        self.steps.push(ScriptStep::Rollback(slot));
        Ok(())
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.stats()
    }
    fn heartbeat(&mut self) {}
    fn flows(&mut self) -> Vec<FlowStats> {
        Vec::new()
    }
    fn poll(&mut self, _: usize, events: &mut Vec<Event>) -> usize {
        let count = self.events.len();
        events.append(&mut self.events);
        count
    }
}

/// A flow under test.
pub(crate) struct Rig {
    core: Core,
    datapath: Recorder,
    path: RigPath,
    initial: PathConfig,
    flow: vm::ProgramState,
    policy: FlowPolicy,
    /// Steps that the program has seen.
    applied: usize,
    seq: u32,
    next_tick_us: u64,
    operation: usize,
    monitor: Monitor,
    acks: usize,
    lost_packets: i64,
    timeouts: usize,
}

impl Rig {
    pub(crate) fn new(
        algorithm: &Arc<dyn Algorithm>,
        config: PathConfig,
        bounds: &Bounds,
    ) -> Result<Rig, Violation> {
        let catalog = Catalog::new(vec![Arc::clone(algorithm)], 1)?;
        let mut core = Core::new(catalog, Rules::all(algorithm.name()), Config::default())?;
        let mut datapath = Recorder::default();
        core.attach(DATAPATH, datapath.capabilities(), START_US)?;
        drive(&mut core, DATAPATH, &mut datapath, START_US);
        let cwnd_bytes = u64::from(config.mss_bytes) * u64::from(config.init_cwnd_packets);
        let info = FlowInfo::example(config.mss_bytes.into(), cwnd_bytes);
        datapath.events.push(Event::Created { flow: FLOW, info });
        drive(&mut core, DATAPATH, &mut datapath, START_US);
        let rig = Rig {
            core,
            datapath,
            path: RigPath::new(config, START_US),
            initial: config,
            flow: vm::ProgramState::idle(cwnd_bytes as i64),
            policy: FlowPolicy::default(),
            applied: 0,
            seq: 0,
            next_tick_us: START_US + TICK_US,
            operation: 0,
            monitor: Monitor::new(bounds, config.mss_bytes),
            acks: 0,
            lost_packets: 0,
            timeouts: 0,
        };
        rig.check_steered()?;
        Ok(rig)
    }

    /// Performs one operation and returns the flow's state after it.
    pub(crate) fn operate(&mut self, operation: Operation) -> Result<Point, Violation> {
        let path = &mut self.path;
        match operation {
            Operation::Loss { packets } => path.lose_next = packets,
            Operation::Ecn { packets } => path.mark_next = packets,
            Operation::Timeout => path.lose_all(),
            Operation::Reorder { packets, by_us } => path.delay_next = (packets, by_us.into()),
            Operation::AppLimit { packets } => path.app_limit = Some(packets.max(1)),
            Operation::Bulk => path.app_limit = None,
            Operation::Mtu { mss_bytes } => {
                path.config.mss_bytes = mss_bytes.max(1);
                self.monitor.mss_bytes(mss_bytes);
            }
            Operation::Rtt { us } => path.config.rtt_us = us,
            Operation::Rate { bytes_per_s } => path.config.rate_bytes_per_s = bytes_per_s.max(1),
            Operation::Aggregate { us } => path.aggregate_us = us.into(),
            Operation::ClockJump { us } => path.jump(us.into()),
            Operation::Run { us } => self.run(us.into())?,
            Operation::Blackout { us } => {
                path.black_out(us.into());
                self.run(us.into())?;
            }
            Operation::Idle { us } => {
                path.idle = true;
                let ran = self.run(us.into());
                self.path.idle = false;
                ran?;
            }
        }
        self.operation += 1;
        Ok(Point { cwnd_bytes: self.flow.cwnd_bytes, rate_bytes_per_s: self.flow.rate_bytes_per_s })
    }

    /// Restores the path of the start for `us` microseconds, and returns the bytes delivered in the
    /// last `measured_us` of them.
    ///
    /// That time starts with the sender's next timer, before which no algorithm can send.
    pub(crate) fn calm(&mut self, us: u64, measured_us: u64) -> Result<u64, Violation> {
        /// The timer has backed off to at most so much.
        const TIMER_US: u64 = 60_000_000;
        let mss_bytes = self.path.config.mss_bytes;
        self.path.config = PathConfig { mss_bytes, ..self.initial };
        (self.path.app_limit, self.path.aggregate_us) = (None, 0);
        (self.path.lose_next, self.path.mark_next, self.path.delay_next) = (0, 0, (0, 0));
        let (acks, deadline_us) = (self.acks, self.path.now_us() + TIMER_US);
        while self.acks == acks && self.path.now_us() < deadline_us {
            self.run(TICK_US)?;
        }
        self.run(us.saturating_sub(measured_us))?;
        let before = self.path.delivered();
        self.run(measured_us)?;
        Ok(self.path.delivered() - before)
    }

    fn run(&mut self, us: u64) -> Result<(), Violation> {
        let until_us = self.path.now_us() + us;
        loop {
            let stop_us = until_us.min(self.next_tick_us);
            let (cwnd_bytes, rate) =
                (self.flow.cwnd_bytes.max(0) as u64, self.flow.rate_bytes_per_s.max(0) as u64);
            if let Some(prims) = self.path.next_ack(cwnd_bytes, rate, stop_us) {
                self.on_ack(&prims)?;
                continue;
            }
            let now_us = self.path.now_us();
            if now_us >= self.next_tick_us {
                self.next_tick_us = now_us + TICK_US;
                drive(&mut self.core, DATAPATH, &mut self.datapath, now_us);
                self.check_steered()?;
            }
            if now_us >= until_us {
                return Ok(());
            }
        }
    }

    fn on_ack(&mut self, prims: &vm::Prims) -> Result<(), Violation> {
        self.acks += 1;
        self.lost_packets += prims.get(Prim::AckLostPktsSample);
        self.timeouts += usize::from(prims.get(Prim::FlowWasTimeout) != 0);
        let now_us = prims.get(Prim::AckNow);
        self.apply_staged(now_us);
        self.datapath.steps.push(ScriptStep::Invoke(*prims));
        self.applied = self.datapath.steps.len();
        let Some(program) = self.datapath.program() else { return self.check_steered() };
        let mut report = [0; MAX_REGS];
        let mut policies = self.datapath.slots.policies(FLOW.0, &mut self.policy);
        let outcome = self.flow.invoke_with(program, prims, &mut policies, &mut report);
        if outcome.native {
            return Err(Violation::Unsteered {
                operation: self.operation,
                reason: "a policy had no answer".into(),
            });
        }
        let report_len = program.report_len();
        let reported = match outcome.report {
            true => Reported::Now,
            false if !program.policy_slots().is_empty() => Reported::NoRow,
            false => Reported::NotYet,
        };
        self.monitor.after(self.operation, now_us as u64, prims, &self.flow, reported)?;
        if outcome.report {
            self.seq += 1;
            let program = self.datapath.current.map_or(ProgramUid(0), |n| self.datapath.programs[n].0);
            self.datapath.events.push(Event::Report {
                flow: FLOW,
                program,
                seq: self.seq,
                at_us: now_us as u64,
                values: Values::from_slice(&report[..report_len]),
            });
            // A row waits for the next tick, or for a report that wakes the agent.
            if !outcome.asked {
                drive(&mut self.core, DATAPATH, &mut self.datapath, now_us as u64);
                self.check_steered()?;
            }
        }
        Ok(())
    }

    /// Applies the agent's requests since the last ACK, as [`ccplane_contract::suite::Reference`] does it.
    fn apply_staged(&mut self, now_us: i64) {
        let (mut start, mut fields) = (None, Vec::<(Field, i64)>::new());
        for step in &self.datapath.steps[self.applied..] {
            match step {
                ScriptStep::SetProgram { program, fields: first } => {
                    start = Some(*program);
                    fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
                    fields.extend_from_slice(first);
                }
                ScriptStep::Update(more) => fields.extend_from_slice(more),
                ScriptStep::Invoke(_)
                | ScriptStep::Decide(_)
                | ScriptStep::Push { .. }
                | ScriptStep::Promote(_)
                | ScriptStep::Rollback(_)
                | ScriptStep::SegmentSize { .. } => {}
            }
        }
        if let Some(program) = start.and_then(|n| self.datapath.programs.get(n)) {
            self.flow.start(&program.1, now_us);
        }
        if let Some(program) = self.datapath.program() {
            apply_fields(&mut self.flow, program, &fields);
        }
    }

    /// The agent steers the flow, and nothing that the algorithm asked for was refused.
    fn check_steered(&self) -> Result<(), Violation> {
        let operation = self.operation;
        let Some(view) = self.core.flow(DATAPATH, FLOW) else {
            return Err(Violation::Unsteered {
                operation,
                reason: "the agent does not know the flow".into(),
            });
        };
        if let Some(reason) = view.native() {
            return Err(Violation::Unsteered { operation, reason: reason.to_string() });
        }
        if self.datapath.released {
            return Err(Violation::Unsteered { operation, reason: "the agent released the flow".into() });
        }
        match view.last_error() {
            Some(error) => Err(Violation::Refused { operation, error: error.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn into_trajectory(self, points: Vec<Point>) -> Trajectory {
        Trajectory {
            points,
            acks: self.acks,
            reports: self.seq as usize,
            lost_packets: self.lost_packets,
            timeouts: self.timeouts,
            script: Script {
                programs: self.datapath.programs.into_iter().map(|(_, program)| program).collect(),
                cwnd_bytes: i64::from(self.initial.mss_bytes) * i64::from(self.initial.init_cwnd_packets),
                mss_bytes: self.initial.mss_bytes.into(),
                steps: self.datapath.steps,
                flow: FLOW,
                slots: self.datapath.defined,
                images: self.datapath.images,
            },
        }
    }
}

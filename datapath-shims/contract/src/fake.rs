//! A datapath without packets, for tests of its callers: it keeps the contract and remembers the commands.

use crate::command::{Field, Part};
use crate::datapath::{Capabilities, Datapath, ON_ACKS, SlotStats};
use crate::error::DatapathError;
use crate::event::Event;
use crate::flow::{FlowInfo, FlowStats, Mode};
use crate::ids::{FlowId, ProgramUid};
use crate::registry::{Change, Programs, Shim};
use crate::slots::SlotTable;
use crate::transport::TransportStats;
use ccplane_infer::Shape;
use ccplane_program::ir::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most flows, as its capabilities say; nothing is refused beyond.
const MAX_FLOWS: usize = 1000;
/// Congestion window of flows that start, packets.
const INIT_CWND_PACKETS: u32 = 10;

/// A flow of a [`FakeDatapath`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeFlow {
    pub info: FlowInfo,
    /// The program that was set last, if any.
    pub program: Option<ProgramUid>,
    pub transport: TransportStats,
    /// The congestion control that the flow's owner asks for.
    pub requested: Option<String>,
}

/// A change to a flow that a [`FakeDatapath`] has accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeChange {
    pub flow: FlowId,
    /// The program that starts; none where only fields change.
    pub starts: Option<ProgramUid>,
    pub fields: Vec<(Field, i64)>,
}

/// A datapath that accepts and refuses as a real one does. Tests start and end its flows and read what it holds.
#[derive(Default, Debug)]
pub struct FakeDatapath {
    pub programs: Programs<()>,
    pub slots: SlotTable,
    pub flows: BTreeMap<FlowId, FakeFlow>,
    /// Events that the next polls take, oldest first.
    pub events: Vec<Event>,
    /// Changes to flows, oldest first.
    pub changes: Vec<FakeChange>,
    pub heartbeats: u64,
    /// The refusal of every program to come, if any.
    pub refused: Option<DatapathError>,
    /// Pushes to come that find their slot busy.
    pub busy_pushes: u32,
}

impl FakeDatapath {
    /// Starts a flow and announces it; returns it, so that a test can change it.
    pub fn start(&mut self, flow: FlowId, info: FlowInfo) -> &mut FakeFlow {
        self.events.push(Event::Created { flow, info: info.clone() });
        let transport = TransportStats::new(info.mss_bytes, INIT_CWND_PACKETS);
        self.flows.entry(flow).or_insert(FakeFlow { info, program: None, transport, requested: None })
    }

    /// Ends a flow and announces that, whether there is one or not.
    pub fn end(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
        self.events.push(Event::Closed { flow });
    }

    /// Reports these values of the flow's program; nothing where it runs none.
    pub fn report(&mut self, flow: FlowId, seq: u32, values: &[i64]) {
        let Some(program) = self.flows.get(&flow).and_then(|flow| flow.program) else { return };
        self.events.push(Event::Report { flow, program, seq, at_us: 0, values: values.into() });
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&mut self) -> Vec<FakeChange> {
        std::mem::take(&mut self.changes)
    }

    fn flow(&mut self, flow: FlowId) -> Result<&mut FakeFlow, DatapathError> {
        self.flows.get_mut(&flow).ok_or(DatapathError::NoFlow(flow))
    }
}

impl Shim for FakeDatapath {
    type Loaded = ();

    fn programs(&self) -> &Programs<()> {
        &self.programs
    }
    fn programs_mut(&mut self) -> &mut Programs<()> {
        &mut self.programs
    }
    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        self.slots.shape(slot)
    }
    fn load(&mut self, _: ProgramUid, _: &Arc<Program>) -> Result<(), DatapathError> {
        self.refused.clone().map_or(Ok(()), Err)
    }
    fn count_users(&self, uid: ProgramUid, (): &()) -> usize {
        self.flows.values().filter(|flow| flow.program == Some(uid)).count()
    }
    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        Ok(self.flow(flow)?.program)
    }
    fn stage(&mut self, flow: FlowId, change: Change<'_, ()>) -> Result<(), DatapathError> {
        let Change { program, starts, fields } = change;
        let starts = program.filter(|_| starts).map(|(uid, _)| uid);
        let changed = self.flow(flow)?;
        changed.program = starts.or(changed.program);
        self.changes.push(FakeChange { flow, starts, fields: fields.to_vec() });
        Ok(())
    }
}

impl Datapath for FakeDatapath {
    fn capabilities(&self) -> Capabilities {
        let (max_programs, max_flows) = (self.programs.limit(), MAX_FLOWS);
        Capabilities {
            kind: "fake",
            max_programs,
            max_flows,
            policy: true,
            full_language: true,
            hooks: ON_ACKS,
        }
    }
    crate::program_commands!();

    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.flows.get(&flow)?.requested.as_deref()
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.flow(flow)?.program = None;
        Ok(())
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.slots.define(slot, shape)
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        if self.busy_pushes > 0 {
            self.busy_pushes -= 1;
            return Err(DatapathError::SlotBusy { slot });
        }
        self.slots.push(slot, image, part)
    }
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.slots.share(slot, share)
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.promote(slot)
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.slots.rollback(slot)
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.stats()
    }
    fn heartbeat(&mut self) {
        self.heartbeats += 1;
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |(flow, of): (&FlowId, &FakeFlow)| FlowStats {
            flow: *flow,
            info: of.info.clone(),
            mode: if of.program.is_some() { Mode::Program } else { Mode::NativeNoProgram },
            program: of.program,
            transport: of.transport,
            policy: None,
            sampled_at_us: 0,
        };
        self.flows.iter().map(stats).collect()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let count = max.min(self.events.len());
        events.extend(self.events.drain(..count));
        count
    }
}

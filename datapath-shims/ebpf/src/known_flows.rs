//! The flows that the agent was told of, and the events that wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use ccplane_contract::registry::Programs;
use ccplane_contract::{DatapathError, Event, FlowId, ProgramUid};
use ccplane_program::ir::MAX_REGS;

use crate::layout::{NO_INSTANCE, STAGE_RELEASE, ctl, event};
use crate::maps::Memory;
use crate::ring::{Ring, RingRecord};
use crate::table::{Change, Start, index_of};

/// Writes the parts of a [`Shim`](ccplane_contract::registry::Shim) that its known flows and its defined slots answer.
macro_rules! known {
    () => {
        /// Only slots that this agent has defined count; the others are as the one before left them.
        fn slot_shape(&self, slot: u8) -> Option<ccplane_infer::Shape> {
            let is_one = usize::from(slot) < ccplane_program::ir::MAX_POLICY_SLOTS;
            let is_defined = is_one && self.defined & 1 << slot != 0;
            is_defined.then(|| self.policies.shape(slot)).flatten()
        }

        fn program_of(
            &mut self,
            flow: ccplane_contract::FlowId,
        ) -> Result<Option<ccplane_contract::ProgramUid>, ccplane_contract::DatapathError> {
            Ok(self.known_flows.known(&self.memory, flow)?.program)
        }
    };
}
pub(crate) use known;

/// Writes the commands on flows of a [`Datapath`](ccplane_contract::Datapath) in the kernel that its known flows and its memory carry out.
macro_rules! flow_commands {
    () => {
        fn release(&mut self, flow: ccplane_contract::FlowId) -> Result<(), ccplane_contract::DatapathError> {
            self.known_flows.release(&self.memory, flow)
        }

        fn flows(&mut self) -> Vec<ccplane_contract::FlowStats> {
            self.memory.table.all_stats(self.memory.is_silent())
        }

        fn poll(&mut self, max: usize, events: &mut Vec<ccplane_contract::Event>) -> usize {
            self.known_flows.poll(max, events, (&*self.ring, &self.memory), &self.programs)
        }
    };
}
pub(crate) use flow_commands;

/// A flow that the agent was told of.
pub struct KnownFlow {
    flow: FlowId,
    /// The program that this agent set on it last.
    pub program: Option<ProgramUid>,
    /// The name by which its socket chose the datapath, where that is not the datapath's own.
    requested: Option<Box<str>>,
}

/// A program that is loaded into the kernel under a number of its own.
pub trait Instance {
    /// The number that reports carry.
    fn instance(&self) -> u32;
}

/// Flows by record index, and events in order.
pub struct KnownFlows {
    /// The datapath's own name; `None` where sockets do not choose it by name.
    name: Option<String>,
    known: HashMap<u32, KnownFlow>,
    pending: VecDeque<Event>,
    /// Dropped events that were reported already.
    dropped: u64,
    /// Flows that had ended when their start was read.
    unseen: u64,
}

impl KnownFlows {
    /// Knows no flow yet; counts drops from what the kernel has dropped so far.
    pub fn new(name: Option<String>, memory: &Memory) -> KnownFlows {
        let dropped = memory.ctl.u64(ctl::DROPPED as usize).load(Relaxed);
        KnownFlows { name, known: HashMap::new(), pending: VecDeque::new(), dropped, unseen: 0 }
    }

    /// Whether events wait to be polled.
    pub fn has_events(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The number of flows so far that had ended when their start was read, which the agent is never told of.
    pub fn unseen(&self) -> u64 {
        self.unseen
    }

    /// The name that a flow's socket asked for.
    pub fn requested(&self, flow: FlowId) -> Option<&str> {
        self.known.get(&index_of(flow)).filter(|known| known.flow == flow)?.requested.as_deref()
    }

    /// Queues events for flows that started or ended without an event that we saw.
    pub fn reconcile(&mut self, memory: &Memory) {
        let gone = |known: &KnownFlow| memory.table.index(known.flow).is_none();
        let gone: Vec<FlowId> = self.known.values().filter(|k| gone(k)).map(|k| k.flow).collect();
        gone.into_iter().for_each(|flow| self.closed(flow));
        for (_, flow) in memory.table.live() {
            self.created(memory, flow);
        }
    }

    /// Queues the event that a flow started, unless the agent has been told; false if it has ended meanwhile.
    fn created(&mut self, memory: &Memory, flow: FlowId) -> bool {
        if self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow) {
            return true;
        }
        // A flow that has ended since is not worth reporting: nothing is known of it any more.
        let Some(info) = memory.table.info(flow) else { return false };
        let requested = self.name.as_ref().and_then(|own| {
            memory.table.chosen_name(flow).filter(|name| name != own).map(String::into_boxed_str)
        });
        let known = KnownFlow { flow, program: None, requested };
        if let Some(before) = self.known.insert(index_of(flow), known) {
            self.pending.push_back(Event::Closed { flow: before.flow });
        }
        self.pending.push_back(Event::Created { flow, info });
        true
    }

    fn closed(&mut self, flow: FlowId) {
        if self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow) {
            self.known.remove(&index_of(flow));
            self.pending.push_back(Event::Closed { flow });
        }
    }

    /// The flow's entry, if the flow lives.
    pub fn known(&mut self, memory: &Memory, flow: FlowId) -> Result<&mut KnownFlow, DatapathError> {
        if memory.table.index(flow).is_none() {
            return Err(DatapathError::NoFlow(flow));
        }
        // The flow may be in the table before its event is polled.
        self.created(memory, flow);
        let entry = self.known.get_mut(&index_of(flow)).filter(|k| k.flow == flow);
        entry.ok_or(DatapathError::NoFlow(flow))
    }

    /// Stages the flow's return to its native algorithm.
    pub fn release(&mut self, memory: &Memory, flow: FlowId) -> Result<(), DatapathError> {
        self.known(memory, flow)?;
        let program = Some(Start { slot: STAGE_RELEASE, uid: 0 });
        let change = Change { program, instance: NO_INSTANCE, cwnd: None, rate: None, regs: &[] };
        self.stage(memory, flow, None, &change)
    }

    /// Stages a change, after which the flow runs this program, or natively.
    pub fn stage(
        &mut self,
        memory: &Memory,
        flow: FlowId,
        program: Option<ProgramUid>,
        change: &Change<'_>,
    ) -> Result<(), DatapathError> {
        if !memory.table.stage(flow, change) {
            return Err(DatapathError::NoFlow(flow));
        }
        self.known(memory, flow)?.program = program;
        Ok(())
    }

    /// Takes the kernel's events, at most `max` of which are appended to `events`; returns their number.
    pub fn poll<L: Instance>(
        &mut self,
        max: usize,
        events: &mut Vec<Event>,
        (ring, memory): (&Ring, &Memory),
        programs: &Programs<L>,
    ) -> usize {
        let mut taken = Vec::new();
        let room = max.saturating_sub(self.pending.len());
        ring.drain(|record| {
            let fits = taken.len() < room;
            if fits {
                taken.push(CopiedEvent::new(record));
            }
            fits
        });
        for record in taken {
            self.take(memory, record, programs);
        }
        let dropped = memory.ctl.u64(ctl::DROPPED as usize).load(Relaxed);
        if dropped != self.dropped {
            self.pending.push_back(Event::Dropped { count: dropped - self.dropped });
            self.dropped = dropped;
            // Starts and ends of flows may be among them.
            self.reconcile(memory);
        }
        let count = max.min(self.pending.len());
        events.extend(self.pending.drain(..count));
        count
    }

    fn take<L: Instance>(&mut self, memory: &Memory, record: CopiedEvent, programs: &Programs<L>) {
        let flow = FlowId(record.flow);
        match record.kind {
            event::CREATED => self.unseen += u64::from(!self.created(memory, flow)),
            event::CLOSED => self.closed(flow),
            _ => {
                let known = self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow);
                let by = programs.iter().find(|(_, p)| p.loaded.instance() == record.instance);
                if let (Some((program, _)), true) = (by, known) {
                    let CopiedEvent { seq, at_us, values, .. } = record;
                    self.pending.push_back(Event::Report { flow, program, seq, at_us, values });
                }
            }
        }
    }
}

/// An event, copied out of the ring.
struct CopiedEvent {
    kind: i32,
    flow: u64,
    seq: u32,
    instance: u32,
    at_us: u64,
    values: ccplane_contract::Values,
}

impl CopiedEvent {
    fn new(record: RingRecord<'_>) -> CopiedEvent {
        let len = record.u32(event::LEN).min(MAX_REGS as u32);
        CopiedEvent {
            kind: record.u32(event::KIND) as i32,
            flow: record.u64(event::FLOW),
            seq: record.u32(event::SEQ),
            instance: record.u32(event::INSTANCE),
            at_us: record.u64(event::AT_US),
            values: (0..len).map(|n| record.u64(event::VALUES + 8 * n) as i64).collect(),
        }
    }
}

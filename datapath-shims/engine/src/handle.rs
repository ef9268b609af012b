//! The agent's end of an engine.

use crate::core::Core;
use crate::events::Reader;
use crate::mailbox::SharedFlow;
use crate::program::{First, FirstPrograms, Installed};
use ccplane_contract::registry::{Change, Programs, Shim};
use ccplane_contract::{Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, ProgramUid};
use ccplane_contract::{Part, SlotStats, SlotTable, check_fields};
use ccplane_infer::Shape;
use ccplane_program::ir::{Hook, Program};
use std::sync::Arc;

/// The datapath's clock, microseconds, as ACKs tell it.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// An engine's flows under the agent's commands.
pub struct Handle {
    core: Arc<Core>,
    clock: Clock,
    programs: Programs<Arc<Installed>>,
    first: FirstPrograms,
    slots: SlotTable,
    /// Slot tables that flows may still hold; the handle frees them, so that no flow does.
    retired: Vec<Arc<SlotTable>>,
    reader: Reader,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>, clock: Clock) -> Handle {
        let slots = SlotTable::clone(&core.slots.load());
        let programs = Programs::new(core.config.max_programs).of_hooks(core.config.hooks());
        let (first, retired, reader) = Default::default();
        Handle { core, clock, programs, first, slots, retired, reader }
    }

    fn flow(&self, flow: FlowId) -> Result<Arc<SharedFlow>, DatapathError> {
        self.core.flows().get(&flow).cloned().ok_or(DatapathError::NoFlow(flow))
    }

    /// Returns all announced flows, as of now.
    fn all(&self) -> Vec<Arc<SharedFlow>> {
        self.core.flows().values().cloned().collect()
    }

    /// Changes the slots for all flows at once.
    fn change(
        &mut self,
        change: impl FnOnce(&mut SlotTable) -> Result<(), DatapathError>,
    ) -> Result<(), DatapathError> {
        change(&mut self.slots)?;
        self.retired.push(self.core.slots.swap(Arc::new(self.slots.clone())));
        // A table that is not current can only lose holders.
        self.retired.retain(|table| Arc::strong_count(table) > 1);
        Ok(())
    }
}

impl Shim for Handle {
    type Loaded = Arc<Installed>;

    ccplane_contract::program_table!(programs);

    fn slot_shape(&self, slot: u8) -> Option<Shape> {
        self.slots.shape(slot)
    }

    fn load(&mut self, uid: ProgramUid, program: &Arc<Program>) -> Result<Arc<Installed>, DatapathError> {
        Ok(Arc::new(Installed::new(uid, program)))
    }

    fn count_users(&self, uid: ProgramUid, _: &Arc<Installed>) -> usize {
        let first = self.first.iter().flatten().filter(|first| first.program.named.uid == uid).count();
        self.all().iter().filter(|flow| flow.lock().uses(uid)).count() + first
    }

    fn program_of(&mut self, flow: FlowId) -> Result<Option<ProgramUid>, DatapathError> {
        Ok(self.flow(flow)?.lock().set.as_ref().map(|set| set.named.uid))
    }

    fn stage(&mut self, flow: FlowId, change: Change<'_, Arc<Installed>>) -> Result<(), DatapathError> {
        let flow = self.flow(flow)?;
        change.check_started()?;
        match change.program.filter(|_| change.starts) {
            Some((_, entry)) => {
                let loaded = entry.loaded.load();
                drop(flow.stage(|mailbox| mailbox.set(entry.loaded, loaded, change.fields)));
            }
            None => drop(flow.stage(|mailbox| {
                mailbox.staged.stage_fields(change.fields);
                mailbox.take_discarded()
            })),
        }
        Ok(())
    }
}

impl Datapath for Handle {
    fn capabilities(&self) -> Capabilities {
        let config = &self.core.config;
        Capabilities {
            kind: config.kind,
            max_programs: config.max_programs,
            max_flows: config.max_flows,
            policy: true,
            full_language: true,
            hooks: config.hooks(),
        }
    }

    ccplane_contract::program_commands!();

    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        if self.core.config.packets.is_none() {
            return Err(DatapathError::Unsupported { feature: "a program that flows start with".to_owned() });
        }
        let entry = self.programs.get(uid)?;
        check_fields(Some(&entry.program), fields)?;
        let (hook, program) = (entry.program.hook(), Arc::clone(&entry.loaded));
        self.first[hook as usize] = Some(First { program, fields: fields.to_vec() });
        self.core.first.store(Arc::new(self.first.clone()));
        Ok(())
    }

    fn is_running(&mut self, flow: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
        Ok(self.core.config.packets.is_some() && self.program_of(flow)? == Some(uid))
    }

    fn clear_first(&mut self, hook: Hook) {
        if self.first[hook as usize].take().is_some() {
            self.core.first.store(Arc::new(self.first.clone()));
        }
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        drop(self.flow(flow)?.stage(|mailbox| mailbox.release()));
        Ok(())
    }

    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.change(|slots| slots.define(slot, shape))
    }

    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.change(|slots| slots.push(slot, image, part))
    }

    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.change(|slots| slots.share(slot, share))
    }

    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.change(|slots| slots.promote(slot))
    }

    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.change(|slots| slots.rollback(slot))
    }

    fn slots(&mut self) -> Vec<SlotStats> {
        self.slots.stats()
    }

    fn heartbeat(&mut self) {
        self.core.note_heartbeat((self.clock)());
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |flow: Arc<SharedFlow>| {
            let mut mailbox = flow.lock();
            let (discarded, set) = (mailbox.take_discarded(), mailbox.set.clone());
            drop(mailbox);
            drop(discarded);
            let asks_policy = set.as_ref().is_some_and(|set| set.asks_policy);
            flow.samples.read().stats(flow.id, &flow.info, set.map(|set| set.named.uid), asks_policy)
        };
        self.all().into_iter().map(stats).collect()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.reader.take(&self.core.events, max, events)
    }
}

//! The agent's end.

use crate::core::{Clock, Core};
use crate::desk::Shared;
use crate::events::Reader;
use crate::program::Installed;
use ccplane_contract::{Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, ProgramUid};
use ccplane_contract::{Part, SlotStats, SlotTable, check_fields};
use ccplane_infer::Shape;
use ccplane_program::ir::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An engine's flows, as the agent steers them.
pub struct Handle {
    core: Arc<Core>,
    clock: Clock,
    programs: BTreeMap<ProgramUid, Arc<Installed>>,
    slots: SlotTable,
    /// Tables of slots that flows may still hold, so that none of them is the one to free it.
    retired: Vec<Arc<SlotTable>>,
    reader: Reader,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>, clock: Clock) -> Handle {
        let slots = SlotTable::clone(&core.slots.load());
        let (programs, retired, reader) = Default::default();
        Handle { core, clock, programs, slots, retired, reader }
    }

    fn flow(&self, flow: FlowId) -> Result<Arc<Shared>, DatapathError> {
        self.core.flows().get(&flow).cloned().ok_or(DatapathError::NoFlow(flow))
    }

    /// All flows, as of now.
    fn all(&self) -> Vec<Arc<Shared>> {
        self.core.flows().values().cloned().collect()
    }

    /// Changes the slots, at once for every flow.
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

impl Datapath for Handle {
    fn capabilities(&self) -> Capabilities {
        let config = &self.core.config;
        Capabilities {
            kind: config.kind,
            max_programs: config.max_programs,
            max_flows: config.max_flows,
            policy: true,
            full_language: true,
        }
    }

    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.slots.check(program)?;
        if self.programs.contains_key(&uid) {
            let reason = format!("a program is already installed as {}", uid.0);
            return Err(DatapathError::Refused { at: None, reason });
        }
        let limit = self.core.config.max_programs;
        if self.programs.len() >= limit {
            return Err(DatapathError::ProgramsFull { limit });
        }
        self.programs.insert(uid, Arc::new(Installed::new(uid, program)));
        Ok(())
    }

    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        if !self.programs.contains_key(&uid) {
            return Err(DatapathError::NoProgram(uid));
        }
        let flows = self.all().iter().filter(|flow| flow.lock().uses(uid)).count();
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        self.programs.remove(&uid);
        Ok(())
    }

    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        let program = self.programs.get(&uid).ok_or(DatapathError::NoProgram(uid))?;
        let flow = self.flow(flow)?;
        check_fields(Some(&program.program), fields)?;
        let (program, loaded) = (Arc::clone(program), program.load());
        drop(flow.stage(|desk| desk.set(program, loaded, fields)));
        Ok(())
    }

    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let flow = self.flow(flow)?;
        let spent = flow.stage(|desk| {
            check_fields(desk.set.as_ref().map(|set| &*set.program), fields)?;
            desk.staged.stage_fields(fields);
            Ok(desk.sweep())
        });
        spent.map(drop)
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        drop(self.flow(flow)?.stage(|desk| desk.release()));
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
        self.core.heard((self.clock)());
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let stats = |flow: Arc<Shared>| {
            let mut desk = flow.lock();
            let (spent, set) = (desk.sweep(), desk.set.clone());
            drop(desk);
            drop(spent);
            let asks_policy = set.as_ref().is_some_and(|set| set.asks_policy);
            flow.samples.read().stats(flow.id, &flow.info, set.map(|set| set.uid), asks_policy)
        };
        self.all().into_iter().map(stats).collect()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.reader.take(&self.core.events, max, events)
    }
}

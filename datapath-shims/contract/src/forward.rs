//! A datapath around another one.

use crate::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Part, ProgramUid, SlotStats,
};
use ccplane_infer::Shape;
use ccplane_program::ir::Program;

/// A datapath that leaves all commands to another one; what it tells may differ.
pub trait Forward {
    /// Says what it can do.
    fn inner(&self) -> &dyn Datapath;

    /// Carries out the commands.
    fn inner_mut(&mut self) -> &mut dyn Datapath;

    /// Lists the flows, as [`Datapath::flows`] does.
    fn forward_flows(&mut self) -> Vec<FlowStats> {
        self.inner_mut().flows()
    }

    /// Takes events, as [`Datapath::poll`] does.
    fn forward_poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.inner_mut().poll(max, events)
    }
}

impl<T: Forward> Datapath for T {
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }
    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        self.inner_mut().install(uid, program)
    }
    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        self.inner_mut().remove(uid)
    }
    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        self.inner_mut().set_program(flow, uid, fields)
    }
    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        self.inner_mut().update(flow, fields)
    }
    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.inner().requested(flow)
    }
    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.inner_mut().release(flow)
    }
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        self.inner_mut().define_slot(slot, shape)
    }
    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.inner_mut().push(slot, image, part)
    }
    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.inner_mut().share(slot, share)
    }
    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.inner_mut().promote(slot)
    }
    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.inner_mut().rollback(slot)
    }
    fn slots(&mut self) -> Vec<SlotStats> {
        self.inner_mut().slots()
    }
    fn heartbeat(&mut self) {
        self.inner_mut().heartbeat();
    }
    fn flows(&mut self) -> Vec<FlowStats> {
        self.forward_flows()
    }
    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.forward_poll(max, events)
    }
}

//! The policies that one flow's programs ask.

use crate::core::Core;
use arc_swap::{ArcSwap, Cache};
use ccplane_contract::{FlowId, SlotTable};
use ccplane_infer::FlowPolicy;
use ccplane_program::vm::{Decision, Knobs, Policies};
use std::sync::Arc;

/// The policies of one flow. Its copy of the current table costs one load to check; the memory that a thread needs to
/// take another is allocated when its first flow starts.
pub(crate) struct FlowPolicies {
    flow: FlowId,
    slots: Cache<Arc<ArcSwap<SlotTable>>, Arc<SlotTable>>,
    pub(crate) state: FlowPolicy,
    /// The slot that was asked last.
    pub(crate) last: Option<u8>,
}

impl FlowPolicies {
    pub(crate) fn new(core: &Core, flow: FlowId) -> FlowPolicies {
        let slots = Cache::new(Arc::clone(&core.slots));
        FlowPolicies { flow, slots, state: FlowPolicy::default(), last: None }
    }
}

impl Policies for FlowPolicies {
    #[inline]
    fn decide(&mut self, slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision {
        self.last = Some(slot);
        self.slots.load().policies(self.flow.0, &mut self.state).decide(slot, inputs, knobs)
    }
}

//! Rows of live flows as all learners take them.

use super::mailbox::LoopId;
use ccplane_core::DatapathId;
use ccplane_learn::Policy;
use std::collections::BTreeMap;

/// An action of 1 in rows, Q16.
pub(super) const ONE_Q16: f32 = 65_536.0;
/// Flows that are told apart; of more, all are forgotten.
const MAX_FLOWS: usize = 1 << 16;

/// A flow's loop, its datapath there, and its number in that datapath.
pub(super) type FlowName = (LoopId, DatapathId, u64);

/// One number for each flow of whatever loop and datapath.
#[derive(Default)]
pub(super) struct FlowNumbers {
    numbers: BTreeMap<FlowName, u64>,
    last: u64,
}

impl FlowNumbers {
    /// Returns a flow's number, and whether the flow was not known before.
    pub(super) fn of(&mut self, flow: FlowName) -> (u64, bool) {
        if let Some(number) = self.numbers.get(&flow) {
            return (*number, false);
        }
        if self.numbers.len() >= MAX_FLOWS {
            self.numbers.clear();
        }
        self.last += 1;
        self.numbers.insert(flow, self.last);
        (self.last, true)
    }

    /// Forgets the flows that `stays` is false for.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&FlowName, u64) -> bool) {
        self.numbers.retain(|flow, number| stays(flow, *number));
    }

    /// Forgets all flows; their next rows are of new ones.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
    }
}

/// A decision's inputs as a policy's network takes them.
pub(super) fn normalised(policy: &Policy, inputs: &[i32]) -> Vec<f32> {
    let mut observation = vec![0.0; policy.architecture().inputs];
    policy.spec().normalise(inputs, &mut observation);
    observation
}

//! Counts of everything that the core keeps.

use crate::core::Core;

/// The number of entries in each of the core's tables; one that only grows is a leak.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableSizes {
    /// Flows that have started and not ended.
    pub flows: usize,
    /// Actions that wait to be taken.
    pub queued: usize,
    /// Actions that were taken and have not ended.
    pub unanswered: usize,
    /// Entries that policy slots keep of single flows.
    pub slot_flows: usize,
    /// Rows that wait for learners.
    pub rows: usize,
    /// Samples of paths that wait for learners.
    pub measures: usize,
    /// Decisions that were not taken yet.
    pub decided: usize,
}

impl Core {
    /// Counts what is kept. Looks at every datapath and slot: for tests and statistics, not for each turn.
    pub fn table_sizes(&self) -> TableSizes {
        let mut sizes =
            TableSizes { flows: self.flows.len(), decided: self.decided.len(), ..TableSizes::default() };
        (sizes.rows, sizes.measures) = self.rows.len();
        for attached in self.datapaths.values() {
            let (queued, unanswered) = attached.queue.len();
            sizes.queued += queued;
            sizes.unanswered += unanswered;
            sizes.slot_flows +=
                attached.slots.values().map(|slot_deployment| slot_deployment.flow_entries()).sum::<usize>();
        }
        sizes
    }
}

//! Intervals on their way to learners, in bounded buffers.

use crate::{DatapathId, MAX_ROWS};
use ccplane_alg::Row;
use ccplane_contract::FlowId;
use std::collections::{BTreeMap, VecDeque};

/// The intervals of one slot's flows in one batch interval.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// The datapath.
    pub datapath: DatapathId,
    /// Whose flows they are.
    pub algorithm: &'static str,
    /// The slot.
    pub slot: u8,
    /// Oldest first; a flow's in order.
    pub rows: Vec<(FlowId, Row)>,
    /// Rows that did not fit: the oldest.
    pub dropped: u64,
}

#[derive(Default)]
struct Buffer {
    algorithm: &'static str,
    rows: VecDeque<(FlowId, Row)>,
    dropped: u64,
}

/// Every slot's rows.
#[derive(Default)]
pub(crate) struct Rows {
    buffers: BTreeMap<(DatapathId, u8), Buffer>,
    /// All that were taken in.
    pub taken: u64,
    /// All that did not fit.
    pub dropped: u64,
}

impl Rows {
    pub fn push(&mut self, datapath: DatapathId, algorithm: &'static str, flow: FlowId, row: Row) {
        let buffer = self.buffers.entry((datapath, row.slot)).or_default();
        buffer.algorithm = algorithm;
        if buffer.rows.len() >= MAX_ROWS {
            buffer.rows.pop_front();
            buffer.dropped += 1;
            self.dropped += 1;
        }
        buffer.rows.push_back((flow, row));
        self.taken += 1;
    }

    /// All batches that are not empty, which are removed.
    pub fn take(&mut self) -> Vec<Batch> {
        let batch = |((datapath, slot), b): ((DatapathId, u8), Buffer)| Batch {
            datapath,
            algorithm: b.algorithm,
            slot,
            rows: b.rows.into(),
            dropped: b.dropped,
        };
        std::mem::take(&mut self.buffers).into_iter().map(batch).collect()
    }

    pub fn forget(&mut self, datapath: DatapathId) {
        self.buffers.retain(|(d, _), _| *d != datapath);
    }
}

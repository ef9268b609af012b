//! Intervals on their way to learners, in bounded buffers.

use crate::action::DatapathId;
use crate::limits::{MAX_MEASURES, MAX_ROWS};
use ccplane_alg::Row;
use ccplane_contract::{FlowId, FlowStats, TransportStats};
use std::collections::{BTreeMap, VecDeque};

/// A flow's path as its datapath last sampled it: what a learner's picture of the link is made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    pub flow: FlowId,
    /// The datapath's clock at the sample, microseconds.
    pub at_us: u64,
    pub transport: TransportStats,
}

impl From<&FlowStats> for Measure {
    fn from(stats: &FlowStats) -> Measure {
        Measure { flow: stats.flow, at_us: stats.sampled_at_us, transport: stats.transport }
    }
}

/// The intervals of one slot's flows in one batch interval.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    pub datapath: DatapathId,
    pub algorithm: &'static str,
    pub slot: u8,
    /// Oldest first; a flow's in order.
    pub rows: Vec<(FlowId, Row)>,
    /// Rows that did not fit: the oldest.
    pub dropped: u64,
    /// The flows' paths, some of them.
    pub measures: Vec<Measure>,
}

#[derive(Default)]
struct Buffer {
    algorithm: &'static str,
    rows: VecDeque<(FlowId, Row)>,
    dropped: u64,
    measures: Vec<Measure>,
}

/// Rows that wait for their learners, by datapath and slot.
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

    pub fn measure(&mut self, datapath: DatapathId, algorithm: &'static str, slot: u8, measure: Measure) {
        let buffer = self.buffers.entry((datapath, slot)).or_default();
        buffer.algorithm = algorithm;
        if buffer.measures.len() < MAX_MEASURES {
            buffer.measures.push(measure);
        }
    }

    /// All batches that are not empty, which are removed.
    pub fn take(&mut self) -> Vec<Batch> {
        let batch = |((datapath, slot), b): ((DatapathId, u8), Buffer)| Batch {
            datapath,
            algorithm: b.algorithm,
            slot,
            rows: b.rows.into(),
            dropped: b.dropped,
            measures: b.measures,
        };
        std::mem::take(&mut self.buffers).into_iter().map(batch).collect()
    }

    /// Rows and measures that wait.
    pub fn len(&self) -> (usize, usize) {
        let buffers = self.buffers.values();
        buffers.fold((0, 0), |(rows, measures), b| (rows + b.rows.len(), measures + b.measures.len()))
    }

    pub fn forget(&mut self, datapath: DatapathId) {
        self.buffers.retain(|(d, _), _| *d != datapath);
    }
}

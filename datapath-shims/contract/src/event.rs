//! The events of datapaths.

use crate::flow::FlowInfo;
use crate::ids::{FlowId, ProgramUid};
use smallvec::SmallVec;

/// The values of a report: no allocation where a program has no more report registers than most.
pub type Values = SmallVec<[i64; 8]>;

/// An event in a datapath.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A flow started (or was adopted, or was found running after the agent restarted).
    Created {
        flow: FlowId,
        info: FlowInfo,
    },
    /// A program executed `(report)`.
    Report {
        flow: FlowId,
        /// The program that reported.
        program: ProgramUid,
        /// Counts the flow's reports from 1; a gap means that the datapath dropped some.
        seq: u32,
        /// The datapath's clock at the ACK, microseconds.
        at_us: u64,
        values: Values,
    },
    Closed {
        flow: FlowId,
    },
    /// Events that did not fit the channel since the last of these.
    Dropped {
        count: u64,
    },
}

//! The parts of commands: what of a flow is set, and what a pushed snapshot is for.

use ccplane_program::ir::RegId;

/// A value of a flow that the agent may set from outside.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// A control register of the flow's program.
    Reg(RegId),
    /// Congestion window, bytes.
    Cwnd,
    /// Pacing rate, bytes per second.
    Rate,
}

/// The part that a pushed snapshot plays in its slot.
// Exhaustive: a new one has to be handled by every datapath, message and trace, which the compiler names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All flows of the slot. What was active becomes the last good one; a canary is dropped.
    Active,
    /// A share of the flows, chosen by their ids, tries the snapshot. An earlier canary is dropped.
    Canary {
        /// The share of the flows, in units of 2^-16.
        share: u16,
    },
}

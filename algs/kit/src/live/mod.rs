//! An algorithm on live datapaths: it starts, fills the link, and outlives a blackout of two seconds, a change of
//! the segment size and an application that limits it. Then it fills the link again.

#[cfg(feature = "kernel")]
mod kernel;
mod sim;
#[cfg(feature = "kernel")]
mod traffic;

#[cfg(feature = "kernel")]
pub use kernel::{LiveResults, Switched, kernel, switching};
pub use sim::simulated;

/// The link of the live runs, bits per second: slow enough that two processors carry one for each algorithm at once.
const LINK_BIT_PER_S: u64 = 12_000_000;
/// The link's round trip without a queue, microseconds.
const RTT_US: u64 = 40_000;
/// The link's queue, packets: one bandwidth-delay product.
const QUEUE_PACKETS: u32 = 40;
/// The time that it is dead.
const BLACKOUT_US: u64 = 2_000_000;
/// The segment size after the change, bytes.
const SMALL_MSS_BYTES: u32 = 1_208;

/// A part of a live run, in which a share of the link was due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// The flow's goodput, percent of the link's rate.
    pub used_percent: u64,
    pub floor_percent: u64,
}

/// The failure of a live run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The links or the agent could not be set up.
    #[error("{algorithm}, live: could not set up: {reason}")]
    SetUp { algorithm: &'static str, reason: String },
    /// The agent did not steer the flow, or its program had faults.
    #[error("{algorithm}, live on {datapath}, {phase}: {what}")]
    Broken { algorithm: &'static str, datapath: &'static str, phase: &'static str, what: String },
    /// The flow used too little of the link.
    #[error(
        "{algorithm}, live on {datapath}, {}: {} % of the link, at least {} are due",
        phase.name, phase.used_percent, phase.floor_percent
    )]
    Slow { algorithm: &'static str, datapath: &'static str, phase: Phase },
}

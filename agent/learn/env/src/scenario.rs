//! The link, the flows and the cross traffic of one episode.

use crate::Link;

/// A flow's algorithm, start and path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSetup {
    /// The index of the flow's algorithm.
    pub algorithm: usize,
    /// The time when it starts, nanoseconds of virtual time.
    pub start_ns: u64,
    /// Round trip of an empty path, without the time that packets take into the link, nanoseconds.
    pub delay_ns: u64,
    /// Payload of a packet, bytes.
    pub mss_bytes: u64,
    /// Packets that an ACK waits for, at most 40 ms: 2, as receivers do.
    pub ack_every: u32,
    /// Whether a millisecond's packets leave at once, as Linux's segmentation offload makes them.
    pub bursts: bool,
    /// Rate that it starts with where its program takes one (`start_rate`), bytes per second.
    pub start_rate: Option<u64>,
}

/// Traffic without congestion control that comes and goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnOff {
    /// Wire bytes per second while it is there.
    pub bytes_per_s: u64,
    /// Mean time for which it is there, nanoseconds.
    pub on_ns: u64,
    /// Mean time for which it is not.
    pub off_ns: u64,
}

/// One bottleneck and who shares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    pub link: Link,
    pub flows: Vec<FlowSetup>,
    pub cross: Option<OnOff>,
    /// The time when it ends at the latest, nanoseconds of virtual time.
    pub until_ns: u64,
}

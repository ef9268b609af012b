//! What a network is made of, and the limits that it must keep.

use crate::trace::Trace;

/// Fastest link, bits per second.
pub const MAX_RATE_BIT_PER_S: u64 = 1_000_000_000_000;
/// Longest delay of a link or of a return path, nanoseconds.
pub const MAX_DELAY_NS: u64 = 60_000_000_000;
/// Longest queue, packets; also bounds one that is configured in bytes.
pub const MAX_QUEUE_PACKETS: u32 = 1 << 20;
/// Links of one network.
pub const MAX_LINKS: usize = 256;
/// Links that one flow crosses.
pub const MAX_HOPS: usize = 16;
/// Flows of one network.
pub const MAX_FLOWS: usize = 1 << 20;
/// A loss probability of 1.
pub const PPM: u32 = 1_000_000;

/// How fast a link serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// A constant rate; a packet departs when its last bit was served.
    Rate {
        /// Bits per second, wire bytes counted.
        bit_per_s: u64,
    },
    /// Delivery opportunities of a mahimahi trace. Packets may span opportunities; what an opportunity has left
    /// when the queue runs empty is lost; a packet can't use an opportunity of the millisecond it arrives in.
    Trace {
        /// The opportunities.
        trace: Trace,
        /// Whether the trace starts over at its end; else the link is dead from then on.
        repeat: bool,
    },
}

/// Where a droptail queue ends. The packet in service is not in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// Packets, at least 1.
    Packets(u32),
    /// Wire bytes, at least one packet's worth to be of use.
    Bytes(u64),
}

/// One link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// How fast it serves.
    pub capacity: Capacity,
    /// One-way propagation delay behind the queue, nanoseconds.
    pub delay_ns: u64,
    /// Probability, in millionths, that a packet is lost before it reaches the queue.
    pub loss_ppm: u32,
    /// Where the queue ends.
    pub queue: QueueLimit,
}

/// The way of one flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// Indices of the links that its packets cross, in order; at least one.
    pub links: Vec<u8>,
    /// Delay of the uncongested way back that acknowledgements take, nanoseconds.
    pub return_delay_ns: u64,
}

/// A configuration outside its limits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{field} is {found}, allowed are {min}..={max}")]
    OutOfRange {
        /// The field, as the configuration spells it.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// A path crosses a link that does not exist.
    #[error("link {found} does not exist, the network has {links}")]
    NoLink {
        /// The index.
        found: u8,
        /// How many links there are.
        links: usize,
    },
}

fn within(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&found) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, found, min, max })
    }
}

impl LinkConfig {
    /// # Errors
    /// The first field outside its limits.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Capacity::Rate { bit_per_s } = self.capacity {
            within("bit_per_s", bit_per_s, 1, MAX_RATE_BIT_PER_S)?;
        }
        within("delay_ns", self.delay_ns, 0, MAX_DELAY_NS)?;
        within("loss_ppm", self.loss_ppm.into(), 0, PPM.into())?;
        match self.queue {
            QueueLimit::Packets(n) => within("queue packets", n.into(), 1, MAX_QUEUE_PACKETS.into()),
            QueueLimit::Bytes(n) => within("queue bytes", n, 1, u64::MAX),
        }
    }
}

impl PathConfig {
    /// # Errors
    /// The first field outside its limits, in a network of `links` links.
    pub fn check(&self, links: usize) -> Result<(), ConfigError> {
        within("hops", self.links.len() as u64, 1, MAX_HOPS as u64)?;
        within("return_delay_ns", self.return_delay_ns, 0, MAX_DELAY_NS)?;
        match self.links.iter().find(|l| usize::from(**l) >= links) {
            Some(found) => Err(ConfigError::NoLink { found: *found, links }),
            None => Ok(()),
        }
    }
}

pub(crate) fn check_counts(links: usize) -> Result<(), ConfigError> {
    within("links", links as u64, 1, MAX_LINKS as u64)
}

pub(crate) fn check_flows(flows: usize) -> Result<(), ConfigError> {
    within("flows", flows as u64, 0, MAX_FLOWS as u64 - 1)
}

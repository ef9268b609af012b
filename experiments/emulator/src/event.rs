//! Packets of a path, and its events.

/// Bytes that mahimahi counts beside the IP packet.
pub const TUN_HEADER_BYTES: u32 = 4;

/// A packet at the bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<H> {
    /// The caller's name for the packet.
    pub handle: H,
    /// The size with the TUN header, bytes.
    pub size: u32,
    /// Its priority, 0 first; only a [priority queue](crate::Queue::Priority) heeds it.
    pub priority: u8,
    /// When it came to the bottleneck, nanoseconds; where it never did, when it ended.
    pub arrived_ns: u64,
}

/// An event on a path, in order of time. Every packet sent ends in exactly one `Loss`, `Policed`, `Drop` or
/// `Departure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<H> {
    /// A packet was lost as it entered: at random, in a burst or in an outage.
    Loss {
        at_ns: u64,
        packet: Packet<H>,
    },
    /// The policer dropped a packet as it entered.
    Policed {
        at_ns: u64,
        packet: Packet<H>,
    },
    /// A packet came to the bottleneck.
    Arrival {
        at_ns: u64,
        size: u32,
    },
    /// The bottleneck could deliver 1504 bytes.
    Opportunity {
        at_ns: u64,
    },
    /// The queue dropped a packet: it had no room, or by its control law.
    Drop {
        at_ns: u64,
        packet: Packet<H>,
    },
    Departure {
        at_ns: u64,
        packet: Packet<H>,
    },
}

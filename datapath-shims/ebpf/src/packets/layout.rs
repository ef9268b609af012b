//! The packets' datapath keeps more than [`crate::layout`] says: a longer control page, longer records, and what is known of
//! paths and destinations.

use crate::layout::{ctl, rec};
use ccplane_program::ir::{ACK_PRIM_COUNT, MAX_PATHS, MAX_PRIORITY, MAX_REGS, PAST_SIZES, PRIM_COUNT};

/// Offsets in the control page beyond [`ctl`]. The first three share the cache line that each packet reads.
pub mod page {
    use super::{MAX_PATHS, MAX_PRIORITY, ctl};

    /// u64: the time from which on the agent counts as silent, nanoseconds of CLOCK_MONOTONIC.
    pub const DEADLINE_NS: u32 = 24;
    /// u64: a gap longer than this begins a flowlet, nanoseconds.
    pub const FLOWLET_NS: u32 = 32;
    /// u64: least time between two samples of a flow's statistics, nanoseconds.
    pub const SAMPLE_NS: u32 = 40;
    const _: () = assert!(DEADLINE_NS > ctl::SAMPLE_US && SAMPLE_NS + 8 <= ctl::VERSION);

    /// The markings of priorities: [`super::marking`]s.
    pub const PRIORITIES: u32 = ctl::BYTES.next_multiple_of(64);
    /// The routes of paths: [`super::route`]s.
    pub const PATHS: u32 = PRIORITIES + super::marking::BYTES * (MAX_PRIORITY as u32 + 1);
    /// The program that flows start with: a [`super::first`].
    pub const FIRST: u32 = PATHS + super::route::BYTES * MAX_PATHS as u32;
    /// Size of the page's used part.
    pub const BYTES: u32 = FIRST + super::first::BYTES;
    const _: () = assert!(BYTES <= 4096);
}

/// Offsets in the program that flows start with, and the registers that are set then.
pub mod first {
    use super::MAX_REGS;

    /// u32: changes before and after each change of the rest.
    pub const VERSION: u32 = 0;
    /// u32: the program's slot, plus 1; 0 for none.
    pub const SLOT: u32 = 4;
    /// u32: the program's instance.
    pub const INSTANCE: u32 = 8;
    /// u32: the program's uid.
    pub const UID: u32 = 12;
    /// u64: bit mask of the valid registers among the first 64.
    pub const MASK: u32 = 16;
    /// u64: bit mask of the valid registers from the 65th on.
    pub const MASK_HIGH: u32 = 24;
    /// i64 each: the registers' values.
    pub const REGS: u32 = 32;
    /// Size of the whole, bytes.
    pub const BYTES: u32 = REGS + 8 * MAX_REGS as u32;
}

/// Offsets in what stands for a priority.
pub mod marking {
    /// u32: the socket buffer's priority.
    pub const SKB_PRIORITY: u32 = 0;
    /// u32: bits of the mark.
    pub const MARK: u32 = 4;
    /// u32: the code point (DSCP).
    pub const DSCP: u32 = 8;
    /// Size, a power of two.
    pub const BYTES: u32 = 16;
}

/// Offsets in what stands for a path.
pub mod route {
    /// u32: bits of the mark.
    pub const MARK: u32 = 0;
    /// u32: the device's index; 0 where packets stay on the device that their route names.
    pub const IFINDEX: u32 = 4;
    /// u32: what is added to the flow's hash in an IPv6 flow label; 0 leaves the label as it is.
    pub const LABEL: u32 = 8;
    /// Size, a power of two.
    pub const BYTES: u32 = 16;
}

/// Offsets in a flow's record, which begins with a [`rec`]. The first cache line is what each packet reads and writes.
pub mod flow {
    use super::{ACK_PRIM_COUNT, PAST_SIZES, PRIM_COUNT, rec};

    /// u64: when the last packet with data left, nanoseconds.
    pub const LAST_NS: u32 = rec::BYTES;
    /// u64: the count of sent bytes from which on the program runs again; all ones for none.
    pub const DECIDE_AT: u32 = LAST_NS + 8;
    /// u64: when the next sample is due, nanoseconds.
    pub const NEXT_SAMPLE_NS: u32 = LAST_NS + 16;
    /// u32: the decided priority of socket buffers.
    pub const SKB_PRIORITY: u32 = LAST_NS + 24;
    /// u32: the decided bits of the mark.
    pub const MARK: u32 = LAST_NS + 28;
    /// u32: the decided code point (DSCP).
    pub const DSCP: u32 = LAST_NS + 32;
    /// u32: the index of the decided path's device; 0 for that of the route.
    pub const IFINDEX: u32 = LAST_NS + 36;
    /// u32: the decided IPv6 flow label; 0 for the socket's own.
    pub const LABEL: u32 = LAST_NS + 40;
    /// u32: 1 if a program of [`Hook::Connect`](ccplane_program::ir::Hook::Connect) decided, and no other since.
    pub const CONNECTED: u32 = LAST_NS + 44;
    /// u64: the address of the flow's socket; 0 once it has closed.
    pub const SOCKET: u32 = LAST_NS + 48;
    /// u64: the bytes that were sent with the last packet.
    pub const LAST_BYTES: u32 = LAST_NS + 56;

    /// u64: the gap before the packet, nanoseconds.
    pub const GAP_NS: u32 = LAST_NS + 64;
    /// u64: the bytes that were sent before the packet.
    pub const BEFORE: u32 = LAST_NS + 72;
    /// u32: the packet's payload, bytes; 0 for the one that ends the flow.
    pub const PAYLOAD: u32 = LAST_NS + 80;
    /// u32: the packet's sequence number.
    pub const SEQUENCE: u32 = LAST_NS + 84;
    /// u32: the priority in force.
    pub const PRIORITY: u32 = LAST_NS + 88;
    /// u32: the number of the path in force.
    pub const PATH: u32 = LAST_NS + 92;
    /// u32: 1 where the packet begins a flowlet, so that nothing is reordered whatever is decided.
    pub const FRESH: u32 = LAST_NS + 96;
    /// u32: 1 once the packet that ends the flow has left.
    pub const ENDED: u32 = LAST_NS + 100;
    /// u64: when the flow was first seen, microseconds.
    pub const STARTED_US: u32 = LAST_NS + 104;
    /// u64: earlier flows of the same application to the same destination.
    pub const PEER_FLOWS: u32 = LAST_NS + 112;
    /// u64: when the last of them started, microseconds; 0 for none.
    pub const PEER_STARTED_US: u32 = LAST_NS + 120;
    /// u64 each: the sizes of the last of them that ended, the last one first.
    pub const PEER_SIZES: u32 = LAST_NS + 128;
    /// u64: bytes in flight at the last sample.
    pub const IN_FLIGHT: u32 = PEER_SIZES + 8 * PAST_SIZES as u32;
    /// u32: the path of the last sample.
    pub const SAMPLED_PATH: u32 = IN_FLIGHT + 8;
    /// u32: packets delivered at the last sample.
    pub const DELIVERED: u32 = IN_FLIGHT + 12;
    /// u32: packets marked at the last sample.
    pub const MARKED: u32 = IN_FLIGHT + 16;
    /// u32: packets lost at the last sample.
    pub const LOST: u32 = IN_FLIGHT + 20;
    /// u32: the hash of addresses and ports.
    pub const HASH: u32 = IN_FLIGHT + 24;
    /// u32: the number of decisions.
    pub const DECISIONS: u32 = IN_FLIGHT + 28;
    /// The key of the flow's destination, a [`super::peer_key`].
    pub const PEER_KEY: u32 = IN_FLIGHT + 32;

    /// i64 each: the primitives of a packet while a program runs.
    pub const PRIMS: u32 = PEER_KEY + super::peer_key::BYTES;
    /// Size of a record; a multiple of the cache line.
    pub const BYTES: u32 = (PRIMS + 8 * (PRIM_COUNT - ACK_PRIM_COUNT) as u32).next_multiple_of(64);
    const _: () = assert!(rec::BYTES.is_multiple_of(64) && BYTES < i16::MAX as u32);
}

/// Offsets in the key of a destination.
pub mod peer_key {
    /// The remote address, 16 bytes in network order; an IPv4 address is in the first four.
    pub const ADDR: u32 = 0;
    /// u64: the socket's cgroup.
    pub const CGROUP: u32 = 16;
    /// u32: the port that names the application: the lower one of both.
    pub const PORT: u32 = 24;
    /// u32: the address family.
    pub const FAMILY: u32 = 28;
    /// Size of the whole, bytes.
    pub const BYTES: u32 = 32;
}

/// Offsets in what is known of a destination.
pub mod peer {
    use super::PAST_SIZES;

    /// u64: flows so far.
    pub const FLOWS: u32 = 0;
    /// u64: when the last one started, microseconds.
    pub const STARTED_US: u32 = 8;
    /// u64 each: the sizes of the last that ended, the last one first.
    pub const SIZES: u32 = 16;
    /// Size of the whole, bytes.
    pub const BYTES: u32 = SIZES + 8 * PAST_SIZES as u32;
}

/// Offsets in what is known of a path.
pub mod path {
    /// u64: the smoothed round-trip time, microseconds.
    pub const RTT_US: u32 = 0;
    /// u64: the share of packets that were marked, in units of 2^-16.
    pub const MARKED: u32 = 8;
    /// u64: the share of packets that were lost, in units of 2^-16.
    pub const LOST: u32 = 16;
    /// i64: bytes in flight of all flows.
    pub const IN_FLIGHT: u32 = 24;
    /// u64: when a flow was sampled last, microseconds.
    pub const SAMPLED_US: u32 = 32;
    /// Size, a power of two.
    pub const BYTES: u32 = 64;
}

/// The cache of records' places, by the hash of a socket's packets: a u32 each, the record's index plus 1, or 0.
///
/// A place is believed only if the record there is of the packet's socket.
pub mod cache {
    /// Entries, a power of two.
    pub const ENTRIES: u32 = 1 << 14;
    /// Size of the whole.
    pub const BYTES: u32 = 4 * ENTRIES;
}

/// Offsets in what is kept with a socket.
pub mod storage {
    /// u32: the index of the flow's record, plus 1; 0 for none.
    pub const INDEX: u32 = 0;
    /// u32: what a program of the start decided: 0, or [`DECIDED`] with priority and path.
    pub const CONNECT: u32 = 4;
    /// Bit of [`CONNECT`]: a program decided.
    pub const DECIDED: i32 = 1 << 31;
    /// Size of the whole, bytes.
    pub const BYTES: u32 = 8;
}

//! Packets under way in the network.

/// Names a flow of one network; counts from 0.
pub type FlowIndex = u32;

/// The flags of a packet.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const CROSS: u8 = 2;
    /// The packet may be marked (ECN-capable transport).
    pub(crate) const ECT: u8 = 4;
    /// The packet is marked (congestion experienced).
    pub(crate) const CE: u8 = 8;
    /// The packet carries PSH.
    pub(crate) const PUSH: u8 = 16;
    /// The first of the three bits that hold the packet's priority.
    pub(crate) const PRIORITY_SHIFT: u32 = 5;
}

/// Priorities of packets, from 0, which is served first.
pub const PRIORITIES: u8 = 8;
/// Links that one flow crosses.
pub const MAX_HOPS: usize = 16;
/// Routes that a flow may have.
pub const MAX_ROUTES: usize = 8;
/// The hop of a packet that has not reached its first link.
const BEFORE_FIRST: u8 = 31;
/// The first of the three bits of [`Packet::place`] that hold the route.
const ROUTE_SHIFT: u32 = 5;
const _: () = assert!(MAX_HOPS < BEFORE_FIRST as usize && MAX_ROUTES <= 1 << (8 - ROUTE_SHIFT));

/// A packet under way: a segment, an acknowledgement or cross traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    /// Or the source of cross traffic.
    pub(crate) flow: FlowIndex,
    pub(crate) bytes: u16,
    /// The packet's route, and its hop on it.
    place: u8,
    pub(crate) flags: u8,
    /// Of an acknowledgement: the next segment expected.
    pub(crate) seq: u64,
    /// Of an acknowledgement: how many segments have arrived.
    pub(crate) tx: u64,
}

impl Packet {
    /// Makes a packet at the first link of its first route.
    pub(crate) fn new(flow: FlowIndex, bytes: u16, flags: u8, seq: u64, tx: u64) -> Packet {
        Packet { flow, bytes, place: 0, flags, seq, tx }
    }

    /// An acknowledgement behind the last link of its way back, whose numbers lie where a packet has its own.
    #[inline]
    pub(crate) fn returned(flow: FlowIndex, cumulative: u64, deliveries: u64) -> Packet {
        Packet::new(flow, 0, flag::ACK, cumulative, deliveries)
    }

    /// The same packet on another route, with another priority.
    pub(crate) fn steered(mut self, priority: u8, route: u8) -> Packet {
        self.flags |= priority << flag::PRIORITY_SHIFT;
        self.place |= route << ROUTE_SHIFT;
        self
    }

    /// The same packet before the first link.
    pub(crate) fn before_first(mut self) -> Packet {
        self.place |= BEFORE_FIRST;
        self
    }

    /// Moves the packet to its next hop.
    pub(crate) fn advance(&mut self) {
        let route = self.place & !BEFORE_FIRST;
        self.place = route | (self.place.wrapping_add(1) & BEFORE_FIRST);
    }

    pub(crate) fn hop(&self) -> usize {
        usize::from(self.place & BEFORE_FIRST)
    }

    pub(crate) fn route(&self) -> usize {
        usize::from(self.place >> ROUTE_SHIFT)
    }

    pub(crate) fn priority(&self) -> usize {
        usize::from(self.flags >> flag::PRIORITY_SHIFT)
    }

    /// Marks it, if it can be marked.
    pub(crate) fn mark(&mut self) -> bool {
        let can = self.can_be_marked();
        self.flags |= if can { flag::CE } else { 0 };
        can
    }

    pub(crate) fn can_be_marked(&self) -> bool {
        self.is(flag::ECT)
    }

    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The part of their way that packets on a line are on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On their way to the next hop.
    Between,
    /// Before this link's queue.
    Entering(u8),
    /// Acknowledgements behind the last link of their way back.
    Returned,
}

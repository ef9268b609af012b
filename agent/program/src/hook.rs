//! Hooks, where a program decides, and the primitives that it reads there.

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Num,
    /// Stored as 0 or 1.
    Bool,
}

/// The place in a datapath where a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u8)]
pub enum Hook {
    /// Runs on each ACK and sets the window and the pacing rate.
    #[default]
    Ack = 0,
    /// Runs on a flow's packets on their way out and sets the flow's priority and path.
    Send = 1,
    /// Runs when a flow starts and sets its first priority and path.
    Connect = 2,
}

impl Hook {
    /// Every hook, by number.
    pub const ALL: [Hook; 3] = [Hook::Ack, Hook::Send, Hook::Connect];

    /// Returns the word that programs use for the hook.
    pub const fn name(self) -> &'static str {
        match self {
            Hook::Ack => "ack",
            Hook::Send => "send",
            Hook::Connect => "connect",
        }
    }

    /// Returns the hook that programs call `name`.
    pub fn named(name: &str) -> Option<Hook> {
        Hook::ALL.into_iter().find(|h| h.name() == name)
    }

    /// Returns the primitive that holds the datapath's clock at this hook.
    pub const fn clock(self) -> Prim {
        match self {
            Hook::Ack => Prim::AckNow,
            Hook::Send | Hook::Connect => Prim::Now,
        }
    }

    /// Whether programs of the hook set the window and rate; those of the others set priority and path.
    pub const fn sets_window(self) -> bool {
        matches!(self, Hook::Ack)
    }

    /// Returns the primitives that programs of the hook may read, in index order.
    pub fn prims(self) -> impl Iterator<Item = Prim> {
        Prim::ALL.into_iter().filter(move |p| p.is_of(self))
    }
}

/// Paths that a flow can be sent on, numbered from 0.
pub const MAX_PATHS: usize = 8;
/// Largest priority; 0 is served first.
pub const MAX_PRIORITY: i64 = 7;
/// Earlier flows to the same destination whose sizes a program can read.
pub const PAST_SIZES: usize = 4;

const ACK: u8 = 1 << Hook::Ack as u8;
const SEND: u8 = 1 << Hook::Send as u8;
const CONNECT: u8 = 1 << Hook::Connect as u8;
const BOTH: u8 = SEND | CONNECT;

/// Declares [`Prim`]: each primitive's name in programs, type and hooks.
macro_rules! primitives {
    ($($(#[$doc:meta])* $prim:ident $name:literal $ty:ident $hooks:ident)*) => {
        /// A quantity that a datapath measures; the first fifteen numbers are libccp's register indices.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Prim {
            $($(#[$doc])* $prim,)*
        }

        impl Prim {
            /// Every primitive, in index order.
            pub const ALL: [Prim; PRIM_COUNT] = [$(Prim::$prim,)*];

            /// The name that programs use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Prim::$prim => $name,)*
                }
            }

            /// Returns the type of the primitive's value.
            pub const fn ty(self) -> Type {
                match self {
                    $(Prim::$prim => Type::$ty,)*
                }
            }

            const fn hooks(self) -> u8 {
                match self {
                    $(Prim::$prim => $hooks,)*
                }
            }
        }

        /// The number of primitives of all hooks.
        pub const PRIM_COUNT: usize = [$($name,)*].len();
    };
}

primitives! {
    /// The in-order bytes newly acknowledged.
    AckBytesAcked "Ack.bytes_acked" Num ACK
    /// Bytes newly acknowledged out of order (SACK).
    AckBytesMisordered "Ack.bytes_misordered" Num ACK
    /// Newly acknowledged bytes that carried a congestion mark.
    AckEcnBytes "Ack.ecn_bytes" Num ACK
    /// Newly acknowledged packets that carried a congestion mark.
    AckEcnPackets "Ack.ecn_packets" Num ACK
    /// Packets newly marked lost.
    AckLostPktsSample "Ack.lost_pkts_sample" Num ACK
    /// The datapath's monotonic clock, microseconds.
    AckNow "Ack.now" Num ACK
    /// The in-order packets newly acknowledged.
    AckPacketsAcked "Ack.packets_acked" Num ACK
    /// Packets newly acknowledged out of order.
    AckPacketsMisordered "Ack.packets_misordered" Num ACK
    /// Bytes in flight after this ACK.
    FlowBytesInFlight "Flow.bytes_in_flight" Num ACK
    /// Bytes in the send buffer.
    FlowBytesPending "Flow.bytes_pending" Num ACK
    /// Packets in flight after this ACK.
    FlowPacketsInFlight "Flow.packets_in_flight" Num ACK
    /// Delivery rate, bytes per second.
    FlowRateIncoming "Flow.rate_incoming" Num ACK
    /// Sending rate, bytes per second.
    FlowRateOutgoing "Flow.rate_outgoing" Num ACK
    /// Round-trip time sample, microseconds; [`crate::ir::INFINITY`] when this ACK gave none.
    FlowRttSampleUs "Flow.rtt_sample_us" Num ACK
    /// True on the first ACK processed after a retransmission timeout.
    FlowWasTimeout "Flow.was_timeout" Bool ACK
    /// The datapath's monotonic clock, microseconds.
    Now "Now" Num BOTH
    /// Payload bytes of this packet.
    PacketBytes "Packet.bytes" Num SEND
    /// Payload bytes that the flow sent before this packet.
    FlowBytesSent "Flow.bytes_sent" Num SEND
    /// Bytes that the application wrote and the flow has not sent yet.
    FlowBytesWaiting "Flow.bytes_waiting" Num SEND
    /// Time since the flow started, microseconds.
    FlowAgeUs "Flow.age_us" Num SEND
    /// Time since the flow's packet before this one, microseconds.
    FlowGapUs "Flow.gap_us" Num SEND
    /// The local port.
    FlowLocalPort "Flow.local_port" Num BOTH
    /// The remote port.
    FlowRemotePort "Flow.remote_port" Num BOTH
    /// The cgroup (v2 id) of the flow's socket; 0 where it is not known.
    FlowCgroup "Flow.cgroup" Num BOTH
    /// A hash of the flow's addresses and ports, 32 bits.
    FlowHash "Flow.hash" Num BOTH
    /// Earlier flows of the same application to the same destination.
    PeerFlows "Peer.flows" Num BOTH
    /// Time since the last of those flows started, microseconds.
    PeerGapUs "Peer.gap_us" Num BOTH
    /// Bytes sent by the last of those flows that ended.
    PeerSize1 "Peer.size_1" Num BOTH
    /// Bytes sent by the last of those flows but one.
    PeerSize2 "Peer.size_2" Num BOTH
    /// Bytes sent by the last of those flows but two.
    PeerSize3 "Peer.size_3" Num BOTH
    /// Bytes sent by the last of those flows but three.
    PeerSize4 "Peer.size_4" Num BOTH
    /// The number of paths to the flow's destination.
    PathCount "Path.count" Num BOTH
    /// Smoothed round-trip time on path 0, microseconds; 0 where no flow measured it lately.
    Path0RttUs "Path0.rtt_us" Num BOTH
    /// Share of path 0's packets that were marked lately, in units of 2^-16.
    Path0Marked "Path0.marked" Num BOTH
    /// Share of path 0's packets that were lost lately, in units of 2^-16.
    Path0Lost "Path0.lost" Num BOTH
    /// Bytes in flight on path 0, of all flows of this host.
    Path0BytesInFlight "Path0.bytes_in_flight" Num BOTH
    Path1RttUs "Path1.rtt_us" Num BOTH
    Path1Marked "Path1.marked" Num BOTH
    Path1Lost "Path1.lost" Num BOTH
    Path1BytesInFlight "Path1.bytes_in_flight" Num BOTH
    Path2RttUs "Path2.rtt_us" Num BOTH
    Path2Marked "Path2.marked" Num BOTH
    Path2Lost "Path2.lost" Num BOTH
    Path2BytesInFlight "Path2.bytes_in_flight" Num BOTH
    Path3RttUs "Path3.rtt_us" Num BOTH
    Path3Marked "Path3.marked" Num BOTH
    Path3Lost "Path3.lost" Num BOTH
    Path3BytesInFlight "Path3.bytes_in_flight" Num BOTH
    Path4RttUs "Path4.rtt_us" Num BOTH
    Path4Marked "Path4.marked" Num BOTH
    Path4Lost "Path4.lost" Num BOTH
    Path4BytesInFlight "Path4.bytes_in_flight" Num BOTH
    Path5RttUs "Path5.rtt_us" Num BOTH
    Path5Marked "Path5.marked" Num BOTH
    Path5Lost "Path5.lost" Num BOTH
    Path5BytesInFlight "Path5.bytes_in_flight" Num BOTH
    Path6RttUs "Path6.rtt_us" Num BOTH
    Path6Marked "Path6.marked" Num BOTH
    Path6Lost "Path6.lost" Num BOTH
    Path6BytesInFlight "Path6.bytes_in_flight" Num BOTH
    Path7RttUs "Path7.rtt_us" Num BOTH
    Path7Marked "Path7.marked" Num BOTH
    Path7Lost "Path7.lost" Num BOTH
    Path7BytesInFlight "Path7.bytes_in_flight" Num BOTH
}

/// The primitives of [`Hook::Ack`], which come first.
pub const ACK_PRIM_COUNT: usize = 15;
const _: () =
    assert!(Prim::ALL[ACK_PRIM_COUNT].hooks() & ACK == 0 && Prim::ALL[ACK_PRIM_COUNT - 1].hooks() == ACK);
const _: () = assert!(PRIM_COUNT == Prim::Path0RttUs as usize + MAX_PATHS * PATH_PRIMS);
/// Primitives of one path.
const PATH_PRIMS: usize = 4;

impl Prim {
    /// The primitives of [`Hook::Ack`], in index order: those that CCP has.
    pub const ACK: [Prim; ACK_PRIM_COUNT] = {
        let mut prims = [Prim::AckBytesAcked; ACK_PRIM_COUNT];
        let mut n = 0;
        while n < ACK_PRIM_COUNT {
            prims[n] = Prim::ALL[n];
            n += 1;
        }
        prims
    };

    /// Whether programs of this hook may read the primitive.
    pub const fn is_of(self, hook: Hook) -> bool {
        self.hooks() & 1 << hook as u8 != 0
    }
}

//! Events that happen to a flow, as data: a stream is replayed exactly, printed as Rust, and shrunk.

/// One thing that happens. [`Operation::Run`], [`Operation::Idle`], [`Operation::Blackout`] and
/// [`Operation::ClockJump`] let time pass; the others change what happens from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Time passes, microseconds; ACKs come as the path gives them.
    Run { us: u32 },
    /// The next packets are lost at the bottleneck.
    Loss { packets: u16 },
    /// The next packets that the bottleneck sends carry a congestion mark.
    Ecn { packets: u16 },
    /// All that is in flight is lost, and found lost by the retransmission timer alone.
    Timeout,
    /// The next packets arrive late, and are overtaken: what follows them is acknowledged out of order, then the
    /// gap is filled.
    Reorder { packets: u16, by_us: u32 },
    /// The application keeps at most so many packets in flight from here on.
    AppLimit {
        /// The number of packets, at least 1.
        packets: u16,
    },
    /// The application always has more than can be sent from here on.
    Bulk,
    /// The application sends nothing.
    Idle { us: u32 },
    /// Segments have this payload from here on.
    Mtu { mss_bytes: u16 },
    /// The link loses all packets for so long, those on their way included.
    Blackout { us: u32 },
    /// The round trip without a queue takes so long from here on.
    Rtt { us: u32 },
    /// The bottleneck sends at this rate from here on.
    Rate { bytes_per_s: u32 },
    /// The receiver joins ACKs that arrive within so long of one another from here on.
    Aggregate {
        /// Microseconds; 0: each on its own.
        us: u32,
    },
    /// The flow's machine was suspended: its clock has moved on, and all packets of that time arrive at once.
    ClockJump { us: u32 },
}

impl Operation {
    /// The time that it lasts, microseconds.
    pub fn lasts_us(self) -> u64 {
        match self {
            Operation::Run { us }
            | Operation::Idle { us }
            | Operation::Blackout { us }
            | Operation::ClockJump { us } => us.into(),
            _ => 0,
        }
    }
}

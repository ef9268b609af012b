//! What happens to a flow, as data: a stream is replayed exactly, printed as Rust, and shrunk.

/// One thing that happens. [`Operation::Run`], [`Operation::Idle`], [`Operation::Blackout`] and
/// [`Operation::ClockJump`] let time pass; the others change what happens from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Time passes, microseconds; ACKs come as the path gives them.
    Run {
        /// How long.
        us: u32,
    },
    /// The next packets are lost at the bottleneck.
    Loss {
        /// How many.
        packets: u16,
    },
    /// The next packets that the bottleneck sends carry a congestion mark.
    Ecn {
        /// How many.
        packets: u16,
    },
    /// All that is in flight is lost, and found lost by the retransmission timer alone.
    Timeout,
    /// The next packets arrive late, and are overtaken: what follows them is acknowledged out of order, then the
    /// gap is filled.
    Reorder {
        /// How many.
        packets: u16,
        /// How late, microseconds.
        by_us: u32,
    },
    /// From here on the application keeps at most so many packets in flight.
    AppLimit {
        /// How many, at least 1.
        packets: u16,
    },
    /// From here on the application has always more than can be sent.
    Bulk,
    /// The application sends nothing.
    Idle {
        /// How long, microseconds.
        us: u32,
    },
    /// From here on segments have this payload.
    Mtu {
        /// Bytes.
        mss_bytes: u16,
    },
    /// Nothing that is sent arrives, and what is on its way is lost.
    Blackout {
        /// How long, microseconds.
        us: u32,
    },
    /// From here on the round trip without a queue takes so long.
    Rtt {
        /// Microseconds.
        us: u32,
    },
    /// From here on the bottleneck sends at this rate.
    Rate {
        /// Bytes per second.
        bytes_per_s: u32,
    },
    /// From here on ACKs that arrive within so long of one another come as one.
    Aggregate {
        /// Microseconds; 0: each on its own.
        us: u32,
    },
    /// The flow's machine stands still: its clock has moved on, and what arrived meanwhile is there at once.
    ClockJump {
        /// Microseconds.
        us: u32,
    },
}

impl Operation {
    /// How long it lasts, microseconds.
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

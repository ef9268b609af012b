//! Delivery rate samples, as Linux takes them (`net/ipv4/tcp_rate.c`).

const NS_PER_S: u128 = 1_000_000_000;

/// What a transmission remembers of its flow's deliveries when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendStamp {
    pub(crate) sent_ns: u64,
    delivered_bytes: u64,
    delivered_at_ns: u64,
    /// When the window that this transmission belongs to began to be sent.
    window_sent_ns: u64,
}

/// A delivery rate over about one round trip.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct RateSample {
    /// Bytes per second at which the window was sent.
    pub(crate) sending: u64,
    /// Bytes per second at which it was acknowledged.
    pub(crate) delivery: u64,
}

/// Delivery state of one flow.
#[derive(Clone, Default, Debug)]
pub(crate) struct RateSampler {
    delivered_bytes: u64,
    delivered_at_ns: u64,
    window_sent_ns: u64,
}

impl RateSampler {
    /// Stamps a transmission; `idle`: nothing was in flight before it.
    pub(crate) fn on_send(&mut self, now_ns: u64, idle: bool) -> SendStamp {
        if idle {
            self.window_sent_ns = now_ns;
            self.delivered_at_ns = now_ns;
        }
        SendStamp {
            sent_ns: now_ns,
            delivered_bytes: self.delivered_bytes,
            delivered_at_ns: self.delivered_at_ns,
            window_sent_ns: self.window_sent_ns,
        }
    }

    /// Bytes were delivered, by a transmission of this stamp where it is known. `None` where the interval is
    /// too short to mean anything: below the smallest RTT, as in the kernel.
    pub(crate) fn on_delivered(
        &mut self,
        now_ns: u64,
        bytes: u64,
        stamp: Option<SendStamp>,
        min_rtt_ns: u64,
    ) -> Option<RateSample> {
        self.delivered_bytes += bytes;
        self.delivered_at_ns = now_ns;
        let stamp = stamp?;
        self.window_sent_ns = stamp.sent_ns;
        let delivered = self.delivered_bytes - stamp.delivered_bytes;
        let send_ns = stamp.sent_ns - stamp.window_sent_ns;
        let ack_ns = now_ns - stamp.delivered_at_ns;
        if send_ns.max(ack_ns) < min_rtt_ns.max(1) {
            return None;
        }
        let rate = |ns| (u128::from(delivered) * NS_PER_S).checked_div(ns).unwrap_or(0) as u64;
        Some(RateSample { sending: rate(send_ns.into()), delivery: rate(ack_ns.into()) })
    }
}

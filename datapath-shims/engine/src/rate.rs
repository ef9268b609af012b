//! Delivery rate samples, as Linux takes them (`net/ipv4/tcp_rate.c`).

const NS_PER_S: u128 = 1_000_000_000;

/// The state of a flow's deliveries when a transmission left.
#[derive(Clone, Copy, Debug)]
pub struct SendStamp {
    /// When it was sent, nanoseconds.
    pub sent_ns: u64,
    delivered_bytes: u64,
    delivered_at_ns: u64,
    /// When the window that this transmission belongs to began to be sent.
    window_sent_ns: u64,
}

/// A delivery rate over about one round trip.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// Bytes per second at which the window was sent.
    pub sending: u64,
    /// Bytes per second at which it was delivered: the time is that of sending or of acknowledging it,
    /// whichever is longer. So an ACK burst shows no rate that was never sent.
    pub delivery: u64,
}

/// Delivery state of one flow.
#[derive(Clone, Default, Debug)]
pub struct RateSampler {
    delivered_bytes: u64,
    delivered_at_ns: u64,
    window_sent_ns: u64,
}

impl RateSampler {
    /// Stamps a transmission; `idle`: nothing was in flight before it.
    pub fn on_send(&mut self, now_ns: u64, idle: bool) -> SendStamp {
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
    pub fn on_delivered(
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
        Some(RateSample { sending: rate(send_ns.into()), delivery: rate(send_ns.max(ack_ns).into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn measures_the_slower_of_two_paces() {
        let mut rates = RateSampler::default();
        // Four packets at once, delivered one a millisecond after 20 ms.
        let stamps: Vec<SendStamp> = (0..4).map(|n| rates.on_send(0, n == 0)).collect();
        let samples: Vec<Option<RateSample>> = stamps
            .iter()
            .zip(20..)
            .map(|(stamp, ms)| rates.on_delivered(ms * MS, 1000, Some(*stamp), 20 * MS))
            .collect();
        let delivery = |n: usize| samples[n].map(|s| (s.delivery, s.sending));
        assert_eq!(delivery(0), Some((1000 * 1000 / 20, 0)));
        assert_eq!(delivery(3), Some((4000 * 1000 / 23, 0)));
        // The next window: sent as the first was delivered, delivered twice as slowly.
        let mut rates = RateSampler::default();
        let first: Vec<SendStamp> = (0..2).map(|n| rates.on_send(0, n == 0)).collect();
        rates.on_delivered(20 * MS, 1000, Some(first[0]), 20 * MS);
        let second = rates.on_send(20 * MS, false);
        rates.on_delivered(21 * MS, 1000, Some(first[1]), 20 * MS);
        let third = rates.on_send(21 * MS, false);
        rates.on_delivered(41 * MS, 1000, Some(second), 20 * MS);
        let sample = rates.on_delivered(43 * MS, 1000, Some(third), 20 * MS).unwrap();
        // Two packets delivered from 21 to 43 ms; sent from 0 (its window's start) to 21 ms.
        assert_eq!((sample.delivery, sample.sending), (2000 * 1000 / 22, 2000 * 1000 / 21));
        // Sent 20 ms apart, acknowledged 5 ms apart: it was never delivered faster than it was sent.
        let mut rates = RateSampler::default();
        let first = rates.on_send(0, true);
        rates.on_delivered(20 * MS, 1000, Some(first), 5 * MS);
        let second = rates.on_send(20 * MS, false);
        let sample = rates.on_delivered(25 * MS, 1000, Some(second), 5 * MS).unwrap();
        assert_eq!((sample.delivery, sample.sending), (50_000, 50_000));
    }

    #[test]
    fn an_interval_below_the_smallest_rtt_means_nothing() {
        let mut rates = RateSampler::default();
        let stamp = rates.on_send(0, true);
        assert_eq!(rates.on_delivered(10 * MS, 1000, Some(stamp), 20 * MS), None);
        assert_eq!(rates.on_delivered(30 * MS, 1000, None, 20 * MS), None, "a transmission forgotten");
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut rates = RateSampler::default();
        let stamp = rates.on_send(0, true);
        rates.on_delivered(20 * MS, 1000, Some(stamp), 20 * MS);
        let stamp = rates.on_send(5000 * MS, true);
        let sample = rates.on_delivered(5020 * MS, 1000, Some(stamp), 20 * MS).unwrap();
        assert_eq!(sample.delivery, 1000 * 1000 / 20);
    }
}

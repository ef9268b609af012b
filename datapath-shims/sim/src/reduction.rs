//! Proportional rate reduction (RFC 6937), as `tcp_cwnd_reduction` in Linux's tcp_input.c.

use crate::sender::Acked;

/// State of one recovery, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reduction {
    prior_window: u64,
    transmissions_before: u64,
    pub(crate) delivered_packets: u64,
}

impl Reduction {
    /// Begins a recovery with this window, after so many transmissions.
    pub(crate) fn from(prior_window: u64, transmissions: u64) -> Reduction {
        Reduction { prior_window, transmissions_before: transmissions, delivered_packets: 0 }
    }

    /// Most packets in flight after this ACK, on the way to the window that is `wanted`.
    pub(crate) fn window(&self, wanted: u64, in_flight: u64, transmissions: u64, acked: &Acked) -> u64 {
        let sent = transmissions - self.transmissions_before;
        let window = if in_flight > wanted {
            let share = (wanted * self.delivered_packets).div_ceil(self.prior_window.max(1));
            in_flight + share.saturating_sub(sent)
        } else {
            let advanced = acked.in_order_bytes > 0 && acked.lost_packets == 0;
            let unanswered = self.delivered_packets.saturating_sub(sent);
            wanted.min(in_flight + unanswered.max(acked.packets()) + u64::from(advanced))
        };
        // The retransmission that starts the recovery always leaves.
        if sent == 0 { window.max(in_flight + 1) } else { window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 in flight, one lost: what is in flight goes down to 10 over the round trip.
    #[test]
    fn half_of_what_is_delivered_leaves() {
        let mut reduction = Reduction::from(20, 100);
        let (mut in_flight, mut sent) = (19, 0);
        for delivered in 1..=16 {
            reduction.delivered_packets = delivered;
            in_flight -= 1;
            let window = reduction.window(10, in_flight, 100 + sent, &Acked::default());
            sent += window - in_flight;
            in_flight = window;
            assert_eq!(sent, delivered.div_ceil(2), "{delivered} delivered");
        }
        assert_eq!(in_flight, 11);
        reduction.delivered_packets = 17;
        assert_eq!(reduction.window(10, 10, 100 + sent, &Acked::default()), 10);
    }

    /// Half of a window of 20 is lost at once: no more leaves than arrives, and what was held back follows.
    #[test]
    fn below_the_window_packets_are_conserved() {
        let mut reduction = Reduction::from(20, 0);
        reduction.delivered_packets = 3;
        assert_eq!(reduction.window(10, 4, 1, &Acked::default()), 6);
        assert_eq!(reduction.window(5, 4, 1, &Acked::default()), 5);
        assert_eq!(reduction.window(4, 4, 0, &Acked::default()), 5);
    }
}

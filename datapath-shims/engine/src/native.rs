//! The native algorithm of a flow without a program: Reno (RFC 5681, RFC 6582), counted in packets.

/// Largest window that is applied, packets.
pub const MAX_CWND_PACKETS: u64 = 1 << 20;
/// Smallest slow start threshold, packets (RFC 5681 equation 4).
const MIN_SSTHRESH_PACKETS: u64 = 2;

/// State of the native Reno of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Reno {
    pub cwnd_packets: u64,
    /// Slow start threshold, packets; `u64::MAX` before the first loss.
    pub ssthresh_packets: u64,
    /// Packets acknowledged towards the next packet of window.
    credit_packets: u64,
}

impl Reno {
    /// From the flow's start.
    pub fn new(cwnd_packets: u64) -> Reno {
        Reno { cwnd_packets, ssthresh_packets: u64::MAX, credit_packets: 0 }
    }

    /// From the window that a program leaves: its growth goes on, but not exponentially.
    pub fn take_over(&mut self, cwnd_packets: u64) {
        *self = Reno { cwnd_packets, ssthresh_packets: cwnd_packets, credit_packets: 0 };
    }

    /// Packets were acknowledged outside of recovery, to a flow that its window limits.
    pub fn on_ack(&mut self, packets: u64) {
        let slow_start = packets.min(self.ssthresh_packets.saturating_sub(self.cwnd_packets));
        self.cwnd_packets += slow_start;
        self.credit_packets += packets - slow_start;
        if self.credit_packets >= self.cwnd_packets {
            self.credit_packets -= self.cwnd_packets;
            self.cwnd_packets += 1;
        }
        self.cwnd_packets = self.cwnd_packets.min(MAX_CWND_PACKETS);
    }

    /// Recovery begins; `in_flight_packets` before the loss was found.
    pub fn on_loss(&mut self, in_flight_packets: u64) {
        self.ssthresh_packets = (in_flight_packets.min(self.cwnd_packets) / 2).max(MIN_SSTHRESH_PACKETS);
        self.cwnd_packets = self.ssthresh_packets;
        self.credit_packets = 0;
    }

    /// Packets were marked: the window falls by half of the share that were (RFC 8257 section 3.3), in 2^-16.
    pub fn on_marks(&mut self, marked_share: u64) {
        let less = (self.cwnd_packets * marked_share.min(1 << 16)) >> 17;
        self.ssthresh_packets = (self.cwnd_packets - less).max(MIN_SSTHRESH_PACKETS);
        self.cwnd_packets = self.ssthresh_packets;
        self.credit_packets = 0;
    }

    /// The retransmission timer ran out.
    pub fn on_timeout(&mut self, in_flight_packets: u64) {
        self.on_loss(in_flight_packets);
        self.cwnd_packets = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_halves_as_rfc_5681_says() {
        let mut reno = Reno::new(10);
        (0..10).for_each(|_| reno.on_ack(1));
        assert_eq!(reno.cwnd_packets, 20, "slow start doubles");
        reno.on_loss(20);
        assert_eq!((reno.cwnd_packets, reno.ssthresh_packets), (10, 10));
        (0..10).for_each(|_| reno.on_ack(1));
        assert_eq!(reno.cwnd_packets, 11, "one packet a round trip");
        reno.on_timeout(11);
        assert_eq!((reno.cwnd_packets, reno.ssthresh_packets), (1, 5));
        reno.on_ack(6);
        assert_eq!(reno.cwnd_packets, 5, "slow start ends at the threshold");
        reno.on_loss(1);
        assert_eq!(reno.cwnd_packets, 2, "never below two packets");
        reno.cwnd_packets = 100;
        reno.on_marks(1 << 14);
        assert_eq!((reno.cwnd_packets, reno.ssthresh_packets), (88, 88), "an eighth less");
        reno.on_marks(1 << 16);
        assert_eq!(reno.cwnd_packets, 44, "half where all packets were marked");
    }
}

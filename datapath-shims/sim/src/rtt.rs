//! Round-trip time and the retransmission timeout (RFC 6298).

/// Least that the timeout exceeds the smoothed RTT by, unless configured: Linux's `TCP_RTO_MIN`.
pub(crate) const MIN_RTO_NS: u64 = 200_000_000;
/// Longest timeout, Linux's `TCP_RTO_MAX`.
const MAX_RTO_NS: u64 = 120_000_000_000;
/// Timeout before the first sample (RFC 6298 section 2.1).
const INITIAL_RTO_NS: u64 = 1_000_000_000;
/// Doublings of the timeout that are counted.
const MAX_BACKOFF: u32 = 16;

/// RTT state of one flow; all nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    min_rto_ns: u64,
    /// Smoothed; `None` before the first sample.
    srtt_ns: Option<u64>,
    var_ns: u64,
    latest_ns: u64,
    min_ns: u64,
    backoff: u32,
}

impl Rtt {
    pub(crate) fn new(min_rto_ns: u64) -> Rtt {
        Rtt { min_rto_ns, srtt_ns: None, var_ns: 0, latest_ns: 0, min_ns: u64::MAX, backoff: 0 }
    }

    /// Takes an ACK's sample: the RTT of the packet that was sent first, which the smoothed one follows, and of
    /// the one that was sent last. It also ends the timer's back-off.
    pub(crate) fn sample(&mut self, rtt_ns: u64, newest_ns: u64) {
        self.latest_ns = rtt_ns;
        self.min_ns = self.min_ns.min(newest_ns);
        self.backoff = 0;
        match &mut self.srtt_ns {
            None => {
                self.srtt_ns = Some(rtt_ns);
                self.var_ns = rtt_ns / 2;
            }
            Some(srtt_ns) => {
                self.var_ns = (3 * self.var_ns + srtt_ns.abs_diff(rtt_ns)) / 4;
                *srtt_ns = (7 * *srtt_ns + rtt_ns) / 8;
            }
        }
    }

    /// The timer ran out: the next one runs twice as long.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// The retransmission timeout in force. As in Linux (`__tcp_set_rto`), the minimum bounds what is added to
    /// the smoothed RTT.
    pub(crate) fn rto_ns(&self) -> u64 {
        let base_ns = match self.srtt_ns {
            None => INITIAL_RTO_NS,
            Some(srtt_ns) => (srtt_ns + (4 * self.var_ns).max(self.min_rto_ns)).min(MAX_RTO_NS),
        };
        (base_ns << self.backoff).min(MAX_RTO_NS)
    }

    /// Returns the age at which a packet is lost if a later one was delivered: 9/8 of the RTT (RFC 9002
    /// section 6.1.2).
    pub(crate) fn loss_delay_ns(&self) -> u64 {
        self.latest_ns.max(self.srtt_ns.unwrap_or(0)) / 8 * 9
    }

    /// Smoothed RTT; 0 before the first sample.
    pub(crate) fn srtt_ns(&self) -> u64 {
        self.srtt_ns.unwrap_or(0)
    }

    /// Smallest sample; 0 before the first.
    pub(crate) fn min_ns(&self) -> u64 {
        if self.srtt_ns.is_some() { self.min_ns } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = Rtt::new(MIN_RTO_NS);
        assert_eq!(rtt.rto_ns(), 1000 * MS);
        rtt.sample(100 * MS, 90 * MS);
        assert_eq!(rtt.min_ns(), 90 * MS);
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!((rtt.srtt_ns(), rtt.rto_ns()), (100 * MS, 300 * MS));
        rtt.sample(180 * MS, 180 * MS);
        // RTTVAR = 3/4 * 50 + 1/4 * 80 = 57.5, SRTT = 7/8 * 100 + 1/8 * 180 = 110.
        assert_eq!((rtt.srtt_ns(), rtt.rto_ns()), (110 * MS, 340 * MS));
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto_ns(), 4 * 340 * MS);
        rtt.sample(110 * MS, 110 * MS);
        assert!(rtt.rto_ns() < 340 * MS);
        (0..100).for_each(|_| rtt.back_off());
        assert_eq!(rtt.rto_ns(), MAX_RTO_NS);
    }

    #[test]
    fn stays_above_its_minimum() {
        let mut rtt = Rtt::new(MIN_RTO_NS);
        (0..50).for_each(|_| rtt.sample(MS, MS));
        assert_eq!((rtt.rto_ns(), rtt.min_ns(), rtt.loss_delay_ns()), (201 * MS, MS, MS / 8 * 9));
        let mut rtt = Rtt::new(MS);
        (0..50).for_each(|_| rtt.sample(MS / 50, MS / 50));
        assert_eq!(rtt.rto_ns(), MS + MS / 50);
    }
}

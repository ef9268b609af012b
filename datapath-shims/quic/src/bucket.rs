//! A token bucket that limits a flow to the decided rate.

use std::time::{Duration, Instant};

/// The credit that a flow saves up, in time at its rate, while its loop is late or it has nothing to send.
///
/// With a quantum more it is the longest burst.
pub const BURST: Duration = Duration::from_millis(2);
/// The amount sent at once where the loop is on time, in time at the flow's rate: a system call every quarter of a
/// millisecond at any rate.
const QUANTUM: Duration = Duration::from_micros(250);
/// The largest quantum, bytes: one segmentation offload.
const MAX_QUANTUM_BYTES: i64 = 64_000;
/// A larger rate is no limit, bytes per second.
const MAX_RATE: u64 = 1 << 36;
const NS_PER_S: i64 = 1_000_000_000;

/// The token bucket of one flow.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The rate, bytes per second; 0 for no limit.
    rate: i64,
    /// The credit times 10^9, so that no refill is rounded away; below 0 where the last burst was larger.
    credit_byte_ns: i64,
    filled_at: Instant,
}

impl Bucket {
    pub(crate) fn new(now: Instant) -> Bucket {
        Bucket { rate: 0, credit_byte_ns: 0, filled_at: now }
    }

    /// Sets the rate, bytes per second; 0 for no limit.
    pub(crate) fn set_rate(&mut self, now: Instant, rate: u64) {
        let rate = rate.min(MAX_RATE) as i64;
        if rate != self.rate {
            self.fill(now);
            self.rate = rate;
        }
    }

    /// The number of datagrams of this size that may leave now; `Err` has the time before which none may.
    pub(crate) fn allowance(&mut self, now: Instant, mtu_bytes: u16) -> Result<usize, Instant> {
        if self.rate == 0 {
            return Ok(usize::MAX);
        }
        self.fill(now);
        let mtu_bytes = i64::from(mtu_bytes.max(1));
        self.credit_byte_ns = self.credit_byte_ns.min(self.depth_bytes(mtu_bytes) * NS_PER_S);
        let missing_byte_ns = self.quantum_bytes(mtu_bytes) * NS_PER_S - self.credit_byte_ns;
        if missing_byte_ns > 0 {
            let wait_ns = (missing_byte_ns as u64).div_ceil(self.rate as u64);
            return Err(now + Duration::from_nanos(wait_ns));
        }
        Ok((self.credit_byte_ns / NS_PER_S / mtu_bytes).max(1) as usize)
    }

    /// Takes the credit of bytes that left.
    pub(crate) fn charge(&mut self, bytes: usize) {
        if self.rate != 0 {
            self.credit_byte_ns -= bytes as i64 * NS_PER_S;
        }
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        // A debt of one offload at the slowest rate outlasts any time that counts: only the product is capped.
        let elapsed_ns = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
        let earned = self.rate.saturating_mul(elapsed_ns);
        self.credit_byte_ns = self.credit_byte_ns.saturating_add(earned);
    }

    fn bytes_in(&self, time: Duration) -> i64 {
        // At most 2^36 * 2^21.
        self.rate * time.as_nanos() as i64 / NS_PER_S
    }

    fn quantum_bytes(&self, mtu_bytes: i64) -> i64 {
        self.bytes_in(QUANTUM).min(MAX_QUANTUM_BYTES).max(mtu_bytes)
    }

    /// The bucket's depth: a burst, and the remainder that was too little to be sent before.
    fn depth_bytes(&self, mtu_bytes: i64) -> i64 {
        self.bytes_in(BURST) + self.quantum_bytes(mtu_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u16 = 1200;

    /// Simulates a flow that always has more to send: what it sends in a second, polled every `step`.
    fn sent_in_a_second(rate: u64, step: Duration) -> (usize, usize) {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(start, rate);
        let (mut now, mut bytes, mut longest) = (start, 0, 0);
        while now < start + Duration::from_secs(1) {
            let mut burst = 0;
            while let Ok(datagrams) = bucket.allowance(now, MTU) {
                let out = datagrams.min(40) * usize::from(MTU);
                bucket.charge(out);
                burst += out;
            }
            (bytes, longest) = (bytes + burst, longest.max(burst));
            now += step;
        }
        (bytes, longest)
    }

    #[test]
    fn a_second_carries_the_decided_rate() {
        for rate in [12_500, 1_250_000, 12_500_000, 125_000_000, 1_250_000_000_u64] {
            for step_us in [1, 50, 400, 1900] {
                let step = Duration::from_micros(step_us);
                let (bytes, longest) = sent_in_a_second(rate, step);
                let error = bytes as f64 / rate as f64 - 1.0;
                // A burst more or less at the ends.
                let burst = rate as f64 * 0.00225 + 1200.0;
                assert!(error.abs() < 0.001 + burst / rate as f64, "{rate} B/s every {step:?}: {error}");
                assert!(longest as f64 <= burst + 1200.0, "{rate} B/s every {step:?}: burst {longest}");
            }
        }
    }

    #[test]
    fn a_flow_without_credit_learns_when_it_may_send() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        assert_eq!(bucket.allowance(start, MTU), Ok(usize::MAX), "no rate, no limit");
        bucket.set_rate(start, 1_200_000);
        let at = bucket.allowance(start, MTU).unwrap_err();
        assert_eq!(at - start, Duration::from_millis(1), "a datagram takes a millisecond");
        assert!(bucket.allowance(at - Duration::from_nanos(1), MTU).is_err());
        assert_eq!(bucket.allowance(at, MTU), Ok(1));
        bucket.charge(1200);
        assert_eq!(bucket.allowance(at, MTU).unwrap_err() - at, Duration::from_millis(1));
    }

    #[test]
    fn an_idle_flow_saves_up_one_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(start, 120_000_000);
        let later = start + Duration::from_secs(3600);
        assert_eq!(bucket.allowance(later, MTU), Ok(225), "2.25 ms of 100 datagrams a millisecond");
    }

    #[test]
    fn a_new_rate_applies_from_now_on() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(start, 12_000_000);
        bucket.charge(12_000);
        let at = start + Duration::from_micros(500);
        bucket.set_rate(at, 1_200_000);
        // 6000 bytes are paid back; 6000 and a datagram more take 6 ms.
        assert_eq!(bucket.allowance(at, MTU).unwrap_err() - at, Duration::from_millis(6));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        bucket.set_rate(start, u64::MAX);
        bucket.charge(usize::MAX >> 32);
        let end = start + Duration::from_secs(1 << 31);
        assert!(bucket.allowance(end, u16::MAX).is_ok());
    }
}

//! A token bucket that drops packets above a rate.

use super::Policer;

const NS_PER_S: u128 = 1_000_000_000;
const BITS_PER_BYTE: u128 = 8;

/// Tokens in units of a bit times a nanosecond, so that no rounding adds up.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    bit_per_s: u128,
    size: u128,
    tokens: u128,
    filled_ns: u64,
}

impl TokenBucket {
    pub(crate) fn new(policer: Policer, now_ns: u64) -> TokenBucket {
        let size = u128::from(policer.burst_bytes) * BITS_PER_BYTE * NS_PER_S;
        TokenBucket { bit_per_s: policer.bit_per_s.into(), size, tokens: size, filled_ns: now_ns }
    }

    /// Whether a packet of `bytes` passes at `now_ns`; if it does, its tokens are spent.
    pub(crate) fn passes(&mut self, now_ns: u64, bytes: u32) -> bool {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = now_ns;
        self.tokens = (self.tokens + u128::from(passed_ns) * self.bit_per_s).min(self.size);
        let cost = u128::from(bytes) * BITS_PER_BYTE * NS_PER_S;
        let passes = cost <= self.tokens;
        if passes {
            self.tokens -= cost;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        // 8 Mb/s: a byte a microsecond.
        let mut bucket = TokenBucket::new(Policer { bit_per_s: 8_000_000, burst_bytes: 3_000 }, 0);
        assert_eq!([0, 0, 0].map(|at_ns| bucket.passes(at_ns, 1_500)), [true, true, false]);
        assert_eq!([1_499_999, 1_500_000].map(|at_ns| bucket.passes(at_ns, 1_500)), [false, true]);
        assert_eq!([60_000_000; 3].map(|at_ns| bucket.passes(at_ns, 1_500)), [true, true, false]);
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            bit_per_s in 1_000u64..1_000_000_000, burst_bytes in 1504u64..100_000,
            packets in prop::collection::vec((0u64..1_000_000, 1u32..=1504), 1..200),
        ) {
            let mut bucket = TokenBucket::new(Policer { bit_per_s, burst_bytes }, 0);
            let (mut now_ns, mut bits) = (0u64, 0u128);
            for (after_ns, bytes) in packets {
                now_ns += after_ns;
                if bucket.passes(now_ns, bytes) {
                    bits += u128::from(bytes) * 8;
                }
                let most = u128::from(burst_bytes) * 8 * NS_PER_S + u128::from(bit_per_s) * u128::from(now_ns);
                prop_assert!(bits * NS_PER_S <= most);
            }
        }
    }
}

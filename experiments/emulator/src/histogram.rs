//! A histogram of delays: log-linear buckets, as HdrHistogram has them, in a fixed amount of memory.

use std::fmt;

/// Buckets of one power of two: a delay is known to 1/64, and its bucket's middle is off by less than 1 %.
const PER_OCTAVE: usize = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 6;
/// Delays from here on (2^30 us, 18 minutes) count as this long.
const LIMIT_BITS: u32 = 30;
/// One bucket a microsecond below 64 us, then 64 an octave.
const BUCKETS: usize = (LIMIT_BITS - OCTAVE_BITS + 1) as usize * PER_OCTAVE;

/// Counts of delays in microseconds: exact below 64 us, within 1 % above.
///
/// Counts only grow, so that [`DelayHistogram::since`] gives those of a window between two snapshots.
#[derive(Clone, PartialEq, Eq)]
pub struct DelayHistogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum_us: u64,
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        DelayHistogram { counts: Box::new([0; BUCKETS]), count: 0, sum_us: 0 }
    }
}

/// The count, the mean and some percentiles: the counts themselves would fill pages.
impl fmt::Debug for DelayHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percentiles = [0.5, 0.95, 0.99, 1.0].map(|q| self.percentile(q));
        f.debug_struct("DelayHistogram")
            .field("count", &self.count)
            .field("mean_us", &self.mean_us())
            .field("p50_p95_p99_max_us", &percentiles)
            .finish()
    }
}

impl DelayHistogram {
    /// Counts a delay, microseconds.
    pub fn record(&mut self, delay_us: u64) {
        if let Some(count) = self.counts.get_mut(bucket_of(delay_us)) {
            *count += 1;
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(delay_us);
    }

    /// How many delays were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their exact mean, microseconds; `None` for none.
    pub fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us as f64 / self.count as f64)
    }

    /// The delay, microseconds, that a share `q` (0 to 1) of them does not exceed, by the nearest rank; `None` for none.
    pub fn percentile(&self, q: f64) -> Option<u64> {
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        self.counts
            .iter()
            .position(|count| {
                seen += count;
                seen >= rank
            })
            .filter(|_| self.count > 0)
            .map(middle_us)
    }

    /// Returns the delays counted after `earlier`, a snapshot of this same histogram.
    pub fn since(&self, earlier: &DelayHistogram) -> DelayHistogram {
        let mut window = self.clone();
        for (count, before) in window.counts.iter_mut().zip(earlier.counts.iter()) {
            *count = count.saturating_sub(*before);
        }
        window.count = self.count.saturating_sub(earlier.count);
        window.sum_us = self.sum_us.saturating_sub(earlier.sum_us);
        window
    }

    /// Adds what `other` counted, such as another repeat of the same run.
    pub fn merge(&mut self, other: &DelayHistogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.count += other.count;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The buckets that are not empty, in order: the middle of each, microseconds, and its count. For drawing a CDF.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (middle_us(bucket), *count))
    }
}

fn bucket_of(delay_us: u64) -> usize {
    let delay_us = delay_us.min((1 << LIMIT_BITS) - 1);
    let bits = u64::BITS - delay_us.leading_zeros();
    let octave = bits.saturating_sub(OCTAVE_BITS + 1);
    // Within octave n the buckets are 2^n wide; each has its top bit set, which names the octave once more.
    ((octave as usize) << OCTAVE_BITS) + (delay_us >> octave) as usize
}

fn middle_us(bucket: usize) -> u64 {
    let octave = (bucket >> OCTAVE_BITS).saturating_sub(1);
    let low = (bucket - (octave << OCTAVE_BITS)) << octave;
    (low + ((1 << octave) - 1) / 2) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_delays_are_exact_and_large_ones_are_clamped() {
        for us in 0..128 {
            assert_eq!(middle_us(bucket_of(us)), us);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << LIMIT_BITS) - 1), BUCKETS - 1);
    }

    #[test]
    fn none_has_no_percentile() {
        let empty = DelayHistogram::default();
        assert_eq!((empty.percentile(0.5), empty.mean_us(), empty.buckets().count()), (None, None, 0));
    }

    #[test]
    fn a_window_counts_what_came_in_it() {
        let mut all = DelayHistogram::default();
        (0..100).for_each(|us| all.record(us));
        let before = all.clone();
        [10, 20, 30, 40].into_iter().for_each(|us| all.record(us));
        let window = all.since(&before);
        assert_eq!((window.count(), window.mean_us()), (4, Some(25.0)));
        assert_eq!([0.0, 0.25, 0.5, 0.51, 1.0].map(|q| window.percentile(q).unwrap()), [10, 10, 20, 30, 40]);
        let mut again = before.clone();
        again.merge(&window);
        assert_eq!(again, all);
    }

    proptest! {
        #[test]
        fn percentiles_are_within_a_hundredth(
            mut delays_us in prop::collection::vec(0u64..100_000_000, 1..200), q in 0.0..=1.0f64,
        ) {
            let mut histogram = DelayHistogram::default();
            delays_us.iter().for_each(|us| histogram.record(*us));
            delays_us.sort_unstable();
            let rank = ((q * delays_us.len() as f64).ceil() as usize).max(1);
            let (exact, found) = (delays_us[rank - 1], histogram.percentile(q).unwrap());
            prop_assert!(exact.abs_diff(found) as f64 <= exact as f64 * 0.01, "{} for {}", found, exact);
        }

        #[test]
        fn buckets_are_in_order(a in 0u64..1 << 31, b in 0u64..1 << 31) {
            prop_assert!((a <= b) <= (bucket_of(a) <= bucket_of(b)));
            prop_assert!(bucket_of(a) < BUCKETS);
        }
    }
}

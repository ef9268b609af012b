//! A histogram of delays in a fixed amount of memory.

use std::fmt;

use hdrhistogram::Histogram;

/// Delays of so many microseconds (2^30, 18 minutes) and more count as this long.
const LIMIT_US: u64 = 1 << 30;
/// Decimal digits to which a delay is known.
const DIGITS: u8 = 2;

/// Counts of delays in microseconds, each known within 1 %.
///
/// Counts only grow, so that [`DelayHistogram::since`] gives those of a window between two snapshots.
#[derive(Clone, PartialEq)]
pub struct DelayHistogram {
    counts: Histogram<u64>,
    sum_us: u64,
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        let counts = Histogram::new_with_bounds(1, LIMIT_US, DIGITS);
        DelayHistogram { counts: counts.expect("the bounds are constants in range"), sum_us: 0 }
    }
}

/// The count, the mean and some percentiles: the counts themselves would fill pages.
impl fmt::Debug for DelayHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percentiles = [0.5, 0.95, 0.99, 1.0].map(|q| self.percentile(q));
        f.debug_struct("DelayHistogram")
            .field("count", &self.count())
            .field("mean_us", &self.mean_us())
            .field("p50_p95_p99_max_us", &percentiles)
            .finish()
    }
}

impl DelayHistogram {
    /// Counts a delay, microseconds.
    pub fn record(&mut self, delay_us: u64) {
        self.counts.saturating_record(delay_us.min(LIMIT_US));
        self.sum_us = self.sum_us.saturating_add(delay_us);
    }

    /// Returns the number of delays that were counted.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Their exact mean, microseconds; `None` for none.
    pub fn mean_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_us as f64 / self.count() as f64)
    }

    /// The delay, microseconds, that a share `q` (0 to 1) of them does not exceed, by the nearest rank; `None` for none.
    pub fn percentile(&self, q: f64) -> Option<u64> {
        let at = || self.counts.median_equivalent(self.counts.value_at_quantile(q.clamp(0.0, 1.0)));
        (self.count() > 0).then(at)
    }

    /// Returns the delays counted after `earlier`, a snapshot of this same histogram.
    pub fn since(&self, earlier: &DelayHistogram) -> DelayHistogram {
        let mut window = self.clone();
        // All have the same bounds, so this fails only where `earlier` has counted more, which no snapshot has.
        if window.counts.subtract(&earlier.counts).is_err() {
            window.counts.reset();
        }
        window.sum_us = self.sum_us.saturating_sub(earlier.sum_us);
        window
    }

    /// Adds what `other` counted, such as another repeat of the same run.
    pub fn merge(&mut self, other: &DelayHistogram) {
        self.counts += &other.counts;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The buckets that are not empty, in order: the middle of each, microseconds, and its count. For drawing a CDF.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter_recorded();
        filled.map(|v| (self.counts.median_equivalent(v.value_iterated_to()), v.count_at_value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_delays_are_exact_and_large_ones_are_clamped() {
        for us in 0..128 {
            let mut one = DelayHistogram::default();
            one.record(us);
            assert_eq!(one.percentile(0.5), Some(us));
        }
        let mut long = DelayHistogram::default();
        long.record(u64::MAX);
        let longest_us = long.percentile(1.0).unwrap();
        assert!(longest_us.abs_diff(LIMIT_US) <= LIMIT_US / 100, "{longest_us}");
    }

    #[test]
    fn an_empty_histogram_has_no_percentile() {
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
    }
}

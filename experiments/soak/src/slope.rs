//! The speed at which something grows, robustly: Theil and Sen's slope over the lives of a process, with its
//! interval.
//!
//! The median of the slopes of all pairs of samples (Sen, JASA 1968); pairs are of one life, since a process that starts again
//! starts anew. The interval is that of Kendall's statistic: the slopes whose ranks are `z` standard deviations of
//! the number of rising pairs to either side of the median.

use statrs::distribution::{ContinuousCDF, Normal};

/// The share of the normal distribution below the upper end of a two-sided 95 % interval.
const BELOW_UPPER: f64 = 0.975;
/// Fewer samples than this show nothing.
pub const MIN_SAMPLES: usize = 10;
/// Samples that are looked at, at most; of more, evenly chosen ones.
const MAX_SAMPLES: usize = 3000;

/// A slope, in units of the quantity an hour.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slope {
    /// The median of the slopes between pairs of samples.
    pub median: f64,
    /// The lower end of its 95 % interval.
    pub low: f64,
    /// The upper end of its 95 % interval.
    pub high: f64,
    /// Samples that it comes from.
    pub samples: usize,
}

/// The slope of `lives`: of each one the times in seconds, ascending, and the values. `None` where they show nothing.
pub fn slope(lives: &[Vec<(f64, f64)>]) -> Option<Slope> {
    let samples: usize = lives.iter().map(Vec::len).sum();
    if samples < MIN_SAMPLES {
        return None;
    }
    let every = samples.div_ceil(MAX_SAMPLES).max(1);
    let (mut slopes, mut variance) = (Vec::new(), 0.0);
    for life in lives {
        let life: Vec<(f64, f64)> = life.iter().copied().step_by(every).collect();
        let n = life.len() as f64;
        variance += n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
        for (i, (at, value)) in life.iter().enumerate() {
            let later = life.get(i + 1..).unwrap_or_default();
            let of = |(then, other): &(f64, f64)| 3600.0 * (other - value) / (then - at);
            slopes.extend(later.iter().filter(|(then, _)| then > at).map(of));
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let count = slopes.len() as f64;
    let at = |rank: f64| slopes[(rank.max(0.0) as usize).min(slopes.len() - 1)];
    let z = Normal::standard().inverse_cdf(BELOW_UPPER);
    let half_width = z * variance.sqrt() / 2.0;
    let (low, high) = (at(count / 2.0 - half_width), at(count / 2.0 + half_width));
    Some(Slope { median: at(count / 2.0), low, high, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples each 10 s for `hours`, of `value(second, index)`.
    fn life(hours: f64, value: impl Fn(f64, u64) -> f64) -> Vec<(f64, f64)> {
        let count = (hours * 360.0) as u64;
        (0..count).map(|i| (10.0 * i as f64, value(10.0 * i as f64, i))).collect()
    }

    /// Returns the `i`th pseudo-random number, from -1 to 1.
    fn noise(i: u64) -> f64 {
        (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    #[test]
    fn a_leak_is_found_under_noise_and_outliers() {
        let leaks =
            |s: f64, i: u64| 100.0 + 2.0 * s / 3600.0 + noise(i) + if i % 50 == 7 { 500.0 } else { 0.0 };
        let found = slope(&[life(2.0, leaks)]).unwrap();
        assert!(found.low > 1.5 && found.high < 2.5 && (found.median - 2.0).abs() < 0.2, "{found:?}");
    }

    #[test]
    fn what_does_not_grow_has_0_in_its_interval() {
        let found = slope(&[life(2.0, |_, i| 100.0 + noise(i))]).unwrap();
        assert!(found.low < 0.0 && found.high > 0.0, "{found:?}");
        let constant = slope(&[life(1.0, |_, _| 7.0)]).unwrap();
        assert_eq!((constant.low, constant.median, constant.high), (0.0, 0.0, 0.0));
    }

    /// Each life starts where it likes; only what happens within them counts.
    #[test]
    fn a_process_that_starts_again_starts_anew() {
        let lives: Vec<_> = (0..20).map(|n| life(0.1, |_, i| 1000.0 * f64::from(n) + noise(i))).collect();
        let found = slope(&lives).unwrap();
        assert!(found.low < 0.0 && found.high > 0.0, "{found:?}");
        let leak: Vec<_> = (0..20).map(|n| life(0.1, |s, i| f64::from(n % 3) + s + noise(i))).collect();
        assert!((slope(&leak).unwrap().median - 3600.0).abs() < 50.0);
    }

    #[test]
    fn few_samples_show_nothing() {
        assert_eq!(slope(&[life(0.02, |s, _| s)]), None);
        assert_eq!(slope(&[]), None);
    }
}

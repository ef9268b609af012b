//! Completion times of the flows of trials, by classes of sizes.

use ccplane_results::FabricFlows;

/// Flows up to this size are small, bytes.
const SMALL_BYTES: u64 = 100_000;
/// Flows up to this size are medium, bytes; further ones are large.
const MEDIUM_BYTES: u64 = 10_000_000;

/// A class of flows by their size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// Up to 100 kB.
    Small,
    /// Up to 10 MB.
    Medium,
    /// Beyond 10 MB.
    Large,
}

impl SizeClass {
    /// Every class, in order.
    pub const ALL: [SizeClass; 3] = [SizeClass::Small, SizeClass::Medium, SizeClass::Large];

    /// The class of a flow of so many bytes.
    pub fn of(bytes: u64) -> SizeClass {
        if bytes <= SMALL_BYTES {
            SizeClass::Small
        } else if bytes <= MEDIUM_BYTES {
            SizeClass::Medium
        } else {
            SizeClass::Large
        }
    }

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            SizeClass::Small => "to 100 kB",
            SizeClass::Medium => "to 10 MB",
            SizeClass::Large => "beyond 10 MB",
        }
    }
}

/// A figure of a class's completion times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Figure {
    Mean,
    P50,
    P95,
    P99,
}

impl Figure {
    /// Every figure, in order.
    pub const ALL: [Figure; 4] = [Figure::Mean, Figure::P50, Figure::P95, Figure::P99];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Mean => "mean",
            Figure::P50 => "p50",
            Figure::P95 => "p95",
            Figure::P99 => "p99",
        }
    }

    /// Returns the figure of completion times in ascending order, microseconds; `None` where there are none.
    pub fn of(self, sorted_ns: &[u64]) -> Option<f64> {
        let count = sorted_ns.len();
        let at = |percent: usize| {
            sorted_ns.get((count * percent).div_ceil(100).max(1) - 1).map(|ns| *ns as f64 / 1000.0)
        };
        match self {
            Figure::Mean if count == 0 => None,
            Figure::Mean => Some(sorted_ns.iter().map(|ns| *ns as f64 / 1000.0).sum::<f64>() / count as f64),
            Figure::P50 => at(50),
            Figure::P95 => at(95),
            Figure::P99 => at(99),
        }
    }
}

/// Completion times by [`SizeClass`], each in ascending order, nanoseconds; flows that did not end count with the time that they had.
pub(crate) fn by_class(flows: &FabricFlows) -> [Vec<u64>; SizeClass::ALL.len()] {
    let mut all: [Vec<u64>; SizeClass::ALL.len()] = Default::default();
    for (bytes, fct_ns) in flows.bytes.iter().zip(&flows.fct_ns) {
        all[SizeClass::of(*bytes) as usize].push(*fct_ns);
    }
    all.iter_mut().for_each(|times| times.sort_unstable());
    all
}

/// A figure with its interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Trials that are drawn again for an interval.
const DRAWS: usize = 2000;
/// The stream of those draws.
const BOOTSTRAP: u64 = 0xb007;

/// Returns the geometric mean of ratios over trials, with the interval that holds it in 95 of 100 cases (percentile bootstrap over
/// trials). `None` without ratios.
pub fn geometric_mean(ratios: &[f64]) -> Option<Interval> {
    if ratios.is_empty() {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|ratio| ccplane_learn::math::ln(*ratio)).collect();
    let count = logs.len() as f64;
    let value = logs.iter().sum::<f64>() / count;
    let mut rng = ccplane_learn::Rng::new(logs.len() as u64, &[BOOTSTRAP]);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| (0..logs.len()).map(|_| logs[rng.below(logs.len())]).sum::<f64>() / count)
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let at = |permille: usize| means[(DRAWS * permille / 1000).min(DRAWS - 1)];
    Some(Interval { value: value.exp(), low: at(25).exp(), high: at(975).exp() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let sorted: Vec<u64> = (1..=100).map(|n| n * 1000).collect();
        let all = Figure::ALL.map(|figure| figure.of(&sorted).unwrap());
        assert_eq!(all, [50.5, 50.0, 95.0, 99.0]);
        assert_eq!(Figure::P99.of(&sorted[..3]), Some(3.0));
        assert!(Figure::ALL.iter().all(|figure| figure.of(&[]).is_none()));
    }

    #[test]
    fn classes_meet_at_their_bounds() {
        let classes = [1, 100_000, 100_001, 10_000_000, 10_000_001].map(SizeClass::of);
        use SizeClass::{Large, Medium, Small};
        assert_eq!(classes, [Small, Small, Medium, Medium, Large]);
    }

    #[test]
    fn flows_are_sorted_by_class_and_time() {
        let flows = FabricFlows {
            bytes: vec![7, 20_000_000, 9, 200_000],
            fct_ns: vec![40, 9000, 30, 500],
            ..FabricFlows::default()
        };
        assert_eq!(by_class(&flows), [vec![30, 40], vec![500], vec![9000]]);
    }

    #[test]
    fn an_interval_holds_its_mean_and_is_narrow_where_trials_agree() {
        let spread = geometric_mean(&[0.5, 2.0, 1.0, 1.0]).unwrap();
        assert!((spread.value - 1.0).abs() < 1e-12 && spread.low < 0.8 && spread.high > 1.25, "{spread:?}");
        let same = geometric_mean(&[0.9; 5]).unwrap();
        assert!((same.low - 0.9).abs() < 1e-12 && (same.high - 0.9).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }
}

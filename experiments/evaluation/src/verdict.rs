//! Verdicts: pure functions of a check's values.
//!
//! The interval is the percentile bootstrap's of the mean over cases (Efron, Tibshirani: An Introduction to the Bootstrap, 1993,
//! chapter 13), with resamples that are always the same. Unlike Student's it is monotone: no case that gets better makes a verdict
//! worse. A check passes if its whole interval keeps to the limit; all else is a concern, also where the interval leaves it open.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

/// Fewer cases than these decide nothing.
pub const MIN_CASES: usize = 3;
/// Resamples of the bootstrap, whose seed is fixed.
const RESAMPLES: usize = 2000;
const RESAMPLE_SEED: u64 = 0x6266_7374;
/// Parts of the resamples' means beyond each end of the 95 % interval.
const TAIL: usize = RESAMPLES / 40;
/// Largest ratio to the standards that is told apart.
const MAX_RATIO: f64 = 1000.0;

/// The result of a check or a criterion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    NotApplicable,
    Pass,
    Concern,
}

impl Verdict {
    /// In a word or two.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::NotApplicable => "not applicable",
            Verdict::Pass => "pass",
            Verdict::Concern => "concern",
        }
    }
}

/// The side of its limit that a figure has to keep to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtMost,
    AtLeast,
}

impl Bound {
    /// Whether `value` keeps to `limit`.
    #[must_use]
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Bound::AtMost => value <= limit,
            Bound::AtLeast => value >= limit,
        }
    }

    /// Whether `a` is worse than `b`.
    #[must_use]
    pub fn is_worse(self, a: f64, b: f64) -> bool {
        match self {
            Bound::AtMost => a > b,
            Bound::AtLeast => a < b,
        }
    }

    /// Says the side in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bound::AtMost => "at most",
            Bound::AtLeast => "at least",
        }
    }
}

/// The mean over a check's cases with its interval, and what that says.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Judgement {
    pub cases: usize,
    pub mean: f64,
    /// The ends of the 95 % interval.
    pub low: f64,
    pub high: f64,
    pub verdict: Verdict,
    /// Whether the whole interval is on the verdict's side of the limit; false where more cases could still change a concern.
    pub is_clear: bool,
}

/// Judges a check by its values, one of each case; `None` without values.
#[must_use]
pub fn judge(values: &[f64], bound: Bound, limit: f64) -> Option<Judgement> {
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (low, high) = interval(values);
    let (good_end, bad_end) = match bound {
        Bound::AtMost => (low, high),
        Bound::AtLeast => (high, low),
    };
    let is_enough = values.len() >= MIN_CASES;
    let passes = is_enough && bound.holds(bad_end, limit);
    Some(Judgement {
        cases: values.len(),
        mean,
        low,
        high,
        verdict: if passes { Verdict::Pass } else { Verdict::Concern },
        is_clear: passes || (is_enough && !bound.holds(good_end, limit)),
    })
}

/// The ends of the 95 % interval of the mean.
fn interval(values: &[f64]) -> (f64, f64) {
    let mut random = ChaCha8Rng::seed_from_u64(RESAMPLE_SEED);
    let count = values.len();
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..count).map(|_| values[random.next_u32() as usize % count]).sum();
            sum / count as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    (means[TAIL], means[RESAMPLES - 1 - TAIL])
}

/// The logarithm of a value's ratio to the worst of the standards' in the same case; means over cases are geometric ones of the ratios.
/// A case in which it does better than they do counts as equal: no gain on one link makes up for a harm on another.
#[must_use]
pub fn relative(value: f64, standards: &[f64], grain: f64, bound: Bound) -> Option<f64> {
    let worst = standards.iter().copied().reduce(|a, b| if bound.is_worse(b, a) { b } else { a })?;
    let ratio = ((value + grain) / (worst + grain)).clamp(1.0 / MAX_RATIO, MAX_RATIO);
    Some(match bound {
        Bound::AtMost => ratio.max(1.0).ln(),
        Bound::AtLeast => ratio.min(1.0).ln(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(values: &[f64], bound: Bound, limit: f64) -> (Verdict, bool) {
        let judged = judge(values, bound, limit).unwrap();
        (judged.verdict, judged.is_clear)
    }

    #[test]
    fn the_whole_interval_decides() {
        use {Bound::*, Verdict::*};
        assert_eq!(judge(&[], AtMost, 1.0), None);
        assert_eq!(verdict(&[0.1, 0.2, 0.3, 0.2], AtMost, 0.5), (Pass, true));
        assert_eq!(verdict(&[0.9, 0.8, 0.9, 0.9], AtMost, 0.5), (Concern, true));
        assert_eq!(
            verdict(&[0.1, 0.9, 0.1, 0.1], AtMost, 0.5),
            (Concern, false),
            "a twentieth of the resamples is above"
        );
        assert_eq!(verdict(&[0.9, 0.8, 0.9, 0.9], AtLeast, 0.5), (Pass, true));
        assert_eq!(verdict(&[0.1, 0.2, 0.1, 0.2], AtLeast, 0.5), (Concern, true));
        // Two cases decide nothing, however good; on the limit is within it.
        assert_eq!(verdict(&[0.0, 0.0], AtMost, 0.5), (Concern, false));
        assert_eq!(verdict(&[0.5, 0.5, 0.5], AtMost, 0.5), (Pass, true));
    }

    /// Of normal values the interval is about two standard errors to each side.
    #[test]
    fn the_interval_is_that_of_a_mean() {
        let values: Vec<f64> = (0..100).map(|n| f64::from(n % 10)).collect();
        let judged = judge(&values, Bound::AtMost, 5.0).unwrap();
        let error = 1.96 * 2.887 / 10.0;
        assert_eq!((judged.cases, judged.mean), (100, 4.5));
        assert!(
            (judged.low - (4.5 - error)).abs() < 0.1 && (judged.high - (4.5 + error)).abs() < 0.1,
            "{judged:?}"
        );
    }

    #[test]
    fn the_worse_of_the_standards_is_the_measure_and_gains_do_not_count() {
        let (most, least) = (Bound::AtMost, Bound::AtLeast);
        assert_eq!(relative(5.0, &[5.0, 10.0], 0.0, most), Some(0.0), "better than one of them");
        assert!((relative(20.0, &[5.0, 10.0], 0.0, most).unwrap() - 2f64.ln()).abs() < 1e-12);
        assert_eq!(relative(99.0, &[5.0, 10.0], 0.0, least), Some(0.0));
        assert!((relative(2.5, &[5.0, 10.0], 0.0, least).unwrap() - 0.5f64.ln()).abs() < 1e-12);
        assert_eq!(relative(1.0, &[], 0.0, most), None);
        // Nothing over nothing is equal; something over nothing is bounded.
        assert_eq!(relative(0.0, &[0.0], 0.005, most), Some(0.0));
        assert!((relative(9.0, &[0.0], 0.001, most).unwrap() - 1000f64.ln()).abs() < 1e-12);
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(0.0f64..2.0, 1..20)
    }

    proptest! {
        /// No case that gets better makes a verdict worse, for either bound.
        #[test]
        fn verdicts_are_monotone(values in values(), which in any::<prop::sample::Index>(), by in 0.0f64..2.0, limit in 0.0f64..2.0) {
            for (bound, better) in [(Bound::AtMost, -by), (Bound::AtLeast, by)] {
                let mut improved = values.clone();
                improved[which.index(values.len())] += better;
                let (before, after) = (judge(&values, bound, limit).unwrap(), judge(&improved, bound, limit).unwrap());
                prop_assert!(after.verdict <= before.verdict, "{before:?} {after:?}");
            }
        }

        #[test]
        fn a_looser_limit_never_raises_a_concern(values in values(), limit in 0.0f64..2.0, by in 0.0f64..2.0) {
            for (bound, looser) in [(Bound::AtMost, limit + by), (Bound::AtLeast, limit - by)] {
                let (strict, loose) = (judge(&values, bound, limit).unwrap(), judge(&values, bound, looser).unwrap());
                prop_assert!(loose.verdict <= strict.verdict);
            }
        }

        /// The check passes where every case keeps to the limit and there are enough. Where none does, the concern is
        /// clear.
        #[test]
        fn unanimous_cases_decide(values in prop::collection::vec(0.0f64..2.0, MIN_CASES..20)) {
            let most = values.iter().copied().fold(f64::MIN, f64::max);
            let least = values.iter().copied().fold(f64::MAX, f64::min);
            prop_assert_eq!(judge(&values, Bound::AtMost, most + 1e-9).unwrap().verdict, Verdict::Pass);
            prop_assert_eq!(judge(&values, Bound::AtLeast, least - 1e-9).unwrap().verdict, Verdict::Pass);
            let judged = judge(&values, Bound::AtMost, least - 1e-6).unwrap();
            prop_assert!(judged.verdict == Verdict::Concern && judged.is_clear);
        }

        /// A standard against itself and another never is a concern, whatever both do.
        #[test]
        fn a_standard_keeps_to_itself(pairs in prop::collection::vec((0.0f64..100.0, 0.0f64..100.0), MIN_CASES..20)) {
            for bound in [Bound::AtMost, Bound::AtLeast] {
                let values: Vec<f64> =
                    pairs.iter().map(|(a, b)| relative(*a, &[*a, *b], 0.01, bound).unwrap()).collect();
                prop_assert_eq!(judge(&values, bound, 0.0).unwrap().verdict, Verdict::Pass);
            }
        }

        #[test]
        fn order_is_of_no_consequence_to_the_mean_and_nothing_is_nan(values in values(), limit in 0.0f64..2.0) {
            let mut reversed = values.clone();
            reversed.reverse();
            let (a, b) = (judge(&values, Bound::AtMost, limit).unwrap(), judge(&reversed, Bound::AtMost, limit).unwrap());
            prop_assert!((a.mean - b.mean).abs() < 1e-9 && a.low.is_finite() && a.high.is_finite() && a.low <= a.high);
        }
    }
}

//! Statistics of few values: runs, flows.
//!
//! Nothing here returns NaN or an infinity: where a figure cannot be computed, it is `None`. Values that are not
//! finite must not be passed in; the data are integers.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The confidence of every interval that a report states.
pub const CONFIDENCE: f64 = 0.95;

/// Mean and spread of independent values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The number of values.
    pub n: usize,
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean, by Student's t; `None` for a single value.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// Of `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        let mean = finite(values.iter().sum::<f64>() / n as f64)?;
        let half_width = sample_variance(values).and_then(|variance| half_width(variance, n));
        Some(Self { n, mean, half_width })
    }

    /// A percentile of the values of all runs together, with the spread over runs that [`Ratio::of_percentiles`] has. `None`
    /// without values.
    pub fn of_percentile(runs: &[Vec<u64>], p: usize) -> Option<Self> {
        let pooled = |without| pooled(runs.iter(), without, p);
        Some(Self { n: runs.len(), mean: pooled(None)?, half_width: jackknife(runs.len(), pooled) })
    }

    /// Lower and upper end of the interval; the mean itself for a single value.
    pub fn interval(&self) -> (f64, f64) {
        let half = self.half_width.unwrap_or(0.0);
        (self.mean - half, self.mean + half)
    }
}

/// A ratio of means, and its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The number of pairs.
    pub n: usize,
    pub ratio: f64,
    /// Half the width of its interval; `None` for a single pair.
    pub half_width: Option<f64>,
}

impl Ratio {
    /// Mean of the first over mean of the second values of pairs. `None` without pairs, or if the second mean is 0.
    ///
    /// The interval is the ratio estimator's (Cochran, Sampling Techniques, section 6.4): the spread of `x - ratio * y` over
    /// pairs, with Student's t. What both of a pair have in common (the same trace, the same losses) cancels out.
    pub fn of_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        let n = pairs.len();
        let mean_of = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>() / n as f64;
        let below = finite(mean_of(|p| p.1)).filter(|m| *m != 0.0)?;
        let ratio = finite(mean_of(|p| p.0) / below)?;
        let rest: Vec<f64> = pairs.iter().map(|(x, y)| x - ratio * y).collect();
        let half_width = sample_variance(&rest)
            .and_then(|variance| half_width(variance, n))
            .and_then(|half| finite(half / below.abs()));
        Some(Self { n, ratio, half_width })
    }

    /// A percentile of all first over the same of all second values of pairs of runs. `None` without values, or if the second
    /// is 0.
    ///
    /// Of a run's few hundred heavy-tailed values a high percentile says little; of those of all runs together, more.
    /// The interval is the jackknife's that leaves out one pair at a time, with Student's t. Efron gives it (The
    /// Jackknife, the Bootstrap and Other Resampling Plans, 1982).
    pub fn of_percentiles(pairs: &[(Vec<u64>, Vec<u64>)], p: usize) -> Option<Self> {
        let ratio = |without| {
            let above = pooled(pairs.iter().map(|pair| &pair.0), without, p)?;
            finite(above / pooled(pairs.iter().map(|pair| &pair.1), without, p)?)
        };
        Some(Self { n: pairs.len(), ratio: ratio(None)?, half_width: jackknife(pairs.len(), ratio) })
    }

    /// Lower and upper end of the interval; the ratio itself for a single pair.
    pub fn interval(&self) -> (f64, f64) {
        let half = self.half_width.unwrap_or(0.0);
        (self.ratio - half, self.ratio + half)
    }
}

/// A percentile of the values of all runs, or of all but one.
fn pooled<'a>(runs: impl Iterator<Item = &'a Vec<u64>>, without: Option<usize>, p: usize) -> Option<f64> {
    let kept = runs.enumerate().filter(|(run, _)| Some(*run) != without);
    let mut all: Vec<u64> = kept.flat_map(|(_, values)| values).copied().collect();
    all.sort_unstable();
    percentile(&all, p).map(|value| value as f64)
}

/// Half the width of a figure's interval, from what it is without each of `n` runs.
fn jackknife(n: usize, figure: impl Fn(Option<usize>) -> Option<f64>) -> Option<f64> {
    let without: Vec<f64> = (0..n).map(|run| figure(Some(run))).collect::<Option<_>>()?;
    half_width(sample_variance(&without)? * ((n - 1) as f64).powi(2), n)
}

fn half_width(variance: f64, n: usize) -> Option<f64> {
    let t = student_t_quantile(0.5 + CONFIDENCE / 2.0, n.checked_sub(1)?)?;
    finite(t * (variance / n as f64).sqrt())
}

/// Unbiased; `None` for fewer than two values.
fn sample_variance(values: &[f64]) -> Option<f64> {
    let n = values.len();
    if n < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    finite(values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64)
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The ellipse of a normal distribution in two dimensions, fitted to points.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ellipse {
    /// Mean of the points.
    pub centre: (f64, f64),
    /// Standard deviations along the two axes, the larger first.
    pub axes: (f64, f64),
    /// Direction of the larger, radians from the direction of `x`.
    pub angle: f64,
}

/// An outline has this many corners.
const ELLIPSE_CORNERS: u32 = 48;
/// Two points lie on a line: an ellipse needs three.
const ELLIPSE_POINTS: usize = 3;

impl Ellipse {
    /// The one standard deviation ellipse of `points` (maximum likelihood, as Winstein and Balakrishnan draw it: Sprout, NSDI'13;
    /// Remy, SIGCOMM'13). `None` for fewer than three.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len();
        if n < ELLIPSE_POINTS {
            return None;
        }
        let mean_of = |f: &dyn Fn(&(f64, f64)) -> f64| finite(points.iter().map(f).sum::<f64>() / n as f64);
        let (cx, cy) = (mean_of(&|p| p.0)?, mean_of(&|p| p.1)?);
        let xx = mean_of(&|p| (p.0 - cx).powi(2))?;
        let yy = mean_of(&|p| (p.1 - cy).powi(2))?;
        let xy = mean_of(&|p| (p.0 - cx) * (p.1 - cy))?;
        let middle = (xx + yy) / 2.0;
        let spread = finite(((xx - yy) / 2.0).hypot(xy))?;
        Some(Self {
            centre: (cx, cy),
            axes: ((middle + spread).max(0.0).sqrt(), (middle - spread).max(0.0).sqrt()),
            angle: 0.5 * (2.0 * xy).atan2(xx - yy),
        })
    }

    /// Returns the corners of the ellipse's outline.
    pub fn outline(&self) -> Vec<(f64, f64)> {
        let (sin, cos) = self.angle.sin_cos();
        (0..ELLIPSE_CORNERS)
            .map(|i| std::f64::consts::TAU * f64::from(i) / f64::from(ELLIPSE_CORNERS))
            .map(|t| (self.axes.0 * t.cos(), self.axes.1 * t.sin()))
            .map(|(u, v)| (self.centre.0 + u * cos - v * sin, self.centre.1 + u * sin + v * cos))
            .collect()
    }
}

/// Jain's fairness index (Jain, Chiu, Hawe 1984): 1 for equal shares, 1/n if one has all. `None` without shares, or if all are 0.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    finite(sum * sum / (shares.len() as f64 * squares))
}

/// Nearest rank percentile of sorted values; `p` in 0 to 100.
pub fn percentile<T: Copy>(sorted: &[T], p: usize) -> Option<T> {
    let rank = (sorted.len() * p).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// The distribution function of sorted values: a point at each step, at most `limit` of them, the first at share 0.
pub fn distribution(sorted: &[f64], limit: usize) -> Vec<(f64, f64)> {
    let (Some(first), n) = (sorted.first(), sorted.len()) else { return Vec::new() };
    let steps = n.min(limit.max(2));
    let mut points = vec![(*first, 0.0)];
    points.extend((1..=steps).map(|i| {
        // Rank of the i-th of `steps` equal shares, rounded up: the last is n.
        let rank = (i * n).div_ceil(steps);
        (sorted[rank - 1], rank as f64 / n as f64)
    }));
    points
}

/// Returns the quantile `p`, 0.5 to 1 exclusive, of Student's t distribution; `None` without a degree of freedom.
pub fn student_t_quantile(p: f64, freedom: usize) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, freedom as f64).ok()?;
    (0.5..1.0).contains(&p).then(|| distribution.inverse_cdf(p)).and_then(finite)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64, within: f64) -> bool {
        (a - b).abs() <= within * b.abs().max(1.0)
    }

    #[test]
    fn student_t_is_as_the_tables_have_it() {
        // 97.5 % quantiles, NIST/SEMATECH e-Handbook, table 1.3.6.7.2.
        for (freedom, expected) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (9, 2.262),
            (10, 2.228),
            (30, 2.042),
            (100, 1.984),
        ] {
            let t = student_t_quantile(0.975, freedom).unwrap();
            assert!(close(t, expected, 5e-4), "{freedom}: {t}");
        }
        assert!(close(student_t_quantile(0.95, 4).unwrap(), 2.132, 5e-4));
        assert!(close(student_t_quantile(0.975, 1_000_000).unwrap(), 1.96, 1e-3), "the normal distribution");
        assert_eq!(student_t_quantile(0.975, 0), None);
    }

    #[test]
    fn the_interval_of_a_mean() {
        // 1 to 5: standard deviation sqrt(2.5), t = 2.776.
        let e = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((e.n, e.mean), (5, 3.0));
        assert!(close(e.half_width.unwrap(), 2.776 * (2.5f64 / 5.0).sqrt(), 1e-3));
        assert_eq!(Estimate::of(&[7.0]), Some(Estimate { n: 1, mean: 7.0, half_width: None }));
        assert_eq!(Estimate::of(&[7.0, 7.0]).unwrap().half_width, Some(0.0));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn the_ratio_of_pairs_has_the_half_width_worked_out_by_hand() {
        // Exactly proportional pairs leave no doubt, however far they spread.
        let r = Ratio::of_pairs(&[(2.0, 1.0), (20.0, 10.0), (6.0, 3.0)]).unwrap();
        assert_eq!((r.ratio, r.half_width), (2.0, Some(0.0)));
        // By hand: ratio 12 / 10; residuals of (3,3) (4,3) (5,4) are -0.6, 0.4, 0.2, their variance 0.28; t = 4.303.
        let r = Ratio::of_pairs(&[(3.0, 3.0), (4.0, 3.0), (5.0, 4.0)]).unwrap();
        assert!(close(r.ratio, 1.2, 1e-12));
        assert!(close(r.half_width.unwrap(), 4.303 * (0.28f64 / 3.0).sqrt() / (10.0 / 3.0), 1e-3));
        assert_eq!(Ratio::of_pairs(&[(1.0, 2.0)]).unwrap(), Ratio { n: 1, ratio: 0.5, half_width: None });
        assert_eq!(Ratio::of_pairs(&[(1.0, 0.0)]), None);
        assert_eq!(Ratio::of_pairs(&[]), None);
    }

    #[test]
    fn percentiles_of_all_runs_together() {
        let runs = [vec![1, 2, 3], vec![10], vec![4, 5]];
        let all = Estimate::of_percentile(&runs, 50).unwrap();
        assert_eq!((all.n, all.mean), (3, 3.0));
        // Without the first 5, without the second 3, without the third 2: pseudo-values -1, 3, 5.
        close(all.half_width.unwrap(), 4.302_65 * (28.0_f64 / 3.0 / 3.0).sqrt(), 1e-3);
        let same: Vec<_> = runs.iter().map(|r| (r.iter().map(|v| v * 2).collect(), r.clone())).collect();
        let ratio = Ratio::of_percentiles(&same, 95).unwrap();
        assert_eq!((ratio.n, ratio.ratio), (3, 2.0));
        close(ratio.half_width.unwrap(), 0.0, 1e-12);
        assert_eq!(Ratio::of_percentiles(&same[..1], 95).unwrap().half_width, None);
        assert_eq!(Ratio::of_percentiles(&[], 95), None);
        assert_eq!(Ratio::of_percentiles(&[(vec![1], vec![0])], 95), None);
        assert_eq!(Ratio::of_percentiles(&[(vec![1], vec![])], 95), None);
    }

    #[test]
    fn the_ellipse_of_a_known_covariance() {
        // Corners of a rectangle turned by 45 degrees: variances 8 and 2 along its axes, over four points 4 and 1.
        let h = std::f64::consts::FRAC_1_SQRT_2;
        let turn = |u: f64, v: f64| (10.0 + u * h - v * h, 20.0 + u * h + v * h);
        let points = [
            turn(8f64.sqrt(), 0.0),
            turn(-(8f64.sqrt()), 0.0),
            turn(0.0, 2f64.sqrt()),
            turn(0.0, -(2f64.sqrt())),
        ];
        let e = Ellipse::of(&points).unwrap();
        assert!(close(e.centre.0, 10.0, 1e-9) && close(e.centre.1, 20.0, 1e-9));
        assert!(close(e.axes.0, 2.0, 1e-9) && close(e.axes.1, 1.0, 1e-9), "{e:?}");
        assert!(close(e.angle, std::f64::consts::FRAC_PI_4, 1e-9));
        assert!(close(e.outline()[0].0, 10.0 + 2.0 * h, 1e-9));
        assert_eq!(Ellipse::of(&points[..2]), None);
        let flat = Ellipse::of(&[(1.0, 1.0); 3]).unwrap();
        assert_eq!(flat.axes, (0.0, 0.0));
    }

    #[test]
    fn jains_index_is_one_for_equal_shares() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[9.0, 0.0, 0.0]), Some(1.0 / 3.0));
        assert_eq!(jain(&[3.0, 1.0]), Some(0.8));
        assert_eq!((jain(&[]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn percentiles_and_distributions() {
        let values: Vec<u64> = (1..=20).collect();
        let of = |p| percentile(&values, p);
        assert_eq!(
            (of(0), of(50), of(95), of(99), of(100)),
            (Some(1), Some(10), Some(19), Some(20), Some(20))
        );
        assert_eq!(percentile::<u64>(&[], 50), None);
        assert_eq!(distribution(&[1.0, 2.0], 10), [(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]);
        let many: Vec<f64> = (0..10_000).map(f64::from).collect();
        let few = distribution(&many, 100);
        assert_eq!((few.len(), few[1], few[100]), (101, (99.0, 0.01), (9_999.0, 1.0)));
    }

    proptest! {
        #[test]
        fn nothing_is_nan(values in proptest::collection::vec(any::<u64>(), 0..12), zeros in 0usize..4) {
            let values: Vec<f64> = values.into_iter().map(|v| v as f64).chain(vec![0.0; zeros]).collect();
            if let Some(e) = Estimate::of(&values) {
                let (low, high) = e.interval();
                prop_assert!(low.is_finite() && high.is_finite() && low <= e.mean && e.mean <= high);
            }
            let pairs: Vec<(f64, f64)> = values.iter().copied().zip(values.iter().rev().copied()).collect();
            if let Some(r) = Ratio::of_pairs(&pairs) {
                prop_assert!(r.ratio.is_finite() && r.interval().0.is_finite() && r.interval().1.is_finite());
            }
            if let Some(e) = Ellipse::of(&pairs) {
                prop_assert!(e.outline().iter().all(|(x, y)| x.is_finite() && y.is_finite()));
                prop_assert!(e.axes.0 >= e.axes.1);
            }
            if let Some(j) = jain(&values) {
                prop_assert!(j > 0.0 && j <= 1.0 + 1e-9);
            }
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let points = distribution(&sorted, 5);
            prop_assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
            prop_assert_eq!(points.last().map(|p| p.1), (!sorted.is_empty()).then_some(1.0));
        }
    }
}

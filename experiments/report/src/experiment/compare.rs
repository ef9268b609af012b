//! The plan's comparisons and what came of them.

use ccplane_results::{Comparison, RunFigures};

use super::figures;
use super::view::{Repeat, View};
use crate::statistics::{Estimate, Ratio};

/// A comparison in one scenario.
pub struct ComparisonVerdict<'a> {
    pub comparison: &'a Comparison,
    /// Index of the scenario; `None`: all together.
    pub scenario: Option<usize>,
    /// The contender's own figure, in the metric's unit.
    pub ours: Option<Estimate>,
    /// The mean of the other contender, or the constant.
    pub theirs: Option<Estimate>,
    /// Over repeats that both ran; `None` if there are none, or the other's mean is 0.
    pub ratio: Option<Ratio>,
    /// The result against the comparison's limits.
    pub outcome: LimitVerdict,
}

/// Whether the limits hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitVerdict {
    /// The ratio is inside the limits.
    Met {
        /// So is its whole confidence interval.
        surely: bool,
    },
    /// The ratio is outside the limits.
    Missed {
        /// So is its whole confidence interval.
        surely: bool,
    },
    /// Nobody ever reached what the metric counts the time to: each figure is as long as the run, and their ratio says nothing.
    NeverReached,
    /// The plan sets no limit.
    NoLimit,
    /// No ratio can be formed.
    NoData,
}

/// Every comparison in every scenario that it is about, in the plan's order.
pub fn verdicts<'a>(view: &View<'a>) -> Vec<ComparisonVerdict<'a>> {
    let mut verdicts = Vec::new();
    for comparison in &view.results.header.plan.comparisons {
        if comparison.together {
            verdicts.push(verdict(view, comparison, None));
            continue;
        }
        for (i, scenario) in view.scenarios().iter().enumerate() {
            if comparison.scenario.as_ref().is_none_or(|name| *name == scenario.name) {
                verdicts.push(verdict(view, comparison, Some(i)));
            }
        }
    }
    verdicts
}

fn verdict<'a>(
    view: &View<'a>,
    comparison: &'a Comparison,
    scenario: Option<usize>,
) -> ComparisonVerdict<'a> {
    let metric = comparison.metric;
    let runs = |name: &str| {
        let contender = view.contenders().iter().position(|c| c.name == name);
        let scenarios = scenario.map_or(0..view.scenarios().len(), |s| s..s + 1);
        let of = |s| contender.into_iter().flat_map(move |c| view.runs(s, c).iter().copied());
        scenarios.flat_map(of).collect::<Vec<_>>()
    };
    let (of, against) = (&runs(&comparison.of)[..], &runs(&comparison.against)[..]);
    let (ours, theirs, ratio) = match figures::completion_percentile(metric) {
        Some(p) => {
            let times = |m: &RunFigures| {
                Some(figures::completion_times_us(m, |c| figures::is_about(metric, c)))
                    .filter(|t| !t.is_empty())
            };
            let (theirs, both) = beside(of, against, comparison.constant.map(|us| vec![us]), times);
            let ours = Estimate::of_percentile(&each(of, times), p);
            (ours, Estimate::of_percentile(&theirs, p), Ratio::of_percentiles(&both, p))
        }
        None => {
            let value = |m: &RunFigures| view.value(metric, m);
            let (theirs, both) = beside(of, against, comparison.constant.map(|c| c as f64), value);
            (Estimate::of(&each(of, value)), Estimate::of(&theirs), Ratio::of_pairs(&both))
        }
    };
    let is_reached = |run: &Repeat<'_>| figures::is_reached(metric, run.measured);
    let outcome = match (ratio, limits(comparison)) {
        (None, _) => LimitVerdict::NoData,
        _ if !of.iter().chain(against).any(is_reached) => LimitVerdict::NeverReached,
        (Some(_), None) => LimitVerdict::NoLimit,
        (Some(ratio), Some(limits)) => judged(ratio, limits),
    };
    ComparisonVerdict { comparison, scenario, ours, theirs, ratio, outcome }
}

/// The other side's values, and those of both sides by pair: of repeats that both have, or of each repeat and a constant.
fn beside<T: Clone>(
    of: &[Repeat<'_>],
    against: &[Repeat<'_>],
    constant: Option<T>,
    value: impl Fn(&RunFigures) -> Option<T>,
) -> (Vec<T>, Vec<(T, T)>) {
    let Some(constant) = constant else { return (each(against, &value), pairs(of, against, &value)) };
    let both = each(of, &value).into_iter().map(|ours| (ours, constant.clone())).collect();
    (vec![constant], both)
}

fn each<T>(runs: &[Repeat<'_>], value: impl Fn(&RunFigures) -> Option<T>) -> Vec<T> {
    runs.iter().filter_map(|run| value(run.measured)).collect()
}

/// The values of repeats that both have.
pub fn pairs<T>(
    of: &[Repeat<'_>],
    against: &[Repeat<'_>],
    value: impl Fn(&RunFigures) -> Option<T>,
) -> Vec<(T, T)> {
    let pair = |run: &Repeat<'_>| {
        let other = against.iter().find(|o| (o.scenario, o.repeat) == (run.scenario, run.repeat))?;
        Some((value(run.measured)?, value(other.measured)?))
    };
    of.iter().filter_map(pair).collect()
}

fn judged(ratio: Ratio, (low, high): (f64, f64)) -> LimitVerdict {
    let (from, to) = ratio.interval();
    let certain = ratio.half_width.is_some();
    if (low..=high).contains(&ratio.ratio) {
        LimitVerdict::Met { surely: certain && from >= low && to <= high }
    } else {
        LimitVerdict::Missed { surely: certain && (to < low || from > high) }
    }
}

/// Smallest and largest allowed ratio; `None` if anything goes.
fn limits(comparison: &Comparison) -> Option<(f64, f64)> {
    let ratio = |ppm: u64| ppm as f64 / 1e6;
    let within = comparison.within_ppm.map(ratio);
    let low = [within.map(|w| 1.0 - w), comparison.at_least_ppm.map(ratio)];
    let high = [within.map(|w| 1.0 + w), comparison.at_most_ppm.map(ratio)];
    if low.iter().chain(&high).all(Option::is_none) {
        return None;
    }
    Some((
        low.into_iter().flatten().fold(f64::NEG_INFINITY, f64::max),
        high.into_iter().flatten().fold(f64::INFINITY, f64::min),
    ))
}

/// The other side in words: the contender's name, or the constant in the metric's unit.
pub fn other_side(comparison: &Comparison) -> String {
    let Some(constant) = comparison.constant else { return comparison.against.clone() };
    let unit = figures::unit(comparison.metric);
    format!("{} {}", constant as f64 / unit.scale, unit.unit).trim_end().to_owned()
}

/// Whether the plan sets a limit.
pub fn is_limited(comparison: &Comparison) -> bool {
    limits(comparison).is_some()
}

/// The limit in words: "within 5 %", "at most 1.1×"; empty without one.
pub fn limit(comparison: &Comparison) -> String {
    let ratio = |ppm: u64| (ppm as f64 / 1e6).to_string();
    let parts = [
        comparison.within_ppm.map(|ppm| format!("within {} %", ppm as f64 / 1e4)),
        comparison.at_least_ppm.map(|ppm| format!("at least {}×", ratio(ppm))),
        comparison.at_most_ppm.map(|ppm| format!("at most {}×", ratio(ppm))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use ccplane_results::Metric;

    use super::*;

    fn comparison() -> Comparison {
        Comparison::new(Metric::ThroughputBps, "a", "b")
    }

    #[test]
    fn limits_meet_in_the_narrowest() {
        assert_eq!(limits(&comparison()), None);
        let c = Comparison { within_ppm: Some(50_000), at_least_ppm: Some(990_000), ..comparison() };
        assert_eq!(limits(&c), Some((0.99, 1.05)));
        assert_eq!(limit(&c), "within 5 %, at least 0.99×");
        let c = Comparison { at_most_ppm: Some(1_100_000), ..comparison() };
        assert_eq!(limits(&c), Some((f64::NEG_INFINITY, 1.1)));
        assert_eq!(limit(&c), "at most 1.1×");
    }

    #[test]
    fn a_constant_is_named_in_the_metrics_unit() {
        assert_eq!(other_side(&comparison()), "b");
        let constant = |metric, constant| Comparison { constant, ..Comparison::new(metric, "a", "") };
        assert_eq!(other_side(&constant(Metric::ShortQueueUs, Some(5_000_000))), "5 s");
        assert_eq!(other_side(&constant(Metric::JainPpm, Some(950_000))), "0.95");
    }

    #[test]
    fn a_verdict_says_whether_the_interval_agrees() {
        let limits = (0.95, 1.05);
        let ratio = |ratio, half_width| Ratio { n: 5, ratio, half_width };
        assert_eq!(judged(ratio(1.0, Some(0.04)), limits), LimitVerdict::Met { surely: true });
        assert_eq!(judged(ratio(1.0, Some(0.06)), limits), LimitVerdict::Met { surely: false });
        assert_eq!(
            judged(ratio(1.0, None), limits),
            LimitVerdict::Met { surely: false },
            "one run proves little"
        );
        assert_eq!(judged(ratio(1.1, Some(0.06)), limits), LimitVerdict::Missed { surely: false });
        assert_eq!(judged(ratio(1.2, Some(0.06)), limits), LimitVerdict::Missed { surely: true });
        assert_eq!(judged(ratio(0.5, Some(0.06)), limits), LimitVerdict::Missed { surely: true });
    }
}

//! The results of the plan's comparisons, for terminals and programs.

use std::fmt;

use ccplane_results::{Metric, Results};
use serde::Serialize;

use super::compare::{self, ComparisonVerdict, LimitVerdict};
use super::figures;
use super::view::View;

/// A comparison of the plan in one scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    pub metric: Metric,
    /// In which scenario; "all together" of comparisons over all.
    pub scenario: String,
    /// The contender's name.
    pub of: String,
    /// The name of the contender that it is compared with, or a constant with its unit.
    pub against: String,
    /// Its figure over the other's; `None` without runs of both.
    pub ratio: Option<f64>,
    /// The ratio's interval of 95 % confidence; `None` with fewer than two pairs.
    pub interval: Option<(f64, f64)>,
    /// Repeats that both ran.
    pub pairs: usize,
    /// The limit in words; empty without one.
    pub limit: String,
    /// Whether the ratio keeps the limit; `None` without either.
    pub met: Option<bool>,
    /// Whether nobody ever reached what the metric counts the time to; a limit is not met then.
    pub never_reached: bool,
    /// The same figure in a paper, in words.
    pub paper: Option<String>,
}

/// Every comparison in every scenario that it is about, in the plan's order.
#[must_use]
pub fn comparisons(results: &Results) -> Vec<Compared> {
    let view = View::new(results);
    compare::verdicts(&view).iter().map(|verdict| compared(&view, verdict)).collect()
}

fn compared(view: &View<'_>, verdict: &ComparisonVerdict<'_>) -> Compared {
    let comparison = verdict.comparison;
    Compared {
        metric: comparison.metric,
        scenario: view.scenario_name(verdict.scenario).to_owned(),
        of: comparison.of.clone(),
        against: compare::other_side(comparison),
        ratio: verdict.ratio.map(|r| r.ratio),
        interval: verdict.ratio.filter(|r| r.half_width.is_some()).map(|r| r.interval()),
        pairs: verdict.ratio.map_or(0, |r| r.n),
        limit: compare::limit(comparison),
        met: match verdict.outcome {
            LimitVerdict::Met { .. } => Some(true),
            LimitVerdict::Missed { .. } => Some(false),
            LimitVerdict::NeverReached => compare::is_limited(comparison).then_some(false),
            LimitVerdict::NoLimit | LimitVerdict::NoData => None,
        },
        never_reached: verdict.outcome == LimitVerdict::NeverReached,
        paper: comparison.paper.clone(),
    }
}

/// Displays the comparison as one line.
impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.met {
            Some(true) => "met   ",
            Some(false) => "MISSED",
            None => "      ",
        };
        let title = figures::unit(self.metric).title;
        write!(f, "{mark} {title}, {}: {} / {}: ", self.scenario, self.of, self.against)?;
        match (self.ratio, self.interval) {
            (None, _) => f.write_str("no data")?,
            (Some(ratio), None) => write!(f, "{ratio:.3}")?,
            (Some(ratio), Some((low, high))) => write!(f, "{ratio:.3} [{low:.3}, {high:.3}]")?,
        }
        if self.never_reached {
            f.write_str(", never reached")?;
        }
        if !self.limit.is_empty() {
            write!(f, " ({})", self.limit)?;
        }
        self.paper.as_ref().map_or(Ok(()), |paper| write!(f, " [{paper}]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_ratio_limit_and_paper() {
        let mut compared = Compared {
            metric: Metric::FctP95Us,
            scenario: "24 Mb/s".into(),
            of: "a".into(),
            against: "b".into(),
            ratio: Some(1.0123),
            interval: Some((0.99, 1.03)),
            pairs: 5,
            limit: "within 5 %".into(),
            met: Some(true),
            never_reached: false,
            paper: Some("CCP: 30 % longer".into()),
        };
        let line =
            "met    Completion p95, 24 Mb/s: a / b: 1.012 [0.990, 1.030] (within 5 %) [CCP: 30 % longer]";
        assert_eq!(compared.to_string(), line);
        let never = Compared { met: Some(false), never_reached: true, paper: None, ..compared.clone() };
        let line = "MISSED Completion p95, 24 Mb/s: a / b: 1.012 [0.990, 1.030], never reached (within 5 %)";
        assert_eq!(never.to_string(), line);
        compared = Compared { ratio: None, interval: None, met: None, paper: None, ..compared };
        assert_eq!(compared.to_string(), "       Completion p95, 24 Mb/s: a / b: no data (within 5 %)");
    }
}

//! A plan's links at a glance: the best contender on each, its cost in waiting, and our flow's decisions.

use ccplane_results::{FlowResult, Metric, RunFigures, StateChange};

use super::figures::{fair_share, own_flows};
use super::series::mean_base_rtt_us;
use super::view::View;
use crate::format;

/// Links and contenders of a plan that fit into one picture.
const LINKS: std::ops::RangeInclusive<usize> = 2..=6;
const CONTENDERS: std::ops::RangeInclusive<usize> = 2..=4;
/// A score this near to the best one is as good.
const LEVEL: f64 = 0.9;

/// A link, and how the contenders did on it.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkGlance {
    pub link: String,
    /// Contenders with a run, in the plan's order.
    pub contenders: Vec<ContenderGlance>,
    /// The flow's decisions that explain its figures, in words; empty if there are none.
    pub decided: String,
}

/// A contender on one link.
#[derive(Clone, PartialEq, Debug)]
pub struct ContenderGlance {
    /// Index of the contender.
    pub(super) index: usize,
    pub name: String,
    /// Mean payload acknowledged, bits per second.
    pub throughput_bps: f64,
    /// Mean RTT beyond the path's own, microseconds.
    pub waiting_us: f64,
    /// Its throughput over an equal part, while others' flows run beside it; `None` if none does.
    pub fair_share: Option<f64>,
    /// The score of that; comparable on one link only.
    score: f64,
    /// Whether no other contender does clearly better.
    pub best: bool,
}

impl LinkGlance {
    /// Returns a sentence that names the best contender and each one's share, in plain words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (best, rest): (Vec<_>, Vec<_>) = self.contenders.iter().partition(|c| c.best);
        let names: Vec<&str> = best.iter().map(|c| c.name.as_str()).collect();
        let beside = best.iter().any(|c| c.fair_share.is_some());
        let verb = match (beside, names.len()) {
            (false, 1) => "does best",
            (false, _) => "do best, about level",
            (true, 1) => "shares best",
            (true, _) => "share best, about level",
        };
        let figures: Vec<String> = best.iter().chain(&rest).map(|c| c.figures()).collect();
        format!("{} {verb}. {}.", names.join(" and "), figures.join("; "))
    }
}

impl ContenderGlance {
    fn figures(&self) -> String {
        let (mbps, ms) = (format::mbps(Some(self.throughput_bps)), format::ms(Some(self.waiting_us)));
        match self.fair_share {
            None => format!("{}: {mbps} Mb/s, {ms} ms of waiting", self.name),
            Some(share) => {
                let share = format::percent(Some(share));
                format!("{}: {share} of an equal share, {ms} ms of waiting", self.name)
            }
        }
    }
}

/// The links, where there are few of few contenders and all have bulk flows; else nothing.
pub fn links(view: &View<'_>) -> Vec<LinkGlance> {
    let swept = view.scenarios().iter().any(|s| !s.parameters.is_empty());
    if swept || !LINKS.contains(&view.scenarios().len()) || !CONTENDERS.contains(&view.contenders().len()) {
        return Vec::new();
    }
    let links: Vec<LinkGlance> = (0..view.scenarios().len()).map(|s| link(view, s)).collect();
    if links.iter().all(|l| l.contenders.is_empty()) { Vec::new() } else { links }
}

fn link(view: &View<'_>, scenario: usize) -> LinkGlance {
    let mut contenders: Vec<ContenderGlance> =
        (0..view.contenders().len()).filter_map(|c| contender(view, scenario, c)).collect();
    let most = contenders.iter().map(|c| c.score).fold(0.0, f64::max);
    contenders.iter_mut().for_each(|c| c.best = most > 0.0 && c.score >= LEVEL * most);
    let decided = contenders.iter().find_map(|c| {
        let measured = view.representative(scenario, c.index)?.measured;
        let flow = telling_flow(measured)?;
        Some(format!("{}: {}.", c.name, told(flow)))
    });
    LinkGlance {
        link: view.scenarios()[scenario].name.clone(),
        contenders,
        decided: decided.unwrap_or_default(),
    }
}

fn contender(view: &View<'_>, scenario: usize, index: usize) -> Option<ContenderGlance> {
    let plan = &view.results.header.plan;
    let measured = view.representative(scenario, index)?.measured;
    let throughput_bps = view.value(Metric::ThroughputBps, measured)?;
    let rtt_us = view.value(Metric::MeanRttUs, measured)?;
    let link = &view.scenarios()[scenario].link;
    let base_us = mean_base_rtt_us(link, plan.warmup_ms, plan.duration_ms).unwrap_or(0.0);
    let fair_share = fair_share(measured, plan.warmup_ms);
    let score = match fair_share {
        // As the league scores them: throughput squared over delay alone, distance from the fair share beside others.
        None => throughput_bps.powi(2) / rtt_us.max(1.0),
        Some(share) => (1.0 - (share - 1.0).abs()).max(0.0),
    };
    Some(ContenderGlance {
        index,
        name: view.contenders()[index].name.clone(),
        throughput_bps,
        waiting_us: (rtt_us - base_us).max(0.0),
        fair_share,
        score,
        best: false,
    })
}

/// The contender's first flow that says what it does.
pub fn telling_flow(measured: &RunFigures) -> Option<&FlowResult> {
    own_flows(measured).find(|flow| !flow.states.is_empty())
}

/// A flow's states with their ends, milliseconds.
pub fn spans(flow: &FlowResult) -> impl Iterator<Item = (&StateChange, u64)> {
    let ends = flow.states.iter().skip(1).map(|s| s.t_ms).chain([flow.end_ms]);
    flow.states.iter().zip(ends)
}

/// "short queue 29.1 s; tests for rivals 3 times, 1.2 s".
fn told(flow: &FlowResult) -> String {
    let mut all: Vec<(&str, u64, u64)> = Vec::new();
    for (state, end_ms) in spans(flow) {
        let ms = end_ms.saturating_sub(state.t_ms);
        match all.iter_mut().find(|(name, ..)| *name == state.state) {
            Some((_, times, sum_ms)) => (*times, *sum_ms) = (*times + 1, sum_ms.saturating_add(ms)),
            None => all.push((&state.state, 1, ms)),
        }
    }
    let said = |(name, times, ms): (&str, u64, u64)| match times {
        1 => format!("{name} {:.1} s", ms as f64 / 1e3),
        n => format!("{name} {} times, {:.1} s", format::count(n), ms as f64 / 1e3),
    };
    all.into_iter().map(said).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_results::Series;

    fn flow(background: bool, start_ms: u64, end_ms: u64, bps: u64) -> FlowResult {
        let t_ms: Vec<u64> = (start_ms + 100..=end_ms).step_by(100).collect();
        let throughput_bps = t_ms.iter().map(|_| bps).collect();
        FlowResult {
            background: background.then(|| "cubic".into()),
            start_ms,
            end_ms,
            series: Series { t_ms, throughput_bps, ..Series::default() },
            ..FlowResult::default()
        }
    }

    #[test]
    fn a_fair_share_counts_while_all_run() {
        let mut measured = RunFigures {
            flows: vec![flow(false, 0, 10_000, 6), flow(true, 2_000, 8_000, 2)],
            ..Default::default()
        };
        assert_eq!(fair_share(&measured, 0), Some(1.5));
        // What it carries alone does not count.
        let alone = measured.flows[0].series.t_ms.iter().position(|t| *t > 8_000).unwrap();
        measured.flows[0].series.throughput_bps[alone..].fill(1_000);
        assert_eq!(fair_share(&measured, 0), Some(1.5));
        measured.flows.pop();
        assert_eq!(fair_share(&measured, 0), None);
    }

    #[test]
    fn states_are_summed_in_the_order_of_their_first() {
        let state = |t_ms, state: &str| StateChange { t_ms, state: state.into() };
        let states = vec![state(100, "b"), state(1_100, "a"), state(1_300, "b"), state(2_300, "a")];
        let flow = FlowResult { states, end_ms: 2_400, ..FlowResult::default() };
        assert_eq!(told(&flow), "b 2 times, 2.0 s; a 2 times, 0.3 s");
        let once = FlowResult { states: vec![state(0, "c")], end_ms: 500, ..FlowResult::default() };
        assert_eq!(told(&once), "c 0.5 s");
    }
}

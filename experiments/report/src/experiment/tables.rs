//! Draws the tables of the page.

use ccplane_results::{Completion, Metric, RunFigures, Stretch};
use maud::{Markup, html};

use super::charts::Charts;
use super::compare::{ComparisonVerdict, LimitVerdict, limit, other_side, pairs};
use super::fairness::{Convergence, convergence};
use super::figures::{self, SizeClass, own_flows};
use super::summary::Summary;
use super::view::{Repeat, View};
use crate::draw::html::glyph;
use crate::format;
use crate::statistics::{Estimate, Ratio, percentile};

/// A table that scrolls sideways where it is too wide.
pub fn scroll(label: &str, table: Markup) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label=(label) { table { (table) } } }
}

/// A column's heading, and its unit.
pub fn head(title: &str, small: &str) -> Markup {
    html! { th scope="col" { (title) @if !small.is_empty() { small { (small) } } } }
}

fn contender(view: &View<'_>, index: usize) -> Markup {
    html! {
        th scope="row" {
            (glyph(view.marker(index), view.styles[index])) (view.contenders()[index].name)
            @if view.contenders()[index].learning { span.unit { ", learning" } }
        }
    }
}

fn estimate(estimate: Option<Estimate>) -> Markup {
    html! {
        td {
            @match estimate {
                None => (format::NONE),
                Some(e) => {
                    @let text = format::estimate(e.mean, e.half_width);
                    @let (mean, half) = text.split_once(" ± ").unwrap_or((&text, ""));
                    (mean) @if !half.is_empty() { span.unit { " ± " (half) } }
                }
            }
        }
    }
}

/// A ratio and its interval: `0.98× [0.95, 1.01]`.
fn ratio(ratio: Option<Ratio>) -> Markup {
    html! {
        td {
            @match ratio {
                None => (format::NONE),
                Some(r) => {
                    b { (format::ratio(Some(r.ratio))) }
                    @if r.half_width.is_some() {
                        @let (low, high) = r.interval();
                        span.unit { " [" (format!("{low:.2}")) ", " (format!("{high:.2}")) "]" }
                    }
                }
            }
        }
    }
}

/// Draws the table of the plan's comparisons.
pub fn verdicts(view: &View<'_>, verdicts: &[ComparisonVerdict<'_>]) -> Markup {
    let several = view.scenarios().len() > 1;
    let paper = verdicts.iter().any(|v| v.comparison.paper.is_some());
    scroll(
        "Comparisons",
        html! {
            thead {
                tr {
                    (head("Comparison", "")) (head("Verdict", ""))
                    (head("Ratio", "95 % interval")) (head("Limit", ""))
                    @if paper { (head("Paper", "")) }
                    (head("Of", "mean ± 95 %")) (head("Against", "mean ± 95 %")) (head("Pairs", "of runs"))
                }
            }
            tbody {
                @for v in verdicts {
                    @let unit = figures::unit(v.comparison.metric);
                    tr {
                        th.wide scope="row" {
                            (unit.title) @if !unit.unit.is_empty() { span.unit { ", " (unit.unit) } }
                            small { (v.comparison.of) " against " (other_side(v.comparison)) @if several { " · " (view.scenario_name(v.scenario)) } }
                        }
                        td { (badge(v.outcome)) }
                        (ratio(v.ratio))
                        td { (limit(v.comparison)) }
                        @if paper { td { (v.comparison.paper.as_deref().unwrap_or_default()) } }
                        (estimate(scaled(v.ours, unit.scale)))
                        (estimate(scaled(v.theirs, unit.scale)))
                        td { (v.ratio.map_or(0, |r| r.n)) }
                    }
                }
            }
        },
    )
}

fn scaled(estimate: Option<Estimate>, scale: f64) -> Option<Estimate> {
    estimate.map(|e| Estimate { mean: e.mean / scale, half_width: e.half_width.map(|h| h / scale), ..e })
}

/// The look of an outcome.
pub struct Badge {
    /// Of CSS, beside `badge`.
    pub class: &'static str,
    /// The text on the badge.
    pub text: &'static str,
    /// The text that appears under the pointer.
    pub title: &'static str,
}

impl Badge {
    /// Of a comparison's outcome.
    pub fn of(outcome: LimitVerdict) -> Badge {
        let (class, text, title) = match outcome {
            LimitVerdict::Met { surely: true } => {
                ("met", "✓ met", "The whole confidence interval is inside the limit")
            }
            LimitVerdict::Met { surely: false } => (
                "met weak",
                "✓ met, unsure",
                "The confidence interval reaches beyond the limit, or there is one pair only",
            ),
            LimitVerdict::Missed { surely: true } => {
                ("missed", "✗ missed", "The whole confidence interval is outside the limit")
            }
            LimitVerdict::Missed { surely: false } => (
                "missed weak",
                "✗ missed, unsure",
                "The confidence interval reaches into the limit, or there is one pair only",
            ),
            LimitVerdict::NeverReached => {
                ("missed", "✗ never reached", "No run got to what the metric counts the time to")
            }
            LimitVerdict::NoLimit => ("none", "shown", "The plan sets no limit"),
            LimitVerdict::NoData => ("none", "no data", "No repeat has both figures"),
        };
        Badge { class, text, title }
    }
}

fn badge(outcome: LimitVerdict) -> Markup {
    let Badge { class, text, title } = Badge::of(outcome);
    html! { span class=(format!("badge {class}")) title=(title) { (text) } }
}

/// Means of all metrics.
pub fn summary(view: &View<'_>, summary: &Summary) -> Markup {
    scroll(
        "Means over runs",
        html! {
            thead { tr { (head("Contender", "")) (head("Runs", "")) @for (title, unit) in &summary.columns { (head(title, unit)) } } }
            tbody {
                @for row in &summary.rows {
                    tr {
                        (contender(view, row.contender))
                        td { (row.runs) }
                        @for cell in &row.cells { (estimate(*cell)) }
                    }
                }
            }
        },
    )
}

/// A contender's figure against its baseline's, over repeats that both ran; `None` for a baseline itself.
fn against<T>(
    view: &View<'_>,
    scenario: usize,
    contender: usize,
    value: impl Fn(&RunFigures) -> Option<T>,
) -> Option<Vec<(T, T)>> {
    let baseline = view.baseline(scenario, contender).filter(|b| *b != contender)?;
    Some(pairs(view.runs(scenario, contender), view.runs(scenario, baseline), value))
}

/// Percentiles of completion times by class of size; `None` without short flows.
pub fn completions(view: &View<'_>, scenario: usize, charts: &Charts<'_>) -> Option<Markup> {
    let classes = [None].into_iter().chain(SizeClass::ALL.map(Some));
    let of = |class: Option<SizeClass>, c: usize| charts.completion_ms(c, class);
    let contenders = || (0..view.contenders().len()).filter(|c| !view.runs(scenario, *c).is_empty());
    if contenders().all(|c| of(None, c).is_empty()) {
        return None;
    }
    Some(scroll(
        "Completion times",
        html! {
            thead {
                tr {
                    (head("Contender", "")) (head("Flows", "all repeats"))
                    (head("p50", "ms")) (head("p95", "ms")) (head("p99", "ms"))
                    (head("p50 ratio", "to baseline")) (head("p95 ratio", "to baseline"))
                    (head("p99 ratio", "to baseline"))
                }
            }
            @for class in classes {
                tbody {
                    tr { th.span colspan="8" scope="rowgroup" { (class.map_or("All sizes", SizeClass::label)) } }
                    @for c in contenders() {
                        @let times = of(class, c);
                        @let paired = against(view, scenario, c, |m| times_us(m, class));
                        tr {
                            (contender(view, c))
                            td { (format::count(times.len() as u64)) @if class.is_none() { (unfinished(view, scenario, c)) } }
                            @for p in [50, 95, 99] { td { (format::number(percentile(&times, p))) } }
                            @for p in [50, 95, 99] {
                                (ratio(paired.as_ref().and_then(|pairs| Ratio::of_percentiles(pairs, p))))
                            }
                        }
                    }
                }
            }
        },
    ))
}

fn times_us(measured: &RunFigures, class: Option<SizeClass>) -> Option<Vec<u64>> {
    measured.completions.as_ref()?;
    let counts = |c: &Completion| class.is_none_or(|class| SizeClass::of(c.bytes) == class);
    Some(figures::completion_times_us(measured, counts))
}

fn unfinished(view: &View<'_>, scenario: usize, contender: usize) -> Markup {
    let runs = view.runs(scenario, contender).iter();
    let n = runs
        .filter_map(|r| r.measured.completions.as_ref())
        .map(|c| c.unfinished)
        .fold(0, u64::saturating_add);
    html! { @if n > 0 { span.unit { " + " (format::count(n)) " unfinished" } } }
}

/// Rewards between the link's changes, and when they were reached; `None` where it does not change.
pub fn stretches(view: &View<'_>, scenario: usize) -> Option<Markup> {
    let all: Vec<&Stretch> = view.all_runs(scenario).find_map(|(_, r)| {
        let stretches: Vec<&Stretch> = r.measured.stretches.iter().collect();
        (!stretches.is_empty()).then_some(stretches)
    })?;
    let link = &view.scenarios()[scenario].link;
    let began = |s: &Stretch| {
        let change = link.changes.iter().find(|c| c.t_ms == s.from_ms);
        change.map_or_else(|| "at first".to_owned(), |c| c.description.clone())
    };
    let time = |s: &Stretch| format!("{}–{} s", seconds(s.from_ms), seconds(s.to_ms));
    Some(scroll(
        "Between the link’s changes",
        html! {
            thead {
                tr {
                    th scope="col" rowspan="2" { "Contender" }
                    @for stretch in &all { th scope="col" colspan="2" { (began(stretch)) small { (time(stretch)) } } }
                }
                tr { @for _ in &all { (head("Reward", "% of the oracle’s")) (head("There after", "s")) } }
            }
            tbody {
                @for c in (0..view.contenders().len()).filter(|c| !view.runs(scenario, *c).is_empty()) {
                    tr {
                        (contender(view, c))
                        @for n in 0..all.len() { (stretch(view.runs(scenario, c), n)) }
                    }
                }
            }
        },
    ))
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// Two cells: a contender's `n`th stretch over its runs.
fn stretch(runs: &[Repeat<'_>], n: usize) -> Markup {
    let stretches: Vec<&Stretch> = runs.iter().filter_map(|r| r.measured.stretches.get(n)).collect();
    let rewards: Vec<f64> = stretches.iter().map(|s| s.reward_ppm as f64 / 1e4).collect();
    let mut reached: Vec<f64> = stretches.iter().filter_map(|s| s.reached_ms).map(seconds).collect();
    reached.sort_by(f64::total_cmp);
    html! {
        (estimate(Estimate::of(&rewards)))
        td {
            @if reached.is_empty() { "never" } @else { (format::number(percentile(&reached, 50))) }
            @if stretches.len() > 1 && !reached.is_empty() { span.unit { ", " (reached.len()) " of " (stretches.len()) } }
        }
    }
}

/// Draws the table of fairness and convergence in a scenario.
pub fn fairness(view: &View<'_>, scenario: usize) -> Markup {
    scroll(
        "Fairness",
        html! {
            thead {
                tr {
                    (head("Contender", "")) (head("Flows", "")) (head("Jain’s index", "mean ± 95 %"))
                    (head("Converged", "runs")) (head("Convergence", "median, s"))
                }
            }
            tbody {
                @for c in (0..view.contenders().len()).filter(|c| !view.runs(scenario, *c).is_empty()) {
                    @let runs = view.runs(scenario, c);
                    @let jain: Vec<f64> = runs.iter().filter_map(|r| view.value(Metric::JainPpm, r.measured)).map(|v| v / 1e6).collect();
                    @let found: Vec<Convergence> = runs.iter().filter_map(|r| convergence(r.measured)).collect();
                    @let times = times(&found);
                    tr {
                        (contender(view, c))
                        @let (own, beside) = runs.first().map_or((0, 0), |r| {
                            let own = own_flows(r.measured).count();
                            (own, r.measured.flows.len() - own)
                        });
                        td { (own) @if beside > 0 { span.unit { " + " (beside) " beside" } } }
                        td { (jain_text(&jain)) }
                        td { @if found.is_empty() { (format::NONE) } @else { (times.len()) " of " (found.len()) } }
                        td { (format::number(percentile(&times, 50))) }
                    }
                }
            }
        },
    )
}

/// Three decimals: indices are close to 1.
fn jain_text(values: &[f64]) -> String {
    match Estimate::of(values) {
        None => format::NONE.into(),
        Some(Estimate { mean, half_width: Some(half), .. }) => format!("{mean:.3} ± {half:.3}"),
        Some(Estimate { mean, .. }) => format!("{mean:.3}"),
    }
}

/// Returns the convergence times in ascending order, seconds.
fn times(found: &[Convergence]) -> Vec<f64> {
    let seconds = |c: &Convergence| match c {
        Convergence::After(ms) => Some(*ms as f64 / 1e3),
        Convergence::Never => None,
    };
    let mut times: Vec<f64> = found.iter().filter_map(seconds).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Processor time and what the agent did; `None` where nothing was measured.
pub fn processor(view: &View<'_>, scenario: usize) -> Option<Markup> {
    let any = view.all_runs(scenario).any(|(_, r)| r.measured.cpu.is_some() || r.measured.agent.is_some());
    if !any {
        return None;
    }
    let sum = |c: usize, of: fn(&ccplane_results::AgentUse) -> u64| {
        let uses: Vec<_> = view.runs(scenario, c).iter().filter_map(|r| r.measured.agent).collect();
        (!uses.is_empty()).then(|| uses.iter().map(of).fold(0, u64::saturating_add))
    };
    let count = |n: Option<u64>| n.map_or_else(|| format::NONE.into(), format::count);
    Some(scroll(
        "Processor time and the agent",
        html! {
            thead {
                tr {
                    (head("Contender", "")) (head("Processor time", "ms per GB")) (head("Ratio", "to baseline"))
                    (head("Soft interrupts", "% of it")) (head("Reports", "to agent, all runs"))
                    (head("Faults", "arithmetic")) (head("Unsteered", "flows"))
                }
            }
            tbody {
                @for c in (0..view.contenders().len()).filter(|c| !view.runs(scenario, *c).is_empty()) {
                    @let runs = view.runs(scenario, c);
                    @let per_gb: Vec<f64> = runs.iter().filter_map(|r| view.value(Metric::CpuUsPerGbyte, r.measured)).map(|us| us / 1e3).collect();
                    @let softirq: Vec<f64> = runs.iter().filter_map(|r| softirq_percent(r.measured)).collect();
                    tr {
                        (contender(view, c))
                        (estimate(Estimate::of(&per_gb)))
                        (ratio(against(view, scenario, c, |m| view.value(Metric::CpuUsPerGbyte, m)).and_then(|pairs| Ratio::of_pairs(&pairs))))
                        (estimate(Estimate::of(&softirq)))
                        td { (count(sum(c, |a| a.reports))) }
                        td { (count(sum(c, |a| a.faults))) }
                        td { (count(sum(c, |a| a.unsteered_flows))) }
                    }
                }
            }
        },
    ))
}

/// Share of busy time spent in soft interrupts.
fn softirq_percent(measured: &RunFigures) -> Option<f64> {
    let cpu = measured.cpu?;
    let busy = cpu.user_ms as f64 + cpu.system_ms as f64;
    (busy > 0.0).then(|| cpu.softirq_ms as f64 / busy * 100.0)
}

/// Runs that failed; empty without any.
pub fn failures(view: &View<'_>) -> Markup {
    html! {
        @if !view.failed.is_empty() {
            (scroll("Runs that failed", html! {
                thead { tr { (head("Run", "")) (head("Attempt", "")) (head("Mended", "by a later attempt")) (head("Why", "")) } }
                tbody {
                    @for failure in &view.failed {
                        tr {
                            th.wide scope="row" {
                                (failure.run.contender) ", repeat " (u64::from(failure.run.repeat) + 1)
                                small { (failure.run.scenario) }
                            }
                            td { (failure.run.attempt) }
                            td { @if failure.mended { "yes" } @else { b { "no" } } }
                            td.text { (failure.error) }
                        }
                    }
                }
            }))
        }
    }
}

/// Contenders with fewer good runs than planned; empty without any.
pub fn missing(view: &View<'_>) -> Markup {
    let planned = view.results.header.plan.repeats as usize;
    let mut short = Vec::new();
    for s in 0..view.scenarios().len() {
        for c in 0..view.contenders().len() {
            let done = view.runs(s, c).len();
            if done < planned {
                short.push((s, c, done));
            }
        }
    }
    html! {
        @if !short.is_empty() {
            (scroll("Runs that are missing", html! {
                thead { tr { (head("Contender", "")) (head("Good runs", &format!("of {planned}"))) (head("Scenario", "")) } }
                tbody {
                    @for (s, c, done) in short {
                        tr { (contender(view, c)) td { (done) } td.text { (view.scenarios()[s].name) } }
                    }
                }
            }))
        }
    }
}

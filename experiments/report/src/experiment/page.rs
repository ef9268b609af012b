//! Puts the page together.

use std::collections::BTreeMap;

use ccplane_results::Datapath;
use maud::{Markup, PreEscaped, html};

use super::charts::{Charts, slug};
use super::compare::{LimitVerdict, verdicts};
use super::fairness::{BAND, HOLD_MS};
use super::figures::BIN_MS;
use super::summary::{Summary, latex, markdown, summary};
use super::view::{Sweep, View};
use super::{glance, matrix, picture, sweep, tables};
use crate::draw::scene::Scene;
use crate::draw::{Figure, html as on_page, svg};
use crate::format;
use crate::shell;

/// The file of the picture at the top, without extension.
pub const GLANCE: &str = "at-a-glance";

/// The folder of the page's files, and the charts that it shows.
pub struct Drawing {
    /// The report's name, which its files start with.
    name: String,
    /// The links at a glance.
    pub picture: Option<Scene>,
    /// Every chart on the page, in its order.
    pub figures: Vec<Figure>,
    /// Whether scenarios have charts.
    drawn: bool,
}

impl Drawing {
    /// Of the report `name`.
    pub fn new(name: &str, drawn: bool) -> Self {
        Self { name: name.into(), picture: None, figures: Vec::new(), drawn }
    }

    /// The folder of the charts' files, beside the page.
    pub fn folder(name: &str) -> String {
        format!("{name}-charts")
    }

    /// A chart on the page; its files' name becomes unique.
    fn show(&mut self, mut figure: Figure) -> Markup {
        let wanted = figure.name.clone();
        for n in 2.. {
            if self.figures.iter().all(|f| f.name != figure.name) {
                break;
            }
            figure.name = format!("{wanted}-{n}");
        }
        let file =
            |extension: &str| format!("{}/{}.{extension}", url(&Self::folder(&self.name)), figure.name);
        let drawn = on_page::figure(&figure, &[(file("svg"), "SVG"), (file("png"), "PNG")]);
        self.figures.push(figure);
        drawn
    }

    /// Figures side by side, as `class` says: `grid` for curves, `columns` for narrow ones.
    fn grid(&mut self, class: &str, figures: Vec<Figure>) -> Markup {
        let drawn: Vec<Markup> = figures.into_iter().map(|f| self.show(f)).collect();
        html! { @if !drawn.is_empty() { div class=(class) { @for figure in drawn { (figure) } } } }
    }

    fn wide(&mut self, figure: Option<Figure>) -> Markup {
        let drawn = figure.map(|f| self.show(f));
        html! { @if let Some(figure) = drawn { div.wide { (figure) } } }
    }
}

/// A file's name in a link.
fn url(name: &str) -> String {
    name.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

/// The page, and what is drawn on it; without the charts of scenarios where it is not `drawn`.
pub fn page(view: &View<'_>, name: &str, drawn: bool) -> (String, Drawing) {
    let mut drawing = Drawing::new(name, drawn);
    let plan = &view.results.header.plan;
    let title = if plan.title.is_empty() { &plan.name } else { &plan.title };
    let content = html! {
        header {
            p.eyebrow { "ccplane · plan " (plan.name) }
            h1 { (title) }
            @if !plan.about.is_empty() { p.lead { (plan.about) } }
            (facts(view))
        }
        @if !drawn {
            p.hint {
                "So many runs are not drawn. Plots of one scenario: "
                code { "ccplane run PLAN --plots '" (view.scenarios().first().map_or("SCENARIO", |s| &s.name)) "'" }
            }
        }
        (at_a_glance(view, &mut drawing))
        (in_short(view))
        @for sweep in view.sweeps() { (sweep_section(view, &sweep, &mut drawing)) }
        (paste(view))
        (runs(view))
        (footer(view, name, drawn))
    };
    (shell::page(title, content), drawing)
}

/// Draws the first picture, with a sentence for each link on the best contender and our flow's decisions.
fn at_a_glance(view: &View<'_>, drawing: &mut Drawing) -> Markup {
    let links = if drawing.drawn { glance::links(view) } else { Vec::new() };
    if links.is_empty() {
        return html! {};
    }
    let picture = drawing.picture.insert(picture::picture(view, &links));
    let file = |extension: &str| format!("{}/{GLANCE}.{extension}", url(&Drawing::folder(&drawing.name)));
    html! {
        section {
            figure.glance {
                span.files { a href=(file("svg")) { "SVG" } a href=(file("png")) { "PNG" } }
                (PreEscaped(svg::inline(picture)))
            }
            dl.glance {
                @for link in &links {
                    div {
                        dt { (link.link) }
                        dd { (link.sentence()) }
                        @if !link.decided.is_empty() { dd.hint { "What it did — " (link.decided) } }
                    }
                }
            }
            p.hint {
                "Best: the most throughput for the delay, throughput squared over round-trip time; beside others, the nearest to an equal share. "
                "Within a tenth counts as level. Waiting is round-trip time beyond the path’s own."
            }
        }
    }
}

fn facts(view: &View<'_>) -> Markup {
    let (plan, host) = (&view.results.header.plan, &view.results.header.host);
    let seconds = |ms: u64| ms as f64 / 1e3;
    let length = match plan.warmup_ms {
        0 => format!("{} s each", seconds(plan.duration_ms)),
        warmup => format!("{} s each, the first {} s left out", seconds(plan.duration_ms), seconds(warmup)),
    };
    let runs = format!(
        "{} of {} planned{}",
        view.done(),
        view.planned(),
        match view.failed.len() {
            0 => String::new(),
            1 => ", 1 attempt failed".into(),
            n => format!(", {n} attempts failed"),
        }
    );
    let facts = [
        ("Runs", runs.as_str()),
        ("Length", &length),
        ("Kernel", &host.kernel),
        ("Processors", &host.processors),
        ("ccplane", &[host.version.as_str(), &host.git_commit].join(" ")),
        ("Started", &host.started_at),
    ];
    html! {
        dl.facts {
            @for (name, value) in facts.into_iter().filter(|(_, value)| !value.trim().is_empty()) {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn in_short(view: &View<'_>) -> Markup {
    let verdicts = verdicts(view);
    let paper = &view.results.header.plan.paper;
    let count = |f: fn(&LimitVerdict) -> bool| verdicts.iter().filter(|v| f(&v.outcome)).count();
    let (met, missed) = (
        count(|o| matches!(o, LimitVerdict::Met { .. })),
        count(|o| matches!(o, LimitVerdict::Missed { .. } | LimitVerdict::NeverReached)),
    );
    html! {
        @if !verdicts.is_empty() || !paper.is_empty() || view.done() < view.planned() {
            section {
                h2 { "In short" }
                @if view.done() < view.planned() {
                    p.warning { (format::count(view.planned().saturating_sub(view.done()))) " of " (format::count(view.planned()))
                        " planned runs are missing: see " a href="#runs" { "Runs" } "." }
                }
                @if !verdicts.is_empty() {
                    @if met + missed > 0 { p.hint { (met) " of " (met + missed) " limits met. Ratios are over paired repeats; a verdict is unsure where the interval crosses the limit." } }
                    @match matrix::matrix(view, &verdicts) {
                        Some(matrix) => {
                            (matrix)
                            details { summary { "Each with its interval" } (tables::verdicts(view, &verdicts)) }
                        }
                        None => (tables::verdicts(view, &verdicts)),
                    }
                }
                @if !paper.is_empty() {
                    dl.paper {
                        @for figure in paper { div { dt { (figure.source) } dd { (figure.says) } } }
                    }
                }
            }
        }
    }
}

fn sweep_section(view: &View<'_>, sweep: &Sweep, drawing: &mut Drawing) -> Markup {
    if let ([scenario], true) = (&sweep.scenarios[..], sweep.keys.is_empty()) {
        return scenario_section(view, *scenario, drawing);
    }
    let keys = sweep.keys.join(" and ");
    let metrics = sweep::figures(view, sweep);
    let charts: Vec<Figure> = metrics.into_iter().flat_map(|(_, figures)| figures).collect();
    html! {
        section {
            h2 { "Over " (keys) }
            p.hint { "Means over runs; bands are 95 % confidence intervals." }
            (drawing.grid("grid", charts))
        }
        section {
            h2 { "Each point of the sweep" }
            @for index in &sweep.scenarios {
                @let scenario = &view.scenarios()[*index];
                details.point {
                    summary { (scenario.name) " " span.unit { (done(view, *index)) } }
                    (scenario_content(view, *index, drawing))
                }
            }
        }
    }
}

fn done(view: &View<'_>, scenario: usize) -> String {
    let planned = u64::from(view.results.header.plan.repeats) * view.contenders().len() as u64;
    format!("{} of {planned} runs", view.all_runs(scenario).count())
}

fn scenario_section(view: &View<'_>, index: usize, drawing: &mut Drawing) -> Markup {
    html! {
        section { h2 { (view.scenarios()[index].name) } (scenario_content(view, index, drawing)) }
    }
}

fn scenario_content(view: &View<'_>, index: usize, drawing: &mut Drawing) -> Markup {
    let scenario = &view.scenarios()[index];
    let mut slug = slug(&scenario.name);
    if slug.is_empty() {
        slug = format!("scenario-{}", index + 1);
    }
    let charts = Charts::new(view, index, &slug);
    let what: Vec<&str> = [&scenario.link.description, &scenario.traffic]
        .into_iter()
        .filter(|t| !t.is_empty())
        .map(String::as_str)
        .collect();
    if view.all_runs(index).next().is_none() {
        return html! { p.hint { (what.join(" · ")) } p.empty { "No run has ended well." } };
    }
    if !drawing.drawn {
        return html! {
            p.hint { (what.join(" · ")) }
            (tables::summary(view, &summary(view, index)))
            @if let Some(table) = tables::stretches(view, index) { (table) }
            @if charts.has_several_flows() { (tables::fairness(view, index)) }
            @if let Some(table) = tables::completions(view, index, &charts) { (table) }
            (notes(view, index))
        };
    }
    let by_family = !view.families.is_empty();
    let (over_time, windows) =
        if by_family { (charts.families(), None) } else { (charts.over_time(), charts.windows()) };
    let rtts = charts.rtts().filter(|_| !by_family);
    let delays: Vec<Figure> = charts.scatter().into_iter().chain(rtts).collect();
    html! {
        p.hint { (what.join(" · ")) }
        (tables::summary(view, &summary(view, index)))
        (drawing.grid("grid", delays))
        @if !over_time.is_empty() {
            h3.part { @if by_family { "Each algorithm over time, on its datapaths" } @else { "Over time" } }
            p.hint {
                "The run of median throughput"
                @if !by_family { ", the other repeats pale" }
                ". All share their axes."
                @if view.results.header.plan.warmup_ms > 0 { " Dotted: the warm-up’s end; what is above an axis before it is cut." }
                @if !scenario.link.changes.is_empty() { " Dotted, too: changes of the link." }
            }
            (drawing.grid("columns", over_time))
            (drawing.wide(windows))
        }
        @if let Some(table) = tables::stretches(view, index) {
            h3.part { "Between the link’s changes" }
            p.hint {
                "Reward: share of the capacity used, times the base RTT’s share of the RTT to the power of 0.4, both RTTs 2 ms longer; "
                "in percent of an oracle’s, which fills the link without a queue. There after: when 90 % of that are reached and held for a second; "
                "median over the runs that got there, and how many did."
            }
            (table)
        }
        @if charts.has_several_flows() { (several_flows(view, index, &charts, drawing)) }
        @if let Some(table) = tables::completions(view, index, &charts) {
            h3.part { "Completion times of short flows" }
            p.hint { "Percentiles over the flows of all repeats; ratios over paired repeats, with 95 % intervals, to the kernel’s own algorithm of the same name where there is one, else to the first (of its algorithm, where each runs on several datapaths)." }
            (table)
            (drawing.grid("columns", charts.completions()))
        }
        @if let Some(table) = tables::processor(view, index) {
            h3.part { "Processor time and the agent" }
            p.hint { "Of the whole machine, idle time not counted, per gigabyte of payload acknowledged. Ratios are to the kernel’s own algorithm of the same name where there is one, else to the first (of its algorithm, where each runs on several datapaths)." }
            (table)
        }
        (notes(view, index))
    }
}

fn several_flows(view: &View<'_>, index: usize, charts: &Charts<'_>, drawing: &mut Drawing) -> Markup {
    html! {
        h3.part { "Several flows" }
        p.hint {
            "Converged: each flow’s throughput, over " (BIN_MS as f64 / 1e3) " s, stays within ±" (BAND * 100.0)
            " % of the flows’ mean for " (HOLD_MS / 1_000) " s, background flows among them; counted from the last flow’s start (PCC, NSDI’15). Jain’s index is of the contender’s own."
        }
        (tables::fairness(view, index))
        (drawing.grid("columns", charts.flows()))
    }
}

fn notes(view: &View<'_>, scenario: usize) -> Markup {
    let mut notes: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    for (contender, run) in view.all_runs(scenario) {
        run.measured.notes.iter().for_each(|n| *notes.entry((contender, n)).or_default() += 1);
    }
    html! {
        @if !notes.is_empty() {
            h3.part { "Notes" }
            ul.notes {
                @for ((contender, note), runs) in notes {
                    li { b { (view.contenders()[contender].name) } ", " (runs) @if runs == 1 { " run: " } @else { " runs: " } (note) }
                }
            }
        }
    }
}

fn paste(view: &View<'_>) -> Markup {
    let filled = |s: &Summary| !s.columns.is_empty();
    let summaries: Vec<Summary> =
        (0..view.scenarios().len()).map(|s| summary(view, s)).filter(filled).collect();
    let joined = |f: fn(&Summary) -> String| summaries.iter().map(f).collect::<Vec<_>>().join("\n");
    html! {
        @if !summaries.is_empty() {
            section {
                h2 { "To paste" }
                p.hint { "Mean ± 95 % confidence interval over runs (Student’s t)." }
                @for (title, text) in [("Markdown", joined(markdown)), ("LaTeX (booktabs)", joined(latex))] {
                    details { summary { (title) } pre.paste tabindex="0" { code { (text) } } }
                }
            }
        }
    }
}

fn runs(view: &View<'_>) -> Markup {
    html! {
        section id="runs" {
            h2 { "Runs" }
            p.hint {
                (format::count(view.done())) " of " (format::count(view.planned())) " planned runs ended well: "
                (view.scenarios().len()) " × " (view.contenders().len()) " × " (view.results.header.plan.repeats)
                " (scenarios × contenders × repeats)."
                @if view.failed.is_empty() { " None failed." }
            }
            @if !view.failed.is_empty() { h3.part { "Failed" } (tables::failures(view)) }
            @if view.done() < view.planned() { h3.part { "Missing" } (tables::missing(view)) }
            @if !view.unknown.is_empty() {
                p.warning { (view.unknown.len()) " runs in the file are of no scenario or contender of the plan and are not shown." }
            }
        }
    }
}

fn footer(view: &View<'_>, name: &str, drawn: bool) -> Markup {
    let header = &view.results.header;
    let host = &header.host;
    let kernel = header.contenders.iter().any(|c| c.datapath == Datapath::Kernel);
    html! {
        footer {
            div {
                h2 { "How to read this" }
                p { b { "Intervals" } " are 95 % confidence intervals over runs: of means by Student’s t, of ratios over pairs of runs with the same seed, of percentiles of completion times by leaving out one run at a time. One run has none." }
                p { b { "Throughput" } " is payload acknowledged after the warm-up, all of a contender’s flows together; headers keep a full link at about 96 % of its capacity. " b { "Jain’s index" } " counts the time in which all flows run." }
                p { b { "Round-trip times" } " over time are the smoothed estimate of the sender’s stack. Time series add a contender’s flows: throughputs and windows are summed, RTTs averaged." }
                @if kernel { p { b { "Broad pale lines" } " are the kernel’s own algorithms, " b { "thin lines" } " ours." } }
            }
            div {
                h2 { "Reproduce" }
                @if !host.command.is_empty() { pre { code { (host.command) } } }
                p { "Seed " (header.plan.seed) ", plan digest " code { (header.plan.digest.get(..16).unwrap_or(&header.plan.digest)) } "." }
                @if !host.sysctls.is_empty() {
                    details { summary { "Sysctls" } pre { code { @for (key, value) in &host.sysctls { (key) " = " (value) "\n" } } } }
                }
                @if !header.plan.source.is_empty() {
                    details { summary { "The plan" } pre { code { (header.plan.source) } } }
                }
                p {
                    "Figures: " a href=(format!("{}.csv", url(name))) { "runs and flows" }
                    @if drawn {
                        ", " a href=(format!("{}-series.csv", url(name))) { "series" } ", "
                        a href=(format!("{}-fct.csv", url(name))) { "completion times" }
                    }
                    "."
                }
            }
        }
    }
}

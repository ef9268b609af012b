//! The charts of one scenario.

use ccplane_results::Scenario;

use super::figures::{SizeClass, own_flows};
use super::series::{
    Moment, bandwidth_delay_steps, base_rtts_us, capacity_steps, flow_moments, mean_base_rtt_us,
    mean_capacity_bps, moments, rtts_us,
};
use super::view::View;
use crate::draw::{
    Axis, Entry, Figure, Mark, Panel, Readout, ReadoutSeries, Scale, Shape, Style, Weight, thinned,
};
use crate::format;
use crate::statistics::{Ellipse, distribution};

/// A line that stands out has at most this many points, one of several pale ones fewer: pages stay small.
const LINE_POINTS: usize = 600;
const FAINT_POINTS: usize = 240;
/// Steps of a distribution function.
const DISTRIBUTION_POINTS: usize = 250;
/// Lines in a chart of flows; the rest is left out, and the caption says so.
const FLOW_LINES: usize = 12;
/// A range of delays wider than this has a logarithmic axis.
const LOGARITHMIC_RANGE: f64 = 12.0;
/// The least part of the largest throughput that a scatter's axis spans, so that differences of a few per cent look small.
const LEAST_SPAN: f64 = 0.3;

/// The results and names that all charts of a scenario use.
pub struct Charts<'a> {
    view: &'a View<'a>,
    index: usize,
    scenario: &'a Scenario,
    /// The first part of the charts' file names.
    slug: &'a str,
    end_ms: u64,
}

/// A contender, and one of its runs over time.
type Timeline = (usize, Vec<Moment>);

/// The quantity of a panel over time.
struct Column {
    title: &'static str,
    unit: &'static str,
    area: &'static str,
    scale: f64,
    value: fn(&Moment) -> Option<u64>,
}

const COLUMNS: [Column; 3] = [
    Column {
        title: "Throughput",
        unit: "Mb/s",
        area: "link capacity",
        scale: 1e6,
        value: |m| Some(m.throughput_bps),
    },
    Column {
        title: "Round-trip time",
        unit: "ms",
        area: "without queue",
        scale: 1e3,
        value: |m| (m.srtt_us > 0).then_some(m.srtt_us),
    },
    Column {
        title: "Window",
        unit: "packets",
        area: "bandwidth × delay",
        scale: 1.0,
        value: |m| Some(m.cwnd_pkts),
    },
];

impl<'a> Charts<'a> {
    /// For the scenario of index `index`, whose files' names start with `slug`.
    pub fn new(view: &'a View<'a>, index: usize, slug: &'a str) -> Self {
        let longest = view
            .all_runs(index)
            .flat_map(|(_, r)| &r.measured.flows)
            .filter_map(|f| f.series.t_ms.last().copied())
            .max();
        let end_ms = view.results.header.plan.duration_ms.max(longest.unwrap_or(0)).max(1);
        Self { view, index, scenario: &view.scenarios()[index], slug, end_ms }
    }

    /// Contenders with runs in this scenario.
    fn contenders(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.view.contenders().len()).filter(|c| !self.view.runs(self.index, *c).is_empty())
    }

    fn name(&self, contender: usize) -> &'a str {
        &self.view.contenders()[contender].name
    }

    fn entry(&self, contender: usize, marker: bool) -> Entry {
        Entry {
            series: contender,
            name: self.name(contender).into(),
            style: self.view.styles[contender],
            marker: marker.then(|| self.view.marker(contender)),
        }
    }

    fn figure(&self, what: &str, title: &str, shape: Shape, panels: Vec<Panel>) -> Figure {
        Figure {
            name: format!("{}-{what}", self.slug),
            title: title.into(),
            subtitle: self.scenario.name.clone(),
            shape,
            panels,
            ..Figure::default()
        }
    }

    /// Throughput against delay: a point for each run, their mean, their ellipse.
    pub fn scatter(&self) -> Option<Figure> {
        let clouds: Vec<(usize, Vec<(f64, f64)>)> = self
            .contenders()
            .map(|c| {
                (
                    c,
                    self.view
                        .runs(self.index, c)
                        .iter()
                        .filter_map(|r| point(self.view, r.measured))
                        .collect::<Vec<_>>(),
                )
            })
            .filter(|(_, points)| !points.is_empty())
            .collect();
        if clouds.is_empty() {
            return None;
        }
        let ellipses: Vec<(usize, Ellipse)> =
            clouds.iter().filter_map(|(c, points)| Some((*c, Ellipse::of(points)?))).collect();
        let ideal = self.ideal();
        let shown = clouds.iter().flat_map(|(_, p)| p.iter().copied());
        let outlines = ellipses.iter().flat_map(|(_, e)| e.outline());
        let (x, y) = scatter_axes(&shown.chain(outlines).chain(ideal).collect::<Vec<_>>());
        let mut x = Scale::new(x, "Mean round-trip time", "ms");
        x.reversed = true;
        let mut panel = Panel::new(x, Scale::new(y, "Throughput", "Mb/s"));
        panel.remark = "better: up and right".into();
        panel.marks.extend(ellipses.iter().map(|(c, e)| Mark::Outline {
            series: *c,
            style: self.view.styles[*c],
            points: e.outline(),
        }));
        let best = "The link full, its queue empty".to_owned();
        panel.marks.extend(ideal.map(|at| Mark::Ideal { at, label: best }));
        for (c, points) in &clouds {
            panel.marks.extend(points.iter().map(|at| self.dot(*c, *at, Weight::Faint, "one run")));
        }
        for (c, points) in &clouds {
            let mean = |f: fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / points.len() as f64;
            panel.marks.push(self.dot(*c, (mean(|p| p.0), mean(|p| p.1)), Weight::Full, "mean over runs"));
        }
        let mut figure = self.figure("scatter", "Throughput against delay", Shape::Scatter, vec![panel]);
        figure.entries = clouds.iter().map(|(c, _)| self.entry(*c, true)).collect();
        figure.caption = format!(
            "Small: one run each; large: their mean. Ellipse: one standard deviation over runs, from three runs on.{}",
            if ideal.is_some() { " ✛: full link, empty queue." } else { "" }
        );
        Some(figure)
    }

    fn dot(&self, contender: usize, at: (f64, f64), weight: Weight, what: &str) -> Mark {
        let number = |v| format::number(Some(v));
        Mark::Point {
            series: contender,
            style: self.view.styles[contender],
            marker: self.view.marker(contender),
            at,
            label: format!("{}, {what}: {} Mb/s, {} ms", self.name(contender), number(at.1), number(at.0)),
            weight,
        }
    }

    /// A full link without a queue: (ms, Mb/s); their means over time where it changes.
    fn ideal(&self) -> Option<(f64, f64)> {
        let plan = &self.view.results.header.plan;
        let bps = mean_capacity_bps(&self.scenario.link, plan.warmup_ms, self.end_ms)?;
        let rtt_us = mean_base_rtt_us(&self.scenario.link, plan.warmup_ms, self.end_ms)?;
        Some((rtt_us / 1e3, bps / 1e6))
    }

    /// For each contender throughput, RTT and window over time, on axes that all share.
    pub fn over_time(&self) -> Vec<Figure> {
        let sample_ms = self.view.results.header.plan.sample_ms;
        let runs: Vec<(usize, u32, Vec<Moment>)> = self
            .view
            .all_runs(self.index)
            .map(|(c, r)| (c, r.repeat, moments(r.measured, sample_ms)))
            .filter(|(_, _, m)| !m.is_empty())
            .collect();
        let panels: Vec<Panel> =
            (0..COLUMNS.len()).map(|i| self.time_panel(i, runs.iter().map(|r| &r.2))).collect();
        let mut figures = Vec::new();
        for c in self.contenders() {
            let own: Vec<_> = runs.iter().filter(|r| r.0 == c).collect();
            let Some(bold) = self.view.representative(self.index, c).map(|r| r.repeat) else { continue };
            if own.is_empty() {
                continue;
            }
            let panels = COLUMNS.iter().zip(&panels).map(|(column, panel)| {
                let mut panel = panel.clone();
                let mut line = |moments: &[Moment], weight, limit| {
                    let points = thinned(points(column, moments), limit);
                    panel.marks.push(Mark::Line { series: c, style: self.bold(c), weight, points });
                };
                for (_, _, moments) in own.iter().filter(|r| r.1 != bold) {
                    line(moments, Weight::Faint, FAINT_POINTS);
                }
                for (_, _, moments) in own.iter().filter(|r| r.1 == bold) {
                    line(moments, Weight::Full, LINE_POINTS);
                }
                panel
            });
            let what = format!("over-time-{}", slug(self.name(c)));
            let mut figure = self.figure(&what, self.name(c), Shape::Time, panels.collect());
            let main = own.iter().find(|r| r.1 == bold).map(|r| &r.2);
            figure.readout = main.map(|m| self.readout(&COLUMNS, &[(c, m)]));
            figures.push(figure);
        }
        figures
    }

    /// A contender's line where it is alone: solid.
    fn bold(&self, contender: usize) -> Style {
        Style::line(self.view.styles[contender].colour, 0)
    }

    /// An empty panel over time with its area, wide enough for all `runs`.
    fn time_panel<'m>(&self, column: usize, runs: impl Iterator<Item = &'m Vec<Moment>>) -> Panel {
        let Column { title, unit, area, scale, value } = &COLUMNS[column];
        let link = &self.scenario.link;
        let capacity = || capacity_steps(link, self.end_ms).into_iter();
        let steps: Vec<(f64, f64)> = match column {
            0 => capacity().map(|(t, bps)| (t, bps / 1e6)).collect(),
            1 => base_rtts_us(link).into_iter().map(|(t, us)| (t as f64 / 1e3, us as f64 / 1e3)).collect(),
            _ => bandwidth_delay_steps(link, self.end_ms),
        };
        // Slow start's peak must not flatten the rest either: what comes after the warm-up decides.
        let warmup_ms = self.view.results.header.plan.warmup_ms;
        let (mut ever, mut steady) = (0, 0);
        for (t_ms, v) in runs.flatten().filter_map(|m| Some((m.t_ms, value(m)?))) {
            ever = ever.max(v);
            steady = steady.max(if t_ms >= warmup_ms { v } else { 0 });
        }
        let largest = if steady > 0 { steady } else { ever } as f64 / scale;
        // A burst of capacity must not flatten the rest: the data decides, the area may be cut.
        let edge = steps.iter().map(|s| s.1).fold(0.0, f64::max);
        let limit = if largest > 0.0 { edge.min(largest * 1.25) } else { edge };
        let mut panel = Panel::new(
            Scale::new(Axis::to(self.end_ms as f64 / 1e3), "", "s"),
            Scale::new(Axis::covering(largest.max(limit)), *title, *unit),
        );
        panel.readout_scale = *scale;
        if !steps.is_empty() {
            panel.area = (*area).into();
            panel.marks.push(Mark::Area(steps));
        }
        if warmup_ms > 0 && warmup_ms < self.end_ms {
            panel.marks.push(Mark::Rule(warmup_ms as f64 / 1e3));
        }
        panel.marks.extend(link.changes.iter().map(|c| Mark::Rule(c.t_ms as f64 / 1e3)));
        panel
    }

    fn readout(&self, columns: &[Column], lines: &[(usize, &Vec<Moment>)]) -> Readout {
        let series = lines.iter().map(|(c, moments)| {
            let step = moments.len().div_ceil(LINE_POINTS).max(1);
            let few = || moments.iter().step_by(step);
            ReadoutSeries {
                series: *c,
                t_ms: few().map(|m| m.t_ms).collect(),
                values: columns
                    .iter()
                    .map(|column| few().map(|m| (column.value)(m).unwrap_or(0)).collect())
                    .collect(),
            }
        });
        Readout { end_ms: self.end_ms, series: series.collect() }
    }

    /// The contenders' windows in one chart.
    pub fn windows(&self) -> Option<Figure> {
        let lines = self.lines(self.contenders());
        if lines.len() < 2 {
            return None;
        }
        let panel = self.time_panel(2, lines.iter().map(|l| &l.1));
        Some(self.overlaid("windows", "Congestion windows", &COLUMNS[2..], vec![panel], &lines))
    }

    /// For each algorithm throughput, RTT and window over time on every datapath, on axes that all share.
    pub fn families(&self) -> Vec<Figure> {
        let families: Vec<(&str, Vec<Timeline>)> = self
            .view
            .families
            .iter()
            .map(|f| (f.name.as_str(), self.lines(f.members.iter().copied())))
            .filter(|(_, lines)| !lines.is_empty())
            .collect();
        let all = || families.iter().flat_map(|(_, lines)| lines).map(|l| &l.1);
        let panels: Vec<Panel> = (0..COLUMNS.len()).map(|i| self.time_panel(i, all())).collect();
        let figure = |(name, lines): &(&str, Vec<Timeline>)| {
            let what = format!("family-{}", slug(name));
            self.overlaid(&what, name, &COLUMNS, panels.clone(), lines)
        };
        families.iter().map(figure).collect()
    }

    /// The run that stands for each of these contenders, over time.
    fn lines(&self, contenders: impl Iterator<Item = usize>) -> Vec<Timeline> {
        let sample_ms = self.view.results.header.plan.sample_ms;
        contenders
            .filter_map(|c| Some((c, moments(self.view.representative(self.index, c)?.measured, sample_ms))))
            .filter(|(_, moments)| !moments.is_empty())
            .collect()
    }

    /// Contenders' lines in the same panels, one for each column.
    fn overlaid(
        &self,
        what: &str,
        title: &str,
        columns: &[Column],
        mut panels: Vec<Panel>,
        lines: &[Timeline],
    ) -> Figure {
        for (column, panel) in columns.iter().zip(&mut panels) {
            panel.marks.extend(lines.iter().map(|(c, moments)| Mark::Line {
                series: *c,
                style: self.view.styles[*c],
                weight: Weight::Full,
                points: thinned(points(column, moments), LINE_POINTS),
            }));
        }
        let mut figure = self.figure(what, title, Shape::Time, panels);
        figure.entries = lines.iter().map(|(c, _)| self.entry(*c, false)).collect();
        let read: Vec<(usize, &Vec<Moment>)> = lines.iter().map(|(c, m)| (*c, m)).collect();
        figure.readout = Some(self.readout(columns, &read));
        figure
    }

    /// For each contender with several flows the flows' throughputs, of one run.
    pub fn flows(&self) -> Vec<Figure> {
        let runs: Vec<_> = self
            .contenders()
            .filter_map(|c| Some((c, self.view.representative(self.index, c)?.measured)))
            .filter(|(_, m)| m.flows.len() > 1)
            .collect();
        let all: Vec<Vec<Moment>> =
            runs.iter().flat_map(|(_, m)| m.flows.iter().map(|f| flow_moments(f).collect())).collect();
        let panel = self.time_panel(0, all.iter());
        let figure = |(c, measured): &(usize, &ccplane_results::RunFigures)| {
            let mut panel = panel.clone();
            let shown = measured.flows.iter().enumerate().take(FLOW_LINES);
            let mut figure = Figure::default();
            for (i, flow) in shown {
                let style = if flow.background.is_some() { Style::band(5, i) } else { Style::line(i, i) };
                let moments: Vec<Moment> = flow_moments(flow).collect();
                let points = thinned(points(&COLUMNS[0], &moments), LINE_POINTS);
                panel.marks.push(Mark::Line { series: i, style, weight: Weight::Full, points });
                let name = match &flow.background {
                    Some(algorithm) => format!("{} ({algorithm}, background)", flow.name),
                    None => flow.name.clone(),
                };
                figure.entries.push(Entry { series: i, name, style, marker: None });
            }
            let what = format!("flows-{}", slug(self.name(*c)));
            if measured.flows.len() > FLOW_LINES {
                figure.caption = format!("The first {FLOW_LINES} of {} flows.", measured.flows.len());
            }
            Figure {
                entries: figure.entries,
                caption: figure.caption,
                ..self.figure(&what, self.name(*c), Shape::Time, vec![panel])
            }
        };
        runs.iter()
            .map(figure)
            .map(|f| Figure { subtitle: format!("each flow, {}", f.subtitle), ..f })
            .collect()
    }

    /// Distributions of the smoothed round-trip time, repeats pooled.
    pub fn rtts(&self) -> Option<Figure> {
        let warmup_ms = self.view.results.header.plan.warmup_ms;
        let samples = |c| {
            let runs = self.view.runs(self.index, c).iter();
            sorted(runs.flat_map(|r| rtts_us(r.measured, warmup_ms)).map(|us| us as f64 / 1e3))
        };
        let base = match base_rtts_us(&self.scenario.link)[..] {
            [(_, us)] => Some(us as f64 / 1e3),
            _ => None,
        };
        let mut figure = self.distributions("rtt", "Round-trip time", samples, base)?;
        figure.caption = match base {
            Some(ms) => format!(
                "Samples of the smoothed estimate after the warm-up, all repeats. Dotted: {} ms, without queue; the distance from it is queueing delay.",
                format::number(Some(ms))
            ),
            None => "Samples of the smoothed estimate after the warm-up, all repeats.".into(),
        };
        Some(figure)
    }

    /// Distributions of completion times, a chart for each class of sizes.
    pub fn completions(&self) -> Vec<Figure> {
        let figure = |class: SizeClass| {
            let what = format!("fct-{}", format!("{class:?}").to_lowercase());
            let title = format!("Completion time, {}", class.label());
            self.distributions(&what, &title, |c| self.completion_ms(c, Some(class)), None)
        };
        SizeClass::ALL.into_iter().filter_map(figure).collect()
    }

    /// Sorted completion times of all repeats, milliseconds; `None`: of every size.
    pub fn completion_ms(&self, contender: usize, class: Option<SizeClass>) -> Vec<f64> {
        let runs = self.view.runs(self.index, contender).iter();
        let flows = runs.filter_map(|r| r.measured.completions.as_ref()).flat_map(|c| &c.flows);
        let wanted = flows.filter(|c| class.is_none_or(|class| SizeClass::of(c.bytes) == class));
        sorted(wanted.map(|c| c.fct_us as f64 / 1e3))
    }

    fn distributions(
        &self,
        what: &str,
        title: &str,
        samples: impl Fn(usize) -> Vec<f64>,
        rule: Option<f64>,
    ) -> Option<Figure> {
        let lines: Vec<(usize, Vec<f64>)> =
            self.contenders().map(|c| (c, samples(c))).filter(|(_, s)| !s.is_empty()).collect();
        let ends =
            || lines.iter().flat_map(|(_, s)| s.first().into_iter().chain(s.last()).copied()).chain(rule);
        let (low, high) = (ends().fold(f64::INFINITY, f64::min), ends().fold(0.0, f64::max));
        if lines.is_empty() {
            return None;
        }
        let axis = if low > 0.0 && high / low > LOGARITHMIC_RANGE {
            Axis::logarithmic(low, high)
        } else {
            Axis::between(low, high)
        };
        let mut panel = Panel::new(
            Scale::new(axis, title, "ms"),
            Scale::new(Axis::to(1.0), "Share", "of samples at most this"),
        );
        panel.marks.extend(rule.map(Mark::Rule));
        panel.marks.extend(lines.iter().map(|(c, s)| Mark::Line {
            series: *c,
            style: self.view.styles[*c],
            weight: Weight::Full,
            points: distribution(s, DISTRIBUTION_POINTS),
        }));
        let mut figure = self.figure(&format!("{what}-cdf"), title, Shape::Curve, vec![panel]);
        figure.entries = lines.iter().map(|(c, _)| self.entry(*c, false)).collect();
        Some(figure)
    }

    /// Whether some contender shares the link: several flows of its own, or another's beside.
    pub fn has_several_flows(&self) -> bool {
        self.view
            .all_runs(self.index)
            .any(|(_, r)| own_flows(r.measured).next().is_some() && r.measured.flows.len() > 1)
    }
}

/// A run: (mean RTT in ms, throughput in Mb/s).
fn point(view: &View<'_>, measured: &ccplane_results::RunFigures) -> Option<(f64, f64)> {
    let value = |metric| view.value(metric, measured);
    Some((
        value(ccplane_results::Metric::MeanRttUs)? / 1e3,
        value(ccplane_results::Metric::ThroughputBps)? / 1e6,
    ))
}

fn scatter_axes(points: &[(f64, f64)]) -> (Axis, Axis) {
    let fold =
        |of: fn(&(f64, f64)) -> f64, start, f: fn(f64, f64) -> f64| points.iter().map(of).fold(start, f);
    let (left, right) = (fold(|p| p.0, f64::INFINITY, f64::min), fold(|p| p.0, 0.0, f64::max));
    let top = fold(|p| p.1, 0.0, f64::max) * 1.02;
    let bottom = fold(|p| p.1, top * (1.0 - LEAST_SPAN), f64::min).max(0.0);
    let x = if left > 0.0 && right / left > LOGARITHMIC_RANGE {
        Axis::logarithmic(left * 0.98, right * 1.02)
    } else {
        Axis::between(left * 0.98, right * 1.02)
    };
    (x, Axis::between(bottom, top))
}

fn points(column: &Column, moments: &[Moment]) -> Vec<(f64, f64)> {
    let point = |m: &Moment| Some((m.t_ms as f64 / 1e3, (column.value)(m)? as f64 / column.scale));
    moments.iter().filter_map(point).collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// A name as part of a file's name: lower case letters, digits and hyphens.
pub fn slug(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
        if out.len() >= MAX_SLUG_BYTES {
            break;
        }
    }
    out.trim_end_matches('-').to_owned()
}

const MAX_SLUG_BYTES: usize = 60;

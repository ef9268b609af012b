//! Charts over time: for each algorithm a column of panels that share their time axis.
//!
//! Lines are SVG stretched to the panel's width with strokes kept at their size; labels are HTML placed by
//! percentages, so that text stays readable on a phone. No layout needs a script.

use maud::{Markup, PreEscaped, html};
use serde::Serialize;

use crate::axis::Axis;
use crate::format;
use crate::model::{Report, Sample};
use crate::stats::end_ms;
use crate::style::Group;

/// Width and height of the SVG coordinate system; coordinates are whole numbers.
const WIDTH: f64 = 10_000.0;
const HEIGHT: f64 = 1_000.0;
/// A line has at most this many points; beyond, pairs of extremes stand for runs of samples.
const MAX_POINTS: usize = 1_600;

/// What a panel shows.
struct Metric {
    title: &'static str,
    unit: &'static str,
    /// What the shaded area is.
    area: &'static str,
    /// The unit in the data's units.
    scale: f64,
    /// `None` where a sample has no value.
    value: fn(&Sample) -> Option<u64>,
}

const METRICS: [Metric; 3] = [
    Metric {
        title: "Throughput",
        unit: "Mb/s",
        area: "link capacity",
        scale: 1e6,
        value: |s| Some(s.throughput_bps),
    },
    Metric {
        title: "Round-trip time",
        unit: "ms",
        area: "without queue",
        scale: 1e3,
        value: |s| (s.srtt_us > 0).then_some(s.srtt_us),
    },
    Metric {
        title: "Congestion window",
        unit: "packets",
        area: "bandwidth × delay",
        scale: 1.0,
        value: |s| Some(s.cwnd_pkts),
    },
];

/// A metric with what all columns share of it.
struct Panel {
    metric: &'static Metric,
    axis: Axis,
    /// The shaded area's upper edge: from when (ms), value in the metric's unit.
    area: Vec<(u64, f64)>,
}

/// The axes that all columns share, so that columns can be compared by eye.
pub struct TimeCharts<'a> {
    report: &'a Report,
    end_ms: u64,
    panels: Vec<Panel>,
}

impl<'a> TimeCharts<'a> {
    /// Fits the axes to all flows of the report.
    pub fn new(report: &'a Report) -> Self {
        let panels = METRICS
            .iter()
            .enumerate()
            .map(|(i, metric)| {
                let area = match i {
                    0 => capacity(report),
                    1 => base_rtt(report),
                    _ => bandwidth_delay(report),
                };
                let values = report.flows.iter().flat_map(|f| &f.samples).filter_map(metric.value);
                let largest = values.max().unwrap_or(0) as f64 / metric.scale;
                // A burst of capacity or window must not flatten the rest: the data decides, the area may be cut.
                let edge = area.iter().map(|(_, v)| *v).fold(0.0, f64::max);
                let limit = if largest > 0.0 { edge.min(largest * 1.25) } else { edge };
                Panel { metric, axis: Axis::covering(largest.max(limit)), area }
            })
            .collect();
        Self { report, end_ms: end_ms(report), panels }
    }

    /// One column: a figure.
    pub fn figure(&self, group: &Group<'_>) -> Markup {
        html! {
            figure.time data-end=(self.end_ms) {
                figcaption {
                    h3 { (format::capitalised(group.algorithm)) }
                    (legend(group))
                }
                @if group.flows.iter().all(|(_, flow, _)| flow.samples.is_empty()) {
                    p.empty { "No samples were taken." }
                } @else {
                    (self.phase_labels())
                    @for (i, panel) in self.panels.iter().enumerate() {
                        (self.panel(group, panel, i + 1 == self.panels.len()))
                    }
                    script type="application/json" { (PreEscaped(self.series(group))) }
                }
            }
        }
    }

    fn phase_labels(&self) -> Markup {
        html! {
            div.phases {
                @for phase in &self.report.phases {
                    span style=(format!("left:{}%;width:{}%", self.percent(phase.t0_ms),
                        self.percent(phase.t1_ms.saturating_sub(phase.t0_ms)))) { (phase.label) }
                }
            }
        }
    }

    fn panel(&self, group: &Group<'_>, panel: &Panel, last: bool) -> Markup {
        let Panel { metric, axis, area } = panel;
        let time = Axis::to(self.end_ms as f64 / 1e3);
        let ticks: Vec<f64> = time.ticks().collect();
        let description = format!(
            "{} of {} flows over time, {}",
            metric.title,
            format::capitalised(group.algorithm),
            metric.unit
        );
        html! {
            div.panel data-scale=(metric.scale) {
                div.head {
                    strong { (metric.title) } " " span.unit { (metric.unit) }
                    @if !area.is_empty() { span.key { i {} (metric.area) } }
                    output {}
                }
                div.plot {
                    svg role="img" aria-label=(description) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" {
                        @if !area.is_empty() { path.area d=(self.area_path(panel)) {} }
                        @for y in axis.ticks().skip(1) {
                            path.grid d=(format!("M0 {}H{WIDTH}", y_at(*axis, y))) {}
                        }
                        @for phase in self.report.phases.iter().skip(1) {
                            path.phase d=(format!("M{} 0V{HEIGHT}", self.x_at(phase.t0_ms))) {}
                        }
                        path.zero d=(format!("M0 {HEIGHT}H{WIDTH}")) {}
                        @for (i, flow, style) in &group.flows {
                            path.line data-flow=(i) d=(self.line_path(panel, &flow.samples)) stroke=(style.colour)
                                stroke-dasharray=(style.dash) stroke-width=(style.width) stroke-opacity=(style.opacity) {}
                        }
                    }
                    @for y in axis.ticks() {
                        span.y style=(format!("bottom:{:.2}%", axis.at(y) * 100.0)) { (format::tick(y, axis.step)) }
                    }
                    @if last {
                        @for (i, t) in ticks.iter().enumerate() {
                            span.x style=(format!("left:{:.2}%", time.at(*t) * 100.0)) {
                                (format::tick(*t, time.step)) @if i + 1 == ticks.len() { " s" }
                            }
                        }
                    }
                    div.cross {}
                }
            }
        }
    }

    /// What the crosshair reads: times and values of each flow, as drawn. Numbers only.
    fn series(&self, group: &Group<'_>) -> String {
        #[derive(Serialize)]
        struct Series {
            flow: usize,
            t_ms: Vec<u64>,
            values: Vec<Vec<u64>>,
        }
        let series: Vec<Series> = group
            .flows
            .iter()
            .map(|(flow, f, _)| {
                let samples: Vec<&Sample> =
                    f.samples.iter().step_by(f.samples.len().div_ceil(MAX_POINTS).max(1)).collect();
                Series {
                    flow: *flow,
                    t_ms: samples.iter().map(|s| s.t_ms).collect(),
                    values: METRICS
                        .iter()
                        .map(|m| samples.iter().map(|s| (m.value)(s).unwrap_or(0)).collect())
                        .collect(),
                }
            })
            .collect();
        serde_json::to_string(&series).unwrap_or_default()
    }

    fn line_path(&self, panel: &Panel, samples: &[Sample]) -> String {
        let points: Vec<(u64, u64)> =
            samples.iter().filter_map(|s| Some((s.t_ms, (panel.metric.value)(s)?))).collect();
        let points = thinned(points);
        let mut d = String::with_capacity(points.len() * 10);
        for (i, (t_ms, value)) in points.iter().enumerate() {
            let y = y_at(panel.axis, *value as f64 / panel.metric.scale);
            d.push_str(&format!("{}{} {y}", if i == 0 { 'M' } else { 'L' }, self.x_at(*t_ms)));
        }
        if points.len() == 1 {
            // With round line caps, a segment without length is a dot.
            d.push_str("h0");
        }
        d
    }

    fn area_path(&self, panel: &Panel) -> String {
        let Some((first_ms, _)) = panel.area.first() else { return String::new() };
        let mut d = format!("M{} {HEIGHT}", self.x_at(*first_ms));
        for (t_ms, value) in &panel.area {
            d.push_str(&format!("H{}V{}", self.x_at(*t_ms), y_at(panel.axis, *value)));
        }
        d.push_str(&format!("H{WIDTH}V{HEIGHT}Z"));
        d
    }

    fn x_at(&self, t_ms: u64) -> u64 {
        (t_ms.min(self.end_ms) as f64 / self.end_ms as f64 * WIDTH).round() as u64
    }

    fn percent(&self, t_ms: u64) -> String {
        format!("{:.2}", t_ms.min(self.end_ms) as f64 / self.end_ms as f64 * 100.0)
    }
}

/// The flows' names as switches.
fn legend(group: &Group<'_>) -> Markup {
    html! {
        div.legend {
            @for (i, flow, style) in &group.flows {
                button type="button" data-flow=(i) aria-pressed="true" title=(format!("Show or hide {}", flow.name)) {
                    svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true" {
                        path d="M1 5H29" stroke=(style.colour) stroke-dasharray=(style.dash) stroke-width=(style.width) stroke-opacity=(style.opacity) {}
                    }
                    (flow.datapath.label())
                }
            }
        }
    }
}

fn y_at(axis: Axis, value: f64) -> u64 {
    (HEIGHT - axis.at(value) * HEIGHT).round() as u64
}

fn capacity(report: &Report) -> Vec<(u64, f64)> {
    report.link.capacity.iter().map(|c| (c.t_ms, c.capacity_bps as f64 / 1e6)).collect()
}

fn base_rtt(report: &Report) -> Vec<(u64, f64)> {
    report.link.base_rtt_us.map(|rtt| (0, rtt as f64 / 1e3)).into_iter().collect()
}

/// The window that fills the link without a queue, packets.
fn bandwidth_delay(report: &Report) -> Vec<(u64, f64)> {
    let Some(rtt_us) = report.link.base_rtt_us.filter(|_| report.link.mtu_bytes > 0) else {
        return Vec::new();
    };
    let bits = report.link.mtu_bytes as f64 * 8.0;
    report
        .link
        .capacity
        .iter()
        .map(|c| (c.t_ms, c.capacity_bps as f64 * rtt_us as f64 / 1e6 / bits))
        .collect()
}

/// At most [`MAX_POINTS`] points: of each run of samples the smallest and the largest, in order of time.
fn thinned(points: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if points.len() <= MAX_POINTS {
        return points;
    }
    let run = points.len().div_ceil(MAX_POINTS / 2);
    points
        .chunks(run)
        .flat_map(|chunk| {
            let low = chunk.iter().min_by_key(|p| p.1).copied();
            let high = chunk.iter().max_by_key(|p| p.1).copied();
            if low.map(|p| p.0) <= high.map(|p| p.0) { [low, high] } else { [high, low] }
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_extremes_order_and_bound() {
        let points: Vec<(u64, u64)> =
            (0..100_000).map(|t| (t, if t == 54_321 { 9_999 } else { t % 100 })).collect();
        let thin = thinned(points);
        assert!(thin.len() <= MAX_POINTS);
        assert!(thin.contains(&(54_321, 9_999)));
        assert!(thin.is_sorted_by_key(|p| p.0));
    }
}

//! Charts over time: for each algorithm a column of panels that share their time axis.

use super::model::{Report, Sample};
use super::style::Group;
use super::window::end_ms;
use crate::draw::{
    Axis, Entry, Figure, MAX_POINTS, Mark, Panel, Readout, ReadoutSeries, Scale, Shape, Span, Weight, thinned,
};
use crate::format;

/// What a panel shows.
pub struct Metric {
    title: &'static str,
    unit: &'static str,
    /// What the shaded area is.
    area: &'static str,
    /// The unit in the data's units.
    pub scale: f64,
    /// `None` where a sample has no value.
    pub value: fn(&Sample) -> Option<u64>,
}

/// Throughput, round-trip time, window.
pub const METRICS: [Metric; 3] = [
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

/// The axes that all columns share, so that columns can be compared by eye.
pub struct TimeCharts<'a> {
    report: &'a Report,
    end_ms: u64,
    /// Without lines.
    panels: Vec<Panel>,
}

impl<'a> TimeCharts<'a> {
    /// Fits the axes to all flows of the report.
    pub fn new(report: &'a Report) -> Self {
        let end_ms = end_ms(report);
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
                panel(
                    metric,
                    area,
                    largest,
                    end_ms,
                    &report.phases.iter().map(|p| p.t0_ms).collect::<Vec<_>>(),
                )
            })
            .collect();
        Self { report, end_ms, panels }
    }

    /// One column: a figure. `None` if none of its flows has samples.
    pub fn figure(&self, group: &Group<'_>) -> Option<Figure> {
        if group.flows.iter().all(|(_, flow, _)| flow.samples.is_empty()) {
            return None;
        }
        let panels = METRICS.iter().zip(&self.panels).map(|(metric, panel)| {
            let lines = group.flows.iter().map(|(i, flow, style)| Mark::Line {
                series: *i,
                style: *style,
                weight: Weight::Full,
                points: line(metric, &flow.samples),
            });
            Panel { marks: panel.marks.iter().cloned().chain(lines).collect(), ..panel.clone() }
        });
        let entries = group.flows.iter().map(|(i, flow, style)| Entry {
            series: *i,
            name: flow.datapath.label().into(),
            style: *style,
            marker: None,
        });
        let spans = self.report.phases.iter().map(|phase| Span {
            from: phase.t0_ms as f64 / 1e3,
            to: phase.t1_ms as f64 / 1e3,
            label: phase.label.clone(),
        });
        Some(Figure {
            title: format::capitalised(group.algorithm),
            shape: Shape::Time,
            entries: entries.collect(),
            spans: spans.collect(),
            panels: panels.collect(),
            readout: Some(Readout { end_ms: self.end_ms, series: readout(group) }),
            ..Figure::default()
        })
    }
}

/// A panel with its area and phases. A burst of capacity or window must not flatten the rest: the data decides, the area may
/// be cut.
pub fn panel(metric: &Metric, area: Vec<(u64, f64)>, largest: f64, end_ms: u64, phases_ms: &[u64]) -> Panel {
    let edge = area.iter().map(|(_, v)| *v).fold(0.0, f64::max);
    let limit = if largest > 0.0 { edge.min(largest * 1.25) } else { edge };
    let mut panel = Panel::new(
        Scale::new(Axis::to(end_ms as f64 / 1e3), "", "s"),
        Scale::new(Axis::covering(largest.max(limit)), metric.title, metric.unit),
    );
    panel.readout_scale = metric.scale;
    if !area.is_empty() {
        panel.area = metric.area.into();
        panel.marks.push(Mark::Area(area.into_iter().map(|(t, v)| (t as f64 / 1e3, v)).collect()));
    }
    panel.marks.extend(phases_ms.iter().skip(1).map(|t| Mark::Rule(*t as f64 / 1e3)));
    panel
}

/// A flow's line.
pub fn line(metric: &Metric, samples: &[Sample]) -> Vec<(f64, f64)> {
    let point = |s: &Sample| Some((s.t_ms as f64 / 1e3, (metric.value)(s)? as f64 / metric.scale));
    thinned(samples.iter().filter_map(point).collect(), MAX_POINTS)
}

fn readout(group: &Group<'_>) -> Vec<ReadoutSeries> {
    group.flows.iter().map(|(index, flow, _)| read(*index, &flow.samples, &METRICS)).collect()
}

/// What the crosshair reads of a flow.
pub fn read(series: usize, samples: &[Sample], metrics: &[Metric]) -> ReadoutSeries {
    let step = samples.len().div_ceil(MAX_POINTS).max(1);
    let samples = || samples.iter().step_by(step);
    ReadoutSeries {
        series,
        t_ms: samples().map(|s| s.t_ms).collect(),
        values: metrics.iter().map(|m| samples().map(|s| (m.value)(s).unwrap_or(0)).collect()).collect(),
    }
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

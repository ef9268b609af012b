//! Throughput against round-trip time, one chart a phase: up and right is better.

use maud::{Markup, html};

use super::model::{Flow, Report};
use super::style::Group;
use super::window::{Summary, Window, capacity_bits, end_ms, summary};
use crate::draw::html::glyph;
use crate::draw::{Axis, Figure, Mark, Marker, Panel, Scale, Shape, Style, Weight, html as on_page};
use crate::format;

struct Point<'a> {
    index: usize,
    flow: &'a Flow,
    style: Style,
    marker: Marker,
    summary: Summary,
    throughput_mbps: f64,
    rtt_ms: f64,
}

/// A chart for each phase, or one for all of the time if there are no phases.
pub fn figures(report: &Report, groups: &[Group<'_>]) -> Markup {
    let windows: Vec<(&str, Window)> = if report.phases.is_empty() {
        vec![("whole run", Window::ALL)]
    } else {
        report.phases.iter().map(|p| (p.label.as_str(), Window { t0_ms: p.t0_ms, t1_ms: p.t1_ms })).collect()
    };
    html! {
        (legend(groups))
        div.grid {
            @for (label, window) in windows {
                @let points = points(report, groups, window);
                @if points.is_empty() {
                    figure.scatter {
                        figcaption { h3 { (format::capitalised(label)) } }
                        p.empty { "No flow was measured in this phase." }
                    }
                } @else {
                    (on_page::figure(&figure(label, &points, ideal(report, window)), &[]))
                }
            }
        }
    }
}

fn points<'a>(report: &Report, groups: &[Group<'a>], window: Window) -> Vec<Point<'a>> {
    let mut points = Vec::new();
    for (n, group) in groups.iter().enumerate() {
        for (index, flow, style) in &group.flows {
            let summary = summary(flow, &report.link.capacity, window);
            let (Some(bps), Some(us)) = (summary.throughput_bps, summary.rtt_mean_us) else { continue };
            points.push(Point {
                index: *index,
                flow,
                style: *style,
                marker: Marker::nth(n),
                summary,
                throughput_mbps: bps / 1e6,
                rtt_ms: us / 1e3,
            });
        }
    }
    points
}

/// A full link without a queue: its capacity in Mb/s and round-trip time in ms.
fn ideal(report: &Report, window: Window) -> Option<(f64, f64)> {
    let rtt_us = report.link.base_rtt_us?;
    let t1_ms = window.t1_ms.min(end_ms(report));
    let ms = t1_ms.checked_sub(window.t0_ms).filter(|ms| *ms > 0)?;
    let bits = capacity_bits(&report.link.capacity, window.t0_ms, t1_ms);
    (bits > 0.0).then(|| (bits / ms as f64 / 1e3, rtt_us as f64 / 1e3))
}

/// Colour tells the datapath, shape the algorithm.
fn legend(groups: &[Group<'_>]) -> Markup {
    html! {
        ul.markers {
            @for (n, group) in groups.iter().enumerate() {
                @for (_, flow, style) in &group.flows {
                    li { (glyph(Marker::nth(n), *style)) (format::capitalised(group.algorithm)) ", " (flow.datapath.label()) }
                }
            }
        }
    }
}

/// The least part of the largest throughput that an axis spans: differences of a few per cent shall look small.
const LEAST_SPAN: f64 = 0.5;

/// Axes of throughput (Mb/s) and round-trip time (ms) that show all points and the ideal.
fn axes(points: &[Point<'_>], ideal: Option<(f64, f64)>) -> (Axis, Axis) {
    let largest = |a: f64, b: f64| a.max(b);
    let mbps = || points.iter().map(|p| p.throughput_mbps).chain(ideal.map(|i| i.0));
    let rtts = |p: &Point<'_>| [p.summary.rtt_p05_us, p.summary.rtt_p95_us].map(|us| us.unwrap_or(0.0) / 1e3);
    let ms = || points.iter().flat_map(rtts).chain(ideal.map(|i| i.1));
    let top = mbps().fold(0.0, largest) * 1.02;
    let bottom = mbps().fold(top * (1.0 - LEAST_SPAN), f64::min);
    (
        Axis::between(bottom, top),
        Axis::between(ms().fold(f64::INFINITY, f64::min) * 0.98, ms().fold(0.0, largest) * 1.02),
    )
}

fn figure(label: &str, points: &[Point<'_>], ideal: Option<(f64, f64)>) -> Figure {
    let (throughput, rtt) = axes(points, ideal);
    let mut x = Scale::new(rtt, "Mean round-trip time", "ms");
    x.reversed = true;
    let mut panel = Panel::new(x, Scale::new(throughput, "Throughput", "Mb/s"));
    panel.remark = "better: up and right".into();
    panel.marks.extend(points.iter().map(|p| Mark::Whisker {
        series: p.index,
        style: p.style,
        from: (p.summary.rtt_p95_us.unwrap_or(0.0) / 1e3, p.throughput_mbps),
        to: (p.summary.rtt_p05_us.unwrap_or(0.0) / 1e3, p.throughput_mbps),
    }));
    let best = "The link full, its queue empty".to_owned();
    panel.marks.extend(ideal.map(|(mbps, ms)| Mark::Ideal { at: (ms, mbps), label: best }));
    panel.marks.extend(points.iter().map(|p| Mark::Point {
        series: p.index,
        style: p.style,
        marker: p.marker,
        at: (p.rtt_ms, p.throughput_mbps),
        label: format!(
            "{}: {} Mb/s, {} ms",
            p.flow.name,
            format::number(Some(p.throughput_mbps)),
            format::number(Some(p.rtt_ms))
        ),
        weight: Weight::Full,
    }));
    Figure {
        title: format::capitalised(label),
        shape: Shape::Scatter,
        panels: vec![panel],
        caption: "Bars: 5th to 95th percentile. ✛: full link, empty queue.".into(),
        ..Figure::default()
    }
}

//! Throughput against round-trip time, one chart a phase: up and right is better.

use maud::{Markup, html};

use crate::axis::Axis;
use crate::format;
use crate::model::{Flow, Report};
use crate::stats::{Summary, Window, capacity_bits, end_ms, summary};
use crate::style::{Group, Style};

const WIDTH: f64 = 10_000.0;
const HEIGHT: f64 = 1_000.0;
/// One marker for each algorithm, in turn; paths in a box of 16 by 16.
const MARKERS: [&str; 4] =
    ["M8 2.5a5.5 5.5 0 1 0 .01 0Z", "M3 3H13V13H3Z", "M8 1.5L15 13.5H1Z", "M8 1L15 8L8 15L1 8Z"];

struct Point<'a> {
    flow: &'a Flow,
    style: Style,
    marker: &'static str,
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
                (figure(label, &points(report, groups, window), ideal(report, window)))
            }
        }
    }
}

fn points<'a>(report: &Report, groups: &[Group<'a>], window: Window) -> Vec<Point<'a>> {
    let mut points = Vec::new();
    for (group, marker) in groups.iter().zip(MARKERS.iter().cycle()) {
        for (_, flow, style) in &group.flows {
            let summary = summary(flow, &report.link.capacity, window);
            let (Some(bps), Some(us)) = (summary.throughput_bps, summary.rtt_mean_us) else { continue };
            points.push(Point {
                flow,
                style: *style,
                marker,
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
            @for (group, marker) in groups.iter().zip(MARKERS.iter().cycle()) {
                @for (_, flow, style) in &group.flows {
                    li { (glyph(marker, *style)) (format::capitalised(group.algorithm)) ", " (flow.datapath.label()) }
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

fn figure(label: &str, points: &[Point<'_>], ideal: Option<(f64, f64)>) -> Markup {
    let (throughput, rtt) = axes(points, ideal);
    let left = |ms: f64| 1.0 - rtt.at(ms);
    html! {
        figure.scatter {
            figcaption { h3 { (format::capitalised(label)) } }
            @if points.is_empty() {
                p.empty { "No flow was measured in this phase." }
            } @else {
                div.panel {
                    div.head { strong { "Throughput" } " " span.unit { "Mb/s" } }
                    div.plot {
                        svg role="img" aria-label=(format!("Throughput against round-trip time, {label}"))
                            viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" {
                            @for y in throughput.ticks().skip(1) {
                                path.grid d=(format!("M0 {:.0}H{WIDTH}", HEIGHT * (1.0 - throughput.at(y)))) {}
                            }
                            @for x in rtt.ticks() {
                                path.grid d=(format!("M{:.0} 0V{HEIGHT}", WIDTH * left(x))) {}
                            }
                            path.zero d=(format!("M0 {HEIGHT}H{WIDTH}")) {}
                            @for p in points {
                                path.whisker stroke=(p.style.colour) d=(format!("M{:.0} {:.0}H{:.0}",
                                    WIDTH * left(p.summary.rtt_p95_us.unwrap_or(0.0) / 1e3),
                                    HEIGHT * (1.0 - throughput.at(p.throughput_mbps)),
                                    WIDTH * left(p.summary.rtt_p05_us.unwrap_or(0.0) / 1e3))) {}
                            }
                        }
                        @for y in throughput.ticks() {
                            span.y style=(format!("bottom:{:.2}%", throughput.at(y) * 100.0)) { (format::tick(y, throughput.step)) }
                        }
                        @for x in rtt.ticks() {
                            span.x style=(format!("left:{:.2}%", left(x) * 100.0)) { (format::tick(x, rtt.step)) }
                        }
                        span.better { "better: up and right ↗" }
                        @if let Some((mbps, ms)) = ideal {
                            span.ideal title="The link full, its queue empty" style=(place(left(ms), throughput.at(mbps))) { "✛" }
                        }
                        @for p in points {
                            span.point title=(format!("{}: {} Mb/s, {} ms", p.flow.name,
                                format::number(Some(p.throughput_mbps)), format::number(Some(p.rtt_ms))))
                                style=(place(left(p.rtt_ms), throughput.at(p.throughput_mbps))) {
                                (glyph(p.marker, p.style))
                            }
                        }
                    }
                    p.xlabel { "Mean round-trip time, ms, falling to the right. Bars: 5th to 95th percentile. ✛: full link, empty queue." }
                }
            }
        }
    }
}

fn place(left: f64, bottom: f64) -> String {
    format!("left:{:.2}%;bottom:{:.2}%", left * 100.0, bottom * 100.0)
}

fn glyph(marker: &str, style: Style) -> Markup {
    html! {
        svg.glyph viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            path d=(marker) stroke=(style.colour) fill=(style.colour) {}
        }
    }
}

//! Throughput against round-trip time, one chart a phase: up and right is better.

use maud::{Markup, html};

use crate::axis::Axis;
use crate::format;
use crate::model::{Flow, Report};
use crate::stats::{Summary, Window, summary};
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
            @for (label, window) in windows { (figure(label, &points(report, groups, window))) }
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

fn figure(label: &str, points: &[Point<'_>]) -> Markup {
    let largest = |value: fn(&Point<'_>) -> f64| points.iter().map(value).fold(0.0, f64::max);
    let rtt = Axis::covering(largest(|p| p.summary.rtt_p95_us.unwrap_or(0.0) / 1e3) * 1.05);
    let throughput = Axis::covering(largest(|p| p.throughput_mbps) * 1.05);
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
                        span.better { "better ↗" }
                        @for p in points {
                            span.point title=(format!("{}: {} Mb/s, {} ms", p.flow.name,
                                format::number(Some(p.throughput_mbps)), format::number(Some(p.rtt_ms))))
                                style=(format!("left:{:.2}%;bottom:{:.2}%", left(p.rtt_ms) * 100.0, throughput.at(p.throughput_mbps) * 100.0)) {
                                (glyph(p.marker, p.style))
                            }
                        }
                    }
                    p.xlabel { "Mean round-trip time, ms, falling to the right. Bars: 5th to 95th percentile." }
                }
            }
        }
    }
}

fn glyph(marker: &str, style: Style) -> Markup {
    html! {
        svg.glyph viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            path d=(marker) stroke=(style.colour) fill=(style.colour) {}
        }
    }
}

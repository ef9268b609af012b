//! Figures as part of a page.
//!
//! Lines are SVG stretched to the panel's width with strokes kept at their size; labels are HTML placed by
//! percentages, so that text stays readable on a phone. No layout needs a script.

use maud::{Markup, PreEscaped, html};

use super::figure::{Entry, Figure, Mark, Panel, Shape, Weight};
use super::style::{Marker, Style};

/// Width and height of the SVG coordinate system; coordinates are whole numbers.
const WIDTH: f64 = 10_000.0;
const HEIGHT: f64 = 1_000.0;

/// The figure. `files` are the names of its files beside the page, with what a link to each says.
pub fn figure(figure: &Figure, files: &[(String, &str)]) -> Markup {
    let class = match figure.shape {
        Shape::Time => "time",
        Shape::Scatter => "scatter",
        Shape::Curve => "curve",
    };
    html! {
        figure class=(class) data-end=[figure.readout.as_ref().map(|r| r.end_ms)] {
            figcaption {
                h3 { (figure.title) @if !figure.subtitle.is_empty() { " " span.unit { (figure.subtitle) } } }
                @if !figure.entries.is_empty() { (legend(&figure.entries, figure.has_lines())) }
                @if !files.is_empty() {
                    span.files { @for (file, says) in files { a href=(file) { (says) } " " } }
                }
            }
            @for (i, p) in figure.panels.iter().enumerate() {
                (panel(figure, p, i + 1 == figure.panels.len()))
            }
            @if !figure.caption.is_empty() { p.caption { (figure.caption) } }
            @if let Some(readout) = &figure.readout {
                script type="application/json" {
                    (PreEscaped(serde_json::to_string(&readout.series).unwrap_or_default()))
                }
            }
        }
    }
}

/// The series' names as switches.
fn legend(entries: &[Entry], lines: bool) -> Markup {
    html! {
        div.legend {
            @for entry in entries {
                button type="button" data-flow=(entry.series) aria-pressed="true" title=(format!("Show or hide {}", entry.name)) {
                    @if lines { (stroke_sample(entry.style)) }
                    @if let Some(marker) = entry.marker { (glyph(marker, entry.style)) }
                    (entry.name)
                }
            }
        }
    }
}

/// A short piece of a line.
pub fn stroke_sample(style: Style) -> Markup {
    html! {
        svg viewBox="0 0 30 10" width="30" height="10" aria-hidden="true" {
            path d="M1 5H29" stroke=(style.css()) stroke-dasharray=(style.dash) stroke-width=(style.width) stroke-opacity=(style.opacity) {}
        }
    }
}

/// Draws a marker as an element of a page.
pub fn glyph(marker: Marker, style: Style) -> Markup {
    sized_glyph(marker, style, 16)
}

fn sized_glyph(marker: Marker, style: Style, size_px: u32) -> Markup {
    html! {
        svg.glyph viewBox="0 0 16 16" width=(size_px) height=(size_px) aria-hidden="true" {
            path d=(marker.path()) stroke=(style.css()) fill=(style.css()) {}
        }
    }
}

fn panel(figure: &Figure, panel: &Panel, last: bool) -> Markup {
    let name = if figure.title.is_empty() { &figure.subtitle } else { &figure.title };
    let description = format!("{} against {}, {name}, {}", panel.y.title, panel.x.title, panel.y.unit);
    html! {
        div.panel data-scale=(panel.readout_scale) {
            div.head {
                strong { (panel.y.title) } " " span.unit { (panel.y.unit) }
                @if !panel.area.is_empty() { span.key { i {} (panel.area) } }
                output {}
            }
            div.plot {
                (drawing(panel, &description))
                (labels(panel, last))
                (points(panel))
                div.cross {}
            }
            @if last && figure.shape != Shape::Time {
                p.xlabel {
                    (panel.x.title) @if !panel.x.unit.is_empty() { ", " (panel.x.unit) }
                    @if panel.x.reversed { ", falling to the right" }
                }
            }
        }
    }
}

/// Draws the parts of a panel that stretch with the page.
fn drawing(panel: &Panel, description: &str) -> Markup {
    let (areas, marks): (Vec<&Mark>, Vec<&Mark>) =
        panel.marks.iter().partition(|m| matches!(m, Mark::Area(_)));
    html! {
        svg role="img" aria-label=(description) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" {
            @for area in areas { (mark(panel, area)) }
            @for (y, _) in panel.y.ticks().iter().skip(1) {
                path.grid d=(format!("M0 {}H{WIDTH}", y_at(panel, *y))) {}
            }
            @if panel.x.reversed || panel.x.axis.logarithmic {
                @for (x, _) in panel.x.ticks() { path.grid d=(format!("M{} 0V{HEIGHT}", x_at(panel, x))) {} }
            }
            path.zero d=(format!("M0 {HEIGHT}H{WIDTH}")) {}
            @for m in marks { (mark(panel, m)) }
        }
    }
}

fn mark(panel: &Panel, mark: &Mark) -> Markup {
    html! {
        @match mark {
            Mark::Area(steps) => path.area d=(area(panel, steps)) {},
            Mark::Rule(x) => path.phase d=(format!("M{} 0V{HEIGHT}", x_at(panel, *x))) {},
            Mark::Band { series, style, points } => {
                path.band data-flow=(series) fill=(style.css()) d=(closed(panel, points.iter().map(|p| (p.0, p.2))
                    .chain(points.iter().rev().map(|p| (p.0, p.1))))) {}
            }
            Mark::Outline { series, style, points } => {
                path.outline data-flow=(series) stroke=(style.css()) fill=(style.css()) d=(closed(panel, points.iter().copied())) {}
            }
            Mark::Line { series, style, weight: Weight::Full, points } => {
                path.line data-flow=(series) d=(open(panel, points)) stroke=(style.css()) stroke-dasharray=(style.dash)
                    stroke-width=(style.width) stroke-opacity=(style.opacity) {}
            }
            Mark::Line { series, style, weight: Weight::Faint, points } => {
                path.faint data-flow=(series) d=(open(panel, points)) stroke=(style.css()) {}
            }
            Mark::Point { .. } | Mark::Ideal { .. } => {}
        }
    }
}

/// Draws the markers of a panel, which keep their shape while the page stretches.
fn points(panel: &Panel) -> Markup {
    html! {
        @if !panel.remark.is_empty() { span.better { (panel.remark) " ↗" } }
        @for mark in &panel.marks {
            @match mark {
                Mark::Ideal { at, label } => span.ideal title=(label) style=(place(panel, *at)) { "✛" },
                Mark::Point { series, style, marker, at, label, weight } => {
                    span.point.faint[*weight == Weight::Faint] data-flow=(series) title=(label) style=(place(panel, *at)) {
                        (sized_glyph(*marker, *style, if *weight == Weight::Faint { 10 } else { 16 }))
                    }
                }
                _ => {}
            }
        }
    }
}

fn labels(panel: &Panel, last: bool) -> Markup {
    let ticks = panel.x.ticks();
    html! {
        @for (y, label) in panel.y.ticks() {
            span.y style=(format!("bottom:{:.2}%", panel.y.at(y) * 100.0)) { (label) }
        }
        @if last {
            @for (i, (x, label)) in ticks.iter().enumerate() {
                span.x style=(format!("left:{:.2}%", panel.x.at(*x) * 100.0)) {
                    (label) @if panel.x.title.is_empty() && i + 1 == ticks.len() { " " (panel.x.unit) }
                }
            }
        }
    }
}

fn x_at(panel: &Panel, x: f64) -> u64 {
    (panel.x.at(x) * WIDTH).round() as u64
}

fn y_at(panel: &Panel, y: f64) -> u64 {
    (HEIGHT - panel.y.at(y) * HEIGHT).round() as u64
}

fn open(panel: &Panel, points: &[(f64, f64)]) -> String {
    let mut d = String::with_capacity(points.len() * 10);
    for (i, (x, y)) in points.iter().enumerate() {
        d.push_str(&format!("{}{} {}", if i == 0 { 'M' } else { 'L' }, x_at(panel, *x), y_at(panel, *y)));
    }
    if points.len() == 1 {
        // With round line caps, a segment without length is a dot.
        d.push_str("h0");
    }
    d
}

fn closed(panel: &Panel, points: impl Iterator<Item = (f64, f64)>) -> String {
    let points: Vec<_> = points.collect();
    if points.is_empty() { String::new() } else { open(panel, &points) + "Z" }
}

fn area(panel: &Panel, steps: &[(f64, f64)]) -> String {
    let Some((first, _)) = steps.first() else { return String::new() };
    let mut d = format!("M{} {HEIGHT}", x_at(panel, *first));
    for (x, y) in steps {
        d.push_str(&format!("H{}V{}", x_at(panel, *x), y_at(panel, *y)));
    }
    d.push_str(&format!("H{WIDTH}V{HEIGHT}Z"));
    d
}

fn place(panel: &Panel, at: (f64, f64)) -> String {
    format!("left:{:.2}%;bottom:{:.2}%", panel.x.at(at.0) * 100.0, panel.y.at(at.1) * 100.0)
}

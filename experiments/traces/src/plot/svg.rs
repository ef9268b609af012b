//! Panels over a common time axis, as one SVG document. It stands alone: no script, no font, no network.

use maud::{Markup, PreEscaped, html};

use super::axis::Axis;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 24.0;
/// Title and subtitle.
const HEAD: f64 = 54.0;
/// Above a panel: its title and key.
const PANEL_HEAD: f64 = 46.0;
const PANEL: f64 = 240.0;
/// Below the last panel: labels of the time axis.
const FOOT: f64 = 40.0;

const STYLE: &str = "\
    .page{--bg:#fff;--ink:#15181c;--muted:#5b636d;--grid:#e9ebee;--edge:#a9b8cc;\
    --c0:#a9b8cc;--c1:#0067a5;--c2:#5b636d;--c3:#cf4f00;\
    font:13px ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}\
    @media (prefers-color-scheme: dark){.page{--bg:#0e1114;--ink:#e8ebee;--muted:#98a1ab;--grid:#232930;--edge:#46586e;\
    --c0:#46586e;--c1:#58aee8;--c2:#98a1ab;--c3:#ff984f}}\
    .bg{fill:var(--bg)}text{fill:var(--muted);font-variant-numeric:tabular-nums}\
    .title{fill:var(--ink);font-size:18px;font-weight:650}.head{fill:var(--ink);font-weight:600}\
    path,line{fill:none;vector-effect:non-scaling-stroke}.grid{stroke:var(--grid)}.zero{stroke:var(--edge)}\
    .line{stroke-width:1.6;stroke-linejoin:round}.dots{stroke-width:2.2;stroke-linecap:round;stroke-opacity:.35}\
    .mark{stroke-dasharray:5 4}";

/// A whole picture.
pub(super) struct Picture {
    pub title: String,
    pub subtitle: String,
    /// From when to when.
    pub seconds: (f64, f64),
    pub panels: Vec<Panel>,
}

/// One chart.
pub(super) struct Panel {
    pub title: &'static str,
    pub unit: &'static str,
    pub series: Vec<Series>,
    pub marks: Vec<Mark>,
}

/// How points are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Stairs, filled.
    Area,
    /// Each value holds until the next.
    Stairs,
    Line,
    Dots,
}

pub(super) struct Series {
    pub label: String,
    pub form: Form,
    /// Of the palette.
    pub colour: u8,
    /// Seconds and value, in order of time.
    pub points: Vec<(f64, f64)>,
}

/// A level.
pub(super) struct Mark {
    pub label: String,
    pub at: f64,
    pub colour: u8,
}

impl Picture {
    pub(super) fn svg(&self) -> String {
        let height = HEAD + self.panels.len() as f64 * (PANEL_HEAD + PANEL) + FOOT;
        let time = Axis::between(self.seconds.0, self.seconds.1);
        let tops = (0..self.panels.len()).map(|n| HEAD + n as f64 * (PANEL_HEAD + PANEL) + PANEL_HEAD);
        let page = html! {
            svg xmlns="http://www.w3.org/2000/svg" class="page" viewBox=(format!("0 0 {WIDTH} {height}"))
                width=(WIDTH) height=(height) role="img" aria-label=(self.title) {
                style { (PreEscaped(STYLE)) }
                rect.bg width="100%" height="100%" {}
                text.title x=(LEFT) y="28" { (self.title) }
                text x=(LEFT) y="48" { (self.subtitle) }
                @for (panel, top) in self.panels.iter().zip(tops) {
                    g transform=(format!("translate({LEFT} {top})")) { (panel.draw(&time)) }
                }
                g transform=(format!("translate({LEFT} {})", height - FOOT)) {
                    @for (x, label) in time.ticks() {
                        text x=(number(x * width())) y="18" text-anchor="middle" { (label) }
                    }
                    text x=(number(width())) y="34" text-anchor="end" { "seconds" }
                }
            }
        };
        page.into_string()
    }
}

impl Panel {
    fn draw(&self, time: &Axis) -> Markup {
        let values = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let axis = Axis::covering(values.chain(self.marks.iter().map(|m| m.at)).fold(0.0, f64::max));
        let y = |value: f64| number(PANEL - axis.at(value) * PANEL);
        html! {
            text.head x="0" y="-12" { (self.title) ", " (self.unit) }
            text x=(number(width())) y="-12" text-anchor="end" {
                @for (n, (label, colour)) in self.key().enumerate() {
                    @if n > 0 { "\u{2003}" }
                    tspan style=(format!("fill:var(--c{colour})")) { "■" } " " (label)
                }
            }
            @for (at, label) in axis.ticks() {
                line.grid x1="0" x2=(number(width())) y1=(number(PANEL - at * PANEL)) y2=(number(PANEL - at * PANEL)) {}
                text x="-8" y=(number(PANEL - at * PANEL + 4.0)) text-anchor="end" { (label) }
            }
            @for series in &self.series {
                path class=(series.class()) style=(series.style()) d=(series.path(time, &axis)) {}
            }
            @for mark in &self.marks {
                line.mark x1="0" x2=(number(width())) y1=(y(mark.at)) y2=(y(mark.at)) style=(format!("stroke:var(--c{})", mark.colour)) {}
            }
            line.zero x1="0" x2=(number(width())) y1=(PANEL) y2=(PANEL) {}
        }
    }

    fn key(&self) -> impl Iterator<Item = (&str, u8)> {
        let series = self.series.iter().map(|s| (s.label.as_str(), s.colour));
        series.chain(self.marks.iter().map(|m| (m.label.as_str(), m.colour)))
    }
}

impl Series {
    fn class(&self) -> &'static str {
        match self.form {
            Form::Area => "area",
            Form::Stairs | Form::Line => "line",
            Form::Dots => "dots",
        }
    }

    fn style(&self) -> String {
        let colour = self.colour;
        match self.form {
            Form::Area => format!("fill:var(--c{colour});fill-opacity:.45"),
            _ => format!("stroke:var(--c{colour})"),
        }
    }

    fn path(&self, time: &Axis, axis: &Axis) -> String {
        let place = |(t, value): &(f64, f64)| {
            (number(time.at(*t) * width()), number(PANEL - axis.at(*value) * PANEL))
        };
        let mut d = String::with_capacity(self.points.len() * 12);
        let mut points = self.points.iter().map(place);
        match self.form {
            Form::Area | Form::Stairs => {
                let Some((x, y)) = points.next() else { return d };
                d = if self.form == Form::Area { format!("M{x} {PANEL}V{y}") } else { format!("M{x} {y}") };
                points.for_each(|(x, y)| d.push_str(&format!("H{x}V{y}")));
                if self.form == Form::Area {
                    d.push_str(&format!("V{PANEL}Z"));
                }
            }
            Form::Line => {
                for (n, (x, y)) in points.enumerate() {
                    d.push_str(&format!("{}{x} {y}", if n == 0 { 'M' } else { 'L' }));
                }
            }
            // With round caps, a line without length is a dot.
            Form::Dots => points.for_each(|(x, y)| d.push_str(&format!("M{x} {y}h0"))),
        }
        d
    }
}

fn width() -> f64 {
    WIDTH - LEFT - RIGHT
}

/// A tenth of a pixel is enough.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

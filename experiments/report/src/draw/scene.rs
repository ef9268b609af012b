//! A figure laid out at a fixed size: paths and texts, for files. Always on white.

use super::figure::{Figure, Mark, Panel, Scale, Shape, Weight};
use super::font::{Face, width_px};
use super::style::{Marker, Style};

/// The items of a file from back to front, in pixels from the upper left corner.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    pub width: f32,
    pub height: f32,
    /// The description for readers that see no pictures.
    pub title: String,
    pub items: Vec<Item>,
}

/// A path or a text.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// A polygon or a line through points.
    Path {
        points: Vec<(f32, f32)>,
        /// Whether the last is joined to the first.
        closed: bool,
        /// Colour `#rrggbb` and opacity.
        fill: Option<(&'static str, f32)>,
        stroke: Option<Stroke>,
    },
    /// A line of text.
    Text {
        /// The place where its base line starts, is centred or ends.
        at: (f32, f32),
        anchor: Anchor,
        /// The height of the letters, pixels.
        size: f32,
        face: Face,
        /// The colour as `#rrggbb`.
        colour: &'static str,
        text: String,
    },
}

/// The way in which a line is drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Stroke {
    /// The colour as `#rrggbb`.
    pub colour: &'static str,
    /// The width, pixels.
    pub width: f32,
    /// The opacity, 0 to 1.
    pub opacity: f32,
    /// Lengths of dashes and gaps, pixels; empty for a solid line.
    pub dashes: Vec<f32>,
}

/// The position of a text about its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// The text starts at its place.
    Start,
    /// The text is centred on its place.
    Middle,
    /// The text ends at its place.
    End,
}

const WIDTH: f32 = 760.0;
const LEFT: f32 = 66.0;
const RIGHT: f32 = 28.0;
const EDGE: f32 = 22.0;
const TITLE_SIZE: f32 = 16.0;
const TEXT_SIZE: f32 = 13.0;
const LABEL_SIZE: f32 = 12.0;
const ROW: f32 = 22.0;
/// Width of a marker, length of a line's sample in the legend, and the distance from the name.
const MARKER: f32 = 16.0;
const SAMPLE: f32 = 30.0;
const SAMPLE_GAP: f32 = 8.0;

/// The colour of headings and names.
pub const INK: &str = "#15181c";
/// The colour of labels.
pub const MUTED: &str = "#5b636d";
/// The colour of a grid's lines.
pub const GRID: &str = "#e3e6ea";
/// The colour of shaded areas.
pub const AREA: &str = "#e9eef5";
/// The colour of areas' edges and of axes.
pub const EDGE_COLOUR: &str = "#a9b8cc";

/// Lays a figure out at a fixed size.
pub fn scene(figure: &Figure) -> Scene {
    let mut out = Layout { canvas: Canvas::default(), y: EDGE };
    out.title(figure);
    out.legend(figure);
    let plot_height = match figure.shape {
        Shape::Time => 150.0,
        Shape::Curve => 270.0,
        Shape::Scatter => 420.0,
    };
    for (i, panel) in figure.panels.iter().enumerate() {
        out.panel(panel, plot_height, i + 1 == figure.panels.len());
    }
    let title = [figure.title.as_str(), figure.subtitle.as_str()].join(" ");
    Scene { width: WIDTH, height: out.y + EDGE / 2.0, title: title.trim().into(), items: out.canvas.items }
}

/// Items in the making, from back to front.
#[derive(Default)]
pub struct Canvas {
    pub items: Vec<Item>,
}

impl Canvas {
    /// Adds a text at a place; `size` is the height of its letters, pixels.
    pub fn text(
        &mut self,
        at: (f32, f32),
        anchor: Anchor,
        size: f32,
        face: Face,
        colour: &'static str,
        text: &str,
    ) {
        self.items.push(Item::Text { at, anchor, size, face, colour, text: text.into() });
    }

    /// Adds a line through points, with the lengths of its dashes and gaps; none make it solid.
    pub fn line(&mut self, points: Vec<(f32, f32)>, colour: &'static str, width: f32, dashes: Vec<f32>) {
        let stroke = Some(Stroke { colour, width, opacity: 1.0, dashes });
        self.items.push(Item::Path { points, closed: false, fill: None, stroke });
    }
}

struct Layout {
    canvas: Canvas,
    /// The end of the space in use, pixels from the top.
    y: f32,
}

impl Layout {
    fn title(&mut self, figure: &Figure) {
        self.y += TITLE_SIZE;
        let mut x = EDGE;
        if !figure.title.is_empty() {
            self.canvas.text((x, self.y), Anchor::Start, TITLE_SIZE, Face::Medium, INK, &figure.title);
            x += width_px(&figure.title, TITLE_SIZE, Face::Medium) + 10.0;
        }
        if !figure.subtitle.is_empty() {
            let wide = x + width_px(&figure.subtitle, TEXT_SIZE, Face::Regular) > WIDTH - EDGE;
            if wide && x > EDGE {
                (x, self.y) = (EDGE, self.y + ROW);
            }
            self.canvas.text((x, self.y), Anchor::Start, TEXT_SIZE, Face::Regular, MUTED, &figure.subtitle);
        }
        self.y += 10.0;
    }

    fn legend(&mut self, figure: &Figure) {
        if figure.entries.is_empty() {
            return;
        }
        let lines = figure.has_lines();
        let sample = if lines { SAMPLE } else { MARKER };
        let (mut x, mut y) = (EDGE, self.y + ROW * 0.7);
        for entry in &figure.entries {
            let width = sample + SAMPLE_GAP + width_px(&entry.name, TEXT_SIZE, Face::Regular);
            if x > EDGE && x + width > WIDTH - EDGE {
                (x, y) = (EDGE, y + ROW);
            }
            let middle = y - 4.5;
            if lines {
                let points = vec![(x, middle), (x + sample, middle)];
                let stroke = Some(stroke(entry.style));
                self.canvas.items.push(Item::Path { points, closed: false, fill: None, stroke });
            }
            if let Some(marker) = entry.marker {
                let weight = if lines { Weight::Faint } else { Weight::Full };
                self.marker((x + sample / 2.0, middle), marker, entry.style, weight);
            }
            let at = (x + sample + SAMPLE_GAP, y);
            self.canvas.text(at, Anchor::Start, TEXT_SIZE, Face::Regular, INK, &entry.name);
            x += width + 22.0;
        }
        self.y = y + 8.0;
    }

    fn panel(&mut self, panel: &Panel, plot_height: f32, last: bool) {
        self.head(panel);
        let frame =
            Frame { panel, left: LEFT, top: self.y + 14.0, width: WIDTH - LEFT - RIGHT, height: plot_height };
        self.grid(&frame);
        for mark in &panel.marks {
            self.mark(&frame, mark);
        }
        self.labels(&frame, last);
    }

    fn head(&mut self, panel: &Panel) {
        self.y += ROW;
        let mut x = EDGE;
        for (text, face, colour) in
            [(&panel.y.title, Face::Medium, INK), (&panel.y.unit, Face::Regular, MUTED)]
        {
            self.canvas.text((x, self.y), Anchor::Start, TEXT_SIZE, face, colour, text);
            x += width_px(text, TEXT_SIZE, face) + 6.0;
        }
        if !panel.area.is_empty() {
            let key = vec![
                (x + 12.0, self.y),
                (x + 12.0, self.y - 9.0),
                (x + 28.0, self.y - 9.0),
                (x + 28.0, self.y),
            ];
            self.canvas.items.push(Item::Path {
                points: key.clone(),
                closed: true,
                fill: Some((AREA, 1.0)),
                stroke: None,
            });
            self.canvas.line(key[1..3].to_vec(), EDGE_COLOUR, 1.5, Vec::new());
            self.canvas.text(
                (x + 34.0, self.y),
                Anchor::Start,
                LABEL_SIZE,
                Face::Regular,
                MUTED,
                &panel.area,
            );
        }
    }

    fn grid(&mut self, frame: &Frame<'_>) {
        let Frame { panel, left, top, width, height } = *frame;
        for mark in &panel.marks {
            if let Mark::Area(steps) = mark {
                self.area(frame, steps);
            }
        }
        for (y, _) in panel.y.ticks().into_iter().skip(1) {
            let y = frame.y(y);
            self.canvas.line(vec![(left, y), (left + width, y)], GRID, 1.0, Vec::new());
        }
        if panel.x.reversed || panel.x.axis.logarithmic {
            for (x, _) in panel.x.ticks() {
                let x = frame.x(x);
                self.canvas.line(vec![(x, top), (x, top + height)], GRID, 1.0, Vec::new());
            }
        }
        self.canvas.line(
            vec![(left, top + height), (left + width, top + height)],
            EDGE_COLOUR,
            1.0,
            Vec::new(),
        );
    }

    fn area(&mut self, frame: &Frame<'_>, steps: &[(f64, f64)]) {
        let Some((first, _)) = steps.first() else { return };
        let bottom = frame.top + frame.height;
        let (mut edge, mut y) = (Vec::new(), bottom);
        for (x, value) in steps {
            edge.push((frame.x(*x), y));
            y = frame.y(*value);
            edge.push((frame.x(*x), y));
        }
        edge.push((frame.left + frame.width, y));
        edge.remove(0);
        let mut points = vec![(frame.x(*first), bottom)];
        points.extend(&edge);
        points.push((frame.left + frame.width, bottom));
        self.canvas.items.push(Item::Path { points, closed: true, fill: Some((AREA, 1.0)), stroke: None });
        self.canvas.line(edge, EDGE_COLOUR, 1.0, Vec::new());
    }

    fn mark(&mut self, frame: &Frame<'_>, mark: &Mark) {
        let path =
            |points: &[(f64, f64)]| points.iter().map(|p| (frame.x(p.0), frame.y(p.1))).collect::<Vec<_>>();
        match mark {
            Mark::Area(_) => {}
            Mark::Rule(x) => {
                let x = frame.x(*x);
                self.canvas.line(
                    vec![(x, frame.top), (x, frame.top + frame.height)],
                    EDGE_COLOUR,
                    1.0,
                    vec![2.0, 3.0],
                );
            }
            Mark::Band { style, points, .. } => {
                let upper = points.iter().map(|p| (p.0, p.2));
                let around: Vec<_> = upper.chain(points.iter().rev().map(|p| (p.0, p.1))).collect();
                let fill = Some((style.hex(), 0.16));
                self.canvas.items.push(Item::Path {
                    points: path(&around),
                    closed: true,
                    fill,
                    stroke: None,
                });
            }
            Mark::Outline { style, points, .. } => {
                let stroke =
                    Some(Stroke { colour: style.hex(), width: 1.5, opacity: 0.8, dashes: Vec::new() });
                let fill = Some((style.hex(), 0.1));
                self.canvas.items.push(Item::Path { points: path(points), closed: true, fill, stroke });
            }
            Mark::Line { style, weight, points, .. } => {
                let stroke = match weight {
                    Weight::Full => stroke(*style),
                    Weight::Faint => {
                        Stroke { colour: style.hex(), width: 1.0, opacity: 0.3, dashes: Vec::new() }
                    }
                };
                self.canvas.items.push(Item::Path {
                    points: path(points),
                    closed: false,
                    fill: None,
                    stroke: Some(stroke),
                });
            }
            Mark::Point { style, marker, at, weight, .. } => {
                self.marker((frame.x(at.0), frame.y(at.1)), *marker, *style, *weight);
            }
            Mark::Ideal { at, .. } => {
                let (x, y) = (frame.x(at.0), frame.y(at.1));
                self.canvas.line(vec![(x - 6.0, y), (x + 6.0, y)], MUTED, 2.0, Vec::new());
                self.canvas.line(vec![(x, y - 6.0), (x, y + 6.0)], MUTED, 2.0, Vec::new());
            }
        }
    }

    fn marker(&mut self, at: (f32, f32), marker: Marker, style: Style, weight: Weight) {
        let (scale, opacity) = if weight == Weight::Faint { (0.6, 0.6) } else { (1.0, 1.0) };
        let points =
            marker.corners().into_iter().map(|(x, y)| (at.0 + x * scale, at.1 + y * scale)).collect();
        let stroke = Some(Stroke { colour: style.hex(), width: 2.0 * scale, opacity, dashes: Vec::new() });
        self.canvas.items.push(Item::Path { points, closed: true, fill: Some((style.hex(), 0.28)), stroke });
    }

    fn labels(&mut self, frame: &Frame<'_>, last: bool) {
        let Frame { panel, left, top, width, height } = *frame;
        for (y, label) in panel.y.ticks() {
            let at = (left - 8.0, frame.y(y) + LABEL_SIZE * 0.35);
            self.canvas.text(at, Anchor::End, LABEL_SIZE, Face::Regular, MUTED, &label);
        }
        if !panel.remark.is_empty() {
            let at = (left + 12.0, top + height - 14.0);
            self.canvas.text(at, Anchor::Start, LABEL_SIZE, Face::Regular, MUTED, &panel.remark);
        }
        self.y = top + height;
        if !last {
            self.y += 6.0;
            return;
        }
        self.y += 18.0;
        for (x, label) in panel.x.ticks() {
            self.canvas.text((frame.x(x), self.y), Anchor::Middle, LABEL_SIZE, Face::Regular, MUTED, &label);
        }
        self.y += ROW - 2.0;
        let title = x_title(&panel.x);
        self.canvas.text(
            (left + width / 2.0, self.y),
            Anchor::Middle,
            TEXT_SIZE,
            Face::Regular,
            MUTED,
            &title,
        );
    }
}

fn x_title(x: &Scale) -> String {
    let title = if x.title.is_empty() { "Time" } else { &x.title };
    let unit = if x.unit.is_empty() { String::new() } else { format!(", {}", x.unit) };
    format!("{title}{unit}{}", if x.reversed { ", falling to the right" } else { "" })
}

fn stroke(style: Style) -> Stroke {
    Stroke { colour: style.hex(), width: style.width, opacity: style.opacity, dashes: style.dashes() }
}

/// A panel with the place of its plot, pixels.
#[derive(Clone, Copy)]
struct Frame<'a> {
    panel: &'a Panel,
    left: f32,
    top: f32,
    width: f32,
    height: f32,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> f32 {
        self.left + self.panel.x.at(value) as f32 * self.width
    }

    fn y(&self, value: f64) -> f32 {
        self.top + (1.0 - self.panel.y.at(value) as f32) * self.height
    }
}

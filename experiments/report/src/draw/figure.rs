//! What a figure shows, in the reader's units.

use serde::Serialize;

use super::axis::Axis;
use super::style::{Marker, Style};

/// Panels one below the other, which share their horizontal axis.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figure {
    /// File name without extension, where the figure is written as one.
    pub name: String,
    /// Heading.
    pub title: String,
    /// A note of a few words beside the heading.
    pub subtitle: String,
    /// Height and class.
    pub shape: Shape,
    /// The legend; empty for none.
    pub entries: Vec<Entry>,
    /// Top to bottom.
    pub panels: Vec<Panel>,
    /// What the crosshair reads.
    pub readout: Option<Readout>,
    /// Below the figure: what its lines and areas are.
    pub caption: String,
}

impl Figure {
    /// Whether its series are lines, not only points.
    pub fn has_lines(&self) -> bool {
        self.shape != Shape::Scatter
    }
}

/// How high a figure's panels are, and whether a crosshair reads them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// Low panels over time.
    #[default]
    Time,
    /// Points in two dimensions.
    Scatter,
    /// A curve: a distribution, a sweep.
    Curve,
}

/// A line of the legend.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Marks with this `series` belong to it.
    pub series: usize,
    /// Its name.
    pub name: String,
    /// How its lines look.
    pub style: Style,
    /// How its points look, where it has points.
    pub marker: Option<Marker>,
}

/// A direction.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    /// Range and labels.
    pub axis: Axis,
    /// What it measures.
    pub title: String,
    /// Its unit; may be empty.
    pub unit: String,
    /// Whether values fall to the right, as delays do where better is up and right.
    pub reversed: bool,
    /// Labels at places of their own; empty: the axis' own.
    pub labels: Vec<(f64, String)>,
}

impl Scale {
    /// Values that rise to the right or upwards.
    pub fn new(axis: Axis, title: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { axis, title: title.into(), unit: unit.into(), reversed: false, labels: Vec::new() }
    }

    /// Where `value` lies, 0 (left, bottom) to 1; what lies outside is clamped to the ends.
    pub fn at(&self, value: f64) -> f64 {
        let at = self.axis.at(value);
        if self.reversed { 1.0 - at } else { at }
    }

    /// Labelled values and their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        if !self.labels.is_empty() {
            return self.labels.clone();
        }
        self.axis.ticks().into_iter().map(|v| (v, self.axis.label(v))).collect()
    }
}

/// One chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// The horizontal direction.
    pub x: Scale,
    /// The vertical direction.
    pub y: Scale,
    /// What the shaded area is; empty without one.
    pub area: String,
    /// Which way is better: a few words into the lower left corner.
    pub remark: String,
    /// Back to front.
    pub marks: Vec<Mark>,
    /// The unit of `y` in the read-out's units.
    pub readout_scale: f64,
}

impl Panel {
    /// Without marks.
    pub fn new(x: Scale, y: Scale) -> Self {
        Self { x, y, area: String::new(), remark: String::new(), marks: Vec::new(), readout_scale: 1.0 }
    }
}

/// How much a line stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// As its style says.
    Full,
    /// Thin and pale: one of several repeats.
    Faint,
}

/// What is drawn into a panel.
#[derive(Clone, PartialEq, Debug)]
pub enum Mark {
    /// The shaded area below steps: each value holds until the next one's place.
    Area(Vec<(f64, f64)>),
    /// A vertical line over the whole height.
    Rule(f64),
    /// Between a lower and an upper value: (place, lower, upper).
    Band {
        /// Whose.
        series: usize,
        /// Colour.
        style: Style,
        /// In order of place.
        points: Vec<(f64, f64, f64)>,
    },
    /// A line through points.
    Line {
        /// Whose.
        series: usize,
        /// Colour, dashes.
        style: Style,
        /// How much it stands out.
        weight: Weight,
        /// In order of place.
        points: Vec<(f64, f64)>,
    },
    /// A closed, tinted outline.
    Outline {
        /// Whose.
        series: usize,
        /// Colour.
        style: Style,
        /// Its corners.
        points: Vec<(f64, f64)>,
    },
    /// A marker.
    Point {
        /// Whose.
        series: usize,
        /// Colour.
        style: Style,
        /// Shape.
        marker: Marker,
        /// Where.
        at: (f64, f64),
        /// Said when it is pointed at.
        label: String,
        /// A single run among others: smaller and paler.
        weight: Weight,
    },
    /// A cross: the best that is possible.
    Ideal {
        /// Where.
        at: (f64, f64),
        /// Said when it is pointed at.
        label: String,
    },
}

/// What the crosshair reads: whole numbers only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Readout {
    /// The horizontal axis' end, milliseconds.
    pub end_ms: u64,
    /// The lines.
    pub series: Vec<ReadoutSeries>,
}

/// A line that the crosshair reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReadoutSeries {
    /// Which.
    #[serde(rename = "flow")]
    pub series: usize,
    /// When.
    pub t_ms: Vec<u64>,
    /// For each panel the values at those times.
    pub values: Vec<Vec<u64>>,
}

//! Figures as data in the reader's units.

use serde::Serialize;

use super::axis::Axis;
use super::style::{Marker, Style};

/// Panels one below the other, which share their horizontal axis.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figure {
    /// File name without extension, where the figure is written as one.
    pub name: String,
    pub title: String,
    /// A note of a few words beside the heading.
    pub subtitle: String,
    /// The height of its panels.
    pub shape: Shape,
    /// The legend; empty for none.
    pub entries: Vec<Entry>,
    /// Its panels from top to bottom.
    pub panels: Vec<Panel>,
    /// The values under the crosshair.
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

/// The height of a figure's panels, and whether a crosshair reads them.
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
    pub name: String,
    /// The style of its lines.
    pub style: Style,
    /// The shape of its points, where it has points.
    pub marker: Option<Marker>,
}

/// A horizontal or vertical scale with its axis and title.
#[derive(Clone, PartialEq, Debug)]
pub struct Scale {
    pub axis: Axis,
    /// The name of the measured quantity.
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

    /// Returns the place of `value`, 0 (left, bottom) to 1; what lies outside is clamped to the ends.
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

/// A chart with two scales and its marks.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    pub x: Scale,
    pub y: Scale,
    /// The name of the shaded area; empty without one.
    pub area: String,
    /// A few words in the lower left corner that say which direction is better.
    pub remark: String,
    /// Its marks from back to front.
    pub marks: Vec<Mark>,
    /// The unit of `y` in the read-out's units.
    pub readout_scale: f64,
}

impl Panel {
    /// Creates a panel without marks.
    pub fn new(x: Scale, y: Scale) -> Self {
        Self { x, y, area: String::new(), remark: String::new(), marks: Vec::new(), readout_scale: 1.0 }
    }
}

/// The degrees to which a line stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// The line is drawn as its style says.
    Full,
    /// Thin and pale: one of several repeats.
    Faint,
}

/// A mark in a panel. Its `series` is the number of the legend's entry that it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub enum Mark {
    /// The shaded area below steps: each value holds until the next one's place.
    Area(Vec<(f64, f64)>),
    /// A vertical line over the whole height.
    Rule(f64),
    /// Between a lower and an upper value: (place, lower, upper).
    Band {
        series: usize,
        style: Style,
        /// In order of place.
        points: Vec<(f64, f64, f64)>,
    },
    /// A line through points.
    Line {
        series: usize,
        style: Style,
        /// The degree to which it stands out.
        weight: Weight,
        /// In order of place.
        points: Vec<(f64, f64)>,
    },
    /// A closed, tinted outline.
    Outline { series: usize, style: Style, points: Vec<(f64, f64)> },
    /// A marker at a point.
    Point {
        series: usize,
        style: Style,
        marker: Marker,
        at: (f64, f64),
        /// The text that appears under the pointer.
        label: String,
        /// A single run among others: smaller and paler.
        weight: Weight,
    },
    /// A cross: the best that is possible.
    Ideal {
        at: (f64, f64),
        /// The text that appears under the pointer.
        label: String,
    },
}

/// The values under the crosshair, as whole numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Readout {
    /// The horizontal axis' end, milliseconds.
    pub end_ms: u64,
    pub series: Vec<ReadoutSeries>,
}

/// A line that the crosshair reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReadoutSeries {
    #[serde(rename = "flow")]
    pub series: usize,
    pub t_ms: Vec<u64>,
    /// For each panel the values at those times.
    pub values: Vec<Vec<u64>>,
}

//! The colours, dashes and markers of series.
//!
//! The six colours stay apart for readers who confuse red and green (after Okabe and Ito); dashes and markers tell
//! lines and points apart without any colour. On a page they are the CSS variables `--s0` to `--s5`, in files the
//! light theme's values, [`LIGHT`].

/// Distinct colours; charts with more series use them again with other dashes and markers.
pub const COLOURS: usize = 6;

/// The colours on white, as the page's light theme has them.
pub const LIGHT: [&str; COLOURS] = ["#0067a5", "#cf4f00", "#008060", "#9a3d86", "#786800", "#4a4f57"];

const CSS: [&str; COLOURS] = ["var(--s0)", "var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)"];

/// The style of a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Style {
    /// Index into the colours.
    pub colour: usize,
    /// SVG `stroke-dasharray`, CSS pixels.
    pub dash: &'static str,
    /// The width, CSS pixels.
    pub width: f32,
    /// The opacity, 0 to 1.
    pub opacity: f32,
}

/// A broad pale band, so that a line that runs on top of it can still be told from it: for baselines.
const BANDS: [&str; 3] = ["none", "18 5", "9 4"];
/// Dashes of thin lines.
const DASHES: [&str; 6] = ["none", "7 4", "1.5 4.5", "12 4 2 4", "16 5", "4 3"];

impl Style {
    /// The `n`th line of those that are baselines, in the colour of index `colour`.
    pub const fn band(colour: usize, n: usize) -> Self {
        Self { colour: colour % COLOURS, dash: BANDS[n % BANDS.len()], width: 4.5, opacity: 0.5 }
    }

    /// The `n`th line of those that are not, in the colour of index `colour`.
    pub const fn line(colour: usize, n: usize) -> Self {
        let dash = DASHES[n % DASHES.len()];
        let width = if n % DASHES.len() == 2 { 2.4 } else { 2.0 };
        Self { colour: colour % COLOURS, dash, width, opacity: 1.0 }
    }

    /// The colour on a page.
    pub fn css(&self) -> &'static str {
        CSS[self.colour % COLOURS]
    }

    /// The colour in a file.
    pub fn hex(&self) -> &'static str {
        LIGHT[self.colour % COLOURS]
    }

    /// The lengths of dashes and gaps; empty for a solid line.
    pub fn dashes(&self) -> Vec<f32> {
        self.dash.split(' ').filter_map(|n| n.parse().ok()).collect()
    }
}

/// A point's shape, in a box of 16 by 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marker {
    Circle,
    Square,
    /// A triangle, its tip up.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// A triangle, its tip down.
    Wedge,
    Hexagon,
}

/// In the order in which series get them.
const MARKERS: [Marker; 6] =
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Wedge, Marker::Hexagon];
/// A circle has this many corners.
const CIRCLE_CORNERS: u32 = 24;

impl Marker {
    /// Returns the `n`th marker; after the last comes the first.
    pub const fn nth(n: usize) -> Self {
        MARKERS[n % MARKERS.len()]
    }

    /// Returns an SVG path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Circle => "M8 2.5a5.5 5.5 0 1 0 .01 0Z",
            Self::Square => "M3 3H13V13H3Z",
            Self::Triangle => "M8 1.5L15 13.5H1Z",
            Self::Diamond => "M8 1L15 8L8 15L1 8Z",
            Self::Wedge => "M8 14.5L15 2.5H1Z",
            Self::Hexagon => "M8 1.5L14 5V11L8 14.5L2 11V5Z",
        }
    }

    /// Its corners around its middle.
    pub fn corners(self) -> Vec<(f32, f32)> {
        let corners: &[(f32, f32)] = match self {
            Self::Circle => {
                return (0..CIRCLE_CORNERS)
                    .map(|i| std::f32::consts::TAU * i as f32 / CIRCLE_CORNERS as f32)
                    .map(|angle| (5.5 * angle.cos(), 5.5 * angle.sin()))
                    .collect();
            }
            Self::Square => &[(-5.0, -5.0), (5.0, -5.0), (5.0, 5.0), (-5.0, 5.0)],
            Self::Triangle => &[(0.0, -6.5), (7.0, 5.5), (-7.0, 5.5)],
            Self::Diamond => &[(0.0, -7.0), (7.0, 0.0), (0.0, 7.0), (-7.0, 0.0)],
            Self::Wedge => &[(0.0, 6.5), (7.0, -5.5), (-7.0, -5.5)],
            Self::Hexagon => &[(0.0, -6.5), (6.0, -3.0), (6.0, 3.0), (0.0, 6.5), (-6.0, 3.0), (-6.0, -3.0)],
        };
        corners.to_vec()
    }
}

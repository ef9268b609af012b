//! A figure over time, bounded.

use serde::Serialize;
use std::collections::VecDeque;

/// Points that a series keeps: five minutes of one a second.
pub const MAX_POINTS: usize = 300;

/// A figure at one time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(into = "(f64, f64)")]
pub struct Point {
    /// Seconds since the monitor started.
    pub at_s: f64,
    pub value: f64,
}

impl From<Point> for (f64, f64) {
    fn from(point: Point) -> (f64, f64) {
        (point.at_s, point.value)
    }
}

/// The last points of a figure, oldest first.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(transparent)]
pub struct Series {
    points: VecDeque<Point>,
}

impl Series {
    /// Appends a point; the oldest one makes way. A value that is no number is left out.
    pub fn push(&mut self, at_s: f64, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(Point { at_s, value });
    }

    /// Iterates over the points, oldest first.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = Point> + ExactSizeIterator + '_ {
        self.points.iter().copied()
    }

    /// Returns the newest point.
    pub fn last(&self) -> Option<Point> {
        self.points.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_point_makes_way() {
        let mut series = Series::default();
        series.push(0.5, f64::NAN);
        for n in 0..=MAX_POINTS {
            series.push(n as f64, -(n as f64));
        }
        assert_eq!(series.points().len(), MAX_POINTS);
        assert_eq!(series.points().next(), Some(Point { at_s: 1.0, value: -1.0 }));
        assert_eq!(series.last().map(|p| p.at_s), Some(MAX_POINTS as f64));
        let mut short = Series::default();
        short.push(1.0, 2.5);
        assert_eq!(serde_json::to_string(&short).unwrap(), "[[1.0,2.5]]");
    }
}

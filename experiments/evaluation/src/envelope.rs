//! Throughput-delay envelopes, and how far two of them agree.
//!
//! As the performance envelopes of Mishra, Lim and Leong (Understanding Speciation in QUIC Congestion Control, IMC 2022), with one
//! cluster: the convex hull of an implementation's points but for the outermost twentieth. Conformance is the share of both
//! implementations' points that lie in both hulls.

use serde::{Deserialize, Serialize};

/// Share of the points, the nearest to their centroid, that the hull is of, in hundredths.
const KEPT_PERCENT: usize = 95;

/// A flow in some time: what it carried and how long its packets took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    pub throughput_mbit: f64,
    pub rtt_ms: f64,
}

/// The convex hull of an implementation's points.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// Its corners, counterclockwise; fewer than three where the points lie on a line.
    pub corners: Vec<Point>,
}

/// Twice the area of the triangle, positive where `c` is to the left of the way from `a` to `b`.
fn turn(a: &Point, b: &Point, c: &Point) -> f64 {
    (b.throughput_mbit - a.throughput_mbit) * (c.rtt_ms - a.rtt_ms)
        - (b.rtt_ms - a.rtt_ms) * (c.throughput_mbit - a.throughput_mbit)
}

impl Envelope {
    /// The envelope of these points.
    #[must_use]
    pub fn of(points: &[Point]) -> Envelope {
        Envelope { corners: hull(central(points)) }
    }

    /// Whether a point lies in it or on its edge.
    #[must_use]
    pub fn contains(&self, point: &Point) -> bool {
        match self.corners.as_slice() {
            [] => false,
            [only] => only == point,
            [a, b] => {
                let within = |x: f64, from: f64, to: f64| x >= from.min(to) && x <= from.max(to);
                turn(a, b, point) == 0.0
                    && within(point.throughput_mbit, a.throughput_mbit, b.throughput_mbit)
                    && within(point.rtt_ms, a.rtt_ms, b.rtt_ms)
            }
            corners => {
                let next = corners.iter().cycle().skip(1);
                corners.iter().zip(next).all(|(a, b)| turn(a, b, point) >= 0.0)
            }
        }
    }
}

/// The points nearest to their centroid, each dimension in its own mean.
fn central(points: &[Point]) -> Vec<Point> {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.throughput_mbit), mean(|p| p.rtt_ms));
    let unit = |mean: f64| if mean > 0.0 { mean } else { 1.0 };
    let distance = |p: &Point| ((p.throughput_mbit - x) / unit(x)).hypot((p.rtt_ms - y) / unit(y));
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    sorted.truncate((points.len() * KEPT_PERCENT).div_ceil(100));
    sorted
}

/// Andrew's monotone chain (Information Processing Letters 9, 1979).
fn hull(mut points: Vec<Point>) -> Vec<Point> {
    let order = |a: &Point, b: &Point| {
        a.throughput_mbit.total_cmp(&b.throughput_mbit).then(a.rtt_ms.total_cmp(&b.rtt_ms))
    };
    points.sort_by(order);
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let mut corners: Vec<Point> = half(points.iter());
    corners.extend(half(points.iter().rev()));
    corners
}

/// One side of the hull, without its last corner.
fn half<'a>(points: impl Iterator<Item = &'a Point>) -> Vec<Point> {
    let mut side: Vec<Point> = Vec::new();
    for point in points {
        while let [.., a, b] = side.as_slice() {
            if turn(a, b, point) > 0.0 {
                break;
            }
            side.pop();
        }
        side.push(*point);
    }
    side.pop();
    side
}

/// Share of the points of both that lie in both envelopes; `None` where either has none.
#[must_use]
pub fn conformance(ours: &[Point], theirs: &[Point]) -> Option<f64> {
    if ours.is_empty() || theirs.is_empty() {
        return None;
    }
    let envelopes = [Envelope::of(ours), Envelope::of(theirs)];
    let inside =
        ours.iter().chain(theirs).filter(|point| envelopes.iter().all(|envelope| envelope.contains(point)));
    Some(inside.count() as f64 / (ours.len() + theirs.len()) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point((throughput_mbit, rtt_ms): (f64, f64)) -> Point {
        Point { throughput_mbit, rtt_ms }
    }

    fn grid(from: (i32, i32), to: (i32, i32)) -> Vec<Point> {
        let all = (from.0..=to.0).flat_map(|x| (from.1..=to.1).map(move |y| (x, y)));
        all.map(|(x, y)| point((f64::from(x), f64::from(y)))).collect()
    }

    #[test]
    fn the_hull_has_the_corners_alone() {
        let corners = hull(grid((1, 1), (4, 3)));
        let expected = [(1.0, 1.0), (4.0, 1.0), (4.0, 3.0), (1.0, 3.0)].map(point);
        assert_eq!(corners, expected);
        let line = Envelope { corners: hull([(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)].map(point).to_vec()) };
        assert_eq!(line.corners.len(), 2);
        assert!(
            line.contains(&point((2.0, 2.0)))
                && !line.contains(&point((2.0, 2.5)))
                && !line.contains(&point((4.0, 4.0)))
        );
        assert!(!Envelope::of(&[]).contains(&point((1.0, 1.0))));
    }

    #[test]
    fn what_is_far_from_all_others_is_left_out() {
        let mut points = grid((10, 10), (19, 19));
        points.push(point((1000.0, 1000.0)));
        let envelope = Envelope::of(&points);
        assert!(!envelope.contains(&point((500.0, 500.0))) && envelope.contains(&point((14.0, 14.0))));
    }

    #[test]
    fn conformance_is_the_share_in_both() {
        let (a, far) = (grid((10, 10), (19, 19)), grid((30, 30), (39, 39)));
        assert!(conformance(&a, &a).unwrap() >= 0.9);
        assert_eq!(conformance(&a, &far), Some(0.0));
        // Half of each lies in the other.
        let half = conformance(&a, &grid((15, 10), (24, 19))).unwrap();
        assert!((0.3..0.55).contains(&half), "{half}");
        assert_eq!(conformance(&a, &[]), None);
    }

    fn points() -> impl Strategy<Value = Vec<Point>> {
        prop::collection::vec((0.0f64..100.0, 0.0f64..100.0).prop_map(point), 1..60)
    }

    proptest! {
        #[test]
        fn a_hull_contains_all_that_it_is_of(points in points()) {
            let envelope = Envelope { corners: hull(points.clone()) };
            // What lies on an edge may be off it by what products of decimals lose.
            let centre = points.iter().fold(point((0.0, 0.0)), |c, p| {
                let n = points.len() as f64;
                point((c.throughput_mbit + p.throughput_mbit / n, c.rtt_ms + p.rtt_ms / n))
            });
            let inward = |p: &Point| point((
                p.throughput_mbit + (centre.throughput_mbit - p.throughput_mbit) * 1e-6,
                p.rtt_ms + (centre.rtt_ms - p.rtt_ms) * 1e-6,
            ));
            prop_assert!(envelope.corners.len() < 3 || points.iter().all(|p| envelope.contains(&inward(p))));
        }

        #[test]
        fn conformance_is_a_share_and_the_same_for_both(a in points(), b in points()) {
            let (ab, ba) = (conformance(&a, &b).unwrap(), conformance(&b, &a).unwrap());
            prop_assert!((0.0..=1.0).contains(&ab) && ab == ba);
        }
    }
}

//! One link with strict priorities as a fluid: flows of one level share what the levels before it leave.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Levels of priority.
pub const LEVELS: usize = 8;

/// A flow's way down the levels.
#[derive(Clone, Debug)]
pub struct Fluid {
    /// When it arrives, nanoseconds.
    pub arrival_ns: u64,
    /// The level of each part of the flow, in order, and how many bytes it has: levels never become better.
    pub parts: Vec<(usize, u64)>,
}

/// The flows of one level. Each is served as many bytes in the same time, so one count of bytes tells how far all are.
#[derive(Default)]
struct Level {
    served: f64,
    /// The count at which each flow's part ends, as bits of a positive number, which sort as it does; the flow; its part.
    ends: BinaryHeap<Reverse<(u64, usize, usize)>>,
}

/// Returns the time at which each flow ends, nanoseconds, on a link of so many bytes per nanosecond.
pub fn ends_ns(flows: &[Fluid], bytes_per_ns: f64) -> Vec<f64> {
    let mut ends = vec![0.0; flows.len()];
    let mut levels: [Level; LEVELS] = Default::default();
    let mut now_ns = 0.0;
    let mut arrivals = flows.iter().enumerate().peekable();
    loop {
        let next_ns = arrivals.peek().map_or(f64::INFINITY, |(_, flow)| flow.arrival_ns as f64);
        let Some(at) = levels.iter().position(|level| !level.ends.is_empty()) else {
            let Some((flow, fluid)) = arrivals.next() else { return ends };
            now_ns = fluid.arrival_ns as f64;
            enter(&mut levels, flows, flow, 0);
            continue;
        };
        let level = &mut levels[at];
        let count = level.ends.len() as f64;
        let first = level.ends.peek().map_or(f64::INFINITY, |Reverse((end, ..))| f64::from_bits(*end));
        let done_ns = now_ns + (first - level.served).max(0.0) * count / bytes_per_ns;
        if next_ns < done_ns {
            level.served += (next_ns - now_ns) * bytes_per_ns / count;
            now_ns = next_ns;
            if let Some((flow, _)) = arrivals.next() {
                enter(&mut levels, flows, flow, 0);
            }
            continue;
        }
        now_ns = done_ns;
        level.served = first;
        if let Some(Reverse((_, flow, part))) = level.ends.pop() {
            if part + 1 < flows[flow].parts.len() {
                enter(&mut levels, flows, flow, part + 1);
            } else {
                ends[flow] = now_ns;
            }
        }
    }
}

fn enter(levels: &mut [Level; LEVELS], flows: &[Fluid], flow: usize, part: usize) {
    let Some((level, bytes)) = flows[flow].parts.get(part) else { return };
    let level = &mut levels[(*level).min(LEVELS - 1)];
    let end = level.served + *bytes as f64;
    level.ends.push(Reverse((end.to_bits(), flow, part)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(arrival_ns: u64, parts: &[(usize, u64)]) -> Fluid {
        Fluid { arrival_ns, parts: parts.to_vec() }
    }

    #[test]
    fn flows_of_one_level_share_and_better_levels_go_first() {
        let flows = [flow(0, &[(1, 1000)]), flow(100, &[(1, 100)]), flow(200, &[(0, 50)])];
        // 100 alone; two share until 200, when each has had 50 more; then the urgent one; then 50 of the second take 100.
        assert_eq!(ends_ns(&flows, 1.0), [1150.0, 350.0, 250.0]);
        let demoted = [flow(0, &[(0, 100), (3, 900)]), flow(50, &[(2, 500)])];
        assert_eq!(ends_ns(&demoted, 1.0), [1500.0, 600.0]);
    }

    /// An M/M/1 queue with processor sharing: a flow of x bytes takes x / (1 - load) on average.
    #[test]
    fn sharing_slows_every_size_alike() {
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            -(((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64).ln()
        };
        let mut now = 0.0;
        let flows: Vec<Fluid> = (0..200_000)
            .map(|_| {
                now += draw() * 2000.0;
                flow(now as u64, &[(0, (draw() * 1000.0) as u64 + 1)])
            })
            .collect();
        let ends = ends_ns(&flows, 1.0);
        for (low, high) in [(1, 500), (500, 2000), (2000, u64::MAX)] {
            let of: Vec<f64> = flows
                .iter()
                .zip(&ends)
                .filter(|(flow, _)| (low..high).contains(&flow.parts[0].1))
                .map(|(flow, end)| (end - flow.arrival_ns as f64) / flow.parts[0].1 as f64)
                .collect();
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            assert!((mean - 2.0).abs() < 0.1, "{low}: {mean}");
        }
    }
}

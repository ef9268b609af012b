//! Learns the thresholds between priorities from flows that have ended, as PIAS does from the distribution of sizes.
//!
//! The flows are sent again over one link with strict priorities ([`crate::queue`]). Its thresholds change one at a
//! time for as long as flows become faster. What counts is the mean logarithm of completion times, of small, medium and
//! large flows alike. Thresholds of the prediction are kept only if they are worth more than [`LEAST_GAIN`] on flows
//! that they were not learned from.

use crate::figures::SizeClass;
use crate::queue::{Fluid, LEVELS, ends_ns};
use ccplane_algs::{CENTRE, Demotions, SIZE_INPUTS, SizeDecision, SizeThresholds, THRESHOLDS, log2_q16};

/// Load of the link that the flows are sent over, against their bytes.
const LOAD: f64 = 0.7;
/// Bytes that it sends in a nanosecond: 10 Gb/s.
const BYTES_PER_NS: f64 = 1.25;
/// The part of a completion time that no priority changes, nanoseconds.
const FIXED_NS: f64 = 20_000.0;
/// Thresholds that are tried: so many to a factor of two.
const STEPS_PER_OCTAVE: i32 = 2;
/// Smallest and largest threshold, as powers of two of bytes.
const OCTAVES: std::ops::RangeInclusive<i32> = 11..=28;
/// Rounds in which every threshold is tried again.
const ROUNDS: usize = 3;
/// Mean logarithm by which prediction has to shorten completion times: half a percent.
const LEAST_GAIN: f64 = 0.005;

/// A flow that has ended, with the predictions of its size.
#[derive(Clone, PartialEq, Debug)]
pub struct SizedFlow {
    pub size_bytes: u64,
    /// In order of the bytes that it had sent.
    pub decisions: Vec<SizeDecision>,
}

/// Learns at how many bytes sent flows are to fall.
pub fn demotions(flows: &[SizedFlow]) -> Demotions {
    let never = |demotions: Demotions| SizeThresholds {
        demotions,
        predicted_q16: [SizeThresholds::NEVER; THRESHOLDS],
    };
    let grid: Vec<u64> = grid().map(|(_, bytes)| bytes).collect();
    let mut best = Demotions::default();
    let mut least = cost(flows, &never(best));
    improve(&grid, &mut best.0, &mut least, |tried| cost(flows, &never(Demotions(*tried))));
    best
}

/// Flows that demotions are learned from, at most; of more, evenly chosen ones stand for all.
const MOST_FLOWS: usize = 4000;

/// Learns at how many bytes sent flows are to fall, from the sizes of earlier ones in the order in which they came.
pub fn demotions_of_sizes(sizes: &[u64]) -> Demotions {
    let step = sizes.len().div_ceil(MOST_FLOWS).max(1);
    let flow = |size: &u64| SizedFlow { size_bytes: *size, decisions: Vec::new() };
    demotions(&sizes.iter().step_by(step).map(flow).collect::<Vec<_>>())
}

/// Learns thresholds of the prediction for these of bytes sent, from some flows; tries them on others.
pub fn thresholds(demotions: Demotions, flows: &[SizedFlow], others: &[SizedFlow]) -> SizeThresholds {
    let with = |predicted_q16| SizeThresholds { demotions, predicted_q16 };
    let never = with([SizeThresholds::NEVER; THRESHOLDS]);
    let centre = CENTRE << 16;
    let mut grid: Vec<i32> = grid().map(|(log2, _)| log2 - centre).collect();
    grid.push(SizeThresholds::NEVER);
    let starts = [never.predicted_q16, demotions.0.map(|bytes| log2_q16(bytes) - centre)];
    let learned = starts.into_iter().map(|mut predicted| {
        let mut least = cost(flows, &with(predicted));
        improve(&grid, &mut predicted, &mut least, |tried| cost(flows, &with(*tried)));
        (least, predicted)
    });
    let best = learned.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(never, |(_, predicted)| with(predicted));
    if cost(others, &best) < cost(others, &never) - LEAST_GAIN { best } else { never }
}

/// The thresholds that are tried: logarithm, base 2, Q16, and bytes.
fn grid() -> impl Iterator<Item = (i32, u64)> {
    let steps = OCTAVES.start() * STEPS_PER_OCTAVE..=OCTAVES.end() * STEPS_PER_OCTAVE;
    steps.map(|step| {
        let log2 = (step << 16) / STEPS_PER_OCTAVE;
        (log2, bytes_of(log2))
    })
}

/// The bytes whose logarithm, as [`log2_q16`] has it, is this; as many as there can be from 2^47 on.
pub(crate) fn bytes_of(log2_q16: i32) -> u64 {
    let whole = log2_q16.max(0) >> 16;
    if whole > LARGEST_LOG2 {
        return u64::MAX;
    }
    let bytes = 1_u64 << whole;
    bytes + ((bytes * (log2_q16 as u64 & 0xffff)) >> 16)
}

/// The largest power of two that [`bytes_of`] tells from others.
const LARGEST_LOG2: i32 = 46;

/// The same flow with the prediction of one who knows its size.
pub(crate) fn exact(flow: &SizedFlow) -> SizedFlow {
    let mut decision = SizeDecision { inputs: [0; SIZE_INPUTS], sent_bytes: 0, snapshot: 0, action_q16: 0 };
    decision.action_q16 = log2_q16(flow.size_bytes) - (CENTRE << 16);
    SizedFlow { size_bytes: flow.size_bytes, decisions: vec![decision] }
}

/// Moves one threshold at a time to the best place between its neighbours.
fn improve<T: Copy + Ord>(
    grid: &[T],
    thresholds: &mut [T; THRESHOLDS],
    least: &mut f64,
    cost: impl Fn(&[T; THRESHOLDS]) -> f64,
) {
    for _ in 0..ROUNDS {
        let before = *least;
        for n in 0..THRESHOLDS {
            let low = n.checked_sub(1).map(|n| thresholds[n]);
            let high = thresholds.get(n + 1).copied();
            let allowed =
                |value: &&T| low.is_none_or(|low| low <= **value) && high.is_none_or(|high| **value <= high);
            let mut tried = *thresholds;
            for value in grid.iter().filter(allowed) {
                tried[n] = *value;
                let found = cost(&tried);
                if found < *least {
                    (*least, *thresholds) = (found, tried);
                }
            }
        }
        if *least >= before {
            return;
        }
    }
}

/// The mean logarithm of completion times, of each class of sizes alike.
fn cost(flows: &[SizedFlow], thresholds: &SizeThresholds) -> f64 {
    let mean_bytes = flows.iter().map(|flow| flow.size_bytes as f64).sum::<f64>() / flows.len().max(1) as f64;
    let gap_ns = mean_bytes / BYTES_PER_NS / LOAD;
    let mut now_ns = 0.0;
    let fluids: Vec<Fluid> = flows
        .iter()
        .enumerate()
        .map(|(n, flow)| {
            now_ns += gap_ns * exponential(n);
            Fluid { arrival_ns: now_ns as u64, parts: parts(flow, thresholds) }
        })
        .collect();
    let ends = ends_ns(&fluids, BYTES_PER_NS);
    let mut sums = [(0.0, 0.0); SizeClass::ALL.len()];
    for ((flow, fluid), end_ns) in flows.iter().zip(&fluids).zip(ends) {
        let sum = &mut sums[SizeClass::of(flow.size_bytes) as usize];
        let taken_ns = (end_ns - fluid.arrival_ns as f64 + FIXED_NS).max(1.0);
        *sum = (sum.0 + ccplane_learn::math::ln(taken_ns), sum.1 + 1.0);
    }
    let there = sums.iter().filter(|(_, count)| *count > 0.0);
    let (sum, classes) = there.fold((0.0, 0.0), |(sum, n), (logs, count)| (sum + logs / count, n + 1.0));
    sum / f64::max(classes, 1.0)
}

/// The `n`th gap between arrivals as a share of the mean one: exponential, from a fixed stream.
fn exponential(n: usize) -> f64 {
    let uniform = ccplane_learn::Rng::new(n as u64, &[ARRIVALS]).uniform();
    -ccplane_learn::math::ln(1.0 - uniform)
}

/// The stream of arrivals.
const ARRIVALS: u64 = 0xa881;

/// The levels that a flow passes, as the program of `size` decides.
fn parts(flow: &SizedFlow, thresholds: &SizeThresholds) -> Vec<(usize, u64)> {
    let mut parts: Vec<(usize, u64)> = Vec::with_capacity(LEVELS);
    let (mut level, mut sent) = (0, 0);
    let mut decisions = flow.decisions.iter().peekable();
    let mut action = i32::MIN;
    for next in thresholds.demotions.0.into_iter().chain([u64::MAX]) {
        while let Some(decision) = decisions.next_if(|decision| decision.sent_bytes <= sent) {
            action = decision.action_q16;
        }
        let predicted = thresholds.predicted_q16.iter().filter(|threshold| action > **threshold).count();
        let fallen = thresholds.demotions.0.iter().filter(|threshold| sent >= **threshold).count();
        level = level.max(predicted).max(fallen);
        let end = next.min(flow.size_bytes);
        if end > sent {
            parts.push((level, end - sent));
            sent = end;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::workload::{Arrivals, FlowSizes};

    /// Web search flows whose prediction is right but for this deviation, in octaves; `None`: the same for all.
    fn flows(seed: u64, deviation: Option<f64>) -> Vec<SizedFlow> {
        let mut noise = ccplane_learn::Rng::new(seed, &[]);
        let arrivals = Arrivals::new(&FlowSizes::web_search(), 500_000, 10_000_000_000, seed).unwrap();
        let mut flow = |size_bytes: u64| {
            let error = deviation.map(|deviation| (deviation * noise.normal() * 65_536.0) as i32);
            let action_q16 = error.map_or(0, |error| log2_q16(size_bytes) - (CENTRE << 16) + error);
            let decision = SizeDecision { inputs: [0; SIZE_INPUTS], sent_bytes: 0, snapshot: 1, action_q16 };
            SizedFlow { size_bytes, decisions: vec![decision] }
        };
        arrivals.take(1500).map(|arrival| flow(arrival.bytes)).collect()
    }

    #[test]
    fn a_flow_passes_the_levels_of_what_it_sent_and_what_was_predicted() {
        let mut flow = flows(1, Some(0.0)).remove(0);
        flow.size_bytes = 100_000;
        flow.decisions[0].action_q16 = i32::MIN;
        let thresholds = SizeThresholds::default();
        assert_eq!(parts(&flow, &thresholds), [(0, 20_000), (1, 40_000), (2, 40_000)]);
        flow.decisions[0].action_q16 = log2_q16(100_000) - (CENTRE << 16);
        assert_eq!(parts(&flow, &thresholds), [(2, 20_000), (2, 40_000), (2, 40_000)]);
    }

    #[test]
    fn learned_demotions_are_better_than_the_usual_ones_and_than_none() {
        let flows = flows(1, None);
        let at = |demotions| {
            cost(&flows, &SizeThresholds { demotions, predicted_q16: [SizeThresholds::NEVER; THRESHOLDS] })
        };
        let learned = demotions(&flows);
        assert!(learned.0.is_sorted(), "{learned:?}");
        let (learned, usual, none) =
            (at(learned), at(Demotions::default()), at(Demotions([u64::MAX; THRESHOLDS])));
        assert!(learned <= usual && usual < none, "{learned} {usual} {none}");
    }

    #[test]
    fn demotions_follow_from_sizes_alone() {
        let flows = flows(1, None);
        let sizes: Vec<u64> = flows.iter().map(|flow| flow.size_bytes).collect();
        assert_eq!(demotions_of_sizes(&sizes), demotions(&flows));
        // Of flows a hundred times as small, other ones.
        let small: Vec<u64> = sizes.iter().map(|size| (size / 100).max(1)).collect();
        let (learned, of_large) = (demotions_of_sizes(&small), demotions_of_sizes(&sizes));
        let at = |demotions| {
            let flows: Vec<SizedFlow> =
                small.iter().map(|size| SizedFlow { size_bytes: *size, decisions: Vec::new() }).collect();
            cost(&flows, &SizeThresholds { demotions, predicted_q16: [SizeThresholds::NEVER; THRESHOLDS] })
        };
        assert!(learned.0.is_sorted() && at(learned) < at(of_large), "{learned:?} {of_large:?}");
        // No flows, no reason to change anything.
        assert_eq!(demotions_of_sizes(&[]), Demotions::default());
    }

    #[test]
    fn a_prediction_is_trusted_as_far_as_it_is_right() {
        let never = [SizeThresholds::NEVER; THRESHOLDS];
        let learn = |deviation| {
            let (seen, unseen) = (flows(1, deviation), flows(2, deviation));
            let demotions = Demotions::default();
            let learned = thresholds(demotions, &seen, &unseen);
            let gain =
                cost(&unseen, &SizeThresholds { demotions, predicted_q16: never }) - cost(&unseen, &learned);
            (learned.predicted_q16, gain)
        };
        let (blind, none) = learn(None);
        assert_eq!((blind, none), (never, 0.0));
        let ((sharp, full), (_, partial)) = (learn(Some(0.1)), learn(Some(2.0)));
        assert!(sharp.is_sorted() && sharp != never, "{sharp:?}");
        assert!(full > partial && partial >= 0.0, "{full} {partial}");
    }
}

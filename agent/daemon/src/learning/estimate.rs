//! What the flows' paths are like, from what their datapath samples of them.

use super::mailbox::LoopId;
use ccplane_core::{Batch, DatapathId, Measure};
use std::collections::{BTreeMap, VecDeque};

/// How far back samples count, microseconds of the datapath's clock.
const WINDOW_US: u64 = 5_000_000;
/// Samples of one flow, at most.
const MAX_SAMPLES: usize = 64;
/// Flows that are followed, at most.
const MAX_FLOWS: usize = 1024;
/// Intervals without which a path is not known.
const LEAST_INTERVALS: usize = 8;
/// A queue that adds less than this share of the round trip is none: what is lost then is lost at random.
const EMPTY_QUEUE: f64 = 0.25;
/// Wire bytes of a full packet.
const WIRE_BYTES: f64 = 1500.0;

/// A path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Path {
    /// What it can carry, payload bytes per second: the 90th percentile of what it has delivered.
    pub(super) bytes_per_s: f64,
    /// Round trip without a queue, microseconds.
    pub(super) rtt_us: f64,
    /// The longest queue that was seen, bandwidth-delay products.
    pub(super) queue_bdp: f64,
    /// Share of packets lost while there was no queue.
    pub(super) loss: f64,
    /// Standard deviation of the delivery rate's logarithm.
    pub(super) variation: f64,
}

impl Path {
    /// Whether a policy for this path may be wrong for the other.
    pub(super) fn differs(&self, other: &Path) -> bool {
        let apart = |a: f64, b: f64, limit: f64| (a.max(1e-9) / b.max(1e-9)).ln().abs() > limit;
        let loss = (self.loss - other.loss).abs() > 0.004 && apart(self.loss, other.loss, 0.7);
        loss || apart(self.bytes_per_s, other.bytes_per_s, 0.4) || apart(self.rtt_us, other.rtt_us, 0.3)
    }
}

type FlowName = (LoopId, DatapathId, u64);

/// Every flow's samples.
#[derive(Default)]
pub(super) struct Estimator {
    flows: BTreeMap<FlowName, VecDeque<Measure>>,
}

/// Between two samples.
struct Interval {
    bytes_per_s: f64,
    srtt_us: f64,
    delivered: f64,
    lost: f64,
}

impl Estimator {
    pub(super) fn take(&mut self, from: LoopId, batch: &Batch) {
        for measure in &batch.measures {
            let name = (from, batch.datapath, measure.flow.0);
            if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&name) {
                continue;
            }
            let samples = self.flows.entry(name).or_default();
            if samples.back().is_none_or(|last| last.at_us < measure.at_us) {
                samples.push_back(*measure);
            }
            let old = |m: &Measure| m.at_us + WINDOW_US < measure.at_us;
            while samples.len() > MAX_SAMPLES || samples.front().is_some_and(old) {
                samples.pop_front();
            }
        }
        // Flows that ended are not sampled any more.
        let heard = |name: &FlowName| {
            (name.0, name.1) != (from, batch.datapath) || batch.measures.iter().any(|m| m.flow.0 == name.2)
        };
        if !batch.measures.is_empty() {
            self.flows.retain(|name, _| heard(name));
        }
    }

    /// The path of the flow that is known best: the one with most packets; and how many flows there are.
    pub(super) fn path(&self) -> Option<(Path, usize)> {
        let known = self.flows.values().filter(|samples| samples.len() > LEAST_INTERVALS);
        let carried = |samples: &VecDeque<Measure>| match (samples.front(), samples.back()) {
            (Some(first), Some(last)) => last.delivered.saturating_sub(first.delivered),
            _ => 0,
        };
        let best = known.max_by_key(|samples| carried(samples))?;
        Some((path(best)?, self.flows.len()))
    }
}

fn path(samples: &VecDeque<Measure>) -> Option<Path> {
    let intervals: Vec<Interval> = samples.iter().zip(samples.iter().skip(1)).map(interval).collect();
    let mut rates: Vec<f64> = intervals.iter().map(|i| i.bytes_per_s).filter(|r| *r > 0.0).collect();
    if rates.len() < LEAST_INTERVALS {
        return None;
    }
    rates.sort_unstable_by(f64::total_cmp);
    let bytes_per_s = rates[rates.len() * 9 / 10];
    let seen = |f: fn(f64, f64) -> f64, start| intervals.iter().map(|i| i.srtt_us).fold(start, f);
    let (least_us, most_us) = (seen(f64::min, f64::INFINITY), seen(f64::max, 0.0));
    // The smallest of a flow's life may be that of another way.
    let ever_us = samples.back().map_or(0.0, |m| f64::from(m.min_rtt_us));
    let rtt_us = if ever_us > 0.0 && least_us < 1.5 * ever_us { ever_us } else { least_us };
    if !(rtt_us > 0.0 && rtt_us.is_finite()) {
        return None;
    }
    let bdp_packets = bytes_per_s * rtt_us / 1e6 / WIRE_BYTES;
    let queue_packets = ((most_us - rtt_us) / rtt_us).max(0.0) * bdp_packets;
    let empty = |i: &&Interval| i.srtt_us < (1.0 + EMPTY_QUEUE) * rtt_us;
    let sums = |(delivered, lost): (f64, f64), i: &Interval| (delivered + i.delivered, lost + i.lost);
    let (delivered, lost) = intervals.iter().filter(empty).fold((0.0, 0.0), sums);
    let logs: Vec<f64> = rates.iter().map(|r| r.ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
    Some(Path {
        bytes_per_s,
        rtt_us,
        queue_bdp: queue_packets / bdp_packets.max(1.0),
        loss: if delivered > 0.0 { lost / (delivered + lost) } else { 0.0 },
        variation,
    })
}

fn interval((before, after): (&Measure, &Measure)) -> Interval {
    let seconds = after.at_us.saturating_sub(before.at_us).max(1) as f64 / 1e6;
    Interval {
        bytes_per_s: after.bytes_acked.saturating_sub(before.bytes_acked) as f64 / seconds,
        srtt_us: f64::from(after.srtt_us),
        delivered: after.delivered.saturating_sub(before.delivered) as f64,
        lost: after.lost.saturating_sub(before.lost) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::FlowId;

    /// A flow of 10 Mb/s and 40 ms that loses one packet in a hundred, and fills a queue of 40 ms in the end.
    fn batches() -> Estimator {
        let mut estimator = Estimator::default();
        for n in 0..25u64 {
            let full = n >= 20;
            let measure = Measure {
                flow: FlowId(7),
                at_us: n * 200_000,
                bytes_acked: n * 250_000,
                delivered: n * 172,
                lost: n * 2 + if full { 50 * (n - 19) } else { 0 },
                srtt_us: if full { 80_000 } else { 41_000 },
                min_rtt_us: 40_000,
            };
            let batch = Batch {
                datapath: DatapathId(0),
                algorithm: "a",
                slot: 0,
                rows: Vec::new(),
                dropped: 0,
                measures: vec![measure],
            };
            estimator.take(LoopId(0), &batch);
        }
        estimator
    }

    #[test]
    fn a_path_is_what_its_samples_say() {
        let (path, flows) = batches().path().unwrap();
        assert_eq!(flows, 1);
        assert!((path.bytes_per_s - 1_250_000.0).abs() < 1.0 && path.rtt_us == 40_000.0, "{path:?}");
        assert!((path.queue_bdp - 1.0).abs() < 0.01 && (path.loss - 0.0115).abs() < 0.001, "{path:?}");
        assert!(path.variation < 1e-6);
        assert!(!path.differs(&Path { bytes_per_s: 1_000_000.0, ..path }));
        assert!(path.differs(&Path { bytes_per_s: 2_500_000.0, ..path }));
        assert!(path.differs(&Path { loss: 0.03, ..path }));
        assert!(path.differs(&Path { rtt_us: 80_000.0, ..path }));
    }

    #[test]
    fn little_is_nothing() {
        assert_eq!(Estimator::default().path(), None);
    }
}

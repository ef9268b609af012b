//! Estimates of the flows' paths from their datapath's samples.

use super::change::Block;
use super::mailbox::LoopId;
use ccplane_algs::Largest;
use ccplane_core::{Batch, DatapathId, Measure};
use std::collections::{BTreeMap, VecDeque};

/// A block of samples, microseconds.
const BLOCK_US: u64 = 1_000_000;
/// The number of packets below which a share of losses says little.
const LEAST_PACKETS: f64 = 200.0;
/// The share of the busiest flow's delivery rate below which a flow is not followed any more.
const FOLLOWED_SHARE: f64 = 0.5;
/// The greatest age of samples that count, microseconds; the last [`LEAST_SAMPLES`] count at any age.
const WINDOW_US: u64 = 4_000_000;
/// Samples kept after a change of the path, microseconds: the change began before it was detected.
const LATE_US: u64 = 3_000_000;
/// Samples of one flow, at least and at most.
const LEAST_SAMPLES: usize = 10;
const MAX_SAMPLES: usize = 64;
/// For how long it is remembered what flows have delivered and how short round trips were, microseconds.
const MEMORY_US: u64 = 60_000_000;
/// Flows that are followed, at most.
const MAX_FLOWS: usize = 1024;
/// Time without whose samples a path is not known: some round trips, in which a flow fills it.
const LEAST_SPAN_US: u64 = 2_000_000;
/// Round trips without a queue are within this factor of the smallest of a flow's life, or the path is another.
const SAME_RTT: f64 = 1.25;
/// The factor by which a second's round trips may exceed the shortest recent one.
///
/// If none stays within it, a queue stands that may overflow at any time.
const STANDING_QUEUE: f64 = 1.5;
/// Queues shorter than this share of the round trip are taken for empty, and losses there for random ones: a short queue
/// overflows where it is longest.
const EMPTY_QUEUE: f64 = 0.25;
/// The same, as a share of the longest queue.
const EMPTY_SHARE: f64 = 1.0 / 3.0;

/// A path as it is estimated.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Path {
    /// Delivery rate of all flows together, payload bytes per second: the sum of their 90th percentiles.
    pub(super) bytes_per_s: f64,
    /// The most that they have delivered within a minute or two: what came down may not have.
    pub(super) most_bytes_per_s: f64,
    /// The flows that run on it.
    pub(super) flows: usize,
    /// Round trip without a queue, microseconds.
    pub(super) rtt_us: f64,
    /// The longest queue that was seen, bandwidth-delay products.
    pub(super) queue_bdp: f64,
    /// Share of packets lost while there was no queue.
    pub(super) loss: f64,
    /// Standard deviation of the delivery rate's logarithm.
    pub(super) variation: f64,
}

type FlowName = (LoopId, DatapathId, u64);

/// The samples of every flow.
pub(super) struct Estimator {
    flows: BTreeMap<FlowName, VecDeque<Measure>>,
    /// Largest delivery rates of all flows together, payload bytes per second.
    most: Largest,
    /// The flow whose path is followed from second to second.
    main: Option<FlowName>,
    /// When the second ends that is under way, microseconds; 0 before the first.
    block_ends_us: u64,
    /// Packets that met no queue and have not been told of yet: delivered and lost.
    unqueued: (f64, f64),
    /// The reciprocal of the shortest round trip since the path was last another.
    per_rtt: Largest,
}

/// A second of a path.
pub(super) struct Second {
    pub(super) block: Block,
    /// The path is another than the second before: the flow that was followed has gone, or delivers little.
    pub(super) is_another: bool,
}

impl Default for Estimator {
    fn default() -> Estimator {
        Estimator {
            flows: BTreeMap::new(),
            most: Largest::within(MEMORY_US),
            main: None,
            block_ends_us: 0,
            unqueued: (0.0, 0.0),
            per_rtt: Largest::within(MEMORY_US),
        }
    }
}

/// The time between two samples of a flow.
struct Interval {
    packets_per_s: f64,
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
            while samples.len() > MAX_SAMPLES
                || (samples.len() > LEAST_SAMPLES && samples.front().is_some_and(old))
            {
                samples.pop_front();
            }
        }
        // Flows that ended are not sampled any more.
        let is_sampled = |name: &FlowName| {
            (name.0, name.1) != (from, batch.datapath) || batch.measures.iter().any(|m| m.flow.0 == name.2)
        };
        if !batch.measures.is_empty() {
            self.flows.retain(|name, _| is_sampled(name));
        }
    }

    /// Forgets all samples but the latest, since a change is detected some seconds after it began. After a change of the
    /// round trip, earlier samples say nothing about queues.
    pub(super) fn forget(&mut self, now_us: u64, is_rtt: bool) {
        for samples in self.flows.values_mut() {
            while samples.len() > 1 && samples.front().is_some_and(|m| m.at_us + LATE_US < now_us) {
                samples.pop_front();
            }
        }
        self.unqueued = (0.0, 0.0);
        if is_rtt {
            self.per_rtt = Largest::within(MEMORY_US);
        }
    }

    /// Returns the next second that has ended by now, of one flow and of those whose round trips are
    /// like its own; `None` also where nothing was delivered.
    pub(super) fn second(&mut self, now_us: u64) -> Option<Second> {
        if self.block_ends_us == 0 || now_us >= self.block_ends_us + 2 * BLOCK_US {
            // The first, or nothing has come for long.
            self.block_ends_us = now_us + BLOCK_US;
        }
        if now_us < self.block_ends_us {
            return None;
        }
        let to_us = self.block_ends_us;
        self.block_ends_us += BLOCK_US;
        let parts: BTreeMap<FlowName, Part> =
            self.flows.iter().filter_map(|(name, samples)| Some((*name, part(samples, to_us)?))).collect();
        let (busiest, most) = parts.iter().max_by(|a, b| a.1.bytes_per_s.total_cmp(&b.1.bytes_per_s))?;
        let before = self.main.and_then(|name| parts.get(&name));
        let followed = before.filter(|p| p.bytes_per_s >= FOLLOWED_SHARE * most.bytes_per_s);
        let like = |p: &Part, of: &Part| !apart(p.base_us, of.base_us, SAME_RTT.ln());
        // One that has gone may have shared its path with the busiest: of that nothing is known any more.
        let is_another = self.main.is_some() && followed.is_none() && !before.is_some_and(|p| like(p, most));
        let main = followed.unwrap_or(most);
        if followed.is_none() {
            self.main = Some(*busiest);
        }
        let all = || parts.values().filter(|p| like(p, main));
        // A queue that stands full for seconds looks like a longer path.
        if is_another {
            self.per_rtt = Largest::within(MEMORY_US);
        }
        let shortest_us = 1.0 / self.per_rtt.update(1.0 / main.rtt_us.max(1.0), to_us);
        let may_be_empty = |p: &&Part| p.rtt_us <= STANDING_QUEUE * shortest_us;
        let unqueued = all().filter(may_be_empty).map(|p| p.unqueued);
        let (delivered, lost) = unqueued.fold(self.unqueued, |a, b| (a.0 + b.0, a.1 + b.1));
        let is_enough = delivered + lost >= LEAST_PACKETS;
        self.unqueued = if is_enough { (0.0, 0.0) } else { (delivered, lost) };
        let block = Block {
            bytes_per_s: all().map(|p| p.bytes_per_s).sum(),
            rtt_us: main.rtt_us,
            loss: is_enough.then(|| lost / (delivered + lost)),
        };
        Some(Second { block, is_another })
    }

    /// The path of the flow that delivers most, and of those whose round trips are like its own.
    pub(super) fn path(&mut self, now_us: u64) -> Option<Path> {
        let known: Vec<Path> = self.flows.values().filter_map(path).collect();
        let most = known.iter().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s))?;
        let beside = known.iter().filter(|p| !apart(p.rtt_us, most.rtt_us, SAME_RTT.ln()));
        let (sum, flows) = beside.fold((0.0, 0), |(sum, n), p| (sum + p.bytes_per_s, n + 1));
        let most_bytes_per_s = self.most.update(sum, now_us);
        Some(Path { bytes_per_s: sum, most_bytes_per_s, flows, ..*most })
    }
}

/// Whether two values are further apart than this, in logarithms.
pub(super) fn apart(a: f64, b: f64, limit: f64) -> bool {
    (a.max(1e-9) / b.max(1e-9)).ln().abs() > limit
}

/// One flow's part of a second.
struct Part {
    bytes_per_s: f64,
    rtt_us: f64,
    /// Shortest round trip of the flow's life.
    base_us: f64,
    /// Packets delivered and lost while there was no queue.
    unqueued: (f64, f64),
}

/// The samples of the second until `to_us`.
fn part(samples: &VecDeque<Measure>, to_us: u64) -> Option<Part> {
    let inside = |m: &Measure| m.at_us > to_us.saturating_sub(BLOCK_US) && m.at_us <= to_us;
    let pairs = || samples.iter().zip(samples.iter().skip(1)).filter(|(_, after)| inside(after));
    let us: u64 = pairs().map(|(before, after)| after.at_us.saturating_sub(before.at_us)).sum();
    let packets: f64 = pairs().map(interval).map(|i| i.delivered).sum();
    let last = samples.back()?;
    if us == 0 || packets < 1.0 {
        return None;
    }
    let rtts = || samples.iter().skip(1).map(|m| f64::from(m.transport.srtt_us));
    let (least_us, most_us) = (rtts().fold(f64::INFINITY, f64::min), rtts().fold(0.0, f64::max));
    let empty_us = empty_us(least_us, most_us, least_us);
    let unqueued = pairs().map(interval).filter(|i| i.srtt_us <= empty_us);
    Some(Part {
        bytes_per_s: packets * last.transport.bytes_acked as f64 / last.transport.delivered.max(1) as f64
            * 1e6
            / us as f64,
        rtt_us: pairs().map(|(_, after)| f64::from(after.transport.srtt_us)).fold(f64::INFINITY, f64::min),
        base_us: f64::from(last.transport.min_rtt_us),
        unqueued: unqueued.fold((0.0, 0.0), |(delivered, lost), i| (delivered + i.delivered, lost + i.lost)),
    })
}

/// Round trips up to this had no queue.
fn empty_us(least_us: f64, most_us: f64, rtt_us: f64) -> f64 {
    least_us + (EMPTY_QUEUE * rtt_us).min(EMPTY_SHARE * (most_us - least_us))
}

fn path(samples: &VecDeque<Measure>) -> Option<Path> {
    let (first, last) = (samples.front()?, samples.back()?);
    let packets = last.transport.delivered.saturating_sub(first.transport.delivered) as f64;
    if last.at_us.saturating_sub(first.at_us) < LEAST_SPAN_US || packets < 1.0 {
        return None;
    }
    let intervals: Vec<Interval> = samples.iter().zip(samples.iter().skip(1)).map(interval).collect();
    let mut rates: Vec<f64> = intervals.iter().map(|i| i.packets_per_s).filter(|r| *r > 0.0).collect();
    rates.sort_unstable_by(f64::total_cmp);
    let rate = *rates.get(rates.len() * 9 / 10)?;
    // What holes hold back is acknowledged later: bytes come in bursts, packets do not.
    let packet_bytes = last.transport.bytes_acked as f64 / last.transport.delivered as f64;
    let seen = |f: fn(f64, f64) -> f64, start| intervals.iter().map(|i| i.srtt_us).fold(start, f);
    let (least_us, most_us) = (seen(f64::min, f64::INFINITY), seen(f64::max, 0.0));
    let ever_us = f64::from(last.transport.min_rtt_us);
    let rtt_us = if ever_us > 0.0 && least_us < SAME_RTT * ever_us { ever_us } else { least_us };
    if !(rtt_us > 0.0 && rtt_us.is_finite()) {
        return None;
    }
    let empty_us = empty_us(least_us, most_us, rtt_us);
    let empty = |i: &&Interval| i.srtt_us <= empty_us;
    let sums = |(delivered, lost): (f64, f64), i: &Interval| (delivered + i.delivered, lost + i.lost);
    let (delivered, lost) = intervals.iter().filter(empty).fold((0.0, 0.0), sums);
    let logs: Vec<f64> = rates.iter().map(|r| r.ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
    Some(Path {
        bytes_per_s: rate * packet_bytes,
        most_bytes_per_s: rate * packet_bytes,
        flows: 1,
        rtt_us,
        queue_bdp: (most_us - rtt_us).max(0.0) / rtt_us,
        loss: if delivered > 0.0 { lost / (delivered + lost) } else { 0.0 },
        variation,
    })
}

fn interval((before, after): (&Measure, &Measure)) -> Interval {
    let seconds = after.at_us.saturating_sub(before.at_us).max(1) as f64 / 1e6;
    let (before, after) = (&before.transport, &after.transport);
    let delivered = after.delivered.saturating_sub(before.delivered) as f64;
    Interval {
        packets_per_s: delivered / seconds,
        srtt_us: f64::from(after.srtt_us),
        delivered,
        lost: after.lost.saturating_sub(before.lost) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::{FlowId, TransportStats};

    /// A flow of 10 Mb/s and 40 ms that loses one packet in a hundred, and fills a queue of 40 ms in the end.
    fn sample(n: u64) -> Measure {
        let full = n >= 20;
        let transport = TransportStats {
            bytes_acked: n * 250_000,
            delivered: n * 172,
            lost: n * 2 + if full { 50 * (n - 19) } else { 0 },
            srtt_us: if full { 80_000 } else { 41_000 },
            min_rtt_us: 40_000,
            ..TransportStats::default()
        };
        Measure { flow: FlowId(7), at_us: n * 200_000, transport }
    }

    /// A measure whose transport's statistics `change` makes of this one's.
    fn changed(m: Measure, change: impl FnOnce(TransportStats) -> TransportStats) -> Measure {
        Measure { transport: change(m.transport), ..m }
    }

    /// The samples of `0..25` that `change` makes of this.
    fn estimator(change: impl Fn(Measure) -> Vec<Measure>) -> Estimator {
        let mut estimator = Estimator::default();
        for n in 0..25 {
            let measures = change(sample(n));
            let (datapath, rows) = (DatapathId(0), Vec::new());
            let batch = Batch { datapath, algorithm: "a", slot: 0, rows, dropped: 0, measures };
            estimator.take(LoopId(0), &batch);
        }
        estimator
    }

    #[test]
    fn a_path_is_what_its_samples_say() {
        let path = estimator(|m| vec![m]).path(5_000_000).unwrap();
        assert_eq!((path.flows, path.rtt_us), (1, 40_000.0));
        assert!((path.bytes_per_s - 1_250_000.0).abs() < 1.0 && path.variation < 1e-6, "{path:?}");
        assert!((path.queue_bdp - 1.0).abs() < 0.01 && (path.loss - 0.0115).abs() < 0.001, "{path:?}");
    }

    /// Packets that overflow a queue of a fifth of the round trip are not counted as random losses.
    #[test]
    fn a_short_queue_overflows_where_it_is_longest() {
        let change = |m: Measure| {
            let full = m.transport.srtt_us > 41_000;
            let lost = if full { m.transport.lost - 2 * (m.at_us / 200_000) } else { 0 };
            let srtt_us = if full { 48_000 } else { 41_000 };
            vec![changed(m, |transport| TransportStats { lost, srtt_us, ..transport })]
        };
        let path = estimator(change).path(5_000_000).unwrap();
        assert!(path.loss == 0.0 && (path.queue_bdp - 0.2).abs() < 0.01, "{path:?}");
    }

    /// A queue that stands full for ten seconds, beside others' datagrams: what overflows it is not lost at random.
    #[test]
    fn what_a_standing_queue_loses_is_not_lost_at_random() {
        let losses = |srtt_us: u32| {
            let mut estimator = Estimator::default();
            let mut losses = Vec::new();
            for n in 0..75_u64 {
                let is_late = n >= 25;
                let lost = if is_late { 10 * (n - 24) } else { 0 };
                let srtt_us = if is_late { srtt_us } else { 41_000 };
                let measures =
                    vec![changed(sample(n), |transport| TransportStats { lost, srtt_us, ..transport })];
                let (datapath, rows) = (DatapathId(0), Vec::new());
                let batch = Batch { datapath, algorithm: "a", slot: 0, rows, dropped: 0, measures };
                estimator.take(LoopId(0), &batch);
                let second = estimator.second(n * 200_000);
                losses.extend(second.filter(|_| n > 45).map(|second| second.block.loss));
            }
            assert!(losses.len() >= 5);
            losses
        };
        assert!(losses(80_000).iter().all(Option::is_none));
        assert!(losses(41_000).iter().flatten().all(|loss| (loss - 0.055).abs() < 0.01));
        assert!(losses(41_000).iter().flatten().count() >= 4);
    }

    /// Bytes that a hole held back come at once, with the packet that closes it.
    #[test]
    fn a_rate_counts_bytes_when_they_arrived_not_when_a_hole_closed() {
        let change = |m: Measure| {
            let bytes_acked = m.transport.bytes_acked / 2_000_000 * 2_000_000;
            vec![changed(m, |transport| TransportStats { bytes_acked, ..transport })]
        };
        let path = estimator(change).path(5_000_000).unwrap();
        assert!((path.bytes_per_s / 1_250_000.0 - 1.0).abs() < 0.05, "{path:?}");
    }

    #[test]
    fn flows_with_like_round_trips_share_a_path() {
        let others = |m: Measure| {
            let (bytes_acked, delivered) = (m.transport.bytes_acked / 2, m.transport.delivered / 2);
            let (srtt_us, min_rtt_us) = (130_000, 120_000);
            let transport = TransportStats { bytes_acked, delivered, srtt_us, min_rtt_us, ..m.transport };
            let far = Measure { flow: FlowId(9), transport, ..m };
            vec![m, Measure { flow: FlowId(8), ..m }, far]
        };
        let path = estimator(others).path(5_000_000).unwrap();
        assert_eq!((path.flows, path.rtt_us), (2, 40_000.0));
        assert!((path.bytes_per_s - 2_500_000.0).abs() < 1.0, "{path:?}");
    }

    #[test]
    fn too_few_samples_estimate_no_path() {
        assert_eq!(Estimator::default().path(0), None);
        let mut estimator = estimator(|m| vec![m]);
        assert!(estimator.path(5_000_000).is_some());
        estimator.forget(9_000_000, false);
        assert_eq!(estimator.path(9_000_000), None);
    }

    #[test]
    fn what_flows_have_delivered_is_remembered_for_a_while() {
        let mut estimator = estimator(|m| vec![m]);
        let fast = estimator.path(5_000_000).unwrap().bytes_per_s;
        // The same packets, half as fast.
        for n in 0..30 {
            let measure = Measure { at_us: 5_000_000 + n * 400_000, ..sample(25 + n) };
            let (datapath, rows) = (DatapathId(0), Vec::new());
            let batch =
                Batch { datapath, algorithm: "a", slot: 0, rows, dropped: 0, measures: vec![measure] };
            estimator.take(LoopId(0), &batch);
        }
        let path = estimator.path(17_000_000).unwrap();
        assert!(path.bytes_per_s < 0.6 * fast && path.most_bytes_per_s == fast, "{path:?}");
        let later = estimator.path(200_000_000).and_then(|_| estimator.path(261_000_000)).unwrap();
        assert_eq!(later.most_bytes_per_s, path.bytes_per_s);
    }
}

//! The figures of one run.

use ccplane_results::{Completion, FlowResult, Metric, RunFigures, Stretch};

use super::leaving::leavings;
use crate::statistics::{jain, percentile};

/// Flows of less than this are small, bytes.
pub const SMALL_BYTES: u64 = 100_000;
/// Flows of more than this are large, bytes.
pub const LARGE_BYTES: u64 = 1_000_000;
/// Throughput is averaged over this long before it is judged, milliseconds.
pub const BIN_MS: u64 = 500;
/// The most bins of a run, over a day; longer runs are left out.
pub(super) const MAX_BINS: usize = 200_000;

/// The way in which a metric is written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Unit {
    /// Of tables and axes.
    pub title: &'static str,
    /// Its unit; may be empty.
    pub unit: &'static str,
    /// The unit in the data's units.
    pub scale: f64,
    /// Whether more is better.
    pub more_is_better: bool,
}

/// Every metric, in the order of tables.
pub const METRICS: [Metric; 19] = [
    Metric::ThroughputBps,
    Metric::ThroughputDeviationBps,
    Metric::UtilisationPpm,
    Metric::MeanRttUs,
    Metric::P95RttUs,
    Metric::MeanQueueUs,
    Metric::P95QueueUs,
    Metric::LossPpm,
    Metric::JainPpm,
    Metric::FairSharePpm,
    Metric::FctP50Us,
    Metric::FctP95Us,
    Metric::FctP99Us,
    Metric::FctLargeP50Us,
    Metric::CpuUsPerGbyte,
    Metric::SoftirqPpm,
    Metric::RewardPpm,
    Metric::AdaptationUs,
    Metric::ShortQueueUs,
];

/// Returns the way in which `metric` is written.
pub const fn unit(metric: Metric) -> Unit {
    let (title, unit, scale, more_is_better) = match metric {
        Metric::ThroughputBps => ("Throughput", "Mb/s", 1e6, true),
        Metric::ThroughputDeviationBps => ("Throughput, deviation", "Mb/s", 1e6, false),
        Metric::UtilisationPpm => ("Utilisation", "%", 1e4, true),
        Metric::MeanRttUs => ("Mean RTT", "ms", 1e3, false),
        Metric::P95RttUs => ("p95 RTT", "ms", 1e3, false),
        Metric::MeanQueueUs => ("Mean queue", "ms", 1e3, false),
        Metric::P95QueueUs => ("p95 queue", "ms", 1e3, false),
        Metric::LossPpm => ("Loss", "%", 1e4, false),
        Metric::JainPpm => ("Jain’s index", "", 1e6, true),
        Metric::FairSharePpm => ("Of the fair share", "", 1e6, true),
        Metric::FctP50Us => ("Completion p50", "ms", 1e3, false),
        Metric::FctP95Us => ("Completion p95", "ms", 1e3, false),
        Metric::FctP99Us => ("Completion p99", "ms", 1e3, false),
        Metric::FctLargeP50Us => ("Completion p50, > 1 MB", "ms", 1e3, false),
        Metric::CpuUsPerGbyte => ("CPU", "ms/GB", 1e3, false),
        Metric::SoftirqPpm => ("Soft interrupts", "% of the machine", 1e4, false),
        Metric::RewardPpm => ("Reward", "% of the oracle’s", 1e4, true),
        Metric::AdaptationUs => ("Adaptation", "s", 1e6, false),
        Metric::ShortQueueUs => ("Short queue after rivals", "s", 1e6, false),
    };
    Unit { title, unit, scale, more_is_better }
}

/// The contender's own long flows; background traffic is not its.
pub fn own_flows(measured: &RunFigures) -> impl Iterator<Item = &FlowResult> + Clone {
    measured.flows.iter().filter(|f| f.background.is_none())
}

/// A run's figure after a warm-up of `warmup_ms`, in the unit that the metric's name ends in. `None` if the run does not tell.
pub fn value(metric: Metric, measured: &RunFigures, warmup_ms: u64) -> Option<f64> {
    match metric {
        Metric::ThroughputBps => throughput_bps(measured, warmup_ms),
        Metric::ThroughputDeviationBps => deviation_bps(measured, warmup_ms),
        Metric::MeanRttUs => mean(own_flows(measured).map(|f| f.rtt_us.mean).filter(|us| *us > 0)),
        Metric::P95RttUs => mean(own_flows(measured).map(|f| f.rtt_us.p95).filter(|us| *us > 0)),
        Metric::MeanQueueUs => measured.link.map(|l| l.queue_delay_us.mean as f64),
        Metric::P95QueueUs => measured.link.map(|l| l.queue_delay_us.p95 as f64),
        Metric::UtilisationPpm => measured.link.map(|l| l.utilisation_ppm as f64),
        Metric::LossPpm => loss_ppm(measured),
        Metric::JainPpm => {
            let shares = shares_bps(own_flows(measured), warmup_ms);
            jain(&shares).filter(|_| shares.len() > 1).map(|j| j * 1e6)
        }
        Metric::FairSharePpm => fair_share(measured, warmup_ms).map(|share| share * 1e6),
        Metric::FctP50Us | Metric::FctP95Us | Metric::FctP99Us | Metric::FctLargeP50Us => {
            let mut times_us = completion_times_us(measured, |c| is_about(metric, c));
            times_us.sort_unstable();
            percentile(&times_us, completion_percentile(metric)?).map(|us| us as f64)
        }
        Metric::CpuUsPerGbyte => {
            let cpu = measured.cpu?;
            let gigabytes = acked_bytes(measured) as f64 / 1e9;
            let busy_us = (cpu.user_ms.saturating_add(cpu.system_ms)) as f64 * 1e3;
            (gigabytes > 0.0).then(|| busy_us / gigabytes)
        }
        Metric::SoftirqPpm => {
            let cpu = measured.cpu?;
            let all_ms = cpu.user_ms.saturating_add(cpu.system_ms).saturating_add(cpu.idle_ms);
            (all_ms > 0).then(|| cpu.softirq_ms as f64 / all_ms as f64 * 1e6)
        }
        Metric::RewardPpm => {
            let parts = || {
                measured
                    .stretches
                    .iter()
                    .map(|s| (s.reward_ppm as f64, s.to_ms.saturating_sub(s.from_ms) as f64))
            };
            let ms: f64 = parts().map(|(_, ms)| ms).sum();
            (ms > 0.0).then(|| parts().map(|(reward, ms)| reward * ms).sum::<f64>() / ms)
        }
        Metric::AdaptationUs => mean(adaptations(measured).map(adaptation_ms)).map(|ms| ms * 1e3),
        Metric::ShortQueueUs => {
            mean(leavings(own_flows(measured), measured).into_iter().map(|l| l.after_ms)).map(|ms| ms * 1e3)
        }
    }
}

/// Returns the value by which runs of one contender are sorted to find the median run.
pub fn typical(measured: &RunFigures, warmup_ms: u64) -> f64 {
    let value = |metric| value(metric, measured, warmup_ms);
    value(Metric::ThroughputBps).or_else(|| value(Metric::FctP50Us)).unwrap_or(0.0)
}

/// Whether the run ever got to what the metric counts the time to; other metrics are always there.
pub fn is_reached(metric: Metric, measured: &RunFigures) -> bool {
    match metric {
        Metric::AdaptationUs => adaptations(measured).any(|stretch| stretch.reached_ms.is_some()),
        Metric::ShortQueueUs => leavings(own_flows(measured), measured).iter().any(|leaving| leaving.reached),
        _ => true,
    }
}

/// The stretches that a flow adapts to: how long it takes to start is no adaptation.
pub fn adaptations(measured: &RunFigures) -> impl Iterator<Item = &Stretch> {
    measured.stretches.iter().skip(1)
}

fn adaptation_ms(stretch: &Stretch) -> u64 {
    stretch.reached_ms.unwrap_or_else(|| stretch.to_ms.saturating_sub(stretch.from_ms))
}

/// Mean throughput in each bin; a bin without samples has the one before's.
pub(super) fn binned(flow: &FlowResult, start_ms: u64, bins: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u32); bins];
    for (t_ms, bps) in flow.series.t_ms.iter().zip(&flow.series.throughput_bps) {
        // A sample covers the time before it.
        let Some(after_ms) = t_ms.checked_sub(start_ms + 1) else { continue };
        let Some(bin) = usize::try_from(after_ms / BIN_MS).ok().and_then(|i| sums.get_mut(i)) else {
            continue;
        };
        *bin = (bin.0 + *bps as f64, bin.1 + 1);
    }
    let mut last = 0.0;
    for (sum, n) in &mut sums {
        if *n > 0 {
            last = *sum / f64::from(*n);
        }
        *sum = last;
    }
    sums.into_iter().map(|(mean, _)| mean).collect()
}

/// Standard deviation over time of all flows together, while all of them run.
fn deviation_bps(measured: &RunFigures, warmup_ms: u64) -> Option<f64> {
    let from_ms = own_flows(measured).map(|f| f.start_ms).max()?.max(warmup_ms);
    let to_ms = own_flows(measured).map(|f| f.end_ms).min()?;
    let bins =
        usize::try_from(to_ms.checked_sub(from_ms)? / BIN_MS).ok().filter(|n| (2..=MAX_BINS).contains(n))?;
    let mut sums = vec![0.0; bins];
    for flow in own_flows(measured).filter(|f| !f.series.t_ms.is_empty()) {
        let binned = binned(flow, from_ms, bins);
        sums.iter_mut().zip(binned).for_each(|(sum, bps)| *sum += bps);
    }
    let mean = sums.iter().sum::<f64>() / bins as f64;
    let squares: f64 = sums.iter().map(|bps| (bps - mean) * (bps - mean)).sum();
    (mean > 0.0).then(|| (squares / (bins - 1) as f64).sqrt())
}

/// All flows together: what they carried over the time from the first start (or the warm-up's end) to the last end. Flows that
/// run one after the other do not add up to more than the link.
fn throughput_bps(measured: &RunFigures, warmup_ms: u64) -> Option<f64> {
    let (mut bits, mut from, mut to) = (0.0, u64::MAX, 0);
    for flow in own_flows(measured) {
        let start = flow.start_ms.max(warmup_ms);
        bits += flow.throughput_bps as f64 * flow.end_ms.saturating_sub(start) as f64;
        (from, to) = (from.min(start), to.max(flow.end_ms));
    }
    let ms = to.checked_sub(from)?;
    (ms > 0).then(|| bits / ms as f64)
}

/// Each flow's throughput while all of them run, by their series; over its own time where they never all run, or have no series.
fn shares_bps<'a>(flows: impl Iterator<Item = &'a FlowResult> + Clone, warmup_ms: u64) -> Vec<f64> {
    let from = flows.clone().map(|f| f.start_ms).max().unwrap_or(0).max(warmup_ms);
    let to = flows.clone().map(|f| f.end_ms).min().unwrap_or(0);
    let together = |flow: &FlowResult| {
        let samples = flow.series.t_ms.iter().zip(&flow.series.throughput_bps);
        mean(samples.filter(|(t, _)| **t > from && **t <= to).map(|(_, bps)| *bps))
    };
    let shares: Option<Vec<f64>> = flows.clone().map(together).collect();
    shares.unwrap_or_else(|| flows.map(|f| f.throughput_bps as f64).collect())
}

/// The contender's mean throughput over that of all flows, while all run; `None` without background.
pub fn fair_share(measured: &RunFigures, warmup_ms: u64) -> Option<f64> {
    measured.flows.iter().find(|f| f.background.is_some())?;
    let shares = shares_bps(measured.flows.iter(), warmup_ms);
    let average = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let own = measured.flows.iter().zip(&shares).filter(|(flow, _)| flow.background.is_none());
    let own: Vec<f64> = own.map(|(_, share)| *share).collect();
    (!own.is_empty() && average(&shares) > 0.0).then(|| average(&own) / average(&shares))
}

fn loss_ppm(measured: &RunFigures) -> Option<f64> {
    let link = measured.link?;
    let lost = link.dropped_pkts as f64 + link.lost_pkts as f64;
    let all = lost + link.departed_pkts as f64;
    (all > 0.0).then(|| lost / all * 1e6)
}

/// Returns the percentile of completion times that a metric stands for; `None` for other metrics.
pub fn completion_percentile(metric: Metric) -> Option<usize> {
    match metric {
        Metric::FctP50Us | Metric::FctLargeP50Us => Some(50),
        Metric::FctP95Us => Some(95),
        Metric::FctP99Us => Some(99),
        _ => None,
    }
}

/// Whether such a metric counts a flow.
pub fn is_about(metric: Metric, completion: &Completion) -> bool {
    metric != Metric::FctLargeP50Us || completion.bytes > LARGE_BYTES
}

/// The completion times of the flows that count, in the order in which flows started.
pub fn completion_times_us(measured: &RunFigures, counts: impl Fn(&Completion) -> bool) -> Vec<u64> {
    let flows = measured.completions.iter().flat_map(|c| &c.flows);
    flows.filter(|c| counts(c)).map(|c| c.fct_us).collect()
}

/// Payload of everything that the machine carried in the run.
fn acked_bytes(measured: &RunFigures) -> u64 {
    let long = measured.flows.iter().map(|f| f.acked_bytes);
    let short = measured.completions.iter().flat_map(|c| &c.flows).map(|c| c.bytes);
    long.chain(short).fold(0, u64::saturating_add)
}

fn mean(values: impl Iterator<Item = u64>) -> Option<f64> {
    let values: Vec<u64> = values.collect();
    (!values.is_empty()).then(|| values.iter().map(|v| *v as f64).sum::<f64>() / values.len() as f64)
}

/// By size, as Homa and pFabric group them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// Flows of fewer than [`SMALL_BYTES`] bytes.
    Small,
    /// From there to [`LARGE_BYTES`].
    Medium,
    /// Flows above the medium size.
    Large,
}

impl SizeClass {
    /// All classes from small to large.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// The class of a flow of `bytes`.
    pub const fn of(bytes: u64) -> Self {
        if bytes < SMALL_BYTES {
            Self::Small
        } else if bytes <= LARGE_BYTES {
            Self::Medium
        } else {
            Self::Large
        }
    }

    /// Returns the name in tables.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Small => "< 100 kB",
            Self::Medium => "100 kB – 1 MB",
            Self::Large => "> 1 MB",
        }
    }
}

#[cfg(test)]
mod tests {
    use ccplane_results::{Cpu, LinkUse, Percentiles, Series};

    use super::*;

    const WARMUP_MS: u64 = 1_000;

    /// From the run's start to 2.5 s; a sample each half second.
    fn flow(bps: [u64; 4], mean_bps: u64) -> FlowResult {
        let series = Series {
            t_ms: vec![1_000, 1_500, 2_000, 2_500],
            throughput_bps: bps.to_vec(),
            srtt_us: vec![0; 4],
            cwnd_pkts: vec![0; 4],
            pacing_bps: vec![0; 4],
        };
        FlowResult { end_ms: 2_500, throughput_bps: mean_bps, series, ..FlowResult::default() }
    }

    fn measured() -> RunFigures {
        let beside = FlowResult { background: Some("cubic".into()), ..flow([10_000_000; 4], 9_000_000) };
        let stretch =
            |from_ms, to_ms, reward_ppm, reached_ms| Stretch { from_ms, to_ms, reward_ppm, reached_ms };
        RunFigures {
            flows: vec![
                flow([90_000_000, 1_000_000, 2_000_000, 3_000_000], 2_000_000),
                flow([90_000_000, 2_000_000, 3_000_000, 4_000_000], 4_000_000),
                beside,
            ],
            stretches: vec![
                stretch(0, 1_000, 500_000, Some(900)),
                stretch(1_000, 4_000, 900_000, None),
                stretch(4_000, 6_000, 800_000, Some(1_000)),
            ],
            link: Some(LinkUse {
                queue_delay_us: Percentiles { mean: 7_000, p50: 5_000, p95: 11_000, p99: 13_000 },
                ..LinkUse::default()
            }),
            cpu: Some(Cpu { user_ms: 10, system_ms: 30, softirq_ms: 12, idle_ms: 20 }),
            ..RunFigures::default()
        }
    }

    #[test]
    fn metrics_are_as_computed_by_hand() {
        for (metric, expected, how) in [
            (
                Metric::ThroughputDeviationBps,
                2_000_000,
                "of 3, 5 and 7 Mb/s after the warm-up, background left out",
            ),
            (Metric::FairSharePpm, 500_000, "2.5 Mb/s of a mean of 5, after the warm-up"),
            (Metric::SoftirqPpm, 200_000, "12 of 60 ms"),
            (Metric::RewardPpm, 800_000, "0.5 for 1 s, 0.9 for 3 s, 0.8 for 2 s"),
            (Metric::AdaptationUs, 2_000_000, "the whole 3 s, and 1 s; not the start"),
            (Metric::MeanQueueUs, 7_000, "as the link says"),
            (Metric::P95QueueUs, 11_000, "as the link says"),
        ] {
            let found = value(metric, &measured(), WARMUP_MS).map(|v| v.round() as i64);
            assert_eq!(found, Some(expected), "{metric:?}: {how}");
        }
    }

    #[test]
    fn what_was_not_measured_has_no_figure() {
        let none = RunFigures::default();
        let alone = RunFigures { flows: vec![flow([1; 4], 1)], ..RunFigures::default() };
        for metric in METRICS {
            assert_eq!(value(metric, &none, WARMUP_MS), None, "{metric:?}");
        }
        assert_eq!(value(Metric::FairSharePpm, &alone, WARMUP_MS), None, "nobody to share with");
        let short = RunFigures {
            flows: vec![FlowResult { end_ms: 1_900, ..flow([1; 4], 1) }],
            ..RunFigures::default()
        };
        assert_eq!(value(Metric::ThroughputDeviationBps, &short, WARMUP_MS), None, "one bin");
    }
}

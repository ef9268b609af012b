//! A run's figures.

use ccplane_results::{Completion, Flow, Measured, Metric};

use crate::statistics::{jain, percentile};

/// Flows of less than this are small, bytes.
pub const SMALL_BYTES: u64 = 100_000;
/// Flows of more than this are large, bytes.
pub const LARGE_BYTES: u64 = 1_000_000;

/// How a metric is written.
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
pub const METRICS: [Metric; 11] = [
    Metric::ThroughputBps,
    Metric::UtilisationPpm,
    Metric::MeanRttUs,
    Metric::P95RttUs,
    Metric::LossPpm,
    Metric::JainPpm,
    Metric::FctP50Us,
    Metric::FctP95Us,
    Metric::FctP99Us,
    Metric::FctLargeP50Us,
    Metric::CpuUsPerGbyte,
];

/// How `metric` is written.
pub const fn unit(metric: Metric) -> Unit {
    let (title, unit, scale, more_is_better) = match metric {
        Metric::ThroughputBps => ("Throughput", "Mb/s", 1e6, true),
        Metric::UtilisationPpm => ("Utilisation", "%", 1e4, true),
        Metric::MeanRttUs => ("Mean RTT", "ms", 1e3, false),
        Metric::P95RttUs => ("p95 RTT", "ms", 1e3, false),
        Metric::LossPpm => ("Loss", "%", 1e4, false),
        Metric::JainPpm => ("Jain’s index", "", 1e6, true),
        Metric::FctP50Us => ("Completion p50", "ms", 1e3, false),
        Metric::FctP95Us => ("Completion p95", "ms", 1e3, false),
        Metric::FctP99Us => ("Completion p99", "ms", 1e3, false),
        Metric::FctLargeP50Us => ("Completion p50, > 1 MB", "ms", 1e3, false),
        Metric::CpuUsPerGbyte => ("CPU", "ms/GB", 1e3, false),
    };
    Unit { title, unit, scale, more_is_better }
}

/// The contender's own long flows; background traffic is not its.
pub fn own_flows(measured: &Measured) -> impl Iterator<Item = &Flow> {
    measured.flows.iter().filter(|f| f.background.is_none())
}

/// A run's figure, in the unit that the metric's name ends in. `None` if the run does not tell.
pub fn value(metric: Metric, measured: &Measured) -> Option<f64> {
    match metric {
        Metric::ThroughputBps => throughput_bps(measured),
        Metric::MeanRttUs => mean(own_flows(measured).map(|f| f.rtt_us.mean).filter(|us| *us > 0)),
        Metric::P95RttUs => mean(own_flows(measured).map(|f| f.rtt_us.p95).filter(|us| *us > 0)),
        Metric::UtilisationPpm => measured.link.map(|l| l.utilisation_ppm as f64),
        Metric::LossPpm => loss_ppm(measured),
        Metric::JainPpm => {
            let shares: Vec<f64> = own_flows(measured).map(|f| f.throughput_bps as f64).collect();
            jain(&shares).filter(|_| shares.len() > 1).map(|j| j * 1e6)
        }
        Metric::FctP50Us => fct_us(measured, 50, |_| true),
        Metric::FctP95Us => fct_us(measured, 95, |_| true),
        Metric::FctP99Us => fct_us(measured, 99, |_| true),
        Metric::FctLargeP50Us => fct_us(measured, 50, |c| c.bytes > LARGE_BYTES),
        Metric::CpuUsPerGbyte => {
            let cpu = measured.cpu?;
            let gigabytes = acked_bytes(measured) as f64 / 1e9;
            let busy_us = (cpu.user_ms.saturating_add(cpu.system_ms)) as f64 * 1e3;
            (gigabytes > 0.0).then(|| busy_us / gigabytes)
        }
    }
}

/// What runs of one contender are ordered by, to find the one in the middle.
pub fn typical(measured: &Measured) -> f64 {
    value(Metric::ThroughputBps, measured).or_else(|| value(Metric::FctP50Us, measured)).unwrap_or(0.0)
}

/// Mean queueing delay at the bottleneck, microseconds.
pub fn queue_mean_us(measured: &Measured) -> Option<f64> {
    measured.link.map(|l| l.queue_delay_us.mean as f64)
}

/// 95th percentile of the queueing delay at the bottleneck, microseconds.
pub fn queue_p95_us(measured: &Measured) -> Option<f64> {
    measured.link.map(|l| l.queue_delay_us.p95 as f64)
}

fn throughput_bps(measured: &Measured) -> Option<f64> {
    let flows: Vec<f64> = own_flows(measured).map(|f| f.throughput_bps as f64).collect();
    (!flows.is_empty()).then(|| flows.iter().sum())
}

fn loss_ppm(measured: &Measured) -> Option<f64> {
    let link = measured.link?;
    let lost = link.dropped_pkts as f64 + link.lost_pkts as f64;
    let all = lost + link.departed_pkts as f64;
    (all > 0.0).then(|| lost / all * 1e6)
}

fn fct_us(measured: &Measured, p: usize, counts: impl Fn(&Completion) -> bool) -> Option<f64> {
    let completions = measured.completions.as_ref()?;
    let mut times: Vec<u64> = completions.flows.iter().filter(|c| counts(c)).map(|c| c.fct_us).collect();
    times.sort_unstable();
    percentile(&times, p).map(|us| us as f64)
}

/// Payload of everything that the machine carried in the run.
fn acked_bytes(measured: &Measured) -> u64 {
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
    /// Less than [`SMALL_BYTES`].
    Small,
    /// From there to [`LARGE_BYTES`].
    Medium,
    /// More.
    Large,
}

impl SizeClass {
    /// All, in order.
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

    /// As tables name it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Small => "< 100 kB",
            Self::Medium => "100 kB – 1 MB",
            Self::Large => "> 1 MB",
        }
    }
}

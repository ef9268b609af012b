//! What a flow did in a stretch of time.

use super::model::{Capacity, Flow, Report, Sample};
use crate::statistics::percentile;

/// A stretch of the time axis: after `t0_ms`, up to and including `t1_ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Start, milliseconds.
    pub t0_ms: u64,
    /// End, milliseconds.
    pub t1_ms: u64,
}

impl Window {
    /// All of the time axis.
    pub const ALL: Self = Self { t0_ms: 0, t1_ms: u64::MAX };
}

/// A flow in a window. `None` where the samples do not tell.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Summary {
    /// Payload acknowledged per time, bits per second.
    pub throughput_bps: Option<f64>,
    /// Throughput over the link's capacity in the same time; headers keep it a little below 1.
    pub utilisation: Option<f64>,
    /// Mean of the smoothed round-trip time over samples, microseconds.
    pub rtt_mean_us: Option<f64>,
    /// 5th percentile of the same (nearest rank), microseconds.
    pub rtt_p05_us: Option<f64>,
    /// 95th percentile of the same (nearest rank), microseconds.
    pub rtt_p95_us: Option<f64>,
    /// Packets that the link dropped.
    pub lost_pkts: u64,
    /// Packets sent again.
    pub retransmitted_pkts: u64,
}

/// What `flow` did in `window`.
#[must_use]
pub fn summary(flow: &Flow, capacity: &[Capacity], window: Window) -> Summary {
    let before = flow.samples.iter().rev().find(|s| s.t_ms <= window.t0_ms);
    let base = before.copied().unwrap_or(Sample { t_ms: window.t0_ms, ..Sample::default() });
    let inside: Vec<&Sample> =
        flow.samples.iter().filter(|s| s.t_ms > window.t0_ms && s.t_ms <= window.t1_ms).collect();
    let Some(last) = inside.last() else { return Summary::default() };

    let bits = last.acked_bytes.saturating_sub(base.acked_bytes) as f64 * 8.0;
    let elapsed_s = last.t_ms.saturating_sub(base.t_ms) as f64 / 1e3;
    let offered = capacity_bits(capacity, base.t_ms, last.t_ms);
    let mut rtts: Vec<u64> = inside.iter().map(|s| s.srtt_us).filter(|rtt| *rtt > 0).collect();
    rtts.sort_unstable();
    Summary {
        throughput_bps: (elapsed_s > 0.0).then(|| bits / elapsed_s),
        utilisation: (offered > 0.0).then(|| bits / offered),
        rtt_mean_us: (!rtts.is_empty())
            .then(|| rtts.iter().map(|rtt| *rtt as f64).sum::<f64>() / rtts.len() as f64),
        rtt_p05_us: percentile(&rtts, 5).map(|us| us as f64),
        rtt_p95_us: percentile(&rtts, 95).map(|us| us as f64),
        lost_pkts: last.lost_pkts.saturating_sub(base.lost_pkts),
        retransmitted_pkts: last.retransmitted_pkts.saturating_sub(base.retransmitted_pkts),
    }
}

/// Bits that the link could carry from `t0_ms` to `t1_ms`.
pub fn capacity_bits(capacity: &[Capacity], t0_ms: u64, t1_ms: u64) -> f64 {
    let ends = capacity.iter().skip(1).map(|c| c.t_ms).chain([u64::MAX]);
    capacity
        .iter()
        .zip(ends)
        .map(|(c, end_ms)| {
            let ms = end_ms.min(t1_ms).saturating_sub(c.t_ms.max(t0_ms));
            c.capacity_bps as f64 * ms as f64 / 1e3
        })
        .sum()
}

/// The end of the time axis, milliseconds: the last phase, capacity step or sample; at least 1.
pub fn end_ms(report: &Report) -> u64 {
    let samples = report.flows.iter().flat_map(|f| &f.samples).map(|s| s.t_ms);
    let phases = report.phases.iter().map(|p| p.t1_ms);
    samples.chain(phases).max().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::model::{Datapath, Totals};

    fn flow(samples: Vec<Sample>) -> Flow {
        Flow {
            name: "a".into(),
            algorithm: "reno".into(),
            datapath: Datapath::Sim,
            samples,
            totals: Totals::default(),
        }
    }

    fn sample(t_ms: u64, acked_bytes: u64, srtt_us: u64, lost_pkts: u64) -> Sample {
        Sample { t_ms, acked_bytes, srtt_us, lost_pkts, ..Sample::default() }
    }

    #[test]
    fn no_samples_no_figures() {
        assert_eq!(summary(&flow(vec![]), &[], Window::ALL), Summary::default());
    }

    #[test]
    fn one_sample_counts_from_the_start() {
        let s = summary(&flow(vec![sample(1000, 125_000, 40_000, 2)]), &[], Window::ALL);
        assert_eq!(s.throughput_bps, Some(1e6));
        assert_eq!((s.rtt_mean_us, s.rtt_p95_us), (Some(40_000.0), Some(40_000.0)));
        assert_eq!((s.lost_pkts, s.utilisation), (2, None));
        assert_eq!(summary(&flow(vec![sample(0, 0, 0, 0)]), &[], Window::ALL), Summary::default());
    }

    #[test]
    fn windows_add_up() {
        let f = flow((1..=20).map(|i| sample(i * 100, i * 1000, i * 10, i)).collect());
        let capacity =
            [Capacity { t_ms: 0, capacity_bps: 160_000 }, Capacity { t_ms: 1000, capacity_bps: 80_000 }];
        let first = summary(&f, &capacity, Window { t0_ms: 0, t1_ms: 1000 });
        let second = summary(&f, &capacity, Window { t0_ms: 1000, t1_ms: 2000 });
        assert_eq!((first.throughput_bps, second.throughput_bps), (Some(80_000.0), Some(80_000.0)));
        assert_eq!((first.utilisation, second.utilisation), (Some(0.5), Some(1.0)));
        assert_eq!((first.lost_pkts, second.lost_pkts), (10, 10));
        assert_eq!((first.rtt_mean_us, second.rtt_p95_us), (Some(55.0), Some(200.0)));
        assert_eq!((second.rtt_p05_us, first.rtt_p05_us), (Some(110.0), Some(10.0)));
        assert_eq!(summary(&f, &capacity, Window::ALL).utilisation, Some(160_000.0 / 240_000.0));
    }

    #[test]
    fn rtt_before_the_first_measurement_does_not_count() {
        let s = summary(&flow(vec![sample(100, 0, 0, 0), sample(200, 1, 500, 0)]), &[], Window::ALL);
        assert_eq!(s.rtt_mean_us, Some(500.0));
    }
}

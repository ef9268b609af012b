//! Monitor intervals: what `aurora.fold` and `mocc.fold` report of one, and what it was worth.

use ccplane_alg::{FlowInfo, Report};

/// The features of an interval, in the order of their history.
pub(crate) const FEATURES: &[&str] = &["inflation", "ratio", "sent"];
/// Intervals that a policy sees.
pub(crate) const DEPTH: usize = 10;

const US_PER_S: f64 = 1e6;
/// The shortest round trip and the longest that count, microseconds: keeps logarithms finite.
const RTT_US: (f64, f64) = (1.0, 1e9);

/// One interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interval {
    /// Packets that arrived.
    pub(crate) acked: f64,
    /// Packets that were lost.
    pub(crate) lost: f64,
    /// How long it took, seconds.
    pub(crate) took_s: f64,
    /// Mean RTT of its samples, microseconds.
    pub(crate) rtt_us: f64,
    /// Smallest such mean of late, microseconds.
    pub(crate) min_us: f64,
    /// What the flow's bottleneck carries, where someone knows it, packets per second.
    pub(crate) link_pps: Option<f64>,
}

impl Interval {
    /// Reads a report of a flow with this segment size; `None` if it is none of an interval.
    pub(crate) fn of(report: &Report<'_>, mss_bytes: f64) -> Option<Interval> {
        let get = |name| report.get(name).map(|value| value.max(0) as f64);
        let rtt_us = get("rtt_us")?.clamp(RTT_US.0, RTT_US.1);
        Some(Interval {
            acked: get("acked")?,
            lost: get("lost")?,
            took_s: get("took_us")?.max(1.0) / US_PER_S,
            rtt_us,
            min_us: get("min_us")?.clamp(RTT_US.0, rtt_us),
            link_pps: Some(get("link_rate")? / mss_bytes).filter(|pps| *pps > 0.0),
        })
    }

    /// Packets per second that arrived.
    pub(crate) fn throughput_pps(&self) -> f64 {
        self.acked / self.took_s
    }

    /// Lost share of what arrived or was lost.
    pub(crate) fn loss(&self) -> f64 {
        self.lost / (self.acked + self.lost).max(1.0)
    }
}

/// The segment size that a flow's program is told of, bytes.
pub(crate) fn mss_bytes(info: &FlowInfo) -> f64 {
    f64::from(info.mss_bytes.clamp(1, crate::MAX_MSS_BYTES))
}

/// Rewards since the flow's last action: several where intervals passed that no policy decided.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Since {
    sum: f64,
    count: f64,
}

impl Since {
    /// One more interval.
    pub(crate) fn add(&mut self, reward: f64) {
        self.sum += reward;
        self.count += 1.0;
    }

    /// Their mean.
    pub(crate) fn mean(&self) -> f32 {
        (self.sum / self.count.max(1.0)) as f32
    }
}

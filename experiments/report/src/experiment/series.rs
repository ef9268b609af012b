//! A run over time: all of a contender's flows together.

use std::collections::BTreeMap;

use ccplane_results::{Capacity, FlowResult, LinkRecord, RunFigures};

use super::figures::own_flows;

/// A contender's flows at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    /// Milliseconds since the run's start.
    pub t_ms: u64,
    /// Sum over flows, bits per second.
    pub throughput_bps: u64,
    /// Mean over flows that have measured one, microseconds; 0 if none has.
    pub srtt_us: u64,
    /// Sum over flows, packets.
    pub cwnd_pkts: u64,
}

/// The flows' series, sample by sample; flows are brought together on a grid of `sample_ms`.
pub fn moments(measured: &RunFigures, sample_ms: u64) -> Vec<Moment> {
    let flows: Vec<&FlowResult> = own_flows(measured).collect();
    if let [flow] = flows[..] {
        return flow_moments(flow).collect();
    }
    let mut grid: BTreeMap<u64, (Moment, u64)> = BTreeMap::new();
    for m in flows.iter().flat_map(|f| flow_moments(f)) {
        let step = sample_ms.max(1);
        let t_ms = m.t_ms.saturating_add(step / 2) / step * step;
        let (sum, rtts) = grid.entry(t_ms).or_insert((Moment { t_ms, ..Moment::default() }, 0));
        sum.throughput_bps = sum.throughput_bps.saturating_add(m.throughput_bps);
        sum.cwnd_pkts = sum.cwnd_pkts.saturating_add(m.cwnd_pkts);
        sum.srtt_us = sum.srtt_us.saturating_add(m.srtt_us);
        *rtts += u64::from(m.srtt_us > 0);
    }
    grid.into_values().map(|(sum, rtts)| Moment { srtt_us: sum.srtt_us / rtts.max(1), ..sum }).collect()
}

/// One flow's series; columns cut short end it.
pub fn flow_moments(flow: &FlowResult) -> impl Iterator<Item = Moment> + '_ {
    let s = &flow.series;
    s.t_ms.iter().zip(&s.throughput_bps).zip(s.srtt_us.iter().zip(&s.cwnd_pkts)).map(
        |((t_ms, throughput_bps), (srtt_us, cwnd_pkts))| Moment {
            t_ms: *t_ms,
            throughput_bps: *throughput_bps,
            srtt_us: *srtt_us,
            cwnd_pkts: *cwnd_pkts,
        },
    )
}

/// Round-trip times of the contender's flows after the warm-up, microseconds.
pub fn rtts_us(measured: &RunFigures, warmup_ms: u64) -> impl Iterator<Item = u64> + '_ {
    own_flows(measured)
        .flat_map(flow_moments)
        .filter(move |m| m.t_ms >= warmup_ms && m.srtt_us > 0)
        .map(|m| m.srtt_us)
}

/// Mean capacity from `from_ms` to `to_ms`, bits per second; `None` for a link without a limit.
pub fn mean_capacity_bps(link: &LinkRecord, from_ms: u64, to_ms: u64) -> Option<f64> {
    let ms = to_ms.checked_sub(from_ms).filter(|ms| *ms > 0)?;
    let bits: f64 = holds(&link.capacity)
        .map(|(c, end_ms)| {
            let ms = end_ms.min(to_ms).saturating_sub(c.t_ms.max(from_ms));
            c.capacity_bps as f64 * ms as f64
        })
        .sum();
    (!link.capacity.is_empty()).then(|| bits / ms as f64)
}

fn holds(capacity: &[Capacity]) -> impl Iterator<Item = (&Capacity, u64)> {
    let ends = capacity.iter().skip(1).map(|c| c.t_ms).chain([u64::MAX]);
    capacity.iter().zip(ends)
}

/// At most this many steps of capacity are drawn; beyond, their means over equal times.
const MAX_STEPS: u64 = 300;

/// Capacity over time for drawing: (seconds, bits per second).
pub fn capacity_steps(link: &LinkRecord, end_ms: u64) -> Vec<(f64, f64)> {
    let seconds = |ms: u64| ms as f64 / 1e3;
    let shown = || link.capacity.iter().filter(|c| c.t_ms <= end_ms);
    if shown().count() as u64 <= MAX_STEPS {
        return shown().map(|c| (seconds(c.t_ms), c.capacity_bps as f64)).collect();
    }
    let step_ms = end_ms.div_ceil(MAX_STEPS).max(1);
    (0..MAX_STEPS)
        .map(|i| i * step_ms)
        .filter_map(|t_ms| Some((seconds(t_ms), mean_capacity_bps(link, t_ms, end_ms.min(t_ms + step_ms))?)))
        .collect()
}

/// Round-trip time without queue: (from when in milliseconds, microseconds), each until the next; empty for a link that says none.
pub fn base_rtts_us(link: &LinkRecord) -> Vec<(u64, u64)> {
    let first = link.base_rtt_us.map(|us| (0, us));
    let changes = link.changes.iter().map(|c| (c.t_ms, c.base_rtt_us)).filter(|_| first.is_some());
    let mut steps: Vec<(u64, u64)> = first.into_iter().chain(changes).collect();
    steps.dedup_by_key(|(_, us)| *us);
    steps
}

/// Its mean from `from_ms` to `to_ms`, microseconds.
pub fn mean_base_rtt_us(link: &LinkRecord, from_ms: u64, to_ms: u64) -> Option<f64> {
    let ms = to_ms.checked_sub(from_ms).filter(|ms| *ms > 0)?;
    let steps = base_rtts_us(link);
    let ends = steps.iter().skip(1).map(|(t_ms, _)| *t_ms).chain([u64::MAX]);
    let sum: f64 = steps
        .iter()
        .zip(ends)
        .map(|((t_ms, us), end_ms)| {
            *us as f64 * end_ms.min(to_ms).saturating_sub((*t_ms).max(from_ms)) as f64
        })
        .sum();
    (!steps.is_empty()).then(|| sum / ms as f64)
}

/// The window that fills the link without a queue, over time for drawing: (seconds, packets).
pub fn bandwidth_delay_steps(link: &LinkRecord, end_ms: u64) -> Vec<(f64, f64)> {
    let capacity = capacity_steps(link, end_ms);
    let rtts: Vec<(f64, f64)> =
        base_rtts_us(link).into_iter().map(|(t_ms, us)| (t_ms as f64 / 1e3, us as f64)).collect();
    let bits = link.mtu_bytes as f64 * 8.0;
    if bits == 0.0 {
        return Vec::new();
    }
    let mut times: Vec<f64> = capacity.iter().chain(&rtts).map(|(t, _)| *t).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let at = |steps: &[(f64, f64)], t: f64| steps.iter().take_while(|s| s.0 <= t).last().map(|s| s.1);
    let step = |t: f64| Some((t, at(&capacity, t)? * at(&rtts, t)? / 1e6 / bits));
    times.into_iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use ccplane_results::{Change, Series};

    use super::*;

    #[test]
    fn flows_add_up_on_a_grid() {
        let flow = |shift: u64, srtt_us: u64| FlowResult {
            series: Series {
                t_ms: vec![100 + shift, 200 + shift],
                throughput_bps: vec![10, 20],
                srtt_us: vec![srtt_us; 2],
                cwnd_pkts: vec![1, 2],
                pacing_bps: vec![0; 2],
            },
            ..FlowResult::default()
        };
        let measured =
            RunFigures { flows: vec![flow(0, 0), flow(3, 50), flow(7, 70)], ..RunFigures::default() };
        let got = moments(&measured, 100);
        assert_eq!(got[1], Moment { t_ms: 200, throughput_bps: 60, srtt_us: 60, cwnd_pkts: 6 });
        assert_eq!(got.len(), 2);
        assert_eq!(rtts_us(&measured, 150).collect::<Vec<_>>(), [50, 70]);
    }

    /// 12 Mb/s and 20 ms, from 4 s on 24 Mb/s, from 6 s on 80 ms.
    fn changing() -> LinkRecord {
        let change = |t_ms, base_rtt_us| Change { t_ms, description: String::new(), base_rtt_us };
        LinkRecord {
            base_rtt_us: Some(20_000),
            mtu_bytes: 1_500,
            capacity: vec![
                Capacity { t_ms: 0, capacity_bps: 12_000_000 },
                Capacity { t_ms: 4_000, capacity_bps: 24_000_000 },
            ],
            changes: vec![change(4_000, 20_000), change(6_000, 80_000)],
            ..LinkRecord::default()
        }
    }

    #[test]
    fn a_links_round_trip_changes() {
        let link = changing();
        assert_eq!(base_rtts_us(&link), [(0, 20_000), (6_000, 80_000)]);
        assert_eq!(mean_base_rtt_us(&link, 4_000, 8_000), Some(50_000.0));
        assert_eq!(mean_base_rtt_us(&link, 0, 6_000), Some(20_000.0));
        assert_eq!(bandwidth_delay_steps(&link, 8_000), [(0.0, 20.0), (4.0, 40.0), (6.0, 160.0)]);
        assert_eq!(base_rtts_us(&LinkRecord { base_rtt_us: None, ..link }), []);
        assert_eq!(mean_base_rtt_us(&LinkRecord::default(), 0, 5), None);
    }

    #[test]
    fn capacity_is_averaged_where_it_is_too_fine() {
        let capacity =
            |n: u64| (0..n).map(|i| Capacity { t_ms: i * 10, capacity_bps: i % 2 * 100 }).collect();
        let link = LinkRecord { capacity: capacity(2_000), ..LinkRecord::default() };
        let steps = capacity_steps(&link, 20_000);
        assert!((290..=300).contains(&steps.len()));
        assert!(steps.iter().all(|(_, bps)| (30.0..=70.0).contains(bps)));
        assert_eq!(mean_capacity_bps(&link, 0, 20_000), Some(50.0));
        assert_eq!(mean_capacity_bps(&link, 5, 5), None);
        assert_eq!(mean_capacity_bps(&LinkRecord::default(), 0, 5), None);
    }
}

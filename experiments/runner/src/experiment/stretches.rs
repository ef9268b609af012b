//! A contender's flows between the link's changes are compared with an oracle that knows the link.

use ccplane_results::{FlowResult, RunFigures, Stretch};

use crate::plan::PlanLink;

/// The reward is averaged over this long before it is judged, milliseconds.
const BIN_MS: u64 = 500;
/// Bins that it must stay in reach of the oracle's.
const HOLD_BINS: usize = 2;
/// In reach: this share of the oracle's, millionths.
const REACH_PPM: u64 = 900_000;
const PPM: u64 = 1_000_000;
/// The cost of a doubled RTT where a halved throughput costs 1: the weight of Aurora's scale-free reward. Its term for
/// losses is left out: the link's own losses hit the oracle as much, and drops of a full queue have cost throughput and
/// delay already.
const LATENCY_WEIGHT: f64 = 0.4;
/// Queueing delay that counts as none, as in Aurora's reward, microseconds.
const SLACK_US: u64 = 2_000;
/// Payload of a packet that the link counts as 1504 bytes: with timestamps, 1448.
const PAYLOAD_PPM: u64 = 1448 * PPM / 1504;

/// Returns each stretch between changes; none where the link stays as it is, or has no rate.
pub(super) fn stretches(link: &PlanLink, duration_ms: u64, measured: &RunFigures) -> Vec<Stretch> {
    if link.changes.is_empty() {
        return Vec::new();
    }
    let starts = std::iter::once(0).chain(link.changes.iter().map(|c| c.at_ms));
    let ends = link.changes.iter().map(|c| c.at_ms).chain([duration_ms]);
    starts.zip(ends).filter_map(|(from_ms, to_ms)| stretch(link, from_ms, to_ms, measured)).collect()
}

fn stretch(link: &PlanLink, from_ms: u64, to_ms: u64, measured: &RunFigures) -> Option<Stretch> {
    let now = link.at(from_ms);
    let capacity_bps = now.medium.rate_bit_per_s()? * PAYLOAD_PPM / PPM;
    let base_rtt_us = 2 * now.delay_us;
    let own = || measured.flows.iter().filter(|f| f.background.is_none());
    let rewards: Vec<u64> = (from_ms..to_ms)
        .step_by(BIN_MS as usize)
        .map(|bin_ms| {
            let means: Vec<(u64, u64)> =
                own().filter_map(|f| mean(f, bin_ms, to_ms.min(bin_ms + BIN_MS))).collect();
            let bps = means.iter().map(|(bps, _)| bps).sum();
            let rtts: Vec<u64> = means.iter().map(|(_, rtt_us)| *rtt_us).filter(|us| *us > 0).collect();
            let rtt_us = rtts.iter().sum::<u64>().checked_div(rtts.len() as u64);
            reward_ppm(bps, capacity_bps, rtt_us, base_rtt_us)
        })
        .collect();
    let held = rewards.windows(HOLD_BINS).position(|bins| bins.iter().all(|reward| *reward >= REACH_PPM));
    let reward_ppm = rewards.iter().sum::<u64>().checked_div(rewards.len() as u64)?;
    Some(Stretch { from_ms, to_ms, reward_ppm, reached_ms: held.map(|bin| bin as u64 * BIN_MS) })
}

/// Returns the mean throughput and RTT of a flow's samples in a time; a sample covers the time before it.
fn mean(flow: &FlowResult, from_ms: u64, to_ms: u64) -> Option<(u64, u64)> {
    let series = &flow.series;
    let samples = series.t_ms.iter().zip(series.throughput_bps.iter().zip(&series.srtt_us));
    let inside = samples.filter(|(t_ms, _)| **t_ms > from_ms && **t_ms <= to_ms);
    let (count, bps, rtt_us) =
        inside.fold((0, 0, 0), |(n, bps, rtt_us), (_, (b, r))| (n + 1, bps + b, rtt_us + r));
    (count > 0).then(|| (bps / count, rtt_us / count))
}

/// The share of the capacity times a power of the base RTT's share; the oracle's is 1. No round trip: nothing.
fn reward_ppm(bps: u64, capacity_bps: u64, rtt_us: Option<u64>, base_rtt_us: u64) -> u64 {
    let Some(rtt_us) = rtt_us.filter(|_| capacity_bps > 0) else { return 0 };
    let used = (bps as f64 / capacity_bps as f64).min(1.0);
    let near = ((base_rtt_us + SLACK_US) as f64 / (rtt_us + SLACK_US) as f64).min(1.0);
    (used * near.powf(LATENCY_WEIGHT) * PPM as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Change, Impairments, Medium, Queue};
    use ccplane_results::Series;

    /// 10 Mb/s of payload and 40 ms, from 4 s on half of that and 80 ms.
    fn link() -> PlanLink {
        let rate = |payload: u64| payload * 1504 / 1448 + 1;
        PlanLink {
            medium: Medium::Rate(rate(10_000_000)),
            way_back: Medium::Unlimited,
            return_queue: Queue::default(),
            return_loss_ppm: 0,
            delay_us: 20_000,
            queue: Queue::default(),
            loss_ppm: 0,
            impairments: Impairments::default(),
            changes: vec![Change {
                at_ms: 4000,
                bit_per_s: Some(rate(5_000_000)),
                delay_us: Some(40_000),
                loss_ppm: None,
            }],
        }
    }

    fn flow(samples: impl Fn(u64) -> (u64, u64)) -> RunFigures {
        let t_ms: Vec<u64> = (1..=80).map(|n| n * 100).collect();
        let throughput_bps = t_ms.iter().map(|t| samples(*t).0).collect();
        let srtt_us = t_ms.iter().map(|t| samples(*t).1).collect();
        let series = Series { t_ms, throughput_bps, srtt_us, ..Series::default() };
        RunFigures { flows: vec![FlowResult { series, ..FlowResult::default() }], ..RunFigures::default() }
    }

    #[test]
    fn latency_weighs_as_in_auroras_reward() {
        assert_eq!(LATENCY_WEIGHT, ccplane_algs::Reward::LATENCY_WEIGHT);
    }

    #[test]
    fn an_oracle_gets_all_of_it_at_once() {
        let oracle = flow(|t| if t <= 4000 { (10_000_000, 40_000) } else { (5_000_000, 80_000) });
        let found = stretches(&link(), 8000, &oracle);
        assert!(found.iter().all(|s| s.reward_ppm >= 999_990 && s.reached_ms == Some(0)), "{found:?}");
        assert_eq!(found.iter().map(|s| (s.from_ms, s.to_ms)).collect::<Vec<_>>(), [(0, 4000), (4000, 8000)]);
    }

    #[test]
    fn who_adapts_late_is_late_and_who_never_does_is_not_there() {
        // For 1.5 s after the change the queue doubles the round trip.
        let late = flow(|t| match t {
            0..=4000 => (10_000_000, 40_000),
            4001..=5500 => (5_000_000, 160_000),
            _ => (5_000_000, 84_000),
        });
        assert_eq!(stretches(&link(), 8000, &late)[1].reached_ms, Some(1500));
        let never = flow(|_| (5_000_000, 162_000));
        let found = stretches(&link(), 8000, &never);
        assert_eq!(found.iter().map(|s| s.reached_ms).collect::<Vec<_>>(), [None, None]);
        // Half of the RTT: 0.5 to the power of 0.4.
        assert_eq!(found[1].reward_ppm / 10, 75_785);
        let mut steady = link();
        steady.changes.clear();
        assert_eq!(stretches(&steady, 8000, &never), []);
    }
}

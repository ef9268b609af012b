//! The figures of one contender in one case, and the metrics by which checks judge them.

use ccplane_results::{Completions, Datapath, FlowResult, RunFigures};
use ccplane_runner::plan::{Plan, Scenario};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Contender};

const PPM: u64 = 1_000_000;
/// Wire bytes of a full packet, and its payload.
const PACKET_BYTES: u64 = 1500;
const PAYLOAD_BYTES: u64 = 1448;
/// Short flows beside others count if they start in so much of the run, in hundredths: later ones may not have had the time to end.
const COUNTED_PERCENT: u64 = 75;

/// One contender in one case; a line of the store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub case: String,
    pub algorithm: String,
    pub datapath: Datapath,
    /// SHA-256 of the plan and the programs, hexadecimal, by which a cell is known to be still true.
    pub digest: String,
    pub figures: Figures,
}

/// The figures of a run, in integers. Those that a case does not have are `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Payload of all of the contender's flows, bits per second, after the warm-up.
    pub throughput_bps: u64,
    /// The same as a share of the link's mean rate, headers added, millionths.
    pub goodput_ppm: u64,
    /// Mean of its flows, microseconds.
    pub mean_rtt_us: u64,
    /// Share of its packets that its senders took for lost, millionths, of the whole run.
    pub loss_ppm: u64,
    /// Mean and 95th percentile of the time that packets wait at the bottleneck, microseconds.
    pub queue_us: u64,
    pub p95_queue_us: u64,
    /// Share of all packets that the bottleneck dropped, millionths; random losses do not count.
    pub dropped_ppm: u64,
    /// Share of all packets that the bottleneck marked, millionths; `None` where the contender's flows set no ECT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marked_ppm: Option<u64>,
    /// Packets offered to the link, of all traffic, in a thousand base round trips, and in a thousand seconds.
    pub packets_per_1000_rtts: u64,
    pub packets_per_1000_s: u64,
    /// Share of the fair share, millionths; 1,000,000 without rivals.
    pub fair_share_ppm: u64,
    /// Jain's index of its flows, millionths.
    pub jain_ppm: u64,
    /// Throughput of its slowest flow over that of its fastest, millionths.
    pub least_ppm: u64,
    /// Mean throughput of its rivals' flows, bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival_bps: Option<u64>,
    /// 95th percentile of its own short flows' completion times, microseconds; unfinished ones count as the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_fct_us: Option<u64>,
    /// Share of its own short flows that did not complete, millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_ppm: Option<u64>,
    /// Median completion time of the short flows beside it, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside_fct_us: Option<u64>,
    /// Share of the datagrams beside it that were lost, millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagram_loss_ppm: Option<u64>,
}

impl Figures {
    /// Computes the figures from a run of the plan's first scenario.
    #[must_use]
    pub fn new(case: Case, contender: &Contender, plan: &Plan, measured: &RunFigures) -> Figures {
        // The league's cell has what both have in common.
        let set = case.set();
        let cell = ccplane_league::Cell::new(
            &case.to_string(),
            set.name(),
            set.goal(),
            &contender.algorithm,
            measured,
        );
        let scenario = plan.scenarios.first();
        let base_rtt_us = scenario.map_or(0, |s| 2 * s.link.delay_us).max(1);
        let window_us = (plan.duration_ms - plan.warmup_ms).max(1) * 1000;
        let link = measured.link.unwrap_or_default();
        let offered = link.departed_pkts + link.dropped_pkts + link.lost_pkts;
        let (own, rivals): (Vec<&FlowResult>, Vec<&FlowResult>) =
            measured.flows.iter().partition(|f| f.background.is_none());
        let bps = |flows: &[&FlowResult]| flows.iter().map(|f| f.throughput_bps).collect::<Vec<u64>>();
        let (own_bps, rival_bps) = (bps(&own), bps(&rivals));
        let least = own_bps.iter().min().copied().unwrap_or(0);
        let longest_us = plan.duration_ms * 1000;
        let completions = measured.completions.as_ref();
        let (sent, delivered) =
            measured.datagrams.iter().fold((0, 0), |(s, d), of| (s + of.sent, d + of.delivered));
        Figures {
            throughput_bps: cell.throughput_bps,
            goodput_ppm: goodput_ppm(cell.throughput_bps, scenario),
            mean_rtt_us: cell.mean_rtt_us,
            loss_ppm: cell.loss_ppm,
            queue_us: link.queue_delay_us.mean,
            p95_queue_us: link.queue_delay_us.p95,
            dropped_ppm: share_ppm(link.dropped_pkts, offered),
            marked_ppm: scenario.is_some_and(|s| s.ecn).then(|| share_ppm(link.marked_pkts, offered)),
            packets_per_1000_rtts: scaled(offered, base_rtt_us * 1000, window_us),
            packets_per_1000_s: scaled(offered, 1_000_000_000, window_us),
            fair_share_ppm: if rivals.is_empty() { PPM } else { cell.fair_share_ppm },
            jain_ppm: cell.jain_ppm,
            least_ppm: share_ppm(least, own_bps.iter().max().copied().unwrap_or(0)),
            rival_bps: rival_bps.iter().sum::<u64>().checked_div(rival_bps.len() as u64),
            p95_fct_us: completions.and_then(|all| percentile_us(all, 95, longest_us, longest_us)),
            unfinished_ppm: completions
                .map(|all| share_ppm(all.unfinished, all.flows.len() as u64 + all.unfinished)),
            beside_fct_us: measured
                .background_completions
                .as_ref()
                .and_then(|all| percentile_us(all, 50, longest_us * COUNTED_PERCENT / 100, longest_us)),
            datagram_loss_ppm: (sent > 0).then(|| share_ppm(sent.saturating_sub(delivered), sent)),
        }
    }
}

fn goodput_ppm(throughput_bps: u64, scenario: Option<&Scenario>) -> u64 {
    let rate = scenario.and_then(|s| s.link.medium.rate_bit_per_s()).unwrap_or(0);
    scaled(throughput_bps * PACKET_BYTES / PAYLOAD_BYTES, PPM, rate)
}

fn share_ppm(part: u64, whole: u64) -> u64 {
    scaled(part, PPM, whole)
}

/// `of * times / by`; 0 where nothing is there to divide by.
fn scaled(of: u64, times: u64, by: u64) -> u64 {
    let scaled = (u128::from(of) * u128::from(times)).checked_div(u128::from(by)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A percentile of the completion times of flows that start before `before_us`, by nearest rank; those that did not complete, where all
/// count, are taken to last for `longest_us`.
fn percentile_us(all: &Completions, p: usize, before_us: u64, longest_us: u64) -> Option<u64> {
    let mut fcts: Vec<u64> =
        all.flows.iter().filter(|flow| flow.start_us < before_us).map(|flow| flow.fct_us).collect();
    if before_us == longest_us {
        fcts.extend((0..all.unfinished).map(|_| longest_us));
    }
    fcts.sort_unstable();
    let rank = (fcts.len() * p).div_ceil(100).max(1);
    fcts.get(rank - 1).copied()
}

/// A figure that checks judge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    Throughput,
    Goodput,
    Loss,
    Queue,
    P95Queue,
    Dropped,
    Marked,
    PacketsPerRtt,
    PacketsPerSecond,
    FairShare,
    Jain,
    LeastShare,
    RivalThroughput,
    P95Fct,
    Unfinished,
    BesideFct,
    DatagramLoss,
}

impl Metric {
    /// Its value in its unit; `None` where the case does not have it.
    #[must_use]
    pub fn value(self, figures: &Figures) -> Option<f64> {
        let share = |ppm: u64| ppm as f64 / PPM as f64;
        let ms = |us: u64| us as f64 / 1e3;
        Some(match self {
            Metric::Throughput => figures.throughput_bps as f64 / 1e6,
            Metric::Goodput => share(figures.goodput_ppm),
            Metric::Loss => share(figures.loss_ppm),
            Metric::Queue => ms(figures.queue_us),
            Metric::P95Queue => ms(figures.p95_queue_us),
            Metric::Dropped => share(figures.dropped_ppm),
            Metric::Marked => share(figures.marked_ppm?),
            Metric::PacketsPerRtt => figures.packets_per_1000_rtts as f64 / 1e3,
            Metric::PacketsPerSecond => figures.packets_per_1000_s as f64 / 1e3,
            Metric::FairShare => share(figures.fair_share_ppm),
            Metric::Jain => share(figures.jain_ppm),
            Metric::LeastShare => share(figures.least_ppm),
            Metric::RivalThroughput => figures.rival_bps? as f64 / 1e6,
            Metric::P95Fct => ms(figures.p95_fct_us?),
            Metric::Unfinished => share(figures.unfinished_ppm?),
            Metric::BesideFct => ms(figures.beside_fct_us?),
            Metric::DatagramLoss => share(figures.datagram_loss_ppm?),
        })
    }

    /// The difference that does not matter, in its unit: it is added to both sides of a ratio, so that nothing is divided by nothing.
    #[must_use]
    pub fn grain(self) -> f64 {
        match self {
            Metric::Throughput | Metric::RivalThroughput => 0.001,
            Metric::Queue | Metric::P95Queue | Metric::P95Fct | Metric::BesideFct => 2.0,
            Metric::PacketsPerRtt | Metric::PacketsPerSecond => 0.5,
            Metric::FairShare | Metric::Jain | Metric::LeastShare | Metric::Goodput => 0.01,
            Metric::Loss | Metric::Dropped | Metric::Marked | Metric::Unfinished | Metric::DatagramLoss => {
                0.005
            }
        }
    }

    /// Words for a table: what it is, and its unit.
    #[must_use]
    pub fn title(self) -> (&'static str, &'static str) {
        match self {
            Metric::Throughput => ("throughput", "Mb/s"),
            Metric::Goodput => ("goodput", "of the link's rate"),
            Metric::Loss => ("its packets lost", "share"),
            Metric::Queue => ("mean queueing delay", "ms"),
            Metric::P95Queue => ("95th percentile of queueing delay", "ms"),
            Metric::Dropped => ("packets dropped at the bottleneck", "share"),
            Metric::Marked => ("packets marked at the bottleneck", "share"),
            Metric::PacketsPerRtt => ("packets sent", "per base round trip"),
            Metric::PacketsPerSecond => ("packets sent", "per second"),
            Metric::FairShare => ("its throughput", "of the fair share"),
            Metric::Jain => ("Jain's index of its flows", ""),
            Metric::LeastShare => ("its slowest flow", "of its fastest"),
            Metric::RivalThroughput => ("throughput of rivals", "Mb/s each"),
            Metric::P95Fct => ("95th percentile of its short flows' completion", "ms"),
            Metric::Unfinished => ("its short flows that did not complete", "share"),
            Metric::BesideFct => ("median completion of short flows beside it", "ms"),
            Metric::DatagramLoss => ("datagrams beside it that were lost", "share"),
        }
    }

    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Traces;
    use ccplane_results::{Completion, DatagramsUse, LinkUse, Percentiles};

    fn flow(background: bool, throughput_bps: u64) -> FlowResult {
        FlowResult {
            background: background.then(|| "cubic".to_owned()),
            throughput_bps,
            ..FlowResult::default()
        }
    }

    fn figures(case: &str, measured: &RunFigures) -> Figures {
        let case: Case = case.parse().unwrap();
        let contender = Contender::simulated("reno");
        let known = ccplane_algs::all();
        let plan = case.plan(std::slice::from_ref(&contender), &known, &Traces::default()).unwrap();
        Figures::new(case, &contender, &plan, measured)
    }

    #[test]
    fn figures_follow_from_flows_and_the_link() {
        let queue_delay_us = Percentiles { mean: 7000, p95: 9000, ..Percentiles::default() };
        let link = LinkUse {
            departed_pkts: 600,
            dropped_pkts: 300,
            lost_pkts: 100,
            queue_delay_us,
            ..LinkUse::default()
        };
        let measured = RunFigures {
            link: Some(link),
            flows: vec![flow(false, 3_000_000), flow(false, 1_000_000), flow(true, 8_000_000)],
            ..RunFigures::default()
        };
        // 50 s without the first 15.
        let f = figures("beside-cubic/0", &measured);
        assert_eq!((f.throughput_bps, f.dropped_ppm, f.least_ppm), (4_000_000, 300_000, 333_333));
        assert_eq!((f.fair_share_ppm, f.rival_bps, f.jain_ppm), (500_000, Some(8_000_000), 800_000));
        assert_eq!((f.queue_us, f.p95_queue_us, f.packets_per_1000_s), (7000, 9000, 1000 * 1000 / 35));
        assert_eq!(
            (f.p95_fct_us, f.unfinished_ppm, f.beside_fct_us, f.datagram_loss_ppm),
            (None, None, None, None)
        );
        assert!(f.packets_per_1000_rtts > 0 && f.packets_per_1000_rtts < f.packets_per_1000_s, "{f:?}");
        assert!(f.goodput_ppm > 0, "{f:?}");
    }

    /// A share of marks is one of flows that may be marked.
    #[test]
    fn marks_count_where_flows_set_ect() {
        let link = LinkUse { departed_pkts: 900, dropped_pkts: 100, marked_pkts: 50, ..LinkUse::default() };
        let measured = RunFigures { link: Some(link), flows: vec![flow(false, 1)], ..RunFigures::default() };
        let marked = |case: &str| Metric::Marked.value(&figures(case, &measured));
        assert_eq!((marked("codel-ecn/0"), marked("codel/0")), (Some(0.05), None));
    }

    /// Those that never end are the longest; those that start late beside others do not count.
    #[test]
    fn short_flows_count_by_their_time() {
        let completion =
            |start_s: u64, fct_us| Completion { start_us: start_s * 1_000_000, bytes: 1, fct_us };
        let flows = vec![completion(1, 10_000), completion(2, 30_000), completion(19, 20_000)];
        let all = Completions { distribution: String::new(), flows, unfinished: 1 };
        let measured = RunFigures {
            completions: Some(all.clone()),
            background_completions: Some(all),
            datagrams: vec![
                DatagramsUse { sent: 80, delivered: 60 },
                DatagramsUse { sent: 20, delivered: 20 },
            ],
            ..RunFigures::default()
        };
        // A run of 20 s, of which flows beside count that start in the first 15.
        let f = figures("short/0", &measured);
        assert_eq!((f.p95_fct_us, f.unfinished_ppm), (Some(20_000_000), Some(250_000)));
        assert_eq!((f.beside_fct_us, f.datagram_loss_ppm), (Some(10_000), Some(200_000)));
        assert_eq!((f.goodput_ppm, f.fair_share_ppm), (0, 1_000_000));
    }

    #[test]
    fn values_have_their_units_and_names() {
        let figures =
            Figures { throughput_bps: 2_500_000, queue_us: 1500, dropped_ppm: 20_000, ..Figures::default() };
        assert_eq!(Metric::Throughput.value(&figures), Some(2.5));
        assert_eq!(Metric::Queue.value(&figures), Some(1.5));
        assert_eq!(Metric::Dropped.value(&figures), Some(0.02));
        assert_eq!(Metric::RivalThroughput.value(&figures), None);
        assert_eq!(Metric::P95Queue.name(), "p95-queue");
        let text = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<Figures>(&text).unwrap(), figures);
    }
}

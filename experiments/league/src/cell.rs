//! The results of one algorithm on one link.

use ccplane_results::{FlowResult, RunFigures};
use serde::{Deserialize, Serialize};

const PPM: u64 = 1_000_000;

/// The measure by which algorithms are scored on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Throughput squared over mean RTT.
    Alone,
    /// A share near that of each rival.
    Beside,
    /// Throughput squared over mean RTT, times Jain's index.
    Own,
}

/// One algorithm on one link; a line of the results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub link: String,
    pub family: String,
    /// The measure of the link's family.
    pub goal: Goal,
    pub algorithm: String,
    /// Of all its flows, bits per second of payload after the warm-up.
    pub throughput_bps: u64,
    /// Mean of its flows, microseconds.
    pub mean_rtt_us: u64,
    /// 95th percentile, the largest of its flows, microseconds.
    pub p95_rtt_us: u64,
    /// Share of its packets that were lost, millionths.
    pub loss_ppm: u64,
    /// Share of the link's capacity that all traffic used, millionths.
    pub utilisation_ppm: u64,
    /// Mean time that packets waited at the bottleneck, microseconds.
    pub queue_us: u64,
    /// A flow's throughput over the mean of all flows', rivals included, millionths.
    pub fair_share_ppm: u64,
    /// Jain's index of its flows, millionths.
    pub jain_ppm: u64,
    /// Mean time after a step until 90 % of an oracle's reward are reached, milliseconds; the time to the next step where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_ms: Option<u64>,
    /// Whether the link drops nothing but what its queue has no room for, and the queue holds ten packets or more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossless: bool,
}

impl Cell {
    /// Computes the cell of one algorithm on one link from a run.
    #[must_use]
    pub fn new(link: &str, family: &str, goal: Goal, algorithm: &str, measured: &RunFigures) -> Cell {
        let own: Vec<&FlowResult> = measured.flows.iter().filter(|f| f.background.is_none()).collect();
        let count = own.len().max(1) as u64;
        let throughput_bps: u64 = own.iter().map(|f| f.throughput_bps).sum();
        let total_bps: u64 = measured.flows.iter().map(|f| f.throughput_bps).sum();
        // What is sent: all that was delivered, and all that was lost.
        let packets: u64 = own.iter().map(|f| f.acked_bytes / PAYLOAD_BYTES + f.lost_pkts).sum();
        let lost: u64 = own.iter().map(|f| f.lost_pkts).sum();
        let fair_bps = total_bps / measured.flows.len().max(1) as u64;
        let steps = measured.stretches.get(1..).unwrap_or_default();
        let settled: u64 = steps.iter().map(|s| s.reached_ms.unwrap_or(s.to_ms - s.from_ms)).sum();
        Cell {
            link: link.to_owned(),
            family: family.to_owned(),
            goal,
            algorithm: algorithm.to_owned(),
            throughput_bps,
            mean_rtt_us: own.iter().map(|f| f.rtt_us.mean).sum::<u64>() / count,
            p95_rtt_us: own.iter().map(|f| f.rtt_us.p95).max().unwrap_or(0),
            loss_ppm: (lost * PPM).checked_div(packets).unwrap_or(0),
            utilisation_ppm: measured.link.map_or(0, |l| l.utilisation_ppm),
            queue_us: measured.link.map_or(0, |l| l.queue_delay_us.mean),
            fair_share_ppm: (throughput_bps / count * PPM).checked_div(fair_bps).unwrap_or(0),
            jain_ppm: jain_ppm(&own),
            settled_ms: settled.checked_div(steps.len() as u64),
            lossless: false,
        }
    }

    /// Returns the score of that, by the link's goal; comparable on one link only. 0 is the worst.
    #[must_use]
    pub fn score(&self) -> f64 {
        let power = (self.throughput_bps as f64).powi(2) / self.mean_rtt_us.max(1) as f64;
        match self.goal {
            Goal::Alone => power,
            Goal::Own => power * self.jain_ppm as f64 / PPM as f64,
            Goal::Beside => (1.0 - (self.fair_share_ppm as f64 / PPM as f64 - 1.0).abs()).max(0.0),
        }
    }

    /// Whether it is better in throughput or delay by a twentieth, and no worse in the other.
    #[must_use]
    pub fn dominates(&self, other: &Cell) -> bool {
        const CLEARLY: f64 = 1.05;
        let (thr, rtt) = (self.throughput_bps as f64, self.mean_rtt_us as f64);
        let (their_thr, their_rtt) = (other.throughput_bps as f64, other.mean_rtt_us as f64);
        // An algorithm that carries nothing gets no credit for its delay.
        if thr == 0.0 {
            return false;
        }
        (thr > their_thr * CLEARLY && rtt <= their_rtt) || (rtt * CLEARLY < their_rtt && thr >= their_thr)
    }
}

/// Payload of a full packet.
const PAYLOAD_BYTES: u64 = 1448;

fn jain_ppm(flows: &[&FlowResult]) -> u64 {
    let sum: u128 = flows.iter().map(|f| u128::from(f.throughput_bps)).sum();
    let squares: u128 = flows.iter().map(|f| u128::from(f.throughput_bps).pow(2)).sum();
    let jain = (sum * sum * u128::from(PPM)).checked_div(squares * flows.len() as u128);
    jain.map_or(0, |jain| jain as u64)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::{Cell, Goal};
    use ccplane_results::RunFigures;

    /// A flow alone on a link whose name begins with its family.
    pub(crate) fn cell(link: &str, algorithm: &str, mbit: u64, rtt_ms: u64) -> Cell {
        let family = link.split('/').next().unwrap();
        Cell {
            throughput_bps: mbit * 1_000_000,
            mean_rtt_us: rtt_ms * 1000,
            ..Cell::new(link, family, Goal::Alone, algorithm, &RunFigures::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_results::{Percentiles, Stretch};

    fn flow(background: bool, throughput_bps: u64) -> FlowResult {
        FlowResult {
            background: background.then(|| "cubic".to_owned()),
            throughput_bps,
            rtt_us: Percentiles { mean: 20_000, p95: 30_000, ..Percentiles::default() },
            acked_bytes: 98 * PAYLOAD_BYTES,
            lost_pkts: 2,
            ..FlowResult::default()
        }
    }

    #[test]
    fn figures_follow_from_flows() {
        let stretch =
            |from_ms, reached_ms| Stretch { from_ms, to_ms: from_ms + 5000, reward_ppm: 0, reached_ms };
        let measured = RunFigures {
            flows: vec![flow(false, 3_000_000), flow(false, 1_000_000), flow(true, 8_000_000)],
            stretches: vec![stretch(0, None), stretch(5000, Some(1000)), stretch(10_000, None)],
            ..RunFigures::default()
        };
        let cell = Cell::new("own/test/1", "own", Goal::Own, "reno", &measured);
        assert_eq!((cell.throughput_bps, cell.mean_rtt_us, cell.p95_rtt_us), (4_000_000, 20_000, 30_000));
        assert_eq!((cell.loss_ppm, cell.jain_ppm, cell.fair_share_ppm), (20_000, 800_000, 500_000));
        assert_eq!(cell.settled_ms, Some(3000));
        assert!((cell.score() - 16e12 / 20_000.0 * 0.8).abs() < 1.0);
        let beside = Cell { goal: Goal::Beside, ..cell.clone() };
        assert!((beside.score() - 0.5).abs() < 1e-9);
        let text = serde_json::to_string(&cell).unwrap();
        assert_eq!(serde_json::from_str::<Cell>(&text).unwrap(), cell);
    }

    #[test]
    fn who_is_better_in_both_dominates() {
        let cell = |throughput_bps, mean_rtt_us| Cell {
            throughput_bps,
            mean_rtt_us,
            ..Cell::new("l", "f", Goal::Alone, "a", &RunFigures::default())
        };
        assert!(cell(110, 10).dominates(&cell(100, 10)) && cell(100, 9).dominates(&cell(100, 10)));
        assert!(!cell(104, 10).dominates(&cell(100, 10)) && !cell(200, 11).dominates(&cell(100, 10)));
        assert!(!cell(0, 1).dominates(&cell(0, 10)));
    }
}

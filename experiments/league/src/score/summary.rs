//! The figures by which an algorithm is, or is not, a good choice in the league as a whole.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Placed, Standing, standing};
use crate::family::Family;

/// Links that an algorithm has for itself, on a wire whose rate may step.
const WIRED: [Family; 4] = [Family::Steady, Family::Steps, Family::Shallow, Family::Deep];
/// Links that are cellular, lossy, shallow or policed, or whose way back hinders acknowledgements.
const HARD: [Family; 9] = [
    Family::Cellular,
    Family::Recorded,
    Family::Loss,
    Family::Burst,
    Family::Shallow,
    Family::Policer,
    Family::SlowReturn,
    Family::LumpyReturn,
    Family::LossyReturn,
];
/// The 5th percentile of the score over the best that is wanted in each family.
const WANTED_LOW_SCORE: f64 = 0.75;
/// The largest share of packets that may be lost on a link that is lossless, millionths.
const WANTED_LOSS_PPM: u64 = 20_000;
/// The algorithm whose queues are the measure of queues among flows of one kind.
const QUEUES_OF: &str = "copa";
/// The longest queue that is wanted among flows of one kind, in that algorithm's queues.
const WANTED_QUEUES: u64 = 2;
/// The algorithm whose fairness is the measure between flows with unequal round trips.
const FAIRNESS_OF: &str = "cubic";

/// The summary of an algorithm; a figure is missing where no link of its families was played.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Share of the wired links won that it has for itself.
    pub wired_won: Option<f64>,
    /// Share of links beside CUBIC won.
    pub cubic_won: Option<f64>,
    /// Share of links beside CUBIC with 0.8 to 1.25 of the fair share.
    pub cubic_fair: Option<f64>,
    /// The least share of the fair share beside CUBIC.
    pub cubic_least: Option<f64>,
    /// Share of cellular, lossy, shallow, policed and return-path links on which no other is better in both throughput and delay.
    pub hard_undominated: Option<f64>,
    /// Mean of its score over the best one, on all links.
    pub mean_score: f64,
    /// The lowest 5th percentile of that score in any family.
    pub low_score: f64,
    /// The family with that percentile.
    pub low_family: String,
    /// Share of families whose 5th percentile is 0.75 or more.
    pub low_kept: f64,
    /// Share of lossless links on which it loses at most 2 % of its packets.
    pub loss_kept: Option<f64>,
    /// The largest share of packets lost on a lossless link.
    pub loss_most: Option<f64>,
    /// Mean of Jain's index among 2 to 16 flows of its own kind.
    pub own_jain: Option<f64>,
    /// Share of those links on which packets wait at most twice as long as among Copa's flows.
    pub own_queues_kept: Option<f64>,
    /// Mean of Jain's index among flows of its own kind with unequal round trips.
    pub unequal_jain: Option<f64>,
    /// The same mean over CUBIC's.
    pub unequal_jain_of_cubic: Option<f64>,
}

impl Summary {
    /// The summary of each algorithm, in the order of `total`.
    pub(super) fn of_all(
        total: &[(String, Standing)],
        families: &[(String, BTreeMap<String, Standing>)],
        placed: &BTreeMap<&str, Vec<Placed<'_>>>,
    ) -> Vec<(String, Summary)> {
        let of = |name: &str| placed.get(name).map(Vec::as_slice).unwrap_or_default();
        let own = of(QUEUES_OF).iter().filter(|p| p.is_of(&[Family::Own]));
        let queues: BTreeMap<&str, u64> = own.map(|p| (p.cell.link.as_str(), p.cell.queue_us)).collect();
        let all = total.iter().map(|(name, standing)| {
            let summary = Summary::new(name, standing.mean_score, families, of(name));
            (name.clone(), Summary { own_queues_kept: queues_kept(of(name), &queues), ..summary })
        });
        all.collect()
    }

    fn new(
        name: &str,
        mean_score: f64,
        families: &[(String, BTreeMap<String, Standing>)],
        all: &[Placed<'_>],
    ) -> Summary {
        let of = |wanted: &[Family]| {
            let of = standing(all.iter().filter(|p| p.is_of(wanted)));
            (of.links > 0).then_some(of)
        };
        let family = |wanted: Family, name: &str| -> Option<&Standing> {
            let (_, standings) = families.iter().find(|(family, _)| family == wanted.name())?;
            standings.get(name)
        };
        let cubic = family(Family::BesideCubic, name);
        let unequal = |name: &str| family(Family::OwnRtts, name)?.jain;
        let in_each = |(family, of): &(String, BTreeMap<String, Standing>)| {
            Some((of.get(name)?.low_score, family.clone()))
        };
        let lows: Vec<(f64, String)> = families.iter().filter_map(in_each).collect();
        let (low_score, low_family) =
            lows.iter().min_by(|a, b| a.0.total_cmp(&b.0)).cloned().unwrap_or_default();
        let losses: Vec<u64> = all.iter().filter(|p| p.cell.lossless).map(|p| p.cell.loss_ppm).collect();
        let unequal_jain = unequal(name);
        Summary {
            wired_won: of(&WIRED).map(|s| s.won),
            cubic_won: cubic.map(|s| s.won),
            cubic_fair: cubic.and_then(|s| s.fair),
            cubic_least: cubic.and_then(|s| s.least_share),
            hard_undominated: of(&HARD).map(|s| s.undominated),
            mean_score,
            low_score,
            low_family,
            low_kept: share(&lows, |(low, _)| *low >= WANTED_LOW_SCORE).unwrap_or(0.0),
            loss_kept: share(&losses, |ppm| *ppm <= WANTED_LOSS_PPM),
            loss_most: losses.iter().max().map(|ppm| *ppm as f64 / 1e6),
            own_jain: family(Family::Own, name).and_then(|s| s.jain),
            own_queues_kept: None,
            unequal_jain,
            unequal_jain_of_cubic: unequal_jain.zip(unequal(FAIRNESS_OF)).map(|(jain, cubic)| jain / cubic),
        }
    }
}

/// Share of links on which packets wait at most twice as long as in `queues`, of those that it has played.
fn queues_kept(all: &[Placed<'_>], queues: &BTreeMap<&str, u64>) -> Option<f64> {
    let both = all.iter().filter_map(|p| Some((p.cell.queue_us, queues.get(p.cell.link.as_str())?)));
    let both: Vec<(u64, &u64)> = both.collect();
    share(&both, |(queue_us, measure_us)| *queue_us <= WANTED_QUEUES * **measure_us)
}

fn share<T>(of: &[T], is: impl Fn(&T) -> bool) -> Option<f64> {
    (!of.is_empty()).then(|| of.iter().filter(|one| is(one)).count() as f64 / of.len() as f64)
}

/// A figure of the summary, for a table's row.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// The values that are wanted of `dual` and of `neural`, or of both.
    pub(crate) wanted: &'static str,
    /// The figure as it is shown.
    pub(crate) shown: fn(&Summary) -> String,
}

/// The rows of the summary, in this order.
pub(crate) const FIGURES: [Figure; 13] = [
    Figure { name: "alone on wired links: won %", wanted: "95, 97", shown: |s| percent(s.wired_won) },
    Figure { name: "beside CUBIC: won %", wanted: "80, 85", shown: |s| percent(s.cubic_won) },
    Figure { name: "beside CUBIC: fair %", wanted: "85, 90", shown: |s| percent(s.cubic_fair) },
    Figure { name: "beside CUBIC: least share", wanted: "0.40", shown: |s| two(s.cubic_least) },
    Figure {
        name: "radio, lossy, shallow, policed, ways back: undom %",
        wanted: "85, 95",
        shown: |s| percent(s.hard_undominated),
    },
    Figure { name: "all links: score", wanted: "0.93, 0.96", shown: |s| two(Some(s.mean_score)) },
    Figure { name: "worst family: low", wanted: "0.75", shown: |s| two(Some(s.low_score)) },
    Figure { name: "families with a low of 0.75: %", wanted: "100", shown: |s| percent(Some(s.low_kept)) },
    Figure {
        name: "links that lose none, queue of ten: lost 2 % at most on %",
        wanted: "100",
        shown: |s| percent(s.loss_kept),
    },
    Figure {
        name: "links that lose none, queue of ten: most lost %",
        wanted: "2.0",
        shown: |s| s.loss_most.map_or_else(missing, |loss| format!("{:.1}", loss * 100.0)),
    },
    Figure { name: "2 to 16 of its own kind: jain", wanted: "0.95", shown: |s| two(s.own_jain) },
    Figure {
        name: "2 to 16 of its own kind: twice Copa's queue at most on %",
        wanted: "100",
        shown: |s| percent(s.own_queues_kept),
    },
    Figure {
        name: "unequal round trips: jain over CUBIC's",
        wanted: "1.00",
        shown: |s| two(s.unequal_jain_of_cubic),
    },
];

/// A figure that no link tells.
fn missing() -> String {
    "-".to_owned()
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(missing, |share| format!("{:.0}", share * 100.0))
}

pub(crate) fn two(figure: Option<f64>) -> String {
    figure.map_or_else(missing, |figure| format!("{figure:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::cell;
    use crate::cell::{Cell, Goal};
    use crate::score::Table;

    fn of(cells: &[Cell], name: &str) -> Summary {
        let table = Table::new(cells);
        table.summary.iter().find(|(of, _)| of == name).unwrap().1.clone()
    }

    #[test]
    fn figures_of_the_families_are_the_standings() {
        let beside = |n: usize, ppm| Cell {
            goal: Goal::Beside,
            fair_share_ppm: ppm,
            ..cell(&format!("beside-cubic/training/{n}"), "a", 10, 10)
        };
        let mut cells: Vec<Cell> = [300_000, 800_000, 1_000_000, 1_300_000]
            .into_iter()
            .enumerate()
            .map(|(n, ppm)| beside(n, ppm))
            .collect();
        cells.extend([
            // Half of the best throughput at the same delay: neither won nor undominated, a quarter of the score.
            cell("steady/training/0", "a", 5, 10),
            cell("steady/training/0", "b", 10, 10),
            cell("shallow/training/0", "a", 10, 10),
            cell("shallow/training/0", "b", 5, 10),
            cell("loss/training/0", "a", 5, 10),
            cell("loss/training/0", "b", 10, 10),
            // Of none of the named groups.
            cell("jitter/training/0", "a", 5, 10),
            cell("jitter/training/0", "b", 10, 10),
        ]);
        let a = of(&cells, "a");
        assert_eq!((a.wired_won, a.hard_undominated), (Some(0.5), Some(0.5)));
        assert_eq!((a.cubic_won, a.cubic_fair, a.cubic_least), (Some(1.0), Some(0.5), Some(0.3)));
        assert!((a.mean_score - (4.0 + 1.0 + 3.0 * 0.25) / 8.0).abs() < 1e-9);
        assert!((a.low_score - 0.25).abs() < 1e-9 && a.low_family == "steady", "{a:?}");
        assert!((a.low_kept - 0.4).abs() < 1e-9, "beside CUBIC and shallow of five: {a:?}");
        assert_eq!((a.own_jain, a.loss_kept, a.unequal_jain_of_cubic), (None, None, None));
        assert_eq!(of(&cells, "b").cubic_won, None);
    }

    /// Links that lose packets themselves, or have short queues, do not count; two in a hundred is still kept.
    #[test]
    fn losses_count_where_the_link_loses_none() {
        let lossy = |n: u64, loss_ppm, lossless| Cell {
            loss_ppm,
            lossless,
            ..cell(&format!("deep/training/{n}"), "a", 10, 10)
        };
        let a = of(&[lossy(0, 20_000, true), lossy(1, 30_000, true), lossy(2, 500_000, false)], "a");
        assert_eq!((a.loss_kept, a.loss_most), (Some(0.5), Some(0.03)));
    }

    #[test]
    fn queues_are_measured_by_copas_and_fairness_by_cubics() {
        let own = |family: &str, n: u64, name: &str, queue_us, jain_ppm| Cell {
            goal: Goal::Own,
            queue_us,
            jain_ppm,
            ..cell(&format!("{family}/training/{n}"), name, 10, 10)
        };
        let cells = [
            own("own", 0, "a", 2000, 1_000_000),
            own("own", 0, "copa", 1000, 1_000_000),
            own("own", 1, "a", 2001, 900_000),
            own("own", 1, "copa", 1000, 1_000_000),
            own("own-rtts", 0, "a", 90_000, 600_000),
            own("own-rtts", 0, "copa", 10, 900_000),
            own("own-rtts", 0, "cubic", 50_000, 800_000),
        ];
        let a = of(&cells, "a");
        assert_eq!((a.own_jain, a.own_queues_kept), (Some(0.95), Some(0.5)));
        assert!((a.unequal_jain_of_cubic.unwrap() - 0.75).abs() < 1e-9);
        assert_eq!(of(&cells, "copa").own_queues_kept, Some(1.0));
        assert_eq!(of(&cells, "cubic").own_queues_kept, None, "it played none of them");
        assert_eq!(of(&cells[..1], "a").own_queues_kept, None, "nothing to measure by");
    }
}

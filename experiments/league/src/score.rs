//! Standings: the cells of each algorithm, aggregated over links.

mod summary;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::cell::{Cell, Goal};
use crate::family::Family;

pub use summary::Summary;
pub(crate) use summary::{FIGURES, Figure, percent, two};

/// A score this near to the best one wins.
pub(crate) const WINS: f64 = 0.9;
/// Shares of the fair share that count as fair.
const FAIR: RangeInclusive<f64> = 0.8..=1.25;
/// Links that are shown as the worst.
const WORST: usize = 10;

/// An algorithm, over all links or those of one family.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Standing {
    /// The number of links played.
    pub links: usize,
    /// Share of links on which its score is within a tenth of the best.
    pub won: f64,
    /// Share of links on which no other is better in both throughput and delay.
    pub undominated: f64,
    /// Mean of its score over the best one.
    pub mean_score: f64,
    /// 5th percentile of that.
    pub low_score: f64,
    /// Median share of the fair share; of links with rivals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<f64>,
    /// Share of those links with 0.8 to 1.25 of the fair share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair: Option<f64>,
    /// The least share of the fair share on any of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_share: Option<f64>,
    /// Mean of Jain's index; of links that it shares with its own kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Mean share of packets lost.
    pub loss: f64,
    /// Median time to 90 % after a step, seconds; of links that change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_s: Option<f64>,
}

/// A link on which an algorithm does badly.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    pub link: String,
    /// Its score over the best one.
    pub score: f64,
    /// The algorithm with the best score there.
    pub best: String,
}

/// A cell beside those of the same link.
struct Placed<'a> {
    cell: &'a Cell,
    /// Its score over the best.
    ratio: f64,
    best: &'a str,
    dominated: bool,
}

impl Placed<'_> {
    fn is_of(&self, families: &[Family]) -> bool {
        families.iter().any(|family| family.name() == self.cell.family)
    }
}

/// The standings of all algorithms.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// Over all links, the best winning rate first.
    pub total: Vec<(String, Standing)>,
    /// By family, in the families' order, then by algorithm.
    pub families: Vec<(String, BTreeMap<String, Standing>)>,
    /// The figures that are wanted in the league as a whole, in the order of `total`.
    pub summary: Vec<(String, Summary)>,
    /// The worst links of each algorithm.
    pub worst: BTreeMap<String, Vec<Worst>>,
}

impl Table {
    /// Of these cells. A link that not all algorithms have played counts for those that have.
    #[must_use]
    pub fn new(cells: &[Cell]) -> Table {
        let mut links: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
        cells.iter().for_each(|cell| links.entry(&cell.link).or_default().push(cell));
        let mut of: BTreeMap<&str, Vec<Placed<'_>>> = BTreeMap::new();
        links.values().flat_map(|cells| placed(cells)).for_each(|p| {
            of.entry(&p.cell.algorithm).or_default().push(p);
        });
        let mut total: Vec<(String, Standing)> =
            of.iter().map(|(name, all)| ((*name).to_owned(), standing(all.iter()))).collect();
        total.sort_by(|a, b| b.1.won.total_cmp(&a.1.won));
        let mut names: Vec<&str> = Vec::new();
        cells.iter().map(|c| c.family.as_str()).for_each(|family| {
            if !names.contains(&family) {
                names.push(family);
            }
        });
        let family = |family: &str| {
            let one = |(name, all): (&&str, &Vec<Placed<'_>>)| {
                ((*name).to_owned(), standing(all.iter().filter(|p| p.cell.family == family)))
            };
            (family.to_owned(), of.iter().map(one).filter(|(_, s)| s.links > 0).collect())
        };
        let families: Vec<(String, BTreeMap<String, Standing>)> = names.into_iter().map(family).collect();
        let worst = of.iter().map(|(name, all)| ((*name).to_owned(), worst(all))).collect();
        let summary = Summary::of_all(&total, &families, &of);
        Table { total, families, summary, worst }
    }
}

fn placed<'a>(cells: &[&'a Cell]) -> Vec<Placed<'a>> {
    let Some(best) = cells.iter().copied().max_by(|a, b| a.score().total_cmp(&b.score())) else {
        return Vec::new();
    };
    let place = |cell: &&'a Cell| Placed {
        cell,
        ratio: if best.score() > 0.0 { cell.score() / best.score() } else { 1.0 },
        best: &best.algorithm,
        dominated: cells.iter().any(|other| other.dominates(cell)),
    };
    cells.iter().map(place).collect()
}

fn standing<'a>(placed: impl Iterator<Item = &'a Placed<'a>>) -> Standing {
    let all: Vec<&Placed<'_>> = placed.collect();
    if all.is_empty() {
        return Standing::default();
    }
    let share =
        |of: &dyn Fn(&Placed<'_>) -> bool| all.iter().filter(|p| of(p)).count() as f64 / all.len() as f64;
    let figures = |goal: Goal, of: fn(&Cell) -> f64| -> Vec<f64> {
        all.iter().filter(|p| p.cell.goal == goal).map(|p| of(p.cell)).collect()
    };
    let ratios: Vec<f64> = all.iter().map(|p| p.ratio).collect();
    let settled: Vec<f64> = all.iter().filter_map(|p| p.cell.settled_ms).map(|ms| ms as f64 / 1e3).collect();
    let shares = figures(Goal::Beside, |c| c.fair_share_ppm as f64 / 1e6);
    let fair: Vec<f64> = shares.iter().map(|s| f64::from(u8::from(FAIR.contains(s)))).collect();
    let jain = figures(Goal::Own, |c| c.jain_ppm as f64 / 1e6);
    let losses: Vec<f64> = all.iter().map(|p| p.cell.loss_ppm as f64 / 1e6).collect();
    Standing {
        links: all.len(),
        won: share(&|p| p.ratio >= WINS),
        undominated: share(&|p| !p.dominated),
        mean_score: mean(&ratios).unwrap_or(0.0),
        low_score: quantile(ratios, 0.05).unwrap_or(0.0),
        fair_share: quantile(shares.clone(), 0.5),
        fair: mean(&fair),
        least_share: quantile(shares, 0.0),
        jain: mean(&jain),
        loss: mean(&losses).unwrap_or(0.0),
        settled_s: quantile(settled, 0.5),
    }
}

fn worst(all: &[Placed<'_>]) -> Vec<Worst> {
    let mut sorted: Vec<&Placed<'_>> = all.iter().filter(|p| p.ratio < WINS).collect();
    sorted.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let worst =
        |p: &&Placed<'_>| Worst { link: p.cell.link.clone(), score: p.ratio, best: p.best.to_owned() };
    sorted.iter().take(WORST).map(worst).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) as f64 * share).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::cell;

    #[test]
    fn the_table_says_who_wins_and_where_not() {
        let cells = [
            // 100 against 96 of the best: both win, a is not dominated and neither is b.
            cell("steady/test/0", "a", 10, 10),
            cell("steady/test/0", "b", 14, 20),
            // b has half of the throughput and the same delay.
            cell("steady/test/1", "a", 10, 10),
            cell("steady/test/1", "b", 5, 10),
            cell("loss/test/0", "a", 2, 10),
            cell("loss/test/0", "b", 4, 10),
        ];
        let table = Table::new(&cells);
        let of = |name: &str| table.total.iter().find(|(n, _)| n == name).unwrap().1.clone();
        let thirds = |x: f64| (x * 3.0).round() as u32;
        assert_eq!((thirds(of("a").won), thirds(of("a").undominated)), (2, 2));
        assert_eq!((thirds(of("b").won), thirds(of("b").undominated)), (2, 2));
        assert!((of("b").mean_score - (0.98 + 0.25 + 1.0) / 3.0).abs() < 1e-9);
        assert!((of("b").low_score - 0.25).abs() < 1e-9);
        let names: Vec<&str> = table.families.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["steady", "loss"]);
        assert!((table.families[1].1["a"].won, table.families[1].1["b"].won) == (0.0, 1.0));
        assert_eq!(table.worst["b"].len(), 1);
        assert_eq!(
            (table.worst["b"][0].link.as_str(), table.worst["b"][0].best.as_str()),
            ("steady/test/1", "a")
        );
    }

    #[test]
    fn shares_of_the_fair_share_are_counted() {
        let beside = |n: usize, ppm| Cell {
            goal: Goal::Beside,
            fair_share_ppm: ppm,
            ..cell(&format!("beside-cubic/training/{n}"), "a", 10, 10)
        };
        let cells: Vec<Cell> = [300_000, 800_000, 1_000_000, 1_300_000]
            .into_iter()
            .enumerate()
            .map(|(n, s)| beside(n, s))
            .collect();
        let standing = Table::new(&cells).total[0].1.clone();
        assert_eq!((standing.fair, standing.least_share), (Some(0.5), Some(0.3)));
        assert_eq!(Table::new(&[cell("steady/training/0", "a", 1, 1)]).total[0].1.fair, None);
    }

    /// Parts of a league that are played apart and put together again score as one.
    #[test]
    fn results_merge_in_any_order() {
        let mut cells: Vec<Cell> = (0..20)
            .flat_map(|n| ["a", "b", "c"].map(|name| cell(&format!("steady/test/{n}"), name, 5 + n % 7, 10)))
            .collect();
        let whole = Table::new(&cells);
        cells.reverse();
        assert_eq!(Table::new(&cells), whole);
    }
}

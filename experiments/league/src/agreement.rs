//! Simulated flows are compared with kernel flows over emulated links.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::cell::Cell;
use crate::score::{Standing, Table, WINS, percent, two};
use crate::text::columns;

/// The two worlds agree within this share of throughput and of mean RTT.
const AGREES: f64 = 0.05;

/// The same links in both worlds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Agreement {
    /// Runs that both worlds have.
    pub runs: usize,
    /// Share of them whose throughput and mean RTT differ by a twentieth at most.
    pub agree: f64,
    /// Pairs of algorithms on one link whose simulated scores differ by more than a tenth.
    pub ordered: usize,
    /// Share of those pairs that have the same order in the kernel.
    pub same_order: f64,
    /// Share of links whose best algorithm in the kernel has a simulated score within a tenth of the best.
    pub same_winner: f64,
    /// Each algorithm's standing on these links, simulated and in the kernel.
    pub standings: Vec<Both>,
    /// Every run's ratios, the farthest from 1 first.
    pub pairs: Vec<Pair>,
}

/// One algorithm's standing in both worlds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Both {
    pub algorithm: String,
    /// Its standing in the simulator.
    pub simulated: Standing,
    /// Its standing in the kernel.
    pub live: Standing,
}

/// One algorithm on one link: the kernel's figures over the simulator's.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Pair {
    /// The link's name, as [`FamilyLink`](crate::FamilyLink) reads it.
    pub link: String,
    pub algorithm: String,
    /// The kernel's throughput over the simulator's.
    pub throughput: f64,
    /// The kernel's mean RTT over the simulator's.
    pub rtt: f64,
}

impl Pair {
    fn new(live: &Cell, simulated: &Cell) -> Pair {
        let ratio = |of: u64, to: u64| of.max(1) as f64 / to.max(1) as f64;
        Pair {
            link: live.link.clone(),
            algorithm: live.algorithm.clone(),
            throughput: ratio(live.throughput_bps, simulated.throughput_bps),
            rtt: ratio(live.mean_rtt_us, simulated.mean_rtt_us),
        }
    }

    fn agrees(&self) -> bool {
        (self.throughput - 1.0).abs() <= AGREES && (self.rtt - 1.0).abs() <= AGREES
    }

    /// Distance from agreement, the larger logarithm.
    fn distance(&self) -> f64 {
        self.throughput.ln().abs().max(self.rtt.ln().abs())
    }
}

impl Agreement {
    /// Of the cells that both worlds have.
    #[must_use]
    pub fn new(live: &[Cell], simulated: &[Cell]) -> Agreement {
        let name = |cell: &Cell| (cell.link.clone(), cell.algorithm.clone());
        let of: BTreeMap<_, &Cell> = simulated.iter().map(|cell| (name(cell), cell)).collect();
        let both: Vec<(&Cell, &Cell)> =
            live.iter().filter_map(|cell| of.get(&name(cell)).map(|other| (cell, *other))).collect();
        let mut pairs: Vec<Pair> = both.iter().map(|(live, simulated)| Pair::new(live, simulated)).collect();
        pairs.sort_by(|a, b| b.distance().total_cmp(&a.distance()));
        let mut links: BTreeMap<&str, Vec<(&Cell, &Cell)>> = BTreeMap::new();
        both.iter().for_each(|(live, simulated)| {
            links.entry(&live.link).or_default().push((live, simulated));
        });
        let (mut ordered, mut same, mut winners) = (0, 0, 0);
        for cells in links.values() {
            for (n, (a_live, a)) in cells.iter().enumerate() {
                for (b_live, b) in &cells[n + 1..] {
                    let (a, b, a_live, b_live) = (a.score(), b.score(), a_live.score(), b_live.score());
                    // Scores nearer to each other have no order.
                    if a.min(b) < WINS * a.max(b) {
                        ordered += 1;
                        same += usize::from((a < b) == (a_live < b_live));
                    }
                }
            }
            let most = cells.iter().map(|(_, simulated)| simulated.score()).fold(0.0, f64::max);
            let best = cells.iter().max_by(|a, b| a.0.score().total_cmp(&b.0.score()));
            winners += usize::from(best.is_some_and(|(_, simulated)| simulated.score() >= WINS * most));
        }
        let table =
            |of: fn(&(&Cell, &Cell)) -> Cell| Table::new(&both.iter().map(of).collect::<Vec<_>>()).total;
        let live_table = table(|(live, _)| (*live).clone());
        let standing = |algorithm: &str| live_table.iter().find(|(name, _)| name == algorithm);
        let simulated = table(|(_, simulated)| (*simulated).clone()).into_iter();
        let standings = simulated.filter_map(|(algorithm, simulated)| {
            let live = standing(&algorithm)?.1.clone();
            Some(Both { algorithm, simulated, live })
        });
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        Agreement {
            runs: pairs.len(),
            agree: share(pairs.iter().filter(|pair| pair.agrees()).count(), pairs.len()),
            ordered,
            same_order: share(same, ordered),
            same_winner: share(winners, links.len()),
            standings: standings.collect(),
            pairs,
        }
    }

    /// For a terminal: the shares, the standings, and every run that does not agree.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "\nlive: {:.0} % of {} runs agree within {:.0} % in throughput and mean RTT; {:.0} % of {} pairs of algorithms have the \
             same order; {:.0} % of winners stand\n",
            self.agree * 100.0,
            self.runs,
            AGREES * 100.0,
            self.same_order * 100.0,
            self.ordered,
            self.same_winner * 100.0,
        );
        let header = ["algorithm", "won %: sim", "live", "undominated %: sim", "live", "score: sim", "live"]
            .map(str::to_owned);
        let row = |Both { algorithm, simulated, live }: &Both| -> Vec<String> {
            let won = [simulated, live].map(|s| percent(Some(s.won)));
            let undominated = [simulated, live].map(|s| percent(Some(s.undominated)));
            let score = [simulated, live].map(|s| two(Some(s.mean_score)));
            [algorithm.clone()].into_iter().chain(won).chain(undominated).chain(score).collect()
        };
        text.push_str(&columns(header.to_vec(), self.standings.iter().map(row).collect()));
        for pair in self.pairs.iter().filter(|pair| !pair.agrees()) {
            let Pair { link, algorithm, throughput, rtt } = pair;
            let _ = writeln!(text, "  {algorithm} on {link}: throughput x {throughput:.2}, RTT x {rtt:.2}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::testing::cell;

    #[test]
    fn figures_order_and_winners_are_compared_link_by_link() {
        let simulated = [
            cell("0", "a", 100, 10),
            cell("0", "b", 50, 10),
            cell("0", "c", 97, 10),
            cell("1", "a", 100, 10),
            cell("1", "b", 50, 10),
            cell("2", "a", 7, 7),
        ];
        let live = [
            cell("0", "a", 96, 10),
            cell("0", "b", 50, 12),
            cell("0", "c", 100, 10),
            cell("1", "a", 40, 10),
            cell("1", "b", 50, 10),
        ];
        let agreement = Agreement::new(&live, &simulated);
        assert_eq!((agreement.runs, agreement.agree), (5, 0.6), "a and c of link 0, b of link 1");
        // a over b and c over b on link 0; a and c are tied there. On link 1 the kernel has it the other way round.
        assert_eq!(agreement.ordered, 3);
        assert!((agreement.same_order - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(agreement.same_winner, 0.5, "c ties with a, b does not");
        assert_eq!((agreement.pairs[0].link.as_str(), agreement.pairs[0].algorithm.as_str()), ("1", "a"));
        let a = agreement.standings.iter().find(|both| both.algorithm == "a").unwrap();
        assert_eq!((a.simulated.won, a.live.won), (1.0, 0.5));
        assert!(agreement.text().contains("a on 1: throughput x 0.40, RTT x 1.00"), "{}", agreement.text());
    }
}

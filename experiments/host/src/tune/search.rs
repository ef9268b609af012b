//! Chooses the cell to try next: by perceptrons, at random, or all of them in turn.

use std::collections::{HashMap, HashSet};

use ccplane_learn::{Rng, math};

use crate::learn::{Encoder, Ensemble, EnsembleConfig, Input, PerceptronError, TooManyInputs};
use crate::space::{Cell, Space};
use crate::sweep::drawn;

/// Cells that are tried before perceptrons are asked.
const FIRST: usize = 10;
/// Cells that are tried between two fits.
const BATCH: usize = 2;
/// The best cells whose neighbours are looked at.
const PARENTS: usize = 4;
/// Cells that differ in two knobs from one of the best, and cells drawn from all, that are looked at.
const TWICE_CHANGED: usize = 200;
const ANYWHERE: usize = 300;
/// Draws that may hit a cell that was tried before the search gives up.
const MAX_DRAWS: usize = 10_000;
/// The weight of a deviation of the prediction beside the prediction.
const CURIOSITY: f64 = 1.0;
/// Trials that were predicted, from which on perceptrons have to predict better than the median does.
const MIN_PREDICTED: usize = 4;
/// The stream of draws.
const SEARCH: u64 = 0x5ea6;

/// A way to choose the cells that are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Perceptrons predict; the cell with the highest prediction plus its uncertainty is next. While they predict trials no better
    /// than the median of those before, the next one is drawn at random.
    Perceptron,
    /// Each cell is as likely as any other.
    Random,
    /// Every cell, in an order drawn from the seed.
    Exhaustive,
}

/// Reasons why no cell can be proposed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Inputs(#[from] TooManyInputs),
    #[error(transparent)]
    Perceptron(#[from] PerceptronError),
}

/// Proposes cells and hears what came of them.
#[derive(Debug)]
pub(super) struct Proposer {
    search: Search,
    space: Space,
    encoder: Encoder,
    seed: u64,
    rng: Rng,
    /// Cells that were proposed, the default among them.
    seen: HashSet<Cell>,
    known: Vec<(Cell, f64)>,
    /// Predictions of perceptrons for cells that were proposed and not yet recorded.
    predicted: HashMap<Cell, f64>,
    errors: Errors,
    /// Cells to come, the last one first.
    queue: Vec<Cell>,
}

/// Errors of predictions of trials, sums of differences of logarithms.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    perceptrons: f64,
    median: f64,
    trials: usize,
}

impl Errors {
    fn add(&mut self, predicted: f64, median: f64, value: f64) {
        let error = |of: f64| (math::ln(of.max(f64::MIN_POSITIVE)) - math::ln(value)).abs();
        self.perceptrons += error(predicted);
        self.median += error(median);
        self.trials += 1;
    }

    /// Whether perceptrons are worth asking.
    fn perceptrons_are_better(&self) -> bool {
        self.trials < MIN_PREDICTED || self.perceptrons < self.median
    }
}

impl Proposer {
    pub(super) fn new(
        search: Search,
        space: &Space,
        nodes: &[Vec<u32>],
        seed: u64,
    ) -> Result<Proposer, SearchError> {
        let most = space.knobs().iter().map(|knob| knob.levels.len()).max().unwrap_or(1);
        let of_level = |level: usize| {
            let value = |knob: &crate::space::Knob| knob.levels[level % knob.levels.len()].clone();
            space.knobs().iter().map(value).collect::<Vec<String>>()
        };
        let rows: Vec<Vec<String>> = (0..most).map(of_level).collect();
        let encoder = Encoder::fit(&Input::of_space(space), rows.iter().map(Vec::as_slice), nodes)?;
        let mut rng = Rng::new(seed, &[SEARCH]);
        let mut queue = match search {
            Search::Exhaustive => drawn(space, space.cells(), seed),
            Search::Perceptron => spread(space, FIRST, &mut rng),
            Search::Random => Vec::new(),
        };
        queue.reverse();
        let seen = HashSet::from([space.default_cell()]);
        Ok(Proposer {
            search,
            space: space.clone(),
            encoder,
            seed,
            rng,
            seen,
            known: Vec::new(),
            predicted: HashMap::new(),
            errors: Errors::default(),
            queue,
        })
    }

    /// Records what a cell gave; the larger the better.
    pub(super) fn record(&mut self, cell: &Cell, value: f64) {
        self.seen.insert(cell.clone());
        let predicted = self.predicted.remove(cell);
        if value > 0.0 {
            if let (Some(predicted), Some(median)) = (predicted, self.median()) {
                self.errors.add(predicted, median, value);
            }
            self.known.push((cell.clone(), value));
        }
    }

    fn median(&self) -> Option<f64> {
        let mut values: Vec<f64> = self.known.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// Returns a cell that was not proposed before; none when there is none left.
    pub(super) fn next(&mut self) -> Result<Option<Cell>, SearchError> {
        loop {
            while let Some(cell) = self.queue.pop() {
                if self.seen.insert(cell.clone()) {
                    return Ok(Some(cell));
                }
            }
            match self.search {
                Search::Exhaustive => return Ok(None),
                Search::Perceptron if self.known.len() > 1 => {
                    self.queue = self.promising()?;
                    if self.queue.is_empty() {
                        return Ok(None);
                    }
                }
                Search::Perceptron | Search::Random => match self.anywhere() {
                    Some(cell) => self.queue.push(cell),
                    None => return Ok(None),
                },
            }
        }
    }

    /// A cell at random that was not proposed before.
    fn anywhere(&mut self) -> Option<Cell> {
        let cells = usize::try_from(self.space.cells()).unwrap_or(usize::MAX);
        if self.seen.len() >= cells {
            return None;
        }
        let fresh = (0..MAX_DRAWS).find_map(|_| {
            let cell = self.space.cell(self.rng.below(cells) as u64);
            (!self.seen.contains(&cell)).then_some(cell)
        });
        // Where almost all were tried, the next one in order.
        fresh.or_else(|| {
            (0..self.space.cells()).map(|n| self.space.cell(n)).find(|cell| !self.seen.contains(cell))
        })
    }

    /// Fits perceptrons to what is known and returns the cells that promise most, the best one last.
    fn promising(&mut self) -> Result<Vec<Cell>, SearchError> {
        let values: Vec<(Vec<&str>, f64)> =
            self.known.iter().map(|(cell, value)| (self.space.values(cell), *value)).collect();
        let examples: Vec<(&[&str], f64)> = values.iter().map(|(v, y)| (v.as_slice(), *y)).collect();
        let config = EnsembleConfig {
            members: 4,
            hidden: vec![24],
            examples: 12_000,
            is_resampled: true,
            seed: self.seed ^ self.known.len() as u64,
        };
        let mut ensemble = Ensemble::fit(&self.encoder, &examples, &config)?;
        let candidates = if self.errors.perceptrons_are_better() {
            self.candidates()
        } else {
            (0..BATCH).filter_map(|_| self.anywhere()).collect()
        };
        let settings: Vec<Vec<&str>> = candidates.iter().map(|cell| self.space.values(cell)).collect();
        let slices: Vec<&[&str]> = settings.iter().map(Vec::as_slice).collect();
        let predicted = ensemble.predict(&slices);
        let score = |n: &usize| predicted[*n].value * (1.0 + CURIOSITY * predicted[*n].uncertainty);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|a, b| score(b).total_cmp(&score(a)));
        order.truncate(BATCH);
        self.predicted.extend(order.iter().map(|n| (candidates[*n].clone(), predicted[*n].value)));
        Ok(order.iter().rev().map(|n| candidates[*n].clone()).collect())
    }

    /// Cells that were not proposed: neighbours of the best ones, and others.
    fn candidates(&mut self) -> Vec<Cell> {
        let mut best: Vec<(Cell, f64)> = self.known.clone();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        best.truncate(PARENTS);
        let mut found = Vec::new();
        for (parent, _) in &best {
            for (n, knob) in self.space.knobs().iter().enumerate() {
                found.extend((0..knob.levels.len()).map(|level| changed(parent, n, level)));
            }
        }
        for _ in 0..TWICE_CHANGED {
            let mut cell = best[self.rng.below(best.len())].0.clone();
            for _ in 0..2 {
                let n = self.rng.below(self.space.knobs().len());
                let level = self.rng.below(self.space.knobs()[n].levels.len());
                cell = changed(&cell, n, level);
            }
            found.push(cell);
        }
        found.extend((0..ANYWHERE).filter_map(|_| self.anywhere()));
        let mut taken = HashSet::new();
        found.retain(|cell| !self.seen.contains(cell) && taken.insert(cell.clone()));
        found
    }
}

fn changed(cell: &Cell, knob: usize, level: usize) -> Cell {
    let mut levels = cell.0.clone();
    levels[knob] = level;
    Cell(levels)
}

/// Cells in which each knob's levels occur equally often, in random combinations (McKay, Beckman and Conover, Technometrics 21, 1979).
fn spread(space: &Space, count: usize, rng: &mut Rng) -> Vec<Cell> {
    let mut columns: Vec<Vec<usize>> = Vec::new();
    for knob in space.knobs() {
        let mut column: Vec<usize> = (0..count).map(|n| n * knob.levels.len() / count).collect();
        if knob.levels.len() < count {
            column = (0..count).map(|n| n % knob.levels.len()).collect();
        }
        rng.shuffle(&mut column);
        columns.push(column);
    }
    (0..count).map(|n| Cell(columns.iter().map(|column| column[n]).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Knob, Role};

    fn space() -> Space {
        let knob = |name: &str, count: usize| Knob {
            name: name.to_owned(),
            role: Role::Settings(Vec::new()),
            levels: (0..count).map(|n| n.to_string()).collect(),
            default: 0,
        };
        Space::new(vec![knob("a", 3), knob("b", 4)]).unwrap()
    }

    /// Whatever the search, each cell but the default is proposed once, and then none.
    #[test]
    fn each_cell_is_proposed_once() {
        for search in [Search::Perceptron, Search::Random, Search::Exhaustive] {
            let mut proposer = Proposer::new(search, &space(), &[], 3).unwrap();
            let mut cells = HashSet::new();
            while let Some(cell) = proposer.next().unwrap() {
                proposer.record(&cell, 1.0 + cell.0[0] as f64);
                assert!(cells.insert(cell), "{search:?}");
            }
            assert_eq!(cells.len(), 11, "{search:?}");
            assert!(!cells.contains(&space().default_cell()));
        }
    }

    /// Proposes cells of a space of 1,024, and says whether perceptrons are asked in the end.
    fn asks_perceptrons(value: impl Fn(&Cell) -> f64) -> bool {
        let knob = |name: &str| Knob { name: name.to_owned(), ..space().knobs()[0].clone() };
        let levels = |knob: Knob| Knob { levels: (0..32).map(|n| n.to_string()).collect(), ..knob };
        let space = Space::new(vec![levels(knob("a")), levels(knob("b"))]).unwrap();
        let mut proposer = Proposer::new(Search::Perceptron, &space, &[], 3).unwrap();
        for _ in 0..30 {
            let cell = proposer.next().unwrap().unwrap();
            let worth = value(&cell);
            proposer.record(&cell, worth);
        }
        assert!(proposer.errors.trials >= MIN_PREDICTED, "{:?}", proposer.errors);
        proposer.errors.perceptrons_are_better()
    }

    #[test]
    fn perceptrons_are_asked_only_while_they_predict_better_than_the_median() {
        assert!(asks_perceptrons(|cell| 1.0 + cell.0[0] as f64 + cell.0[1] as f64));
        let noise = |cell: &Cell| Rng::new(7, &[cell.0[0] as u64, cell.0[1] as u64]).below(1000);
        assert!(!asks_perceptrons(|cell| 1.0 + noise(cell) as f64));
    }

    #[test]
    fn first_cells_are_spread() {
        let cells = spread(&space(), 12, &mut Rng::new(1, &[]));
        for (knob, each) in [(0, 4), (1, 3)] {
            for level in 0..12 / each {
                assert_eq!(cells.iter().filter(|cell| cell.0[knob] == level).count(), each);
            }
        }
    }
}

//! Finds settings that carry more than the defaults, and says so only where noise does not explain it.
//!
//! What lowers the throughput beyond noise is taken back at once. The best cell is measured again, in turn with the defaults, before it
//! counts; where it does not hold, everything is as it was found and there is nothing to do.

mod search;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ccplane_report::student_t_quantile;
use serde::Serialize;

use crate::sample::Sample;
use crate::space::Cell;
use crate::subject::{Fault, Subject};
use crate::sweep::MAX_FAILURES;
use search::Proposer;
pub use search::{Search, SearchError};

/// Trials of a search where nothing else is asked for.
pub const DEFAULT_TRIALS: u64 = 30;
/// Measurements of the defaults, from which the noise is estimated.
pub const DEFAULT_REPEATS: usize = 8;
/// Deviations below the best so far that are beyond noise.
const BEYOND_NOISE: f64 = 3.0;
/// The noise that is assumed at least, as a share.
const MIN_NOISE: f64 = 0.001;
/// Cells that are measured again, so often each, before one is held against the defaults.
const FINALISTS: usize = 3;
const FINAL_REPEATS: usize = 3;
/// Pairs of measurements, one of the defaults and one of the best cell.
const PAIRS: usize = 8;
/// The share of Student's t distribution below the upper end of a two-sided 95 % interval.
const BELOW_UPPER: f64 = 0.975;
/// The gain below which a change is not worth its making, as a share.
pub const MIN_GAIN: f64 = 0.005;

/// The quantity that is made as large as possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    Throughput,
    Efficiency,
}

impl Objective {
    fn of(self, sample: &Sample) -> f64 {
        match self {
            Objective::Throughput => sample.throughput_bps(),
            Objective::Efficiency => sample.efficiency().0,
        }
    }
}

/// The settings of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TuneOptions {
    pub search: Search,
    pub objective: Objective,
    /// Cells that are tried beside the defaults; an exhaustive search tries all.
    pub trials: u64,
    pub seed: u64,
    /// The time after which no further trial begins.
    pub budget: Option<Duration>,
}

/// One cell that was tried.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Trial {
    pub cell: Cell,
    /// The knobs that differ from the defaults, in words.
    pub shown: String,
    /// The objective over that of the defaults; none where the host refused.
    pub ratio: Option<f64>,
    /// Whether it was worse than the best so far by more than noise, and taken back at once.
    pub is_taken_back: bool,
    /// The reason why there is no measurement.
    pub why_not: Option<String>,
}

/// The best cell against the defaults.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Best {
    pub cell: Cell,
    pub shown: String,
    /// The mean of the pairs' ratios, and what it is at least with 97.5 % confidence.
    pub ratio: f64,
    pub at_least: f64,
}

/// The result of a search.
#[derive(Debug, Serialize)]
pub struct Tuned {
    /// The mean objective of the defaults.
    pub defaults: f64,
    /// The deviation of the defaults' measurements, as a share.
    pub noise: f64,
    pub trials: Vec<Trial>,
    /// The best cell that was held against the defaults; none where no trial was measured.
    pub best: Option<Best>,
    /// Whether the best cell beats the defaults by more than noise, so that its settings are in force.
    pub is_better: bool,
    #[serde(skip)]
    pub end: TuneEnd,
}

impl Tuned {
    /// Says in a sentence what came of the search.
    pub fn verdict(&self) -> String {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        match (&self.best, self.is_better) {
            (Some(best), true) => format!(
                "{} carries {:.3} times what the defaults do, and at least {:.3} times with 97.5 % confidence",
                best.shown, best.ratio, best.at_least
            ),
            (Some(best), false) => format!(
                "nothing to do: the best of {} trials, {}, came to {:.3} times the defaults, of which at least {:.3} is sure; \
                 their own noise is {}",
                self.trials.len(),
                best.shown,
                best.ratio,
                best.at_least,
                percent(self.noise)
            ),
            (None, _) => {
                let found = match self.end {
                    TuneEnd::All | TuneEnd::Budget => "nothing to do",
                    TuneEnd::Stopped | TuneEnd::Fault(_) => "nothing is known, as the search ended early",
                };
                format!("{found}: none of {} trials was held against the defaults", self.trials.len())
            }
        }
    }
}

/// The reason why a search ended.
#[derive(Debug)]
pub enum TuneEnd {
    /// All trials were made.
    All,
    /// The time was used up.
    Budget,
    /// The caller asked to stop.
    Stopped,
    /// Nothing more can be measured.
    Fault(Fault),
}

/// Reasons why a search cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The defaults cannot be measured.
    #[error(transparent)]
    Defaults(Fault),
    /// Nothing came through under the defaults.
    #[error("nothing came through under the defaults")]
    Nothing,
}

/// The state of a search after one measurement.
#[derive(Clone, PartialEq, Debug)]
pub enum Told<'a> {
    /// The defaults were measured so often.
    Defaults { done: usize },
    /// A cell was tried.
    Trial { done: u64, total: u64, trial: &'a Trial },
    /// The best cells are measured again: so many of all measurements are done.
    Checking { done: usize, total: usize },
}

/// Searches for a better cell. Afterwards its settings are in force, or all is as it was found.
///
/// # Errors
/// The defaults cannot be measured; all is as it was found.
pub fn tune(
    subject: &mut dyn Subject,
    nodes: &[Vec<u32>],
    options: &TuneOptions,
    stop: &dyn Fn() -> bool,
    told: &mut dyn FnMut(&Told<'_>),
) -> Result<Tuned, TuneError> {
    let mut tuner = Tuner { subject, options, repeats: HashMap::new() };
    let mut result = tuner.run(nodes, stop, told);
    if !result.as_ref().is_ok_and(|tuned| tuned.is_better) {
        let restored = tuner.subject.restore();
        if let (Ok(tuned), Err(fault)) = (&mut result, restored) {
            tuned.end = TuneEnd::Fault(fault);
        }
    }
    result
}

struct Tuner<'a> {
    subject: &'a mut dyn Subject,
    options: &'a TuneOptions,
    /// Measurements of each cell so far.
    repeats: HashMap<Cell, u32>,
}

impl Tuner<'_> {
    fn measure(&mut self, cell: &Cell) -> Result<f64, Fault> {
        let count = self.repeats.entry(cell.clone()).or_default();
        *count += 1;
        let sample = self.subject.measure(cell, *count - 1)?;
        Ok(self.options.objective.of(&sample))
    }

    fn run(
        &mut self,
        nodes: &[Vec<u32>],
        stop: &dyn Fn() -> bool,
        told: &mut dyn FnMut(&Told<'_>),
    ) -> Result<Tuned, TuneError> {
        let space = self.subject.space().clone();
        let mut proposer = Proposer::new(self.options.search, &space, nodes, self.options.seed)?;
        let default = space.default_cell();
        let mut values = Vec::new();
        for done in 1..=DEFAULT_REPEATS {
            values.push(self.measure(&default).map_err(TuneError::Defaults)?);
            told(&Told::Defaults { done });
        }
        let (defaults, deviation) = moments(&values);
        if defaults <= 0.0 {
            return Err(TuneError::Nothing);
        }
        let noise = (deviation / defaults).max(MIN_NOISE);
        proposer.record(&default, defaults);
        let mut tuned =
            Tuned { defaults, noise, trials: Vec::new(), best: None, is_better: false, end: TuneEnd::All };
        let total = match self.options.search {
            Search::Exhaustive => space.cells() - 1,
            Search::Perceptron | Search::Random => self.options.trials.min(space.cells() - 1),
        };
        tuned.end = self.search(&mut proposer, &mut tuned, total, stop, told)?;
        if matches!(tuned.end, TuneEnd::Fault(_) | TuneEnd::Stopped) {
            return Ok(tuned);
        }
        match self.check(&tuned, &default, told) {
            Ok(best) => {
                tuned.is_better = best.as_ref().is_some_and(|best| best.at_least > 1.0 + MIN_GAIN);
                tuned.best = best;
            }
            Err(fault) => tuned.end = TuneEnd::Fault(fault),
        }
        Ok(tuned)
    }

    fn search(
        &mut self,
        proposer: &mut Proposer,
        tuned: &mut Tuned,
        total: u64,
        stop: &dyn Fn() -> bool,
        told: &mut dyn FnMut(&Told<'_>),
    ) -> Result<TuneEnd, SearchError> {
        let (space, began) = (self.subject.space().clone(), Instant::now());
        let mut incumbent = (space.default_cell(), tuned.defaults);
        let mut failures = 0;
        for done in 1..=total {
            if stop() {
                return Ok(TuneEnd::Stopped);
            }
            if self.options.budget.is_some_and(|budget| began.elapsed() >= budget) {
                return Ok(TuneEnd::Budget);
            }
            let Some(cell) = proposer.next()? else { return Ok(TuneEnd::All) };
            let shown = space.shown(&cell);
            let mut trial = Trial { cell, shown, ratio: None, is_taken_back: false, why_not: None };
            match self.measure(&trial.cell) {
                Ok(value) => {
                    failures = 0;
                    proposer.record(&trial.cell, value);
                    trial.ratio = Some(value / tuned.defaults);
                    if value > incumbent.1 {
                        incumbent = (trial.cell.clone(), value);
                    } else if value < incumbent.1 * (1.0 - BEYOND_NOISE * tuned.noise) {
                        trial.is_taken_back = true;
                        if let Err(fault) = self.subject.settle(&incumbent.0) {
                            return Ok(TuneEnd::Fault(fault));
                        }
                    }
                }
                Err(fault) => {
                    failures = if matches!(fault, Fault::Refused { .. }) { 0 } else { failures + 1 };
                    if fault.is_final() || failures >= MAX_FAILURES {
                        return Ok(TuneEnd::Fault(fault));
                    }
                    trial.why_not = Some(fault.to_string());
                }
            }
            told(&Told::Trial { done, total, trial: &trial });
            tuned.trials.push(trial);
        }
        Ok(TuneEnd::All)
    }

    /// Measures the best trials again, then the best of them in turn with the defaults; its settings are in force afterwards.
    fn check(
        &mut self,
        tuned: &Tuned,
        default: &Cell,
        told: &mut dyn FnMut(&Told<'_>),
    ) -> Result<Option<Best>, Fault> {
        let mut measured: Vec<(&Trial, f64)> =
            tuned.trials.iter().filter_map(|trial| Some((trial, trial.ratio?))).collect();
        measured.sort_by(|a, b| b.1.total_cmp(&a.1));
        measured.truncate(FINALISTS);
        let total = measured.len() * FINAL_REPEATS + 2 * PAIRS;
        let mut done = 0;
        let mut said = |told: &mut dyn FnMut(&Told<'_>)| {
            done += 1;
            told(&Told::Checking { done, total });
        };
        let mut best: Option<(&Trial, f64)> = None;
        for (trial, _) in measured {
            let mut values = Vec::new();
            for _ in 0..FINAL_REPEATS {
                values.push(self.measure(&trial.cell)?);
                said(told);
            }
            // Without the measurement by which it was chosen, which flatters it.
            let (mean, _) = moments(&values);
            if best.is_none_or(|(_, most)| mean > most) {
                best = Some((trial, mean));
            }
        }
        let Some((trial, _)) = best else { return Ok(None) };
        let mut ratios = Vec::new();
        for pair in 0..PAIRS {
            // Each comes first in half of the pairs, as a host drifts.
            let order = if pair % 2 == 0 { [default, &trial.cell] } else { [&trial.cell, default] };
            let first = self.measure(order[0])?;
            said(told);
            let second = self.measure(order[1])?;
            said(told);
            let (of_default, of_trial) = if pair % 2 == 0 { (first, second) } else { (second, first) };
            if of_default > 0.0 {
                ratios.push(of_trial / of_default);
            }
        }
        self.subject.settle(&trial.cell)?;
        let (ratio, deviation) = moments(&ratios);
        let t = student_t_quantile(BELOW_UPPER, ratios.len().saturating_sub(1));
        // Fewer than two pairs have no bound but that of any throughput.
        let at_least = t.map_or(0.0, |t| ratio - t * deviation / (ratios.len() as f64).sqrt());
        Ok(Some(Best { cell: trial.cell.clone(), shown: trial.shown.clone(), ratio, at_least }))
    }
}

/// The mean and the deviation of values, which are 0 where there are too few.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

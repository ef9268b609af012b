//! `host.tune` and `host.sweep`: how near the default of 30 trials comes to the best of all settings, by perceptrons and at
//! random; and how well what was learned from a sweep of this host predicts what was held out.
//!
//! A sweep measures every setting of a veth pair of this host's own. Searches then run on what it measured, so that each of
//! them, by whatever seed, is held against the same best.

use std::collections::BTreeMap;
use std::time::Duration;

use ccplane_host::{
    Cell, Costs, DEFAULT_TRIALS, Fault, Frame, HeldOut, LearnConfig, LiveHost, LiveOptions, ModelHost,
    ModelSize, Objective, Sample, Search, Source, Space, Subject, SweepEnd, SweepOptions, Table, TableHeader,
    TuneEnd, TuneOptions, learn, sweep, tune,
};

use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair, in_turn};
use crate::proof::Proof;

/// Searches of each kind, each by a seed of its own.
const SEEDS: u64 = 5;
/// Modelled hosts: nodes and cores on each.
const MODELS: [&str; 2] = ["2x4", "2x16"];
/// Flows on a modelled host.
const MODEL_FLOWS: u32 = 4;
/// Settings of this host that a sweep measures at most: all of them, or there is no best of all.
const MAX_CELLS: u64 = 160;
const REPEATS: u32 = 2;
/// The length of one measurement; before it flows come to speed for 0.3 s.
const DURATION: Duration = Duration::from_millis(250);
/// The time after which a sweep has failed.
const BUDGET: Duration = Duration::from_secs(270);

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Missing(error.to_string())
}

/// The share of the best of all that a search found, percent, and its trials; that of the defaults where it found nothing better.
fn share(
    subject: &mut dyn Subject,
    nodes: &[Vec<u32>],
    (search, seed): (Search, u64),
    worth: &dyn Fn(&Cell) -> f64,
    best: f64,
) -> Result<(f64, u64), BenchError> {
    let options =
        TuneOptions { search, objective: Objective::Throughput, trials: DEFAULT_TRIALS, seed, budget: None };
    let default = subject.space().default_cell();
    let tuned = tune(subject, nodes, &options, &|| false, &mut |_| {}).map_err(failed)?;
    if !matches!(tuned.end, TuneEnd::All) {
        return Err(failed(format_args!("a search ended early: {}", tuned.verdict())));
    }
    let trials = tuned.trials.len() as u64;
    let found = tuned.best.filter(|_| tuned.is_better).map_or(default, |best| best.cell);
    Ok((worth(&found) / best * 100.0, trials))
}

/// Searches by perceptrons beside those at random; `subject` makes the host that the seed's searches run on.
fn shares<S: Subject>(
    name: &str,
    subject: impl Fn(u64) -> Result<S, BenchError>,
    nodes: &[Vec<u32>],
    worth: &dyn Fn(&Cell) -> f64,
    best: f64,
) -> Result<Figure, BenchError> {
    let (mut pairs, mut trials): (Vec<Pair>, [u64; 2]) = Default::default();
    for seed in 1..=SEEDS {
        let by = |search| share(&mut subject(seed)?, nodes, (search, seed), worth, best);
        let (ours, random) = in_turn(seed as usize, || by(Search::Perceptron), || by(Search::Random))?;
        pairs.push((ours.0, random.0));
        trials = [trials[0] + ours.1, trials[1] + random.1];
    }
    let proof = Proof::counted("trials by perceptrons", trials[0])?
        .and(&Proof::counted("trials at random", trials[1])?);
    let note = format!("of the best of all settings, after {DEFAULT_TRIALS} trials");
    Ok(Figure::paired(name, "%", "as many trials at random", &pairs, &proof).with_note(note))
}

/// Measures `host.tune`: searches on modelled hosts, whose best is known without noise.
pub fn models() -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for name in MODELS {
        let size = name.parse::<ModelSize>().map_err(failed)?;
        let of = |seed| ModelHost::new(size, Costs::default(), MODEL_FLOWS, seed).map_err(failed);
        let model = of(1)?;
        let worth = |cell: &Cell| model.exact(cell).throughput_bps();
        let space = model.space();
        let best = (0..space.cells()).map(|n| worth(&space.cell(n))).fold(0.0, f64::max);
        let figure = shares(&format!("host.tune.model.{name}"), of, &model.nodes(), &worth, best)?;
        let cells = space.cells();
        let note = format!(
            "of the best of {cells} settings of a model, not of a host, after {DEFAULT_TRIALS} trials"
        );
        figures.push(figure.with_note(note));
    }
    Ok(figures)
}

/// A host whose settings were all measured before.
struct MeasuredHost {
    space: Space,
    cells: BTreeMap<Cell, Vec<Sample>>,
}

impl MeasuredHost {
    fn worth(&self, cell: &Cell) -> f64 {
        let samples = self.cells.get(cell).map_or(&[][..], Vec::as_slice);
        samples.iter().map(Sample::throughput_bps).sum::<f64>() / samples.len().max(1) as f64
    }
}

impl Subject for &MeasuredHost {
    fn space(&self) -> &Space {
        &self.space
    }

    fn measure(&mut self, cell: &Cell, repeat: u32) -> Result<Sample, Fault> {
        let samples = self.cells.get(cell).filter(|samples| !samples.is_empty());
        let refused =
            || Fault::Refused { setting: self.space.shown(cell), why: "it was not measured".into() };
        let samples = samples.ok_or_else(refused)?;
        Ok(samples[repeat as usize % samples.len()])
    }

    fn settle(&mut self, _: &Cell) -> Result<(), Fault> {
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Measures `host.sweep`: every setting of a veth pair, searches on what was measured, and predictions of what was held out.
pub fn swept() -> Result<Vec<Figure>, BenchError> {
    let folder = context("create a folder", tempfile::tempdir())?;
    let options = LiveOptions {
        flows: 1,
        duration: DURATION,
        named: None,
        knobs: Vec::new(),
        journal: folder.path().to_owned(),
    };
    let mut live = LiveHost::new(&options).map_err(failed)?;
    let (space, nodes) = (live.space().clone(), live.nodes());
    if space.cells() > MAX_CELLS {
        let cells = space.cells();
        return Err(failed(format_args!("{cells} settings, more than are measured in minutes: {MAX_CELLS}")));
    }
    let source = Source::Host { interface: live.interface().to_owned(), is_own: true };
    let about = ccplane_runner::host::here("ccplane bench host.sweep".to_owned());
    let header = TableHeader::new(source, space.clone(), about);
    let mut table = Table::in_memory(TableHeader { nodes: nodes.clone(), ..header });
    let options = SweepOptions { cells: MAX_CELLS, repeats: REPEATS, seed: 1, budget: Some(BUDGET) };
    let swept = sweep(&mut live, &mut table, &options, &|| false, &mut |_| {}).map_err(failed)?;
    match swept.end {
        SweepEnd::All => {}
        SweepEnd::Fault(fault) => return Err(failed(fault)),
        SweepEnd::Budget | SweepEnd::Stopped => {
            return Err(failed(format_args!("the sweep ended early, {} measurements are left", swept.left)));
        }
    }
    let measured = MeasuredHost { space, cells: table.by_cell().into_iter().collect() };
    let proof = Proof::counted("measurements of this host", swept.measured)?;
    let worth = |cell: &Cell| measured.worth(cell);
    let best = measured.cells.keys().map(worth).fold(0.0, f64::max);
    let tuned = shares("host.sweep.tune", |_| Ok(&measured), &nodes, &worth, best)?;
    let learned = learn(&Frame::of_table(&table), &LearnConfig::default()).map_err(failed)?;
    let held_out = |name: &str, error: &HeldOut| {
        let pair = (error.mean * 100.0, error.of_median * 100.0);
        Figure::paired(format!("host.sweep.{name}.error"), "%", "predicting the median", &[pair], &proof)
    };
    Ok(vec![tuned, held_out("throughput", &learned.throughput), held_out("efficiency", &learned.efficiency)])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccplane_host::{Knob, Role};

    /// A host of two knobs, on which the last level of both carries twice what the first does.
    fn measured() -> MeasuredHost {
        let knob = |name: &str| Knob {
            name: name.to_owned(),
            role: Role::Settings(Vec::new()),
            levels: (0..3).map(|n| n.to_string()).collect(),
            default: 0,
        };
        let space = Space::new(vec![knob("a"), knob("b")]).unwrap();
        let sample = |cell: &Cell, more: u64| Sample {
            duration_us: 1_000_000,
            bytes: 1_000_000 + 250_000 * (cell.0[0] + cell.0[1]) as u64 + more,
            ..Sample::default()
        };
        let cells = (0..space.cells()).map(|n| space.cell(n));
        let cells = cells.map(|cell| (cell.clone(), vec![sample(&cell, 0), sample(&cell, 400)])).collect();
        MeasuredHost { space, cells }
    }

    #[test]
    fn searches_run_on_what_was_measured_and_find_its_best() {
        let measured = measured();
        let worth = |cell: &Cell| measured.worth(cell);
        let best = worth(&Cell(vec![2, 2]));
        assert_eq!(best, 8.0 * 2_000_200.0);
        // With more trials than settings every search finds the best one.
        let figure = shares("x", |_| Ok(&measured), &[], &worth, best).unwrap();
        assert_eq!((figure.value, figure.baseline), (100.0, 100.0));
        // At random, all settings but the default are tried in each search.
        let all = SEEDS * (measured.space.cells() - 1);
        let counts: Vec<_> = figure.proof.counts().collect();
        assert_eq!((counts[0], counts[1].0), (("trials at random", all), "trials by perceptrons"));
    }

    #[test]
    fn settings_that_were_not_measured_are_refused() {
        let mut measured = measured();
        measured.cells.remove(&Cell(vec![1, 1]));
        let mut subject = &measured;
        assert_eq!(subject.measure(&Cell(vec![0, 0]), 3).unwrap().bytes, 1_000_400);
        assert!(matches!(subject.measure(&Cell(vec![1, 1]), 0), Err(Fault::Refused { .. })));
    }
}

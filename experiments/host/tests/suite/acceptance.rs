//! Limits that learning and search have to reach on modelled hosts. The seeds are fixed, so that all of it is the same on each run.

use ccplane_host::{
    Best, Cell, Costs, CsvColumns, DEFAULT_TRIALS, Frame, LearnConfig, ModelHost, Objective, Search, Subject,
    SweepEnd, SweepOptions, Table, TableHeader, TuneOptions, best_coalescing, learn, sweep, tune,
};
use ccplane_results::Host;
use std::collections::BTreeSet;

/// The largest held-out errors that are allowed: the thesis has 2.9 % and 4.4 %.
const THROUGHPUT_ERROR: f64 = 0.03;
const EFFICIENCY_ERROR: f64 = 0.04;
/// The share of the best of all settings that a search has to reach.
const SHARE_OF_BEST: f64 = 0.95;
/// Settings that carry as much as the best one but for so little count as the best, too.
const AS_GOOD: f64 = 0.005;

/// A host about which nothing is known.
pub fn nowhere() -> Host {
    Host { kernel: "none".into(), ..Host::default() }
}

/// Sweeps so many cells of a model, twice each.
pub fn swept(model: &mut ModelHost, cells: u64, seed: u64) -> Table {
    let source = ccplane_host::Source::Model { nodes: 2, cores_per_node: model.nodes()[0].len() as u32 };
    let header = TableHeader::new(source, model.space().clone(), nowhere());
    let mut table = Table::in_memory(TableHeader { nodes: model.nodes(), seed, ..header });
    let options = SweepOptions { cells, repeats: 2, seed, budget: None };
    let swept = sweep(model, &mut table, &options, &|| false, &mut |_| {}).unwrap();
    assert!(matches!(swept.end, SweepEnd::All) && swept.failed == 0, "{swept:?}");
    table
}

fn model(size: &str, seed: u64) -> ModelHost {
    ModelHost::new(size.parse().unwrap(), Costs::default(), 4, seed).unwrap()
}

/// The best cell of all, without noise.
fn exhaustive(model: &ModelHost) -> (Cell, f64) {
    let space = model.space();
    let all = (0..space.cells()).map(|n| space.cell(n));
    let valued = all.map(|cell| (model.exact(&cell).throughput_bps(), cell));
    let (value, cell) = valued.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    (cell, value)
}

/// Predictions hold on settings that nothing was learned from. The coalescing that they choose is at most one level from one that carries
/// as much as the best.
#[test]
fn predictions_and_coalescing_hold_on_what_was_held_out() {
    let size = "2x16";
    let mut model = model(size, 11);
    let frame = Frame::of_table(&swept(&mut model, 5000, 11));
    let learned = learn(&frame, &LearnConfig::default()).unwrap();
    eprintln!("{size}: {:?} {:?}", learned.throughput, learned.efficiency);
    assert_eq!(learned.divided.iter().sum::<usize>(), learned.settings);
    assert!(learned.throughput.mean <= THROUGHPUT_ERROR, "{size}: {:?}", learned.throughput);
    assert!(learned.efficiency.mean <= EFFICIENCY_ERROR, "{size}: {:?}", learned.efficiency);
    assert!(learned.throughput.mean < 0.2 * learned.throughput.of_median, "{:?}", learned.throughput);

    let mut predictor = learned.predictors.throughput.clone();
    let space = model.space().clone();
    let (usecs, frames) = space.coalescing().unwrap();
    assert!(!learned.coalescing.is_empty());
    for advice in &learned.coalescing {
        let level = |knob: usize, value: &str| {
            space.knobs()[knob].levels.iter().position(|level| level == value).unwrap()
        };
        let mut cell = space.default_cell();
        for (name, value) in &advice.under {
            let knob = space.knobs().iter().position(|knob| knob.name == *name).unwrap();
            cell.0[knob] = level(knob, value);
        }
        let values: Vec<String> = space.values(&cell).into_iter().map(str::to_owned).collect();
        let chosen = best_coalescing(&mut predictor, &frame, &values).unwrap();
        assert_eq!((&chosen.usecs, &chosen.frames), (&advice.usecs, &advice.frames));
        let chosen = (level(usecs, &chosen.usecs), level(frames, &chosen.frames));
        // By hand: every level of both.
        let at = |u: usize, f: usize| {
            let mut cell = cell.clone();
            (cell.0[usecs], cell.0[frames]) = (u, f);
            model.exact(&cell).throughput_bps()
        };
        let (us, fs) = (space.knobs()[usecs].levels.len(), space.knobs()[frames].levels.len());
        let all: Vec<(usize, usize)> = (0..us).flat_map(|u| (0..fs).map(move |f| (u, f))).collect();
        let best = all.iter().map(|(u, f)| at(*u, *f)).fold(0.0, f64::max);
        let is_near = |(u, f): &(usize, usize)| {
            u.abs_diff(chosen.0) <= 1 && f.abs_diff(chosen.1) <= 1 && at(*u, *f) >= best * (1.0 - AS_GOOD)
        };
        assert!(all.iter().any(is_near), "{size}: {chosen:?} under {:?}", advice.under);
    }
}

/// A search by perceptrons comes to the best of all settings in fewer trials than a tenth of them, further than one at random.
#[test]
fn a_search_finds_what_a_sweep_would() {
    for (size, trials) in [("2x4", 100), ("2x16", 150)] {
        let (_, best) = exhaustive(&model(size, 1));
        let mut shares = [0.0, 0.0];
        for (n, search) in [Search::Perceptron, Search::Random].into_iter().enumerate() {
            for seed in [1, 2, 3] {
                let mut model = model(size, seed);
                assert!(trials * 10 <= model.space().cells());
                let nodes = model.nodes();
                let options =
                    TuneOptions { search, objective: Objective::Throughput, trials, seed, budget: None };
                let tuned = tune(&mut model, &nodes, &options, &|| false, &mut |_| {}).unwrap();
                assert!(tuned.is_better && tuned.trials.len() as u64 == trials, "{}", tuned.verdict());
                let Some(Best { cell, ratio, at_least, .. }) = tuned.best else { panic!("no best cell") };
                let exact = model.exact(&cell).throughput_bps();
                let default = model.exact(&model.space().default_cell()).throughput_bps();
                assert!(
                    (at_least..=ratio * 1.02).contains(&(exact / default)),
                    "{exact} {default} {at_least} {ratio}"
                );
                let share = exact / best;
                eprintln!("{size}, {search:?}, seed {seed}: {share:.3} of the best of all");
                assert!(n == 1 || share >= SHARE_OF_BEST, "{size}, seed {seed}: {share:.3}");
                shares[n] += share / 3.0;
            }
        }
        assert!(shares[0] > shares[1], "{size}: {shares:?}");
    }
}

/// The default of `ccplane host tune`, whatever the size of the host: better than what was found, in each run. How near to the best it
/// comes is a figure (`ccplane bench host.tune`), and no promise.
#[test]
fn a_search_of_few_trials_finds_something_better() {
    for size in ["2x4", "2x16"] {
        let (_, best) = exhaustive(&model(size, 1));
        for seed in [1, 2, 3] {
            let mut model = model(size, seed);
            let nodes = model.nodes();
            let (search, objective) = (Search::Perceptron, Objective::Throughput);
            let options = TuneOptions { search, objective, trials: DEFAULT_TRIALS, seed, budget: None };
            let tuned = tune(&mut model, &nodes, &options, &|| false, &mut |_| {}).unwrap();
            assert!(tuned.is_better && tuned.trials.len() as u64 == DEFAULT_TRIALS, "{}", tuned.verdict());
            let exact = model.exact(&tuned.best.unwrap().cell).throughput_bps();
            let default = model.exact(&model.space().default_cell()).throughput_bps();
            eprintln!("{size}, {DEFAULT_TRIALS} trials, seed {seed}: {:.3} of the best of all", exact / best);
            assert!(exact > default && exact <= best, "{exact} of {best}, {default} by default");
        }
    }
}

/// An exhaustive search tries everything and finds the best.
#[test]
fn an_exhaustive_search_finds_the_best() {
    let mut model = model("1x4", 5);
    let (_, best) = exhaustive(&model);
    let nodes = model.nodes();
    let (search, objective) = (Search::Exhaustive, Objective::Throughput);
    let options = TuneOptions { search, objective, trials: 1, seed: 5, budget: None };
    let tuned = tune(&mut model, &nodes, &options, &|| false, &mut |_| {}).unwrap();
    let cells: BTreeSet<&Cell> = tuned.trials.iter().map(|trial| &trial.cell).collect();
    assert_eq!(cells.len() as u64, model.space().cells() - 1);
    let found = model.exact(&tuned.best.unwrap().cell).throughput_bps();
    assert!(found >= 0.99 * best, "{found} of {best}");
}

/// A table in the form of NESCAT's (Chauhan, 2016): cores that application, interrupt and flow are bound to, the device's coalescing,
/// throughput, bytes per instruction, hardware counters. The thesis' own is given out on request alone, so that this one is a model's.
#[test]
fn a_table_of_others_is_learned_from() {
    let mut model = ModelHost::new("2x6".parse().unwrap(), Costs::jumbo_40g(), 1, 3).unwrap();
    let table = swept(&mut model, 4000, 3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nescat.csv");
    let mut out = csv::Writer::from_path(&path).unwrap();
    let head = "app_core,irq_core,flow_core,rx-usecs,rx-frames,throughput_gbps,bytes_per_instruction,\
                cpu_utilization_percent,interrupts_rate,context_switches_rate,kernel";
    out.write_record(head.split(',')).unwrap();
    for (cell, samples) in table.by_cell() {
        for sample in samples {
            let values = model.space().values(&cell);
            let seconds = sample.duration_us as f64 / 1e6;
            out.write_record([
                values[0].to_owned(),
                values[1].to_owned(),
                values[2].to_owned(),
                values[4].to_owned(),
                values[5].to_owned(),
                format!("{:.3}", sample.throughput_bps() / 1e9),
                format!("{:.5}", sample.efficiency().0),
                format!("{:.1}", 100.0 * sample.busy_us as f64 / sample.duration_us as f64),
                format!("{:.0}", sample.interrupts as f64 / seconds),
                format!("{:.0}", sample.context_switches as f64 / seconds),
                "modelled".to_owned(),
            ])
            .unwrap();
        }
    }
    out.flush().unwrap();
    let columns = CsvColumns { nodes: model.nodes(), ..CsvColumns::default() };
    let frame = Frame::read(&path, &columns).unwrap();
    assert_eq!(frame.counters, ["cpu_utilization_percent", "interrupts_rate", "context_switches_rate"]);
    let inputs: Vec<&str> = frame.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(inputs, ["app_core", "irq_core", "flow_core", "rx-usecs", "rx-frames"]);
    let learned = learn(&frame, &LearnConfig::default()).unwrap();
    eprintln!("{:?} {:?}", learned.throughput, learned.efficiency);
    assert!(learned.throughput.mean <= THROUGHPUT_ERROR, "{:?}", learned.throughput);
    assert!(learned.efficiency.mean <= EFFICIENCY_ERROR, "{:?}", learned.efficiency);
    let groups = &learned.groups.groups;
    assert!(groups.len() == 5 && groups[0].mean_throughput > 1.2 * groups[4].mean_throughput, "{groups:?}");
    assert!(!learned.coalescing.is_empty());
}

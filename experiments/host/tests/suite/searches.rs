//! Searches on hosts whose answers are known: what is better, what is noise, what is refused, what is taken back.

use ccplane_host::{
    Cell, Fault, Knob, MAX_FAILURES, Objective, Role, Sample, Search, Space, Subject, TuneEnd, TuneError,
    TuneOptions, Tuned, tune,
};
use ccplane_learn::Rng;

/// A call that a host has heard.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Call {
    Measure(Cell),
    Settle(Cell),
    Restore,
}

/// A host that carries what a function says, with noise.
struct Known<F> {
    space: Space,
    carries: F,
    noise: f64,
    rng: Rng,
    calls: Vec<Call>,
}

impl<F: Fn(&Cell) -> Result<f64, Fault>> Known<F> {
    fn new(noise: f64, seed: u64, carries: F) -> Known<F> {
        let knob = |name: &str| Knob {
            name: name.to_owned(),
            role: Role::Settings(vec![format!("net/eth0/{name}")]),
            levels: (0..4).map(|n| n.to_string()).collect(),
            default: 1,
        };
        let space = Space::new(["a", "b", "c"].map(knob).to_vec()).unwrap();
        Known { space, carries, noise, rng: Rng::new(seed, &[]), calls: Vec::new() }
    }

    fn tune(&mut self, search: Search, trials: u64, seed: u64) -> Result<Tuned, TuneError> {
        let options = TuneOptions { search, objective: Objective::Throughput, trials, seed, budget: None };
        tune(self, &[], &options, &|| false, &mut |_| {})
    }
}

impl<F: Fn(&Cell) -> Result<f64, Fault>> Subject for Known<F> {
    fn space(&self) -> &Space {
        &self.space
    }

    fn measure(&mut self, cell: &Cell, _repeat: u32) -> Result<Sample, Fault> {
        self.calls.push(Call::Measure(cell.clone()));
        let carried = (self.carries)(cell)? * (1.0 + self.noise * self.rng.normal());
        Ok(Sample {
            duration_us: 1_000_000,
            bytes: (carried * 1e9) as u64,
            busy_us: 1_000_000,
            ..Sample::default()
        })
    }

    fn settle(&mut self, cell: &Cell) -> Result<(), Fault> {
        self.calls.push(Call::Settle(cell.clone()));
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Fault> {
        self.calls.push(Call::Restore);
        Ok(())
    }
}

fn lost() -> Fault {
    Fault::Lost { interface: "eth0".into(), why: "the interface is gone".into() }
}

/// No setting changes anything, so the largest of many noisy measurements is no find, whatever the seed and the search.
#[test]
fn noise_is_nothing_to_do() {
    let mut finds = 0;
    for seed in 0..40 {
        for search in [Search::Random, Search::Exhaustive] {
            let mut host = Known::new(0.02, seed, |_| Ok(1.0));
            let tuned = host.tune(search, 30, seed).unwrap();
            assert!(tuned.trials.iter().any(|trial| trial.ratio > Some(1.0)), "noise looks like a find");
            finds += u32::from(tuned.is_better);
            if !tuned.is_better {
                assert!(tuned.verdict().starts_with("nothing to do"), "{}", tuned.verdict());
                assert_eq!(host.calls.last(), Some(&Call::Restore));
            }
        }
    }
    // One in forty may be taken for better at the stated confidence.
    assert!(finds <= 6, "{finds} of 80");
}

/// A setting that carries a tenth more is found and stays in force.
#[test]
fn what_is_better_is_found_and_kept() {
    for search in [Search::Perceptron, Search::Random, Search::Exhaustive] {
        let mut host = Known::new(0.01, 3, |cell| {
            Ok(1.0 + 0.05 * (cell.0[0] == 2) as u8 as f64 + 0.05 * (cell.0[2] > 1) as u8 as f64)
        });
        let tuned = host.tune(search, 60, 3).unwrap();
        let best = tuned.best.as_ref().unwrap();
        assert!(
            tuned.is_better && best.cell.0[0] == 2 && best.cell.0[2] > 1,
            "{search:?}: {}",
            tuned.verdict()
        );
        assert!((best.ratio - 1.1).abs() < 0.03 && best.at_least > 1.05, "{best:?}");
        assert_eq!(host.calls.last(), Some(&Call::Settle(best.cell.clone())));
        assert!(!host.calls.contains(&Call::Restore));
    }
}

/// After a trial that is worse by more than noise, the next call brings the best so far back.
#[test]
fn what_is_worse_is_taken_back_at_once() {
    let mut host = Known::new(0.005, 1, |cell| Ok([0.7, 1.0, 1.2, 0.9][cell.0[1]]));
    let tuned = host.tune(Search::Random, 40, 1).unwrap();
    let mut incumbent = (host.space.default_cell(), tuned.defaults);
    let mut taken_back = 0;
    for trial in &tuned.trials {
        let at = host.calls.iter().position(|call| *call == Call::Measure(trial.cell.clone())).unwrap();
        let value = trial.ratio.unwrap() * tuned.defaults;
        if value > incumbent.1 {
            incumbent = (trial.cell.clone(), value);
        }
        let next = &host.calls[at + 1];
        assert_eq!(
            *next == Call::Settle(incumbent.0.clone()),
            trial.is_taken_back,
            "{trial:?}, then {next:?}"
        );
        taken_back += u32::from(trial.is_taken_back);
        // Noise is half a percent: what is 10 % below is beyond it, and what is as good is not.
        if trial.cell.0[1] == 0 {
            assert!(trial.is_taken_back, "{trial:?}");
        }
    }
    assert!(taken_back > 5, "{taken_back}");
}

#[test]
fn a_refusal_ends_a_trial_and_no_search() {
    let refused = |cell: &Cell| match cell.0[2] {
        3 => Err(Fault::Refused { setting: "c".into(), why: "Operation not supported".into() }),
        _ => Ok(1.0),
    };
    let mut host = Known::new(0.001, 1, refused);
    let tuned = host.tune(Search::Exhaustive, 0, 1).unwrap();
    assert!(matches!(tuned.end, TuneEnd::All));
    let (with, without): (Vec<_>, Vec<_>) = tuned.trials.iter().partition(|trial| trial.ratio.is_some());
    assert_eq!((with.len(), without.len()), (47, 16));
    assert!(without.iter().all(|t| t.why_not.as_deref() == Some("c is refused: Operation not supported")));
}

/// An interface that vanishes ends the search wherever it is, and what was changed is taken back.
#[test]
fn a_host_that_is_lost_is_restored() {
    for after in 0..70 {
        let count = std::cell::Cell::new(0);
        let carries = |_: &Cell| {
            count.set(count.get() + 1);
            if count.get() > after { Err(lost()) } else { Ok(1.0) }
        };
        let mut host = Known::new(0.001, 1, carries);
        match host.tune(Search::Random, 20, 1) {
            Err(TuneError::Defaults(Fault::Lost { .. })) => assert!(after < 8, "{after}"),
            Ok(Tuned { end: TuneEnd::Fault(Fault::Lost { .. }), is_better: false, .. }) => {}
            Ok(Tuned { end: TuneEnd::All, .. }) => assert!(after >= 8 + 20, "{after}"),
            other => panic!("{after}: {other:?}"),
        }
        assert_eq!(host.calls.last(), Some(&Call::Restore), "{after}");
    }
}

#[test]
fn flows_that_keep_breaking_end_a_search() {
    let broken = |cell: &Cell| match cell.0 == [1, 1, 1] {
        true => Ok(1.0),
        false => Err(Fault::Flow(ccplane_runner::Error::Panicked("sender"))),
    };
    let mut host = Known::new(0.001, 1, broken);
    let tuned = host.tune(Search::Random, 40, 1).unwrap();
    assert!(matches!(tuned.end, TuneEnd::Fault(Fault::Flow(_))));
    assert_eq!(tuned.trials.len() as u32, MAX_FAILURES - 1);
}

//! Plays cases in the simulator, on all cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ccplane_alg::Algorithm;
use ccplane_core::Companion;
use ccplane_league::on_cores_until;
use ccplane_runner::experiment::{self, Slot};
use sha2::{Digest, Sha256};

use crate::case::{Case, Contender};
use crate::error::EvaluationError;
use crate::measure::{Cell, Figures};
use crate::store::Store;
use crate::trace::Traces;

/// The algorithms whose worse result is the measure of relative limits: the IETF's standards.
pub const STANDARDS: [&str; 2] = ["reno", "cubic"];
/// The algorithms that are shown beside the evaluated one.
pub const REFERENCES: [&str; 3] = ["reno", "cubic", "bbr"];

/// The algorithms and traces that cases are played with.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub algorithms: &'a [Arc<dyn Algorithm>],
    pub traces: &'a Traces,
}

/// One contender in one case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Play {
    pub case: Case,
    pub contender: Contender,
}

impl Play {
    /// Plays it in the simulator.
    ///
    /// # Errors
    /// The plan is refused, or the run fails.
    pub fn play(&self, ground: Ground<'_>) -> Result<Cell, EvaluationError> {
        self.play_beside(ground, None)
    }

    /// The same with a companion beside the run's agent, such as one that writes a trace.
    ///
    /// # Errors
    /// As [`Play::play`].
    pub fn play_beside(
        &self,
        ground: Ground<'_>,
        beside: Option<&mut dyn Companion>,
    ) -> Result<Cell, EvaluationError> {
        let Ground { algorithms, traces } = ground;
        let plan = self.case.plan(std::slice::from_ref(&self.contender), algorithms, traces)?;
        let case = self.case.to_string();
        let (Some(scenario), Some(contender)) = (plan.scenarios.first(), plan.contenders.first()) else {
            return Err(EvaluationError::Plan { case, why: "it has no link".to_owned() });
        };
        // As `ccplane run` of the same plan.
        let seed = experiment::seed(&plan, Slot { repeat: 0, scenario: 0, contender: 0 });
        let measured = experiment::simulate_beside(&plan, scenario, contender, seed, algorithms, beside);
        let measured = measured.map_err(|source| EvaluationError::Run {
            algorithm: self.contender.algorithm.clone(),
            case: case.clone(),
            source: Box::new(source),
        })?;
        Ok(self.cell(&self.digest(ground), Figures::new(self.case, &self.contender, &plan, &measured)))
    }

    pub(crate) fn cell(&self, digest: &str, figures: Figures) -> Cell {
        Cell {
            case: self.case.to_string(),
            algorithm: self.contender.algorithm.clone(),
            datapath: self.contender.datapath,
            digest: digest.to_owned(),
            figures,
        }
    }

    /// SHA-256 of what decides the run as far as it can be told: the plan's text, the programs and the policies of the contender and of
    /// all references, which may be its rivals. Code of the agent's half is not among it.
    pub(crate) fn digest(&self, ground: Ground<'_>) -> String {
        let mut digest = Sha256::new();
        digest.update(self.case.text(std::slice::from_ref(&self.contender)));
        let counts =
            |a: &&Arc<dyn Algorithm>| a.name() == self.contender.algorithm || REFERENCES.contains(&a.name());
        for algorithm in ground.algorithms.iter().filter(counts) {
            for program in algorithm.programs() {
                digest.update(program.name);
                digest.update(program.source);
            }
            for policy in algorithm.policies() {
                digest.update(policy.snapshot);
            }
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The simulated contenders of an algorithm's evaluation: itself, and the references.
#[must_use]
pub fn contenders(algorithm: &str) -> Vec<Contender> {
    let mut names = vec![algorithm];
    names.extend(REFERENCES.iter().filter(|name| **name != algorithm));
    names.into_iter().map(Contender::simulated).collect()
}

/// Plays all that the store does not have on so many cores; the cells come in the order of `plays`. `done` is called as each one
/// ends, and returns whether to go on; where it does not, the result is `None`, and the store has what ended.
///
/// # Errors
/// The first, in their order, that could not be played or kept.
pub fn play(
    plays: &[Play],
    ground: Ground<'_>,
    store: &Store,
    cores: usize,
    done: &(dyn Fn(&Cell) -> bool + Sync),
) -> Result<Option<Vec<Cell>>, EvaluationError> {
    let stopped = AtomicBool::new(false);
    let one = |play: &Play| {
        let kept = store.get(
            &play.case.to_string(),
            &play.contender.algorithm,
            play.contender.datapath,
            &play.digest(ground),
        );
        let cell = match kept {
            Some(cell) => Ok(cell),
            None => play.play(ground).and_then(|cell| {
                store.keep(&cell)?;
                Ok(cell)
            }),
        };
        if !cell.as_ref().is_ok_and(done) {
            stopped.store(true, Ordering::Relaxed);
        }
        cell
    };
    let cells = on_cores_until(plays, cores, &one, &|| stopped.load(Ordering::Relaxed))?;
    Ok((cells.len() == plays.len()).then_some(cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_come_with_the_algorithm_once() {
        let names = |of: &str| contenders(of).into_iter().map(|c| c.algorithm).collect::<Vec<_>>();
        assert_eq!(names("copa"), ["copa", "reno", "cubic", "bbr"]);
        assert_eq!(names("cubic"), ["cubic", "reno", "bbr"]);
        assert!(STANDARDS.iter().all(|name| REFERENCES.contains(name)));
    }

    /// The store is asked first, and only for what is the same in plan and program.
    #[test]
    fn what_was_played_is_not_played_again() {
        let directory = tempfile::tempdir().unwrap();
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let ground = Ground { algorithms: &algorithms, traces: &traces };
        let store = Store::open(&directory.path().join("cells.jsonl"), false).unwrap();
        let case: Case = "incast/0".parse().unwrap();
        let plays: Vec<Play> =
            ["reno", "cubic"].map(|name| Play { case, contender: Contender::simulated(name) }).to_vec();
        let stopped = play(&plays, ground, &store, 1, &|_| false).unwrap();
        assert_eq!(stopped, None, "stopped after the first");
        let cells = play(&plays, ground, &store, 1, &|_| true).unwrap().unwrap();
        assert_eq!(cells.iter().map(|c| c.algorithm.as_str()).collect::<Vec<_>>(), ["reno", "cubic"]);
        assert!(cells.iter().all(|c| c.figures.p95_fct_us.is_some_and(|us| us > 0)), "{cells:?}");
        // What the store says counts, as far as it is of the same programs.
        let told = Cell { figures: Figures::default(), ..cells[0].clone() };
        store.keep(&told).unwrap();
        let again = play(&plays, ground, &store, 2, &|_| true).unwrap().unwrap();
        assert_eq!(again, [told.clone(), cells[1].clone()]);
        store.keep(&Cell { digest: "another".to_owned(), ..told }).unwrap();
        assert_eq!(play(&plays, ground, &store, 2, &|_| true).unwrap().unwrap(), cells);
    }
}

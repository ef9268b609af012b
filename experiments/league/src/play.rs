//! Plays fixtures, each an algorithm on a link, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ccplane_alg::{Algorithm, renewed};
use ccplane_runner::experiment;
use ccplane_runner::plan::Overrides;

use crate::cell::Cell;
use crate::error::LeagueError;
use crate::link::FamilyLink;
use crate::traces::Traces;

/// One algorithm on one link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fixture {
    pub link: FamilyLink,
    pub algorithm: String,
}

impl Fixture {
    /// Plays it in the simulator.
    ///
    /// # Errors
    /// The plan is refused, or the run fails.
    pub fn play(&self, algorithms: &[Arc<dyn Algorithm>], traces: &Traces) -> Result<Cell, LeagueError> {
        self.play_with_knowledge(&renewed(algorithms), traces, Overrides::default())
    }

    /// The same plan with changes that the caller asks for, where algorithms know what earlier runs' flows have taught them.
    pub(crate) fn play_with_knowledge(
        &self,
        algorithms: &[Arc<dyn Algorithm>],
        traces: &Traces,
        overrides: Overrides,
    ) -> Result<Cell, LeagueError> {
        let plan = self.link.plan_with(&[self.algorithm.as_str()], "sim", algorithms, traces, overrides)?;
        let (Some(scenario), Some(contender)) = (plan.scenarios.first(), plan.contenders.first()) else {
            return Err(LeagueError::NoLink { found: self.link.to_string() });
        };
        // As `ccplane run` of the same plan.
        let seed = experiment::seed(&plan, experiment::Slot { repeat: 0, scenario: 0, contender: 0 });
        let measured =
            experiment::simulate_with_knowledge(&plan, scenario, contender, seed, algorithms, None);
        let measured = measured.map_err(|source| LeagueError::Run {
            algorithm: self.algorithm.clone(),
            link: self.link.to_string(),
            source: Box::new(source),
        })?;
        Ok(self.link.cell(scenario, &self.algorithm, &measured))
    }
}

/// Plays all fixtures on so many cores, and returns the cells in the fixtures' order. `done` is called as each one ends,
/// and returns whether to go on.
///
/// # Errors
/// The first fixture's, in their order, that could not be played. Stopped early, the cells so far.
pub fn play(
    fixtures: &[Fixture],
    algorithms: &[Arc<dyn Algorithm>],
    traces: &Traces,
    cores: usize,
    done: &(dyn Fn(&Cell) -> bool + Sync),
) -> Result<Vec<Cell>, LeagueError> {
    let stopped = AtomicUsize::new(0);
    let one = |fixture: &Fixture| {
        let cell = fixture.play(algorithms, traces);
        if !cell.as_ref().is_ok_and(done) {
            stopped.store(1, Ordering::Relaxed);
        }
        cell
    };
    on_cores_until(fixtures, cores, &one, &|| stopped.load(Ordering::Relaxed) != 0)
}

/// Plays all of them on so many cores in some way; the cells come in the fixtures' order.
pub(crate) fn on_cores(
    fixtures: &[Fixture],
    cores: usize,
    one: &(dyn Fn(&Fixture) -> Result<Cell, LeagueError> + Sync),
) -> Result<Vec<Cell>, LeagueError> {
    on_cores_until(fixtures, cores, one, &|| false)
}

/// Does `one` for each item on so many cores until `stopped`; the results come in the items' order.
///
/// # Errors
/// The first item's, in their order, that failed. Stopped early, the results so far.
pub fn on_cores_until<T: Sync, R: Send, E: Send>(
    items: &[T],
    cores: usize,
    one: &(dyn Fn(&T) -> Result<R, E> + Sync),
    stopped: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<R, E>)>> = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..cores.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(n).filter(|_| !stopped()) else { return };
                    let result = one(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((n, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;
    use crate::set::Set;

    #[test]
    fn results_depend_on_neither_cores_nor_company() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let fixture = |family, algorithm: &str| {
            let link = FamilyLink::new(family, Set::Training, 3).unwrap();
            Fixture { link, algorithm: algorithm.to_owned() }
        };
        let fixtures: Vec<Fixture> = [Family::Cellular, Family::LumpyReturn, Family::Jitter]
            .into_iter()
            .flat_map(|family| ["reno", "copa"].map(|algorithm| fixture(family, algorithm)))
            .collect();
        let one = play(&fixtures, &algorithms, &traces, 1, &|_| true).unwrap();
        assert_eq!(one.len(), 6);
        assert!(one.iter().all(|cell| cell.throughput_bps > 0 && cell.mean_rtt_us > 0), "{one:?}");
        assert_eq!(play(&fixtures, &algorithms, &traces, 3, &|_| true).unwrap(), one);
        let alone = play(&fixtures[4..5], &algorithms, &traces, 1, &|_| true).unwrap();
        assert_eq!(alone[0], one[4]);
        assert_eq!(play(&fixtures, &algorithms, &traces, 1, &|_| false).unwrap().len(), 1);
        let unknown =
            play(&[fixture(Family::Steady, "none")], &algorithms, &traces, 1, &|_| true).unwrap_err();
        assert!(unknown.to_string().contains("steady/training/3"), "{unknown}");
    }
}

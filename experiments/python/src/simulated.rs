//! Plans in the simulator, leagues, and results files.

use crate::algorithm::with_built_in;
use crate::error::{failed, refused};
use ccplane_league::{Cell, FamilyLink, Fixture, Traces, play};
use ccplane_results::read;
use ccplane_runner::experiment::{self, Slot};
use ccplane_runner::plan::{Known, Overrides, Plan};
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two looks at Python's signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// Does long work on another thread, and ends it early when Ctrl-C comes.
fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> PyResult<T> + Send,
) -> PyResult<T> {
    let (stop, mut signalled) = (AtomicBool::new(false), Ok(()));
    let done = py.detach(|| {
        let waiting = std::thread::current();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let done = work(&stop);
                waiting.unpark();
                done
            });
            while !worker.is_finished() {
                std::thread::park_timeout(SIGNALS);
                if signalled.is_ok() {
                    signalled = Python::attach(|py| py.check_signals());
                    stop.fetch_or(signalled.is_err(), Ordering::Relaxed);
                }
            }
            worker.join()
        })
    });
    signalled?;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The traces of plans and links: synthetic ones by their names, recorded ones in this folder.
pub(crate) fn traces(folder: Option<PathBuf>) -> Traces {
    folder.map_or_else(Traces::default, |folder| Traces { folder })
}

/// One run of a plan, as a line of JSON.
#[derive(Serialize)]
struct Ran<'a> {
    scenario: &'a str,
    contender: &'a str,
    repeat: u32,
    seed: u64,
    #[serde(flatten)]
    measured: &'a ccplane_results::RunFigures,
}

/// Simulates a plan, given as its text, and returns each run's figures as JSON, up to the first that fails and why it did. Of `parts`
/// parts of the plan only the one of number `part` is played: each run whose number leaves that remainder.
#[pyfunction]
#[pyo3(signature = (plan, hosted, trace_folder=None, part=0, parts=1))]
pub(crate) fn simulate(
    py: Python<'_>,
    plan: &str,
    hosted: &Bound<'_, PyList>,
    trace_folder: Option<PathBuf>,
    part: usize,
    parts: usize,
) -> PyResult<(Vec<String>, Option<String>)> {
    let algorithms = with_built_in(hosted)?;
    interruptible(py, |stop| {
        let traces = traces(trace_folder);
        let trace = |name: &str| traces.trace(name);
        let known = Known { algorithms: &algorithms, kernel: None, traces: &trace, cellular: None };
        let plan = Plan::parse(Path::new("plan"), plan, &known, Overrides::default());
        let plan = plan.map_err(refused)?;
        let (mut runs, mut number) = (Vec::new(), 0);
        for repeat in 0..plan.repeats {
            for (n, scenario) in plan.scenarios.iter().enumerate() {
                for (m, contender) in plan.contenders.iter().enumerate() {
                    if stop.load(Ordering::Relaxed) {
                        return Ok((runs, None));
                    }
                    let is_played = number % parts.max(1) == part;
                    number += 1;
                    if !is_played {
                        continue;
                    }
                    let seed = experiment::seed(&plan, Slot { repeat, scenario: n, contender: m });
                    let measured = experiment::simulate(&plan, scenario, contender, seed, &algorithms);
                    let (scenario, contender) = (&scenario.name, &contender.name);
                    match &measured {
                        Ok(measured) => {
                            runs.push(json(&Ran { scenario, contender, repeat, seed, measured })?);
                        }
                        Err(error) => return Ok((runs, Some(format!("{contender}, {scenario}: {error}")))),
                    }
                }
            }
        }
        Ok((runs, None))
    })
}

/// Plays algorithms on drawn links, such as `steady/validation/3`, and returns each cell as a line of JSON: for each link in turn, all
/// algorithms. The lines are those of `ccplane league`, whoever plays which part.
#[pyfunction]
#[pyo3(signature = (links, names, hosted, cores, trace_folder=None))]
pub(crate) fn play_links(
    py: Python<'_>,
    links: Vec<String>,
    names: Vec<String>,
    hosted: &Bound<'_, PyList>,
    cores: usize,
    trace_folder: Option<PathBuf>,
) -> PyResult<Vec<String>> {
    let algorithms = with_built_in(hosted)?;
    let links = links.iter().map(|link| link.parse()).collect::<Result<Vec<FamilyLink>, _>>();
    let links = links.map_err(refused)?;
    let fixture = |link: &FamilyLink, name: &String| Fixture { link: *link, algorithm: name.clone() };
    let of_link = |link| names.iter().map(move |name| fixture(link, name));
    let fixtures: Vec<Fixture> = links.iter().flat_map(of_link).collect();
    interruptible(py, |stop| {
        let go_on = |_: &Cell| !stop.load(Ordering::Relaxed);
        let cells = play(&fixtures, &algorithms, &traces(trace_folder), cores, &go_on);
        cells.map_err(failed)?.iter().map(json).collect()
    })
}

/// A results file's header and runs, each as JSON.
#[pyfunction]
pub(crate) fn read_results(py: Python<'_>, path: PathBuf) -> PyResult<(String, Vec<String>)> {
    py.detach(|| {
        let results = read(&path).map_err(refused)?;
        let runs = results.runs.iter().map(json).collect::<PyResult<_>>()?;
        Ok((json(&results.header)?, runs))
    })
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(failed)
}

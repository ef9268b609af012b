//! One environment, a decision at a time.

use crate::error::refused;
use crate::families::{Drawn, Scenarios};
use ccplane_env::recipe::Recipe;
use ccplane_env::{Ask, Family, Links, RealLinks, Stepped};
use ccplane_learn::{Actor, End, Environment};
use numpy::PyReadwriteArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The key by which Python names the league's links.
const LEAGUE: &str = "league";

/// Links of `algorithm`, `aurora`, `mocc` or `aurora-published`; `family` is JSON and replaces its recipe's. Without `shared`, one flow
/// learns.
pub(crate) fn links(algorithm: &str, family: Option<&str>, shared: bool) -> PyResult<Links> {
    let recipe = match algorithm {
        "aurora" => Recipe::aurora(),
        "aurora-published" => Recipe::published(),
        "mocc" => Recipe::mocc(),
        "neural" => {
            return Err(PyValueError::new_err(
                "neural is fitted to labels, not to rewards, so that no environment is its own; `ccplane train --algorithm neural` trains it",
            ));
        }
        other => {
            let known = "there are aurora, aurora-published and mocc";
            return Err(PyValueError::new_err(format!("nothing is learned for `{other}`; {known}")));
        }
    };
    let mut recipe = recipe.map_err(refused)?;
    let mut drawn = None;
    if let Some(text) = family {
        let named: serde_json::Value = serde_json::from_str(text).map_err(refused)?;
        if named.get(LEAGUE).is_some() {
            drawn = Some(serde_json::from_value::<Drawn>(named).map_err(refused)?.scenarios()?);
        } else {
            recipe.family = serde_json::from_value(named).map_err(refused)?;
        }
    }
    if !shared && let Family::Real(links) = recipe.family {
        recipe.family = Family::Real(RealLinks { shared: 0.0, ..links });
    }
    let links = recipe.links().map_err(refused)?;
    let Some(Scenarios { scenarios, rivals }) = drawn else { return Ok(links) };
    let links = links.on(scenarios, rivals).map_err(refused)?;
    if !shared && links.most_learners() > 1 {
        return Err(PyValueError::new_err(
            "these links have several learning flows: `multi.FlowsEnv` takes them",
        ));
    }
    Ok(links)
}

/// A flow's number, the reward of its last action, and whether the episode ends here.
type Asked = (usize, Option<f32>, bool);

/// The flows of one episode after another. Each asks in its own time.
#[pyclass(frozen, module = "ccplane._native")]
pub(crate) struct Flows {
    stepped: Mutex<Stepped>,
    /// The policy's inputs, as its program names them.
    #[pyo3(get)]
    features: Vec<String>,
    /// The largest action; the smallest is its negative.
    #[pyo3(get)]
    bound: f64,
    /// Flows that learn in one episode, at most.
    #[pyo3(get)]
    agents: usize,
}

#[pymethods]
impl Flows {
    #[new]
    #[pyo3(signature = (algorithm, family=None, shared=false))]
    fn new(py: Python<'_>, algorithm: &str, family: Option<&str>, shared: bool) -> PyResult<Flows> {
        let links = py.detach(|| links(algorithm, family, shared))?;
        let spec = links.spec();
        Ok(Flows {
            features: spec.inputs().iter().map(|feature| feature.name.clone()).collect(),
            bound: spec.action().bound(),
            agents: links.most_learners(),
            stepped: Mutex::new(Stepped::new(links)),
        })
    }

    /// Starts the episode of `seed`; `None` where no flow ever asks. `observation`: float32, one number for each feature, written to.
    fn start(
        &self,
        py: Python<'_>,
        seed: u64,
        max_steps: usize,
        mut observation: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<Option<Asked>> {
        let row = observation.as_slice_mut()?;
        py.detach(|| self.go_on(row, |stepped| stepped.start(seed, max_steps)))
    }

    /// Gives the flow that asked its action; `None` when the episode is over without another question.
    fn step(
        &self,
        py: Python<'_>,
        action: f32,
        mut observation: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<Option<Asked>> {
        let row = observation.as_slice_mut()?;
        py.detach(|| self.go_on(row, |stepped| stepped.step(action)))
    }
}

impl Flows {
    /// Goes on by `on` until a flow asks, and copies what it sees into Python's memory; returns which flow asks.
    fn go_on(
        &self,
        row: &mut [f32],
        on: impl FnOnce(&mut Stepped) -> Option<Ask>,
    ) -> PyResult<Option<Asked>> {
        let mut stepped = self.stepped();
        let Some(Ask { agent, reward, last }) = on(&mut stepped) else { return Ok(None) };
        write_row(stepped.observation(), row)?;
        Ok(Some((agent, reward, last)))
    }

    fn stepped(&self) -> MutexGuard<'_, Stepped> {
        self.stepped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies an observation to where Python has it.
pub(crate) fn write_row(observation: &[f32], row: &mut [f32]) -> PyResult<()> {
    if row.len() != observation.len() {
        let (found, expected) = (row.len(), observation.len());
        return Err(PyValueError::new_err(format!(
            "room for {found} numbers, an observation has {expected}"
        )));
    }
    row.copy_from_slice(observation);
    Ok(())
}

/// The loop that environments are measured against: Rust's own, with one action throughout. Returns steps, seconds and the sum of
/// rewards.
#[pyfunction]
#[pyo3(signature = (algorithm, family, seeds, max_steps, action=0.0))]
pub(crate) fn run_in_rust(
    py: Python<'_>,
    algorithm: &str,
    family: Option<&str>,
    seeds: Vec<u64>,
    max_steps: usize,
    action: f32,
) -> PyResult<(usize, f64, f64)> {
    let mut links = links(algorithm, family, false)?;
    py.detach(|| {
        let mut constant = Constant { action, steps: 0, rewards: 0.0 };
        let began = Instant::now();
        for seed in seeds {
            links.episode(seed, max_steps, &mut constant);
        }
        Ok((constant.steps, began.elapsed().as_secs_f64(), constant.rewards))
    })
}

/// An actor whose actions are all alike.
struct Constant {
    action: f32,
    steps: usize,
    rewards: f64,
}

impl Actor for Constant {
    fn act(&mut self, _agent: usize, _observation: &[f32]) -> f32 {
        self.steps += 1;
        self.action
    }

    fn outcome(&mut self, _agent: usize, reward: f32, _end: End, _observation: &[f32]) {
        self.rewards += f64::from(reward);
    }
}

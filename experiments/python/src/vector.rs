//! Many environments, stepped together.

use crate::environment::{links, write_row};
use ccplane_env::{Ask, Stepped};
use ccplane_learn::Rng;
use numpy::{PyReadonlyArray1, PyReadwriteArray1, PyReadwriteArray2};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Environments of one vector, at most.
const MAX_LANES: usize = 1 << 16;
/// Episodes in a row in which no flow asks, at most.
const MAX_SILENT: usize = 64;
/// The name of the stream of seeds after an episode whose seed was given.
const NEXT: u64 = 0x9e47;

/// One environment, and the seeds of its episodes.
struct Lane {
    stepped: Stepped,
    /// The seed of the next episode, where it was given.
    given: Option<u64>,
    seeds: Rng,
    /// Whether the episode has ended, so that the next step starts another.
    over: bool,
}

/// The outcome of a step.
struct Outcome {
    reward: f64,
    truncated: bool,
}

impl Lane {
    fn seed(&mut self, seed: u64) {
        (self.given, self.seeds) = (Some(seed), Rng::new(seed, &[NEXT]));
    }

    /// Starts the next episode in which a flow asks.
    fn start(&mut self, max_steps: usize, row: &mut [f32]) -> PyResult<()> {
        for _ in 0..MAX_SILENT {
            let seed = self.given.take().unwrap_or_else(|| self.seeds.bits());
            if self.stepped.start(seed, max_steps).is_some() {
                self.over = false;
                return write_row(self.stepped.observation(), row);
            }
        }
        Err(PyRuntimeError::new_err(format!("in {MAX_SILENT} episodes no flow asked for an action")))
    }

    /// Takes a step. Where the episode ends without another question, what was seen last stays.
    fn step(&mut self, action: f32, row: &mut [f32]) -> PyResult<Outcome> {
        let Some(Ask { reward, last, .. }) = self.stepped.step(action) else {
            self.over = true;
            return Ok(Outcome { reward: 0.0, truncated: true });
        };
        self.over = last;
        write_row(self.stepped.observation(), row)?;
        Ok(Outcome { reward: reward.map_or(0.0, f64::from), truncated: last })
    }
}

/// The vector's arrays, which a step writes to.
struct Arrays<'a> {
    observations: &'a mut [f32],
    rewards: &'a mut [f64],
    truncated: &'a mut [bool],
    /// If given, episodes start anew within the step that ends them, and their last observations go there.
    last: Option<&'a mut [f32]>,
}

/// Environments with one flow that learns each, stepped together on the caller's thread.
#[pyclass(frozen, module = "ccplane._native")]
pub(crate) struct Vector {
    lanes: Mutex<Vec<Lane>>,
    max_steps: usize,
    width: usize,
}

#[pymethods]
impl Vector {
    #[new]
    #[pyo3(signature = (algorithm, count, max_steps, family=None))]
    fn new(
        py: Python<'_>,
        algorithm: &str,
        count: usize,
        max_steps: usize,
        family: Option<&str>,
    ) -> PyResult<Vector> {
        if !(1..=MAX_LANES).contains(&count) {
            return Err(PyValueError::new_err(format!("{count} environments, 1 to {MAX_LANES} are allowed")));
        }
        let links = py.detach(|| links(algorithm, family, false))?;
        let lane = |n: usize| Lane {
            stepped: Stepped::new(links.clone()),
            given: None,
            seeds: Rng::new(n as u64, &[NEXT]),
            over: true,
        };
        let width = links.spec().inputs().len();
        Ok(Vector { lanes: Mutex::new((0..count).map(lane).collect()), max_steps, width })
    }

    /// Starts episodes, of these seeds where they are given. `observations`: float32 (environments, features), written to.
    fn reset(
        &self,
        py: Python<'_>,
        seeds: Vec<Option<u64>>,
        mut observations: PyReadwriteArray2<'_, f32>,
    ) -> PyResult<()> {
        let rows = observations.as_slice_mut()?;
        py.detach(|| {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            fits("seeds", seeds.len(), lanes.len())?;
            fits("observations", rows.len(), lanes.len() * self.width)?;
            for ((lane, row), seed) in lanes.iter_mut().zip(rows.chunks_exact_mut(self.width)).zip(seeds) {
                if let Some(seed) = seed {
                    lane.seed(seed);
                }
                lane.start(self.max_steps, row)?;
            }
            Ok(())
        })
    }

    /// Steps all. `actions`: float32 (environments); written to: `observations` as in `reset`, `rewards` float64 (environments),
    /// `truncated` bool (environments). An environment whose episode has ended starts the next one in the step after; with
    /// `last`, shaped as `observations`, at once, and its last observation goes there.
    #[pyo3(signature = (actions, observations, rewards, truncated, last=None))]
    fn step(
        &self,
        py: Python<'_>,
        actions: PyReadonlyArray1<'_, f32>,
        mut observations: PyReadwriteArray2<'_, f32>,
        mut rewards: PyReadwriteArray1<'_, f64>,
        mut truncated: PyReadwriteArray1<'_, bool>,
        mut last: Option<PyReadwriteArray2<'_, f32>>,
    ) -> PyResult<()> {
        let actions = actions.as_slice()?;
        let last = last.as_mut().map(|last| last.as_slice_mut()).transpose()?;
        let arrays = Arrays {
            observations: observations.as_slice_mut()?,
            rewards: rewards.as_slice_mut()?,
            truncated: truncated.as_slice_mut()?,
            last,
        };
        py.detach(|| self.step_all(actions, arrays))
    }
}

impl Vector {
    fn step_all(&self, actions: &[f32], arrays: Arrays<'_>) -> PyResult<()> {
        let Arrays { observations, rewards, truncated, mut last } = arrays;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, numbers) = (lanes.len(), lanes.len() * self.width);
        fits("actions", actions.len(), count)?;
        fits("observations", observations.len(), numbers)?;
        fits("rewards", rewards.len(), count)?;
        fits("truncated", truncated.len(), count)?;
        fits("last observations", last.as_ref().map_or(numbers, |last| last.len()), numbers)?;
        let rows = observations.chunks_exact_mut(self.width);
        for (n, (lane, row)) in lanes.iter_mut().zip(rows).enumerate() {
            if lane.over {
                lane.start(self.max_steps, row)?;
                (rewards[n], truncated[n]) = (0.0, false);
                continue;
            }
            let outcome = lane.step(actions[n], row)?;
            (rewards[n], truncated[n]) = (outcome.reward, outcome.truncated);
            if let (true, Some(last)) = (outcome.truncated, &mut last) {
                last[n * self.width..(n + 1) * self.width].copy_from_slice(row);
                lane.start(self.max_steps, row)?;
            }
        }
        Ok(())
    }
}

fn fits(what: &str, found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{found} numbers in {what}, {expected} are needed")))
}

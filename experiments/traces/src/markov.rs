//! A Markov chain of rates, fitted to a trace: other traces of the same kind.
//!
//! A trace's windows of [`Model::step_ms`] are sorted by rate into states that hold about equally many, windows that deliver
//! nothing into one of their own; the model counts which state follows which, the first window following the last. So the chain's
//! stationary distribution is the trace's own: the mean is the same in expectation, and with [`DEFAULT_STATES`] states
//! variance and the correlation of neighbouring windows nearly so (the tests say how nearly). What it does not keep: the order of
//! things over many windows, and how opportunities bunch within one, where they are spread evenly.

use ccplane_netsim::trace::{MAX_TIMESTAMP_MS, Trace};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::{Error, check_range};
use crate::rates::{MAX_BIT_PER_S, Step};
use crate::summary::whole_windows;

/// States of a model, at most.
pub const MAX_STATES: usize = 256;
/// States that a fit looks for.
pub const DEFAULT_STATES: usize = 24;
/// Length of a fit's windows.
pub const DEFAULT_STEP_MS: u32 = 100;
/// Longest window.
pub const MAX_STEP_MS: u32 = 60_000;
/// Windows that a trace must have to be fitted.
pub const MIN_WINDOWS: usize = 20;

/// Why a model is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// A trace that is too short to be fitted.
    #[error("the trace has {windows} windows of {step_ms} ms: a fit needs at least {MIN_WINDOWS}")]
    TooShort {
        /// How many there are.
        windows: usize,
        /// How long they are.
        step_ms: u32,
    },
    /// A step out of range.
    #[error("step_ms: {found} is outside 1..={MAX_STEP_MS}")]
    Step {
        /// Its value.
        found: u32,
    },
    /// No state, or too many.
    #[error("states_bit_per_s: {found} states, expected 1 to {MAX_STATES}")]
    States {
        /// How many.
        found: usize,
    },
    /// A rate past the limit.
    #[error("states_bit_per_s[{state}]: {found} is past the limit of {MAX_BIT_PER_S}")]
    Rate {
        /// Which state, from 0.
        state: usize,
        /// Its rate.
        found: u64,
    },
    /// The table has another size than the states ask for.
    #[error("transitions{}: {found} entries, expected {expected}, one a state", row.map(|r| format!("[{r}]")).unwrap_or_default())]
    Shape {
        /// Which row, from 0; `None`: the table.
        row: Option<usize>,
        /// How many entries it has.
        found: usize,
        /// How many states there are.
        expected: usize,
    },
    /// A state that nothing follows.
    #[error("transitions[{row}]: all 0, so that nothing could follow state {row}")]
    DeadEnd {
        /// Which row, from 0.
        row: usize,
    },
}

/// A fitted chain. Serialised as it stands; what is read is checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Model {
    step_ms: u32,
    states_bit_per_s: Vec<u64>,
    transitions: Vec<Vec<u32>>,
}

/// A model as read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    step_ms: u32,
    states_bit_per_s: Vec<u64>,
    transitions: Vec<Vec<u32>>,
}

impl TryFrom<Unchecked> for Model {
    type Error = ModelError;

    fn try_from(read: Unchecked) -> Result<Model, ModelError> {
        let Unchecked { step_ms, states_bit_per_s, transitions } = read;
        let expected = states_bit_per_s.len();
        if !(1..=MAX_STEP_MS).contains(&step_ms) {
            return Err(ModelError::Step { found: step_ms });
        }
        if !(1..=MAX_STATES).contains(&expected) {
            return Err(ModelError::States { found: expected });
        }
        if let Some((state, found)) = states_bit_per_s.iter().enumerate().find(|(_, r)| **r > MAX_BIT_PER_S) {
            return Err(ModelError::Rate { state, found: *found });
        }
        if transitions.len() != expected {
            return Err(ModelError::Shape { row: None, found: transitions.len(), expected });
        }
        for (row, counts) in transitions.iter().enumerate() {
            if counts.len() != expected {
                return Err(ModelError::Shape { row: Some(row), found: counts.len(), expected });
            }
            if counts.iter().all(|n| *n == 0) {
                return Err(ModelError::DeadEnd { row });
            }
        }
        Ok(Model { step_ms, states_bit_per_s, transitions })
    }
}

impl Model {
    /// Fits a chain to a trace.
    ///
    /// # Errors
    /// Fewer windows than [`MIN_WINDOWS`], or `step_ms` or `states` out of range.
    pub fn fit(trace: &Trace, step_ms: u32, states: usize) -> Result<Model, Error> {
        if !(1..=MAX_STEP_MS).contains(&step_ms) {
            return Err(ModelError::Step { found: step_ms }.into());
        }
        if !(1..=MAX_STATES).contains(&states) {
            return Err(ModelError::States { found: states }.into());
        }
        let rates = whole_windows(trace, step_ms)?;
        if rates.len() < MIN_WINDOWS {
            return Err(ModelError::TooShort { windows: rates.len(), step_ms }.into());
        }
        let bounds = upper_bounds(&rates, states);
        let state_of = |rate: &u64| bounds.partition_point(|bound| bound < rate);
        let visited: Vec<usize> = rates.iter().map(state_of).collect();

        let mut sums = vec![(0u64, 0u64); bounds.len()];
        let mut transitions = vec![vec![0u32; bounds.len()]; bounds.len()];
        for (n, (state, rate)) in visited.iter().zip(&rates).enumerate() {
            sums[*state].0 += rate;
            sums[*state].1 += 1;
            transitions[*state][visited[(n + 1) % visited.len()]] += 1;
        }
        let states_bit_per_s = sums.iter().map(|(sum, n)| (sum + n / 2) / n).collect();
        Ok(Model { step_ms, states_bit_per_s, transitions })
    }

    /// How long a state holds, milliseconds.
    pub fn step_ms(&self) -> u32 {
        self.step_ms
    }

    /// Rates of the states, bits per second.
    pub fn states_bit_per_s(&self) -> &[u64] {
        &self.states_bit_per_s
    }

    /// Draws the rates of a trace, for [`crate::rates::trace_of`].
    ///
    /// The first state is drawn by how often the fit saw each.
    ///
    /// # Errors
    /// A duration of 0 or above a day.
    pub fn generate(&self, seed: u64, duration_ms: u32) -> Result<Vec<Step>, Error> {
        check_range("duration", duration_ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let visits = self.transitions.iter().map(|row| row.iter().copied().map(u64::from).sum());
        let mut state = draw(&visits.collect::<Vec<u64>>(), &mut random);
        let mut steps = Vec::with_capacity(duration_ms.div_ceil(self.step_ms) as usize);
        for start_ms in (0..duration_ms).step_by(self.step_ms as usize) {
            let step_ms = self.step_ms.min(duration_ms - start_ms);
            steps.push(Step { duration_ms: step_ms, bit_per_s: self.states_bit_per_s[state] });
            let row: Vec<u64> = self.transitions[state].iter().copied().map(u64::from).collect();
            state = draw(&row, &mut random);
        }
        Ok(steps)
    }
}

/// The fastest rate of each state, ascending; equal rates share a state.
fn upper_bounds(rates: &[u64], states: usize) -> Vec<u64> {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable();
    let zeros = sorted.partition_point(|rate| *rate == 0);
    let rest = &sorted[zeros..];
    let zero = (zeros > 0).then_some(0);
    // Those that deliver share the other states.
    let states = states.saturating_sub(usize::from(zeros > 0)).max(1).min(rest.len());
    let mut bounds: Vec<u64> = zero.into_iter().collect();
    bounds.extend((1..=states).map(|n| rest[n * rest.len() / states - 1]));
    bounds.dedup();
    bounds
}

/// An index, each as likely as its weight; the weights' sum is above 0.
fn draw(weights: &[u64], random: &mut ChaCha8Rng) -> usize {
    let sum: u64 = weights.iter().sum();
    let mut left = (u128::from(random.next_u64()) * u128::from(sum)) >> 64;
    let chosen = weights.iter().position(|weight| {
        let here = left < u128::from(*weight);
        left = left.saturating_sub(u128::from(*weight));
        here
    });
    chosen.unwrap_or(0)
}

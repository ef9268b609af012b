//! A Markov chain of rates, fitted to a trace: other traces of the same kind.
//!
//! A trace's windows of [`Model::step_ms`] are sorted twice: by the mean rate within [`CONTEXT_MS`] around them (good
//! times and bad) and, within each such context, by their own rate; windows that deliver nothing stay apart. Each class
//! is a state, and the model counts which follows which, the first window following the last. So the chain's stationary
//! distribution is the trace's own: its mean is the same in expectation and its variance nearly so. Thanks to the
//! contexts, windows seconds apart are correlated about as they were. How nearly, `tests/suite/fit.rs` says. What it
//! does not keep: the order of things over minutes, and how opportunities bunch within a window, where they are spread
//! evenly.

use std::collections::BTreeMap;

use ccplane_netsim::trace::{MAX_TIMESTAMP_MS, Trace};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::error::{Error, check_range};
use crate::rates::{MAX_BIT_PER_S, RateStep};
use crate::summary::whole_windows;

pub use crate::limits::{MAX_STATES, MAX_STEP_MS, MIN_WINDOWS, MODEL_VERSION};
pub use crate::reason::ModelError;

/// The number of contexts in a fit.
pub const CONTEXTS: usize = 8;
/// Rates within each, windows without any not counted.
pub const RATES_PER_CONTEXT: usize = 6;
/// A window's context reaches so far before and after it.
pub const CONTEXT_MS: u32 = 1_000;
/// Length of a fit's windows.
pub const DEFAULT_STEP_MS: u32 = 100;

const _: () = assert!(CONTEXTS * (RATES_PER_CONTEXT + 1) <= MAX_STATES);

/// A fitted chain. Deserialising checks its numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Model {
    version: u32,
    step_ms: u32,
    states_bit_per_s: Vec<u64>,
    transitions: Vec<Vec<u32>>,
}

/// A model as read.
#[derive(Deserialize)]
struct Unchecked {
    #[serde(default = "first_version")]
    version: u32,
    step_ms: u32,
    states_bit_per_s: Vec<u64>,
    transitions: Vec<Vec<u32>>,
    /// Fields that a model of this version does not have; one of another version is refused by its number.
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

fn first_version() -> u32 {
    1
}

impl TryFrom<Unchecked> for Model {
    type Error = ModelError;

    fn try_from(read: Unchecked) -> Result<Model, ModelError> {
        let Unchecked { version, step_ms, states_bit_per_s, transitions, others } = read;
        if version != MODEL_VERSION {
            return Err(ModelError::Version { found: version });
        }
        if let Some((field, _)) = others.into_iter().next() {
            return Err(ModelError::Field { field });
        }
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
        Ok(Model { version, step_ms, states_bit_per_s, transitions })
    }
}

impl Model {
    /// Fits a chain to a trace.
    ///
    /// # Errors
    /// Fewer windows than [`MIN_WINDOWS`], or `step_ms` out of range.
    pub fn fit(trace: &Trace, step_ms: u32) -> Result<Model, Error> {
        if !(1..=MAX_STEP_MS).contains(&step_ms) {
            return Err(ModelError::Step { found: step_ms }.into());
        }
        let rates = whole_windows(trace, step_ms)?;
        if rates.len() < MIN_WINDOWS {
            return Err(ModelError::TooShort { windows: rates.len(), step_ms }.into());
        }
        let (visited, states) = states_of(&rates, (CONTEXT_MS / step_ms) as usize);
        let mut sums = vec![(0, 0); states];
        let mut transitions = vec![vec![0u32; states]; states];
        for (n, (state, rate)) in visited.iter().zip(&rates).enumerate() {
            sums[*state].0 += rate;
            sums[*state].1 += 1;
            transitions[*state][visited[(n + 1) % visited.len()]] += 1;
        }
        let states_bit_per_s = sums.iter().map(|(sum, n): &(u64, u64)| (sum + n / 2) / n).collect();
        Ok(Model { version: MODEL_VERSION, step_ms, states_bit_per_s, transitions })
    }

    /// Returns the time for which a state holds, milliseconds.
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
    pub fn generate(&self, seed: u64, duration_ms: u32) -> Result<Vec<RateStep>, Error> {
        check_range("duration", duration_ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let visits = self.transitions.iter().map(|row| row.iter().copied().map(u64::from).sum());
        let mut state = draw(&visits.collect::<Vec<u64>>(), &mut random);
        let mut steps = Vec::with_capacity(duration_ms.div_ceil(self.step_ms) as usize);
        for start_ms in (0..duration_ms).step_by(self.step_ms as usize) {
            let step_ms = self.step_ms.min(duration_ms - start_ms);
            steps.push(RateStep { duration_ms: step_ms, bit_per_s: self.states_bit_per_s[state] });
            let row: Vec<u64> = self.transitions[state].iter().copied().map(u64::from).collect();
            state = draw(&row, &mut random);
        }
        Ok(steps)
    }
}

/// Each window's state, and how many states there are; each has a window.
fn states_of(rates: &[u64], reach: usize) -> (Vec<usize>, usize) {
    let around = sums_around(rates, reach);
    let contexts = classes(&around, CONTEXTS);
    let mut states = vec![0; rates.len()];
    let mut count = 0;
    for context in 0..=contexts.iter().copied().max().unwrap_or(0) {
        let members: Vec<usize> = (0..rates.len()).filter(|n| contexts[*n] == context).collect();
        let own: Vec<u64> = members.iter().map(|n| rates[*n]).collect();
        let classes = classes(&own, RATES_PER_CONTEXT);
        members.iter().zip(&classes).for_each(|(n, class)| states[*n] = count + class);
        count += classes.iter().max().map_or(0, |last| last + 1);
    }
    (states, count)
}

/// The sum of each value and of `reach` before and after it, the ends joined.
fn sums_around(values: &[u64], reach: usize) -> Vec<u64> {
    let n = values.len();
    let reach = reach.min(n / 2);
    let mut sum: u64 = (0..=2 * reach).map(|i| values[(n + i - reach) % n]).sum();
    (0..n)
        .map(|at| {
            let here = sum;
            sum = sum + values[(at + reach + 1) % n] - values[(n + at - reach) % n];
            here
        })
        .collect()
}

/// Sorts values into at most `classes` classes of about equally many, and zeros into one before those. Equal values share a class, and
/// each class, numbered from 0, has a member.
fn classes(values: &[u64], classes: usize) -> Vec<usize> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let (zeros, rest) = sorted.split_at(sorted.partition_point(|value| *value == 0));
    let classes = classes.min(rest.len());
    let mut bounds: Vec<u64> = zeros.first().copied().into_iter().collect();
    bounds.extend((1..=classes).map(|n| rest[n * rest.len() / classes - 1]));
    bounds.dedup();
    values.iter().map(|value| bounds.partition_point(|bound| bound < value)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::trace_of;
    use crate::shape;

    #[test]
    fn classes_are_even_and_keep_zeros_apart() {
        assert_eq!(classes(&[5, 0, 7, 6, 0, 8], 2), [1, 0, 2, 1, 0, 2]);
        assert_eq!(classes(&[3, 3, 3], 2), [0, 0, 0]);
        assert_eq!(classes(&[0, 0], 2), [0, 0]);
        assert_eq!(sums_around(&[1, 2, 4, 8, 16], 1), [19, 7, 14, 28, 25]);
        assert_eq!(sums_around(&[1, 2], 0), [1, 2]);
    }

    #[test]
    fn a_square_wave_gives_its_two_rates() {
        let wave = shape::step(&[12_032_000, 24_064_000], 5_000, 60_000).unwrap();
        let model = Model::fit(&trace_of(&wave).unwrap(), 100).unwrap();
        assert!(model.states_bit_per_s().iter().all(|r| [12_032_000, 24_064_000].contains(r)), "{model:?}");
        let steps = model.generate(7, 600_000).unwrap();
        let slow = steps.iter().filter(|s| s.bit_per_s == 12_032_000).count();
        assert!((2_000..4_000).contains(&slow), "{slow} of 6000");
        assert_eq!(steps, model.generate(7, 600_000).unwrap());
        assert_ne!(steps, model.generate(8, 600_000).unwrap());
    }

    #[test]
    fn what_is_read_is_checked() {
        let model = |text: &str| serde_json::from_str::<Model>(text).map_err(|e| e.to_string());
        let good = r#"{"step_ms":100,"states_bit_per_s":[0,5],"transitions":[[1,1],[2,0]]}"#;
        let read = model(good).unwrap();
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(
            written,
            good.replacen('{', r#"{"version":1,"#, 1),
            "a model without a version is of the first"
        );
        assert_eq!(model(&written).unwrap(), read);
        assert_eq!(toml::from_str::<Model>(&toml::to_string(&read).unwrap()).unwrap(), read);
        for (wrong, why) in [
            (good.replace("100", "0"), "step_ms: 0 is outside 1..=60000"),
            (good.replace("[0,5]", "[0]"), "transitions: 2 entries, expected 1, one a state"),
            (good.replace("[2,0]", "[2]"), "transitions[1]: 1 entries, expected 2, one a state"),
            (good.replace("[2,0]", "[0,0]"), "transitions[1]: all 0, so that nothing could follow state 1"),
            (good.replace("5]", "100000000001]"), "states_bit_per_s[1]: 100000000001 is past the limit"),
            (good.replace("[0,5]", "[]"), "states_bit_per_s: 0 states, expected 1 to 256"),
            (good.replace("step_ms", "steps"), "missing field `step_ms`"),
            (good.replacen('{', r#"{"steps":1,"#, 1), "steps: a model has no such field"),
            (written.replacen(":1,", ":2,", 1), "version 2 of a model"),
        ] {
            assert!(model(&wrong).unwrap_err().starts_with(why), "{wrong}: {:?}", model(&wrong));
        }
        let short = trace_of(&shape::constant(12_032_000, 9_900).unwrap()).unwrap();
        assert_eq!(
            Model::fit(&short, 100).unwrap_err().to_string(),
            "the trace has 99 windows of 100 ms: a fit needs at least 100"
        );
        assert!(Model::fit(&short, 0).unwrap_err().to_string().starts_with("step_ms: 0"));
    }
}

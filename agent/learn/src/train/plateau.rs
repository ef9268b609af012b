//! The detection that a policy no longer improves.

use serde::{Deserialize, Serialize};

/// The rule by which a training has reached its plateau. The mean of the last `window` evaluations has not exceeded
/// the best such mean by `min_gain` for `patience` evaluations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plateau {
    /// Evaluations that are averaged.
    pub window: usize,
    /// Evaluations without a gain.
    pub patience: usize,
    /// The least gain that counts, as a share of the best mean's magnitude.
    pub min_gain: f32,
}

impl Default for Plateau {
    fn default() -> Plateau {
        Plateau { window: 3, patience: 10, min_gain: 0.01 }
    }
}

/// The evaluations that the rule remembers.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlateauState {
    last: Vec<f32>,
    best: Option<f32>,
    without_gain: usize,
}

impl Plateau {
    /// Hears an evaluation's mean reward; whether the plateau is reached.
    pub(super) fn reached(&self, state: &mut PlateauState, mean_reward: f32) -> bool {
        state.last.push(mean_reward);
        if state.last.len() < self.window {
            return false;
        }
        let start = state.last.len() - self.window.max(1);
        state.last.drain(..start);
        let mean = state.last.iter().sum::<f32>() / state.last.len() as f32;
        if state.best.is_none_or(|best| mean > best + self.min_gain * best.abs()) {
            state.best = Some(mean);
            state.without_gain = 0;
        } else {
            state.without_gain += 1;
        }
        state.without_gain >= self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_count_and_noise_does_not() {
        let plateau = Plateau { window: 2, patience: 3, min_gain: 0.1 };
        let mut state = PlateauState::default();
        let rewards = [1.0, 1.0, 2.0, 3.0, 3.1, 2.9, 3.2, 3.0];
        let reached: Vec<bool> = rewards.iter().map(|r| plateau.reached(&mut state, *r)).collect();
        // Means: -, 1, 1.5, 2.5, 3.05, 3.0, 3.05, 3.1: no gain of a tenth after the fifth.
        assert_eq!(reached, [false, false, false, false, false, false, false, true]);
        assert!(!plateau.reached(&mut state, 9.0));
    }
}

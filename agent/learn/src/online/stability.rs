//! Whether learning has converged.
//!
//! Over the last `window` updates a line is fitted to the mean rewards by least squares. The policy counts as converged
//! when the window is full and two conditions hold. The slope's 95 % confidence interval contains 0 (Student's t,
//! window - 2 degrees of freedom: the reward neither rises nor falls beyond its noise), and the mean KL of an update is
//! at most `max_kl` (the policy itself stands still). LiteFlow (section 3.3) asks the user for such a measure.

use std::collections::VecDeque;

/// The condition under which the policy counts as converged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StabilityConfig {
    /// Updates that are looked at: 3 to 32.
    pub window: usize,
    /// Largest mean KL of an update, nats.
    pub max_kl: f32,
}

impl Default for StabilityConfig {
    fn default() -> StabilityConfig {
        StabilityConfig { window: 8, max_kl: 0.01 }
    }
}

/// The measure of convergence and its parts.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Stability {
    /// Whether the policy has converged.
    pub converged: bool,
    /// Updates in the window.
    pub updates: usize,
    /// Mean reward over them.
    pub mean_reward: f64,
    /// Change of the mean reward from one update to the next.
    pub slope: f64,
    /// Half the slope's confidence interval; infinite with fewer than 3 updates.
    pub slope_bound: f64,
    /// Mean KL of an update, nats.
    pub mean_kl: f64,
}

/// 97.5 % quantiles of Student's t distribution with 1, 2 ... 30 degrees of freedom. The agent looks them up, so that what
/// converges does not depend on a library's version; a test holds them against one.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

impl StabilityConfig {
    fn window(&self) -> usize {
        self.window.clamp(3, T_975.len() + 2)
    }
}

/// The last updates' mean rewards and KL.
#[derive(Clone, Default, Debug)]
pub(super) struct Window {
    updates: VecDeque<(f64, f64)>,
}

impl Window {
    pub fn push(&mut self, config: &StabilityConfig, mean_reward: f32, kl: f32) {
        self.updates.push_back((f64::from(mean_reward), f64::from(kl)));
        while self.updates.len() > config.window() {
            self.updates.pop_front();
        }
    }

    pub fn stability(&self, config: &StabilityConfig) -> Stability {
        let n = self.updates.len();
        if n == 0 {
            return Stability { slope_bound: f64::INFINITY, ..Stability::default() };
        }
        let count = n as f64;
        let mean_reward = self.updates.iter().map(|(reward, _)| reward).sum::<f64>() / count;
        let mean_kl = self.updates.iter().map(|(_, kl)| kl).sum::<f64>() / count;
        let time = |at: usize| at as f64 - (count - 1.0) / 2.0;
        let of_time: f64 = (0..n).map(|at| time(at).powi(2)).sum();
        let along: f64 = self.updates.iter().enumerate().map(|(at, (reward, _))| time(at) * reward).sum();
        let slope = if n > 1 { along / of_time } else { 0.0 };
        let residuals: f64 = (self.updates.iter().enumerate())
            .map(|(at, (reward, _))| (reward - mean_reward - slope * time(at)).powi(2))
            .sum();
        let slope_bound = match n.checked_sub(3).and_then(|at| T_975.get(at)) {
            Some(quantile) => quantile * (residuals / (count - 2.0) / of_time).sqrt(),
            None => f64::INFINITY,
        };
        let still = slope.abs() <= slope_bound && mean_kl <= f64::from(config.max_kl);
        let converged = n == config.window() && still;
        Stability { converged, updates: n, mean_reward, slope, slope_bound, mean_kl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use statrs::distribution::{ContinuousCDF, StudentsT};

    fn after(rewards: impl Iterator<Item = f64>, kl: f32) -> Stability {
        let config = StabilityConfig::default();
        let mut window = Window::default();
        rewards.for_each(|reward| window.push(&config, reward as f32, kl));
        window.stability(&config)
    }

    #[test]
    fn the_quantiles_are_those_of_a_library_to_three_digits() {
        for (at, quantile) in T_975.into_iter().enumerate() {
            let exact = StudentsT::new(0.0, 1.0, at as f64 + 1.0).unwrap().inverse_cdf(0.975);
            assert!((quantile - exact).abs() < 6e-4, "{} degrees of freedom: {exact}", at + 1);
        }
    }

    #[test]
    fn a_slope_and_its_bound_are_those_worked_out_by_hand() {
        // 1 2 2 3: slope 0.6, residual sum of squares 0.2, standard error sqrt(0.1 / 5).
        let stability = after([1.0, 2.0, 2.0, 3.0].into_iter(), 0.001);
        assert!((stability.slope - 0.6).abs() < 1e-9);
        assert!((stability.slope_bound - 4.303 * 0.02_f64.sqrt()).abs() < 1e-9);
        assert!(!stability.converged, "the window is not full");
    }

    #[test]
    fn a_learner_converges_on_flat_rewards_and_a_still_policy() {
        let mut rng = Rng::new(1, &[]);
        let mut noise = || rng.normal() * 0.1;
        let flat: Vec<bool> =
            (0..200).map(|_| after((0..8).map(|_| 5.0 + noise()), 0.001).converged).collect();
        let share = flat.iter().filter(|c| **c).count();
        assert!((180..=198).contains(&share), "95 % of flat windows, not {share} of 200");
        assert!(!after((0..20).map(|n| f64::from(n) * 0.1 + noise()), 0.001).converged);
        assert!(!after((0..20).map(|n| f64::from(-n) * 0.1 + noise()), 0.001).converged);
        assert!(!after((0..8).map(|_| 5.0 + noise()), 0.1).converged, "the policy moves");
        assert!(after((0..8).map(|_| 5.0), 0.0).converged, "without any noise");
    }
}

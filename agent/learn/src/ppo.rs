//! Proximal policy optimisation (Schulman et al., 2017): its settings, and what all back ends mean by them.
//!
//! The policy is a normal distribution: its mean is the actor's output, its deviation `e^log_std` one parameter. One
//! [`update`](crate::Learner::update), for each of `epochs`:
//!
//! 1. Put the batch's rows into a random order ([`Rng::shuffle`](crate::Rng::shuffle) of 0..n, continued from the
//!    epoch before) and cut it into minibatches; the last may be shorter.
//! 2. For each minimise `policy + value_coef * value - entropy_coef * entropy`, means over the minibatch, where with
//!    `r = e^(log_prob - old log_prob)`: policy = `-min(r A, clamp(r, 1 - clip, 1 + clip) A)`, value = `(v - return)^2`,
//!    entropy = `log_std + 0.5 ln(2 pi e)`; scale the gradient of all parameters together down to `max_grad_norm`; one step of
//!    Adam (Kingma and Ba, 2015; betas 0.9 and 0.999, `eps` outside the root); clamp `log_std` to `log_std_range`.
//! 3. End after the epoch whose mean `(r - 1) - ln r` exceeds `1.5 target_kl`.
//!
//! Advantages are normalised over the whole batch, before the first epoch.

use serde::{Deserialize, Serialize};

/// Adam's decay of the first moment.
pub const BETA_1: f32 = 0.9;
/// Adam's decay of the second.
pub const BETA_2: f32 = 0.999;
/// An epoch's KL estimate may be this many times the target before the update ends.
pub const KL_TOLERANCE: f32 = 1.5;

/// The course of the learning rate over a training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    Constant,
    /// The learning rate falls to 0 at the end of training.
    Linear,
}

/// The hyperparameters of PPO.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PpoConfig {
    /// Discount of a reward that comes one step later.
    pub gamma: f32,
    /// Lambda of generalised advantage estimation (Schulman et al., 2016).
    pub gae_lambda: f32,
    /// The bound on how far the ratio moves, either way.
    pub clip: f32,
    /// Weight of the entropy bonus.
    pub entropy_coef: f32,
    /// Weight of the value loss.
    pub value_coef: f32,
    /// Adam's step size, at first.
    pub learning_rate: f32,
    pub decay: Decay,
    pub eps: f32,
    /// Largest norm of a gradient.
    pub max_grad_norm: Option<f32>,
    /// Times that a batch is gone through.
    pub epochs: usize,
    /// Rows of a minibatch.
    pub minibatch: usize,
    /// Whether advantages are brought to mean 0 and deviation 1 first.
    pub normalise_advantages: bool,
    /// Ends an update early; see the module.
    pub target_kl: Option<f32>,
    /// Natural logarithm of the deviation that a new policy has.
    pub log_std_init: f32,
    /// Between which it stays.
    pub log_std_range: (f32, f32),
}

impl Default for PpoConfig {
    /// Values that train small networks on small batches quickly.
    fn default() -> PpoConfig {
        PpoConfig {
            gamma: 0.99,
            gae_lambda: 0.95,
            clip: 0.2,
            entropy_coef: 0.001,
            value_coef: 0.5,
            learning_rate: 1e-3,
            decay: Decay::Linear,
            eps: 1e-5,
            max_grad_norm: Some(0.5),
            epochs: 4,
            minibatch: 256,
            normalise_advantages: true,
            target_kl: Some(0.03),
            log_std_init: 0.0,
            log_std_range: (-5.0, 1.0),
        }
    }
}

impl PpoConfig {
    /// Aurora's as published: gamma 0.99, and stable-baselines' PPO1 with its defaults and minibatches of 2048
    /// (PCC-RL, `src/gym/stable_solve.py`), on batches of 8192 rows.
    pub fn aurora() -> PpoConfig {
        PpoConfig {
            entropy_coef: 0.01,
            value_coef: 1.0,
            learning_rate: 1e-3,
            decay: Decay::Constant,
            max_grad_norm: None,
            minibatch: 2048,
            target_kl: None,
            ..PpoConfig::default()
        }
    }

    /// The learning rate when `progress` of the training, 0 to 1, is done.
    pub fn learning_rate_at(&self, progress: f32) -> f32 {
        match self.decay {
            Decay::Constant => self.learning_rate,
            Decay::Linear => self.learning_rate * (1.0 - progress.clamp(0.0, 1.0)),
        }
    }

    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), PpoError> {
        let number = |name, value: f32, lo: f32, hi: f32| {
            if value >= lo && value <= hi { Ok(()) } else { Err(PpoError { name, value, lo, hi }) }
        };
        number("gamma", self.gamma, 0.0, 1.0)?;
        number("gae_lambda", self.gae_lambda, 0.0, 1.0)?;
        number("clip", self.clip, 0.001, 10.0)?;
        number("entropy_coef", self.entropy_coef, 0.0, 10.0)?;
        number("value_coef", self.value_coef, 0.0, 100.0)?;
        number("learning_rate", self.learning_rate, 0.0, 1.0)?;
        number("eps", self.eps, 1e-12, 1.0)?;
        number("max_grad_norm", self.max_grad_norm.unwrap_or(1.0), 1e-6, 1e6)?;
        number("epochs", self.epochs as f32, 1.0, 100.0)?;
        number("minibatch", self.minibatch as f32, 1.0, 1e6)?;
        number("target_kl", self.target_kl.unwrap_or(1.0), 1e-6, 100.0)?;
        let (lo, hi) = self.log_std_range;
        number("log_std_range", lo, -20.0, 2.0)?;
        number("log_std_range", hi, lo, 2.0)?;
        number("log_std_init", self.log_std_init, lo, hi)
    }
}

/// A setting out of its range.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("{name} is {value}, {lo} to {hi} is allowed")]
pub struct PpoError {
    pub name: &'static str,
    pub value: f32,
    pub lo: f32,
    pub hi: f32,
}

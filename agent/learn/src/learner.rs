//! What learns.

use crate::{Architecture, ArchitectureError, Batch, Policy, PolicyError, PpoConfig, PpoError, Rng};

/// Improves a policy by what it did. Back ends agree on what an update means (see [`PpoConfig`]) but for rounding.
pub trait Learner: Send {
    /// What the networks look like.
    fn architecture(&self) -> &Architecture;

    /// The settings of its updates.
    fn config(&self) -> &PpoConfig;

    /// The actor's mean and the critic's value for each of the observations, which stand one after the other.
    fn evaluate(&mut self, observations: &[f32], means: &mut Vec<f32>, values: &mut Vec<f32>);

    /// One update, with this learning rate; `rng` gives the order of the rows.
    ///
    /// # Errors
    /// A batch that is not of this architecture, which changes nothing. Parameters that are no longer finite: the policy is
    /// still the one before, and only [`Learner::load`] or [`Learner::restore`] go on from here.
    fn update(&mut self, batch: &Batch, learning_rate: f32, rng: &mut Rng)
    -> Result<UpdateStats, LearnError>;

    /// The policy as it is now, with the specification and provenance of the one that it began with.
    fn policy(&self) -> &Policy;

    /// Goes on from another policy of the same architecture, with an optimiser that has seen nothing.
    ///
    /// # Errors
    /// It is of another architecture.
    fn load(&mut self, policy: &Policy) -> Result<(), LearnError>;

    /// All that the next updates depend on.
    fn state(&self) -> LearnerState;

    /// Goes on from a [`state`](Learner::state): further updates give the same bits.
    ///
    /// # Errors
    /// It is of another architecture.
    fn restore(&mut self, state: &LearnerState) -> Result<(), LearnError>;
}

/// What came of an update. Means over all rows that were gone through, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct UpdateStats {
    /// The clipped objective, negated.
    pub policy_loss: f32,
    /// Squared error of the values.
    pub value_loss: f32,
    /// Of the policy after the update, nats.
    pub entropy: f32,
    /// Mean `(r - 1) - ln r` of the last epoch, nats.
    pub approx_kl: f32,
    /// Share of rows whose ratio was beyond the clip.
    pub clip_fraction: f32,
    /// Share of the returns' variance that the values before the update explain; at most 1.
    pub explained_variance: f32,
    /// The gradient's norm before it was clipped: mean over the minibatches.
    pub grad_norm: f32,
    /// Epochs that ran.
    pub epochs: usize,
}

/// Adam's memory.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Moments {
    /// First moments. Order: the actor's layers, each weights row by row as in [`ccplane_quantize::Dense`] and then
    /// biases; the critic's; `log_std`.
    pub first: Vec<f32>,
    /// Second moments, likewise.
    pub second: Vec<f32>,
    /// Steps done.
    pub steps: u64,
}

/// A learner's whole state.
#[derive(Clone, PartialEq, Debug)]
pub struct LearnerState {
    /// The policy.
    pub policy: Policy,
    /// The optimiser.
    pub moments: Moments,
}

/// Why something cannot be learned by.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LearnError {
    /// Another network than the learner's.
    #[error("a network {found:?}, the learner's is {expected:?}")]
    Architecture {
        /// What was given.
        found: Box<Architecture>,
        /// The learner's.
        expected: Box<Architecture>,
    },
    /// A batch whose arrays do not fit.
    #[error("{found} {what} in a batch of {rows} rows, {expected} are needed")]
    Batch {
        /// Which array.
        what: &'static str,
        /// Its length.
        found: usize,
        /// Rows of the batch.
        rows: usize,
        /// What its length should be.
        expected: usize,
    },
    /// A batch of nothing.
    #[error("a batch without rows")]
    Empty,
    /// Moments that are not one for each parameter.
    #[error("{found} moments for {expected} parameters")]
    Moments {
        /// How many.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Parameters became infinite or no numbers.
    #[error(
        "the update of a batch of {rows} rows left parameters that are not finite: learning has diverged"
    )]
    Diverged {
        /// Rows of the batch.
        rows: usize,
    },
    /// The library below a back end refused.
    #[error("{name}: {message}")]
    BackEnd {
        /// The library.
        name: &'static str,
        /// Why.
        message: String,
    },
    /// No such network.
    #[error(transparent)]
    NoArchitecture(#[from] ArchitectureError),
    /// No such settings.
    #[error(transparent)]
    Config(#[from] PpoError),
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

//! The trait of learners and the state that they go on from.

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::error::LearnError;
use crate::policy::Policy;
use crate::ppo::PpoConfig;
use crate::rng::Rng;

/// Improves a policy from batches of its actions. All back ends do the update of [`PpoConfig`], and differ only in rounding.
pub trait Learner: Send {
    /// Returns the shape of the networks.
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

/// Statistics of an update. They are means over all rows, unless a field's comment differs.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct UpdateStats {
    /// The clipped objective, negated.
    pub policy_loss: f32,
    /// Squared error of the values.
    pub value_loss: f32,
    /// Entropy of the policy after the update, nats.
    pub entropy: f32,
    /// Mean `(r - 1) - ln r` of the last epoch, nats.
    pub approx_kl: f32,
    /// Share of rows whose ratio was beyond the clip.
    pub clip_fraction: f32,
    /// Share of the returns' variance that the values before the update explain; at most 1.
    pub explained_variance: f32,
    /// The gradient's norm before it was clipped: mean over the minibatches.
    pub grad_norm: f32,
    pub epochs: usize,
}

/// The moments that Adam keeps of the gradient.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Moments {
    /// First moments. Order: the actor's layers, each weights row by row as in [`ccplane_quantize::Dense`] and then
    /// biases; the critic's; `log_std`.
    pub first: Vec<f32>,
    /// Second moments of all parameters, in the same order.
    pub second: Vec<f32>,
    pub steps: u64,
}

/// A learner's whole state.
#[derive(Clone, PartialEq, Debug)]
pub struct LearnerState {
    pub policy: Policy,
    pub moments: Moments,
}

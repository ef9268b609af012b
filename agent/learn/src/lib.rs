//! Learning for datapaths: environments, learners, policies. All of it deterministic from a seed.
//!
//! An [`Environment`] asks an [`Actor`] for each decision, as a datapath asks its slot; so one environment may hold
//! several flows that decide each in its own time. A [`Recorder`] is an actor that keeps what it saw as a [`Batch`],
//! by which a [`Learner`] improves its policy: [`Native`] here, libtorch with the feature `torch`.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod architecture;
mod back_end;
mod batch;
mod classify;
pub mod curves;
mod device;
mod environment;
mod error;
mod learner;
pub mod math;
mod native;
pub mod online;
mod optimiser;
mod policy;
mod ppo;
mod preference;
mod rng;
mod rollout;
#[cfg(test)]
mod testing;
#[cfg(feature = "torch")]
mod torch;
mod train;

pub use architecture::{
    Architecture, ArchitectureError, MAX_HIDDEN, MAX_INPUTS, MAX_NEURONS, PreferenceBlock,
};
pub use back_end::BackEnd;
pub use batch::{Batch, Trajectory};
pub use classify::{ClassifierConfig, Labelled, classify};
pub use device::{Device, DeviceError, MAX_THREADS, TorchOptions};
pub use environment::{Actor, End, Environment, PreferenceError};
pub use error::LearnError;
pub use learner::{Learner, LearnerState, Moments, UpdateStats};
pub use native::{ActorCritic, Examples, ImitateConfig, Native, Targets, imitate, regress};
pub use optimiser::{Optimiser, Steps};
pub use policy::{Policy, PolicyError, Provenance};
pub use ppo::{BETA_1, BETA_2, Decay, KL_TOLERANCE, PpoConfig, PpoError};
pub use preference::{Goals, LANDMARKS, PIVOTS, Preference, Replay, TRANSFER_UPDATES, landmarks};
pub use rng::Rng;
pub use rollout::Recorder;
#[cfg(feature = "torch")]
pub use torch::Torch;
pub use train::{
    Checkpoint, Evaluation, Observer, Plateau, Progress, Stop, TrainConfig, TrainError, TrainReport, Update,
    evaluate, train,
};

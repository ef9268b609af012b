//! Errors of learners.

use crate::architecture::{Architecture, ArchitectureError};
use crate::policy::PolicyError;
use crate::ppo::PpoError;

/// The reason why something cannot be learned by.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LearnError {
    /// Another network than the learner's.
    #[error("a network {found:?}, the learner's is {expected:?}")]
    Architecture { found: Box<Architecture>, expected: Box<Architecture> },
    /// A batch whose arrays do not fit.
    #[error("{found} {what} in a batch of {rows} rows, {expected} are needed")]
    Batch {
        what: &'static str,
        found: usize,
        /// Rows of the batch.
        rows: usize,
        expected: usize,
    },
    /// A label beyond the classes.
    #[error("class {found} among examples of {classes} classes, which count from 0")]
    Class { found: u8, classes: usize },
    /// A batch of nothing.
    #[error("a batch without rows")]
    Empty,
    /// Moments that are not one for each parameter.
    #[error("{found} moments for {expected} parameters")]
    Moments { found: usize, expected: usize },
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
    BackEnd { name: &'static str, message: String },
    #[error(transparent)]
    NoArchitecture(#[from] ArchitectureError),
    #[error(transparent)]
    Config(#[from] PpoError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

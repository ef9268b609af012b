//! Metadata of a snapshot: where it comes from, and its error against the float network.

use crate::Hash;
use serde::{Deserialize, Serialize};

/// Longest command line or creator's name, bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// The origin of a snapshot.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// The algorithm that learned, such as `aurora`.
    pub algorithm: String,
    /// The seed of its randomness.
    pub seed: u64,
    /// Decisions that it had learned from.
    pub steps: u64,
    /// The command line or the rule that made it.
    pub command: String,
    /// The snapshot that the training started from.
    pub parent: Option<Hash>,
    /// The program that made it, with its version.
    pub created_by: String,
}

/// The error of the integer network against the float network that it was made from.
///
/// Errors are in shares of the action's range, `2 * bound`; both actions are bounded before they are compared.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Fidelity {
    /// Mean error on states that the policy visits.
    pub visited_mean_error: f64,
    /// Largest error on states that the policy visits.
    pub visited_max_error: f64,
    /// Number of visited states.
    pub visited_samples: u32,
    /// Mean error off the policy's path: uniform states, corners, random walks.
    pub off_mean_error: f64,
    /// Largest error off the policy's path.
    pub off_max_error: f64,
    /// Number of states off the path.
    pub off_samples: u32,
    /// The smallest action of the integer network on any of the states, Q16.
    pub min_action_q16: i64,
    /// The largest action of the integer network on any of the states, Q16.
    pub max_action_q16: i64,
}

impl Fidelity {
    /// Whether actions of both signs occurred: a policy that can only speed up, or only slow down, is broken.
    pub fn both_signs(&self) -> bool {
        self.min_action_q16 < 0 && self.max_action_q16 > 0
    }
}

/// The ranges that inputs and sums reach on the states that the policy visits.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Smallest and largest value of each input, before clipping.
    pub inputs: Vec<(i32, i32)>,
    /// Largest magnitude of each layer's sums, in the integer network's units.
    pub sums: Vec<u32>,
}

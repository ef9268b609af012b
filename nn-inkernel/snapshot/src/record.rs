//! What a snapshot knows about itself: where it comes from and how true it is.

use crate::Hash;
use serde::{Deserialize, Serialize};

/// Bytes of a command line or of who made a snapshot, at most.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Where a snapshot comes from.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Provenance {
    /// The algorithm that learned, such as `aurora`.
    pub algorithm: String,
    /// What its randomness came from.
    pub seed: u64,
    /// Decisions that it had learned from.
    pub steps: u64,
    /// The command line or the rule that made it.
    pub command: String,
    /// The snapshot that it was learned on from.
    pub parent: Option<Hash>,
    /// The program that made it, with its version.
    pub created_by: String,
}

/// How the integer network compares with the float network that it was made from. Errors are in shares of the
/// action's range, `2 * bound`; both actions are bounded before they are compared.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Fidelity {
    /// Mean error on states that the policy visits.
    pub visited_mean_error: f64,
    /// The largest there.
    pub visited_max_error: f64,
    /// States that were visited.
    pub visited_samples: u32,
    /// Mean error off the policy's path: uniform states, corners, random walks.
    pub off_mean_error: f64,
    /// The largest there.
    pub off_max_error: f64,
    /// States off the path.
    pub off_samples: u32,
    /// The smallest action that the integer network took on any of them, Q16.
    pub min_action_q16: i64,
    /// The largest, Q16.
    pub max_action_q16: i64,
}

impl Fidelity {
    /// Whether actions of both signs were seen: a policy that can only speed up, or only slow down, is broken.
    pub fn both_signs(&self) -> bool {
        self.min_action_q16 < 0 && self.max_action_q16 > 0
    }
}

/// What the states that the policy visits reach.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Smallest and largest value of each input, before it is clipped.
    pub inputs: Vec<(i32, i32)>,
    /// Largest sum of each layer either way, in the integer network's units.
    pub sums: Vec<u32>,
}

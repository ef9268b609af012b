//! Policies as programs: a network, distilled into a small tree of linear models in the plain fold language, for datapaths
//! that run programs and no networks (placement `fold`).
//!
//! [`distill`] lets the teacher label what the student meets (DAgger: Ross, Gordon and Bagnell, AISTATS 2011): a first round
//! under the teacher, then some under the tree that came of the rounds before. [`Inputs`] says what a tree sees: where a
//! network has ten intervals, a program keeps the last ones and moving averages. [`Student`] is the tree in integers,
//! [`emit`] writes it into the algorithm's own program.
//!
//! Both decide the same, bit for bit, while the student can tell which intervals have ended since it was asked last, as
//! the program does. It cannot where these were more than a history holds, or equal ones in a row: then its moving averages
//! take the fewest that there may have been, and the program's take all.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collect;
mod emit;
mod fit;
mod inputs;
mod report;
mod student;
#[cfg(test)]
mod tests;

pub use collect::Teacher;
pub use emit::emit;
pub use inputs::{Input, Inputs, Layout};
pub use report::{Distilled, Errors, Report, Stock, distill};
pub use student::{Node, Student};

use ccplane_env::EnvError;

/// Most leaves of a tree: what fits a program's clauses and instructions.
pub const MAX_LEAVES: usize = 24;
/// Most inputs of a tree: what fits a program's registers.
pub const MAX_TREE_INPUTS: usize = 10;

/// The settings of a distillation.
#[derive(Clone, PartialEq, Debug)]
pub struct DistillConfig {
    /// The seed of the episodes and of the links in them.
    pub seed: u64,
    /// Leaves, 1 to [`MAX_LEAVES`].
    pub leaves: usize,
    /// Inputs, 1 to [`MAX_TREE_INPUTS`]: those that help most.
    pub inputs: usize,
    /// Rounds: the first under the teacher, the others under the student. These three's product is at most 2 000 000.
    pub rounds: usize,
    /// Episodes of a round.
    pub episodes: usize,
    /// Decisions of each flow in an episode.
    pub steps: usize,
}

impl Default for DistillConfig {
    fn default() -> Self {
        DistillConfig { seed: 1, leaves: 12, inputs: 8, rounds: 4, episodes: 60, steps: 400 }
    }
}

/// The reason why nothing was distilled.
#[derive(Debug, thiserror::Error)]
pub enum DistillError {
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// A number outside its limits.
    #[error("{field} is {found}, 1 to {limit} are allowed")]
    Config { field: &'static str, found: usize, limit: usize },
    /// A program that cannot be derived from the algorithm's own.
    #[error("algorithm {algorithm}: {why}")]
    Program { algorithm: &'static str, why: &'static str },
    /// The program that came of it does not compile.
    #[error("the distilled program does not compile: {first}")]
    Compile {
        /// The compiler's first diagnostic.
        first: String,
    },
    /// No decision was asked for.
    #[error("no flow asked its policy in {episodes} episodes")]
    Silent { episodes: usize },
}

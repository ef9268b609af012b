//! Other placements of learned policies: the same program and the same snapshot, but who asks the network is another.
//!
//! Programs are derived from the algorithm's own, so they measure the same intervals in the same way.

mod agent;
mod program;

pub use agent::InAgent;
pub use program::Asking;

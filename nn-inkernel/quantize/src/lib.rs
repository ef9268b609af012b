//! From a float network to a snapshot, with a report of what was lost.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod mlp;

pub use ccplane_snapshot as snapshot;

pub use mlp::{Activation, Dense, Mlp, MlpError, Scratch};

//! Learning for datapaths: environments, learners, policies. All of it deterministic from a seed.
//!
//! An [`Environment`] asks an [`Actor`] for each decision, as a datapath asks its slot; so one environment may hold
//! several flows that decide each in its own time. A learner collects what its actor saw and improves its policy.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod environment;

pub use environment::{Actor, End, Environment};

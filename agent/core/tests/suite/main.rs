//! The core with datapaths and algorithms that are played, and with simulated flows.
#![allow(clippy::unwrap_used)]

mod choosing;
#[path = "../common/mod.rs"]
mod common;
mod determinism;
mod late;
mod learning;
mod push_rules;
mod simulated;
mod state_machine;
mod trials;

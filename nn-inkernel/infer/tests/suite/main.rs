//! Inference beside the oracle, slots, and whatever bytes an image has.
#![allow(clippy::unwrap_used)]

mod exact;
mod fuzz;
mod prepared;
mod slot;
#[path = "../support/mod.rs"]
mod support;

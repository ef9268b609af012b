//! Snapshots: the format, and whatever bytes arrive.
#![allow(clippy::unwrap_used)]

mod format;
mod fuzz;
#[path = "../support/mod.rs"]
mod support;

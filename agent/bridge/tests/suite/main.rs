//! The bridge: messages of a portus agent, algorithms that it hosts, and whatever bytes arrive.
#![allow(clippy::unwrap_used)]

mod bridge;
mod common;
mod fuzz;
mod hosted;

//! Bandits beside the formulas of their papers, and their bounds.
#![allow(clippy::unwrap_used)]

mod integer;
mod refusals;
mod regret;
mod textbook;
mod traces;

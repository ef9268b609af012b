//! Plans as they run simulated, the flows that they send in the kernel, and whatever text they are given.
#![allow(clippy::unwrap_used)]

mod frozen;
mod fuzz;
mod limits;
mod simulated;
mod traffic;

//! Compiled programs and networks, run by the kernel, beside every other executor.
#![allow(clippy::unwrap_used)]

mod conform;
#[path = "../exact/mod.rs"]
mod exact;
mod executors;

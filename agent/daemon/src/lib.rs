//! The `ccplane` binary as a library.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod clock;
pub mod config;
pub mod peers;
pub mod rundir;

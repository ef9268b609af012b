//! A virtual-time packet network: deterministic from a seed, integer throughout.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod trace;

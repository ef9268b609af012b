//! The real libccp and portus as oracles for ccplane-program and ccplane-wire.
//!
//! Whatever links this crate links libccp, which exports a symbol `log` that replaces the C library's:
//! `f64::ln` is broken in such a process. So this crate is for tests and benchmarks in processes of their own.

pub mod comparison;
pub mod executor;
pub mod generate;
pub mod libccp;
pub mod model;
pub mod path;
pub mod portus;
pub mod rng;

/// Returns the number of random cases that a test runs: the environment variable `CCPLANE_ORACLE_CASES`, else
/// `default`.
pub fn cases(default: u64) -> u64 {
    std::env::var("CCPLANE_ORACLE_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

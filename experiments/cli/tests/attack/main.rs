//! Attacks on the agent, on `ccplane quic` and on what snapshots come by.
#![allow(clippy::unwrap_used)]

mod agent;
#[path = "../common/mod.rs"]
mod common;
mod quic;
mod snapshots;

//! The datapath on live TCP flows: the contract's behaviour, agents that come, hang and die, and its names.
#![allow(clippy::unwrap_used)]

mod behaviour;
#[path = "../common/mod.rs"]
mod common;
mod flows;
mod killed;
mod names;
mod programs;
mod version;
mod wakes;

//! The commands as processes, where no kernel flow is steered.
#![allow(clippy::unwrap_used)]

mod agent;
mod book;
#[path = "../common/mod.rs"]
mod common;
mod evaluate;
mod experiments;
mod host;
mod host_tuning;
mod league;
mod metrics;
mod monitor;
mod new;
mod packaging;
mod predict;
mod privileges;
mod prog;
mod snapshot;

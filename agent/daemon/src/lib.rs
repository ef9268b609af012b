//! The agent: its configuration, loops, learners, control socket and metrics.
//!
//! [`run`] is the whole of `ccplaned`. The `ccplane` command uses the rest: the same agent as a subcommand, clients of the
//! control socket, and loops beside datapaths in its own process.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod args;
pub mod config;
pub mod confine;
pub mod control;
#[cfg(test)]
mod earlier;
pub mod failure;
pub mod learning;
mod memory;
mod metrics;
mod mode;
mod notify;
pub mod output;
pub mod owned;
pub mod place;
pub mod privileges;
pub mod qlog;
pub mod rundir;
pub mod sequences;

use args::AgentArgs;
use ccplane_alg::Algorithm;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs an agent of these algorithms to its end and returns the process's exit code: 0 done, 1 failed at run time, 2 the
/// configuration is wrong.
pub fn run(args: &AgentArgs, algorithms: &[Arc<dyn Algorithm>]) -> ExitCode {
    failure::exit("ccplaned", agent::agent(args, algorithms).map(|()| ExitCode::SUCCESS))
}

//! `ccplaned`: the agent alone, for machines that only steer flows.

use ccplane_agent::args::Cli;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    ccplane_agent::run(&Cli::parse().agent, &ccplane_algs::all())
}

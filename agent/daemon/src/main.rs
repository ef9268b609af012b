//! `ccplaned`: the agent alone, for machines that only steer flows.

use ccplane_agent::args::AgentArgs;
use clap::Parser;
use std::process::ExitCode;

/// The agent of ccplane, as `ccplane agent` runs it.
#[derive(Parser, Debug)]
#[command(name = "ccplaned", version, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    agent: AgentArgs,
}

fn main() -> ExitCode {
    ccplane_agent::run(&Cli::parse().agent, &ccplane_algs::all())
}

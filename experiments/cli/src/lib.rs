//! The `ccplane` command as a library: [`run`] is its whole `main`.
//!
//! A program of your own that calls [`run`] with your algorithms is an agent that has them beside the built-in ones,
//! with every subcommand:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mine: Vec<std::sync::Arc<dyn ccplane_alg::Algorithm>> = Vec::new();
//!     ccplane::run(mine)
//! }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod commands;

use ccplane_agent::agent;
use ccplane_agent::failure::{self, Failure};
use ccplane_alg::Algorithm;
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use commands::Invoked;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Parses the command line, runs the command, and returns the process's exit code.
///
/// The codes are 0 for done, 1 for a failure at run time, and 2 for wrong input; `snapshot verify` also has 3.
/// `extra_algorithms` are offered beside the built-in ones.
pub fn run(extra_algorithms: Vec<Arc<dyn Algorithm>>) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    run_cli(&Cli::parse(), &arguments, extra_algorithms)
}

/// Runs a command as [`run`] does, with these arguments instead of the process's own; the first is the program's name.
///
/// Help and errors in the arguments are printed, too.
pub fn run_from(
    arguments: impl IntoIterator<Item = OsString>,
    extra_algorithms: Vec<Arc<dyn Algorithm>>,
) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => run_cli(&cli, &arguments, extra_algorithms),
        Err(error) => {
            // As clap does where it ends the process itself.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
    }
}

fn run_cli(cli: &Cli, arguments: &[OsString], extra_algorithms: Vec<Arc<dyn Algorithm>>) -> ExitCode {
    let mut algorithms = ccplane_algs::all();
    algorithms.extend(extra_algorithms);
    failure::exit("ccplane", dispatch(&cli.command, &Invoked::new(arguments), &algorithms))
}

/// The command line's definition: what manuals and completions are made from.
pub fn command_line() -> clap::Command {
    Cli::command()
}

fn dispatch(
    command: &Command,
    invoked: &Invoked,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<ExitCode, Failure> {
    let done = |result: Result<(), Failure>| result.map(|()| ExitCode::SUCCESS);
    match command {
        Command::Agent(args) => done(agent::agent(args, algorithms)),
        Command::Flows(args) => done(commands::flows(args)),
        Command::Top(args) => done(commands::top(args)),
        Command::Web(args) => done(commands::web(args)),
        Command::Qlog(args) => done(commands::qlog(args)),
        Command::Status(args) => done(commands::status(args)),
        Command::Programs(args) => done(commands::programs(args)),
        Command::Reload(args) => done(commands::reload(args)),
        Command::Adopt(args) => done(commands::adopt(args)),
        Command::Snapshot(args) => commands::snapshot(&args.command),
        Command::Distill(args) => done(commands::distill(args, algorithms)),
        Command::Stop(args) => done(commands::stop(args)),
        Command::Prog(args) => done(commands::prog(args, algorithms)),
        Command::New(args) => done(commands::new(args, algorithms)),
        Command::Doctor(args) => commands::doctor(args),
        Command::Host(args) => commands::host(&args.command),
        Command::MmDelay(args) => commands::mm_delay(args),
        Command::MmLink(args) => commands::mm_link(args),
        Command::MmLoss(args) => commands::mm_loss(args),
        Command::MmOnoff(args) => commands::mm_onoff(args),
        Command::MmImpair(args) => commands::mm_impair(args),
        Command::Demo(args) => commands::demo(args, algorithms),
        Command::Trace(args) => done(commands::trace(args)),
        Command::Train(args) => done(commands::train(args)),
        Command::Sim(args) => done(commands::sim(args, algorithms)),
        Command::Quic(args) => done(commands::quic(&args.command, &agent::with_portus(algorithms))),
        Command::Record(args) => done(commands::record(args)),
        Command::Predict(args) => done(commands::predict(&args.command)),
        Command::Run(args) => commands::run(args, algorithms),
        Command::League(args) => commands::league(args, invoked, algorithms),
        Command::Evaluate(args) => commands::evaluate(args, invoked, algorithms),
        Command::Bench(args) => commands::bench(args),
        Command::Manuals(args) => done(commands::manuals(args)),
    }
}

//! `ccplane-soak`: see the library's page.

use ccplane_soak::{Config, GrowthVerdict, judge, run, table};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A real agent and QUIC server for hours, under faults from a seed: fails where something grows, or is left behind.
#[derive(Parser, Debug)]
#[command(name = "ccplane-soak")]
struct Args {
    /// The command under test.
    #[arg(long, value_name = "FILE", default_value = "target/release/ccplane")]
    ccplane: PathBuf,

    /// The snapshot that is pushed by hand.
    #[arg(long, value_name = "FILE", default_value = "algs/policies/aurora.snapshot")]
    snapshot: PathBuf,

    /// The length of the soak, hours.
    #[arg(long, value_name = "HOURS", default_value_t = 1.0)]
    hours: f64,

    /// Seeds the times of all faults.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// The file that samples go to, as JSON Lines.
    #[arg(long, value_name = "FILE", default_value = "target/soak.jsonl")]
    samples: PathBuf,
}

fn main() -> ExitCode {
    let Args { ccplane, snapshot, hours, seed, samples } = Args::parse();
    let Ok(duration) = Duration::try_from_secs_f64(hours * 3600.0) else {
        eprintln!("error: --hours {hours}: not a time");
        return ExitCode::from(2);
    };
    let config = Config { ccplane, snapshot, duration, seed, samples };
    let outcome = match run(&config) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: {error} (seed {seed})");
            return ExitCode::FAILURE;
        }
    };
    let judged = judge(&outcome.samples, outcome.took_s);
    println!("{:.0} s, seed {seed}: {:?}\n{}", outcome.took_s, outcome.counts, table(&judged));
    outcome.left.iter().for_each(|left| println!("LEFT: {left}"));
    let grows = judged.iter().any(|j| matches!(j.verdict, GrowthVerdict::Grows(_)));
    if grows || !outcome.left.is_empty() || outcome.interrupted {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

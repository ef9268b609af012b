//! `ccplane train --algorithm path`: its network learns from flows of simulated fabrics that have ended.

use super::output::print;
use super::trained::{Begun, finish, prepare};
use crate::cli::TrainArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{PathingConfig, Uplinks, learn_paths};
use serde::Serialize;

#[derive(Serialize)]
struct Counts {
    decisions: usize,
}

/// The completion times of flows of the validation split to those under ECMP.
#[derive(Serialize)]
struct Line {
    uplinks: &'static str,
    completion_to_ecmp: f64,
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    prepare(args, "path", "flows of fabrics that have ended", false)?;
    let begun = Begun::now("path", args.seed);
    let config = PathingConfig { seed: args.seed, ..PathingConfig::default() };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = args.threads.map_or(all, usize::from);
    let learned =
        learn_paths(&config, &begun.command, cores, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    let line = |(uplinks, completion_to_ecmp): &(Uplinks, f64)| Line {
        uplinks: uplinks.name(),
        completion_to_ecmp: *completion_to_ecmp,
    };
    let counts = Counts { decisions: learned.examples };
    let held_out: Vec<Line> = learned.to_ecmp.iter().map(line).collect();
    let summary = begun.summary(counts, &learned.snapshot, held_out);
    if finish(args, "path", &learned.policy, &learned.snapshot, &summary)? {
        return Ok(());
    }
    let mut said = format!("{} decisions in {:.0} s\n", summary.counts.decisions, summary.seconds);
    for line in &summary.held_out {
        let Line { uplinks, completion_to_ecmp } = line;
        said.push_str(&format!("{uplinks}: {completion_to_ecmp:.3} of ecmp's completion times\n"));
    }
    print(&said)
}

//! `ccplane train --algorithm path`: its network learns from flows of simulated fabrics that have ended.

use super::print;
use super::trained::{finish, prepare};
use crate::cli::TrainArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{PathingConfig, Uplinks, learn_paths};
use ccplane_snapshot::Fidelity;
use serde::Serialize;

/// The content of `path.json`, which `--json` prints.
#[derive(Serialize)]
struct Summary {
    algorithm: &'static str,
    command: String,
    seed: u64,
    decisions: usize,
    seconds: f64,
    snapshot: String,
    fidelity: Fidelity,
    /// Completion times of flows of the validation split to those under ECMP.
    held_out: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    uplinks: &'static str,
    completion_to_ecmp: f64,
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    prepare(args, "path", "flows of fabrics that have ended", false)?;
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm path --seed {}", args.seed);
    let config = PathingConfig { seed: args.seed, ..PathingConfig::default() };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = args.threads.map_or(all, usize::from);
    let learned =
        learn_paths(&config, &command, cores, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    let line = |(uplinks, completion_to_ecmp): &(Uplinks, f64)| Line {
        uplinks: uplinks.name(),
        completion_to_ecmp: *completion_to_ecmp,
    };
    let summary = Summary {
        algorithm: "path",
        command,
        seed: args.seed,
        decisions: learned.examples,
        seconds: began.elapsed().as_secs_f64(),
        snapshot: learned.snapshot.hash().to_string(),
        fidelity: *learned.snapshot.fidelity(),
        held_out: learned.to_ecmp.iter().map(line).collect(),
    };
    if finish(args, "path", &learned.policy, &learned.snapshot, &summary)? {
        return Ok(());
    }
    let mut said = format!("{} decisions in {:.0} s\n", summary.decisions, summary.seconds);
    for line in &summary.held_out {
        let Line { uplinks, completion_to_ecmp } = line;
        said.push_str(&format!("{uplinks}: {completion_to_ecmp:.3} of ecmp's completion times\n"));
    }
    print(&said)
}

//! `ccplane train --algorithm path`: its network learns from flows of simulated fabrics that have ended.

use super::{print, print_json};
use crate::cli::{Backend, Links, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_fabric::{PathingConfig, Uplinks, learn_paths};
use ccplane_snapshot::Fidelity;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Why path's training does not begin, or end.
#[derive(Debug, thiserror::Error)]
enum PathingError {
    #[error("{0}: path's network learns from flows of fabrics that have ended and has no such choice")]
    NoChoice(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

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

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = |source| Failure::runtime(PathingError::File { path: path.to_owned(), source });
    std::fs::write(path, content).map_err(failed)
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    let refused = [
        (args.config != Links::Real, "--config"),
        (args.steps.is_some(), "--steps"),
        (args.backend != Backend::Native, "--backend"),
        (args.adapt.is_some(), "--adapt"),
        (args.resume, "--resume"),
    ];
    if let Some((_, option)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(Failure::input(PathingError::NoChoice(option)));
    }
    let failed = |source| Failure::runtime(PathingError::File { path: args.out.clone(), source });
    std::fs::create_dir_all(&args.out).map_err(failed)?;
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm path --seed {}", args.seed);
    let config = PathingConfig { seed: args.seed, ..PathingConfig::default() };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = args.threads.map_or(all, usize::from);
    let learned =
        learn_paths(&config, &command, cores, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    learned.policy.write(&args.out.join("path.safetensors")).map_err(Failure::runtime)?;
    write(&args.out.join("path.snapshot"), &learned.snapshot.to_bytes())?;
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
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::runtime)?;
    write(&args.out.join("path.json"), format!("{text}\n").as_bytes())?;
    if args.json {
        return print_json(&summary);
    }
    let mut said = format!("{} decisions in {:.0} s\n", summary.decisions, summary.seconds);
    for line in &summary.held_out {
        let Line { uplinks, completion_to_ecmp } = line;
        said.push_str(&format!("{uplinks}: {completion_to_ecmp:.3} of ecmp's completion times\n"));
    }
    print(&said)
}

//! `ccplane train --algorithm size`: its network learns from flows of simulated fabrics that have ended.

use super::{print, print_json, table};
use crate::cli::{Backend, Links, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_fabric::{Deviation, LearningConfig, learn};
use ccplane_snapshot::Fidelity;
use serde::Serialize;

/// Why size's training does not begin, or end.
#[derive(Debug, thiserror::Error)]
enum SizingError {
    #[error("{0}: size's network learns from flows of fabrics that have ended and has no such choice")]
    NoChoice(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
}

/// The content of `size.json`, which `--json` prints.
#[derive(Serialize)]
struct Summary {
    algorithm: &'static str,
    command: String,
    seed: u64,
    flows: usize,
    decisions: u64,
    seconds: f64,
    snapshot: String,
    fidelity: Fidelity,
    /// Errors of predictions at the start of flows of the validation split.
    held_out: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    workload: String,
    predictable_percent: u32,
    deviation_octaves: f64,
    deviation_of_mean_octaves: f64,
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
        return Err(Failure::input(SizingError::NoChoice(option)));
    }
    let file = |path: &std::path::Path, source| {
        Failure::runtime(SizingError::File { path: path.to_owned(), source })
    };
    std::fs::create_dir_all(&args.out).map_err(|e| file(&args.out, e))?;
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm size --seed {}", args.seed);
    let config = LearningConfig { seed: args.seed, ..LearningConfig::default() };
    let learned = learn(&config, &command, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    learned.policy.write(&args.out.join("size.safetensors")).map_err(Failure::runtime)?;
    let write = |name: &str, bytes: &[u8]| {
        let path = args.out.join(name);
        std::fs::write(&path, bytes).map_err(|e| file(&path, e))
    };
    write("size.snapshot", &learned.snapshot.to_bytes())?;
    let line = |deviation: &Deviation| Line {
        workload: deviation.workload.clone(),
        predictable_percent: deviation.predictable_ppm / 10_000,
        deviation_octaves: deviation.octaves,
        deviation_of_mean_octaves: deviation.of_mean_octaves,
    };
    let summary = Summary {
        algorithm: "size",
        command,
        seed: args.seed,
        flows: learned.flows,
        decisions: learned.policy.provenance.steps,
        seconds: began.elapsed().as_secs_f64(),
        snapshot: learned.snapshot.hash().to_string(),
        fidelity: *learned.snapshot.fidelity(),
        held_out: learned.deviations.iter().map(line).collect(),
    };
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::runtime)?;
    write("size.json", format!("{text}\n").as_bytes())?;
    if args.json { print_json(&summary) } else { print(&text_of(&summary)) }
}

fn text_of(summary: &Summary) -> String {
    let header =
        ["flows that were not learned from", "predictable", "deviation, octaves", "without learning"];
    let row = |line: &Line| {
        vec![
            line.workload.clone(),
            format!("{} %", line.predictable_percent),
            format!("{:.2}", line.deviation_octaves),
            format!("{:.2}", line.deviation_of_mean_octaves),
        ]
    };
    let rows: Vec<Vec<String>> = summary.held_out.iter().map(row).collect();
    format!(
        "{} flows, {} decisions in {:.0} s\n{}\n",
        summary.flows,
        summary.decisions,
        summary.seconds,
        table(&header, &rows)
    )
}

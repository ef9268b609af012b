//! `ccplane train --algorithm size`: its network learns from flows of simulated fabrics that have ended.

use super::output::{print, table};
use super::trained::{Begun, Summary, finish, prepare};
use crate::cli::TrainArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{Deviation, LearningConfig, learn};
use serde::Serialize;

#[derive(Serialize)]
struct Counts {
    flows: usize,
    decisions: u64,
}

/// The errors of predictions at the start of flows of the validation split.
#[derive(Serialize)]
struct Line {
    workload: String,
    predictable_percent: u32,
    deviation_octaves: f64,
    deviation_of_mean_octaves: f64,
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    prepare(args, "size", "flows of fabrics that have ended", false)?;
    let begun = Begun::now("size", args.seed);
    let config = LearningConfig { seed: args.seed, ..LearningConfig::default() };
    let learned = learn(&config, &begun.command, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    let line = |deviation: &Deviation| Line {
        workload: deviation.workload.clone(),
        predictable_percent: deviation.predictable_ppm / 10_000,
        deviation_octaves: deviation.octaves,
        deviation_of_mean_octaves: deviation.of_mean_octaves,
    };
    let counts = Counts { flows: learned.flows, decisions: learned.policy.provenance.steps };
    let summary = begun.summary(counts, &learned.snapshot, learned.deviations.iter().map(line).collect());
    if finish(args, "size", &learned.policy, &learned.snapshot, &summary)? {
        return Ok(());
    }
    print(&text_of(&summary))
}

fn text_of(summary: &Summary<Counts, Line>) -> String {
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
        summary.counts.flows,
        summary.counts.decisions,
        summary.seconds,
        table(&header, &rows)
    )
}

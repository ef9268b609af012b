//! `ccplane train --algorithm neural`: its network learns on the league's training links, not in an environment.

use super::{print, print_json, table};
use crate::cli::{Backend, Links, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_league::{JudgingConfig, Keeping, Traces, judging};
use ccplane_learn::Provenance;
use ccplane_snapshot::Fidelity;
use serde::Serialize;

/// Why neural's training does not begin, or end.
#[derive(Debug, thiserror::Error)]
enum JudgingError {
    #[error(
        "{0}: neural's network learns from examples on the league's training links and has no such choice"
    )]
    NoChoice(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
}

/// The content of `neural.json`, which `--json` prints.
#[derive(Serialize)]
struct Summary {
    algorithm: &'static str,
    command: String,
    seed: u64,
    examples: u64,
    seconds: f64,
    snapshot: String,
    fidelity: Fidelity,
    /// Scores on the validation links.
    held_out: Vec<Line>,
}

/// How well it judges on links of one family.
#[derive(Serialize)]
struct Line {
    family: &'static str,
    rivals: bool,
    intervals: usize,
    right: f64,
    sure_and_wrong: f64,
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    let refused = [
        (args.config != Links::Real, "--config"),
        (args.steps.is_some(), "--steps"),
        (args.backend != Backend::Native, "--backend"),
        (args.adapt.is_some(), "--adapt"),
    ];
    if let Some((_, option)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(Failure::input(JudgingError::NoChoice(option)));
    }
    let file = |path: &std::path::Path, source| {
        Failure::runtime(JudgingError::File { path: path.to_owned(), source })
    };
    std::fs::create_dir_all(&args.out).map_err(|e| file(&args.out, e))?;
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm neural --seed {}", args.seed);
    let provenance = Provenance { command: command.clone(), ..Provenance::default() };
    let cores = match args.threads {
        Some(threads) => threads.into(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let config = JudgingConfig { seed: args.seed, ..JudgingConfig::default() };
    let told = |round: u32, examples: usize| {
        eprintln!("round {} of {}: {examples} examples", round + 1, config.rounds);
    };
    let keeping = Keeping { file: args.out.join("neural.checkpoint"), resume: args.resume };
    let judged = judging(&config, &provenance, &Traces::default(), cores, Some(&keeping), &told)
        .map_err(Failure::runtime)?;
    judged.policy.write(&args.out.join("neural.safetensors")).map_err(Failure::runtime)?;
    let write = |name: &str, bytes: &[u8]| {
        let path = args.out.join(name);
        std::fs::write(&path, bytes).map_err(|e| file(&path, e))
    };
    write("neural.snapshot", &judged.snapshot.to_bytes())?;
    let share = |n: usize, of: usize| n as f64 / of.max(1) as f64;
    let line = |((family, rivals), count): (&(&'static str, bool), &ccplane_league::Count)| Line {
        family,
        rivals: *rivals,
        intervals: count.intervals,
        right: share(count.right, count.intervals),
        sure_and_wrong: share(count.sure_and_wrong, count.intervals),
    };
    let summary = Summary {
        algorithm: "neural",
        command,
        seed: args.seed,
        examples: judged.policy.provenance.steps,
        seconds: began.elapsed().as_secs_f64(),
        snapshot: judged.snapshot.hash().to_string(),
        fidelity: *judged.snapshot.fidelity(),
        held_out: judged.counts.iter().map(line).collect(),
    };
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::runtime)?;
    write("neural.json", format!("{text}\n").as_bytes())?;
    std::fs::remove_file(&keeping.file).map_err(|e| file(&keeping.file, e))?;
    if args.json { print_json(&summary) } else { print(&text_of(&summary)) }
}

fn text_of(summary: &Summary) -> String {
    let header = ["validation links", "rivals", "intervals", "right", "sure and wrong"];
    let row = |l: &Line| {
        let rivals = if l.rivals { "yes" } else { "no" };
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        vec![
            l.family.to_owned(),
            rivals.to_owned(),
            l.intervals.to_string(),
            percent(l.right),
            percent(l.sure_and_wrong),
        ]
    };
    let rows: Vec<Vec<String>> = summary.held_out.iter().map(row).collect();
    format!("{} examples in {:.0} s\n{}\n", summary.examples, summary.seconds, table(&header, &rows))
}

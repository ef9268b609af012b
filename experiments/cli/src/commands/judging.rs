//! `ccplane train --algorithm neural`: its network learns on the league's training links, not in an environment.

use super::fabric::FileError;
use super::output::{print, table};
use super::trained::{Begun, Summary, finish, prepare};
use crate::cli::TrainArgs;
use ccplane_agent::failure::Failure;
use ccplane_league::{JudgingConfig, Keeping, Traces, judging};
use ccplane_learn::Provenance;
use serde::Serialize;

#[derive(Serialize)]
struct Counts {
    examples: u64,
}

/// The quality of its judgements on links of one family.
#[derive(Serialize)]
struct Line {
    family: &'static str,
    rivals: bool,
    intervals: usize,
    right: f64,
    sure_and_wrong: f64,
}

pub(super) fn train(args: &TrainArgs) -> Result<(), Failure> {
    prepare(args, "neural", "examples on the league's training links", true)?;
    let begun = Begun::now("neural", args.seed);
    let provenance = Provenance { command: begun.command.clone(), ..Provenance::default() };
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
    let share = |n: usize, of: usize| n as f64 / of.max(1) as f64;
    let line = |((family, rivals), count): (&(&'static str, bool), &ccplane_league::Count)| Line {
        family,
        rivals: *rivals,
        intervals: count.intervals,
        right: share(count.right, count.intervals),
        sure_and_wrong: share(count.sure_and_wrong, count.intervals),
    };
    let counts = Counts { examples: judged.policy.provenance.steps };
    let summary = begun.summary(counts, &judged.snapshot, judged.counts.iter().map(line).collect());
    let printed = finish(args, "neural", &judged.policy, &judged.snapshot, &summary)?;
    let failed = |source| Failure::runtime(FileError { path: keeping.file.clone(), source });
    std::fs::remove_file(&keeping.file).map_err(failed)?;
    if printed { Ok(()) } else { print(&text_of(&summary)) }
}

fn text_of(summary: &Summary<Counts, Line>) -> String {
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
    format!("{} examples in {:.0} s\n{}\n", summary.counts.examples, summary.seconds, table(&header, &rows))
}

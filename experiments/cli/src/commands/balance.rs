//! `ccplane run` of a plan of load balancing, and `ccplane train --algorithm path`.

use super::{print, print_json};
use crate::cli::{Backend, Links, RunArgs, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_fabric::{
    BALANCE_PLANS, BalanceCell, BalancePlan, BalancingConfig, balance_csv, balance_text, is_balance,
    learn_paths, play_balance,
};
use ccplane_runner::plan::PLAN;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that a signal has stopped.
const SIGNALLED: u8 = 130;

#[derive(Debug, thiserror::Error)]
enum BalanceError {
    #[error("{0}: path's network learns from flows of fabrics that have ended and has no such choice")]
    NoChoice(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

/// The JSON output of a run.
#[derive(Serialize)]
struct Summary<'a> {
    plan: &'a str,
    runs: usize,
    results: &'a Path,
    report: &'a Path,
}

/// The content of `path.json`, which `--json` prints.
#[derive(Serialize)]
struct Trained {
    algorithm: &'static str,
    command: String,
    seed: u64,
    decisions: usize,
    seconds: f64,
    snapshot: String,
}

/// Returns the plan of that name or file if it is one of load balancing.
pub(super) fn find(name: &str, args: &RunArgs) -> Result<Option<BalancePlan>, Failure> {
    let path = Path::new(name);
    let repeats = if args.quick { Some(1) } else { args.repeats };
    let (file, text) = if path.exists() {
        (path.to_owned(), ccplane_files::document::read(path, PLAN).map_err(Failure::input)?)
    } else {
        let Some((_, text)) = BALANCE_PLANS.iter().find(|(shipped, _)| *shipped == name) else {
            return Ok(None);
        };
        (PathBuf::from(format!("{name}.toml")), (*text).to_owned())
    };
    if !is_balance(&text) {
        return Ok(None);
    }
    let mut plan = BalancePlan::parse(&file, &text, repeats).map_err(Failure::input)?;
    if args.quick {
        plan.name.push_str("-quick");
        plan.loads_percent.truncate(2);
        plan.flows = plan.flows.min(300);
    }
    Ok(Some(plan))
}

/// Checks or runs it.
pub(super) fn run(plan: &BalancePlan, args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.check {
        let uplinks: Vec<&str> = plan.uplinks.iter().map(|uplinks| uplinks.name()).collect();
        let names: Vec<&str> = plan.contenders.iter().map(|contender| contender.name()).collect();
        let (uplinks, names) = (uplinks.join(", "), names.join(", "));
        let text = format!("{}: {}\n  {uplinks}\n  {names}\n  {} runs\n", plan.name, plan.title, plan.runs());
        return print(&text).map(|()| ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let told = |what: &str| {
        eprintln!("ccplane: {what}");
        !stop.load(Ordering::Relaxed)
    };
    match play_balance(plan, cores, &told).map_err(Failure::runtime)? {
        Some(cells) => finish(plan, args, &cells).map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::from(SIGNALLED)),
    }
}

fn finish(plan: &BalancePlan, args: &RunArgs, cells: &[BalanceCell]) -> Result<(), Failure> {
    let directory = args.report.as_ref().unwrap_or(&args.results);
    let results = args.results.join(format!("{}.csv", plan.name));
    let report = directory.join(format!("{}.txt", plan.name));
    let text = balance_text(plan, cells);
    write(&results, balance_csv(plan, cells).as_bytes())?;
    write(&report, text.as_bytes())?;
    if args.json {
        return print_json(&Summary {
            plan: &plan.name,
            runs: plan.runs(),
            results: &results,
            report: &report,
        });
    }
    print(&format!("{text}\n{} runs in {}\nreport: {}\n", plan.runs(), results.display(), report.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = |source| Failure::runtime(BalanceError::File { path: path.to_owned(), source });
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
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
        return Err(Failure::input(BalanceError::NoChoice(option)));
    }
    let began = std::time::Instant::now();
    let command = format!("ccplane train --algorithm path --seed {}", args.seed);
    let config = BalancingConfig { seed: args.seed, ..BalancingConfig::default() };
    let learned = learn_paths(&config, &command, &|step| eprintln!("{step}")).map_err(Failure::runtime)?;
    write(&args.out.join("path.snapshot"), &learned.snapshot.to_bytes())?;
    learned.policy.write(&args.out.join("path.safetensors")).map_err(Failure::runtime)?;
    let trained = Trained {
        algorithm: "path",
        command,
        seed: args.seed,
        decisions: learned.examples,
        seconds: began.elapsed().as_secs_f64(),
        snapshot: learned.snapshot.hash().to_string(),
    };
    let text = serde_json::to_string_pretty(&trained).map_err(Failure::runtime)?;
    write(&args.out.join("path.json"), format!("{text}\n").as_bytes())?;
    if args.json {
        return print_json(&trained);
    }
    print(&format!("{} decisions in {:.0} s\n", trained.decisions, trained.seconds))
}

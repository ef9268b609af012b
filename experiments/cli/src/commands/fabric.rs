//! `ccplane run` of a plan of a fabric, such as `flow-scheduling`.

use super::{print, print_json};
use crate::cli::RunArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{FabricPlan, PLANS, Played, csv, html, is_fabric, play, text};
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

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
struct FileError {
    path: PathBuf,
    source: std::io::Error,
}

/// The JSON output.
#[derive(Serialize)]
struct Summary<'a> {
    plan: &'a str,
    runs: usize,
    results: &'a Path,
    report: &'a Path,
}

/// Returns the plan of that name or file if it is one of a fabric.
pub(super) fn find(name: &str, args: &RunArgs) -> Result<Option<FabricPlan>, Failure> {
    let path = Path::new(name);
    let repeats = if args.quick { Some(1) } else { args.repeats };
    let (file, text) = if path.exists() {
        (path.to_owned(), ccplane_files::document::read(path, PLAN).map_err(Failure::input)?)
    } else {
        let Some((_, text)) = PLANS.iter().find(|(shipped, _)| *shipped == name) else { return Ok(None) };
        (PathBuf::from(format!("{name}.toml")), (*text).to_owned())
    };
    if !is_fabric(&text) {
        return Ok(None);
    }
    let mut plan = FabricPlan::parse(&file, &text, repeats).map_err(Failure::input)?;
    if args.quick {
        plan.name.push_str("-quick");
        plan.loads_percent.truncate(2);
        plan.flows = plan.flows.min(300);
    }
    Ok(Some(plan))
}

/// Checks or runs it.
pub(super) fn run(plan: &FabricPlan, args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.check {
        let mut checked = format!("{}: {}\n", plan.name, plan.title);
        for workload in &plan.workloads {
            checked.push_str(&format!("  {}\n", workload.name()));
        }
        let names: Vec<&str> = plan.contenders.iter().map(|contender| contender.name()).collect();
        checked.push_str(&format!("  {}\n  {} runs\n", names.join(", "), plan.runs()));
        return print(&checked).map(|()| ExitCode::SUCCESS);
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
    match play(plan, cores, &told).map_err(Failure::runtime)? {
        Some(played) => finish(plan, args, &played).map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::from(SIGNALLED)),
    }
}

fn finish(plan: &FabricPlan, args: &RunArgs, played: &Played) -> Result<(), Failure> {
    let directory = args.report.as_ref().unwrap_or(&args.results);
    let results = args.results.join(format!("{}.csv", plan.name));
    let report = directory.join(format!("{}.html", plan.name));
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    for (path, content) in [(&results, csv(plan, played)), (&report, html(plan, played, &command))] {
        let failed = |source| Failure::runtime(FileError { path: path.clone(), source });
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        std::fs::write(path, content).map_err(failed)?;
    }
    if args.json {
        return print_json(&Summary {
            plan: &plan.name,
            runs: plan.runs(),
            results: &results,
            report: &report,
        });
    }
    print(&format!(
        "{}\n{} runs in {}\nreport: {}\n",
        text(plan, played),
        plan.runs(),
        results.display(),
        report.display()
    ))
}

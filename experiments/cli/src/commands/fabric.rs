//! `ccplane run` of a plan of a fabric: `flow-scheduling`, `load-balancing`.

use super::output::{print, print_json};
use crate::cli::RunArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{
    FabricError, FabricPlan, PLANS, Ran, cells, csv, header, html, is_fabric, missing, play, play_live,
    record, text,
};
use ccplane_runner::experiment::{Store, StoreError};
use ccplane_runner::{host, plan::PLAN};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The exit code of a process that a signal has stopped.
const SIGNALLED: u8 = 130;

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(super) struct FileError {
    pub(super) path: PathBuf,
    pub(super) source: std::io::Error,
}

/// The JSON output.
#[derive(Serialize)]
struct Summary<'a> {
    plan: &'a str,
    runs: usize,
    done: usize,
    interrupted: bool,
    results: &'a Path,
    report: &'a Path,
}

/// Writes a file, in a folder that is made where it is missing.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = |source| Failure::runtime(FileError { path: path.to_owned(), source });
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    std::fs::write(path, content).map_err(failed)
}

/// Returns the plan of that name or file if it is one of a fabric.
pub(super) fn find(name: &str, args: &RunArgs) -> Result<Option<FabricPlan>, Failure> {
    let path = Path::new(name);
    let (file, text) = if path.exists() {
        (path.to_owned(), ccplane_files::document::read(path, PLAN).map_err(Failure::input)?)
    } else {
        let Some((_, text)) = PLANS.iter().find(|(shipped, _)| *shipped == name) else { return Ok(None) };
        (PathBuf::from(format!("{name}.toml")), (*text).to_owned())
    };
    if !is_fabric(&text) {
        return Ok(None);
    }
    let mut plan = FabricPlan::parse(&file, &text, args.repeats).map_err(Failure::input)?;
    if args.live {
        plan = plan.as_live(args.repeats).ok_or_else(|| Failure::input(FabricError::NotLive))?;
    }
    Ok(Some(if args.quick { plan.quick() } else { plan }))
}

/// Checks or runs it.
pub(super) fn run(plan: &FabricPlan, args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.check {
        return print(&checked(plan)).map(|()| ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let path = args.results.join(format!("{}.jsonl", plan.name));
    let header = header(plan, host::here(command.clone()));
    let store = Store::open(&path, &header, args.force).map_err(Failure::runtime)?;
    let slots = missing(plan, &store.results);
    if slots.len() < plan.runs() {
        let there = plan.runs() - slots.len();
        eprintln!("ccplane: {there} of {} runs are in {} already", plan.runs(), path.display());
    }
    let store = Mutex::new(store);
    let failed: Mutex<Option<StoreError>> = Mutex::new(None);
    let told = |what: &str| {
        eprintln!("ccplane: {what}");
        !stop.load(Ordering::Relaxed)
    };
    let ended = |ran: Ran| {
        let began = SystemTime::now().checked_sub(ran.took).unwrap_or_else(SystemTime::now);
        let run = record(plan, &ran, host::rfc3339(began));
        let kept = store.lock().unwrap_or_else(PoisonError::into_inner).append(run);
        let is_kept = kept.is_ok();
        if let Err(error) = kept {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        is_kept
    };
    let is_done = if plan.is_live {
        let located = args.place.locate(None)?;
        play_live(plan, &slots, &located, &told, &ended)
    } else {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        play(plan, &slots, cores, &told, &ended)
    };
    let is_done = is_done.map_err(Failure::runtime)?;
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(Failure::runtime(error));
    }
    let store = store.into_inner().unwrap_or_else(PoisonError::into_inner);
    finish(plan, args, &store, &command, !is_done)?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::from(SIGNALLED) })
}

fn checked(plan: &FabricPlan) -> String {
    let mut checked = format!("{}: {}\n  {}\n", plan.name, plan.title, plan.setting());
    for group in &plan.groups {
        checked.push_str(&format!("  {}\n", group.name(plan.kind)));
    }
    let names: Vec<&str> = plan.contenders.iter().map(|contender| contender.name()).collect();
    checked.push_str(&format!("  {}\n  {} runs\n", names.join(", "), plan.runs()));
    checked
}

/// Writes the report of the runs that there are, and prints what they came to.
fn finish(
    plan: &FabricPlan,
    args: &RunArgs,
    store: &Store,
    command: &str,
    interrupted: bool,
) -> Result<(), Failure> {
    let cells = cells(plan, &store.results);
    let directory = args.report.as_ref().unwrap_or(&args.results);
    let file = |extension: &str| directory.join(format!("{}.{extension}", plan.name));
    let report = file("html");
    write(&report, html(plan, &cells, command).as_bytes())?;
    write(&file("csv"), csv(plan, &cells).as_bytes())?;
    if args.json {
        return print_json(&Summary {
            plan: &plan.name,
            runs: plan.runs(),
            done: cells.len(),
            interrupted,
            results: store.path(),
            report: &report,
        });
    }
    let mut said = text(plan, &cells);
    said.push_str(&format!("\n{} of {} runs in {}\n", cells.len(), plan.runs(), store.path().display()));
    if interrupted {
        said.push_str(&format!("interrupted; to go on: {command}\n"));
    }
    said.push_str(&format!("report: {}\n", report.display()));
    print(&said)
}

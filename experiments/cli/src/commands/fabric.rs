//! `ccplane run` of a plan of a fabric, such as `flow-scheduling`.

use super::{print, print_json};
use crate::cli::RunArgs;
use ccplane_agent::failure::Failure;
use ccplane_fabric::{FabricPlan, PLANS, csv, html, is_fabric, play, text};
use ccplane_runner::plan::PLAN;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that a signal has stopped.
pub(super) const SIGNALLED: u8 = 130;

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
    results: &'a Path,
    report: &'a Path,
}

/// The outcome of a plan: files with their content, and what is printed.
pub(super) struct Written<'a> {
    pub(super) plan: &'a str,
    pub(super) runs: usize,
    pub(super) results: (PathBuf, String),
    pub(super) report: (PathBuf, String),
    pub(super) text: String,
}

impl Written<'_> {
    /// Writes both files, and prints where they are.
    pub(super) fn finish(&self, as_json: bool) -> Result<(), Failure> {
        let Written { plan, runs, results: (results, table), report: (report, page), text } = self;
        write(results, table.as_bytes())?;
        write(report, page.as_bytes())?;
        if as_json {
            return print_json(&Summary { plan, runs: *runs, results, report });
        }
        print(&format!("{text}\n{runs} runs in {}\nreport: {}\n", results.display(), report.display()))
    }
}

/// The folder of reports.
pub(super) fn report_folder(args: &RunArgs) -> &Path {
    args.report.as_ref().unwrap_or(&args.results)
}

/// The file and text of a plan of that name or file, and its repetitions; `None` for a name that is not `shipped`.
pub(super) fn source(
    name: &str,
    args: &RunArgs,
    shipped: &[(&str, &str)],
) -> Result<Option<(PathBuf, String, Option<u32>)>, Failure> {
    let path = Path::new(name);
    let repeats = if args.quick { Some(1) } else { args.repeats };
    if path.exists() {
        let text = ccplane_files::document::read(path, PLAN).map_err(Failure::input)?;
        return Ok(Some((path.to_owned(), text, repeats)));
    }
    let text = shipped.iter().find(|(shipped, _)| *shipped == name);
    Ok(text.map(|(_, text)| (PathBuf::from(format!("{name}.toml")), (*text).to_owned(), repeats)))
}

/// Plays runs on all cores until a signal stops them; `None` where one did.
pub(super) fn stoppable<T, E: std::error::Error + 'static>(
    play: impl FnOnce(usize, &(dyn Fn(&str) -> bool + Sync)) -> Result<Option<T>, E>,
) -> Result<Option<T>, Failure> {
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
    play(cores, &told).map_err(Failure::runtime)
}

/// Writes a file, in a folder that is made where it is missing.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let failed = |source| Failure::runtime(FileError { path: path.to_owned(), source });
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    std::fs::write(path, content).map_err(failed)
}

/// Returns the plan of that name or file if it is one of a fabric.
pub(super) fn find(name: &str, args: &RunArgs) -> Result<Option<FabricPlan>, Failure> {
    let Some((file, text, repeats)) = source(name, args, PLANS)? else { return Ok(None) };
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
    let Some(played) = stoppable(|cores, told| play(plan, cores, told))? else {
        return Ok(ExitCode::from(SIGNALLED));
    };
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let written = Written {
        plan: &plan.name,
        runs: plan.runs(),
        results: (args.results.join(format!("{}.csv", plan.name)), csv(plan, &played)),
        report: (report_folder(args).join(format!("{}.html", plan.name)), html(plan, &played, &command)),
        text: text(plan, &played),
    };
    written.finish(args.json).map(|()| ExitCode::SUCCESS)
}

//! `ccplane league`: algorithms ranked on drawn links.

use super::invoked::Invoked;
use super::output::print;
use super::run::OwnAgents;
use super::signals::{SIGNALLED, stop_on_signals};
use super::variants;
use crate::cli::{LeagueArgs, OpenSet};
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_league::{
    Agreement, Cell, Family, FamilyLink, Fixture, LeagueError, Permit, Set, Table, Traces, Use, page, play,
    record,
};
use ccplane_results::{Run, RunOutcome};
use ccplane_runner::experiment::agents::NoAgents;
use ccplane_runner::experiment::{self, ExperimentError, Options, Progress};
use ccplane_runner::{Missing, host, missing_for_links};
use serde::Serialize;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// The algorithms that play without `--algorithm`.
const PLAYERS: [&str; 9] = ["reno", "cubic", "vegas", "bbr", "copa", "dual", "neural", "aurora", "mocc"];
/// Cells between two lines of progress.
const CELLS_PER_LINE: usize = 50;

pub(crate) fn league(
    args: &LeagueArgs,
    invoked: &Invoked,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<ExitCode, Failure> {
    ccplane_agent::agent::log_if_asked();
    let named = variants::of_files(&args.algorithm, algorithms).map_err(Failure::input)?;
    let algorithms = &named.algorithms[..];
    let names = players(&named.names, algorithms).map_err(Failure::input)?;
    let first = names.first().cloned().unwrap_or_default();
    if let Some(link) = &args.show {
        let link: FamilyLink = link.parse().map_err(Failure::input)?;
        return print(&link.text(&[&first], "sim")).map(|()| ExitCode::SUCCESS);
    }
    // Before a use of the test links is written down, and before minutes of simulation.
    let missing = if args.live > 0.0 { missing_for_kernel_flows() } else { Vec::new() };
    if !missing.is_empty() {
        return Err(Failure::runtime(ExperimentError::Missing(missing)));
    }
    let families = families(args).map_err(Failure::input)?;
    let permit = if args.test { Some(written_down(args, &names)?) } else { None };
    let traces = Traces { folder: args.traces.clone() };
    let links = links(args, &families, permit.as_ref(), &traces).map_err(Failure::input)?;
    let stop = stop_on_signals()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let ground = Ground { algorithms, traces: &traces, stopped: &stopped };
    if let (true, Some(link)) = (args.plots, links.first()) {
        return plots(args, *link, &names, &ground);
    }
    let fixtures: Vec<Fixture> = links
        .iter()
        .flat_map(|link| names.iter().map(|name| Fixture { link: *link, algorithm: name.clone() }))
        .collect();
    let cores =
        args.cores.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let played = AtomicUsize::new(0);
    let done = |_: &Cell| {
        let played = played.fetch_add(1, Ordering::Relaxed) + 1;
        if played.is_multiple_of(CELLS_PER_LINE) {
            eprintln!("ccplane: {played} of {} runs", fixtures.len());
        }
        !stop.load(Ordering::Relaxed)
    };
    let cells = play(&fixtures, algorithms, &traces, cores, &done).map_err(Failure::runtime)?;
    if cells.len() < fixtures.len() {
        eprintln!(
            "ccplane: interrupted after {} of {} runs; nothing is kept of them",
            cells.len(),
            fixtures.len()
        );
        return Ok(ExitCode::from(SIGNALLED));
    }
    let table = Table::new(&cells);
    let about = format!("{} links, {} runs; {}", links.len(), cells.len(), names.join(", "));
    write(args, &named.as_written(&page::html(&table, &about, &invoked.program)), &cells)?;
    if !args.json {
        // Kernel flows take long, and may fail.
        let worst = named.as_written(&ccplane_league::worst(&table, &first, &invoked.program));
        print(&shown(&table, &first, &worst))?;
    }
    let agreement = match args.live > 0.0 {
        true => live(args, &links, &names, &cells, &ground)?,
        false => None,
    };
    match args.json {
        true => super::output::print_json(&Ranked { table: &table, live: agreement.as_ref() })?,
        false => {
            let agreement = agreement.as_ref().map(Agreement::text).unwrap_or_default();
            print(&format!("{agreement}\n{}\n", args.results.join("league.html").display()))?;
        }
    }
    Ok(if stopped() { ExitCode::from(SIGNALLED) } else { ExitCode::SUCCESS })
}

/// Returns what this machine lacks for the kernel's flows of a link.
fn missing_for_kernel_flows() -> Vec<Missing> {
    let programs = ccplane_ebpf::checks().into_iter().filter(|check| !check.ok).map(|check| Missing {
        what: format!("{}: {}", check.what, check.found),
        remedy: check.remedy.to_owned(),
    });
    missing_for_links().into_iter().chain(programs).collect()
}

/// The tables, and the worst links of the first algorithm where it has any.
fn shown(table: &Table, first: &str, worst: &str) -> String {
    let text = format!(
        "{}\n{}\n{}",
        ccplane_league::table(table),
        ccplane_league::summary(table),
        ccplane_league::heat(table)
    );
    match worst.is_empty() {
        true => text,
        false => format!("{text}\n{first}'s worst links\n{worst}"),
    }
}

/// The names that were asked for, all of them there. Without any: an outside crate's own, then those that come with ccplane.
fn players(named: &[String], algorithms: &[Arc<dyn Algorithm>]) -> Result<Vec<String>, LeagueError> {
    let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
    if named.is_empty() {
        let ours: Vec<&str> = ccplane_algs::all().iter().map(|a| a.name()).collect();
        let outside = known.iter().filter(|name| !ours.contains(name));
        let players = outside.chain(PLAYERS.iter().filter(|p| known.contains(p)));
        return Ok(players.map(|p| (*p).to_owned()).collect());
    }
    match named.iter().find(|name| !known.contains(&name.as_str())) {
        Some(found) => Err(LeagueError::NoAlgorithm { found: found.clone(), known }),
        None => Ok(named.to_vec()),
    }
}

fn families(args: &LeagueArgs) -> Result<Vec<Family>, LeagueError> {
    match args.family.is_empty() {
        true => Ok(Family::ALL.to_vec()),
        false => args.family.iter().map(|f| f.parse()).collect(),
    }
}

fn links(
    args: &LeagueArgs,
    families: &[Family],
    permit: Option<&Permit>,
    traces: &Traces,
) -> Result<Vec<FamilyLink>, LeagueError> {
    if let Some(link) = &args.link {
        return Ok(vec![link.parse()?]);
    }
    let set = match (permit, args.set) {
        (Some(_), _) => Set::Test,
        (None, OpenSet::Training) => Set::Training,
        (None, OpenSet::Validation) => Set::Validation,
    };
    let mut links = Vec::new();
    for family in families {
        if *family == Family::Recorded && !traces.has_recorded(set) {
            eprintln!(
                "ccplane: left out: {}: not all of its traces are in {}; `.ci/traces target/traces` fetches them",
                family.name(),
                traces.folder.display()
            );
            continue;
        }
        for number in 0..args.links {
            links.push(match permit {
                Some(permit) => FamilyLink::test(permit, *family, number)?,
                None => FamilyLink::new(*family, set, number)?,
            });
        }
    }
    Ok(links)
}

/// Runs one link as `ccplane run` does, and draws it.
fn plots(
    args: &LeagueArgs,
    link: FamilyLink,
    names: &[String],
    ground: &Ground<'_>,
) -> Result<ExitCode, Failure> {
    let contenders: Vec<&str> = names.iter().map(String::as_str).collect();
    let plan = link.plan(&contenders, "sim", ground.algorithms, ground.traces).map_err(Failure::input)?;
    let name = link.to_string().replace('/', "-");
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let results = args.results.join(format!("{name}.jsonl"));
    let options = Options { results, force: true, command };
    let (mut agents, mut progress) = (NoAgents, Progress::stderr());
    let ended =
        experiment::run(&plan, &options, ground.algorithms, &mut agents, ground.stopped, &mut progress)
            .map_err(Failure::runtime)?;
    if ended.interrupted {
        return Ok(ExitCode::from(SIGNALLED));
    }
    let files = ccplane_report::experiment::write(&ended.results, &args.results, &name);
    let files = files.map_err(Failure::runtime)?;
    print(&format!("{}\n", files.html.display())).map(|()| ExitCode::SUCCESS)
}

fn written_down(args: &LeagueArgs, names: &[String]) -> Result<Permit, Failure> {
    let run = host::here(std::env::args().collect::<Vec<_>>().join(" "));
    let of = Use {
        at: host::rfc3339(SystemTime::now()),
        command: run.command,
        commit: run.git_commit,
        algorithms: names.to_vec(),
        links: args.links,
    };
    let permit = record(&args.book, &of).map_err(Failure::input)?;
    eprintln!("ccplane: this use of the test links is written down in {}; commit it", args.book.display());
    Ok(permit)
}

fn write(args: &LeagueArgs, page: &str, cells: &[Cell]) -> Result<(), Failure> {
    fs::create_dir_all(&args.results)?;
    let mut lines = Vec::new();
    for cell in cells {
        serde_json::to_writer(&mut lines, cell).map_err(Failure::runtime)?;
        writeln!(lines)?;
    }
    fs::write(args.results.join("league.jsonl"), lines)?;
    fs::write(args.results.join("league.html"), page)?;
    Ok(())
}

/// The record that `--json` prints.
#[derive(Serialize)]
struct Ranked<'a> {
    #[serde(flatten)]
    table: &'a Table,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<&'a Agreement>,
}

/// The algorithms and traces that links are played with, and whether to give up.
struct Ground<'a> {
    algorithms: &'a [Arc<dyn Algorithm>],
    traces: &'a Traces,
    stopped: &'a dyn Fn() -> bool,
}

/// Repeats a share of the links in the kernel, evenly over the families, until a signal comes; `None` where no link was repeated.
fn live(
    args: &LeagueArgs,
    links: &[FamilyLink],
    names: &[String],
    cells: &[Cell],
    ground: &Ground<'_>,
) -> Result<Option<Agreement>, Failure> {
    let mut agents = OwnAgents::new(args.place.locate(None)?);
    let mut lines = fs::File::create(args.results.join("league-live.jsonl"))?;
    let mut kernel = Vec::new();
    let mut owed = 0.0;
    for link in links {
        owed += args.live;
        if owed < 1.0 {
            continue;
        }
        owed -= 1.0;
        if (ground.stopped)() {
            eprintln!("ccplane: interrupted; {link} and those after it were not repeated");
            break;
        }
        for cell in run_live(args, *link, names, ground, &mut agents)? {
            serde_json::to_writer(&mut lines, &cell).map_err(Failure::runtime)?;
            writeln!(lines)?;
            kernel.push(cell);
        }
    }
    if kernel.is_empty() {
        eprintln!(
            "ccplane: no link was repeated with kernel flows: --live {} of {} links",
            args.live,
            links.len()
        );
    }
    Ok((!kernel.is_empty()).then(|| Agreement::new(&kernel, cells)))
}

/// One link in the kernel, by all contenders; nothing where it can only be simulated, or one of them failed.
fn run_live(
    args: &LeagueArgs,
    link: FamilyLink,
    names: &[String],
    ground: &Ground<'_>,
    agents: &mut OwnAgents,
) -> Result<Vec<Cell>, Failure> {
    let contenders: Vec<&str> = names.iter().map(String::as_str).collect();
    let plan = match link.live_plan(&contenders, ground.algorithms, ground.traces) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("ccplane: left out: {why}");
            return Ok(Vec::new());
        }
    };
    let directory: PathBuf = Path::new(&args.results).join("live").join(link.to_string());
    fs::create_dir_all(&directory)?;
    let results = directory.join("runs.jsonl");
    let options = Options { results, force: true, command: String::new() };
    let mut progress = Progress::stderr();
    let ended = experiment::run(&plan, &options, ground.algorithms, agents, ground.stopped, &mut progress);
    let ended = ended.map_err(Failure::runtime)?;
    if ended.interrupted {
        return Ok(Vec::new());
    }
    let cells = names.iter().filter_map(|name| {
        let scenario = plan.scenarios.first()?;
        let of = |run: &Run| match &run.outcome {
            RunOutcome::Ok(measured) if run.contender == *name => Some(link.cell(scenario, name, measured)),
            _ => None,
        };
        ended.results.runs.iter().rev().find_map(of)
    });
    let cells: Vec<Cell> = cells.collect();
    if cells.len() < names.len() {
        eprintln!("ccplane: left out: {link}: a run failed");
        return Ok(Vec::new());
    }
    Ok(cells)
}

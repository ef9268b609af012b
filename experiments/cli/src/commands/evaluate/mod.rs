//! `ccplane evaluate`: algorithms by the criteria of RFC 9743.

mod trace;

use super::run::OwnAgents;
use super::{print, print_json};
use crate::cli::EvaluateArgs;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_core::Companion;
use ccplane_evaluation::{
    CRITERIA, Case, Cell, ConformanceCase, Conformed, Contender, Criterion, Evaluation, EvaluationError,
    Ground, Kind, LiveConfig, Metric, Play, Provenance, REFERENCES, ScenarioSet, Store, Traces, conform,
    contenders, live, live_cases, page, play, text,
};
use ccplane_runner::experiment::agents::NoAgents;
use ccplane_runner::experiment::{self, ExperimentError, Options, Progress};
use ccplane_runner::{host, missing_for_links};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use trace::Trace;

/// Cases of each set with `--quick`.
const QUICK_CASES: u32 = 4;
/// Runs between two lines of progress.
const RUNS_PER_LINE: usize = 100;
/// Links of the comparison with the kernel's algorithm, and runs of both on each; fewer with `--quick`.
const CONFORMANCE: (u32, u32) = (4, 4);
const QUICK_CONFORMANCE: (u32, u32) = (3, 2);
/// The exit code of a process that a signal has stopped.
const SIGNALLED: u8 = 130;

pub(crate) fn evaluate(args: &EvaluateArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<ExitCode, Failure> {
    ccplane_agent::agent::log_if_asked();
    if args.list {
        return print(&list()).map(|()| ExitCode::SUCCESS);
    }
    let names = names(args, algorithms).map_err(Failure::input)?;
    let traces = Traces::default();
    let ground = Ground { algorithms, traces: &traces };
    if let Some(case) = &args.case {
        let case: Case = case.parse().map_err(Failure::input)?;
        return names.iter().try_for_each(|name| one(args, case, name, ground)).map(|()| ExitCode::SUCCESS);
    }
    let criteria = criteria(args).map_err(Failure::input)?;
    let missing = if args.live > 0.0 { missing_for_links() } else { Vec::new() };
    if !missing.is_empty() {
        return Err(Failure::runtime(ExperimentError::Missing(missing)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first one asks, the second one ends.
        flag::register_conditional_shutdown(signal, SIGNALLED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let cells = args.cells.clone().unwrap_or_else(|| args.results.join("cells.jsonl"));
    let store = Store::open(&cells, args.force).map_err(Failure::runtime)?;
    let here = host::here(command_line());
    let session = Session { args, criteria, ground, store: &store, stop: &stop, here };
    let mut evaluations = Vec::new();
    for name in &names {
        match session.evaluate(name)? {
            Some(evaluation) => evaluations.push(evaluation),
            None => {
                eprintln!("ccplane: interrupted; to go on: {}", command_line());
                return Ok(ExitCode::from(SIGNALLED));
            }
        }
    }
    if evaluations.len() > 1 {
        fs::write(args.results.join("summary.md"), text::summary(&evaluations))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// The algorithms that were asked for, all of them there.
fn names(args: &EvaluateArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<Vec<String>, EvaluationError> {
    let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
    if args.all {
        return Ok(known.into_iter().map(str::to_owned).collect());
    }
    match args.algorithms.iter().find(|name| !known.contains(&name.as_str())) {
        Some(found) => Err(EvaluationError::NoAlgorithm { found: found.clone(), known }),
        None => Ok(args.algorithms.clone()),
    }
}

fn criteria(args: &EvaluateArgs) -> Result<Vec<&'static Criterion>, EvaluationError> {
    match args.criterion.is_empty() {
        true => Ok(CRITERIA.iter().collect()),
        false => args.criterion.iter().map(|name| Criterion::find(name)).collect(),
    }
}

fn list() -> String {
    let mut text = String::new();
    for criterion in CRITERIA {
        text.push_str(&format!(
            "{} ({}): {}\n  {}\n",
            criterion.name, criterion.section, criterion.title, criterion.asks
        ));
        if let Kind::NotApplicable(why) = criterion.kind {
            text.push_str(&format!("  not applicable: {why}\n"));
        }
        let sets: BTreeSet<ScenarioSet> = criterion.checks().iter().map(|check| check.set).collect();
        for set in sets {
            text.push_str(&format!("  {}: {}\n", set.name(), set.about()));
        }
    }
    text
}

/// An evaluation at work.
struct Session<'a> {
    args: &'a EvaluateArgs,
    criteria: Vec<&'static Criterion>,
    ground: Ground<'a>,
    store: &'a Store,
    stop: &'a AtomicBool,
    here: ccplane_results::Host,
}

impl Session<'_> {
    /// Evaluates one algorithm, and writes its report; `None` if it was interrupted.
    fn evaluate(&self, name: &str) -> Result<Option<Evaluation>, Failure> {
        let cases = self.cases();
        let plays: Vec<Play> = cases
            .iter()
            .flat_map(|case| contenders(name).into_iter().map(|contender| Play { case: *case, contender }))
            .collect();
        let Some(simulated) = self.simulate(name, &plays)? else { return Ok(None) };
        let Some(kernel) = self.live(name, &cases)? else { return Ok(None) };
        let conformed = match self.conform(name)? {
            Conforming::Stopped => return Ok(None),
            Conforming::NotAsked => None,
            Conforming::Done(conformed) => Some(conformed),
        };
        let evaluation = Evaluation::new(
            name,
            &self.criteria,
            (&simulated, &kernel),
            conformed,
            self.provenance(name),
            self.ground,
        );
        let evaluation = evaluation.map_err(Failure::runtime)?;
        self.write(&evaluation)?;
        Ok(Some(evaluation))
    }

    /// Cases of each set, which the quick form has fewer of.
    fn count(&self) -> u32 {
        if self.args.quick { QUICK_CASES } else { self.args.cases }
    }

    fn cases(&self) -> Vec<Case> {
        let sets: BTreeSet<ScenarioSet> =
            self.criteria.iter().flat_map(|criterion| criterion.checks()).map(|check| check.set).collect();
        sets.into_iter().flat_map(|set| (0..self.count()).filter_map(move |n| Case::new(set, n))).collect()
    }

    fn simulate(&self, name: &str, plays: &[Play]) -> Result<Option<Vec<Cell>>, Failure> {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        let cores = self.args.cores.map_or_else(all, usize::from);
        let played = AtomicUsize::new(0);
        let done = |_: &Cell| {
            let played = played.fetch_add(1, Ordering::Relaxed) + 1;
            if played.is_multiple_of(RUNS_PER_LINE) {
                eprintln!("ccplane: {name}: {played} of {} runs", plays.len());
            }
            !self.stopped()
        };
        play(plays, self.ground, self.store, cores, &done).map_err(Failure::runtime)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn live_config<'a>(&'a self, directory: &'a Path, stopped: &'a dyn Fn() -> bool) -> LiveConfig<'a> {
        LiveConfig { directory, command: &self.here.command, force: self.args.force, stopped }
    }

    /// The cells of the cases that are repeated live; `None` if it was interrupted.
    fn live(&self, name: &str, cases: &[Case]) -> Result<Option<Vec<Cell>>, Failure> {
        let mut cells = Vec::new();
        if self.args.live == 0.0 {
            return Ok(Some(cells));
        }
        let mut agents = OwnAgents { located: self.args.place.locate(None)? };
        let (directory, stopped) = (self.args.results.join("live"), || self.stopped());
        let config = self.live_config(&directory, &stopped);
        for case in live_cases(cases, self.args.live, name, self.ground) {
            let mut progress = Progress::stderr();
            match live(case, name, self.ground, &config, &mut agents, &mut progress) {
                Ok(None) => return Ok(None),
                Ok(Some(more)) => cells.extend(more),
                Err(why) => return Err(Failure::runtime(why)),
            }
        }
        Ok(Some(cells))
    }

    /// Compares our program with the kernel's algorithm of the same name, where there is one and live runs are asked for.
    fn conform(&self, name: &str) -> Result<Conforming, Failure> {
        let kernels = host::kernel_algorithms();
        let is_comparable = REFERENCES.contains(&name) && kernels.iter().any(|kernel| kernel == name);
        if self.args.live == 0.0 || !is_comparable {
            return Ok(Conforming::NotAsked);
        }
        let mut agents = OwnAgents { located: self.args.place.locate(None)? };
        let (directory, stopped) = (self.args.results.join("live"), || self.stopped());
        let config = self.live_config(&directory, &stopped);
        let (links, repeats) = if self.args.quick { QUICK_CONFORMANCE } else { CONFORMANCE };
        let mut found = Vec::new();
        for number in 0..links {
            let case = ConformanceCase { number, repeats };
            let mut progress = Progress::stderr();
            let link = conform(case, name, self.ground, &config, &mut agents, &mut progress);
            found.extend(link.map_err(Failure::runtime)?);
            if self.stopped() {
                return Ok(Conforming::Stopped);
            }
        }
        Ok(Conforming::Done(Conformed::new(name, found)))
    }

    fn provenance(&self, name: &str) -> Provenance {
        // What makes this report alone, whatever else the command evaluates.
        let mut command = format!("{} evaluate {name}", program());
        if self.args.quick {
            command.push_str(" --quick");
        } else {
            command.push_str(&format!(" --cases {}", self.args.cases));
        }
        if self.args.live > 0.0 {
            command.push_str(&format!(" --live {}", self.args.live));
        }
        if !self.args.criterion.is_empty() {
            command.push_str(&format!(" --criterion {}", self.args.criterion.join(",")));
        }
        Provenance {
            version: self.here.version.clone(),
            commit: self.here.git_commit.clone(),
            command,
            program: program(),
            cases: self.count(),
            live_share: self.args.live,
        }
    }

    fn write(&self, evaluation: &Evaluation) -> Result<(), Failure> {
        let directory = &self.args.results;
        fs::create_dir_all(directory)?;
        let file = |ending: &str| directory.join(format!("{}.{ending}", evaluation.algorithm));
        let mut json = serde_json::to_string_pretty(evaluation).map_err(Failure::runtime)?;
        json.push('\n');
        fs::write(file("json"), json)?;
        fs::write(file("md"), text::markdown(evaluation))?;
        fs::write(file("html"), page::html(evaluation))?;
        if self.args.json {
            return print_json(evaluation);
        }
        print(&format!("{}\n{}\n", text::table(evaluation), file("html").display()))
    }
}

/// The comparison with the kernel's algorithm.
enum Conforming {
    NotAsked,
    Stopped,
    Done(Conformed),
}

/// The name of this command: that of an outside crate has its own.
fn program() -> String {
    let path = std::env::args().next().unwrap_or_default();
    Path::new(&path)
        .file_name()
        .map_or_else(|| "ccplane".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Repeats one case: prints its plan, draws it, or prints what each contender did.
fn one(args: &EvaluateArgs, case: Case, name: &str, ground: Ground<'_>) -> Result<(), Failure> {
    let contenders = contenders(name);
    if args.show {
        return print(&case.text(&contenders));
    }
    if args.plots {
        return plots(args, case, &contenders, ground);
    }
    let mut trace = args.qlog.as_deref().map(Trace::create).transpose()?;
    let mut cells = Vec::new();
    for contender in contenders {
        // The algorithm comes first, and alone is traced.
        let watch = trace.as_mut().filter(|_| cells.is_empty()).map(|trace| trace as &mut dyn Companion);
        cells.push(Play { case, contender }.play_beside(ground, watch).map_err(Failure::runtime)?);
    }
    trace.map_or(Ok(()), Trace::finish)?;
    if args.json {
        return cells.iter().try_for_each(print_json);
    }
    let metrics: BTreeSet<Metric> =
        CRITERIA.iter().flat_map(|c| c.checks()).filter(|c| c.set == case.set()).map(|c| c.metric).collect();
    let header: Vec<&str> = std::iter::once("algorithm").chain(metrics.iter().map(|m| m.title().0)).collect();
    let row = |cell: &Cell| {
        let value = |metric: &Metric| {
            let value = metric.value(&cell.figures);
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3} {}", metric.title().1))
        };
        std::iter::once(cell.algorithm.clone()).chain(metrics.iter().map(value)).collect()
    };
    let plan =
        case.plan(&[Contender::simulated(name)], ground.algorithms, ground.traces).map_err(Failure::input)?;
    let link = plan.scenarios.first().map(|s| s.link.to_string()).unwrap_or_default();
    let rows: Vec<Vec<String>> = cells.iter().map(row).collect();
    print(&format!("{case}: {link}\n{}", super::table(&header, &rows)))
}

/// Runs one case as `ccplane run` does, and draws it.
fn plots(
    args: &EvaluateArgs,
    case: Case,
    contenders: &[Contender],
    ground: Ground<'_>,
) -> Result<(), Failure> {
    let plan = case.plan(contenders, ground.algorithms, ground.traces).map_err(Failure::input)?;
    let name = case.to_string().replace('/', "-");
    let results: PathBuf = args.results.join(format!("{name}.jsonl"));
    let options = Options { results, force: true, command: command_line() };
    let (mut agents, mut progress) = (NoAgents, Progress::stderr());
    let ended = experiment::run(&plan, &options, ground.algorithms, &mut agents, &|| false, &mut progress)
        .map_err(Failure::runtime)?;
    let files = ccplane_report::experiment::write(&ended.results, &args.results, &name);
    print(&format!("{}\n", files.map_err(Failure::runtime)?.html.display()))
}

//! `ccplane evaluate`: algorithms by the criteria of RFC 9743.

mod one;

use super::invoked::Invoked;
use super::output::{print, print_json};
use super::run::OwnAgents;
use super::signals::{SIGNALLED, stop_on_signals};
use crate::cli::EvaluateArgs;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_evaluation::{
    CRITERIA, Case, Cell, ConformanceCase, Conformed, Criterion, Evaluation, EvaluationError, Ground,
    KERNEL_NAMES, Kind, LiveConfig, Play, Provenance, ScenarioSet, Store, Traces, conform, contenders, live,
    live_cases, page, play, text,
};
use ccplane_runner::experiment::{ExperimentError, Progress};
use ccplane_runner::{host, missing_for_links};
use one::One;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Cases of each set with `--quick`.
const QUICK_CASES: u32 = 4;
/// Runs between two lines of progress.
const RUNS_PER_LINE: usize = 100;
/// Links of the comparison with the kernel's algorithm, and runs of both on each; fewer with `--quick`, and no more links than cases.
const CONFORMANCE: (u32, u32) = (4, 4);
const QUICK_CONFORMANCE: (u32, u32) = (3, 2);

pub(crate) fn evaluate(
    args: &EvaluateArgs,
    invoked: &Invoked,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<ExitCode, Failure> {
    ccplane_agent::agent::log_if_asked();
    if args.list {
        return print(&list()).map(|()| ExitCode::SUCCESS);
    }
    let names = names(args, algorithms).map_err(Failure::input)?;
    let traces = Traces::default();
    let ground = Ground { algorithms, traces: &traces };
    if let Some(case) = &args.case {
        let case: Case = case.parse().map_err(Failure::input)?;
        // Those after one that was stopped or failed are left.
        for name in &names {
            let code = One { args, case, name, ground, invoked }.again()?;
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let criteria = criteria(args).map_err(Failure::input)?;
    let missing = if args.live > 0.0 { missing_for_links() } else { Vec::new() };
    if !missing.is_empty() {
        return Err(Failure::runtime(ExperimentError::Missing(missing)));
    }
    let stop = stop_on_signals()?;
    let cells = args.cells.clone().unwrap_or_else(|| args.results.join("cells.jsonl"));
    let store = Store::open(&cells, args.force).map_err(Failure::runtime)?;
    let here = host::here(invoked.line.clone());
    let session = Session { args, invoked, criteria, ground, store: &store, stop: &stop, here };
    let mut evaluations = Vec::new();
    for name in &names {
        match session.evaluate(name)? {
            Some(evaluation) => evaluations.push(evaluation),
            None => {
                eprintln!("ccplane: interrupted; to go on: {}", invoked.line);
                return Ok(ExitCode::from(SIGNALLED));
            }
        }
    }
    if evaluations.len() > 1 {
        fs::write(args.results.join("summary.md"), text::summary(&evaluations))?;
    }
    Ok(ExitCode::SUCCESS)
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
    invoked: &'a Invoked,
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
        let mut agents = OwnAgents::new(self.args.place.locate(None)?);
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
        if self.args.live == 0.0 || !KERNEL_NAMES.contains(&name) {
            return Ok(Conforming::NotAsked);
        }
        if !host::has_kernel_algorithm(name) {
            eprintln!("ccplane: {name}: this kernel has no algorithm of that name to compare with");
            return Ok(Conforming::NotAsked);
        }
        let mut agents = OwnAgents::new(self.args.place.locate(None)?);
        let (directory, stopped) = (self.args.results.join("live"), || self.stopped());
        let config = self.live_config(&directory, &stopped);
        let (links, repeats) = if self.args.quick { QUICK_CONFORMANCE } else { CONFORMANCE };
        let mut found = Vec::new();
        for number in 0..links.min(self.count()) {
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
        let program = &self.invoked.program;
        let mut command = format!("{program} evaluate {name}");
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
            program: program.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use ccplane_evaluation::Figures;
    use ccplane_results::Datapath;
    use clap::Parser;

    /// The commands that a report names select its cells: simulated ones in the simulator, live ones in the kernel.
    #[test]
    fn a_cells_command_selects_its_case_in_its_world() {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let ground = Ground { algorithms: &algorithms, traces: &traces };
        let cell = |datapath| Cell {
            case: "blackout/0".to_owned(),
            algorithm: "copa".to_owned(),
            datapath,
            digest: String::new(),
            figures: Figures::default(),
        };
        let (simulated, live) = ([cell(Datapath::Sim)], [cell(Datapath::Ebpf)]);
        let provenance = Provenance { program: "ccplane".to_owned(), ..Provenance::default() };
        let evaluation = Evaluation::new("copa", &[], (&simulated, &live), None, provenance, ground).unwrap();
        let selected = |command: &str| {
            let parsed = Cli::try_parse_from(command.split(' ')).unwrap().command;
            let Command::Evaluate(args) = parsed else { panic!("{command}") };
            let case: Case = args.case.unwrap().parse().unwrap();
            (args.algorithms, case.to_string(), args.live > 0.0)
        };
        let of = |is_live| (vec!["copa".to_owned()], "blackout/0".to_owned(), is_live);
        assert_eq!((evaluation.cases.len(), evaluation.live.len()), (1, 1));
        assert_eq!(selected(&evaluation.cases[0].command), of(false));
        assert_eq!(selected(&evaluation.live[0].command), of(true));
    }

    /// An outside crate's program goes by its own name, and one inside another process by the name that it is given.
    #[test]
    fn a_program_is_named_by_its_arguments() {
        let invoked = |words: &[&str]| {
            let words: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
            let Invoked { program, line } = Invoked::new(&words);
            (program, line)
        };
        let of = |program: &str, line: &str| (program.to_owned(), line.to_owned());
        assert_eq!(invoked(&["/a/b/tide", "evaluate", "tide"]), of("tide", "/a/b/tide evaluate tide"));
        assert_eq!(invoked(&["ccplane", "evaluate"]), of("ccplane", "ccplane evaluate"));
        assert_eq!(invoked(&[]), of("ccplane", ""));
    }
}

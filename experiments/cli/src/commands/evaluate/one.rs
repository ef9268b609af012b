//! One case alone: its plan, its plots, its trace, or what each contender did in it.

use crate::cli::EvaluateArgs;
use crate::commands::invoked::Invoked;
use crate::commands::output::{print, print_json, table};
use crate::commands::qlog_file::{LiveTrace, Trace};
use crate::commands::run::{OwnAgents, exit_code};
use crate::commands::signals::{SIGNALLED, stop_on_signals};
use ccplane_agent::failure::Failure;
use ccplane_core::Companion;
use ccplane_evaluation::{
    CRITERIA, Case, Cell, Contender, Ground, Metric, Play, contenders, live_cells, live_contenders,
};
use ccplane_runner::experiment::agents::NoAgents;
use ccplane_runner::experiment::{self, ExperimentError, Options, Progress};
use ccplane_runner::missing_for_links;
use ccplane_runner::plan::Plan;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// A case that is repeated for one algorithm.
pub(super) struct One<'a> {
    pub(super) args: &'a EvaluateArgs,
    pub(super) case: Case,
    pub(super) name: &'a str,
    pub(super) ground: Ground<'a>,
    pub(super) invoked: &'a Invoked,
}

impl One<'_> {
    /// Prints its plan, draws it, or prints what each contender did; with kernel flows if it is asked for live.
    pub(super) fn again(&self) -> Result<ExitCode, Failure> {
        if self.args.show {
            return print(&self.case.text(&contenders(self.name))).map(|()| ExitCode::SUCCESS);
        }
        match (self.args.live > 0.0, self.args.plots) {
            (true, _) => self.live(),
            (false, true) => self.plots().map(|()| ExitCode::SUCCESS),
            (false, false) => self.simulated().map(|()| ExitCode::SUCCESS),
        }
    }

    fn simulated(&self) -> Result<(), Failure> {
        let trace = self.args.qlog.as_deref().map(Trace::create).transpose();
        let mut trace = trace.map_err(Failure::runtime)?;
        let mut cells = Vec::new();
        for contender in contenders(self.name) {
            // The algorithm comes first, and alone is traced.
            let watch = trace.as_mut().filter(|_| cells.is_empty()).map(|trace| trace as &mut dyn Companion);
            let play = Play { case: self.case, contender };
            cells.push(play.play_beside(self.ground, watch).map_err(Failure::runtime)?);
        }
        trace.map_or(Ok(()), Trace::finish).map_err(Failure::runtime)?;
        self.print(&cells)
    }

    /// Runs the case with kernel flows, beside the kernel's own algorithms. Nothing of an evaluation's runs is read or changed.
    fn live(&self) -> Result<ExitCode, Failure> {
        let missing = missing_for_links();
        if !missing.is_empty() {
            return Err(Failure::runtime(ExperimentError::Missing(missing)));
        }
        let (case, Ground { algorithms, traces }) = (self.case, self.ground);
        let contenders = live_contenders(self.name);
        let plan = case.live_plan(&contenders, algorithms, traces).map_err(Failure::input)?;
        let stop = stop_on_signals()?;
        let stopped = || stop.load(Ordering::Relaxed);
        let trace = self.args.qlog.as_deref().map(LiveTrace::new);
        let mut agents = OwnAgents::new(self.args.place.locate(None)?).traced(trace.clone());
        let name = format!("{}-live", self.file());
        let ended = experiment::run(
            &plan,
            &self.options(&name),
            algorithms,
            &mut agents,
            &stopped,
            &mut Progress::stderr(),
        );
        let ended = ended.map_err(Failure::runtime)?;
        trace.map_or(Ok(()), |trace| trace.finish()).map_err(Failure::runtime)?;
        if ended.interrupted {
            return Ok(ExitCode::from(SIGNALLED));
        }
        if self.args.plots {
            self.draw(&ended.results, &name)?;
        } else {
            self.print(&live_cells(case, &contenders, &plan, &ended.results))?;
        }
        Ok(exit_code(&ended))
    }

    /// Runs the case as `ccplane run` does, and draws it.
    fn plots(&self) -> Result<(), Failure> {
        let Ground { algorithms, .. } = self.ground;
        let (plan, name) = (self.plan(&contenders(self.name))?, self.file());
        let (mut agents, mut progress) = (NoAgents, Progress::stderr());
        let options = self.options(&name);
        let ended = experiment::run(&plan, &options, algorithms, &mut agents, &|| false, &mut progress)
            .map_err(Failure::runtime)?;
        self.draw(&ended.results, &name)
    }

    fn plan(&self, contenders: &[Contender]) -> Result<Plan, Failure> {
        self.case.plan(contenders, self.ground.algorithms, self.ground.traces).map_err(Failure::input)
    }

    /// The name of its files.
    fn file(&self) -> String {
        self.case.to_string().replace('/', "-")
    }

    fn options(&self, name: &str) -> Options {
        let results: PathBuf = self.args.results.join(format!("{name}.jsonl"));
        Options { results, force: true, command: self.invoked.line.clone() }
    }

    fn draw(&self, results: &ccplane_results::Results, name: &str) -> Result<(), Failure> {
        let files = ccplane_report::experiment::write(results, &self.args.results, name);
        print(&format!("{}\n", files.map_err(Failure::runtime)?.html.display()))
    }

    /// A line for each contender, with the metrics that checks of the case's set have.
    fn print(&self, cells: &[Cell]) -> Result<(), Failure> {
        if self.args.json {
            return cells.iter().try_for_each(print_json);
        }
        let case = self.case;
        let checks = CRITERIA.iter().flat_map(|c| c.checks()).filter(|check| check.set == case.set());
        let metrics: BTreeSet<Metric> = checks.map(|check| check.metric).collect();
        let titles = metrics.iter().map(|m| m.title().0);
        let header: Vec<&str> = std::iter::once("algorithm").chain(titles).collect();
        let row = |cell: &Cell| {
            let value = |metric: &Metric| {
                let value = metric.value(&cell.figures);
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3} {}", metric.title().1))
            };
            let contender = Contender { algorithm: cell.algorithm.clone(), datapath: cell.datapath };
            std::iter::once(contender.name()).chain(metrics.iter().map(value)).collect()
        };
        let plan = self.plan(&[Contender::simulated(self.name)])?;
        let link = plan.scenarios.first().map(|s| s.link.to_string()).unwrap_or_default();
        let rows: Vec<Vec<String>> = cells.iter().map(row).collect();
        print(&format!("{case}: {link}\n{}", table(&header, &rows)))
    }
}

//! Runs plans: `ccplane run`.

use super::output::{print, print_json};
use super::qlog_file::{Follower, LiveTrace};
use super::signals::{SIGNALLED, stop_on_signals};
use crate::cli::RunArgs;
use ccplane_agent::agent::{OwnLoop, waker};
use ccplane_agent::config::Switch;
use ccplane_agent::control::FlowRecord;
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_alg::Algorithm;
use ccplane_contract::Datapath;
use ccplane_core::{Companion, NATIVE, Rule, Rules};
use ccplane_fabric::{FabricPlan, PLANS};
use ccplane_report::experiment::{Compared, comparisons};
use ccplane_runner::experiment::agents::{Agent, AgentFlow, AgentRule, Agents, BoxError, InKernel, Waker};
use ccplane_runner::experiment::{self, Ended, Options, Progress, results_path};
use ccplane_runner::host;
use ccplane_runner::plan::{Known, Overrides, Plan, PlanError, shipped, why_not_there};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest run, milliseconds, and the number of repeats of `--quick`.
const QUICK: (u64, u32) = (5_000, 1);

pub(crate) fn run(args: &RunArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<ExitCode, Failure> {
    ccplane_agent::agent::log_if_asked();
    if args.list {
        return list(args.json, algorithms).map(|()| ExitCode::SUCCESS);
    }
    if let Some(name) = &args.show {
        return show(name).map(|()| ExitCode::SUCCESS);
    }
    let name = args.plan.as_deref().unwrap_or_default();
    if let Some(plan) = super::fabric::find(name, args)? {
        return super::fabric::run(&plan, args);
    }
    if args.live {
        return Err(Failure::input(NotOfAFabric));
    }
    let kernel = host::kernel_algorithms();
    let overrides = overrides(args);
    let cellular = args.trace.as_deref().map(std::path::absolute).transpose()?;
    let cellular = cellular.as_deref().map(Path::to_string_lossy);
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms, kernel: Some(&kernel), traces: &traces, cellular: cellular.as_deref() };
    let mut plan = shipped::load(name, &known, overrides).map_err(Failure::input)?;
    if args.quick {
        plan.name.push_str("-quick");
    }
    let located = args.place.locate(None)?;
    if !located.config.datapath.module.is_wanted() {
        plan.leave_out(ccplane_results::Datapath::Module).map_err(Failure::input)?;
    }
    if args.check {
        return print(&checked(&plan)).map(|()| ExitCode::SUCCESS);
    }
    if let Some(scenario) = &args.plots {
        return plots(args, &plan, scenario);
    }
    for (datapath, names) in left_out(&plan) {
        eprintln!("ccplane: left out: {}: {}", names.join(", "), why_not_there(datapath));
    }
    let ended = execute(&plan, &args.results, args.force, located, algorithms)?;
    finish(args, &plan, &ended)
}

/// The error for `--live` with a plan whose contenders name their datapaths.
#[derive(Debug, thiserror::Error)]
#[error("--live is for plans of fabrics: the contenders of other plans name their datapaths")]
struct NotOfAFabric;

/// Names of the contenders that are left out, by their datapath.
fn left_out(plan: &Plan) -> BTreeMap<ccplane_results::Datapath, Vec<&str>> {
    let mut names = BTreeMap::<_, Vec<&str>>::new();
    for contender in &plan.left_out {
        names.entry(contender.datapath).or_default().push(&contender.name);
    }
    names
}

/// Runs a plan until its end or a signal; its results are in `directory`.
pub(super) fn execute(
    plan: &Plan,
    directory: &Path,
    force: bool,
    located: Located,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<Ended, Failure> {
    let stop = stop_on_signals()?;
    let mut agents = OwnAgents::new(located);
    let options = Options {
        results: results_path(directory, plan),
        force,
        command: std::env::args().collect::<Vec<_>>().join(" "),
    };
    let stopped = || stop.load(Ordering::Relaxed);
    let mut progress = Progress::stderr();
    experiment::run(plan, &options, algorithms, &mut agents, &stopped, &mut progress)
        .map_err(Failure::runtime)
}

/// Draws one scenario of existing results.
fn plots(args: &RunArgs, plan: &Plan, scenario: &str) -> Result<ExitCode, Failure> {
    let results = ccplane_results::read(&results_path(&args.results, plan)).map_err(Failure::input)?;
    let directory = args.report.as_ref().unwrap_or(&args.results);
    let files = ccplane_report::experiment::write_scenario(&results, scenario, directory, &plan.name);
    match files.map_err(Failure::runtime)? {
        Some(files) => print(&format!("{}\n", files.html.display())).map(|()| ExitCode::SUCCESS),
        None => {
            let known = results.header.scenarios.iter().take(10).map(|s| s.name.clone()).collect();
            Err(Failure::input(NoScenario { found: scenario.to_owned(), known }))
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no scenario is called `{found}`; the first are {}", .known.join(", "))]
struct NoScenario {
    found: String,
    known: Vec<String>,
}

fn overrides(args: &RunArgs) -> Overrides {
    match args.quick {
        true => Overrides { repeats: Some(QUICK.1), duration_ms: None, at_most_ms: Some(QUICK.0) },
        false => Overrides {
            repeats: args.repeats,
            duration_ms: args.duration.map(|s| s * 1000),
            at_most_ms: None,
        },
    }
}

/// A plan that comes with ccplane.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    title: String,
    runs: u64,
    /// Time that its runs take together in the kernel, seconds; simulated ones are faster.
    seconds: u64,
}

fn list(json: bool, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms, kernel: None, traces: &traces, cellular: None };
    let listed = |plan: &shipped::Shipped| {
        let loaded = shipped::load(plan.name, &known, Overrides::default()).map_err(Failure::input)?;
        let at_once = if loaded.at_once { loaded.contenders.len().max(1) as u64 } else { 1 };
        let seconds = loaded.runs() / at_once * loaded.duration_ms / 1000;
        Ok(Listed { name: plan.name, title: loaded.title.clone(), runs: loaded.runs(), seconds })
    };
    let mut plans = shipped::PLANS.iter().map(listed).collect::<Result<Vec<_>, Failure>>()?;
    plans.extend(fabrics()?);
    if json {
        return plans.iter().try_for_each(print_json);
    }
    let row = |p: &Listed| {
        vec![p.name.to_owned(), p.runs.to_string(), p.seconds.div_ceil(60).to_string(), p.title.clone()]
    };
    print(&super::output::table(
        &["plan", "runs", "minutes", "what"],
        &plans.iter().map(row).collect::<Vec<_>>(),
    ))
}

/// The plans of fabrics, whose runs are simulated.
fn fabrics() -> Result<Vec<Listed>, Failure> {
    let listed = |(name, text): &(&'static str, &str)| {
        let plan = FabricPlan::parse(Path::new(name), text, None).map_err(Failure::input)?;
        Ok(Listed { name, title: plan.title.clone(), runs: plan.runs() as u64, seconds: 0 })
    };
    PLANS.iter().map(listed).collect()
}

fn show(name: &str) -> Result<(), Failure> {
    if let Some((_, text)) = PLANS.iter().find(|(fabric, _)| *fabric == name) {
        return print(text);
    }
    match shipped::PLANS.iter().find(|p| p.name == name) {
        Some(plan) => print(plan.source),
        None => {
            let known = shipped::PLANS.iter().map(|p| p.name).collect();
            Err(Failure::input(PlanError::NoSuchPlan { name: name.to_owned(), known }))
        }
    }
}

fn checked(plan: &Plan) -> String {
    let mut text = format!("{}: {}\n", plan.name, plan.title);
    for scenario in &plan.scenarios {
        text.push_str(&format!("  {}: {}\n", scenario.name, scenario.link));
    }
    let contenders: Vec<&str> = plan.contenders.iter().map(|c| c.name.as_str()).collect();
    text.push_str(&format!(
        "  {}\n  {} runs of {} s, {} repeats each\n",
        contenders.join(", "),
        plan.runs(),
        plan.duration_ms as f64 / 1000.0,
        plan.repeats
    ));
    text
}

/// The part of the JSON output that `run` and `demo` have in common.
#[derive(Serialize)]
pub(super) struct PlanOutput<'a> {
    results: &'a Path,
    report: Option<&'a Path>,
    runs: u64,
    done: u64,
    failed: u64,
    interrupted: bool,
}

impl<'a> PlanOutput<'a> {
    pub(super) fn new(ended: &'a Ended, report: Option<&'a Path>) -> PlanOutput<'a> {
        PlanOutput {
            results: &ended.path,
            report,
            runs: ended.total,
            done: ended.done,
            failed: ended.failed,
            interrupted: ended.interrupted,
        }
    }
}

/// The JSON output of `ccplane run`.
#[derive(Serialize)]
struct Summary<'a> {
    plan: &'a str,
    #[serde(flatten)]
    outcome: PlanOutput<'a>,
    comparisons: Vec<Compared>,
}

/// Writes the report of the runs that ended well and returns its page's path; without such runs there is none.
pub(super) fn write_report(ended: &Ended, directory: &Path, name: &str) -> Result<Option<PathBuf>, Failure> {
    if ended.done == 0 {
        return Ok(None);
    }
    let files = ccplane_report::experiment::write(&ended.results, directory, name);
    Ok(Some(files.map_err(Failure::runtime)?.html))
}

fn finish(args: &RunArgs, plan: &Plan, ended: &Ended) -> Result<ExitCode, Failure> {
    let directory = args.report.as_ref().unwrap_or(&args.results);
    let report = write_report(ended, directory, &plan.name)?;
    if args.json {
        print_json(&Summary {
            plan: &plan.name,
            outcome: PlanOutput::new(ended, report.as_deref()),
            comparisons: comparisons(&ended.results),
        })?;
    } else {
        print(&text(ended, report.as_deref()))?;
    }
    Ok(exit_code(ended))
}

pub(super) fn exit_code(ended: &Ended) -> ExitCode {
    match ended {
        Ended { interrupted: true, .. } => ExitCode::from(SIGNALLED),
        Ended { failed: 1.., .. } => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    }
}

fn text(ended: &Ended, report: Option<&Path>) -> String {
    let mut text = String::new();
    if ended.done > 0 {
        comparisons(&ended.results).iter().for_each(|c| text.push_str(&format!("{c}\n")));
    }
    text.push_str(&format!("{} of {} runs in {}\n", ended.done, ended.total, ended.path.display()));
    if ended.failed > 0 {
        text.push_str(&format!("{} runs failed twice; the same command tries them again\n", ended.failed));
    }
    if ended.interrupted {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        text.push_str(&format!("interrupted; to go on: {command}\n"));
    }
    if let Some(report) = report {
        text.push_str(&format!("report: {}\n", report.display()));
    }
    text
}

/// Starts agents as loops of this process, one for each run.
pub(super) struct OwnAgents {
    located: Located,
    /// A file for what the kernel's flows and their agent tell each other.
    trace: Option<LiveTrace>,
}

impl OwnAgents {
    pub(super) fn new(located: Located) -> OwnAgents {
        OwnAgents { located, trace: None }
    }

    /// The same with a trace of the kernel's flows, of the last agent that is started.
    pub(super) fn traced(self, trace: Option<LiveTrace>) -> OwnAgents {
        OwnAgents { trace, ..self }
    }

    /// Returns the core's rules, and the algorithms that they name.
    fn resolve(rules: &[AgentRule]) -> (Rules, Vec<Arc<dyn Algorithm>>) {
        let rule =
            |s: &AgentRule| Rule { remote_port: Some(s.ports.clone()), ..Rule::any(s.algorithm.name()) };
        let steered = Rules { rules: rules.iter().map(rule).collect(), default: NATIVE.to_owned() };
        let mut algorithms: Vec<Arc<dyn Algorithm>> = Vec::new();
        for rule in rules {
            if !algorithms.iter().any(|a| a.name() == rule.algorithm.name()) {
                algorithms.push(Arc::clone(&rule.algorithm));
            }
        }
        (steered, algorithms)
    }

    fn agent(own: OwnLoop, congestion: String, trace: Option<Follower>) -> Box<dyn Agent> {
        Box::new(OwnAgent { own, congestion, _trace: trace })
    }

    /// The configuration of an agent that gets to the kernel's flows in this way alone, and what these flows choose.
    fn located_for(&self, by: InKernel) -> (Located, String) {
        let mut config = self.located.config.clone();
        let congestion = match by {
            InKernel::Bpf => {
                config.datapath.module.mode = Switch::Off;
                config.datapath.ebpf.name.clone()
            }
            InKernel::Module => {
                config.datapath.module.mode = Switch::On;
                // The module gives its device the name of its congestion control.
                let device = config.datapath.module.device.file_name();
                device.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
        };
        (Located { config, control_socket: self.located.control_socket.clone() }, congestion)
    }
}

impl Agents for OwnAgents {
    fn start(&mut self, by: InKernel, rules: &[AgentRule]) -> Result<Box<dyn Agent>, BoxError> {
        let (steered, algorithms) = OwnAgents::resolve(rules);
        let (located, congestion) = self.located_for(by);
        let started = match rules.iter().any(|rule| rule.learning) {
            true => OwnLoop::start_learning(&located, &steered, &algorithms),
            false => OwnLoop::start(&located, &steered, &algorithms),
        };
        let kernel = started.map_err(|failure| BoxError::from(failure.message()))??;
        let trace = self.trace.as_ref().map(|trace| trace.follow(&kernel)).transpose()?;
        Ok(OwnAgents::agent(kernel, congestion, trace))
    }

    fn embed(
        &mut self,
        rules: &[AgentRule],
        make: &mut dyn FnMut(Waker) -> Box<dyn Datapath + Send>,
    ) -> Result<Box<dyn Agent>, BoxError> {
        let (steered, algorithms) = OwnAgents::resolve(rules);
        let learns = rules.iter().any(|rule| rule.learning);
        let (waker, woken) = waker();
        let started =
            OwnLoop::start_embedded(&self.located, &steered, &algorithms, make(waker), woken, learns);
        // Flows of this process choose no congestion control.
        let own = started.map_err(|failure| BoxError::from(failure.message()))?;
        Ok(OwnAgents::agent(own, String::new(), None))
    }

    fn learner(&mut self, algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Box<dyn Companion>, BoxError> {
        ccplane_agent::learning::beside(algorithm, seed, self.located.config.learn.on().mode)
    }
}

fn steered_by(record: &FlowRecord) -> String {
    let words = record.mode_words();
    match &record.program {
        _ if !record.is_steered() => format!("native: {words}"),
        Some(program) if record.waits_for_ack => format!("program {program} ({words})"),
        Some(program) => format!("program {program}"),
        None => words.to_owned(),
    }
}

struct OwnAgent {
    own: OwnLoop,
    congestion: String,
    /// Dropped after the loop, with which its records end.
    _trace: Option<Follower>,
}

impl Agent for OwnAgent {
    fn congestion(&self) -> &str {
        &self.congestion
    }

    fn flows(&mut self) -> Vec<AgentFlow> {
        let flows = self.own.flows();
        let steered = |r: &FlowRecord| AgentFlow {
            local: r.local,
            remote: r.remote,
            steered: r.is_steered(),
            steered_by: steered_by(r),
            reports: r.transport.reports.unwrap_or(0),
            faults: r.transport.faults.unwrap_or(0),
            state: r.arm.as_ref().map(|arm| arm.name.clone()).or_else(|| r.state.clone()),
        };
        flows.iter().map(steered).collect()
    }

    fn reports(&mut self) -> u64 {
        self.own.reports()
    }
}

//! Runs a plan: every contender in every scenario, alternating, repeated, each run recorded as it ends.

pub mod agents;
mod cpu;
mod header;
mod live;
mod parallel;
mod progress;
mod schedule;
mod simulated;
mod store;
mod stretches;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ccplane_alg::{Algorithm, renewed};
use ccplane_core::Companion;
use ccplane_emulator::netns;
use ccplane_netsim::workload::{Arrival, Arrivals};
use ccplane_results::{Contender, Datapath, Results, Run, RunFigures, RunOutcome};

use crate::error::{Error, Result};
use crate::host;
use crate::percentiles::percentiles;
use crate::plan::{MAX_ARRIVALS, Plan, Scenario, ShortBackground, Tool, Traffic};
use crate::preflight::{Missing, missing_for_links};
use crate::table::Row;
use agents::{Agents, NoAgents};
pub use header::header;
use progress::Estimate;
pub use progress::Progress;
pub use schedule::{Slot, schedule, seed};
pub use simulated::{TUN_HEADER_BYTES, way_back};
pub use store::{Store, StoreError};

/// A run is tried so often in one go.
const ATTEMPTS: u32 = 2;

/// The way in which a plan is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub results: PathBuf,
    /// Whether results that are there are put aside, whatever they are of.
    pub force: bool,
    /// The command line, for the results.
    pub command: String,
}

/// The result of a plan's runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    /// All runs that the file holds.
    pub results: Results,
    /// The path of the results file.
    pub path: PathBuf,
    /// Runs of the plan.
    pub total: u64,
    /// Those among them that have ended well.
    pub done: u64,
    /// Those that have not, though they were tried.
    pub failed: u64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// Reasons why nothing was run, or no more.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The results cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The machine lacks something.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Missing(Vec<Missing>),
    /// The machine cannot do what some run needs.
    #[error(transparent)]
    Run(#[from] Error),
}

/// A run with its scenario, contender and seed.
struct Job<'a> {
    plan: &'a Plan,
    scenario: &'a Scenario,
    contender: &'a Contender,
    seed: u64,
    algorithms: &'a [Arc<dyn Algorithm>],
    /// Its number among those that run at the same time.
    lane: u16,
}

impl Job<'_> {
    /// The short flows of this run; the same for every contender of one repeat.
    fn arrivals(&self) -> Vec<Arrival> {
        let end_us = self.plan.duration_ms * 1000;
        match &self.scenario.traffic {
            Traffic::Bulk { .. } => Vec::new(),
            Traffic::ShortFlows { sizes, load_ppm } => {
                let rate = self.scenario.link.medium.rate_bit_per_s().unwrap_or(0);
                let arrivals = Arrivals::new(sizes, *load_ppm, rate, self.seed).into_iter().flatten();
                let most = usize::try_from(2 * MAX_ARRIVALS).unwrap_or(usize::MAX);
                arrivals.take_while(|a| a.start_us < end_us).take(most).collect()
            }
            Traffic::Incast { senders, bytes, every_us } => {
                let moments = (0..end_us).step_by(usize::try_from(*every_us).unwrap_or(usize::MAX));
                let at = |start_us| (0..*senders).map(move |_| Arrival { start_us, bytes: *bytes });
                moments.flat_map(at).collect()
            }
        }
    }

    /// Returns the name of the short flows' size distribution.
    fn distribution(&self) -> String {
        match &self.scenario.traffic {
            Traffic::Bulk { .. } => String::new(),
            Traffic::ShortFlows { sizes, .. } => sizes.name().to_owned(),
            Traffic::Incast { .. } => "incast".to_owned(),
        }
    }
}

/// Returns the short flows beside a contender's, of each kind in the plan's order; the same for every contender of one repeat.
#[must_use]
pub fn short_arrivals(scenario: &Scenario, seed: u64) -> Vec<Vec<Arrival>> {
    let rate = scenario.link.medium.rate_bit_per_s().unwrap_or(0);
    let most = usize::try_from(2 * MAX_ARRIVALS).unwrap_or(usize::MAX);
    let of = |(short, n): (&ShortBackground, u64)| {
        let (from_us, end_us) = (short.start_ms * 1000, short.stop_ms * 1000);
        let arrivals =
            Arrivals::new(&short.sizes, short.load_ppm, rate, seed ^ (n + 1)).into_iter().flatten();
        let later = arrivals.map(|a| Arrival { start_us: a.start_us + from_us, ..a });
        later.take_while(|a| a.start_us < end_us).take(most).collect()
    };
    scenario.short.iter().zip(0..).map(of).collect()
}

/// Runs jobs at the same time; one that is simulated runs alone. The outer error is that of all.
fn run_jobs(
    jobs: &[Job<'_>],
    agents: &mut dyn Agents,
    control: &mut RunControl<'_>,
) -> Result<Vec<Result<RunFigures>>> {
    let mut outcomes = match jobs {
        [job] if job.contender.datapath == Datapath::Sim => vec![simulated::run(job, agents, control, None)],
        _ => live::run(jobs, agents, control)?,
    };
    for (job, measured) in jobs.iter().zip(&mut outcomes) {
        if let Ok(measured) = measured {
            measured.stretches = stretches::stretches(&job.scenario.link, job.plan.duration_ms, measured);
        }
    }
    Ok(outcomes)
}

/// Callbacks of a run: one draws its progress, the other asks whether to stop.
struct RunControl<'a> {
    stopped: &'a dyn Fn() -> bool,
    draw: &'a mut dyn FnMut(Duration, &[Row]),
}

impl RunControl<'_> {
    /// Shows the progress and checks whether to go on.
    ///
    /// # Errors
    /// `Stopped` if the caller gives the run up.
    fn poll(&mut self, elapsed: Duration, rows: &[Row]) -> Result<()> {
        (self.draw)(elapsed, rows);
        if (self.stopped)() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// Runs a contender of a plan once in the simulator, all by itself: other threads may run others, and no run knows what
/// another's flows have taught an algorithm.
///
/// # Errors
/// A number that the simulator refuses, or the contender is no simulated one.
pub fn simulate(
    plan: &Plan,
    scenario: &Scenario,
    contender: &Contender,
    seed: u64,
    algorithms: &[Arc<dyn Algorithm>],
) -> Result<RunFigures> {
    simulate_beside(plan, scenario, contender, seed, algorithms, None)
}

/// The same with a companion beside the run's agent, such as one that writes a trace.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_beside(
    plan: &Plan,
    scenario: &Scenario,
    contender: &Contender,
    seed: u64,
    algorithms: &[Arc<dyn Algorithm>],
    beside: Option<&mut dyn Companion>,
) -> Result<RunFigures> {
    simulate_with_knowledge(plan, scenario, contender, seed, &renewed(algorithms), beside)
}

/// The same where algorithms know what earlier runs' flows have taught them, as those of one agent do.
///
/// # Errors
/// The errors of [`simulate`].
pub fn simulate_with_knowledge(
    plan: &Plan,
    scenario: &Scenario,
    contender: &Contender,
    seed: u64,
    algorithms: &[Arc<dyn Algorithm>],
    beside: Option<&mut dyn Companion>,
) -> Result<RunFigures> {
    let job = Job { plan, scenario, contender, seed, algorithms, lane: 0 };
    let mut control = RunControl { stopped: &|| false, draw: &mut |_, _| {} };
    simulated::run(&job, &mut NoAgents, &mut control, beside).map(|measured| RunFigures {
        stretches: stretches::stretches(&scenario.link, plan.duration_ms, &measured),
        ..measured
    })
}

/// Runs what of the plan has not been run yet. Each run is on disk before the next one starts; a failed one is recorded and
/// tried once more. When `stopped` says so, the run at work is given up and everything that it made is removed.
///
/// # Errors
/// The results cannot be written, or the machine lacks something; nothing was run then.
pub fn run<W: std::io::Write>(
    plan: &Plan,
    options: &Options,
    algorithms: &[Arc<dyn Algorithm>],
    agents: &mut dyn Agents,
    stopped: &dyn Fn() -> bool,
    progress: &mut Progress<W>,
) -> std::result::Result<Ended, ExperimentError> {
    preflight(plan, algorithms, agents)?;
    let header = header(plan, options.command.clone());
    let mut store = Store::open(&options.results, &header, options.force)?;
    let mut session = Session {
        plan,
        algorithms,
        estimate: Estimate::default(),
        pending: schedule(plan).into_iter().filter(|slot| !is_done(&store, plan, *slot)).collect(),
    };
    progress.begin(plan.runs(), plan.runs() - session.pending.len() as u64);
    if session.pending.len() as u64 != plan.runs() {
        let done = plan.runs() - session.pending.len() as u64;
        progress.say(&format!("{done} of {} runs are in {} already", plan.runs(), options.results.display()));
    }
    let ended = session.run_all(&mut store, agents, stopped, progress);
    progress.end();
    let (failed, interrupted) = ended?;
    let done = schedule(plan).into_iter().filter(|slot| is_done(&store, plan, *slot)).count() as u64;
    Ok(Ended {
        path: store.path().to_owned(),
        results: store.results,
        total: plan.runs(),
        done,
        failed,
        interrupted,
    })
}

fn is_done(store: &Store, plan: &Plan, slot: Slot) -> bool {
    store.is_done(&plan.scenarios[slot.scenario].name, &plan.contenders[slot.contender].name, slot.repeat)
}

/// Checks the needs of all runs before the first.
fn preflight(
    plan: &Plan,
    algorithms: &[Arc<dyn Algorithm>],
    agents: &mut dyn Agents,
) -> std::result::Result<(), ExperimentError> {
    if plan.contenders.iter().all(|c| c.datapath == Datapath::Sim) {
        return Ok(());
    }
    let missing = missing_for_links();
    if !missing.is_empty() {
        return Err(ExperimentError::Missing(missing));
    }
    netns::clean_leftovers();
    if plan.scenarios.iter().any(|s| matches!(s.traffic, Traffic::Bulk { tool: Tool::Iperf3, .. })) {
        live::iperf3::check_program()?;
    }
    for contender in &plan.contenders {
        let Some(by) = live::in_kernel(contender.datapath) else { continue };
        let job = Job { plan, scenario: &plan.scenarios[0], contender, seed: 0, algorithms, lane: 0 };
        agents.start(by, &live::rules(&job)?).map_err(Error::Agent)?;
    }
    Ok(())
}

struct Session<'a> {
    plan: &'a Plan,
    algorithms: &'a [Arc<dyn Algorithm>],
    estimate: Estimate,
    pending: Vec<Slot>,
}

impl Session<'_> {
    /// Returns how many failed, and whether it was stopped. Runs that are simulated alone come first, on all cores.
    fn run_all<W: std::io::Write>(
        &mut self,
        store: &mut Store,
        agents: &mut dyn Agents,
        stopped: &dyn Fn() -> bool,
        progress: &mut Progress<W>,
    ) -> std::result::Result<(u64, bool), StoreError> {
        let (simulated, rest): (Vec<Slot>, Vec<Slot>) =
            self.pending.iter().copied().partition(|slot| self.is_simulated_alone(*slot));
        let (mut failed, interrupted) = self.run_simulated(&simulated, store, stopped, progress)?;
        if interrupted {
            return Ok((failed, true));
        }
        let groups = self.groups(&rest);
        for (n, group) in groups.iter().enumerate() {
            let mut open = group.clone();
            for _ in 0..ATTEMPTS {
                let left = groups[n..].iter().map(|group| self.expected(group[0])).sum();
                progress.run(self.group_label(group), self.expected(group[0]), left);
                let mut draw = |elapsed, rows: &[Row]| progress.draw(elapsed, rows);
                let mut control = RunControl { stopped, draw: &mut draw };
                let tries: Vec<(Slot, u32)> =
                    open.iter().map(|slot| (*slot, self.tried(store, *slot) + 1)).collect();
                let Some(runs) = self.attempt(&tries, agents, &mut control) else {
                    return Ok((failed, true));
                };
                let mut again = Vec::new();
                for (slot, run) in open.into_iter().zip(runs) {
                    if !self.keep(slot, run, store, progress)? {
                        again.push(slot);
                    }
                }
                open = again;
                if open.is_empty() {
                    break;
                }
            }
            failed += open.len() as u64;
        }
        Ok((failed, false))
    }

    fn run_simulated<W: std::io::Write>(
        &mut self,
        slots: &[Slot],
        store: &mut Store,
        stopped: &dyn Fn() -> bool,
        progress: &mut Progress<W>,
    ) -> std::result::Result<(u64, bool), StoreError> {
        if slots.is_empty() {
            return Ok((0, false));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(slots.len());
        let worker = Session { estimate: Estimate::default(), pending: Vec::new(), ..*self };
        let tried: HashMap<Slot, u32> = slots.iter().map(|slot| (*slot, self.tried(store, *slot))).collect();
        let run = |slot: Slot, halted: &dyn Fn() -> bool| {
            let mut runs = Vec::new();
            for attempt in 1..=ATTEMPTS {
                let mut control = RunControl { stopped: halted, draw: &mut |_, _| {} };
                let run = worker.attempt(&[(slot, tried[&slot] + attempt)], &mut NoAgents, &mut control)?;
                let run = run.into_iter().next()?;
                let ended_well = matches!(run.outcome, RunOutcome::Ok(_));
                runs.push(run);
                if ended_well {
                    break;
                }
            }
            Some(runs)
        };
        let mut keeper =
            Keeper { session: self, store, stopped, progress, cores, left: slots.len(), failed: 0 };
        keeper.announce(slots[0]);
        let interrupted = parallel::run_all(slots, cores, &run, &mut keeper)?;
        Ok((keeper.failed, interrupted))
    }

    /// Whether a run needs neither the machine to itself nor an agent of the caller's.
    fn is_simulated_alone(&self, slot: Slot) -> bool {
        let contender = &self.plan.contenders[slot.contender];
        contender.datapath == Datapath::Sim && !contender.learning
    }

    /// Runs that go on at the same time: each alone, or all contenders of a scenario where the plan says so.
    fn groups(&self, slots: &[Slot]) -> Vec<Vec<Slot>> {
        let together = |slot: &Slot| {
            let live = self.plan.contenders[slot.contender].datapath != Datapath::Sim;
            (self.plan.at_once && live).then_some((slot.repeat, slot.scenario))
        };
        let same = |a: &Slot, b: &Slot| together(a).is_some() && together(a) == together(b);
        slots.chunk_by(same).map(<[Slot]>::to_vec).collect()
    }

    /// Returns the label of a group of runs while it is under way.
    fn group_label(&self, group: &[Slot]) -> String {
        match group {
            [slot] if !self.plan.at_once => self.label(*slot),
            _ => {
                let (scenario, seconds) = (group[0].scenario, self.plan.duration_ms as f64 / 1e3);
                let (n, all) = (scenario + 1, self.plan.scenarios.len());
                format!("of {seconds} s, link {n} of {all}: {}", self.plan.scenarios[scenario].name)
            }
        }
    }

    fn label(&self, slot: Slot) -> String {
        let contender = &self.plan.contenders[slot.contender];
        let scenario = &self.plan.scenarios[slot.scenario];
        format!("{}, {}, repeat {}", contender.name, scenario.name, slot.repeat + 1)
    }

    /// Attempts that the results hold.
    fn tried(&self, store: &Store, slot: Slot) -> u32 {
        let contender = &self.plan.contenders[slot.contender];
        let scenario = &self.plan.scenarios[slot.scenario];
        store.runs(&scenario.name, &contender.name, slot.repeat).count() as u32
    }

    /// Writes a run down; whether it ended well.
    fn keep<W: std::io::Write>(
        &mut self,
        slot: Slot,
        run: Run,
        store: &mut Store,
        progress: &mut Progress<W>,
    ) -> std::result::Result<bool, StoreError> {
        let ended_well = matches!(run.outcome, RunOutcome::Ok(_));
        if ended_well {
            let simulated = self.plan.contenders[slot.contender].datapath == Datapath::Sim;
            self.estimate.add(simulated, Duration::from_millis(run.wall_ms));
        }
        let said = said(&run.outcome);
        store.append(run)?;
        progress.ran(&self.label(slot), ended_well, &said);
        Ok(ended_well)
    }

    fn expected(&self, slot: Slot) -> Duration {
        let simulated = self.plan.contenders[slot.contender].datapath == Datapath::Sim;
        self.estimate.of(simulated, Duration::from_millis(self.plan.duration_ms))
    }

    /// One try of each of these runs, which go on at the same time; `None` if they were stopped.
    fn attempt(
        &self,
        tries: &[(Slot, u32)],
        agents: &mut dyn Agents,
        control: &mut RunControl<'_>,
    ) -> Option<Vec<Run>> {
        let algorithms = renewed(self.algorithms);
        let job = |((slot, _), lane): (&(Slot, u32), u16)| Job {
            plan: self.plan,
            scenario: &self.plan.scenarios[slot.scenario],
            contender: &self.plan.contenders[slot.contender],
            seed: seed(self.plan, *slot),
            algorithms: &algorithms,
            lane,
        };
        let jobs: Vec<Job<'_>> = tries.iter().zip(0..).map(job).collect();
        let started_at = host::rfc3339(SystemTime::now());
        let begun = Instant::now();
        let outcomes: Vec<RunOutcome> = match run_jobs(&jobs, agents, control) {
            Err(Error::Stopped) => return None,
            Err(_) if (control.stopped)() => return None,
            Err(error) => jobs.iter().map(|_| RunOutcome::Failed { error: error.to_string() }).collect(),
            Ok(outcomes) => {
                if outcomes.iter().any(Result::is_err) && (control.stopped)() {
                    return None;
                }
                outcomes.into_iter().map(outcome).collect()
            }
        };
        let run = |((job, (slot, attempt)), outcome): ((&Job<'_>, &(Slot, u32)), RunOutcome)| Run {
            scenario: job.scenario.name.clone(),
            contender: job.contender.name.clone(),
            repeat: slot.repeat,
            attempt: *attempt,
            seed: job.seed,
            started_at: started_at.clone(),
            wall_ms: begun.elapsed().as_millis() as u64,
            outcome,
        };
        Some(jobs.iter().zip(tries).zip(outcomes).map(run).collect())
    }
}

fn outcome(measured: Result<RunFigures>) -> RunOutcome {
    match measured {
        Ok(measured) => RunOutcome::Ok(Box::new(measured)),
        Err(error) => RunOutcome::Failed { error: error.to_string() },
    }
}

/// Writes simulated runs down as they come.
struct Keeper<'a, 'p, W> {
    session: &'a mut Session<'p>,
    store: &'a mut Store,
    stopped: &'a dyn Fn() -> bool,
    progress: &'a mut Progress<W>,
    cores: usize,
    left: usize,
    failed: u64,
}

impl<W: std::io::Write> Keeper<'_, '_, W> {
    fn announce(&mut self, slot: Slot) {
        let expected = self.session.expected(slot) / self.cores as u32;
        let label = self.session.label(slot);
        self.progress.run(label, expected, expected * u32::try_from(self.left).unwrap_or(u32::MAX));
    }
}

impl<W: std::io::Write> parallel::RunSink for Keeper<'_, '_, W> {
    type Error = StoreError;

    fn take(&mut self, slot: Slot, attempts: Vec<Run>) -> std::result::Result<(), StoreError> {
        let mut ended_well = false;
        for run in attempts {
            self.announce(slot);
            ended_well = self.session.keep(slot, run, self.store, self.progress)?;
        }
        self.left -= 1;
        self.failed += u64::from(!ended_well);
        Ok(())
    }

    fn stops(&mut self) -> bool {
        self.progress.draw(Duration::ZERO, &[]);
        (self.stopped)()
    }
}

/// A run in a few words.
fn said(outcome: &RunOutcome) -> String {
    let measured = match outcome {
        RunOutcome::Ok(measured) => measured,
        RunOutcome::Failed { error } => return format!("failed: {error}"),
    };
    let mut said = Vec::new();
    let own = || measured.flows.iter().filter(|f| f.background.is_none());
    if own().next().is_some() {
        let bps: u64 = own().map(|f| f.throughput_bps).sum();
        let rtt_us: u64 = own().map(|f| f.rtt_us.mean).sum::<u64>() / own().count() as u64;
        said.push(format!("{:.1} Mb/s, RTT {:.1} ms", bps as f64 / 1e6, rtt_us as f64 / 1e3));
    }
    if let Some(completions) = &measured.completions {
        let fcts = percentiles(completions.flows.iter().map(|f| f.fct_us).collect());
        said.push(format!(
            "{} flows, completion p50 {:.1} ms, p95 {:.1} ms, {} unfinished",
            completions.flows.len(),
            fcts.p50 as f64 / 1e3,
            fcts.p95 as f64 / 1e3,
            completions.unfinished
        ));
    }
    if let Some(unsteered) = measured.agent.map(|a| a.unsteered_flows).filter(|n| *n > 0) {
        said.push(format!("{unsteered} flows NOT steered"));
    }
    said.join("; ")
}

/// Returns the path of a plan's results in a directory.
#[must_use]
pub fn results_path(directory: &Path, plan: &Plan) -> PathBuf {
    directory.join(format!("{}.jsonl", plan.name))
}

#[cfg(test)]
mod tests;

//! Runs in the kernel, one or several at a time.

mod bulk;
mod datagrams;
pub mod iperf3;
mod short;
mod test_path;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, configure};
use ccplane_engine::{Engine, EngineConfig};
use ccplane_netsim::workload::Arrival;
use ccplane_results::{Completions, Datapath, FlowResult, RunFigures};

use super::agents::{AgentRule, Agents, InKernel, SharedAgent, Watch};
use super::cpu::{self, CpuTimes};
use super::{Job, RunControl};
use crate::error::{Context, Error, Result};
use crate::plan::{Change, MAX_FLOWS, Tool, Traffic};
use crate::table::Row;
use crate::tcp_info::TcpInfo;
use bulk::{Planned, Running};
use iperf3::{Iperf3, Request};
use test_path::{TestPath, link_use};

/// The first port of the contender's flows, by which the agent knows them.
const CONTENDER_PORT: u16 = 10_000;
/// The first port of the background's.
const BACKGROUND_PORT: u16 = 20_000;
/// The longest sleep between checks for what is due.
const NAP: Duration = Duration::from_millis(20);
/// The time between two polls of the flows of jobs that run at once.
const ROWS_EVERY: Duration = Duration::from_millis(200);
/// The time that short flows may take after the run's end to complete.
pub(super) const DRAIN: Duration = Duration::from_secs(10);
/// A pause of the whole machine for this long spoils the run; a fifth of it is worth a note.
const STALL: Duration = Duration::from_secs(1);
/// Short flows that start later than this are worth a note, microseconds.
const LATE_US: u64 = 20_000;

/// Runs jobs at the same time, each over a link of its own; everything is gone on return. The outer error is that of all.
pub(super) fn run(
    jobs: &[Job<'_>],
    agents: &mut dyn Agents,
    control: &mut RunControl<'_>,
) -> Result<Vec<Result<RunFigures>>> {
    let kernel = kernel_agent(jobs, agents)?;
    let setups =
        jobs.iter().map(|job| Setup::new(job, kernel.as_ref(), agents)).collect::<Result<Vec<_>>>()?;
    drop(kernel);
    thread::scope(|scope| {
        // Ends the threads of short flows whatever happens.
        let _halts: Vec<Halt<'_>> = setups.iter().map(|setup| Halt(&setup.shared)).collect();
        let epoch = Instant::now();
        let start = |(job, setup)| LiveRun::start(job, setup, epoch, scope);
        let mut lanes = jobs.iter().zip(&setups).map(start).collect::<Result<Vec<_>>>()?;
        let overslept = watch(&mut lanes, epoch, control)?;
        Ok(lanes.into_iter().map(|lane| lane.measured(overslept, jobs.len() == 1)).collect())
    })
}

/// The one agent in the kernel for all jobs that need it; `None` if none does.
fn kernel_agent(jobs: &[Job<'_>], agents: &mut dyn Agents) -> Result<Option<SharedAgent>> {
    let (mut by, mut all) = (InKernel::Bpf, Vec::new());
    for job in jobs.iter().filter(|job| user_space(job.contender.datapath).is_none()) {
        // A plan is checked not to run both at once.
        by = in_kernel(job.contender.datapath).unwrap_or(by);
        all.extend(rules(job)?);
    }
    if all.is_empty() {
        return Ok(None);
    }
    Ok(Some(Rc::new(RefCell::new(agents.start(by, &all).map_err(Error::Agent)?))))
}

/// Turns the lanes until all are over; returns the longest that this thread, which sleeps most of the time, woke too late.
fn watch(lanes: &mut [LiveRun<'_, '_>], epoch: Instant, control: &mut RunControl<'_>) -> Result<Duration> {
    let mut overslept = Duration::ZERO;
    let mut next_rows = Duration::ZERO;
    loop {
        let elapsed = epoch.elapsed();
        let mut rows = Vec::new();
        if lanes.iter().any(|lane| lane.job.plan.at_once) && elapsed >= next_rows {
            next_rows = elapsed + ROWS_EVERY;
            rows = lanes.iter_mut().flat_map(LiveRun::rows).collect();
        }
        control.poll(elapsed, &rows)?;
        let mut over = true;
        for lane in lanes.iter_mut() {
            over &= lane.turn(elapsed);
        }
        if over {
            return Ok(overslept);
        }
        let rest = lanes.iter().filter_map(|lane| lane.next_due(elapsed)).min();
        let rest = rest.map_or(NAP, |due| due.saturating_sub(elapsed));
        let (asked, begun) = (rest.min(NAP), Instant::now());
        thread::sleep(asked);
        overslept = overslept.max(begun.elapsed().saturating_sub(asked));
    }
}

/// The links, hosts and agents of a job, set up before its time begins.
struct Setup {
    agent: Option<SharedAgent>,
    steered: Vec<AgentRule>,
    /// The engine of flows in user space.
    engine: Option<Engine>,
    congestion: String,
    arrivals: Vec<Arrival>,
    shared: short::SharedFlows,
    /// The path is last, since fields are dropped in order.
    test_path: TestPath,
}

impl Setup {
    fn new(job: &Job<'_>, kernel: Option<&SharedAgent>, agents: &mut dyn Agents) -> Result<Setup> {
        let test_path = TestPath::build(&job.scenario.link, job.seed)?;
        let steered = rules(job)?;
        let mut engine = None;
        let agent = match (steered.is_empty(), user_space(job.contender.datapath)) {
            (true, _) => None,
            (false, None) => kernel.cloned(),
            (false, Some(kind)) => {
                let mut make = |waker| {
                    let (carries, handle) = ccplane_engine::engine(EngineConfig::new(kind), waker);
                    engine = Some(carries);
                    Box::new(handle) as Box<dyn ccplane_contract::Datapath + Send>
                };
                let agent = agents.embed(&steered, &mut make).map_err(Error::Agent)?;
                Some(Rc::new(RefCell::new(agent)))
            }
        };
        let congestion = match (&agent, job.contender.datapath) {
            (Some(agent), Datapath::Ebpf | Datapath::Module) => agent.borrow().congestion().to_owned(),
            _ => job.contender.algorithm.clone(),
        };
        let shared = short::SharedFlows::default();
        Ok(Setup { agent, steered, engine, congestion, arrivals: job.arrivals(), shared, test_path })
    }
}

/// Returns an engine's name of the datapath; `None` for datapaths without an engine.
fn user_space(datapath: Datapath) -> Option<&'static str> {
    matches!(datapath, Datapath::Quic | Datapath::Dpdk).then(|| datapath.name())
}

/// Returns how programs get to the kernel's flows; `None` for other datapaths, and for the kernel's own algorithms.
pub(super) fn in_kernel(datapath: Datapath) -> Option<InKernel> {
    match datapath {
        Datapath::Ebpf => Some(InKernel::Bpf),
        Datapath::Module => Some(InKernel::Module),
        Datapath::Kernel | Datapath::Sim | Datapath::Quic | Datapath::Dpdk => None,
    }
}

/// Whether live flows on it have programs.
fn is_steered(datapath: Datapath) -> bool {
    in_kernel(datapath).is_some() || user_space(datapath).is_some()
}

/// The first port of the contender's flows: each job that runs at the same time has its own.
fn contender_port(job: &Job<'_>) -> u16 {
    CONTENDER_PORT + job.lane * MAX_FLOWS as u16
}

/// The first port of the background's.
fn background_port(job: &Job<'_>) -> u16 {
    BACKGROUND_PORT + job.lane * MAX_FLOWS as u16
}

/// Returns the agent's rules; without flows of ours there are none.
pub(super) fn rules(job: &Job<'_>) -> Result<Vec<AgentRule>> {
    let find = |name: &str, parameters: &std::collections::BTreeMap<String, i64>| {
        let known = job.algorithms.iter().find(|a| a.name() == name);
        let known = known.ok_or_else(|| Error::NoAlgorithm { name: name.to_owned() })?;
        let values = parameters.iter().map(|(name, value)| (name.as_str(), *value));
        configure(known, values).map_err(Error::Parameter)
    };
    let mut rules: Vec<AgentRule> = Vec::new();
    let mut add = |first: u16, count: u32, algorithm: Arc<dyn Algorithm>, learning: bool| {
        let last = first.saturating_add(u16::try_from(count.saturating_sub(1)).unwrap_or(u16::MAX));
        rules.push(AgentRule { ports: first..=last, algorithm, learning });
    };
    if is_steered(job.contender.datapath) {
        let algorithm = find(&job.contender.algorithm, &job.contender.parameters)?;
        add(contender_port(job), MAX_FLOWS, algorithm, job.contender.learning);
    }
    let mut port = background_port(job);
    for background in &job.scenario.background {
        if background.datapath == Datapath::Ebpf {
            add(port, background.flows, find(&background.algorithm, &background.parameters)?, false);
        }
        port += background.flows as u16;
    }
    Ok(rules)
}

fn contender(job: &Job<'_>, congestion: &str, flows: u32, stagger_ms: u64) -> Vec<Planned> {
    let flow = |n: u32| Planned {
        name: (n + 1).to_string(),
        background: None,
        congestion: congestion.to_owned(),
        datapath: job.contender.datapath,
        port: contender_port(job) + n as u16,
        start_ms: job.scenario.start_ms + u64::from(n) * stagger_ms,
        stop_ms: job.plan.duration_ms,
        steered: is_steered(job.contender.datapath),
    };
    (0..flows).map(flow).collect()
}

fn background(job: &Job<'_>, setup: &Setup) -> Vec<Planned> {
    let mut planned = Vec::new();
    let mut port = background_port(job);
    for (n, background) in job.scenario.background.iter().enumerate() {
        let congestion = match (&setup.agent, background.datapath) {
            (Some(agent), Datapath::Ebpf) => agent.borrow().congestion().to_owned(),
            _ => background.algorithm.clone(),
        };
        for flow in 1..=background.flows {
            planned.push(Planned {
                name: format!("background {}.{flow}", n + 1),
                background: Some(background.algorithm.clone()),
                congestion: congestion.clone(),
                datapath: background.datapath,
                port,
                start_ms: background.start_ms,
                stop_ms: background.stop_ms,
                steered: background.datapath == Datapath::Ebpf,
            });
            port += 1;
        }
    }
    planned
}

/// The senders beside the bulk flows of this process.
enum Load<'scope> {
    None,
    Iperf3 {
        program: Box<Iperf3>,
        begun: Duration,
    },
    Short {
        send: ScopedJoinHandle<'scope, Result<short::Sent>>,
        receive: ScopedJoinHandle<'scope, Result<short::Received>>,
        arrivals: &'scope [Arrival],
    },
}

impl<'scope> Load<'scope> {
    fn start<'env: 'scope>(
        job: &Job<'_>,
        setup: &'env Setup,
        epoch: Instant,
        scope: &'scope thread::Scope<'scope, 'env>,
    ) -> Result<Load<'scope>> {
        let Setup { test_path, congestion, arrivals, shared, .. } = setup;
        match job.scenario.traffic {
            Traffic::Bulk { tool: Tool::Native, .. } => Ok(Load::None),
            Traffic::Bulk { flows, tool: Tool::Iperf3, .. } => {
                let request = Request {
                    congestion,
                    port: contender_port(job),
                    flows,
                    duration_s: job.plan.duration_ms.div_ceil(1000),
                    sample_ms: job.plan.sample_ms,
                };
                let program = Box::new(Iperf3::start(&request, test_path)?);
                Ok(Load::Iperf3 { program, begun: epoch.elapsed() })
            }
            Traffic::ShortFlows { .. } | Traffic::Incast { .. } => {
                let to = SocketAddr::new(test_path.receiver_ip(), contender_port(job));
                let listener = test_path.receiver().run(|| TcpListener::bind(to))?.context("listen")?;
                listener.set_nonblocking(true).context("set O_NONBLOCK")?;
                let receive = scope.spawn(move || short::receive(&listener, shared));
                let send = scope.spawn(move || {
                    test_path.sender().run(|| short::send(arrivals, to, congestion, epoch, shared))?
                });
                Ok(Load::Short { send, receive, arrivals })
            }
        }
    }
}

struct Halt<'a>(&'a short::SharedFlows);

impl Drop for Halt<'_> {
    fn drop(&mut self) {
        self.0.halt.store(true, Ordering::Release);
    }
}

/// A run under way.
struct LiveRun<'a, 'scope> {
    job: &'a Job<'a>,
    setup: &'a Setup,
    watch: Option<Watch>,
    /// Flows to come, the next one last.
    planned: Vec<Planned>,
    /// Changes of the link to come, the next one last.
    changes: Vec<Change>,
    running: Vec<Running>,
    epoch: Instant,
    load: Load<'scope>,
    /// Counters at the start of what is measured, and at its end.
    from: Option<Mark>,
    to: Option<Mark>,
    /// Processor time counts from the very start, as the payload does that it is divided by.
    cpu: CpuTimes,
    broken: Option<Error>,
}

/// Counters at a moment.
struct Mark {
    link: Option<ccplane_emulator::DirectionStats>,
    cpu: CpuTimes,
}

impl<'a, 'scope> LiveRun<'a, 'scope> {
    fn start<'env>(
        job: &'a Job<'a>,
        setup: &'env Setup,
        epoch: Instant,
        scope: &'scope thread::Scope<'scope, 'env>,
    ) -> Result<LiveRun<'a, 'scope>>
    where
        'env: 'scope + 'a,
    {
        let load = Load::start(job, setup, epoch, scope)?;
        for (n, what) in job.scenario.datagrams.iter().enumerate() {
            datagrams::start(*what, n, job.seed, &setup.test_path, epoch, &setup.shared.halt, scope)?;
        }
        let mut planned = background(job, setup);
        if let Traffic::Bulk { flows, stagger_ms, tool: Tool::Native } = job.scenario.traffic {
            planned.extend(contender(job, &setup.congestion, flows, stagger_ms));
        }
        planned.sort_by_key(|p| std::cmp::Reverse(p.start_ms));
        let shown_since = job.plan.at_once.then_some(epoch);
        let watch = setup.agent.clone().map(|agent| Watch::new(agent, &setup.steered, shown_since));
        Ok(LiveRun {
            job,
            setup,
            watch,
            planned,
            changes: job.scenario.link.changes.iter().rev().copied().collect(),
            running: Vec::new(),
            epoch,
            load,
            from: None,
            to: None,
            cpu: cpu::now()?,
            broken: None,
        })
    }

    fn mark(&self) -> Result<Mark> {
        Ok(Mark { link: self.setup.test_path.stats(), cpu: cpu::now()? })
    }

    /// Does all that is due, and returns whether the lane is over. An error breaks this lane alone.
    fn turn(&mut self, elapsed: Duration) -> bool {
        if self.broken.is_none() {
            match self.progress(elapsed) {
                Ok(over) => return over,
                Err(error) => self.broken = Some(error),
            }
        }
        true
    }

    fn progress(&mut self, elapsed: Duration) -> Result<bool> {
        let plan = self.job.plan;
        self.start_due(elapsed)?;
        if self.from.is_none() && elapsed >= Duration::from_millis(plan.warmup_ms) {
            self.from = Some(Mark { cpu: self.cpu, ..self.mark()? });
        }
        if elapsed >= Duration::from_millis(plan.duration_ms) {
            if self.to.is_none() {
                self.to = Some(self.mark()?);
            }
            if self.is_over(elapsed)? {
                return Ok(true);
            }
        }
        if let Some(watch) = &mut self.watch {
            let bulk = self.running.iter().filter(|r| r.planned.steered && !r.flow.is_finished());
            watch.observe(bulk.map(|r| r.flow.local()));
        }
        Ok(false)
    }

    /// Starts flows and changes the link.
    fn start_due(&mut self, elapsed: Duration) -> Result<()> {
        while let Some(change) = self.changes.pop_if(|c| Duration::from_millis(c.at_ms) <= elapsed) {
            self.setup.test_path.change(&change, self.job.seed ^ change.at_ms)?;
        }
        let mut due = Vec::new();
        while let Some(next) = self.planned.pop_if(|p| Duration::from_millis(p.start_ms) <= elapsed) {
            due.push(next);
        }
        let sample_every = Duration::from_millis(self.job.plan.sample_ms);
        if !due.is_empty() {
            due.reverse();
            let engine = self.setup.engine.as_ref();
            self.running.extend(bulk::start(due, &self.setup.test_path, engine, sample_every, self.epoch)?);
        }
        Ok(())
    }

    /// Whether nothing more is to be waited for, after the run's time.
    fn is_over(&mut self, elapsed: Duration) -> Result<bool> {
        let end = Duration::from_millis(self.job.plan.duration_ms);
        match &mut self.load {
            Load::None => Ok(true),
            Load::Iperf3 { program, begun } => {
                if elapsed > end + *begun + iperf3::GRACE {
                    return Err(Error::Iperf3 { why: "its client does not end".to_owned() });
                }
                program.is_finished()
            }
            Load::Short { send, arrivals, .. } => {
                let all = self.setup.shared.completed.load(Ordering::Relaxed) >= arrivals.len() as u64;
                Ok(all || send.is_finished() || elapsed >= end + DRAIN)
            }
        }
    }

    /// When the next thing is due; `None` if nothing more is.
    fn next_due(&self, elapsed: Duration) -> Option<Duration> {
        let next = self.planned.last().map(|p| p.start_ms);
        let change = self.changes.last().map(|c| c.at_ms);
        let dues = [Some(self.job.plan.warmup_ms), Some(self.job.plan.duration_ms), next, change];
        dues.into_iter().flatten().map(Duration::from_millis).filter(|due| *due > elapsed).min()
    }

    /// Its flows at the moment.
    fn rows(&mut self) -> Vec<Row> {
        let contender = &self.job.contender;
        let watch = self.watch.as_ref();
        let row = |running: &mut Running| {
            let throughput_bps = running.throughput_bps();
            let view = watch.and_then(|w| w.view(running.flow.local()));
            let (flow, native) = match &running.planned.background {
                None => (contender.name.clone(), &contender.algorithm),
                Some(algorithm) => (format!("  beside {}", contender.name), algorithm),
            };
            Row {
                flow,
                steered_by: view.map_or_else(
                    || format!("kernel {native}"),
                    |v| v.state.as_ref().unwrap_or(&v.steered_by).clone(),
                ),
                info: running.flow.latest().map_or_else(TcpInfo::default, |s| s.info),
                throughput_bps,
                reports: view.map(|v| v.reports),
                faults: view.map(|v| v.faults),
            }
        };
        self.running.iter_mut().filter(|r| !r.flow.is_finished()).map(row).collect()
    }

    /// Returns the measured figures; the processor time is only the run's own if it ran `alone`.
    fn measured(self, overslept: Duration, alone: bool) -> Result<RunFigures> {
        let LiveRun { job, setup, watch, running, load, epoch, from, to, broken, .. } = self;
        setup.shared.halt.store(true, Ordering::Release);
        if let Some(error) = broken {
            return Err(error);
        }
        let (Some(from), Some(to)) = (from, to) else { return Err(Error::Stopped) };
        if overslept > STALL {
            return Err(Error::Stalled { ms: overslept.as_millis() });
        }
        let mut measured = RunFigures { cpu: alone.then(|| to.cpu.since(from.cpu)), ..RunFigures::default() };
        if overslept > STALL / 5 {
            measured.notes.push(format!("the machine stood still for {} ms", overslept.as_millis()));
        }
        if let (Some(from), Some(to)) = (&from.link, &to.link) {
            let window = to.since(from);
            let lost = window.refused_packets + window.undeliverable_packets;
            if lost > 0 {
                measured.notes.push(format!("the emulator itself lost {lost} packets"));
            }
            measured.link = job.scenario.link.medium.rate_bit_per_s().map(|_| link_use(&window));
        }
        let mut states = HashMap::new();
        if let Some(watch) = watch {
            let (used, told) = watch.finish();
            (measured.agent, states) = (Some(used), told);
        }
        for flow in running {
            let told = states.remove(&flow.flow.local()).unwrap_or_default();
            let flow = bulk::finish(flow, job.plan.warmup_ms, job.plan.sample_ms)?;
            measured.flows.push(FlowResult { states: told, ..flow });
        }
        match load {
            Load::None => {}
            Load::Iperf3 { program, begun } => {
                let report = program.finish()?;
                let mut flows = iperf3::flows(&report, begun, job.plan.warmup_ms)?;
                flows.append(&mut measured.flows);
                measured.flows = flows;
                measured.iperf3 = Some(report);
            }
            Load::Short { send, receive, arrivals } => {
                let sent = send.join().unwrap_or(Err(Error::Panicked("sender")))?;
                let received = receive.join().unwrap_or(Err(Error::Panicked("receiver")))?;
                if sent.late_us > LATE_US {
                    let note = format!("a short flow started {} ms late", sent.late_us / 1000);
                    measured.notes.push(note);
                }
                let warmup = Duration::from_millis(job.plan.warmup_ms);
                let (flows, unfinished) = short::completions(arrivals, &sent, &received, epoch, warmup);
                let distribution = job.distribution();
                measured.completions = Some(Completions { distribution, flows, unfinished });
            }
        }
        Ok(measured)
    }
}

//! One run in the kernel.

mod bulk;
mod datagrams;
pub mod iperf3;
mod road;
mod short;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, configure};
use ccplane_engine::{Engine, EngineConfig};
use ccplane_netsim::workload::Arrival;
use ccplane_results::{Completions, Datapath, Measured};

use super::agents::{Agents, Steer, Watch};
use super::cpu::{self, CpuTimes};
use super::{Job, Pulse};
use crate::error::{Context, Error, Result};
use crate::plan::{Change, MAX_FLOWS, Tool, Traffic};
use bulk::{Planned, Running};
use iperf3::{Iperf3, Request};
use road::{Road, link_use};

/// The first port of the contender's flows, by which the agent knows them.
const CONTENDER_PORT: u16 = 10_000;
/// The first port of the background's.
const BACKGROUND_PORT: u16 = 20_000;
/// Longest sleep between looks at what is due.
const NAP: Duration = Duration::from_millis(20);
/// How long short flows may take after the run's end to complete.
pub(super) const DRAIN: Duration = Duration::from_secs(10);
/// A machine that lets nothing run for so long has spoilt the run; for a fifth of it, that is worth a note.
const STALL: Duration = Duration::from_secs(1);
/// Short flows that start later than this are worth a note, microseconds.
const LATE_US: u64 = 20_000;

/// Runs the job over a link of its own. Everything is gone on return.
pub(super) fn run(job: &Job<'_>, agents: &mut dyn Agents, pulse: &mut Pulse<'_>) -> Result<Measured> {
    let road = Road::build(&job.scenario.link, job.seed)?;
    let rules = rules(job)?;
    let mut engine = None;
    let agent = match (rules.is_empty(), user_space(job.contender.datapath)) {
        (true, _) => None,
        (false, None) => Some(agents.start(&rules).map_err(Error::Agent)?),
        (false, Some(kind)) => {
            let mut make = |waker| {
                let (carries, handle) = ccplane_engine::engine(EngineConfig::new(kind), waker);
                engine = Some(carries);
                Box::new(handle) as Box<dyn ccplane_contract::Datapath + Send>
            };
            Some(agents.embed(&rules, &mut make).map_err(Error::Agent)?)
        }
    };
    let watch = agent.map(|agent| Watch::new(agent, &rules));
    let congestion = match (&watch, job.contender.datapath) {
        (Some(watch), Datapath::Ebpf) => watch.congestion().to_owned(),
        _ => job.contender.algorithm.clone(),
    };
    let mut planned = background(job, watch.as_ref());
    if let Traffic::Bulk { flows, stagger_ms, tool: Tool::Native } = job.scenario.traffic {
        planned.extend(contender(job, &congestion, flows, stagger_ms));
    }
    planned.sort_by_key(|p| std::cmp::Reverse(p.start_ms));
    let shared = short::Shared::default();
    let arrivals = job.arrivals();
    thread::scope(|scope| {
        // Ends the threads of short flows whatever happens.
        let _halt = Halt(&shared);
        let epoch = Instant::now();
        let load = Load::start(job, &road, &congestion, &arrivals, epoch, &shared, scope)?;
        for (n, what) in job.scenario.datagrams.iter().enumerate() {
            datagrams::start(*what, n, job.seed, &road, epoch, &shared.halt, scope)?;
        }
        let run = Run {
            job,
            road: &road,
            watch,
            planned,
            engine,
            changes: job.scenario.link.changes.iter().rev().copied().collect(),
            running: Vec::new(),
            epoch,
            load,
            overslept: Duration::ZERO,
        };
        run.finish(pulse, &shared)
    })
}

/// What an engine calls the datapath; `None` for those that are no engine's.
fn user_space(datapath: Datapath) -> Option<&'static str> {
    matches!(datapath, Datapath::Quic | Datapath::Dpdk).then(|| datapath.name())
}

/// Whether live flows on it have programs.
fn is_steered(datapath: Datapath) -> bool {
    datapath == Datapath::Ebpf || user_space(datapath).is_some()
}

/// What the agent is to steer; nothing if there is nothing.
pub(super) fn rules(job: &Job<'_>) -> Result<Vec<Steer>> {
    let find = |name: &str, parameters: &std::collections::BTreeMap<String, i64>| {
        let known = job.algorithms.iter().find(|a| a.name() == name);
        let known = known.ok_or_else(|| Error::NoAlgorithm { name: name.to_owned() })?;
        let values = parameters.iter().map(|(name, value)| (name.as_str(), *value));
        configure(known, values).map_err(Error::Parameter)
    };
    let mut rules: Vec<Steer> = Vec::new();
    let mut add = |first: u16, count: u32, algorithm: Arc<dyn Algorithm>, learning: bool| {
        let last = first.saturating_add(u16::try_from(count.saturating_sub(1)).unwrap_or(u16::MAX));
        rules.push(Steer { ports: first..=last, algorithm, learning });
    };
    if is_steered(job.contender.datapath) {
        let algorithm = find(&job.contender.algorithm, &job.contender.parameters)?;
        add(CONTENDER_PORT, MAX_FLOWS, algorithm, job.contender.learning);
    }
    let mut port = BACKGROUND_PORT;
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
        port: CONTENDER_PORT + n as u16,
        start_ms: job.scenario.start_ms + u64::from(n) * stagger_ms,
        stop_ms: job.plan.duration_ms,
        steered: is_steered(job.contender.datapath),
    };
    (0..flows).map(flow).collect()
}

fn background(job: &Job<'_>, watch: Option<&Watch>) -> Vec<Planned> {
    let mut planned = Vec::new();
    let mut port = BACKGROUND_PORT;
    for (n, background) in job.scenario.background.iter().enumerate() {
        let congestion = match (watch, background.datapath) {
            (Some(watch), Datapath::Ebpf) => watch.congestion(),
            _ => &background.algorithm,
        };
        for flow in 1..=background.flows {
            planned.push(Planned {
                name: format!("background {}.{flow}", n + 1),
                background: Some(background.algorithm.clone()),
                congestion: congestion.to_owned(),
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

/// What sends beside the bulk flows of this process.
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
        road: &'env Road,
        congestion: &'env str,
        arrivals: &'env [Arrival],
        epoch: Instant,
        shared: &'env short::Shared,
        scope: &'scope thread::Scope<'scope, 'env>,
    ) -> Result<Load<'scope>> {
        match job.scenario.traffic {
            Traffic::Bulk { tool: Tool::Native, .. } => Ok(Load::None),
            Traffic::Bulk { flows, tool: Tool::Iperf3, .. } => {
                let request = Request {
                    congestion,
                    port: CONTENDER_PORT,
                    flows,
                    duration_s: job.plan.duration_ms.div_ceil(1000),
                    sample_ms: job.plan.sample_ms,
                };
                let program = Box::new(Iperf3::start(&request, road)?);
                Ok(Load::Iperf3 { program, begun: epoch.elapsed() })
            }
            Traffic::ShortFlows { .. } | Traffic::Incast { .. } => {
                let to = SocketAddr::new(road.receiver_ip(), CONTENDER_PORT);
                let listener = road.receiver().run(|| TcpListener::bind(to))?.context("listen")?;
                listener.set_nonblocking(true).context("set O_NONBLOCK")?;
                let receive = scope.spawn(move || short::receive(&listener, shared));
                let send = scope.spawn(move || {
                    road.sender().run(|| short::send(arrivals, to, congestion, epoch, shared))?
                });
                Ok(Load::Short { send, receive, arrivals })
            }
        }
    }
}

struct Halt<'a>(&'a short::Shared);

impl Drop for Halt<'_> {
    fn drop(&mut self) {
        self.0.halt.store(true, Ordering::Release);
    }
}

/// A run under way.
struct Run<'a, 'scope> {
    job: &'a Job<'a>,
    road: &'a Road,
    watch: Option<Watch>,
    /// Flows to come, the next one last.
    planned: Vec<Planned>,
    /// What carries flows in user space.
    engine: Option<Engine>,
    /// What becomes of the link, the next change last.
    changes: Vec<Change>,
    running: Vec<Running>,
    epoch: Instant,
    load: Load<'scope>,
    /// Longest that this thread, which sleeps most of the time, woke too late.
    overslept: Duration,
}

/// Counters at a moment.
struct Mark {
    link: Option<ccplane_emulator::DirectionStats>,
    cpu: CpuTimes,
}

impl Run<'_, '_> {
    fn mark(&self) -> Result<Mark> {
        Ok(Mark { link: self.road.stats(), cpu: cpu::now()? })
    }

    fn finish(mut self, pulse: &mut Pulse<'_>, shared: &short::Shared) -> Result<Measured> {
        let plan = self.job.plan;
        let (warmup, end) = (Duration::from_millis(plan.warmup_ms), Duration::from_millis(plan.duration_ms));
        // Processor time counts from the very start, as the payload does that it is divided by.
        let cpu = cpu::now()?;
        let (mut from, mut to) = (None, None);
        loop {
            let elapsed = self.epoch.elapsed();
            pulse.beat()?;
            self.start_due(elapsed)?;
            if from.is_none() && elapsed >= warmup {
                from = Some(Mark { cpu, ..self.mark()? });
            }
            if elapsed >= end {
                if to.is_none() {
                    to = Some(self.mark()?);
                }
                if self.is_over(elapsed, shared)? {
                    break;
                }
            }
            let bulk: Vec<SocketAddr> = self
                .running
                .iter()
                .filter(|r| r.planned.steered && !r.flow.is_finished())
                .map(|r| r.flow.local())
                .collect();
            if let Some(watch) = &mut self.watch {
                watch.look(&bulk);
            }
            self.sleep(warmup, end);
        }
        shared.halt.store(true, Ordering::Release);
        let (Some(from), Some(to)) = (from, to) else { return Err(Error::Stopped) };
        self.measured(&from, &to)
    }

    /// Starts flows and changes the link.
    fn start_due(&mut self, elapsed: Duration) -> Result<()> {
        while let Some(change) = self.changes.pop_if(|c| Duration::from_millis(c.at_ms) <= elapsed) {
            self.road.change(&change, self.job.seed ^ change.at_ms)?;
        }
        let mut due = Vec::new();
        while let Some(next) = self.planned.pop_if(|p| Duration::from_millis(p.start_ms) <= elapsed) {
            due.push(next);
        }
        let sample_every = Duration::from_millis(self.job.plan.sample_ms);
        if !due.is_empty() {
            due.reverse();
            let engine = self.engine.as_ref();
            self.running.extend(bulk::start(due, self.road, engine, sample_every, self.epoch)?);
        }
        Ok(())
    }

    /// Whether nothing more is to be waited for, after the run's time.
    fn is_over(&mut self, elapsed: Duration, shared: &short::Shared) -> Result<bool> {
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
                let all = shared.completed.load(Ordering::Relaxed) >= arrivals.len() as u64;
                Ok(all || send.is_finished() || elapsed >= end + DRAIN)
            }
        }
    }

    fn sleep(&mut self, warmup: Duration, end: Duration) {
        let elapsed = self.epoch.elapsed();
        let next = self.planned.last().map(|p| Duration::from_millis(p.start_ms));
        let change = self.changes.last().map(|c| Duration::from_millis(c.at_ms));
        let dues = [Some(warmup), Some(end), next, change].into_iter().flatten().filter(|due| *due > elapsed);
        let rest = dues.min().map_or(NAP, |due| due.saturating_sub(elapsed));
        let (asked, begun) = (rest.min(NAP), Instant::now());
        thread::sleep(asked);
        self.overslept = self.overslept.max(begun.elapsed().saturating_sub(asked));
    }

    fn measured(self, from: &Mark, to: &Mark) -> Result<Measured> {
        let Run { job, watch, running, load, epoch, overslept, .. } = self;
        if overslept > STALL {
            return Err(Error::Stalled { ms: overslept.as_millis() });
        }
        let mut measured = Measured { cpu: Some(to.cpu.since(from.cpu)), ..Measured::default() };
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
        measured.agent = watch.map(Watch::finish);
        for flow in running {
            measured.flows.push(bulk::finish(flow, job.plan.warmup_ms, job.plan.sample_ms)?);
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

//! One run in the simulator.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ccplane_alg::{Algorithm, configure};
use ccplane_contract::{FlowId, Mode};
use ccplane_core::{Companion, Core};
use ccplane_netsim::workload::Arrival;
use ccplane_netsim::{self as netsim, Capacity, LinkChange, LinkConfig, LinkStats, QueueLimit};
use ccplane_results::{
    AgentUse, Completion, Completions, DatagramsUse, Datapath, FlowResult, LinkUse, RunFigures, StateChange,
};
use ccplane_sim::{SimDatapath, Source, Stack};

use super::agents::Agents;
use super::live::DRAIN;
use super::{Job, RunControl, short_arrivals};
use crate::error::{Error, Result};
use crate::percentiles::percentiles;
use crate::plan::{Datagrams, Discipline, Medium, PlanLink, Queue, Scenario, Traffic};
use crate::sim::{self, OwnPath, SimChange, Simulated, Simulation, SimulationFlow};

/// Virtual time between two polls of the queue, microseconds.
const POLL_EVERY_US: u64 = 1_000;
/// Bytes that the emulator counts for a packet beside its IP length, as mahimahi does.
pub const TUN_HEADER_BYTES: u16 = ccplane_emulator::path::TUN_HEADER_BYTES as u16;
/// Virtual time between two polls of the flows' states, as for live flows, microseconds.
const STATES_EVERY_US: u64 = 100_000;
/// Polls of the queue between two drawings of the progress, when Ctrl-C is noticed too.
const POLLS_PER_DRAW: u64 = 64;

/// Runs the job in virtual time; `watch` stands beside its agent, in place of a learner.
pub(super) fn run(
    job: &Job<'_>,
    agents: &mut dyn Agents,
    control: &mut RunControl<'_>,
    watch: Option<&mut dyn Companion>,
) -> Result<RunFigures> {
    let algorithms = algorithms(job)?;
    let learns = algorithms.iter().find(|a| job.contender.learning && a.name() == job.contender.algorithm);
    let mut learner = learns.map(|a| agents.learner(a, job.seed)).transpose().map_err(Error::Agent)?;
    let arrivals = job.arrivals();
    let simulation = simulation(job, &arrivals);
    let mut marks = Marks::new(job);
    let mut beaten = Ok(());
    let mut polls = 0;
    let mut poll = |datapath: &SimDatapath| {
        marks.observe(datapath);
        polls += 1;
        if polls % POLLS_PER_DRAW == 0 {
            beaten = control.poll(Duration::ZERO, &[]);
        }
        beaten.is_ok()
    };
    let mut states = States::default();
    let done = match watch {
        Some(watch) => sim::run_beside(&simulation, &algorithms, POLL_EVERY_US, &mut poll, Some(watch)),
        None if job.plan.at_once => {
            states.beside = learner.as_deref_mut();
            sim::run_beside(&simulation, &algorithms, POLL_EVERY_US, &mut poll, Some(&mut states))
        }
        None => sim::run_beside(&simulation, &algorithms, POLL_EVERY_US, &mut poll, learner.as_deref_mut()),
    };
    beaten?;
    let done = done?;
    Ok(measured(job, &simulation, &done, &marks, states.told))
}

/// Notes what the flows' algorithms say that they do, and lets a learner work on.
#[derive(Default)]
struct States<'a> {
    beside: Option<&'a mut (dyn Companion + 'static)>,
    next_us: u64,
    told: HashMap<FlowId, Vec<StateChange>>,
}

impl Companion for States<'_> {
    fn after_turn(&mut self, core: &mut Core, now_us: u64) {
        if let Some(beside) = &mut self.beside {
            beside.after_turn(core, now_us);
        }
        if now_us < self.next_us {
            return;
        }
        self.next_us = now_us + STATES_EVERY_US;
        for flow in core.flows() {
            let Some(state) = flow.state() else { continue };
            let told = self.told.entry(flow.flow()).or_default();
            if told.last().is_none_or(|last| last.state != state) {
                told.push(StateChange { t_ms: now_us / 1000, state: state.to_owned() });
            }
        }
    }
}

/// All of ours, the contender's and the background's with their parameters.
fn algorithms(job: &Job<'_>) -> Result<Vec<Arc<dyn Algorithm>>> {
    let background = job.scenario.background.iter().map(|b| (&b.algorithm, &b.parameters));
    let background = background.chain(job.scenario.short.iter().map(|s| (&s.algorithm, &s.parameters)));
    let asked: Vec<_> = background.chain([(&job.contender.algorithm, &job.contender.parameters)]).collect();
    let configured = |algorithm: &Arc<dyn Algorithm>| {
        let values = asked.iter().rev().find(|(name, _)| *name == algorithm.name()).map(|(_, p)| *p);
        let values = values.into_iter().flatten().map(|(name, value)| (name.as_str(), *value));
        configure(algorithm, values).map_err(Error::Parameter)
    };
    let used = job.algorithms.iter().filter(|a| asked.iter().any(|(name, _)| *name == a.name()));
    used.map(configured).collect()
}

fn simulation(job: &Job<'_>, arrivals: &[Arrival]) -> Simulation {
    let plan = job.plan;
    let link = &job.scenario.link;
    let emulated = job.scenario.simulator.emulated;
    let (ours, kernels) = if emulated { (Stack::Steered, Stack::Linux) } else { Default::default() };
    let flow = |algorithm: &str, source, start_us, stop_us| SimulationFlow {
        stack: ours,
        ..SimulationFlow::new(algorithm, source, start_us, stop_us)
    };
    let mut flows = Vec::new();
    let mut duration_us = plan.duration_ms * 1000;
    match job.scenario.traffic {
        Traffic::Bulk { flows: count, stagger_ms, .. } => {
            flows.extend(
                (0..u64::from(count))
                    .map(|n| (job.scenario.start_ms + n * stagger_ms) * 1000)
                    .map(|start_us| flow(&job.contender.algorithm, Source::Bulk, start_us, None)),
            );
            flows.iter_mut().zip(0..).for_each(|(flow, n)| flow.own = own_path(job.scenario, n));
        }
        Traffic::ShortFlows { .. } | Traffic::Incast { .. } => {
            duration_us += DRAIN.as_micros() as u64;
            let short = arrivals.iter();
            flows.extend(
                short.map(|a| flow(&job.contender.algorithm, Source::Bytes(a.bytes), a.start_us, None)),
            );
            flows.iter_mut().for_each(|flow| flow.own.ecn = job.scenario.ecn);
        }
    }
    for background in &job.scenario.background {
        for _ in 0..background.flows {
            let (start_us, stop_us) = (background.start_ms * 1000, background.stop_ms * 1000);
            let stack = if background.datapath == Datapath::Kernel { kernels } else { ours };
            let rival = flow(&background.algorithm, Source::Bulk, start_us, Some(stop_us));
            flows.push(SimulationFlow { stack, ..rival });
        }
    }
    for (short, arrivals) in job.scenario.short.iter().zip(short_arrivals(job.scenario, job.seed)) {
        let one = |a: Arrival| SimulationFlow {
            stack: kernels,
            ..flow(&short.algorithm, Source::Bytes(a.bytes), a.start_us, Some(short.stop_ms * 1000))
        };
        flows.extend(arrivals.into_iter().map(one));
    }
    flows.sort_by_key(|f| f.start_us);
    let cross = job.scenario.datagrams.iter().map(Datagrams::source).collect();
    let back = way_back(link, emulated);
    let return_delay_us = if back.is_some() { 0 } else { link.delay_us };
    Simulation {
        return_link: back.as_ref().map(|_| 1),
        links: std::iter::once(simulated(link, emulated)).chain(back).collect(),
        sample_every_us: plan.sample_ms * 1000,
        agent_latency_us: job.scenario.simulator.agent_latency_us,
        min_rto_us: job.scenario.simulator.min_rto_us,
        flows,
        cross,
        changes: changes(link),
        ..Simulation::new(return_delay_us, duration_us, job.seed)
    }
}

/// The way of the contender's bulk flow of this number, from 0; lists of the plan repeat.
fn own_path(scenario: &Scenario, n: usize) -> OwnPath {
    let of = |list: &[u64]| list.get(n.checked_rem(list.len()).unwrap_or(0)).copied().unwrap_or(0);
    let own = &scenario.own_paths;
    OwnPath {
        extra_delay_us: of(&scenario.extra_delays_us),
        jitter_us: of(&own.jitters_us),
        aggregate_acks_us: of(&own.aggregated_acks_us),
        ack_every: own.ack_every,
        conceals_losses: own.conceals_losses,
        ecn: scenario.ecn,
    }
}

/// Translates a plan's link into the simulator's configuration.
fn simulated(link: &PlanLink, emulated: bool) -> LinkConfig {
    let (queue, discipline) = waiting(link.queue);
    LinkConfig {
        loss_ppm: link.loss_ppm,
        ingress: link.impairments.simulated(),
        discipline,
        overhead_bytes: TUN_HEADER_BYTES,
        ..LinkConfig::new(capacity(&link.medium, emulated), link.delay_us * 1000, queue)
    }
}

/// Returns the limit at which a queue ends, and what it drops before.
fn waiting(queue: Queue) -> (QueueLimit, netsim::Discipline) {
    let Queue { discipline, packets, bytes, marks: ecn } = queue;
    let limit = match (packets, bytes) {
        (Some(packets), _) => QueueLimit::Packets(packets),
        (None, bytes) => QueueLimit::Bytes(bytes.unwrap_or(u64::MAX)),
    };
    let ns = |us: u64| us * 1000;
    let discipline = match discipline {
        Discipline::DropTail => netsim::Discipline::DropTail,
        Discipline::DropHead => netsim::Discipline::DropHead,
        Discipline::Codel { target_us, interval_us } => {
            let (target_ns, interval_ns) = (ns(target_us), ns(interval_us));
            netsim::Discipline::Codel { target_ns, interval_ns, ecn }
        }
        Discipline::Pie { target_us, max_burst_us } => {
            let (target_ns, max_burst_ns) = (ns(target_us), ns(max_burst_us));
            netsim::Discipline::Pie { target_ns, max_burst_ns, ecn }
        }
    };
    (limit, discipline)
}

fn capacity(medium: &Medium, emulated: bool) -> Capacity {
    match medium {
        Medium::Trace { trace, .. } => Capacity::Trace { trace: trace.clone(), repeat: true },
        Medium::Rate(bit_per_s) if emulated => Capacity::Slots { bit_per_s: *bit_per_s },
        Medium::Rate(bit_per_s) => Capacity::Rate { bit_per_s: *bit_per_s },
        Medium::Veth | Medium::Unlimited => {
            Capacity::Rate { bit_per_s: netsim::workload::MAX_CAPACITY_BIT_PER_S }
        }
    }
}

/// Returns the changes of the link and of its way back.
fn changes(link: &PlanLink) -> Vec<SimChange> {
    let of = |c: &crate::plan::Change| {
        let delay_ns = c.delay_us.map(|us| us * 1000);
        let there = LinkChange { bit_per_s: c.bit_per_s, delay_ns, loss_ppm: c.loss_ppm };
        let back = LinkChange { delay_ns, ..LinkChange::default() };
        [(0, there), (1, back)].map(|(link, change)| SimChange { at_us: c.at_ms * 1000, link, change })
    };
    link.changes.iter().flat_map(of).collect()
}

/// Returns the ways back as the simulator has them: no link where nothing limits them but a delay that stays as it is.
#[must_use]
pub fn way_back(link: &PlanLink, emulated: bool) -> Option<LinkConfig> {
    let capacity = match &link.way_back {
        Medium::Veth | Medium::Unlimited if link.changes.is_empty() && link.return_loss_ppm == 0 => {
            return None;
        }
        medium => capacity(medium, emulated),
    };
    let (queue, discipline) = waiting(link.return_queue);
    Some(LinkConfig {
        overhead_bytes: TUN_HEADER_BYTES,
        loss_ppm: link.return_loss_ppm,
        discipline,
        ..LinkConfig::new(capacity, link.delay_us * 1000, queue)
    })
}

/// The link's counters at both ends of the measured window, and its queue between them.
struct Marks<'a> {
    from_us: u64,
    to_us: u64,
    link: &'a PlanLink,
    from: Option<LinkStats>,
    to: Option<LinkStats>,
    queue_delays_us: Vec<u64>,
}

impl<'a> Marks<'a> {
    fn new(job: &Job<'a>) -> Marks<'a> {
        Marks {
            from_us: job.plan.warmup_ms * 1000,
            to_us: job.plan.duration_ms * 1000,
            link: &job.scenario.link,
            from: None,
            to: None,
            queue_delays_us: Vec::new(),
        }
    }

    fn observe(&mut self, datapath: &SimDatapath) {
        let now_us = datapath.now_us();
        if now_us < self.from_us || self.to.is_some() {
            return;
        }
        let stats = datapath.network().link_stats(0);
        self.from = self.from.or(stats);
        if now_us >= self.to_us {
            self.to = stats;
        }
        let queued_bits = datapath.network().queue_bytes(0).unwrap_or(0) * 8;
        self.queue_delays_us
            .extend((queued_bits * 1_000_000).checked_div(self.rate_bit_per_s(now_us / 1000)));
    }

    fn rate_bit_per_s(&self, at_ms: u64) -> u64 {
        let changed = self.link.changes.iter().take_while(|c| c.at_ms <= at_ms).filter_map(|c| c.bit_per_s);
        changed.last().or(self.link.medium.rate_bit_per_s()).unwrap_or(0)
    }

    /// Returns the bits that the link could have carried in the measured window.
    fn capacity_bits(&self) -> u128 {
        let inside = |ms: &u64| *ms > self.from_us / 1000 && *ms < self.to_us / 1000;
        let starts: Vec<u64> = self.link.changes.iter().map(|c| c.at_ms).filter(inside).collect();
        let (first, last) = (self.from_us / 1000, self.to_us / 1000);
        let from = std::iter::once(first).chain(starts.iter().copied());
        let to = starts.iter().copied().chain([last]);
        from.zip(to).map(|(a, b)| u128::from(self.rate_bit_per_s(a)) * u128::from(b - a) / 1000).sum()
    }

    fn link_use(&self) -> Option<LinkUse> {
        let (from, to) = (self.from?, self.to?);
        let bits = u128::from(to.departed_bytes - from.departed_bytes) * 8;
        let share_ppm = (bits * 1_000_000).checked_div(self.capacity_bits())?;
        Some(LinkUse {
            utilisation_ppm: u64::try_from(share_ppm).unwrap_or(u64::MAX),
            departed_pkts: to.departed - from.departed,
            dropped_pkts: to.dropped + to.policed - from.dropped - from.policed,
            lost_pkts: to.lost - from.lost,
            marked_pkts: to.marked - from.marked,
            queue_delay_us: percentiles(self.queue_delays_us.clone()),
        })
    }
}

/// The fate of each source's datagrams.
fn datagrams(scenario: &Scenario, datapath: &SimDatapath) -> Vec<DatagramsUse> {
    let stats = |n: u32| datapath.network().cross_stats(n).unwrap_or_default();
    let uses = (0..).zip(&scenario.datagrams).map(|(n, _)| stats(n));
    uses.map(|stats| DatagramsUse { sent: stats.sent, delivered: stats.delivered }).collect()
}

fn measured(
    job: &Job<'_>,
    simulation: &Simulation,
    done: &Simulated,
    marks: &Marks<'_>,
    mut states: HashMap<FlowId, Vec<StateChange>>,
) -> RunFigures {
    let mut measured = RunFigures { link: marks.link_use(), ..RunFigures::default() };
    let mut agent = AgentUse { reports: done.counters.reports, ..AgentUse::default() };
    let (mut short, mut beside) = (Completions::default(), Completions::default());
    let mut numbers = (0, 0);
    for (flow, id) in simulation.flows.iter().zip(&done.flows) {
        let Some(stats) = done.datapath.stats(*id) else { continue };
        agent.faults += stats.transport.faults;
        if let Source::Bytes(bytes) = flow.source {
            // Background is stopped at its end, also where it has not completed.
            let stopped_us = flow.stop_us.map(|stop_us| stop_us.saturating_sub(flow.start_us));
            let of = if stopped_us.is_some() { &mut beside } else { &mut short };
            let took_us =
                done.datapath.completion_us(*id).filter(|us| stopped_us.is_none_or(|stop| *us < stop));
            if flow.start_us < job.plan.warmup_ms * 1000 {
                continue;
            }
            match took_us {
                // The sender learns of the end when the last acknowledgement has come back.
                Some(took_us) => of.flows.push(Completion {
                    start_us: flow.start_us,
                    bytes,
                    fct_us: took_us.saturating_sub(job.scenario.link.delay_us),
                }),
                None => of.unfinished += 1,
            }
            continue;
        }
        let background = flow.stop_us.map(|_| flow.algorithm.clone());
        // Background is closed at its end, which hands it to the native algorithm.
        agent.unsteered_flows += u64::from(background.is_none() && stats.mode != Mode::Program);
        let name = if background.is_some() {
            numbers.1 += 1;
            format!("background {}", numbers.1)
        } else {
            numbers.0 += 1;
            numbers.0.to_string()
        };
        let long = sim::measured(&done.datapath, *id, flow.start_us, job.plan.warmup_ms * 1000);
        let states = states.remove(id).unwrap_or_default();
        measured.flows.push(FlowResult { name, background, states, ..long });
    }
    measured.agent = Some(agent);
    if !matches!(job.scenario.traffic, Traffic::Bulk { .. }) {
        measured.completions = Some(Completions { distribution: job.distribution(), ..short });
    }
    if let Some(background) = job.scenario.short.first() {
        let distribution = background.sizes.name().to_owned();
        measured.background_completions = Some(Completions { distribution, ..beside });
    }
    measured.datagrams = datagrams(job.scenario, &done.datapath);
    measured
}

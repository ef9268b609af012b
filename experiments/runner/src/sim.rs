//! Flows in the simulator, with the agent's core beside them: what `ccplane sim` and plans run.

use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowId};
use ccplane_core::{
    AttachError, Catalog, CatalogError, Companion, Config, Core, Counters, DatapathId, NATIVE, Rule, Rules,
    RulesError, drive,
};
use ccplane_netsim::workload::MAX_CAPACITY_BIT_PER_S;
use ccplane_netsim::{Acks, Capacity, CrossConfig, LinkChange, LinkConfig, QueueLimit};
use ccplane_results::{FlowResult, Series};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, SimError, Source, Stack};

use crate::percentiles::percentiles;

const SIM: DatapathId = DatapathId(0);
/// The longest virtual time between two polls of the datapath by the agent, microseconds.
const TICK_US: u64 = 50_000;
/// The receiver's port of the first algorithm's flows, by which the rules tell algorithms apart.
const FIRST_PORT: u16 = 5001;
const DEFAULT_SAMPLE_EVERY_US: u64 = 100_000;
/// The value of Linux's TCP_RTO_MIN, microseconds.
const DEFAULT_MIN_RTO_US: u32 = 200_000;
/// Flows of one simulation.
pub const MAX_FLOWS: usize = 1 << 20;
/// Packets that wait where a flow's own way jitters: enough that none is dropped.
const JITTERED_PACKETS: u32 = 1 << 20;

/// The links, flows and times of a simulation. Every flow crosses one link.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub links: Vec<LinkConfig>,
    /// Delay of the way back, microseconds.
    pub return_delay_us: u64,
    /// The link that acknowledgements cross before that; `None`: nothing else delays them.
    pub return_link: Option<u8>,
    /// The length, microseconds of virtual time.
    pub duration_us: u64,
    /// Between a flow's samples, microseconds.
    pub sample_every_us: u64,
    /// The seed of random losses.
    pub seed: u64,
    /// From a report to the agent's update, microseconds.
    pub agent_latency_us: u64,
    /// Least that retransmission timeouts exceed the RTT by, microseconds.
    pub min_rto_us: u32,
    /// In order of their start.
    pub flows: Vec<SimulationFlow>,
    /// Traffic without congestion control beside them.
    pub cross: Vec<CrossConfig>,
    /// Changes of links, in order of time.
    pub changes: Vec<SimChange>,
}

/// A change of a link at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimChange {
    pub at_us: u64,
    /// The index of the link.
    pub link: u8,
    pub change: LinkChange,
}

impl Simulation {
    /// With an agent that answers at once and Linux's timeouts; links and flows are to be added.
    #[must_use]
    pub fn new(return_delay_us: u64, duration_us: u64, seed: u64) -> Simulation {
        Simulation {
            links: Vec::new(),
            return_delay_us,
            return_link: None,
            duration_us,
            sample_every_us: DEFAULT_SAMPLE_EVERY_US,
            seed,
            agent_latency_us: 0,
            min_rto_us: DEFAULT_MIN_RTO_US,
            flows: Vec::new(),
            cross: Vec::new(),
            changes: Vec::new(),
        }
    }
}

/// A flow to simulate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulationFlow {
    pub algorithm: String,
    /// The link that it crosses.
    pub link: u8,
    pub source: Source,
    /// When it starts, microseconds.
    pub start_us: u64,
    /// When it is closed, microseconds; `None`: it goes on.
    pub stop_us: Option<u64>,
    pub own: OwnPath,
    /// The way in which it hands segments over.
    pub stack: Stack,
}

impl SimulationFlow {
    /// A flow over the first link, which adds nothing to it; it goes on where `stop_us` is `None`.
    #[must_use]
    pub fn new(algorithm: &str, source: Source, start_us: u64, stop_us: Option<u64>) -> SimulationFlow {
        SimulationFlow {
            algorithm: algorithm.to_owned(),
            link: 0,
            source,
            start_us,
            stop_us,
            own: OwnPath::default(),
            stack: Stack::default(),
        }
    }
}

/// The way of one flow beside the links that it shares, and its receiver; the default adds nothing and acknowledges as Linux does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnPath {
    /// Delay before the link, microseconds.
    pub extra_delay_us: u64,
    /// Largest further delay before the link, drawn for each packet, microseconds. Packets stay in order; flows with the same
    /// jitter share it.
    pub jitter_us: u64,
    /// The interval at which its acknowledgements are released together, microseconds; 0 releases each on its own.
    pub aggregate_acks_us: u64,
    /// Segments that one acknowledgement waits for; `None` as Linux.
    pub ack_every: Option<u8>,
    /// Whether its receiver acknowledges what never arrived.
    pub conceals_losses: bool,
    /// Whether its packets may be marked rather than dropped (ECT, RFC 3168).
    pub ecn: bool,
}

impl OwnPath {
    fn acks(&self) -> Acks {
        Acks {
            every: self.ack_every.unwrap_or(Acks::LINUX.every),
            aggregate_ns: self.aggregate_acks_us * 1000,
            conceals_losses: self.conceals_losses,
            ..Acks::LINUX
        }
    }
}

/// The result of a simulation.
pub struct Simulated {
    /// The datapath, with what it has counted.
    pub datapath: SimDatapath,
    /// The flows' names there, in the order of [`Simulation::flows`].
    pub flows: Vec<FlowId>,
    /// The agent's counters.
    pub counters: Counters,
}

/// Reasons why nothing was simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error("{found} flows, at most {limit} are allowed")]
    TooMany { found: usize, limit: usize },
    /// An algorithm's program is refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No algorithm of that name.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// A number outside its limits.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The core does not take the datapath.
    #[error("attach the simulated datapath: {0}")]
    Attach(#[from] AttachError),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// Simulates to the end, with nothing beside the agent. `poll` is called every `poll_every_us` of virtual time, and says whether to go on.
///
/// # Errors
/// An algorithm that there is not, a number outside its limits, or `poll` returned false.
pub fn run(
    simulation: &Simulation,
    algorithms: &[Arc<dyn Algorithm>],
    poll_every_us: u64,
    poll: &mut dyn FnMut(&SimDatapath) -> bool,
) -> Result<Simulated, SimulateError> {
    run_beside(simulation, algorithms, poll_every_us, poll, None)
}

/// The same with something beside the agent, which then samples its flows' paths with each batch of rows.
///
/// # Errors
/// As [`run`].
pub fn run_beside(
    simulation: &Simulation,
    algorithms: &[Arc<dyn Algorithm>],
    poll_every_us: u64,
    poll: &mut dyn FnMut(&SimDatapath) -> bool,
    mut beside: Option<&mut (dyn Companion + '_)>,
) -> Result<Simulated, SimulateError> {
    if simulation.flows.len() > MAX_FLOWS {
        return Err(SimulateError::TooMany { found: simulation.flows.len(), limit: MAX_FLOWS });
    }
    let jitters = Jitters::of(simulation);
    let mut config = SimConfig::new(jitters.links(simulation), simulation.seed);
    config.sample_every_us = simulation.sample_every_us;
    config.agent_latency_us = simulation.agent_latency_us;
    let mut datapath = SimDatapath::new(config)?;
    for cross in &simulation.cross {
        datapath.add_cross(cross)?;
    }
    let mut names: Vec<&str> = simulation.flows.iter().map(|f| f.algorithm.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let port = |name: &str| FIRST_PORT + names.iter().position(|n| *n == name).unwrap_or(0) as u16;
    let rule = |name: &&str| Rule { remote_port: Some(port(name)..=port(name)), ..Rule::any(name) };
    let rules = Rules { rules: names.iter().map(rule).collect(), default: NATIVE.to_owned() };
    let mut limits = Config::default();
    if beside.is_some() {
        limits.slots_every_us = limits.batch_us;
    }
    let mut core = Core::new(Catalog::new(algorithms.to_vec(), 1)?, rules, limits)?;
    core.attach(SIM, datapath.capabilities(), 0)?;

    let mut flows = Vec::with_capacity(simulation.flows.len());
    let mut closing: Vec<(u64, usize)> =
        simulation.flows.iter().enumerate().filter_map(|(n, f)| Some((f.stop_us?, n))).collect();
    closing.sort_unstable_by_key(|c| std::cmp::Reverse(*c));
    let mut next_poll_us = poll_every_us.max(1);
    let mut changes = simulation.changes.iter().peekable();
    while datapath.now_us() < simulation.duration_us {
        // Flows are added as their time comes, so that those to come cost nothing.
        let horizon_us = simulation.duration_us.min(datapath.now_us() + TICK_US).min(next_poll_us);
        while let Some(flow) = simulation.flows.get(flows.len()).filter(|f| f.start_us <= horizon_us) {
            flows.push(add(&mut datapath, flow, port(&flow.algorithm), simulation, &jitters)?);
        }
        let until_us = closing.last().map_or(horizon_us, |(at_us, _)| horizon_us.min(*at_us));
        let until_us = changes.peek().map_or(until_us, |change| until_us.min(change.at_us));
        datapath.step_to_event(until_us);
        let now_us = datapath.now_us();
        while let Some(change) = changes.next_if(|change| change.at_us <= now_us) {
            datapath.change_link(change.link, &change.change)?;
        }
        while let Some((_, flow)) = closing.pop_if(|(at_us, _)| *at_us <= now_us) {
            if let Some(id) = flows.get(flow) {
                // One that has ended on its own is closed already.
                let _ = datapath.close(*id);
            }
        }
        match &mut beside {
            None => {
                drive(&mut core, SIM, &mut datapath, now_us);
            }
            Some(beside) => {
                beside.drive(&mut core, SIM, &mut datapath, now_us);
                beside.after_turn(&mut core, now_us);
            }
        }
        if now_us >= next_poll_us {
            next_poll_us += poll_every_us.max(1);
            if !poll(&datapath) {
                return Err(SimulateError::Stopped);
            }
        }
    }
    Ok(Simulated { datapath, flows, counters: core.counters() })
}

/// The jitters of single flows, each of which is a link before the shared one.
struct Jitters {
    first_link: usize,
    /// Each once, microseconds.
    us: Vec<u64>,
}

impl Jitters {
    fn of(simulation: &Simulation) -> Jitters {
        let mut us: Vec<u64> =
            simulation.flows.iter().map(|f| f.own.jitter_us).filter(|us| *us > 0).collect();
        us.sort_unstable();
        us.dedup();
        Jitters { first_link: simulation.links.len(), us }
    }

    /// All links of the network.
    fn links(&self, simulation: &Simulation) -> Vec<LinkConfig> {
        let capacity = Capacity::Rate { bit_per_s: MAX_CAPACITY_BIT_PER_S };
        let link = |us: &u64| LinkConfig {
            jitter_ns: us * 1000,
            ..LinkConfig::new(capacity.clone(), 0, QueueLimit::Packets(JITTERED_PACKETS))
        };
        simulation.links.iter().cloned().chain(self.us.iter().map(link)).collect()
    }

    /// The links that a flow crosses, in order.
    fn way(&self, flow: &SimulationFlow) -> Vec<u8> {
        let jitter = self.us.iter().position(|us| *us == flow.own.jitter_us);
        // More links than there are numbers for are refused by the network.
        let jitter = jitter.map(|n| u8::try_from(self.first_link + n).unwrap_or(u8::MAX));
        jitter.into_iter().chain([flow.link]).collect()
    }
}

fn add(
    datapath: &mut SimDatapath,
    flow: &SimulationFlow,
    port: u16,
    simulation: &Simulation,
    jitters: &Jitters,
) -> Result<FlowId, SimError> {
    let mut config = FlowConfig::new(flow.source, simulation.return_delay_us);
    config.min_rto_us = simulation.min_rto_us;
    config.stack = flow.stack;
    config.start_us = flow.start_us;
    config.path.links = jitters.way(flow);
    config.path.acks = flow.own.acks();
    config.path.access_delay_ns = flow.own.extra_delay_us * 1000;
    config.path.ecn = flow.own.ecn;
    config.path.return_links = simulation.return_link.into_iter().collect();
    config.remote.set_port(port);
    datapath.add_flow(&config)
}

/// A long flow as results have it: figures count from `warmup_us` on, acknowledged bytes and losses from its start.
#[must_use]
pub fn measured(datapath: &SimDatapath, id: FlowId, start_us: u64, warmup_us: u64) -> FlowResult {
    let Some(stats) = datapath.stats(id) else { return FlowResult::default() };
    let mss_bytes = u64::from(stats.transport.mss_bytes.max(1));
    let samples = datapath.samples(id);
    let mut series = Series::default();
    let mut before = (start_us, 0);
    let mut rtts = Vec::new();
    let mut warm: Option<(u64, u64)> = None;
    for s in samples {
        let elapsed_us = s.at_us.saturating_sub(before.0);
        let bits = (s.delivered - before.1) * mss_bytes * 8;
        if let Some(bps) = (bits * 1_000_000).checked_div(elapsed_us) {
            series.t_ms.push(s.at_us / 1000);
            series.throughput_bps.push(bps);
            series.srtt_us.push(s.srtt_us.into());
            series.cwnd_pkts.push(s.cwnd_bytes / mss_bytes);
            series.pacing_bps.push(s.pacing_rate.saturating_mul(8));
        }
        before = (s.at_us, s.delivered);
        if s.at_us >= warmup_us {
            warm.get_or_insert((s.at_us, s.bytes_acked));
            rtts.extend(Some(u64::from(s.srtt_us)).filter(|rtt| *rtt > 0));
        }
    }
    let (from_us, from_bytes) = warm.unwrap_or((start_us, 0));
    let (to_us, to_bytes) = samples.last().map_or((start_us, 0), |s| (s.at_us, s.bytes_acked));
    let bits = to_bytes.saturating_sub(from_bytes) * 8;
    FlowResult {
        start_ms: start_us / 1000,
        end_ms: to_us / 1000,
        throughput_bps: bits * 1_000_000 / (to_us - from_us).max(1),
        acked_bytes: stats.transport.bytes_acked,
        rtt_us: percentiles(rtts),
        min_rtt_us: stats.transport.min_rtt_us.into(),
        lost_pkts: stats.transport.lost,
        // Every packet that is marked lost is sent again, once.
        retransmitted_pkts: stats.transport.lost,
        series,
        ..FlowResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::{Capacity, QueueLimit};

    fn simulation() -> Simulation {
        let rate = Capacity::Rate { bit_per_s: 12_000_000 };
        let link = LinkConfig::new(rate, 20_000_000, QueueLimit::Packets(60));
        let flows = vec![
            SimulationFlow::new("reno", Source::Bulk, 0, None),
            SimulationFlow::new("cubic", Source::Bulk, 2_000_000, Some(6_000_000)),
        ];
        Simulation { links: vec![link], flows, ..Simulation::new(20_000, 10_000_000, 1) }
    }

    fn acked(done: &Simulated) -> Vec<u64> {
        done.flows.iter().map(|id| done.datapath.stats(*id).unwrap().transport.bytes_acked).collect()
    }

    #[test]
    fn flows_start_and_stop_in_time_and_runs_repeat() {
        let algorithms = ccplane_algs::all();
        let mut polls = 0;
        let done = run(&simulation(), &algorithms, 1_000_000, &mut |_| {
            polls += 1;
            true
        })
        .unwrap();
        assert_eq!(polls, 10);
        let (reno, cubic) = (done.flows[0], done.flows[1]);
        let total: u64 = acked(&done).iter().sum();
        assert!((10_500_000..=12_000_000).contains(&(total * 8 / 10)), "{total}");
        assert!(done.datapath.samples(reno).len() >= 95);
        let times: Vec<u64> = done.datapath.samples(cubic).iter().map(|s| s.at_us).collect();
        assert!(*times.first().unwrap() >= 2_000_000 && *times.last().unwrap() == 6_000_000, "{times:?}");
        assert!(done.counters.reports > 0);
        let again = run(&simulation(), &algorithms, 1_000_000, &mut |_| true).unwrap();
        assert_eq!(acked(&done), acked(&again));
    }

    /// From half of the rate and twice the delay on.
    #[test]
    fn links_change_in_time() {
        let link = LinkConfig::new(
            Capacity::Rate { bit_per_s: u32::MAX.into() },
            20_000_000,
            QueueLimit::Packets(60),
        );
        let mut simulation = simulation();
        simulation.flows.truncate(1);
        (simulation.return_delay_us, simulation.return_link) = (0, Some(1));
        simulation.links.push(link);
        let slow = LinkChange { bit_per_s: Some(6_000_000), delay_ns: Some(40_000_000), loss_ppm: None };
        let far = LinkChange { delay_ns: Some(40_000_000), ..LinkChange::default() };
        let change = |link, change| SimChange { at_us: 5_000_000, link, change };
        simulation.changes = vec![change(0, slow), change(1, far)];
        let done = run(&simulation, &ccplane_algs::all(), TICK_US, &mut |_| true).unwrap();
        let samples = done.datapath.samples(done.flows[0]);
        let between = |from_us: u64, to_us: u64| {
            let inside: Vec<_> = samples.iter().filter(|s| s.at_us > from_us && s.at_us <= to_us).collect();
            let packets = inside.last().unwrap().delivered - inside[0].delivered;
            (
                packets * 1_000_000 / (to_us - from_us - 100_000),
                inside.iter().map(|s| s.srtt_us).min().unwrap(),
            )
        };
        let (before, after) = (between(2_000_000, 5_000_000), between(7_000_000, 10_000_000));
        assert!((950..=1000).contains(&before.0) && (470..=500).contains(&after.0), "{before:?} {after:?}");
        assert!(before.1 < 80_000 && after.1 >= 80_000, "{before:?} {after:?}");
    }

    /// Of two flows one has a way of its own that jitters, and a receiver that gathers its acknowledgements.
    #[test]
    fn what_is_a_flows_own_is_not_the_others() {
        let mut simulation = simulation();
        let other = SimulationFlow {
            start_us: 0,
            stop_us: None,
            algorithm: "reno".to_owned(),
            ..simulation.flows[1].clone()
        };
        simulation.flows[1] = other;
        let during = |duration_us, own: OwnPath| {
            let mut simulation = Simulation { duration_us, ..simulation.clone() };
            simulation.flows[1].own = own;
            let done = run(&simulation, &ccplane_algs::all(), TICK_US, &mut |_| true).unwrap();
            let stats = |n: usize| done.datapath.stats(done.flows[n]).unwrap().transport;
            let mean_us = |n: usize| {
                let samples = done.datapath.samples(done.flows[n]);
                samples.iter().map(|s| i64::from(s.srtt_us)).sum::<i64>() / samples.len() as i64
            };
            (mean_us(1) - mean_us(0), stats(1).lost, done.datapath.network().acks_sent())
        };
        let rtts = |own| during(simulation.duration_us, own);
        // The queue is the same for both flows.
        let plain = rtts(OwnPath::default());
        assert!(plain.0.abs() < 5_000, "{plain:?}");
        let jittered = rtts(OwnPath { jitter_us: 30_000, ..OwnPath::default() });
        assert!(jittered.0 > 10_000, "{jittered:?}");
        let gathered = rtts(OwnPath { aggregate_acks_us: 100_000, ..OwnPath::default() });
        assert!(gathered.0 > 20_000, "{gathered:?}");
        let rare = rtts(OwnPath { ack_every: Some(32), ..OwnPath::default() });
        assert!(rare.2 < plain.2, "{rare:?} {plain:?}");
        // Its flow loses packets while it starts, and each second to a receiver that lies takes longer to simulate.
        let [honest, lying] = [false, true]
            .map(|conceals_losses| during(3_000_000, OwnPath { conceals_losses, ..OwnPath::default() }));
        assert!(honest.1 > 0 && lying.1 * 4 < honest.1, "{lying:?} {honest:?}");
    }

    #[test]
    fn what_there_is_not_is_refused_and_a_look_can_stop() {
        let mut unknown = simulation();
        unknown.flows[0].algorithm = "none".to_owned();
        let error = run(&unknown, &ccplane_algs::all(), TICK_US, &mut |_| true).err().unwrap().to_string();
        assert!(error.contains("no algorithm `none`"), "{error}");
        let stopped = run(&simulation(), &ccplane_algs::all(), TICK_US, &mut |_| false);
        assert!(matches!(stopped, Err(SimulateError::Stopped)));
    }
}

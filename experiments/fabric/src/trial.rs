//! One fabric under one load and one algorithm for packets.

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::omniscient::{Omniscient, PathOracle};
use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowId};
use ccplane_core::{Catalog, Companion, Config, Core, Counters, DatapathId, Rules, drive};
use ccplane_netsim::PathConfig;
use ccplane_netsim::workload::{FlowSizes, HostArrival, HostArrivals, Playback, Split, Structure};
use ccplane_sim::{SimConfig, SimDatapath};
use std::sync::Arc;

const HOSTS: DatapathId = DatapathId(0);
/// The longest virtual time between two polls of the datapath by the agent, microseconds.
const TICK_US: u64 = 10_000;
/// A run ends after this many times the span of its measured arrivals, whatever still runs.
const LONGEST_SPANS: u64 = 6;
/// Flows of one trial: those of a network, with room for those that go on behind the measured ones.
const MAX_FLOWS: usize = 1 << 19;
/// Sizes of each pair of application and destination that hosts remember from before the trial.
pub(crate) const PAST_FLOWS: usize = 4;

/// A fabric, its load, and the flows that are measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    pub fabric: Fabric,
    pub sizes: FlowSizes,
    /// Share of each host's link that payload takes, millionths.
    pub load_ppm: u32,
    pub structure: Structure,
    /// The recording whose flows these are, whatever sizes and structure say; `None` where they are drawn.
    pub playback: Option<Playback>,
    /// The set of flows that these are drawn from.
    pub split: Split,
    pub seed: u64,
    /// Flows that come first and are not measured.
    pub warm_up_flows: usize,
    /// Flows that are measured. The load stays until all of them have ended.
    pub flows: usize,
    /// An oracle that chooses paths, if one does.
    pub omniscient: Option<PathOracle>,
}

/// A measured flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    pub arrival: HostArrival,
    /// From the flow's start until its last byte was acknowledged, nanoseconds; `None` if the trial ended before.
    pub completion_ns: Option<u64>,
    /// The flow's round-trip time without queues, nanoseconds.
    pub base_rtt_ns: u64,
}

/// The flows of a trial, and what it counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrialOutcome {
    /// In order of their start.
    pub completions: Vec<Completion>,
    /// The agent's counters.
    pub counters: Counters,
    /// A digest of all that happened in the network.
    pub digest: u64,
    /// Virtual time of the whole, microseconds.
    pub duration_us: u64,
    /// Packets that queues dropped.
    pub dropped: u64,
    /// Packets that arrived, of all flows.
    pub arrived: u64,
    /// Those that arrived before one of their flow that had left earlier.
    pub overtaking: u64,
}

impl Trial {
    /// The flows of the trial, for ever.
    ///
    /// # Errors
    /// A load or a structure outside its limits.
    pub fn arrivals(&self) -> Result<HostArrivals, FabricError> {
        let (load_ppm, bit_per_s, of) = (self.load_ppm, self.fabric.edge_bit_per_s, (self.split, self.seed));
        let arrivals = match &self.playback {
            Some(playback) => {
                HostArrivals::played(playback, load_ppm, bit_per_s, self.fabric.shape.hosts(), of)
            }
            None => HostArrivals::new(&self.sizes, load_ppm, bit_per_s, self.structure, of),
        };
        Ok(arrivals?)
    }

    /// Simulates under the algorithm of that name, which is one of these or [`ccplane_core::NATIVE`].
    ///
    /// # Errors
    /// A number outside its limits, or an algorithm that there is not.
    pub fn run(&self, algorithms: &[Arc<dyn Algorithm>], name: &str) -> Result<TrialOutcome, FabricError> {
        self.run_beside(algorithms, name, Config::default(), None)
    }

    /// Runs as [`Trial::run`] does, under a core with these limits and periods; a companion, such as a learner, runs
    /// after each of its turns.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn run_beside<'a>(
        &'a self,
        algorithms: &[Arc<dyn Algorithm>],
        name: &str,
        limits: Config,
        companion: Option<&'a mut dyn Companion>,
    ) -> Result<TrialOutcome, FabricError> {
        let measured = self.warm_up_flows + self.flows;
        if measured > MAX_FLOWS {
            return Err(FabricError::Flows { found: measured, max: MAX_FLOWS });
        }
        let mut config = SimConfig::new(self.fabric.links()?, self.seed);
        config.hosts = Some(self.fabric.hosts.clone());
        // Nobody listens at the transport's own datapath.
        config.max_flows = 0;
        let mut datapath = SimDatapath::new(config)?;
        let rules = Rules { rules: Vec::new(), default: name.to_owned() };
        let mut core = Core::new(Catalog::new(algorithms.to_vec(), 1)?, rules, limits)?;
        if let Some(hosts) = datapath.hosts() {
            core.attach(HOSTS, hosts.capabilities(), 0)?;
        }
        let mut arrivals = self.arrivals()?;
        for past in arrivals.past(PAST_FLOWS) {
            let flow = self.fabric.flow(&past, 0);
            if let Some(hosts) = datapath.hosts() {
                hosts.remember(&flow, past.bytes);
            }
        }
        let oracle = self.omniscient.map(|oracle| Omniscient::new(&self.fabric, oracle));
        let mut all = Running { trial: self, datapath, core, flows: Vec::new(), oracle, companion };
        all.run_to_the_end(&mut arrivals)?;
        Ok(all.outcome())
    }
}

/// A trial that runs.
struct Running<'a> {
    trial: &'a Trial,
    datapath: SimDatapath,
    core: Core,
    flows: Vec<(FlowId, HostArrival)>,
    oracle: Option<Omniscient>,
    companion: Option<&'a mut dyn Companion>,
}

impl Running<'_> {
    /// Leaves the next flow the path that the oracle chooses.
    fn foresee(&mut self, path: &mut PathConfig, next: &HostArrival) {
        let Some(oracle) = &mut self.oracle else { return };
        for (id, arrival) in &self.flows {
            if !oracle.knows(id.0) {
                continue;
            }
            let acked = self.datapath.stats(*id).map_or(0, |stats| stats.transport.bytes_acked);
            let ended = self.datapath.completion_ns(*id).is_some();
            oracle.left(id.0, (!ended).then(|| arrival.bytes.saturating_sub(acked)));
        }
        oracle.choose(&self.trial.fabric, self.flows.len() as u64, path, next.bytes, next.start_us);
    }

    fn run_to_the_end(&mut self, arrivals: &mut HostArrivals) -> Result<(), FabricError> {
        let Some(mut next) = arrivals.next() else { return Ok(()) };
        let mut changes = self.trial.fabric.changes.iter().peekable();
        let measured = self.trial.warm_up_flows + self.trial.flows;
        let (mut until_us, mut ended) = (u64::MAX, self.trial.warm_up_flows);
        while self.datapath.now_us() < until_us {
            let now_us = self.datapath.now_us();
            let mut horizon_us = until_us.min(now_us + TICK_US);
            if self.oracle.is_some() {
                // It chooses at the moment at which a flow starts.
                horizon_us = horizon_us.min(next.start_us.max(now_us));
            }
            while next.start_us <= horizon_us && self.flows.len() < MAX_FLOWS {
                let mut flow = self.trial.fabric.flow(&next, self.flows.len());
                if self.oracle.is_some() {
                    if next.start_us > now_us {
                        break;
                    }
                    self.foresee(&mut flow.path, &next);
                }
                self.flows.push((self.datapath.add_flow(&flow)?, next));
                if self.flows.len() == measured {
                    until_us = next.start_us.max(1).saturating_mul(LONGEST_SPANS);
                }
                if let Some(later) = arrivals.next() {
                    next = later;
                }
            }
            let step_us = changes.peek().map_or(horizon_us, |change| horizon_us.min(change.at_us));
            self.datapath.step_to_packet_event(step_us);
            let now_us = self.datapath.now_us();
            while let Some(change) = changes.next_if(|change| change.at_us <= now_us) {
                self.datapath.change_link(change.link, &change.change)?;
            }
            if let Some(hosts) = self.datapath.hosts() {
                drive(&mut self.core, HOSTS, hosts, now_us);
            }
            if let Some(companion) = &mut self.companion {
                companion.after_turn(&mut self.core, now_us);
            }
            while self.flows.get(ended).is_some_and(|(id, _)| self.datapath.completion_ns(*id).is_some()) {
                ended += 1;
            }
            if ended >= measured {
                return Ok(());
            }
        }
        Ok(())
    }

    fn outcome(self) -> TrialOutcome {
        let network = self.datapath.network();
        let completion = |(id, arrival): &(FlowId, HostArrival)| Completion {
            arrival: *arrival,
            completion_ns: self.datapath.completion_ns(*id),
            base_rtt_ns: network.base_rtt_ns(id.0 as u32).unwrap_or(0),
        };
        let measured = self.flows.iter().skip(self.trial.warm_up_flows).take(self.trial.flows);
        let links = (0..=u8::MAX).map_while(|link| network.link_stats(link));
        let received = || self.flows.iter().filter_map(|(id, _)| network.receiver_stats(id.0 as u32));
        TrialOutcome {
            completions: measured.map(completion).collect(),
            counters: self.core.counters(),
            digest: network.digest(),
            duration_us: self.datapath.now_us(),
            dropped: links.map(|stats| stats.dropped).sum(),
            arrived: received().map(|stats| stats.arrived).sum(),
            overtaking: received().map(|stats| stats.overtaken).sum(),
        }
    }
}

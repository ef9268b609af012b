//! The league's drawn links as environments.
//!
//! Environments have one bottleneck of the league's simulator. They know rates and delays that change, traces, all impairments, and
//! traffic that comes and goes. Ways back may limit or lose acknowledgements, and rivals stay or end. A link that is more than that is
//! refused by its family's name; the league has none.

use crate::error::refused;
use crate::simulated::traces;
use ccplane_alg::Algorithm;
use ccplane_env::{EnvLink, FlowSetup, OnOff, Phase, Scenario, Stack};
use ccplane_league::{Family, FamilyLink, Set};
use ccplane_runner::experiment::{Slot, TUN_HEADER_BYTES, seed, short_arrivals, way_back};
use ccplane_runner::plan::{Discipline, Medium, Plan, PlanLink, Scenario as Planned, Traffic};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Links of one family, at most.
const MAX_LINKS: u32 = 4096;
/// Links of each family unless asked for otherwise.
const LINKS: u32 = 64;
/// Payload of a full packet.
const MSS_BYTES: u64 = 1448;
/// Packets that a link's queue has at least, so that a window finds room.
const LEAST_QUEUE_PACKETS: usize = 1;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_US: u64 = 1000;

/// The league's links that Python names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drawn {
    /// The families' names, as the league spells them.
    league: Vec<String>,
    /// The set's name, `training` or `validation`.
    #[serde(default = "training")]
    set: String,
    /// The number of links of each family.
    #[serde(default = "links")]
    links: u32,
    /// The folder of the recorded drives; where `make` puts them unless given.
    traces: Option<PathBuf>,
}

fn training() -> String {
    Set::Training.name().to_owned()
}

fn links() -> u32 {
    LINKS
}

/// Drawn links, and the algorithms of the flows beside the learning ones: algorithm 1 and those after it.
pub(crate) struct Scenarios {
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) rivals: Vec<Arc<dyn Algorithm>>,
}

impl Drawn {
    /// Draws the links of each family in turn.
    pub(crate) fn scenarios(&self) -> PyResult<Scenarios> {
        let set = Set::ALL.into_iter().find(|set| set.name() == self.set && *set != Set::Test);
        let set = set.ok_or_else(|| PyValueError::new_err("set: `training` or `validation`"))?;
        if !(1..=MAX_LINKS).contains(&self.links) || self.league.is_empty() {
            return Err(PyValueError::new_err(format!(
                "1 to {MAX_LINKS} links of at least one family are needed"
            )));
        }
        let algorithms = ccplane_algs::all();
        let traces = traces(self.traces.clone());
        let mut drawn = Scenarios { scenarios: Vec::new(), rivals: Vec::new() };
        for family in &self.league {
            let family: Family = family.parse().map_err(refused)?;
            for number in 0..self.links {
                let link = FamilyLink::new(family, set, number).map_err(refused)?;
                let plan = link.plan(&["aurora"], "sim", &algorithms, &traces);
                let scenario = drawn.scenario(&plan.map_err(refused)?, &algorithms);
                drawn.scenarios.push(scenario.map_err(|why| {
                    PyValueError::new_err(format!("links of `{}` are no environments: {why}", family.name()))
                })?);
            }
        }
        Ok(drawn)
    }
}

impl Scenarios {
    /// The scenario of a plan's first link.
    fn scenario(&mut self, plan: &Plan, algorithms: &[Arc<dyn Algorithm>]) -> Result<Scenario, &'static str> {
        let planned = plan.scenarios.first().ok_or("there is none")?;
        let (link, until_ns) = (&planned.link, plan.duration_ms * NS_PER_MS);
        let mut flows = learners(planned)?;
        for background in &planned.background {
            let algorithm = self.rival(&background.algorithm, algorithms).ok_or("an unknown rival")?;
            let rival = FlowSetup {
                algorithm,
                start_ns: background.start_ms * NS_PER_MS,
                ..flow(2 * least_delay_us(link) * NS_PER_US)
            };
            flows.extend(std::iter::repeat_n(rival, background.flows as usize));
        }
        flows.extend(self.short(plan, planned, algorithms)?);
        let limits = !matches!(link.way_back, Medium::Unlimited | Medium::Veth) || link.return_loss_ppm > 0;
        let mut back = if limits { way_back(link, planned.simulator.emulated) } else { None };
        // The flows' own round trip has its delay.
        back.iter_mut().for_each(|back| back.delay_ns = 0);
        let (link, cross) = (bottleneck(link, until_ns)?, cross(planned, until_ns)?);
        Ok(Scenario { link, way_back: back, flows, cross, until_ns })
    }

    /// The flows that come and end beside the learning ones: those of the plan's first run, in each of the link's episodes.
    fn short(
        &mut self,
        plan: &Plan,
        planned: &Planned,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Vec<FlowSetup>, &'static str> {
        let seed = seed(plan, Slot { repeat: 0, scenario: 0, contender: 0 });
        let delay_ns = 2 * least_delay_us(&planned.link) * NS_PER_US;
        let mut flows = Vec::new();
        for (short, arrivals) in planned.short.iter().zip(short_arrivals(planned, seed)) {
            let algorithm = self.rival(&short.algorithm, algorithms).ok_or("an unknown rival")?;
            flows.extend(arrivals.iter().map(|arrival| FlowSetup {
                algorithm,
                start_ns: arrival.start_us * NS_PER_US,
                bytes: Some(arrival.bytes),
                // They are the kernel's.
                stack: Stack::Linux,
                ..flow(delay_ns)
            }));
        }
        Ok(flows)
    }

    /// The number of a rival's algorithm.
    fn rival(&mut self, name: &str, algorithms: &[Arc<dyn Algorithm>]) -> Option<usize> {
        let known = self.rivals.iter().position(|rival| rival.name() == name);
        let number = match known {
            Some(number) => number,
            None => {
                self.rivals.push(Arc::clone(algorithms.iter().find(|a| a.name() == name)?));
                self.rivals.len() - 1
            }
        };
        Some(number + 1)
    }
}

/// A learning flow from the start on, of this round trip.
fn flow(delay_ns: u64) -> FlowSetup {
    FlowSetup {
        algorithm: 0,
        start_ns: 0,
        delay_ns,
        mss_bytes: MSS_BYTES,
        ack_every: 2,
        stack: Stack::Steered,
        start_rate: None,
        bytes: None,
    }
}

fn learners(planned: &Planned) -> Result<Vec<FlowSetup>, &'static str> {
    let Traffic::Bulk { flows, stagger_ms, .. } = planned.traffic else { return Err("flows that end") };
    let extra = |n: usize| {
        let list = &planned.extra_delays_us;
        list.get(n.checked_rem(list.len()).unwrap_or(0)).copied().unwrap_or(0)
    };
    let one = |n: u32| FlowSetup {
        start_ns: (planned.start_ms + u64::from(n) * stagger_ms) * NS_PER_MS,
        ..flow((2 * least_delay_us(&planned.link) + extra(n as usize)) * NS_PER_US)
    };
    Ok((0..flows).map(one).collect())
}

/// The environment's link of a plan's; phases of a trace tell its rate until `until_ns`.
fn bottleneck(link: &PlanLink, until_ns: u64) -> Result<EnvLink, &'static str> {
    if link.queue.discipline != Discipline::DropTail {
        return Err("a queue that drops early");
    }
    let queue = link.queue.packets.ok_or("a queue without a limit in packets")?;
    let queue_packets = (queue as usize).max(LEAST_QUEUE_PACKETS);
    let shape = match &link.medium {
        Medium::Trace { .. } if !link.changes.is_empty() => return Err("a trace on a link that changes"),
        Medium::Trace { trace, .. } => {
            EnvLink::of_trace(trace.clone(), queue_packets, phase(link, 0, 0), until_ns)
        }
        Medium::Rate(_) => EnvLink::new(phases(link)?, queue_packets),
        Medium::Veth | Medium::Unlimited => return Err("no limit of its rate"),
    };
    Ok(EnvLink { overhead_bytes: TUN_HEADER_BYTES, ingress: link.impairments.simulated(), ..shape })
}

/// A link's phases: its start, and its changes.
fn phases(link: &PlanLink) -> Result<Vec<Phase>, &'static str> {
    let times = std::iter::once(0).chain(link.changes.iter().map(|change| change.at_ms));
    let of = |at_ms: u64| {
        let Medium::Rate(bit_per_s) = link.at(at_ms).medium else { return Err("a medium that changes") };
        Ok(phase(link, at_ms, bit_per_s / 8))
    };
    times.map(of).collect()
}

/// The phase of this rate from `at_ms` on.
fn phase(link: &PlanLink, at_ms: u64, bytes_per_s: u64) -> Phase {
    let now = link.at(at_ms);
    let added_us = 2 * now.delay_us.saturating_sub(least_delay_us(link));
    Phase { from_ns: at_ms * NS_PER_MS, bytes_per_s, delay_ns: added_us * NS_PER_US, loss_ppm: now.loss_ppm }
}

/// The shortest way that a link ever has, one way.
fn least_delay_us(link: &PlanLink) -> u64 {
    let changed = link.changes.iter().filter_map(|change| change.delay_us);
    changed.fold(link.delay_us, u64::min)
}

fn cross(planned: &Planned, until_ns: u64) -> Result<Option<OnOff>, &'static str> {
    match planned.datagrams.as_slice() {
        [] => Ok(None),
        [one] => {
            // What never stops comes in periods that outlast the episode.
            let (on_ns, off_ns) =
                one.periods.map_or((8 * until_ns, 1), |p| (p.on_us * 1000, p.off_us * 1000));
            Ok(Some(OnOff { bytes_per_s: one.bit_per_s / 8, on_ns, off_ns }))
        }
        _ => Err("several sources of datagrams"),
    }
}

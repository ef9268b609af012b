//! The links and flows of live runs, as plans say them.

use ccplane_files::document::Problem;
use ccplane_netsim::workload::Structure;
use serde::Deserialize;

/// Fewest and most links: what the emulator makes.
const LINKS: (u64, u64) =
    (ccplane_emulator::multi::MIN_PATHS as u64, ccplane_emulator::multi::MAX_PATHS as u64);
/// Flows of one run, each of which has a thread at either end while it runs.
const MAX_FLOWS: u64 = 10_000;

/// Table `[live]` of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveSetting {
    /// Links side by side between sender and receiver.
    pub paths: usize,
    /// Rate of each link, megabits per second.
    pub rate_mbit: u32,
    /// Propagation delay of each link, either way, microseconds.
    pub delay_us: u64,
    /// Longest queue of a link, packets.
    pub queue_packets: u32,
    /// A pause of a flow that begins a flowlet, microseconds.
    pub flowlet_us: u64,
    pub largest_flow_kb: u64,
    pub load_percent: Vec<u32>,
    pub repeats: u32,
    /// Flows of one run that are measured, and those before them.
    pub flows: usize,
    pub warm_up_flows: usize,
}

impl LiveSetting {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        within("live.paths", self.paths as u64, LINKS.0, LINKS.1)?;
        within("live.rate_mbit", self.rate_mbit.into(), 1, 1000)?;
        within("live.delay_us", self.delay_us, 0, 1_000_000)?;
        within("live.queue_packets", self.queue_packets.into(), 2, 100_000)?;
        within("live.flowlet_us", self.flowlet_us, 1, 10_000_000)?;
        within("live.largest_flow_kb", self.largest_flow_kb, 1, 10_000_000)?;
        within("live.repeats", self.repeats.into(), 1, 1000)?;
        within("live.flows", self.flows as u64, 1, MAX_FLOWS)?;
        within("live.warm_up_flows", self.warm_up_flows as u64, 0, MAX_FLOWS)?;
        for (n, load) in self.load_percent.iter().enumerate() {
            within(&format!("live.load_percent[{n}]"), (*load).into(), 1, 95)?;
        }
        Ok(())
    }

    /// The flows' structure: sixteen applications of either host, of which those of the first one send.
    pub fn structure(&self, predictable_ppm: u32) -> Structure {
        Structure { destinations: 1, ..Structure::new(2, predictable_ppm) }
    }
}

/// Refuses a number of a plan that is not within its limits.
pub(crate) fn within(field: &str, found: u64, min: u64, max: u64) -> Result<(), Problem> {
    let is_within = (min..=max).contains(&found);
    let problem = || Problem::new(field, format!("is {found}, allowed are {min} to {max}"));
    if is_within { Ok(()) } else { Err(problem()) }
}

//! Live runs on the simulated datapath.

use super::{BLACKOUT_US, LINK_BIT_PER_S, LiveError, Phase, QUEUE_PACKETS, RTT_US, SMALL_MSS_BYTES};
use crate::violation::Bounds;
use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowId, FlowStats, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_netsim::{Capacity, LinkConfig, Outage, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use std::sync::Arc;

const DATAPATH: DatapathId = DatapathId(0);
const S: u64 = 1_000_000;
const TICK_US: u64 = 50_000;
/// The time when the link goes dead.
const DARK_AT_US: u64 = 10 * S;
const END_US: u64 = 45 * S;
/// Bytes that a limited application writes at once.
const CHUNK_BYTES: u32 = 30_000;
const CHUNK_EVERY_US: u32 = 100_000;

/// The whole life of one flow on the simulator.
///
/// # Errors
/// The first phase in which it did less than was due.
pub fn simulated(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds) -> Result<Vec<Phase>, LiveError> {
    let mut phases = bulk(algorithm, bounds)?;
    phases.push(limited(algorithm)?);
    Ok(phases)
}

/// A link that is dead for a while.
fn link() -> LinkConfig {
    let capacity = Capacity::Rate { bit_per_s: LINK_BIT_PER_S };
    let mut link = LinkConfig::new(capacity, RTT_US / 2 * 1000, QueueLimit::Packets(QUEUE_PACKETS));
    link.outages.push(Outage { from_ns: DARK_AT_US * 1000, until_ns: (DARK_AT_US + BLACKOUT_US) * 1000 });
    link
}

struct Lab {
    algorithm: &'static str,
    sim: SimDatapath,
    core: Core,
    flow: FlowId,
}

impl Lab {
    fn new(algorithm: &Arc<dyn Algorithm>, source: Source) -> Result<Lab, LiveError> {
        let set_up = || -> Result<Lab, String> {
            let said = |e: &dyn std::fmt::Display| e.to_string();
            let mut sim = SimDatapath::new(SimConfig::new(vec![link()], 1)).map_err(|e| said(&e))?;
            let flow = sim.add_flow(&FlowConfig::new(source, RTT_US / 2)).map_err(|e| said(&e))?;
            let catalog = Catalog::new(vec![Arc::clone(algorithm)], 1).map_err(|e| said(&e))?;
            let mut core =
                Core::new(catalog, Rules::all(algorithm.name()), Config::default()).map_err(|e| said(&e))?;
            core.attach(DATAPATH, sim.capabilities(), 0).map_err(|e| said(&e))?;
            Ok(Lab { algorithm: algorithm.name(), sim, core, flow })
        };
        set_up().map_err(|reason| LiveError::SetUp { algorithm: algorithm.name(), reason })
    }

    fn stats(&self, phase: &'static str) -> Result<FlowStats, LiveError> {
        self.sim.stats(self.flow).ok_or_else(|| self.broken(phase, "the flow is gone".into()))
    }

    fn broken(&self, phase: &'static str, what: String) -> LiveError {
        LiveError::Broken { algorithm: self.algorithm, datapath: "the simulator", phase, what }
    }

    /// Packets delivered until `until_us`, under an agent; the flow is steered at the end.
    fn run(&mut self, until_us: u64, phase: &'static str) -> Result<u64, LiveError> {
        let before = self.stats(phase)?.transport.bytes_acked;
        while self.sim.now_us() < until_us {
            let stop_us = until_us.min(self.sim.now_us() + TICK_US);
            self.sim.step_to_event(stop_us);
            let now_us = self.sim.now_us();
            drive(&mut self.core, DATAPATH, &mut self.sim, now_us);
        }
        let stats = self.stats(phase)?;
        if (stats.mode, stats.transport.faults) != (Mode::Program, 0) {
            return Err(self.broken(phase, format!("{:?}, {} faults", stats.mode, stats.transport.faults)));
        }
        let view = self.core.flow(DATAPATH, self.flow);
        if let Some(error) = view.and_then(|v| v.last_error()) {
            return Err(self.broken(phase, error.to_string()));
        }
        Ok(stats.transport.bytes_acked - before)
    }

    /// Like [`Lab::run`]; fails if less than `floor_percent` of `bytes_per_s` was carried.
    fn phase(
        &mut self,
        name: &'static str,
        until_us: u64,
        bytes_per_s: u64,
        floor_percent: u64,
    ) -> Result<Phase, LiveError> {
        let from_us = self.sim.now_us();
        let bytes = self.run(until_us, name)?;
        let used_percent = bytes * 100 * S / (bytes_per_s * (until_us - from_us));
        let phase = Phase { name, used_percent, floor_percent };
        if used_percent < floor_percent {
            return Err(LiveError::Slow { algorithm: self.algorithm, datapath: "the simulator", phase });
        }
        Ok(phase)
    }
}

fn bulk(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds) -> Result<Vec<Phase>, LiveError> {
    let mut lab = Lab::new(algorithm, Source::Bulk)?;
    let (floor, link) = (bounds.floor_percent, bounds.reachable(LINK_BIT_PER_S / 8));
    lab.run(4 * S, "start")?;
    let start = lab.phase("start", DARK_AT_US, link, floor)?;
    // The sender's timer has backed off to at most 1.6 s when the link is back.
    lab.run(DARK_AT_US + BLACKOUT_US + 2 * S + bounds.settle_us, "blackout")?;
    let back = lab.phase("after the blackout", 26 * S, link, floor)?;
    let small = lab.sim.set_mss(lab.flow, SMALL_MSS_BYTES);
    small.map_err(|e| lab.broken("segment size", e.to_string()))?;
    lab.run(30 * S, "segment size")?;
    // Headers take a larger share of smaller segments.
    let resized = lab.phase("after a change of the segment size", END_US, link, floor * 9 / 10)?;
    Ok(vec![start, back, resized])
}

/// Runs a flow whose application offers a tenth of the link, which every algorithm must carry.
fn limited(algorithm: &Arc<dyn Algorithm>) -> Result<Phase, LiveError> {
    let mut lab = Lab::new(algorithm, Source::Chunks { bytes: CHUNK_BYTES, every_us: CHUNK_EVERY_US })?;
    let offered = u64::from(CHUNK_BYTES) * S / u64::from(CHUNK_EVERY_US);
    lab.run(2 * S, "application-limited")?;
    lab.phase("application-limited", DARK_AT_US, offered, 95)
}

//! A scenario in virtual time.

use crate::harness::{Capacity, Error, Outcome, Point, SAMPLE_EVERY_US, Scenario, check, core};
use ccplane_contract::Datapath;
use ccplane_core::{Config, DatapathId, Rules, drive};
use ccplane_netsim::{Capacity as NetCapacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source, Stack};

const SIM: DatapathId = DatapathId(0);
/// The longest virtual time between two polls by the agent, microseconds.
const TICK_US: u64 = 10_000;
/// Mahimahi and the emulator count a TUN header with each packet.
const TUN_HEADER_BYTES: u16 = 4;

/// Runs the scenario in the simulator.
///
/// # Errors
/// What is wrong with the scenario.
pub(crate) fn simulate(scenario: &Scenario) -> Result<Outcome, Error> {
    check(scenario)?;
    let mut config = SimConfig::new(vec![link(scenario)], 1);
    config.sample_every_us = SAMPLE_EVERY_US;
    let mut sim = SimDatapath::new(config)?;
    let flow =
        FlowConfig { stack: Stack::Steered, ..FlowConfig::new(Source::Bulk, scenario.one_way_delay_us) };
    let flow = sim.add_flow(&flow)?;
    let mut core = core(Rules::all(&scenario.algorithm), Config::default().heartbeat_us)?;
    core.attach(SIM, sim.capabilities(), 0).map_err(|e| Error::Core(e.to_string()))?;
    while sim.now_us() < scenario.until_us {
        sim.step_to_event(scenario.until_us.min(sim.now_us() + TICK_US));
        let now_us = sim.now_us();
        drive(&mut core, SIM, &mut sim, now_us);
    }
    let packet_bytes = sim.stats(flow).map_or(1, |s| u64::from(s.transport.mss_bytes)).max(1);
    let points = sim.samples(flow).iter().map(|s| Point {
        at_us: s.at_us,
        srtt_us: s.srtt_us.into(),
        cwnd_packets: s.cwnd_bytes / packet_bytes,
        delivered: s.delivered,
        lost: s.lost,
    });
    Ok(Outcome { points: points.collect(), packet_bytes })
}

/// The emulator's link in the simulator's terms.
fn link(scenario: &Scenario) -> LinkConfig {
    let capacity = match &scenario.capacity {
        Capacity::Rate(bit_per_s) => NetCapacity::Slots { bit_per_s: *bit_per_s },
        Capacity::Trace(trace) => NetCapacity::Trace { trace: trace.clone(), repeat: true },
    };
    let (delay_ns, queue) = (scenario.one_way_delay_us * 1000, QueueLimit::Packets(scenario.queue_packets));
    LinkConfig { overhead_bytes: TUN_HEADER_BYTES, ..LinkConfig::new(capacity, delay_ns, queue) }
}

//! The speed of the simulated datapath: packets of flows that run a fold program, per second of real time.

use ccplane_contract::{Datapath, Event, ProgramUid};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, SimError, Source, Wake};
use std::time::Instant;

const VIRTUAL_US: u64 = 10_000_000;
const TICK_US: u64 = 100_000;

const PROGRAM: &str = "(def (Report (volatile acked 0) (rtt +infinity)))
    (when true (:= Report.acked (+ Report.acked Ack.bytes_acked))
      (:= Report.rtt (min Report.rtt Flow.rtt_sample_us))
      (:= Cwnd (min 200000 (+ Cwnd (/ (* 1448 Ack.bytes_acked) Cwnd)))) (fallthrough))
    (when (> Micros 10000) (report) (:= Micros 0))";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = ccplane_program::compile(PROGRAM).map_err(|d| format!("{d:?}"))?;
    for flows in [1, 10, 100, 1000] {
        let capacity = Capacity::Rate { bit_per_s: 1_000_000_000 };
        let link =
            LinkConfig { loss_ppm: 10, ..LinkConfig::new(capacity, 1_000_000, QueueLimit::Packets(20_000)) };
        let mut sim = SimDatapath::new(SimConfig::new(vec![link], 1))?;
        sim.install(ProgramUid(1), &program)?;
        let added: Result<Vec<_>, SimError> =
            (0..flows).map(|n| sim.add_flow(&FlowConfig::new(Source::Bulk, n % 7 * 100))).collect();
        added?;
        let mut reports = 0;
        let start = Instant::now();
        sim.run(VIRTUAL_US, TICK_US, &mut |_, wake, datapath| match wake {
            // A flow that has just ended keeps its native algorithm.
            Wake::Event(Event::Created { flow, .. }) => {
                datapath.set_program(flow, ProgramUid(1), &[]).unwrap_or_default();
            }
            Wake::Event(Event::Report { .. }) => reports += 1,
            Wake::Event(_) => {}
            Wake::Tick => datapath.heartbeat(),
        });
        let ns = start.elapsed().as_nanos() as u64;
        let packets = sim.network().sent();
        println!("{flows} flows: {packets} packets, {reports} reports, {} ns a packet", ns / packets.max(1));
    }
    Ok(())
}

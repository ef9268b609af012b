//! `sim.speed` and `sim.flows`: the time per simulated packet, with the Reno program on every flow.

use std::time::Instant;

use ccplane_alg::{Algorithm, Control, FlowInfo};
use ccplane_contract::{Datapath, Event, Field, ProgramUid};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_program::ir::Program;
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, SimError, Source, Wake};

use crate::error::BenchError;
use crate::figure::Figure;
use crate::plain;
use crate::proof::{self, Proof, SteeredBy, Witness};
use crate::steer;

const RUNS: usize = 9;
const RENO: ProgramUid = ProgramUid(1);
const TICK_US: u64 = 100_000;
/// One way; the queue holds as much as the link.
const DELAY_US: u64 = 10_000;
const WIRE_BITS: u64 = 1500 * 8;
/// `sim.speed`: one flow at 96 Mb/s.
const SPEED_BIT_PER_S: u64 = 96_000_000;
const SPEED_PACKETS: u64 = 1_000_000;
/// `sim.flows`: so much for each flow of the link that all share.
const SHARE_BIT_PER_S: u64 = 12_000_000;
const FLOWS_PACKETS: u64 = 1_000_000;
const FLOWS: [u64; 4] = [1, 10, 100, 1000];

/// The packets and the run time of one simulation.
struct Cost {
    packets: u64,
    ns: u64,
    memory_bytes: u64,
    proof: Proof,
}

impl Cost {
    fn ns_per_packet(&self) -> f64 {
        self.ns as f64 / self.packets as f64
    }
}

/// Simulated packets per second on one core.
pub fn speed() -> Result<Vec<Figure>, BenchError> {
    let lab = Lab::new()?;
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let cost = lab.run(1, SPEED_BIT_PER_S, SPEED_PACKETS)?;
        pairs.push((1e9 / cost.ns_per_packet(), plain::heap_turns_per_s()));
        proofs.push(cost.proof);
    }
    Ok(vec![Figure::paired("sim.speed", "packets/s", plain::HEAP_TURN, &pairs, &proof::all(&proofs)?)])
}

/// Time for each packet and memory for each flow, with many flows against one.
pub fn flows() -> Result<Vec<Figure>, BenchError> {
    let lab = Lab::new()?;
    let mut figures = Vec::new();
    for flows in FLOWS {
        let (mut times, mut memory, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let one = lab.run(1, SHARE_BIT_PER_S, FLOWS_PACKETS)?;
            let many = lab.run(flows, flows * SHARE_BIT_PER_S, FLOWS_PACKETS)?;
            times.push((many.ns_per_packet(), one.ns_per_packet()));
            let kib_per_flow = |cost: &Cost, n: u64| cost.memory_bytes as f64 / 1024.0 / n as f64;
            memory.push((kib_per_flow(&many, flows), kib_per_flow(&one, 1)));
            proofs.push(many.proof.and(&one.proof));
        }
        let proof = proof::all(&proofs)?;
        figures.push(Figure::paired(
            format!("sim.flows.time.{flows}"),
            "ns/packet",
            "one flow",
            &times,
            &proof,
        ));
        figures.push(Figure::paired(
            format!("sim.flows.memory.{flows}"),
            "KiB/flow",
            "one flow",
            &memory,
            &proof,
        ));
    }
    Ok(figures)
}

/// The program, and the fields that the algorithm sets on a new flow.
struct Lab {
    program: Program,
    fields: Vec<(Field, i64)>,
}

impl Lab {
    fn new() -> Result<Lab, BenchError> {
        let reno = ccplane_algs::RENO;
        let program = steer::compile(&reno)?;
        let flow = FlowConfig::new(Source::Bulk, DELAY_US);
        let info = FlowInfo {
            mss_bytes: flow.mss_bytes,
            init_cwnd_bytes: u64::from(flow.init_cwnd_packets * flow.mss_bytes),
            local: flow.local,
            remote: flow.remote,
            cgroup: flow.cgroup,
            min_rtt_us: None,
        };
        let mut control = Control::default();
        reno.flow(&info, &mut control);
        let fields = steer::fields(&program, &control);
        Ok(Lab { program, fields })
    }

    /// Flows that share a link, for about so many packets.
    fn run(&self, flows: u64, bit_per_s: u64, packets: u64) -> Result<Cost, BenchError> {
        let queue_packets = bit_per_s / WIRE_BITS * 2 * DELAY_US / 1_000_000;
        let queue = QueueLimit::Packets(queue_packets.max(1) as u32);
        let link = LinkConfig::new(Capacity::Rate { bit_per_s }, DELAY_US * 1000, queue);
        let mut sim = SimDatapath::new(SimConfig::new(vec![link], 1))?;
        sim.install(RENO, &self.program)?;
        let until_us = packets * WIRE_BITS * 1_000_000 / bit_per_s;
        let start = |n: u64| FlowConfig { start_us: n * 10, ..FlowConfig::new(Source::Bulk, DELAY_US) };
        (0..flows).map(|n| sim.add_flow(&start(n))).collect::<Result<Vec<_>, SimError>>()?;
        let mut witness = Witness::new(SteeredBy::Program(Some(RENO)));
        let started = Instant::now();
        sim.run(until_us, TICK_US, &mut |_, wake, datapath| match wake {
            Wake::Event(Event::Created { flow, .. }) => {
                // Bulk flows don't end.
                datapath.set_program(flow, RENO, &self.fields).unwrap_or_default();
            }
            Wake::Event(event) => witness.hear(&event),
            Wake::Tick => {
                datapath.heartbeat();
                witness.observe(&datapath.flows());
            }
        });
        let ns = started.elapsed().as_nanos() as u64;
        witness.observe(&sim.flows());
        let packets = sim.network().sent();
        let proof = witness.prove_part(flows as usize)?.and(&Proof::counted("packets sent", packets)?);
        Ok(Cost { packets, ns, memory_bytes: sim.memory_bytes() as u64, proof })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proof::Unproven;
    use ccplane_contract::Mode;

    const TICKS: u64 = 40;
    const OTHER: ProgramUid = ProgramUid(2);
    const COUNTS: &str = "(def (Report (acked 0)))
        (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (fallthrough))
        (when (> Micros 10000) (:= Micros 0) (report))";

    /// Runs a simulation in which `meddle` is called at each tick with its number, and returns its proof.
    fn proved(meddle: &mut dyn FnMut(u64, &mut dyn Datapath)) -> Result<Proof, Unproven> {
        let lab = Lab::new().unwrap();
        let capacity = Capacity::Rate { bit_per_s: SHARE_BIT_PER_S };
        let link = LinkConfig::new(capacity, DELAY_US * 1000, QueueLimit::Packets(20));
        let mut sim = SimDatapath::new(SimConfig::new(vec![link], 1)).unwrap();
        sim.install(RENO, &lab.program).unwrap();
        sim.install(OTHER, &ccplane_program::compile(COUNTS).unwrap()).unwrap();
        sim.add_flow(&FlowConfig::new(Source::Bulk, DELAY_US)).unwrap();
        let mut witness = Witness::new(SteeredBy::Program(Some(RENO)));
        let mut tick = 0;
        sim.run(TICKS * TICK_US, TICK_US, &mut |_, wake, datapath| match wake {
            Wake::Event(Event::Created { flow, .. }) => {
                datapath.set_program(flow, RENO, &lab.fields).unwrap();
            }
            Wake::Event(event) => witness.hear(&event),
            Wake::Tick => {
                tick += 1;
                if !(20..37).contains(&tick) {
                    datapath.heartbeat();
                }
                meddle(tick, datapath);
                // Polls are far apart: changes between two of them must show, too.
                if tick % 10 == 5 {
                    witness.observe(&datapath.flows());
                }
            }
        });
        witness.observe(&sim.flows());
        witness.prove_part(1)
    }

    /// Keeps the agent alive all the time.
    fn alive(datapath: &mut dyn Datapath) {
        datapath.heartbeat();
    }

    #[test]
    fn a_sound_run_is_proved() {
        let proof = proved(&mut |_, datapath| alive(datapath)).unwrap();
        assert!(proof.counts().all(|(_, count)| count > 0));
    }

    #[test]
    fn a_flow_whose_agent_fell_silent_is_no_figure() {
        let error = proved(&mut |_, _| {}).unwrap_err();
        assert!(matches!(error, Unproven::LeftProgram { mode: Mode::NativeAgentSilent, .. }), "{error}");
    }

    #[test]
    fn a_flow_that_was_released_is_no_figure_though_its_program_came_back() {
        let lab = Lab::new().unwrap();
        // Between the polls at 15 and 25.
        let released = proved(&mut |tick, datapath| {
            alive(datapath);
            let flow = datapath.flows().first().map(|f| f.flow);
            match (tick, flow) {
                (16, Some(flow)) => datapath.release(flow).unwrap(),
                (24, Some(flow)) => datapath.set_program(flow, RENO, &lab.fields).unwrap(),
                _ => {}
            }
        });
        assert!(matches!(released, Err(Unproven::Coverage { .. })), "{released:?}");
    }

    #[test]
    fn a_flow_whose_program_was_replaced_is_no_figure() {
        let replaced = proved(&mut |tick, datapath| {
            alive(datapath);
            let flow = datapath.flows().first().map(|f| f.flow);
            if let (16, Some(flow)) = (tick, flow) {
                datapath.set_program(flow, OTHER, &[]).unwrap();
            }
        });
        let Err(Unproven::Replaced { flow, .. }) = &replaced else { panic!("{replaced:?}") };
        assert_eq!(replaced, Err(Unproven::Replaced { flow: *flow, wanted: Some(RENO), found: Some(OTHER) }));
    }
}

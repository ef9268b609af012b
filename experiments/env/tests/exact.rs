//! The fast paths against the exact simulator: the same algorithms, and Aurora's own snapshot, on the same links.
#![allow(clippy::unwrap_used)]

use ccplane_alg::{Algorithm, Command, Control};
use ccplane_contract::{Datapath, Event, Field, FlowId, Part, ProgramUid};
use ccplane_env::{Decider, FlowSetup, Integer, Link, NoDecider, Phase, Prepared, Rtts, Scenario, run};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_program::compile;
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source, Wake};
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::Arc;

const MSS: u64 = 1448;
const UNTIL_S: u64 = 30;
const FROM_S: u64 = 5;

#[derive(Clone, Copy, Debug)]
struct Path {
    mbit: u64,
    rtt_ms: u64,
    queue: usize,
    loss_ppm: u32,
}

/// Packets per second that arrive, and the mean RTT in milliseconds.
type Result = (f64, f64);

fn fast(path: Path, algorithm: &Arc<dyn Algorithm>, snapshot: Option<&Snapshot>) -> Result {
    let phase = Phase {
        from_ns: 0,
        bytes_per_s: path.mbit * 125_000,
        delay_ns: 0,
        loss_q32: (f64::from(path.loss_ppm) * 4_294.967_296) as u32,
    };
    let flow = FlowSetup {
        algorithm: 0,
        start_ns: 0,
        delay_ns: path.rtt_ms * 1_000_000,
        mss_bytes: MSS,
        ack_every: 2,
        bursts: false,
        start_rate: None,
    };
    let scenario = Scenario {
        link: Link { phases: vec![phase], queue_packets: path.queue },
        flows: vec![flow],
        cross: None,
        until_ns: UNTIL_S * 1_000_000_000,
    };
    let image = snapshot.map(|s| s.image(&DeployOptions { uid: 1, noise_q16: 0, pin: false }));
    let mut decider: Box<dyn Decider> = match (snapshot, &image) {
        (Some(snapshot), Some(image)) => Box::new(Integer::new(*snapshot.shape(), image)),
        _ => Box::new(NoDecider),
    };
    let mut rtts = Rtts::from(FROM_S * 1_000_000_000);
    let prepared = [Prepared::new(Arc::clone(algorithm)).unwrap()];
    run(&scenario, &prepared, 1, usize::MAX, &mut *decider, &mut rtts);
    (rtts.packets(0) as f64 / (UNTIL_S - FROM_S) as f64, rtts.mean_ns(0) as f64 / 1e6)
}

fn exact(path: Path, algorithm: &Arc<dyn Algorithm>, snapshot: Option<&Snapshot>) -> Result {
    let link = LinkConfig {
        loss_ppm: path.loss_ppm,
        ..LinkConfig::new(
            Capacity::Rate { bit_per_s: path.mbit * 1_000_000 },
            path.rtt_ms * 500_000,
            QueueLimit::Packets(path.queue as u32),
        )
    };
    let config = SimConfig { sample_every_us: 10_000, ..SimConfig::new(vec![link], 1) };
    let mut sim = SimDatapath::new(config).unwrap();
    if let Some(snapshot) = snapshot {
        sim.define_slot(0, snapshot.shape()).unwrap();
        let image = snapshot.image(&DeployOptions { uid: 1, noise_q16: 0, pin: false });
        sim.push(0, &image, Part::Active).unwrap();
    }
    let source = algorithm.programs().remove(0);
    let program = compile(source.source).unwrap();
    sim.install(ProgramUid(1), &program).unwrap();
    let id = sim.add_flow(&FlowConfig::new(Source::Bulk, path.rtt_ms * 500)).unwrap();
    let start = |flow: FlowId, info: &_, datapath: &mut dyn Datapath| {
        let mut control = Control::default();
        let _flow = algorithm.flow(info, &mut control);
        for command in control.take() {
            let Command::SetProgram { fields, .. } = command else { continue };
            let field = |(name, value): (&str, i64)| match name {
                "Cwnd" => (Field::Cwnd, value),
                "Rate" => (Field::Rate, value),
                _ => (Field::Reg(program.reg(name).unwrap()), value),
            };
            let fields: Vec<(Field, i64)> = fields.into_iter().map(field).collect();
            datapath.set_program(flow, ProgramUid(1), &fields).unwrap();
        }
    };
    sim.run(UNTIL_S * 1_000_000, 100_000, &mut |_, wake, datapath| match wake {
        Wake::Event(Event::Created { flow, info }) => start(flow, &info, datapath),
        Wake::Tick => datapath.heartbeat(),
        Wake::Event(_) => {}
    });
    let samples: Vec<_> = sim.samples(id).iter().filter(|s| s.at_us >= FROM_S * 1_000_000).collect();
    let (first, last) = (samples.first().unwrap(), samples.last().unwrap());
    let seconds = (last.at_us - first.at_us) as f64 / 1e6;
    let rtt_ms = samples.iter().map(|s| f64::from(s.srtt_us)).sum::<f64>() / samples.len() as f64 / 1e3;
    let per_s = (last.delivered - first.delivered) as f64 / seconds;
    // Its smoothed RTT counts what the first of an ACK's two packets waits for the second, ours does not.
    (per_s, rtt_ms - 1e3 / per_s)
}

/// Both, within `percent` of the exact one.
fn agree(path: Path, algorithm: &Arc<dyn Algorithm>, snapshot: Option<&Snapshot>, percent: f64) {
    let (fast, exact) = (fast(path, algorithm, snapshot), exact(path, algorithm, snapshot));
    let name = algorithm.name();
    eprintln!(
        "{name} on {path:?}: {:.0} and {:.0} packets/s, {:.2} and {:.2} ms",
        fast.0, exact.0, fast.1, exact.1
    );
    let off = |a: f64, b: f64| (a / b - 1.0).abs() * 100.0;
    assert!(off(fast.0, exact.0) <= percent, "{name}: {path:?} {fast:?} {exact:?}");
    assert!(off(fast.1, exact.1) <= percent, "{name}: {path:?} {fast:?} {exact:?}");
}

const PATHS: [Path; 4] = [
    Path { mbit: 20, rtt_ms: 40, queue: 70, loss_ppm: 0 },
    Path { mbit: 50, rtt_ms: 20, queue: 30, loss_ppm: 10_000 },
    Path { mbit: 4, rtt_ms: 100, queue: 100, loss_ppm: 0 },
    Path { mbit: 100, rtt_ms: 60, queue: 500, loss_ppm: 1000 },
];

#[test]
fn a_constant_rate_meets_the_same_queue() {
    let constant: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Constant::default());
    for path in PATHS {
        for percent in [50, 95] {
            let rate = (path.mbit * 125_000 * percent / 100 * MSS / 1500) as i64;
            let set = ccplane_alg::configure(&constant, [("rate_bytes_per_s", rate)]).unwrap();
            agree(path, &set, None, 2.0);
        }
    }
}

#[test]
fn auroras_snapshot_decides_the_same() {
    let aurora: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
    let snapshot = Snapshot::parse(&aurora.policies()[0].snapshot).unwrap();
    for path in PATHS {
        agree(path, &aurora, Some(&snapshot), 5.0);
    }
}

#[test]
fn a_loss_based_rival_finds_the_same_link() {
    let cubic: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Cubic::default());
    agree(PATHS[0], &cubic, None, 5.0);
    agree(PATHS[2], &cubic, None, 5.0);
}

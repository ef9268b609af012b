//! Environments against the simulated datapath: the same rates, losses and round trips, bit for bit.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, FoldAlgorithm, Parameter, ProgramSource, Report};
use ccplane_contract::{Datapath, Event, Field, FlowId, Part, ProgramUid};
use ccplane_env::{
    Decider, EnvLink, FlowSetup, Integer, NoDecider, NoObserver, OnOff, Phase, Prepared, Scenario, Stack, run,
};
use ccplane_learn::Rng;
use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Trace};
use ccplane_netsim::{BurstLoss, Capacity, Discipline, LinkConfig, Policer, QueueLimit};
use ccplane_program::compile;
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Wake};
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::{Arc, Mutex};

const MSS: u64 = 1448;
const WIRE_BYTES: u64 = 1500;
const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
const UNTIL_NS: u64 = 6 * NS_PER_S;
/// The amount by which flows of one link start apart.
const APART_NS: u64 = 700 * NS_PER_MS;
/// Links drawn of each kind.
const LINKS: u64 = 6;
const STACKS: [Stack; 3] = [Stack::Segments, Stack::Linux, Stack::Steered];

/// Whether the witness paces its window over a round trip.
const PACED: Parameter = Parameter { name: "paced", about: "1: paced", default: 0, min: 0, max: 1 };
/// A window that grows until packets are lost, and a report of each ACK.
const WITNESS: FoldAlgorithm = FoldAlgorithm {
    name: "witness",
    source: include_str!("witness.fold"),
    parameters: &[PACED],
    registers: &[("mss", |start| start.info.mss_bytes.into()), ("pace", |start| start.value(&PACED))],
    resumed: &[],
};

/// The witness's register that has the last round-trip time, microseconds.
const RTT: usize = 0;
/// The witness's register that counts retransmission timeouts.
const TIMEOUTS: usize = 6;

/// One report: the clock at its ACK, microseconds, and the registers.
type Told = (u64, Vec<i64>);

/// Everything that a world says of its flows.
#[derive(Default, PartialEq, Debug)]
struct Run {
    reports: Vec<Vec<Told>>,
    /// Packets delivered and lost.
    totals: Vec<(u64, u64)>,
}

impl Run {
    /// The sum of a report register's last values over all flows.
    fn last(&self, register: usize) -> i64 {
        self.reports.iter().filter_map(|told| told.last()).map(|(_, values)| values[register]).sum()
    }
}

/// An algorithm whose flows' reports are kept.
struct Kept {
    inner: Arc<dyn Algorithm>,
    seen: Arc<Mutex<Vec<Vec<Told>>>>,
}

struct KeptFlow {
    inner: Box<dyn Flow>,
    seen: Arc<Mutex<Vec<Vec<Told>>>>,
    number: usize,
}

impl Algorithm for Kept {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn programs(&self) -> Vec<ProgramSource> {
        self.inner.programs()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let mut seen = self.seen.lock().unwrap();
        seen.push(Vec::new());
        let (inner, number) = (self.inner.flow(info, control), seen.len() - 1);
        Box::new(KeptFlow { inner, seen: Arc::clone(&self.seen), number })
    }
}

impl Flow for KeptFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        self.seen.lock().unwrap()[self.number].push((now_us, report.values.to_vec()));
        self.inner.on_report(now_us, report, control);
    }
}

/// Runs a scenario in the environments' world.
fn trained(
    scenario: &Scenario,
    seed: u64,
    algorithm: &Arc<dyn Algorithm>,
    snapshot: Option<&Snapshot>,
) -> Run {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Kept { inner: Arc::clone(algorithm), seen: Arc::clone(&seen) };
    let image = snapshot.map(|s| s.image(&DeployOptions::ONLY));
    let mut decider: Box<dyn Decider> = match (snapshot, &image) {
        (Some(snapshot), Some(image)) => Box::new(Integer::new(*snapshot.shape(), image)),
        _ => Box::new(NoDecider),
    };
    let prepared = [Prepared::new(Arc::new(kept)).unwrap()];
    let measured = run(scenario, &prepared, seed, usize::MAX, &mut *decider, &mut NoObserver).unwrap();
    let reports = std::mem::take(&mut *seen.lock().unwrap());
    Run { reports, totals: measured.iter().map(|m| (m.delivered, m.lost)).collect() }
}

/// The simulated datapath with a scenario's flows.
fn simulator(scenario: &Scenario, seed: u64, snapshot: Option<&Snapshot>) -> (SimDatapath, Vec<FlowId>) {
    // Rows come as they are reported, so that none is left at the end.
    let config = SimConfig { batch_us: 0, ..SimConfig::new(scenario.links(), seed) };
    let mut sim = SimDatapath::new(config).unwrap();
    if let Some(cross) = scenario.cross.as_ref().and_then(OnOff::config) {
        sim.add_cross(&cross).unwrap();
    }
    if let Some(snapshot) = snapshot {
        sim.define_slot(0, snapshot.shape()).unwrap();
        sim.push(0, &snapshot.image(&DeployOptions::ONLY), Part::Active).unwrap();
    }
    let flow = |setup: &FlowSetup| FlowConfig { start_us: setup.start_ns / 1000, ..scenario.flow(setup) };
    let flows = scenario.flows.iter().map(|setup| sim.add_flow(&flow(setup)).unwrap()).collect();
    (sim, flows)
}

/// Runs a scenario in the simulated datapath.
fn simulated(
    scenario: &Scenario,
    seed: u64,
    algorithm: &Arc<dyn Algorithm>,
    snapshot: Option<&Snapshot>,
) -> Run {
    let (mut sim, flows) = simulator(scenario, seed, snapshot);
    let source = algorithm.programs().remove(0);
    let program = compile(source.source).unwrap();
    sim.install(ProgramUid(1), &program).unwrap();
    let start = |flow: FlowId, info: &FlowInfo, datapath: &mut dyn Datapath| {
        let mut control = Control::default();
        let _flow = algorithm.flow(info, &mut control);
        for request in control.requests().filter(|request| request.program.is_some()) {
            let field = |(name, value): &(&str, i64)| match *name {
                "Cwnd" => (Field::Cwnd, *value),
                "Rate" => (Field::Rate, *value),
                name => (Field::Reg(program.reg(name).unwrap()), *value),
            };
            let fields: Vec<(Field, i64)> = request.fields.iter().map(field).collect();
            datapath.set_program(flow, ProgramUid(1), &fields).unwrap();
        }
    };
    let mut reports = vec![Vec::new(); flows.len()];
    sim.run(UNTIL_NS / 1000, 100_000, &mut |_, wake, datapath| match wake {
        Wake::Event(Event::Created { flow, info }) => start(flow, &info, datapath),
        Wake::Event(Event::Report { flow, at_us, values, .. }) => {
            reports[flow.0 as usize].push((at_us, values.to_vec()));
        }
        Wake::Tick => datapath.heartbeat(),
        Wake::Event(_) => {}
    });
    let totals = |flow: &FlowId| sim.stats(*flow).map(|s| (s.transport.delivered, s.transport.lost)).unwrap();
    Run { reports, totals: flows.iter().map(totals).collect() }
}

/// Runs a scenario in both worlds, which must say the same, and returns that.
fn same(scenario: &Scenario, seed: u64, algorithm: &Arc<dyn Algorithm>, snapshot: Option<&Snapshot>) -> Run {
    let trained = trained(scenario, seed, algorithm, snapshot);
    let simulated = simulated(scenario, seed, algorithm, snapshot);
    let name = algorithm.name();
    for (flow, (ours, theirs)) in trained.reports.iter().zip(&simulated.reports).enumerate() {
        assert!(!theirs.is_empty(), "{name}, seed {seed}: flow {flow} reports nothing: {scenario:?}");
        let differs = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
        if let Some(n) = differs {
            panic!(
                "{name}, seed {seed}: flow {flow}, report {n}: {:?}, simulated {:?}: {scenario:?}",
                ours[n], theirs[n]
            );
        }
        assert_eq!(ours.len(), theirs.len(), "{name}, seed {seed}: reports of flow {flow}: {scenario:?}");
    }
    assert_eq!(trained.totals, simulated.totals, "{name}, seed {seed}: {scenario:?}");
    assert_eq!(trained.reports.len(), scenario.flows.len());
    trained
}

/// A scenario of these flows on one link.
fn scenario(bytes_per_s: u64, rtt_ns: u64, queue_packets: usize, flows: u64, stack: Stack) -> Scenario {
    let phase = Phase { from_ns: 0, bytes_per_s, delay_ns: rtt_ns / 2, loss_ppm: 0 };
    let flow = |n: u64| FlowSetup {
        algorithm: 0,
        start_ns: n * APART_NS,
        delay_ns: rtt_ns - rtt_ns / 2,
        mss_bytes: MSS,
        ack_every: 2,
        stack,
        start_rate: None,
        bytes: None,
    };
    Scenario {
        link: EnvLink::new(vec![phase], queue_packets),
        way_back: None,
        flows: (0..flows).map(flow).collect(),
        cross: None,
        until_ns: UNTIL_NS,
    }
}

/// Kinds of drawn links.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Steady,
    Lossy,
    Shallow,
    Jitter,
    Burst,
    Policed,
    Traced,
    Late,
    SlowReturn,
    LossyReturn,
    Ending,
}

/// Draws a link of half to 40 Mb/s and 4 to 160 ms, with one or two flows of one stack.
fn drawn(kind: Kind, number: u64) -> (Scenario, u64) {
    let mut rng = Rng::new(number, &[kind as u64]);
    let mut between = |low: f64, high: f64| low * (high / low).powf(rng.uniform());
    let bytes_per_s = between(62_500.0, 5e6) as u64;
    let rtt_ns = between(4e6, 160e6) as u64;
    let bdp = (bytes_per_s * rtt_ns / NS_PER_S / WIRE_BYTES) as f64;
    let queue = if kind == Kind::Shallow { between(1.0, 9.0) } else { (bdp * between(0.5, 4.0)).max(4.0) };
    let stack = STACKS[(number % 3) as usize];
    let mut drawn = scenario(bytes_per_s, rtt_ns, queue as usize, 1 + number / 3 % 2, stack);
    match kind {
        Kind::Steady | Kind::Shallow => {}
        Kind::Lossy => drawn.link.phases[0].loss_ppm = between(1e3, 1e5) as u32,
        Kind::Jitter => drawn.link.jitter_ns = between(1e6, 20e6) as u64,
        Kind::Burst => {
            let (to_bad_ppm, to_good_ppm) = (between(1e3, 1e4) as u32, between(5e4, 5e5) as u32);
            let burst = BurstLoss { to_bad_ppm, to_good_ppm, loss_good_ppm: 0, loss_bad_ppm: 1_000_000 };
            drawn.link.ingress.burst_loss = Some(burst);
        }
        Kind::Policed => {
            let bit_per_s = (bytes_per_s as f64 * 8.0 * between(0.2, 0.8)) as u64;
            drawn.link.ingress.policer = Some(Policer { bit_per_s, burst_bytes: between(6e3, 1e5) as u64 });
        }
        Kind::Traced => drawn.link = traced(&drawn.link, &mut between),
        Kind::Late => drawn.link.ingress.jitter_ns = between(1e6, 20e6) as u64,
        Kind::SlowReturn => {
            // An acknowledgement for two packets takes 0.019 of their rate.
            let bit_per_s = (bytes_per_s as f64 * 8.0 * between(0.01, 0.05)) as u64;
            let (capacity, queue) =
                (Capacity::Rate { bit_per_s }, QueueLimit::Packets(between(2.0, 64.0) as u32));
            let back = LinkConfig {
                discipline: Discipline::DropHead,
                ..LinkConfig::new(capacity, 3_000_000, queue)
            };
            drawn.way_back = Some(back);
        }
        Kind::LossyReturn => {
            let (capacity, queue) = (Capacity::Rate { bit_per_s: 1_000_000_000 }, QueueLimit::Packets(1000));
            let loss_ppm = between(1e4, 4e5) as u32;
            drawn.way_back = Some(LinkConfig { loss_ppm, ..LinkConfig::new(capacity, 3_000_000, queue) });
        }
        Kind::Ending => drawn.flows[0].bytes = Some(between(5e4, 5e5) as u64),
    }
    drawn.link.overhead_bytes = (OPPORTUNITY_BYTES - WIRE_BYTES as u32) as u16;
    (drawn, number)
}

/// A link like another one whose opportunities to deliver come at random, at the same mean rate.
fn traced(like: &EnvLink, between: &mut dyn FnMut(f64, f64) -> f64) -> EnvLink {
    let phase = like.phases[0];
    let gap_ms = f64::from(OPPORTUNITY_BYTES) * 1e3 / phase.bytes_per_s as f64;
    let (mut at_ms, mut opportunities_ms) = (0.0, Vec::new());
    while at_ms < 2000.0 {
        at_ms += gap_ms * between(0.2, 3.0);
        opportunities_ms.push(at_ms as u32 + 1);
    }
    let trace = Trace::from_opportunities_ms(opportunities_ms).unwrap();
    EnvLink::of_trace(trace, like.queue_packets, phase, UNTIL_NS)
}

fn witness(paced: i64) -> Arc<dyn Algorithm> {
    let witness: Arc<dyn Algorithm> = Arc::new(WITNESS);
    ccplane_alg::configure(&witness, [(PACED.name, paced)]).unwrap()
}

/// Plays the drawn links of one kind, which lose so many packets at least.
fn play(kind: Kind, least_lost: u64) {
    let mut lost = 0;
    for number in 0..LINKS {
        for paced in [0, 1] {
            let (scenario, seed) = drawn(kind, number);
            let run = same(&scenario, seed, &witness(paced), None);
            lost += run.totals.iter().map(|(_, lost)| lost).sum::<u64>();
        }
    }
    assert!(lost >= least_lost, "{lost} packets lost");
}

/// Makes a test of each kind of links, and of the least number of packets that they lose.
macro_rules! every_ack {
    ($($test:ident $kind:ident $least_lost:literal,)*) => {
        $(#[test]
        fn $test() {
            play(Kind::$kind, $least_lost);
        })*
    };
}

every_ack! {
    every_ack_of_steady_links_says_the_same Steady 0,
    every_ack_of_lossy_links_says_the_same Lossy 101,
    every_ack_of_shallow_links_says_the_same Shallow 101,
    every_ack_of_links_with_jitter_says_the_same Jitter 0,
    every_ack_of_links_that_lose_in_bursts_says_the_same Burst 101,
    every_ack_of_policed_links_says_the_same Policed 101,
    every_ack_of_links_that_follow_a_trace_says_the_same Traced 0,
    every_ack_of_links_whose_packets_wait_before_the_queue_says_the_same Late 0,
    every_ack_that_waits_on_a_slow_way_back_says_the_same SlowReturn 0,
    every_ack_of_those_that_a_way_back_does_not_lose_says_the_same LossyReturn 0,
    every_ack_of_flows_that_end_says_the_same Ending 0,
}

/// A flow's last packets are acknowledged, and it sends no more: without an end it sends for six seconds.
#[test]
fn a_flow_that_ends_sends_what_it_has_and_no_more() {
    let bytes = 100 * MSS;
    let mut ending = scenario(1_250_000, 20 * NS_PER_MS, 50, 2, Stack::Segments);
    ending.flows[0].bytes = Some(bytes);
    let [(delivered, lost), (other, _)] = trained(&ending, 1, &witness(0), None).totals[..] else { panic!() };
    assert!(delivered >= 100 && delivered <= 100 + lost, "{delivered} delivered, {lost} lost");
    assert!(other > 2000, "{other} of the flow beside it");
}

/// Acknowledgements that queue on their way back are late: the same link without that has shorter round trips.
#[test]
fn a_slow_way_back_makes_round_trips_longer() {
    let rtt_us = |bit_per_s: Option<u64>| {
        let mut back = scenario(1_250_000, 20 * NS_PER_MS, 20, 1, Stack::Segments);
        back.way_back = bit_per_s
            .map(|bit_per_s| LinkConfig::new(Capacity::Rate { bit_per_s }, 0, QueueLimit::Packets(100)));
        trained(&back, 1, &witness(0), None).last(RTT)
    };
    let (free, slow) = (rtt_us(None), rtt_us(Some(60_000)));
    assert!(slow > 2 * free, "{slow} us on a slow way back, {free} on a free one");
}

/// Two packets in five are lost: whole windows are, and probes and retransmissions with them.
#[test]
fn timeouts_and_probes_are_the_same() {
    for stack in STACKS {
        let mut worst = scenario(125_000, 40 * NS_PER_MS, 20, 1, stack);
        worst.link.phases[0].loss_ppm = 400_000;
        let run = same(&worst, 5, &witness(0), None);
        assert!(run.last(TIMEOUTS) > 0, "{stack:?}: {:?}", run.totals);
    }
}

/// Behind room for one packet it matters in which trains segments leave; that is what environments must not leave out.
#[test]
fn stacks_differ_where_the_queue_is_short() {
    let of = |stack| {
        let scenario = scenario(1_500_000, 20 * NS_PER_MS, 1, 1, stack);
        trained(&scenario, 1, &witness(1), None).totals[0]
    };
    let [segments, linux, steered] = STACKS.map(of);
    assert!(segments != linux && linux != steered, "{segments:?} {linux:?} {steered:?}");
}

/// A rate of so many percent of the link, shared by its flows.
fn constant(scenario: &Scenario, percent: u64) -> Arc<dyn Algorithm> {
    let constant: Arc<dyn Algorithm> = Arc::new(ccplane_algs::CONSTANT);
    let link = scenario.link.phases[0].bytes_per_s * MSS / WIRE_BYTES;
    let rate = link * percent / 100 / scenario.flows.len() as u64;
    ccplane_alg::configure(&constant, [("rate_bytes_per_s", rate as i64)]).unwrap()
}

/// Links beside traffic that comes and goes, where a packet in a hundred is lost.
fn crossed(stack: Stack) -> [Scenario; 2] {
    [(5_000_000, 40, 130, 1), (2_500_000, 60, 40, 2)].map(|(bytes_per_s, rtt_ms, queue, flows)| {
        let mut crossed = scenario(bytes_per_s, rtt_ms * NS_PER_MS, queue, flows, stack);
        crossed.link.phases[0].loss_ppm = 10_000;
        let (on_ns, off_ns) = (20 * NS_PER_MS, 60 * NS_PER_MS);
        crossed.cross = Some(OnOff { bytes_per_s: bytes_per_s / 2, on_ns, off_ns });
        crossed
    })
}

#[test]
fn the_algorithms_report_the_same() {
    let cubic: Arc<dyn Algorithm> = Arc::new(ccplane_algs::CUBIC);
    let aurora: Arc<dyn Algorithm> = Arc::new(ccplane_algs::Aurora::default());
    let snapshot = Snapshot::parse(aurora.policies()[0].snapshot).unwrap();
    for stack in STACKS {
        for scenario in crossed(stack) {
            same(&scenario, 7, &constant(&scenario, 95), None);
            same(&scenario, 8, &cubic, None);
            same(&scenario, 9, &aurora, Some(&snapshot));
        }
    }
}

//! `classify.tc`: what the classifier of packets costs. Time per packet of a flow that is decided, beside a classifier that returns
//! at once on the same packets; per decision by a network, beside the network alone; throughput of eight flows, beside none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, Event, FlowId, Part, ProgramUid};
use ccplane_ebpf::account;
use ccplane_ebpf::packets::{EmptyClassifier, Marking, PacketsDatapath, PacketsOptions};
use ccplane_ebpf::testrun::InferenceBench;
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_infer::image;
use ccplane_runner::traffic::BulkFlow;

use crate::error::{BenchError, context};
use crate::figure::{Figure, in_turn};
use crate::nn::Networks;
use crate::nn_ebpf::compile;
use crate::proof::{self, Proof};
use crate::steer;

const UID: ProgramUid = ProgramUid(1);
const IDLE_UID: ProgramUid = ProgramUid(2);
const SLOT: u8 = 0;
const ROUNDS: usize = 9;
/// Packets of one sample.
const PACKETS: u64 = 20_000;
/// Packets between two heartbeats.
const BETWEEN_HEARTBEATS: u64 = 200;
/// Packets that may leave between the readings of two counts.
const BETWEEN_READINGS: u64 = 8;
/// Inferences of one sample of the network alone.
const INFERENCES: u32 = 100_000;
/// Rows of inputs of the network alone.
const ROWS_LOG2: u32 = 3;
const RUN: Duration = Duration::from_millis(1500);
const PAIRS: usize = 7;
const FLOWS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_millis(1);
/// Bytes that are sent before packets are counted: beyond them, a count that a program waits for is reached for certain.
const AHEAD_BYTES: usize = 2 << 20;

/// A program that decides once.
const ONCE: &str = "(hook send) (def) (when true (:= Priority 5) (:= DecideAt +infinity))";
/// A program that asks a network on each packet.
const ASKS: &str = "(hook send) (def (Report (a 0) (b 0) (c 0)))
    (when (< Now 0) (history 10 Report.a Report.b Report.c))
    (when true (policy 0) (:= Priority 5) (:= DecideAt 1))";
/// The same program without asking the network.
const IDLE: &str = "(hook send) (def (Report (a 0) (b 0) (c 0)))
    (when (< Now 0) (history 10 Report.a Report.b Report.c))
    (when true (:= Priority 5) (:= DecideAt 1))";

/// Measures `classify.tc`: packets, decisions, throughput.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let ends = [Namespace::anonymous()?, Namespace::anonymous()?];
    veth::connect(&ends[0], &ends[1])?;
    let mut figures = packets(&ends)?;
    figures.push(throughput(&ends)?);
    Ok(figures)
}

/// The two ends of a cable: the first one sends.
type Ends = [Namespace; 2];

fn options() -> Result<(PacketsOptions, tempfile::TempDir), BenchError> {
    let (own, run_dir) = steer::options("p")?;
    let devices = vec![veth::DEVICE.to_owned()];
    Ok((
        PacketsOptions { run_dir: own.run_dir, name: own.name, devices, ..PacketsOptions::default() },
        run_dir,
    ))
}

/// Figures of the packets of one flow.
fn packets(ends: &Ends) -> Result<Vec<Figure>, BenchError> {
    let _account = context("account BPF run time", account())?;
    let (plain, _run_dir) = options()?;
    let marks = std::array::from_fn(|n| Marking { skb_priority: 0, mark: n as u32, dscp: 8 * n as u32 });
    let all = PacketsOptions { markings: marks, writes_dscp: true, mark_mask: 0xf, ..plain.clone() };
    let empty = "a classifier that returns at once, on the same packets";
    let (decided, proof) = decided(ends, plain.clone())?;
    let above = |pairs: &[(f64, f64)]| {
        let mut above: Vec<f64> = pairs.iter().map(|(ours, empty)| ours - empty).collect();
        above.sort_by(f64::total_cmp);
        format!("{:.1} ns above it; a packet of a flow already decided", above[above.len() / 2])
    };
    let note = format!("{}: its buffer's priority is set", above(&decided));
    let first = Figure::paired("classify.tc", "ns", empty, &decided, &proof).with_note(note);
    let (written, proof) = self::decided(ends, all)?;
    let note = format!("{}: priority, mark and code point with checksum", above(&written));
    let second = Figure::paired("classify.tc.dscp", "ns", empty, &written, &proof).with_note(note);
    let Decisions { alone, added, proof } = decisions(ends, plain)?;
    let network = "the network alone, in a loop in the kernel";
    let third = Figure::paired("classify.tc.decision", "ns", network, &alone, &proof)
        .with_note("all that a packet costs above an empty classifier whose flow's program asks a network of Aurora's size");
    let network = "what the network adds to a program on the same packets";
    let fourth = Figure::paired("classify.tc.decision.added", "ns", network, &added, &proof);
    Ok(vec![first, second, third, fourth])
}

/// A steered flow over the cable, with an empty classifier beside ours.
struct OneFlow {
    datapath: PacketsDatapath,
    empty: EmptyClassifier,
    stream: TcpStream,
    flow: FlowId,
    reader: Option<JoinHandle<()>>,
}

impl OneFlow {
    /// Starts a flow and sets on it the program that `install` installs.
    fn start(
        [a, b]: &Ends,
        options: PacketsOptions,
        install: impl FnOnce(&mut PacketsDatapath) -> Result<(), BenchError>,
    ) -> Result<OneFlow, BenchError> {
        let attach = || {
            Ok::<_, BenchError>((PacketsDatapath::attach(options)?, EmptyClassifier::attach(veth::DEVICE)?))
        };
        let (mut datapath, empty) = a.run(attach)??;
        install(&mut datapath)?;
        let listener = context("listen", b.run(|| TcpListener::bind((veth::ENDS[1], 0)))?)?;
        let address = context("listen", listener.local_addr())?;
        let mut stream = context("connect", a.run(|| TcpStream::connect(address))?)?;
        let (mut accepted, _) = context("accept", listener.accept())?;
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while matches!(accepted.read(&mut buffer), Ok(1..)) {}
        });
        context("connect", stream.set_nodelay(true))?;
        context("send", stream.write_all(&[0]))?;
        let flow = created(&mut datapath)?;
        datapath.set_program(flow, UID, &[])?;
        context("send", stream.write_all(&vec![0; AHEAD_BYTES]))?;
        Ok(OneFlow { datapath, empty, stream, flow, reader: Some(reader) })
    }

    /// Sends packets of one byte; returns the mean nanoseconds in our classifier and in the empty one, and our packets.
    fn sample(&mut self) -> Result<(f64, f64, u64), BenchError> {
        let read = |of: &OneFlow| {
            let what = "read what is accounted";
            Ok::<_, BenchError>([
                context(what, of.datapath.accounted())?,
                context(what, of.empty.accounted())?,
            ])
        };
        let before = read(self)?;
        for n in 0..PACKETS {
            if n.is_multiple_of(BETWEEN_HEARTBEATS) {
                self.datapath.heartbeat();
            }
            context("send", self.stream.write_all(&[0]))?;
        }
        let after = read(self)?;
        let mean = |n: usize| (after[n].0 - before[n].0) as f64 / (after[n].1 - before[n].1).max(1) as f64;
        Ok((mean(0), mean(1), after[0].1 - before[0].1))
    }

    fn decisions(&self) -> u64 {
        self.datapath.decisions(self.flow).unwrap_or(0).into()
    }

    /// The mean time of a packet above the empty classifier under a program that decides about each; proves that it did.
    fn decide_each(&mut self, program: ProgramUid) -> Result<(f64, Proof), BenchError> {
        self.datapath.set_program(self.flow, program, &[])?;
        context("send", self.stream.write_all(&[0]))?;
        let before = self.decisions();
        let (ours, empty, packets) = self.sample()?;
        // Every packet of the cable's sender is of this flow; one or the other leaves between two readings.
        let decided = self.decisions() - before;
        let proof = match packets.abs_diff(decided) <= BETWEEN_READINGS {
            true => Proof::counted("decisions", decided)?,
            false => Proof::exactly("decisions", decided, packets)?,
        };
        Ok((ours - empty, proof))
    }
}

impl Drop for OneFlow {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The flow that a datapath announces next.
fn created(datapath: &mut PacketsDatapath) -> Result<FlowId, BenchError> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < PATIENCE {
        datapath.heartbeat();
        datapath.poll(1, &mut events);
        if let Some(Event::Created { flow, .. }) = events.pop() {
            return Ok(flow);
        }
        std::thread::sleep(NAP);
    }
    Err(BenchError::Missing("a flow that the packets' datapath has seen".to_owned()))
}

/// Pairs of our classifier's and the empty one's time for a packet of a flow whose program decided before.
fn decided(ends: &Ends, options: PacketsOptions) -> Result<(Vec<(f64, f64)>, Proof), BenchError> {
    // No pause makes a decision.
    let options = PacketsOptions { flowlet_gap: PATIENCE, ..options };
    let program = compile(ONCE)?;
    let mut flow = OneFlow::start(ends, options, |datapath| Ok(datapath.install(UID, &program)?))?;
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for n in 0..=ROUNDS {
        let (ours, empty, packets) = flow.sample()?;
        // The first warms up.
        if n > 0 {
            pairs.push((ours, empty));
            proofs.push(Proof::counted("packets", packets)?);
        }
    }
    let once = Proof::exactly("decisions", flow.decisions(), 1)?;
    Ok((pairs, proof::all(&proofs)?.and(&once)))
}

/// Pairs of a decision's time above the empty classifier, and of the network's: alone in a loop, and what it adds to a program of
/// the same packets.
struct Decisions {
    alone: Vec<(f64, f64)>,
    added: Vec<(f64, f64)>,
    proof: Proof,
}

fn decisions(ends: &Ends, options: PacketsOptions) -> Result<Decisions, BenchError> {
    let networks = Networks::new()?;
    let [(shape, narrow), _] = &networks.images;
    let mut image = narrow.clone();
    // Made-up inputs keep the rate at its minimum, which the monitor would not bear for long.
    image::set_u32(&mut image, image::TRIP_LIMIT, 0);
    let (asks, idle) = (compile(ASKS)?, compile(IDLE)?);
    let alone = InferenceBench::new(shape, ROWS_LOG2)?;
    alone.set_image(narrow);
    networks
        .states
        .iter()
        .take(alone.rows())
        .enumerate()
        .for_each(|(row, cells)| alone.set_inputs(row, cells));
    let mut flow = OneFlow::start(ends, options, |datapath| {
        datapath.define_slot(SLOT, shape)?;
        datapath.push(SLOT, &image, Part::Active)?;
        datapath.install(UID, &asks)?;
        Ok(datapath.install(IDLE_UID, &idle)?)
    })?;
    let mut measured = Decisions { alone: Vec::new(), added: Vec::new(), proof: Proof::counted("runs", 1)? };
    for n in 0..=ROUNDS {
        let asks = flow.decide_each(UID)?;
        let idle = flow.decide_each(IDLE_UID)?;
        let network = alone.time(INFERENCES)?;
        if n > 0 {
            measured.alone.push((asks.0, network));
            measured.added.push((asks.0, asks.0 - idle.0));
            measured.proof = measured.proof.and(&asks.1).and(&idle.1);
        }
    }
    Ok(measured)
}

/// Measures the throughput of eight flows with decisions about their packets, beside that of eight without.
fn throughput([a, b]: &Ends) -> Result<Figure, BenchError> {
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for n in 0..=PAIRS {
        let ours = || {
            let steering = SteeringThread::start(a)?;
            let gbps = gbps(a, b)?;
            Ok((gbps, steering.end()?))
        };
        let ((ours, proof), none) = in_turn(n, ours, || gbps(a, b))?;
        // One run of each to warm up.
        if n > 0 {
            pairs.push((ours, none));
            proofs.push(proof);
        }
    }
    let proof = proof::all(&proofs)?;
    Ok(Figure::paired(format!("classify.tc.tput.{FLOWS}"), "Gb/s", "no classifier", &pairs, &proof))
}

/// A datapath on a namespace's cable, and the thread that sets a program on each of its flows.
struct SteeringThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, BenchError>>,
    _run_dir: tempfile::TempDir,
}

impl SteeringThread {
    fn start(namespace: &Namespace) -> Result<SteeringThread, BenchError> {
        let (options, _run_dir) = options()?;
        let mut datapath = namespace.run(|| PacketsDatapath::attach(options))??;
        datapath.install(UID, &compile(ONCE)?)?;
        datapath.heartbeat();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut events, mut steered) = (Vec::new(), 0);
            while !stopped.load(Relaxed) {
                datapath.heartbeat();
                datapath.poll(FLOWS, &mut events);
                for event in events.drain(..) {
                    if let Event::Created { flow, .. } = event {
                        datapath.set_program(flow, UID, &[])?;
                        steered += 1;
                    }
                }
                context("wait for events", datapath.events().wait(10 * NAP, None))?;
            }
            Ok(steered)
        });
        Ok(SteeringThread { stop, thread, _run_dir })
    }

    /// Takes the datapath out; proves that it steered every flow.
    fn end(self) -> Result<Proof, BenchError> {
        self.stop.store(true, Relaxed);
        let steered =
            self.thread.join().map_err(|_| BenchError::Missing("the steering thread".to_owned()))??;
        Ok(Proof::exactly("flows decided", steered, FLOWS as u64)?)
    }
}

/// Goodput of eight flows together.
fn gbps(a: &Namespace, b: &Namespace) -> Result<f64, BenchError> {
    let (epoch, config) = (Instant::now(), steer::bulk("cubic", RUN));
    let started: Vec<BulkFlow> =
        (0..FLOWS).map(|_| BulkFlow::start(&config, a, b, epoch)).collect::<Result<_, _>>()?;
    let mut bytes = 0;
    for flow in started {
        bytes += flow.finish()?.received_bytes;
    }
    Ok(bytes as f64 * 8.0 / RUN.as_secs_f64() / 1e9)
}

//! `ack.ebpf.reno` and `ack.vm.reno`: what the Reno program costs per ACK, against libccp's VM on the same
//! program and the same ACKs; and on a live flow, above a dispatcher whose program returns at once.

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, Control, FlowInfo};
use ccplane_algs::Reno;
use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_ebpf::testrun::{Bench, STREAM_ACKS};
use ccplane_ebpf::{EbpfDatapath, account};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Flow, Prims};
use ccplane_runner::traffic::BulkFlow;

use crate::error::{BenchError, context};
use crate::figure::{Figure, percentile};
use crate::oracle::{self, Stream};
use crate::steer;

const MSS: i64 = 1448;
/// ACKs are this far apart, as at about 1 Gb/s with two segments an ACK.
const GAP_US: u64 = 23;
const RTT_US: i64 = 20_000;
/// In flight, bytes: what the above makes in one round trip.
const FLIGHT: i64 = RTT_US / GAP_US as i64 * 2 * MSS;
const ACKS: u32 = 400_000;
const ROUNDS: usize = 9;

/// A steady flow: ACKs of two segments, round trips that wander by a few per cent, no loss.
fn acks() -> [Prims; STREAM_ACKS] {
    std::array::from_fn(|n| {
        let mut prims = Prims::default();
        prims
            .set(Prim::AckBytesAcked, 2 * MSS)
            .set(Prim::AckPacketsAcked, 2)
            .set(Prim::AckNow, 1_000_000)
            .set(Prim::FlowBytesInFlight, FLIGHT)
            .set(Prim::FlowPacketsInFlight, FLIGHT / MSS)
            .set(Prim::FlowRttSampleUs, RTT_US + (n as i64 * 37) % 700)
            .set(Prim::FlowRateIncoming, 125_000_000)
            .set(Prim::FlowRateOutgoing, 125_000_000);
        prims
    })
}

fn info() -> FlowInfo {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    FlowInfo {
        mss_bytes: MSS as u32,
        init_cwnd_bytes: 10 * MSS as u64,
        local: any,
        remote: any,
        cgroup: None,
        min_rtt_us: None,
    }
}

/// The Reno program, and the fields that it starts with: in congestion avoidance.
fn reno() -> Result<(Program, Vec<(Field, i64)>), BenchError> {
    let program = steer::compile(&Reno::default())?;
    let mut control = Control::default();
    Reno::default().flow(&info(), &mut control);
    let mut fields = steer::fields(&program, &control);
    if let Some(reg) = program.reg("ssthresh") {
        fields.push((Field::Reg(reg), FLIGHT / 2));
    }
    fields.push((Field::Cwnd, FLIGHT));
    Ok((program, fields))
}

/// `ack.ebpf.reno`: on a live flow, and the fold alone.
pub fn ebpf() -> Result<Vec<Figure>, BenchError> {
    let (fold, _) = stream()?;
    Ok(vec![live()?, fold])
}

/// `ack.vm.reno`: the reference VM.
pub fn vm() -> Result<Vec<Figure>, BenchError> {
    Ok(vec![stream()?.1])
}

/// The fold alone, run by the kernel on made-up ACKs, and the reference VM on the same.
fn stream() -> Result<(Figure, Figure), BenchError> {
    let (program, fields) = reno()?;
    let nothing = Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new())
        .map_err(|e| BenchError::Program(vec![e.to_string()]))?;
    let acks = acks();
    let bench = Bench::new()?;
    let (loaded, empty) = (bench.load(&program, 1)?, bench.load(&nothing, 2)?);
    let baseline = Stream::new(steer::source(&Reno::default()), &program, &fields, &acks, GAP_US, ACKS)?;
    let (mut kernel, mut vm) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let idle = bench.time(&empty, &acks, GAP_US, ACKS)?;
        bench.set(&Flow::new(&program, FLIGHT, 0));
        bench.stage(&loaded, true, &fields);
        let busy = bench.time(&loaded, &acks, GAP_US, ACKS)?;
        let (reference, flow) = time_vm(&program, &fields, &acks);
        // A figure of a program that did something else would be worth nothing.
        if bench.get() != flow {
            return Err(BenchError::Missing("the compiled program and the reference VM disagree".into()));
        }
        let theirs = oracle::time_libccp(&baseline).map_err(|e| e.to_string());
        kernel.push((f64::from(busy) - f64::from(idle), theirs.clone()));
        vm.push((reference, theirs));
    }
    let fold = against_libccp("ack.ebpf.reno.fold", kernel);
    let about = "the fold alone, run by the kernel on made-up ACKs; equal to the reference VM to the bit";
    Ok((if fold.note.is_none() { fold.noted(about) } else { fold }, against_libccp("ack.vm.reno", vm)))
}

/// A figure beside libccp's, or without it if that could not be measured.
fn against_libccp(name: &str, pairs: Vec<(f64, Result<f64, String>)>) -> Figure {
    let values: Vec<f64> = pairs.iter().map(|p| p.0).collect();
    let both: Result<Vec<(f64, f64)>, String> = pairs.into_iter().map(|(v, b)| b.map(|b| (v, b))).collect();
    match both {
        Ok(pairs) => Figure::paired(name, "ns", "libccp's VM", &pairs),
        Err(why) => Figure::alone(name, "ns", &values).noted(why),
    }
}

/// Nanoseconds of the reference VM, and where the flow got to.
fn time_vm(program: &Program, fields: &[(Field, i64)], acks: &[Prims; STREAM_ACKS]) -> (f64, Flow) {
    let mut flow = Flow::new(program, FLIGHT, acks[0].get(Prim::AckNow) + GAP_US as i64);
    ccplane_contract::apply_fields(&mut flow, program, fields);
    let mut report = [0; MAX_REGS];
    let start = Instant::now();
    for n in 0..ACKS as usize {
        let mut prims = acks[n % STREAM_ACKS];
        prims.set(Prim::AckNow, prims.get(Prim::AckNow) + (n as i64 + 1) * GAP_US as i64);
        black_box(flow.invoke(black_box(program), &prims, &mut report));
    }
    (start.elapsed().as_nanos() as f64 / f64::from(ACKS), flow)
}

const RENO: ProgramUid = ProgramUid(1);
const EMPTY: ProgramUid = ProgramUid(2);
const WINDOW: Duration = Duration::from_millis(200);
const BEAT: Duration = Duration::from_millis(20);
/// Flows, and pairs on each; libccp runs between two flows, when nothing else does.
const BLOCKS: usize = 5;
const PAIRS: usize = 5;

/// Flows over a veth pair, whose program changes between Reno and one that returns at once.
fn live() -> Result<Figure, BenchError> {
    if !ccplane_emulator::netns::available() {
        return Err(BenchError::Missing("network namespaces need root".into()));
    }
    let (program, mut fields) = reno()?;
    // The window stays what the flow has.
    fields.retain(|(field, _)| *field != Field::Cwnd);
    let (options, _run_dir) = steer::options("a")?;
    let name = options.name.clone();
    let mut datapath = EbpfDatapath::attach(options)?;
    datapath.install(RENO, &program)?;
    datapath.install_empty(EMPTY)?;
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let baseline =
        Stream::new(steer::source(&Reno::default()), &program, &fields, &acks(), GAP_US, ACKS / 4)?;
    let _account = context("account BPF run time", account())?;
    let (mut pairs, mut dispatcher) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        let traffic = BulkFlow::start(&steer::bulk(&name, steer::LONG), &a, &b, Instant::now())?;
        // The native algorithm first: its slow start gives the window that the measurement runs at.
        let flow = beat(&mut datapath, 2 * WINDOW)
            .ok_or_else(|| BenchError::Missing("the flow did not start within its time".into()))?;
        let mut costs = Vec::new();
        for n in 0..PAIRS {
            let mut pair = [0.0; 2];
            for half in 0..2 {
                let which = (n + half) % 2;
                let (uid, with) = if which == 0 { (RENO, fields.as_slice()) } else { (EMPTY, &[][..]) };
                datapath.set_program(flow, uid, with)?;
                pair[which] = per_ack(&mut datapath)?;
            }
            costs.push(pair[0] - pair[1]);
            dispatcher.push(pair[1]);
        }
        drop(traffic);
        for cost in costs {
            pairs.push((cost, oracle::time_libccp(&baseline).map_err(|e| e.to_string())));
            datapath.heartbeat();
        }
    }
    datapath.detach()?;
    let figure = against_libccp("ack.ebpf.reno", pairs);
    Ok(match figure.note {
        Some(_) => figure,
        None => figure.noted(format!(
            "on a live flow, above a dispatcher of {:.0} ns (the kernel's accounting included)",
            percentile(&dispatcher, 0.5)
        )),
    })
}

/// Nanoseconds per ACK over the next window.
fn per_ack(datapath: &mut EbpfDatapath) -> Result<f64, BenchError> {
    let account =
        |d: &EbpfDatapath| context("read the account", d.accounted()).map(Option::unwrap_or_default);
    beat(datapath, BEAT);
    let before = account(datapath)?;
    beat(datapath, WINDOW);
    let after = account(datapath)?;
    Ok((after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64)
}

/// Lets time pass, with heartbeats; the flow that started meanwhile, if one did.
fn beat(datapath: &mut EbpfDatapath, time: Duration) -> Option<FlowId> {
    let start = Instant::now();
    let (mut created, mut events) = (None, Vec::new());
    while start.elapsed() < time {
        datapath.heartbeat();
        datapath.poll(1024, &mut events);
        for event in events.drain(..) {
            if let Event::Created { flow, .. } = event {
                created = Some(flow);
            }
        }
        std::thread::sleep(BEAT);
    }
    created
}

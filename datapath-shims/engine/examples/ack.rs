//! Nanoseconds per ACK of an engine's flow, beside the bare machine, in turns: under Reno's program, and under one that asks
//! Aurora's snapshot each time.
//!
//! `cargo run --release -p ccplane-engine --example ack`

use ccplane_alg::{Algorithm, Command, Control, FlowInfo};
use ccplane_algs::{Aurora, Reno};
use ccplane_contract::{Datapath, Field, Part, ProgramUid, SlotTable};
use ccplane_engine::{Ack, EngineConfig, Sampled, engine};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Flow, Machine, Prims};
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

const ACKS: usize = 50_000;
const ROUNDS: usize = 101;
const MSS: i64 = 1448;
/// As at about 1 Gb/s with two segments an ACK.
const GAP_US: i64 = 23;
const RTT_US: i64 = 20_000;
const FLIGHT: i64 = RTT_US / GAP_US * 2;
const UID: ProgramUid = ProgramUid(1);
/// Asks on each ACK, with as many inputs as Aurora's network takes, which change now and then.
const ASK: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (> Micros 10000) (:= Micros 0) (:= Report.a (- Flow.rtt_sample_us 20000))
        (history 10 Report.a Report.b Report.c) (fallthrough))
    (when true (policy 0))";
/// The same, without asking.
const REMEMBER: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (> Micros 10000) (:= Micros 0) (:= Report.a (- Flow.rtt_sample_us 20000))
        (history 10 Report.a Report.b Report.c) (fallthrough))
    (when true (:= Report.b 0))";

fn main() -> Result<(), Box<dyn Error>> {
    let compile = |source: &str| ccplane_program::compile(source).map_err(|d| format!("{d:?}"));
    let reno = compile(Reno::default().programs()[0].source)?;
    let mut fields = fields(&reno);
    fields.extend(reno.reg("ssthresh").map(|reg| (Field::Reg(reg), FLIGHT / 2 * MSS)));
    fields.push((Field::Cwnd, FLIGHT * MSS));
    for (name, program, fields) in [
        ("Reno's program", reno, fields),
        ("histories alone", compile(REMEMBER)?, vec![]),
        ("histories and Aurora's snapshot", compile(ASK)?, vec![]),
    ] {
        let (mut in_engine, mut bare) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            in_engine.push(time_engine(&program, &fields)?);
            bare.push(time_machine(&program, &fields)?);
        }
        let [(engine, best), (bare, bare_best)] = [in_engine, bare].map(median_and_best);
        println!(
            "{name}: {engine:.1} ns an ACK (best {best:.1}), the bare machine {bare:.1} ns (best {bare_best:.1})"
        );
    }
    Ok(())
}

fn median_and_best(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], times[0])
}

fn time_engine(program: &Program, fields: &[(Field, i64)]) -> Result<f64, Box<dyn Error>> {
    // The agent is never silent.
    let config = EngineConfig { heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("example") };
    let (engine, mut handle) = engine(config, Arc::new(|| ()));
    let snapshot = snapshot()?;
    handle.define_slot(0, snapshot.shape())?;
    handle.push(0, &snapshot.image(&DeployOptions::ONLY), Part::Active)?;
    handle.install(UID, program)?;
    let mut flow = engine.flow(info(), 0);
    handle.set_program(flow.id(), UID, fields)?;
    let mut ack = Ack {
        prims: prims(),
        packets: 2,
        new_loss_episode: false,
        timeout: false,
        window_limited: true,
        sampled: Sampled { srtt_us: RTT_US as u32, ..Sampled::default() },
    };
    let began = Instant::now();
    for n in 0..ACKS {
        if n % 10_000 == 0 {
            handle.poll(usize::MAX, &mut Vec::new());
        }
        change(&mut ack.prims, n as i64);
        black_box(flow.on_ack(black_box(&ack)));
    }
    Ok(began.elapsed().as_nanos() as f64 / ACKS as f64)
}

fn time_machine(program: &Program, fields: &[(Field, i64)]) -> Result<f64, Box<dyn Error>> {
    let snapshot = snapshot()?;
    let mut slots = SlotTable::new();
    slots.define(0, snapshot.shape())?;
    slots.push(0, &snapshot.image(&DeployOptions::ONLY), Part::Active)?;
    let mut machine = Machine::new(program)?;
    let mut flow = Flow::new(program, 10 * MSS, 0);
    ccplane_contract::apply_fields(&mut flow, program, fields);
    machine.load(&flow);
    let (mut prims, mut report, mut policy) = (prims(), [0; MAX_REGS], FlowPolicy::default());
    let mut policies = slots.policies(1, &mut policy);
    let began = Instant::now();
    for n in 0..ACKS {
        change(&mut prims, n as i64);
        black_box(machine.step(&mut flow, black_box(&prims), &mut policies, &mut report));
    }
    Ok(began.elapsed().as_nanos() as f64 / ACKS as f64)
}

fn snapshot() -> Result<Snapshot, Box<dyn Error>> {
    Ok(Snapshot::parse(&Aurora::default().policies()[0].snapshot)?)
}

/// What Reno sets on a new flow.
fn fields(program: &Program) -> Vec<(Field, i64)> {
    let mut control = Control::default();
    Reno::default().flow(&info(), &mut control);
    let named = control.take().into_iter().flat_map(|command| match command {
        Command::SetProgram { fields, .. } | Command::Update { fields } => fields,
    });
    named.filter_map(|(name, value)| program.reg(name).map(|reg| (Field::Reg(reg), value))).collect()
}

fn info() -> FlowInfo {
    let address = SocketAddr::from(([127, 0, 0, 1], 4433));
    FlowInfo {
        mss_bytes: MSS as u32,
        init_cwnd_bytes: 10 * MSS as u64,
        local: address,
        remote: address,
        cgroup: None,
        min_rtt_us: None,
    }
}

/// A steady flow's: two segments, no loss.
fn prims() -> Prims {
    let mut prims = Prims::default();
    prims
        .set(Prim::AckBytesAcked, 2 * MSS)
        .set(Prim::AckPacketsAcked, 2)
        .set(Prim::FlowBytesInFlight, FLIGHT * MSS)
        .set(Prim::FlowPacketsInFlight, FLIGHT)
        .set(Prim::FlowBytesPending, 4 << 20)
        .set(Prim::FlowRateIncoming, 125_000_000)
        .set(Prim::FlowRateOutgoing, 125_000_000);
    prims
}

/// The `n`th ACK: round trips wander by a few per cent.
fn change(prims: &mut Prims, n: i64) {
    prims.set(Prim::AckNow, 1 + n * GAP_US).set(Prim::FlowRttSampleUs, RTT_US + n * 37 % 700);
}

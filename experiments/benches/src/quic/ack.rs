//! `ack.quic.reno`: what an ACK costs a QUIC flow beside its transport: the engine's part under Reno's program, the part of
//! its controller, and a decision by Aurora's snapshot.

use std::any::Any;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, FlowInfo};
use ccplane_algs::RENO;
use ccplane_contract::{Datapath, Event as Happened, Field, Part, ProgramUid};
use ccplane_engine::{Ack, Engine, EngineConfig, Handle, Sampled, engine};
use ccplane_program::ir::{Prim, Program};
use ccplane_program::vm::Prims;
use ccplane_quantize::snapshot::DeployOptions;
use ccplane_quic::quinn_proto::RttEstimator;
use ccplane_quic::quinn_proto::congestion::{Controller, ControllerFactory};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Control, Endpoint, WindowOnly, Wire};

use super::flow::{aurora, compile, reno_fields, socket};
use super::missing;
use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair};
use crate::nn::{self, Networks};
use crate::proof::{self, Proof, SteeredBy, Witness};

const ACKS: usize = 20_000;
const ROUNDS: usize = 99;
const MSS: u64 = 1452;
/// The gap between ACKs at 1 Gb/s with two segments an ACK.
const GAP_US: u64 = 23;
const RTT_US: u64 = 20_000;
const FLIGHT: u64 = RTT_US / GAP_US * 2;
const UID: ProgramUid = ProgramUid(1);
/// A program that does nothing.
pub const EMPTY: &str = "(def (Report (a 0))) (when false (report))";
/// A program that asks the policy on each ACK, with as many inputs as Aurora's, which change now and then. The rate is
/// always the same: it is not the one at which anything is sent, so no input shows where it has got to. At the smallest
/// rate the monitor would take the flow from its program.
pub const ASK: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (> Micros 10000) (:= Micros 0) (:= Report.a (- Flow.rtt_sample_us 20000))
        (history 10 Report.a Report.b Report.c) (fallthrough))
    (when true (:= Rate 125000000) (policy 0))";
/// The same program without asking the policy.
pub const REMEMBER: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (> Micros 10000) (:= Micros 0) (:= Report.a (- Flow.rtt_sample_us 20000))
        (history 10 Report.a Report.b Report.c) (fallthrough))
    (when true (:= Rate 125000000) (:= Report.b 0))";

/// Measures `ack.quic.reno`: an ACK in QUIC's engine under Reno's program.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let reno = compile(RENO.programs()[0].source)?;
    let mut fields = reno_fields(&reno);
    // In congestion avoidance, as flows are.
    fields.extend(reno.reg("ssthresh").map(|reg| (Field::Reg(reg), (FLIGHT / 2 * MSS) as i64)));
    fields.push((Field::Cwnd, (FLIGHT * MSS) as i64));
    let (ask, remember) = (compile(ASK)?, compile(REMEMBER)?);
    let rtt = an_estimator()?;
    let networks = Networks::new()?;
    let (mut program, mut controller, mut decision) = (Vec::new(), Vec::new(), Vec::new());
    let mut proofs = Vec::new();
    let (reno_steers, asks) = (SteeredBy::Program(Some(UID)), SteeredBy::Policy(Some(UID)));
    // The first round warms up.
    for round in 0..=ROUNDS {
        let (empty, empty_proof) = time_engine(&compile(EMPTY)?, &[], SteeredBy::Empty(UID))?;
        let (of_engine, engine_proof) = time_engine(&reno, &fields, reno_steers)?;
        let (of_controller, controller_proof) = time_controller(&reno, &fields, &rtt)?;
        let (asking, asking_proof) = time_engine(&ask, &[], asks)?;
        let (remembering, remembering_proof) = time_engine(&remember, &[], SteeredBy::Empty(UID))?;
        let plain = nn::time(&networks.states, |cells| networks.plain.infer(cells));
        if round > 0 {
            program.push((of_engine, empty));
            controller.push((of_controller, of_engine));
            decision.push((asking - remembering, plain));
            proofs.extend([empty_proof, engine_proof, controller_proof, asking_proof, remembering_proof]);
        }
    }
    let (decision, proof): (Vec<Pair>, Proof) = (decision, proof::all(&proofs)?);
    Ok(vec![
        Figure::paired("ack.quic.reno", "ns", "the engine under an empty program", &program, &proof),
        Figure::paired("ack.quic.reno.controller", "ns", "the engine alone", &controller, &proof).with_note(
            "two packets sent and acknowledged, their stamps, delivery rate and RTT, and the engine",
        ),
        Figure::paired("ack.quic.decision", "ns", "a plain int8 loop", &decision, &proof)
            .with_note("with Aurora's snapshot, above a program that does not ask"),
    ])
}

/// The agent is never silent.
fn set_up(program: &Program) -> Result<(Engine, Handle), BenchError> {
    let config = EngineConfig { heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("quic") };
    let (engine, mut handle) = engine(config, Arc::new(|| ()));
    let snapshot = aurora()?;
    handle.define_slot(0, snapshot.shape())?;
    handle.push(0, &snapshot.image(&DeployOptions::ONLY), Part::Active)?;
    handle.install(UID, program)?;
    Ok((engine, handle))
}

/// Nanoseconds of one ACK, and the proof that the program took them all.
fn time_engine(
    program: &Program,
    fields: &[(Field, i64)],
    steering: SteeredBy,
) -> Result<(f64, Proof), BenchError> {
    let (engine, mut handle) = set_up(program)?;
    let info = FlowInfo::example(MSS as u32, 10 * MSS);
    let mut flow = engine.flow(info, 0);
    handle.set_program(flow.id(), UID, fields)?;
    let mut prims = Prims::default();
    for (prim, value) in [
        (Prim::AckBytesAcked, 2 * MSS),
        (Prim::AckPacketsAcked, 2),
        (Prim::FlowBytesInFlight, FLIGHT * MSS),
        (Prim::FlowPacketsInFlight, FLIGHT),
        (Prim::FlowBytesPending, 4 << 20),
        (Prim::FlowRateIncoming, 125_000_000),
        (Prim::FlowRateOutgoing, 125_000_000),
    ] {
        prims.set(prim, value as i64);
    }
    let mut ack = Ack {
        prims,
        packets: 2,
        new_loss_episode: false,
        timeout: false,
        window_limited: true,
        sampled: Sampled { srtt_us: RTT_US as u32, ..Sampled::default() },
    };
    let began = Instant::now();
    for n in 0..ACKS as u64 {
        let (now_us, rtt_us) = (1 + n * GAP_US, RTT_US + n * 37 % 700);
        ack.prims.set(Prim::AckNow, now_us as i64).set(Prim::FlowRttSampleUs, rtt_us as i64);
        (ack.sampled.delivered, ack.sampled.bytes_acked) = (2 * (n + 1), 2 * (n + 1) * MSS);
        black_box(flow.on_ack(black_box(&ack)));
    }
    let ns = began.elapsed().as_nanos() as f64 / ACKS as f64;
    Ok((ns, witnessed(&mut handle, steering)?))
}

/// Proves that the one flow of an engine ran its program on all [`ACKS`], from its first on.
fn witnessed(handle: &mut Handle, steering: SteeredBy) -> Result<Proof, BenchError> {
    let mut witness = Witness::new(steering);
    witness.observe(&handle.flows());
    let mut events = Vec::new();
    handle.poll(ACKS, &mut events);
    events.iter().for_each(|event| witness.hear(event));
    match steering {
        SteeredBy::Program(_) => Ok(witness.prove_whole(1, 2 * MSS * ACKS as u64)?),
        _ => Ok(witness.prove_started(1)?),
    }
}

/// Nanoseconds of one ACK of two packets, with what was to be done when they were sent.
fn time_controller(
    program: &Program,
    fields: &[(Field, i64)],
    rtt: &RttEstimator,
) -> Result<(f64, Proof), BenchError> {
    let (engine, mut handle) = set_up(program)?;
    let start = Instant::now();
    let mut controller = Arc::new(WindowOnly::new(engine)).build(start, MSS as u16);
    let (gap, path) = (Duration::from_micros(GAP_US), Duration::from_micros(RTT_US));
    let turn = |controller: &mut Box<dyn Controller>, n: u32| {
        let sent = start + gap * n;
        let (first, now) = (sent - gap / 2, sent + path);
        controller.on_sent(now, 2 * MSS, n.into());
        controller.on_ack(now, first.max(start), MSS, false, rtt);
        controller.on_ack(now, sent, MSS, false, rtt);
        controller.on_end_acks(now, FLIGHT * MSS, false, Some(n.into()));
    };
    // The flow comes to be with its first ACK.
    turn(&mut controller, 0);
    let mut events = Vec::new();
    handle.poll(1, &mut events);
    let Some(Happened::Created { flow, .. }) = events.first() else { return Err(missing("no flow")) };
    handle.set_program(*flow, UID, fields)?;
    let began = Instant::now();
    for n in 1..=ACKS as u32 {
        turn(&mut controller, n);
        black_box(controller.window());
    }
    let ns = began.elapsed().as_nanos() as f64 / ACKS as f64;
    Ok((ns, witnessed(&mut handle, SteeredBy::Program(Some(UID)))?))
}

/// quinn makes them only for connections: one of a connection that came to be.
fn an_estimator() -> Result<RttEstimator, BenchError> {
    let found = Arc::new(Mutex::new(None));
    let identity = Identity::self_signed(&["localhost"]).map_err(missing)?;
    let trust = Trust::Pinned(identity.fingerprint());
    let listening = socket()?;
    let to = listening.local_addr();
    let control = || Control::Quinn(Arc::new(Capture(Arc::clone(&found))));
    let mut server = Endpoint::new(listening, control(), Config::default());
    server.serve(Some(tls::server(identity, b"bench").map_err(missing)?));
    let mut client = Endpoint::new(socket()?, control(), Config::default());
    client.connect(tls::client(trust, b"bench").map_err(missing)?, to, "localhost").map_err(missing)?;
    for _ in 0..10_000 {
        context("turn", client.turn(Duration::from_micros(100)))?;
        context("turn", server.turn(Duration::from_micros(100)))?;
        while client.poll().is_some() || server.poll().is_some() {}
        if let Some(rtt) = *found.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(rtt);
        }
    }
    Err(missing("no QUIC connection comes to be over loopback"))
}

/// A controller that only records.
#[derive(Clone)]
struct Capture(Arc<Mutex<Option<RttEstimator>>>);

impl ControllerFactory for Capture {
    fn build(self: Arc<Self>, _now: Instant, _current_mtu: u16) -> Box<dyn Controller> {
        self.clone_box()
    }
}

impl Controller for Capture {
    fn on_ack(&mut self, _now: Instant, _sent: Instant, _bytes: u64, _app_limited: bool, rtt: &RttEstimator) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(*rtt);
    }
    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, _persistent: bool, _lost_bytes: u64) {}
    fn on_mtu_update(&mut self, _new_mtu: u16) {}
    fn window(&self) -> u64 {
        14_720
    }
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
    fn initial_window(&self) -> u64 {
        self.window()
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

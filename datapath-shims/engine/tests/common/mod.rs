//! Helpers of the engine's tests: algorithms as they are shipped, ACKs, and a link in virtual time.
#![allow(dead_code)]

pub mod link;

use ccplane_alg::{Algorithm, Control};
use ccplane_contract::{Datapath, Event, Field, FlowId, FlowInfo, Part, ProgramUid};
use ccplane_engine::{Ack, Engine, EngineConfig, FlowEngine, Handle, Sampled, engine_with_clock};
use ccplane_program::ir::{Prim, Program};
use ccplane_program::vm::Prims;
use ccplane_snapshot::{DeployOptions, Snapshot};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub const MS: u64 = 1000;
pub const S: u64 = 1_000_000;
pub const MSS: u64 = 1448;
pub const PROGRAM: ProgramUid = ProgramUid(1);
const RTT_US: i64 = 20_000;

/// An engine whose clock is set by hand.
pub fn manual(config: EngineConfig) -> (Engine, Handle, Arc<AtomicU64>) {
    let now_us = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now_us);
    let (engine, handle) = engine_with_clock(config, Arc::new(|| ()), Arc::new(move || clock.load(Relaxed)));
    (engine, handle, now_us)
}

pub fn info() -> FlowInfo {
    FlowInfo::example(MSS as u32, 10 * MSS)
}

/// The `n`th of a steady flow's ACKs, one each `gap_us`: two segments, round trips that wander by a few per cent, no loss.
pub fn ack(n: u64, gap_us: u64) -> Ack {
    let flight = RTT_US / gap_us.max(1) as i64 * 2;
    let mut prims = Prims::default();
    prims
        .set(Prim::AckBytesAcked, 2 * MSS as i64)
        .set(Prim::AckPacketsAcked, 2)
        .set(Prim::AckNow, (1 + n * gap_us) as i64)
        .set(Prim::FlowBytesInFlight, flight * MSS as i64)
        .set(Prim::FlowPacketsInFlight, flight)
        .set(Prim::FlowBytesPending, 4 << 20)
        .set(Prim::FlowRttSampleUs, RTT_US + (n as i64 * 37) % 700)
        .set(Prim::FlowRateIncoming, 125_000_000)
        .set(Prim::FlowRateOutgoing, 125_000_000);
    let sampled = Sampled {
        srtt_us: RTT_US as u32,
        min_rtt_us: RTT_US as u32,
        bytes_acked: 2 * MSS * (n + 1),
        delivered: 2 * (n + 1),
        lost: 0,
        unacked: flight as u32,
    };
    Ack { prims, packets: 2, new_loss_episode: false, timeout: false, window_limited: true, sampled }
}

/// Installs an algorithm's first program as [`PROGRAM`], its snapshots pushed.
pub fn install(handle: &mut Handle, algorithm: &dyn Algorithm) -> Program {
    for policy in algorithm.policies() {
        let snapshot = Snapshot::built_in(policy.snapshot).unwrap();
        handle.define_slot(policy.slot, snapshot.shape()).unwrap();
        handle.push(policy.slot, &snapshot.image(&DeployOptions::ONLY), Part::Active).unwrap();
    }
    let program = ccplane_program::compile(algorithm.programs()[0].source).unwrap();
    handle.install(PROGRAM, &program).unwrap();
    program
}

/// Returns the fields that an algorithm sets on a new flow.
pub fn fields(algorithm: &dyn Algorithm, program: &Program) -> Vec<(Field, i64)> {
    let mut control = Control::default();
    let _flow = algorithm.flow(&info(), &mut control);
    let named = control.requests().flat_map(|request| request.fields);
    named.filter_map(|(name, value)| program.reg(name).map(|reg| (Field::Reg(reg), *value))).collect()
}

/// A flow that an algorithm's first program is set on.
pub fn steered(engine: &Engine, handle: &mut Handle, algorithm: &dyn Algorithm) -> FlowEngine {
    let program = install(handle, algorithm);
    let flow = engine.flow(info(), 0);
    handle.set_program(flow.id(), PROGRAM, &fields(algorithm, &program)).unwrap();
    flow
}

/// ACKs of a steady flow, one each `gap_us`.
pub fn acks(flow: &mut FlowEngine, numbers: std::ops::Range<u64>, gap_us: u64) {
    for n in numbers {
        flow.on_ack(&ack(n, gap_us));
    }
}

/// Takes all waiting events.
pub fn drain(handle: &mut Handle) -> Vec<Event> {
    let mut events = Vec::new();
    handle.poll(usize::MAX, &mut events);
    events
}

/// The flows that were announced.
pub fn created(events: &[Event]) -> Vec<FlowId> {
    let name = |event: &Event| match event {
        Event::Created { flow, .. } => Some(*flow),
        _ => None,
    };
    events.iter().filter_map(name).collect()
}

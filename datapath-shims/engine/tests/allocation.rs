//! Tests that an ACK neither allocates nor frees, and that a flow takes little memory.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_algs::{Aurora, RENO};
use ccplane_contract::{Datapath, Field, Part};
use ccplane_engine::packets::{Outbound, PathSample};
use ccplane_engine::{EngineConfig, FlowEngine, PacketsConfig};
use ccplane_program::vm::FastVm;
use ccplane_snapshot::{DeployOptions, Snapshot};
use common::{PROGRAM, drain, fields, info, install, manual, steered};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroU32;

/// Most memory that a flow may take beside its transport's own, bytes.
const MOST_BYTES_A_FLOW: isize = 8 << 10;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread.
struct Counting;

fn count(bytes: isize) {
    // A thread that ends may free after its counters are gone.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = BYTES.try_with(|held| held.set(held.get() + bytes));
}

// SAFETY: every call is the system allocator's own; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// So many ACKs, all of them without a call of the allocator.
fn quiet(flow: &mut FlowEngine, acks: std::ops::Range<u64>) {
    let before = CALLS.get();
    common::acks(flow, acks, 100);
    assert_eq!(CALLS.get(), before, "an ACK called the allocator");
}

#[test]
fn the_counter_sees_an_allocation_and_its_release() {
    let before = (CALLS.get(), BYTES.get());
    drop(std::hint::black_box(Box::new([0u8; 100])));
    assert_eq!((CALLS.get() - before.0, BYTES.get()), (2, before.1));
}

#[test]
fn an_ack_neither_allocates_nor_frees() {
    let config =
        EngineConfig { event_capacity: 512, heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("test") };
    let (engine, mut handle, _) = manual(config);
    let mut flow = steered(&engine, &mut handle, &Aurora::default());
    quiet(&mut flow, 0..20_000);
    assert!(flow.last_decision().decisions > 10, "{:?}", flow.last_decision());
    assert!(drain(&mut handle).len() > 10);

    // Another snapshot: the table that the flow had is freed by the handle.
    let snapshot =
        Snapshot::built_in(ccplane_alg::Algorithm::policies(&Aurora::default())[0].snapshot).unwrap();
    for uid in 2..9 {
        let options = DeployOptions { uid: NonZeroU32::new(uid).unwrap(), ..DeployOptions::ONLY };
        handle.push(0, &snapshot.image(&options), Part::Active).unwrap();
        quiet(&mut flow, u64::from(uid) * 20_000..u64::from(uid + 1) * 20_000);
        assert_eq!(flow.last_decision().snapshot.map(|s| s.0), Some(uid));
    }

    // Fields, another program, and none: what ran is dropped by the handle.
    let reno = ccplane_program::compile(ccplane_alg::Algorithm::programs(&RENO)[0].source).unwrap();
    let other = ccplane_contract::ProgramUid(2);
    handle.install(other, &reno).unwrap();
    handle.update(flow.id(), &[(Field::Cwnd, 100_000)]).unwrap();
    quiet(&mut flow, 180_000..180_100);
    handle.set_program(flow.id(), other, &fields(&RENO, &reno)).unwrap();
    handle.remove(PROGRAM).unwrap_err();
    quiet(&mut flow, 180_100..190_000);
    handle.remove(PROGRAM).unwrap();
    handle.release(flow.id()).unwrap();
    handle.remove(other).unwrap();
    quiet(&mut flow, 190_000..200_000);

    let held = drain(&mut handle).len();
    assert!(
        held >= 512 && handle.flows()[0].transport.reports > 1024,
        "{held}: the queue was full meanwhile"
    );
}

#[test]
fn a_decision_about_a_packet_neither_allocates_nor_frees() {
    let (packets, heartbeat_timeout_us) = (Some(PacketsConfig::default()), u64::MAX);
    let config =
        EngineConfig { packets, heartbeat_timeout_us, event_capacity: 512, ..EngineConfig::new("test") };
    let (engine, mut handle, _) = manual(config);
    let mut memory = engine.host_memory();
    let source = "(hook send) (def (Report (n 0)) (p 0))
        (when true (:= Report.n (+ Report.n 1)) (:= Priority p) (:= DecideAt 1) (report))";
    let program = ccplane_program::compile(source).unwrap();
    handle.install(PROGRAM, &program).unwrap();
    handle.set_first(PROGRAM, &[]).unwrap();
    let mut flow = engine.packet_flow(info(), 1, &mut memory, 0);
    let register = Field::Reg(program.reg("p").unwrap());
    for round in 0..4_u64 {
        handle.update(flow.id(), &[(register, round as i64)]).unwrap();
        let before = CALLS.get();
        for n in 0..1000 {
            let now_ns = (1000 * round + n) * 1000;
            let packet =
                Outbound { now_ns, payload_bytes: 1, new_bytes: 1, bytes_sent: 1 + n, ..Outbound::default() };
            let steering = flow.on_packet(&packet, &mut memory);
            assert_eq!(steering.map(|steering| u64::from(steering.priority)), Some(round));
            flow.set_in_flight(n, &mut memory);
            flow.on_sample(now_ns / 1000, n, PathSample::default(), &mut memory);
        }
        assert_eq!(CALLS.get(), before, "a packet called the allocator");
    }
    assert_eq!(handle.flows()[0].transport.reports, 4000);
}

#[test]
fn a_flow_is_small() {
    const FLOWS: usize = 1000;
    let (engine, mut handle, _) = manual(EngineConfig::new("test"));
    let aurora = Aurora::default();
    let program = install(&mut handle, &aurora);
    let fields = fields(&aurora, &program);
    let mut flows = Vec::with_capacity(FLOWS);
    let before = BYTES.get();
    for _ in 0..FLOWS {
        let mut flow = engine.flow(info(), 0);
        handle.set_program(flow.id(), PROGRAM, &fields).unwrap();
        common::acks(&mut flow, 0..100, 100);
        drop(drain(&mut handle));
        flows.push(flow);
    }
    let heap = (BYTES.get() - before) / FLOWS as isize;
    let (own, machine) = (size_of::<FlowEngine>() as isize, size_of::<FastVm>());
    eprintln!("a flow under Aurora: {own} bytes and {heap} on the heap, of which a machine's {machine}");
    assert!(own + heap <= MOST_BYTES_A_FLOW, "{own} and {heap} bytes");
}

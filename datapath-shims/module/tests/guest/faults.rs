//! Faults of agents, programs and operators that the module meets.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;

use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_module::ModuleDatapath;
use ccplane_wire::v2::{ByeReason, MAX_FRAME_BYTES, ToDatapath, Wake, Welcome};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::lab::{
    Bulk, Lab, LoadedModule, attach, connected, counted, created, report, stats, times, unloads, wait_for,
    wait_until,
};

/// Writes of garbage, and flows opened and closed, of a test run; `make module-test` asks for more.
const WRITES: u32 = 250;
const FLOWS: u32 = 500;
/// Flows that come and go while another one is updated.
const BESIDE: u32 = 200;
const FIXED: ProgramUid = ProgramUid(1);

fn device() -> Option<File> {
    let device =
        OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/ccplane");
    device.ok()
}

/// An agent's datapath with a flow that runs this program.
fn running(lab: &Lab, source: &str) -> (ModuleDatapath, Bulk, FlowId) {
    let mut datapath = lab.attach();
    datapath.install(FIXED, &ccplane_program::compile(source).unwrap()).unwrap();
    let bulk = lab.flow();
    let flow = created(&mut datapath, &bulk);
    datapath.set_program(flow, FIXED, &[]).unwrap();
    (datapath, bulk, flow)
}

fn encoded(message: &ToDatapath<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(7, &mut bytes).unwrap();
    bytes
}

fn welcome() -> Vec<u8> {
    let welcome =
        Welcome { minor: 1, heartbeat_timeout_ms: 1000, session: 1, wake: Wake::Sleep, ring_bytes: 0 };
    encoded(&ToDatapath::Welcome(welcome))
}

/// One message of each kind, for this flow.
fn messages(flow: FlowId) -> Vec<Vec<u8>> {
    let source =
        "(def (Report (x 0)) (y 1)) (when true (:= Report.x (+ Report.x y)) (:= Cwnd 14480) (report))";
    let program = ccplane_program::compile(source).unwrap();
    let fields = [(Field::Reg(1), 5), (Field::Cwnd, 28960), (Field::Rate, 1_000_000)];
    let image = [3u64; 200];
    let all = [
        ToDatapath::Install { uid: FIXED, program },
        ToDatapath::Remove { uid: FIXED },
        ToDatapath::SetProgram { flow, uid: FIXED, fields: (&fields).into() },
        ToDatapath::Update { flow, fields: (&fields).into() },
        ToDatapath::Release { flow },
        ToDatapath::GetFlows,
        ToDatapath::GetSlots,
        ToDatapath::Push { slot: 0, part: ccplane_contract::Part::Active, image: (&image).into() },
        ToDatapath::Promote { slot: 0 },
        ToDatapath::Rollback { slot: 0 },
        ToDatapath::Share { slot: 0, share: 9 },
        ToDatapath::Heartbeat { now_us: 1 },
        ToDatapath::Bye { reason: ByeReason::Protocol, text: "bye" },
    ];
    all.iter().map(encoded).collect()
}

/// Changes some bytes, or the length; sometimes none.
fn mutate(bytes: &mut Vec<u8>, draws: &mut ChaCha8Rng) {
    for _ in 0..draws.next_u32() % 5 {
        let at = draws.next_u32() as usize % bytes.len();
        bytes[at] = if draws.next_u32().is_multiple_of(3) { 0xff } else { draws.next_u32() as u8 };
    }
    match draws.next_u32() % 20 {
        0 => bytes.truncate(draws.next_u32() as usize % bytes.len() + 1),
        1 => bytes.resize(MAX_FRAME_BYTES, draws.next_u32() as u8),
        2 => bytes.extend(std::iter::repeat_n(0xff, 40)),
        _ => {}
    }
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn garbage_on_the_device_changes_nothing_but_its_writer() {
    let lab = Lab::new();
    let bulk = lab.flow();
    let mut datapath = attach();
    let flow = created(&mut datapath, &bulk);
    drop(datapath);
    let mut draws = ChaCha8Rng::seed_from_u64(17);
    let (messages, welcome) = (messages(flow), welcome());
    let mut room = vec![0; 4 * MAX_FRAME_BYTES];
    let (mut taken, mut refused) = (0, 0);
    let mut open: Option<File> = None;
    for n in 0..times(WRITES) {
        if n % 40 == 0 {
            open = None;
        }
        let mut file = match open.take() {
            Some(file) => file,
            None => {
                let mut file = device().unwrap();
                if !draws.next_u32().is_multiple_of(8) {
                    assert!(file.read(&mut room).unwrap() > 0, "a HELLO");
                    file.write_all(&welcome).unwrap();
                }
                file
            }
        };
        let mut bytes = messages[draws.next_u32() as usize % messages.len()].clone();
        mutate(&mut bytes, &mut draws);
        let goes_on = match file.write(&bytes) {
            Ok(_) => {
                taken += 1;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            // Garbage ends the conversation.
            Err(_) => {
                refused += 1;
                false
            }
        };
        let _ = file.read(&mut room);
        open = goes_on.then_some(file);
    }
    drop(open);
    assert!(taken > times(WRITES) / 10 && refused > times(WRITES) / 10, "{taken} taken, {refused} refused");
    assert!(counted("malformed_writes") > 0);
    // The flow goes on, and the next agent finds everything in order.
    let mut datapath = attach();
    assert_eq!(created(&mut datapath, &bulk), flow);
    let program =
        ccplane_program::compile("(def (Report (x 0))) (when true (:= Report.x 4) (report))").unwrap();
    datapath.install(FIXED, &program).unwrap();
    datapath.set_program(flow, FIXED, &[]).unwrap();
    assert_eq!(report(&mut datapath, flow, FIXED).1, [4]);
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn flows_come_and_go_by_the_thousand() {
    let _module = LoadedModule::with("flows=64");
    super::lab::up();
    let mut datapath = attach();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let (mut opened, mut closed, mut events) = (0, 0, Vec::new());
    for _ in 0..times(FLOWS) {
        let stream = connected(to, "ccplane");
        drop((stream, listener.accept().unwrap()));
        datapath.heartbeat();
        datapath.poll(usize::MAX, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Created { .. } => opened += 1,
                Event::Closed { .. } => closed += 1,
                _ => {}
            }
        }
    }
    wait_until("all are closed", || {
        datapath.heartbeat();
        datapath.poll(usize::MAX, &mut events);
        closed += events.drain(..).filter(|e| matches!(e, Event::Closed { .. })).count();
        counted("flows") == 0 && closed == opened
    });
    assert!(opened >= times(FLOWS) as usize, "{opened} of {}", times(FLOWS));
    // More at once than there is room for: the rest run the kernel's Reno.
    let pairs: Vec<_> = (0..80).map(|_| (connected(to, "ccplane"), listener.accept().unwrap())).collect();
    wait_until("64 of 80", || counted("flows") == 64 && counted("table_full") >= 16);
    drop(pairs);
    wait_until("none", || counted("flows") == 0);
}

/// A flow is updated without a pause while others come and go: nobody waits for another's lock for ever.
#[test]
#[ignore = "runs in a machine that has the module"]
fn a_flow_is_updated_while_others_come_and_go() {
    const MSS: i64 = 1448;
    let lab = Lab::new();
    super::lab::up();
    let source = "(def (Report (x 0))) (when (> Micros 20000) (report) (:= Micros 0))";
    let (mut datapath, _bulk, flow) = running(&lab, source);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let others = std::thread::spawn(move || {
        for _ in 0..times(BESIDE) {
            drop((connected(to, "ccplane"), listener.accept().unwrap()));
        }
    });
    let (mut updates, mut events) = (0, Vec::new());
    while !others.is_finished() {
        datapath.heartbeat();
        // One that finds no room is said, and the next one is tried.
        updates += i64::from(datapath.update(flow, &[(Field::Cwnd, (20 + updates % 8) * MSS)]).is_ok());
        datapath.poll(usize::MAX, &mut events);
        events.clear();
    }
    others.join().unwrap();
    assert!(updates > i64::from(times(BESIDE)), "{updates} updates");
    datapath.update(flow, &[(Field::Cwnd, 30 * MSS)]).unwrap();
    stats(&mut datapath, flow, |f| f.transport.snd_cwnd == 30);
    report(&mut datapath, flow, FIXED);
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn live_flows_and_agents_keep_the_module() {
    let module = LoadedModule::with("");
    super::lab::up();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = connected(listener.local_addr().unwrap(), "ccplane");
    let received = listener.accept().unwrap();
    assert!(!unloads(), "a flow lives");
    drop((stream, received));
    let agent = attach();
    assert!(!unloads(), "an agent has its device open");
    drop(agent);
    // It unloads, or this does not return.
    drop(module);
    assert!(!std::path::Path::new("/dev/ccplane").exists());
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_flood_of_reports_is_counted_and_ends() {
    let lab = Lab::with("ring=262144");
    let source = "(def (Report (a 0) (b 0) (c 0) (d 0) (e 0) (f 0) (g 0) (h 0))) (when true (report))";
    let (mut datapath, _bulk, flow) = running(&lab, source);
    // Nobody reads; heartbeats go on.
    wait_until("the ring is full", || {
        datapath.heartbeat();
        counted("events_dropped") > 0
    });
    wait_for(&mut datapath, "Dropped", |e| matches!(e, Event::Dropped { count } if *count > 0).then_some(()));
    report(&mut datapath, flow, FIXED);
}

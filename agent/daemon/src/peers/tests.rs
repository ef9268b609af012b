//! The hub against datapaths played by hand, over real sockets.

use super::*;
use ccplane_contract::{DatapathError, Event, Field, FlowId, FlowInfo, Mode, ProgramUid};
use ccplane_wire::v1::{self, AddrOrder};
use ccplane_wire::v2::{self, Clock, Features};
use nix::sys::socket::{setsockopt, sockopt};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

const PROGRAM: &str = "(def (Report (volatile acked 0)) (gain 3)) \
                       (when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (report))";

/// Flows that start at once; [`hello`] announces no more.
const BURST: u32 = 100;

struct World {
    dir: tempfile::TempDir,
    hub: Hub,
    changes: Vec<Change>,
}

impl World {
    fn new(max_peers: usize) -> World {
        let dir = tempfile::tempdir().unwrap();
        let heartbeat_timeout = Duration::from_millis(500);
        let options =
            HubOptions { max_peers, heartbeat_timeout, session: 9, rings: false, wake: Wake::Sleep };
        let hub = Hub::bind(&dir.path().join("ccp.sock"), options).unwrap();
        World { dir, hub, changes: Vec::new() }
    }

    fn hub_path(&self) -> PathBuf {
        self.dir.path().join("ccp.sock")
    }

    /// A datapath's socket.
    fn datapath(&self, name: &str) -> UnixDatagram {
        let socket = UnixDatagram::bind(self.dir.path().join(name)).unwrap();
        socket.connect(self.hub_path()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    fn receive(&mut self) -> Vec<Change> {
        self.hub.receive(1000, 77, &mut self.changes);
        std::mem::take(&mut self.changes)
    }

    fn joined(&mut self) -> PeerId {
        match self.receive()[..] {
            [Change::Joined(id)] => id,
            ref other => panic!("{other:?}"),
        }
    }

    /// Makes the hub's room for datagrams that nobody read yet the least that the kernel grants: a handful. (Whether
    /// `net.unix.max_dgram_qlen` limits them depends on the machine.)
    fn shrink(&self) {
        setsockopt(&self.hub.socket, sockopt::SndBuf, &1).unwrap();
    }

    fn events(&mut self, id: PeerId) -> Vec<Event> {
        let mut events = Vec::new();
        self.hub.peer(id).unwrap().poll(1000, &mut events);
        events
    }
}

fn info() -> FlowInfo {
    FlowInfo {
        mss_bytes: 1448,
        init_cwnd_bytes: 14_480,
        local: "10.0.0.1:5000".parse().unwrap(),
        remote: "10.0.0.2:6000".parse().unwrap(),
        cgroup: None,
        min_rtt_us: None,
    }
}

fn send_v1(from: &UnixDatagram, message: &v1::ToAgent<'_>) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    from.send(&bytes).unwrap();
}

fn create(sid: u32) -> v1::ToAgent<'static> {
    v1::ToAgent::Create(v1::Create::from_info(sid, &info(), AddrOrder::Network, None).unwrap())
}

fn measure(sid: u32, program_uid: u32, values: &[u64]) -> v1::ToAgent<'_> {
    v1::ToAgent::Measure(v1::Measure { sid, program_uid, values: values.into() })
}

fn receive_bytes(at: &UnixDatagram) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    let n = at.recv(&mut buffer).ok()?;
    buffer.truncate(n);
    Some(buffer)
}

fn send_v2(from: &UnixDatagram, message: &v2::ToAgent<'_>, request: u32) {
    let mut bytes = Vec::new();
    message.encode(request, &mut bytes).unwrap();
    from.send(&bytes).unwrap();
}

fn hello(minors: std::ops::RangeInclusive<u8>) -> v2::ToAgent<'static> {
    v2::ToAgent::Hello(v2::Hello {
        minors,
        clock: Clock::Monotonic,
        features: Features::FULL_LANGUAGE,
        now_us: 1,
        max_programs: 2,
        max_flows: BURST,
        kind: "quic",
        name: "test",
        slots: (&[]).into(),
    })
}

/// Everything waiting at a v2 datapath, as (request, message's debug text).
fn inbox_v2(at: &UnixDatagram) -> Vec<(u32, String)> {
    std::iter::from_fn(|| receive_bytes(at))
        .flat_map(|bytes| {
            v2::frames(&bytes)
                .map(|f| {
                    let frame = f.unwrap();
                    (frame.request, format!("{:?}", v2::ToDatapath::parse(frame).unwrap().unwrap()))
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn a_libccp_flow_is_steered_from_create_to_close() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v1(&datapath, &v1::ToAgent::Ready { id: 0 });
    send_v1(&datapath, &create(1));
    let id = world.joined();
    let flow = FlowId(1);
    assert_eq!(world.events(id), [Event::Created { flow, info: info() }]);

    let program = ccplane_program::compile(PROGRAM).unwrap();
    let gain = program.reg("gain").unwrap();
    let uid = ProgramUid(5);
    let peer = world.hub.peer(id).unwrap();
    peer.install(uid, &program).unwrap();
    peer.set_program(flow, uid, &[(Field::Reg(gain), 7), (Field::Cwnd, 20_000)]).unwrap();

    let install = receive_bytes(&datapath).unwrap();
    let install = v1::frames(&install).next().unwrap().unwrap();
    let v1::ToDatapath::Install(install) = v1::ToDatapath::parse(install).unwrap() else { panic!() };
    assert!(install.program_uid > 1, "libccp forgets all programs at uid 1");
    let change = receive_bytes(&datapath).unwrap();
    let change = v1::frames(&change).next().unwrap().unwrap();
    let v1::ToDatapath::ChangeProg(change) = v1::ToDatapath::parse(change).unwrap() else { panic!() };
    assert_eq!((change.sid, change.program_uid), (1, install.program_uid));
    assert_eq!(change.fields.len(), 2);

    let wire_uid = change.program_uid;
    send_v1(&datapath, &measure(1, wire_uid, &[2896]));
    send_v1(&datapath, &measure(1, wire_uid + 1, &[1]));
    send_v1(&datapath, &v1::ToAgent::Close { sid: 1 });
    assert!(world.receive().is_empty());
    assert_eq!(
        world.events(id),
        [
            Event::Report { flow, program: uid, seq: 1, at_us: 77, values: vec![2896].into() },
            Event::Closed { flow }
        ]
    );
    let peer = world.hub.peer(id).unwrap();
    assert_eq!(peer.update(flow, &[]), Err(DatapathError::NoFlow(flow)));
}

#[test]
fn what_libccp_cannot_hold_or_run_is_refused() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v1(&datapath, &create(1));
    let id = world.joined();
    let peer = world.hub.peer(id).unwrap();
    let negative = ccplane_program::compile("(def (Report (x 0))) (when true (:= Report.x -5))").unwrap();
    assert!(matches!(peer.install(ProgramUid(1), &negative), Err(DatapathError::Unsupported { .. })));
    let flow = FlowId(1);
    for n in 0..9 {
        let source = format!("(def (Report (x {n}))) (when true (report))");
        let uid = ProgramUid(10 + n);
        peer.install(uid, &ccplane_program::compile(&source).unwrap()).unwrap();
        peer.set_program(flow, uid, &[]).unwrap();
        while receive_bytes(&datapath).is_some() {}
    }
    let tenth = ccplane_program::compile(PROGRAM).unwrap();
    peer.install(ProgramUid(99), &tenth).unwrap();
    assert_eq!(peer.set_program(flow, ProgramUid(99), &[]), Err(DatapathError::ProgramsFull { limit: 9 }));
    let report = tenth.reg("Report.acked").unwrap();
    assert_eq!(
        peer.set_program(flow, ProgramUid(99), &[(Field::Reg(report), 1)]),
        Err(DatapathError::BadField(Field::Reg(report)))
    );
    assert_eq!(
        peer.remove(ProgramUid(18)),
        Err(DatapathError::ProgramInUse { uid: ProgramUid(18), flows: 1 })
    );
}

/// The agent was restarted: the datapath knows nothing of it and goes on reporting.
#[test]
fn a_running_libccp_flow_is_taken_over() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v1(&datapath, &measure(3, 4242, &[1, 2]));
    let id = world.joined();
    let flow = FlowId(1);
    assert!(matches!(world.events(id)[..], [Event::Created { flow: f, .. }] if f == flow));
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    peer.set_program(flow, ProgramUid(1), &[]).unwrap();
    assert_eq!(peer.flows()[0].mode, Mode::Program);
}

#[test]
fn a_datapath_that_vanishes_closes_its_flows() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v1(&datapath, &create(1));
    let id = world.joined();
    world.events(id);
    drop(datapath);
    world.hub.peer(id).unwrap().heartbeat();
    assert_eq!(world.receive(), [Change::Left(id)]);
    assert_eq!(world.events(id), [Event::Closed { flow: FlowId(1) }]);
    world.hub.remove(id);
    assert!(world.hub.peer(id).is_none());
}

#[test]
fn a_v2_datapath_from_hello_to_farewell() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v2(&datapath, &hello(0..=9), 0);
    let id = world.joined();
    let welcome = inbox_v2(&datapath);
    assert!(welcome[0].1.contains("heartbeat_timeout_ms: 500, session: 9"), "{welcome:?}");
    let peer = world.hub.peer(id).unwrap();
    assert_eq!((peer.capabilities().kind, peer.capabilities().max_programs), ("quic", 2));

    let (good, bad, flow) = (ProgramUid(1), ProgramUid(2), FlowId(70));
    let program = ccplane_program::compile(PROGRAM).unwrap();
    peer.install(good, &program).unwrap();
    peer.install(bad, &program).unwrap();
    assert_eq!(peer.install(ProgramUid(3), &program), Err(DatapathError::ProgramsFull { limit: 2 }));
    assert_eq!(peer.set_program(flow, good, &[]), Err(DatapathError::NoFlow(flow)));

    let refusal = DatapathError::Refused { at: Some(1), reason: "no".to_owned() };
    let requests: Vec<u32> = inbox_v2(&datapath).iter().map(|(request, _)| *request).collect();
    send_v2(&datapath, &v2::ToAgent::Installed { uid: good }, requests[0]);
    send_v2(&datapath, &v2::ToAgent::Refused(refusal.clone()), requests[1]);
    send_v2(&datapath, &v2::ToAgent::Created { flow, info: info() }, 0);
    let report = v2::Report { flow, program: good, seq: 4, at_us: 1234, values: (&[-5_i64][..]).into() };
    send_v2(&datapath, &v2::ToAgent::Reports((&[report][..]).into()), 0);
    world.receive();
    assert_eq!(
        world.events(id),
        [
            Event::Created { flow, info: info() },
            Event::Report { flow, program: good, seq: 4, at_us: 1234, values: vec![-5].into() }
        ]
    );
    let peer = world.hub.peer(id).unwrap();
    assert_eq!(peer.set_program(flow, bad, &[]), Err(refusal));
    peer.set_program(flow, good, &[(Field::Rate, 1000)]).unwrap();
    peer.release(flow).unwrap();
    peer.heartbeat();
    world.hub.farewell();
    let said: Vec<String> = inbox_v2(&datapath).into_iter().map(|(_, m)| m).collect();
    let starts = ["SetProgram", "Release", "Heartbeat", "GetFlows", "Bye"];
    assert!(said.len() == 5 && said.iter().zip(starts).all(|(m, s)| m.starts_with(s)), "{said:?}");
}

/// It started after the datapath last listed its flows: the list is old, the flow is not over.
#[test]
fn a_flow_that_has_just_started_outlives_events_that_were_dropped() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v2(&datapath, &hello(0..=9), 0);
    let id = world.joined();
    let (before, after, ended) = (FlowId(1), FlowId(2), FlowId(3));
    send_v2(&datapath, &v2::ToAgent::Created { flow: before, info: info() }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: ended, info: info() }, 0);
    world.receive();
    let listed = world.hub.peer(id).unwrap().flows();
    send_v2(&datapath, &v2::ToAgent::FlowStats { last: true, flows: (&listed[..]).into() }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: after, info: info() }, 0);
    send_v2(&datapath, &v2::ToAgent::Closed { flow: ended }, 0);
    send_v2(&datapath, &v2::ToAgent::Dropped { count: 5 }, 0);
    world.receive();

    let names = ccplane_algs::all();
    let catalog = ccplane_core::Catalog::new(names, 1).unwrap();
    let rules = ccplane_core::Rules::all("reno");
    let mut core = ccplane_core::Core::new(catalog, rules, ccplane_core::Config::default()).unwrap();
    let here = ccplane_core::DatapathId(1);
    let peer = world.hub.peer(id).unwrap();
    core.attach(here, peer.capabilities(), 0).unwrap();
    ccplane_core::drive(&mut core, here, peer, 0);
    let known: Vec<FlowId> = core.flows().map(|f| f.flow()).collect();
    assert_eq!(known, [before, after]);
    assert_eq!(core.counters().dropped_events, 5);
}

#[test]
fn strangers_are_told_what_is_wrong() {
    let mut world = World::new(1);
    let old = world.datapath("old");
    send_v2(&old, &hello(7..=9), 0);
    assert!(world.receive().is_empty());
    assert!(inbox_v2(&old)[0].1.contains("Version"));

    let forgetful = world.datapath("forgetful");
    send_v2(&forgetful, &v2::ToAgent::Heartbeat { now_us: 1 }, 0);
    assert!(world.receive().is_empty());
    assert!(inbox_v2(&forgetful)[0].1.contains("say HELLO first"));

    send_v2(&forgetful, &hello(0..=0), 0);
    world.joined();
    let late = world.datapath("late");
    send_v2(&late, &hello(0..=0), 0);
    assert!(world.receive().is_empty());
    assert!(inbox_v2(&late)[0].1.contains("TooMany { limit: 1 }"));
    assert_eq!(world.hub.malformed(), 1);
}

/// Sets a program on each flow that has just started, while the datapath reads nothing; then the datapath reads. Returns
/// what it read.
fn burst(world: &mut World, id: PeerId, datapath: &UnixDatagram) -> Vec<Vec<u8>> {
    world.shrink();
    let program = ccplane_program::compile(PROGRAM).unwrap();
    let peer = world.hub.peer(id).unwrap();
    let mut events = Vec::new();
    assert_eq!(peer.poll(1000, &mut events), BURST as usize);
    peer.install(ProgramUid(1), &program).unwrap();
    for event in events {
        let Event::Created { flow, .. } = event else { panic!("{event:?}") };
        peer.set_program(flow, ProgramUid(1), &[(Field::Cwnd, 14_480)]).unwrap();
    }
    assert!(world.hub.has_backlog(), "the socket is full");
    let mut read = Vec::new();
    for _ in 0..=BURST {
        read.extend(std::iter::from_fn(|| receive_bytes(datapath)));
        world.hub.peer(id).unwrap().poll(0, &mut Vec::new());
    }
    assert!(!world.hub.has_backlog());
    read
}

#[test]
fn every_flow_of_a_burst_gets_its_program() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    for sid in 1..=BURST {
        send_v1(&datapath, &create(sid));
        world.receive();
    }
    let read = burst(&mut world, PeerId(1), &datapath);
    let said = read.iter().map(|bytes| {
        let frame = v1::frames(bytes).next().unwrap().unwrap();
        match v1::ToDatapath::parse(frame).unwrap() {
            v1::ToDatapath::Install(_) => 0,
            v1::ToDatapath::ChangeProg(change) => change.sid,
            other => panic!("{other:?}"),
        }
    });
    assert!(said.eq(0..=BURST), "the program, then each flow's");
}

#[test]
fn every_flow_of_a_v2_burst_gets_its_program() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v2(&datapath, &hello(0..=0), 0);
    let id = world.joined();
    assert_eq!(inbox_v2(&datapath).len(), 1, "WELCOME");
    for flow in 1..=BURST {
        send_v2(&datapath, &v2::ToAgent::Created { flow: FlowId(flow.into()), info: info() }, 0);
        world.receive();
    }
    let read = burst(&mut world, id, &datapath);
    let said = read.iter().map(|bytes| {
        let frame = v2::frames(bytes).next().unwrap().unwrap();
        match v2::ToDatapath::parse(frame).unwrap().unwrap() {
            v2::ToDatapath::Install { .. } => 0,
            v2::ToDatapath::SetProgram { flow, uid: ProgramUid(1), .. } => flow.0,
            other => panic!("{other:?}"),
        }
    });
    assert!(said.eq(0..=u64::from(BURST)), "the program, then each flow's");
}

/// What the next one of its kind makes up for does not wait, and does not overtake what does; a datapath that never
/// reads cannot make the agent hold more than so much.
#[test]
fn what_waits_is_bounded_and_keeps_its_order() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v2(&datapath, &hello(0..=0), 0);
    let id = world.joined();
    let flow = FlowId(1);
    send_v2(&datapath, &v2::ToAgent::Created { flow, info: info() }, 0);
    world.receive();
    world.shrink();
    let program = ccplane_program::compile(PROGRAM).unwrap();
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &program).unwrap();
    let full =
        DatapathError::Os { what: "send to the datapath".to_owned(), errno: std::io::ErrorKind::WouldBlock };
    let fields = [(Field::Cwnd, 14_480); v2::MAX_FIELDS];
    let mut taken = 0_usize;
    let refused = loop {
        match peer.set_program(flow, ProgramUid(1), &fields) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, full);
    assert!((1 << 10..1 << 20).contains(&taken), "{taken}");
    assert!(inbox_v2(&datapath).len() < 100);
    assert_eq!(peer.update(flow, &[(Field::Cwnd, 1)]), Err(full), "it would overtake");
    drop(datapath);
    peer.heartbeat();
    assert!(!peer.has_backlog(), "nobody is left to wait for");
    assert_eq!(world.receive(), [Change::Left(id)]);
}

/// Garbage of every length, alone and after a good header, is counted and changes nothing.
#[test]
fn garbage_is_counted() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v1(&datapath, &create(1));
    let id = world.joined();
    world.events(id);
    let mut sent = 0;
    let mut state = 1_u64;
    for length in 1..200_usize {
        let mut bytes: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        if length % 2 == 0 {
            bytes.splice(0..0, *b"CCPL\x02\x00");
        } else {
            // No message type of v1.
            bytes[0] = 0xff;
        }
        datapath.send(&bytes).unwrap();
        sent += 1;
        assert!(world.receive().is_empty());
    }
    assert_eq!(world.hub.malformed(), sent);
    assert!(world.events(id).is_empty());
    // A datapath socket without a name cannot be answered.
    let unnamed = UnixDatagram::unbound().unwrap();
    unnamed.send_to(b"x", world.hub_path()).unwrap();
    assert!(world.receive().is_empty());
    assert_eq!(world.hub.malformed(), sent + 1);
    send_v1(&datapath, &create(2));
    world.receive();
    assert_eq!(world.events(id).len(), 1, "the good datapath is still heard");
}

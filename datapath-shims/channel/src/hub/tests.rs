//! The hub against datapaths played by hand, over real sockets.

use super::*;
use ccplane_contract::{DatapathError, Event, Field, FlowId, FlowInfo, Mode, ProgramUid};
use ccplane_program::ir::Hook;
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

    /// A hub that a datapath of libccp has joined by these messages.
    fn libccp(said: &[v1::ToAgent<'_>]) -> (World, UnixDatagram, PeerId) {
        let mut world = World::new(4);
        let datapath = world.datapath("dp");
        said.iter().for_each(|message| send_v1(&datapath, message));
        let id = world.joined();
        (world, datapath, id)
    }

    /// A hub that a datapath of these minor versions has joined.
    fn greeted(minors: std::ops::RangeInclusive<u8>) -> (World, UnixDatagram, PeerId) {
        let mut world = World::new(4);
        let datapath = world.datapath("dp");
        send_v2(&datapath, &hello(minors), 0);
        let id = world.joined();
        (world, datapath, id)
    }

    fn hub_path(&self) -> PathBuf {
        self.dir.path().join("ccp.sock")
    }

    /// Binds a datapath's socket in the agent's folder.
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

    /// Returns the messages that a libccp datapath at `at` is sent when its timeouts are handled at this time.
    fn handle_timeout(&mut self, id: PeerId, at: &UnixDatagram, at_us: u64) -> Vec<Sent> {
        let Some(Peer(Protocol::V1(peer))) = self.hub.peer(id) else { panic!() };
        peer.handle_timeout(at_us);
        inbox_v1(at)
    }

    fn events(&mut self, id: PeerId) -> Vec<Event> {
        let mut events = Vec::new();
        self.hub.peer(id).unwrap().poll(1000, &mut events);
        events
    }
}

fn info() -> FlowInfo {
    FlowInfo::example(1448, 14_480)
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

/// A message to a libccp datapath, as far as tests look at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Install(u32),
    Change { sid: u32, uid: u32, fields: usize },
    Update { sid: u32 },
}

/// The time for which an agent listens before it writes programs, microseconds.
const LISTENED_US: u64 = 300_000;

/// A table by which each flow is heard.
fn beacons() -> Vec<Sent> {
    [1, 2, 2, 2, 2, 2, 2, 2, 2].map(Sent::Install).to_vec()
}

/// Everything waiting at a v1 datapath.
fn inbox_v1(at: &UnixDatagram) -> Vec<Sent> {
    std::iter::from_fn(|| receive_bytes(at))
        .map(|bytes| match v1::ToDatapath::parse_all(&bytes).next().unwrap().unwrap() {
            v1::ToDatapath::Install(install) => Sent::Install(install.program_uid),
            v1::ToDatapath::ChangeProg(c) => {
                Sent::Change { sid: c.sid, uid: c.program_uid, fields: c.fields.len() }
            }
            v1::ToDatapath::Update(update) => Sent::Update { sid: update.sid },
        })
        .collect()
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
    let (mut world, datapath, id) = World::libccp(&[v1::ToAgent::Ready { id: 0 }, create(1)]);
    let flow = FlowId(1);
    assert_eq!(world.events(id), [Event::Created { flow, info: info() }]);

    let program = ccplane_program::compile(PROGRAM).unwrap();
    let gain = program.reg("gain").unwrap();
    let uid = ProgramUid(5);
    let peer = world.hub.peer(id).unwrap();
    peer.install(uid, &program).unwrap();
    peer.set_program(flow, uid, &[(Field::Reg(gain), 7), (Field::Cwnd, 20_000)]).unwrap();

    let said = inbox_v1(&datapath);
    let [Sent::Install(1), Sent::Install(wire_uid), Sent::Change { sid: 1, uid: changed, fields: 2 }] =
        said[..]
    else {
        panic!("{said:?}")
    };
    assert!(wire_uid > 2 && changed == wire_uid, "libccp forgets all programs at uid 1: before, not after");
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
    let (mut world, datapath, id) = World::libccp(&[v1::ToAgent::Ready { id: 0 }, create(1)]);
    let peer = world.hub.peer(id).unwrap();
    let negative = ccplane_program::compile("(def (Report (x 0))) (when true (:= Report.x -5))").unwrap();
    assert!(matches!(peer.install(ProgramUid(1), &negative), Err(DatapathError::Unsupported { .. })));
    let flow = FlowId(1);
    for sid in 2..=8 {
        send_v1(&datapath, &create(sid));
    }
    world.receive();
    let peer = world.hub.peer(id).unwrap();
    for n in 0..8 {
        let source = format!("(def (Report (x {n}))) (when true (report))");
        let uid = ProgramUid(10 + n);
        peer.install(uid, &ccplane_program::compile(&source).unwrap()).unwrap();
        peer.set_program(FlowId(1 + u64::from(n)), uid, &[]).unwrap();
        while receive_bytes(&datapath).is_some() {}
    }
    let ninth = ccplane_program::compile(PROGRAM).unwrap();
    peer.install(ProgramUid(99), &ninth).unwrap();
    assert_eq!(peer.set_program(flow, ProgramUid(99), &[]), Err(DatapathError::ProgramsFull { limit: 8 }));
    let report = ninth.reg("Report.acked").unwrap();
    assert_eq!(
        peer.set_program(flow, ProgramUid(99), &[(Field::Reg(report), 1)]),
        Err(DatapathError::BadField(Field::Reg(report)))
    );
    assert_eq!(
        peer.remove(ProgramUid(17)),
        Err(DatapathError::ProgramInUse { uid: ProgramUid(17), flows: 1 })
    );
    // Once no flow runs one of the eight, its place is another's.
    peer.set_program(flow, ProgramUid(17), &[]).unwrap();
    peer.set_program(flow, ProgramUid(99), &[]).unwrap();
    let said = inbox_v1(&datapath);
    let installs = said.iter().filter(|said| matches!(said, Sent::Install(_))).count();
    assert_eq!((installs, &said[1]), (9, &Sent::Install(1)), "{said:?}");
    let changes = said.iter().filter(|said| matches!(said, Sent::Change { sid: 1, .. })).count();
    assert_eq!(changes + installs, said.len(), "the other flows' programs stay where they are: {said:?}");
}

/// A flow that stays silent is asked by the beacon; one that goes on with it does not have its program.
#[test]
fn a_program_that_is_not_held_is_noticed() {
    const SECOND: u64 = 1_000_000;
    let (mut world, datapath, id) = World::libccp(&[v1::ToAgent::Ready { id: 0 }, create(1)]);
    let (flow, uid) = (FlowId(1), ProgramUid(5));
    let peer = world.hub.peer(id).unwrap();
    peer.install(uid, &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    peer.set_program(flow, uid, &[]).unwrap();
    let wire_uid = match inbox_v1(&datapath)[..] {
        [_, _, Sent::Change { uid, .. }] => uid,
        ref said => panic!("{said:?}"),
    };
    let report = |world: &mut World, uid, at_s| {
        send_v1(&datapath, &measure(1, uid, &[14_480, 20_000]));
        world.hub.receive(1000, at_s * SECOND, &mut world.changes);
    };
    let at = |world: &mut World, at_s| world.handle_timeout(id, &datapath, at_s * SECOND);
    assert_eq!(at(&mut world, 10), []);
    assert_eq!(at(&mut world, 12), []);
    assert_eq!(at(&mut world, 13), [Sent::Change { sid: 1, uid: 1, fields: 0 }], "the beacon asks");
    assert_eq!(at(&mut world, 60), [], "once: nothing was acknowledged so far");
    report(&mut world, 1, 60);
    assert_eq!(inbox_v1(&datapath), [Sent::Change { sid: 1, uid: wire_uid, fields: 0 }]);
    report(&mut world, 1, 60);
    assert_eq!(inbox_v1(&datapath), [], "that one was on its way");
    report(&mut world, 1, 62);
    let said = inbox_v1(&datapath);
    assert_eq!(said, beacons(), "whatever flow there is reports");
    assert_eq!(at(&mut world, 62), []);
    report(&mut world, 2, 64);
    let said = at(&mut world, 64);
    assert_eq!(said.len(), 10, "the whole table, and the flow: {said:?}");
    assert!(said[0] == Sent::Install(1) && said.contains(&Sent::Install(wire_uid)), "{said:?}");
    assert_eq!(said[9], Sent::Change { sid: 1, uid: wire_uid, fields: 0 });
    // It comes to nothing: the program is given up, and the flow is the agent's to start anew.
    world.events(id);
    assert_eq!(at(&mut world, 65), []);
    report(&mut world, 2, 67);
    let anew = FlowId(2);
    assert_eq!(world.events(id), [Event::Closed { flow }, Event::Created { flow: anew, info: info() }]);
    let refused = world.hub.peer(id).unwrap().set_program(anew, uid, &[]);
    assert_eq!(refused, Err(DatapathError::ProgramsFull { limit: 0 }));
}

/// A flow gets its program and fields again when the table is written anew, since its place is another one.
#[test]
fn a_taken_over_flow_keeps_its_fields_when_the_table_is_written_anew() {
    let program = ccplane_program::compile(PROGRAM).unwrap();
    let wire_uid = super::v1::wire_uid(ccplane_program::stock::lower(&program).unwrap().bytes());
    let (mut world, datapath, id) = World::libccp(&[measure(3, wire_uid, &[1])]);
    let gain = Field::Reg(program.reg("gain").unwrap());
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &program).unwrap();
    peer.set_program(FlowId(1), ProgramUid(1), &[(gain, 7), (Field::Cwnd, 20_000)]).unwrap();
    peer.update(FlowId(1), &[(gain, 9)]).unwrap();
    let said = inbox_v1(&datapath);
    assert_eq!(said[..1], [Sent::Change { sid: 3, uid: wire_uid, fields: 2 }], "nothing is wiped: {said:?}");
    send_v1(&datapath, &create(4));
    world.receive();
    let peer = world.hub.peer(id).unwrap();
    let other = ccplane_program::compile("(def (Report (x 0))) (when true (report))").unwrap();
    peer.install(ProgramUid(2), &other).unwrap();
    peer.set_program(FlowId(2), ProgramUid(2), &[]).unwrap();
    peer.update(FlowId(1), &[(gain, 11), (Field::Cwnd, 30_000)]).unwrap();
    peer.update(FlowId(1), &[(Field::Cwnd, 40_000)]).unwrap();
    assert_eq!(inbox_v1(&datapath), beacons(), "its fields wait for its program");
    world.handle_timeout(id, &datapath, 1);
    let said = world.handle_timeout(id, &datapath, 1 + LISTENED_US);
    assert_eq!(said.len(), 11, "{said:?}");
    assert_eq!(said[9], Sent::Change { sid: 3, uid: wire_uid, fields: 2 }, "its gain, its last window");
    assert!(matches!(said[10], Sent::Change { sid: 4, .. }));
    world.hub.peer(id).unwrap().update(FlowId(1), &[(Field::Cwnd, 50_000)]).unwrap();
    assert_eq!(inbox_v1(&datapath), [Sent::Update { sid: 3 }]);
}

/// A new flow is the first that a restarted agent hears of: it waits until the flows that run have been heard.
#[test]
fn running_flows_are_heard_before_programs_are_written() {
    let (mut world, datapath, id) = World::libccp(&[create(5)]);
    world.events(id);
    let program = ccplane_program::compile(PROGRAM).unwrap();
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &program).unwrap();
    peer.set_program(FlowId(1), ProgramUid(1), &[(Field::Cwnd, 20_000)]).unwrap();
    assert_eq!(peer.flows()[0].mode, Mode::NativeNoProgram);
    assert_eq!(inbox_v1(&datapath), beacons());
    send_v1(&datapath, &measure(2, 2, &[14_480, 20_000]));
    world.receive();
    let created = FlowId(2);
    assert!(matches!(world.events(id)[..], [Event::Created { flow, .. }] if flow == created));
    world.hub.peer(id).unwrap().set_program(created, ProgramUid(1), &[]).unwrap();

    let asked = |sid| Sent::Change { sid, uid: 1, fields: 0 };
    assert_eq!(world.handle_timeout(id, &datapath, 1), [1, 3, 4].map(asked), "lower numbers belong to flows");
    assert_eq!(world.handle_timeout(id, &datapath, LISTENED_US), []);
    let said = world.handle_timeout(id, &datapath, 1 + LISTENED_US);
    let wire_uid = super::v1::wire_uid(ccplane_program::stock::lower(&program).unwrap().bytes());
    assert_eq!(said.iter().filter(|said| **said == Sent::Install(wire_uid)).count(), 1, "{said:?}");
    let set = |sid, fields| Sent::Change { sid, uid: wire_uid, fields };
    assert_eq!(said[9..], [set(5, 1), set(2, 0)]);
    assert!(world.hub.peer(id).unwrap().flows().iter().all(|flow| flow.mode == Mode::Program));
    assert_eq!(world.handle_timeout(id, &datapath, 2 * LISTENED_US), [], "each is asked once");
}

/// Numbers that a datapath makes up cost no more than so many messages.
#[test]
fn a_high_number_has_few_others_asked() {
    let (mut world, datapath, id) = World::libccp(&[create(u32::MAX)]);
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    peer.set_program(FlowId(1), ProgramUid(1), &[]).unwrap();
    let mut said = world.handle_timeout(id, &datapath, 1);
    while world.hub.has_backlog() {
        said.extend(inbox_v1(&datapath));
        world.events(id);
    }
    said.extend(inbox_v1(&datapath));
    assert_eq!(said.len(), 9 + 1024);
}

/// The agent was restarted: the datapath knows nothing of it and goes on reporting.
#[test]
fn a_running_libccp_flow_is_taken_over() {
    let (mut world, datapath, id) = World::libccp(&[measure(3, 4242, &[1, 2])]);
    let flow = FlowId(1);
    assert!(matches!(world.events(id)[..], [Event::Created { flow: f, .. }] if f == flow));
    let peer = world.hub.peer(id).unwrap();
    peer.install(ProgramUid(1), &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    peer.set_program(flow, ProgramUid(1), &[]).unwrap();
    world.handle_timeout(id, &datapath, 1);
    world.handle_timeout(id, &datapath, 1 + LISTENED_US);
    assert_eq!(world.hub.peer(id).unwrap().flows()[0].mode, Mode::Program);
}

#[test]
fn a_datapath_that_vanishes_closes_its_flows() {
    let (mut world, datapath, id) = World::libccp(&[create(1)]);
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
    let (mut world, datapath, id) = World::greeted(0..=9);
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
    let values = [-5, 1 << 40].map(v2::Varint);
    let alone = v2::SingleReport { flow, program: good, seq: 5, at_us: 1235, values: (&values[..]).into() };
    send_v2(&datapath, &v2::ToAgent::Report(alone.clone()), 0);
    // Of a flow that nobody knows.
    send_v2(&datapath, &v2::ToAgent::Report(v2::SingleReport { flow: FlowId(71), ..alone }), 0);
    world.receive();
    assert_eq!(
        world.events(id),
        [
            Event::Created { flow, info: info() },
            Event::Report { flow, program: good, seq: 4, at_us: 1234, values: vec![-5].into() },
            Event::Report { flow, program: good, seq: 5, at_us: 1235, values: vec![-5, 1 << 40].into() }
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

/// Datapaths that decide on packets are told what flows start with, as far as they understand it.
#[test]
fn what_flows_start_with_is_said_to_those_who_understand_it() {
    let program = ccplane_program::compile("(hook send) (def (p 0)) (when true (:= Priority p))").unwrap();
    let p = Field::Reg(program.reg("p").unwrap());
    let (uid, flow) = (ProgramUid(1), FlowId(7));
    for (newest, knows) in [(v2::FIRST_MINOR, true), (v2::FIRST_MINOR - 1, false)] {
        let mut world = World::new(4);
        let datapath = world.datapath("dp");
        let v2::ToAgent::Hello(hello) = hello(0..=newest) else { panic!() };
        let features = hello.features.with(Features::SEND);
        send_v2(&datapath, &v2::ToAgent::Hello(v2::Hello { features, ..hello }), 0);
        let id = world.joined();
        send_v2(&datapath, &v2::ToAgent::Created { flow, info: info() }, 0);
        world.receive();
        let peer = world.hub.peer(id).unwrap();
        assert_eq!(peer.ensure_program(flow, uid, &[]), Err(DatapathError::NoProgram(uid)));
        peer.install(uid, &program).unwrap();
        assert_eq!(peer.set_first(uid, &[(p, 3)]).is_ok(), knows);
        assert_eq!(peer.ensure_program(FlowId(8), uid, &[]), Err(DatapathError::NoFlow(FlowId(8))));
        let bad = Field::Reg(95);
        assert_eq!(peer.ensure_program(flow, uid, &[(bad, 1)]), Err(DatapathError::BadField(bad)));
        assert_eq!(peer.ensure_program(flow, uid, &[(p, 3)]), Ok(true));
        peer.clear_first(Hook::Send);
        let said: Vec<String> = inbox_v2(&datapath).into_iter().map(|(_, m)| m).collect();
        let starts: &[&str] = match knows {
            true => &["Welcome", "Install", "SetFirst", "EnsureProgram", "ClearFirst"],
            false => &["Welcome", "Install", "SetProgram"],
        };
        let same = said.len() == starts.len() && said.iter().zip(starts).all(|(m, s)| m.starts_with(s));
        assert!(same, "{said:?}");
    }
}

/// A flow has the name that was said right before its start, and no other one.
#[test]
fn the_name_that_a_flow_asks_for_comes_before_its_start() {
    let (mut world, datapath, id) = World::greeted(0..=9);
    let [asks, silent, other] = [1, 2, 3].map(FlowId);
    send_v2(&datapath, &v2::ToAgent::Requested { flow: asks, name: "vegas" }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: asks, info: info() }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: silent, info: info() }, 0);
    send_v2(&datapath, &v2::ToAgent::Requested { flow: silent, name: "late" }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: other, info: info() }, 0);
    world.receive();
    let peer = world.hub.peer(id).unwrap();
    assert_eq!([asks, silent, other].map(|flow| peer.requested(flow)), [Some("vegas"), None, None]);
    send_v2(&datapath, &v2::ToAgent::Closed { flow: asks }, 0);
    world.receive();
    assert_eq!(world.hub.peer(id).unwrap().requested(asks), None);
}

/// A flow that started after the datapath listed its flows is not closed by that older list.
#[test]
fn a_flow_that_has_just_started_outlives_events_that_were_dropped() {
    let (mut world, datapath, id) = World::greeted(0..=9);
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

/// A list that the datapath made before it told of a flow's end costs nothing of what the flow has reported.
#[test]
fn the_last_report_of_a_flow_outlives_a_list_that_overtakes_it() {
    let mut world = World::new(4);
    let datapath = world.datapath("dp");
    send_v2(&datapath, &hello(0..=9), 0);
    let id = world.joined();
    let (told, lost) = (FlowId(1), FlowId(2));
    send_v2(&datapath, &v2::ToAgent::Created { flow: told, info: info() }, 0);
    send_v2(&datapath, &v2::ToAgent::Created { flow: lost, info: info() }, 0);
    let nothing = v2::ToAgent::FlowStats { last: true, flows: (&[]).into() };
    send_v2(&datapath, &nothing, 0);
    world.receive();
    assert_eq!(world.events(id).len(), 2, "both may have more to say");
    let report =
        v2::Report { flow: told, program: ProgramUid(1), seq: 1, at_us: 9, values: (&[-5_i64][..]).into() };
    send_v2(&datapath, &v2::ToAgent::Reports((&[report][..]).into()), 0);
    send_v2(&datapath, &v2::ToAgent::Closed { flow: told }, 0);
    send_v2(&datapath, &nothing, 0);
    world.receive();
    let reported =
        Event::Report { flow: told, program: ProgramUid(1), seq: 1, at_us: 9, values: vec![-5].into() };
    let ended = [told, lost].map(|flow| Event::Closed { flow });
    assert_eq!(world.events(id), [[reported].as_slice(), &ended].concat(), "of the other, the end was lost");
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
    for _ in 0..=2 * BURST {
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
    send_v1(&datapath, &v1::ToAgent::Ready { id: 0 });
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
    let said: Vec<u32> = said.collect();
    let (installs, flows) = said.split_at(said.len() - BURST as usize);
    assert_eq!(installs, [0; 2], "the beacon, the program");
    assert!(flows.iter().copied().eq(1..=BURST), "then each flow's program: {flows:?}");
}

#[test]
fn every_flow_of_a_v2_burst_gets_its_program() {
    let (mut world, datapath, id) = World::greeted(0..=0);
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

/// Commands that wait keep their order and are bounded; a message that its next one makes up for does not wait.
#[test]
fn what_waits_is_bounded_and_keeps_its_order() {
    let (mut world, datapath, id) = World::greeted(0..=0);
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
    let (mut world, datapath, id) = World::libccp(&[create(1)]);
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

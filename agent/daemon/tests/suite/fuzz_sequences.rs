//! Fuzz targets of sequences: datapaths of both protocols that come, speak, replay, contradict themselves and go, against the
//! hub and the agent's core; clients of the control socket, against its server. Whoever keeps to the rules is served on.

use ccplane_agent::control::{Answer, Request, Response, Server, ServerLimits};
use ccplane_agent::qlog::{Filter, Subscription};
use ccplane_channel::Wake;
use ccplane_channel::hub::{Change, Hub, HubOptions, PeerId};
use ccplane_contract::{Datapath, DatapathError, FlowId, FlowInfo};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_testing::fuzz::Fuzz;
use ccplane_wire::v1::{self, AddrOrder};
use ccplane_wire::v2::{self, ByeReason, Clock, Features};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an input that say one step: who, what, and two numbers.
const STEP_BYTES: usize = 4;
const MAX_STEPS: usize = 48;
/// Flows that a datapath of ours names.
const FLOWS: u64 = 4;
/// Programs and flows that a datapath of ours says it holds.
const MAX_PROGRAMS: u32 = 16;
const MAX_FLOWS: u32 = 8;
/// Longest that a turn of the agent's loop advances its clock, microseconds.
const TURN_US: u64 = 200_000;

fn info() -> FlowInfo {
    FlowInfo::example(1448, 14_480)
}

/// A datapath played by an input.
struct Rogue {
    socket: UnixDatagram,
    is_v2: bool,
    /// Requests and program numbers that the peer was sent and has not answered.
    asked: Vec<u32>,
    programs: Vec<u32>,
    last: Vec<u8>,
}

impl Rogue {
    fn hear(&mut self) {
        let mut buffer = [0; 70_000];
        while let Ok(len) = self.socket.recv(&mut buffer) {
            if self.is_v2 {
                for frame in v2::frames(&buffer[..len]).flatten() {
                    if let Ok(Some(v2::ToDatapath::Install { uid, .. })) = v2::ToDatapath::parse(frame) {
                        self.programs.push(uid.0);
                    }
                    self.asked.push(frame.request);
                }
            } else {
                for frame in v1::frames(&buffer[..len]).flatten() {
                    if let Ok(v1::ToDatapath::Install(install)) = v1::ToDatapath::parse(frame) {
                        self.programs.push(install.program_uid);
                    }
                }
            }
        }
    }

    fn say(&mut self, what: u8, a: u8, b: u8) {
        let mut bytes = Vec::new();
        let flow = FlowId(u64::from(a) % FLOWS);
        let program = self.programs.get(usize::from(b) % self.programs.len().max(1)).copied().unwrap_or(7);
        match what % 12 {
            // What it said last, again, with a byte changed, or cut off.
            9 => bytes.clone_from(&self.last),
            10 if !self.last.is_empty() => {
                bytes.clone_from(&self.last);
                let at = usize::from(a) % bytes.len();
                bytes[at] ^= b | 1;
            }
            11 => bytes.extend(&self.last[..usize::from(a).min(self.last.len())]),
            _ if self.is_v2 => {
                let request = if b.is_multiple_of(4) { u32::from(a) } else { self.asked.pop().unwrap_or(0) };
                let message = match what % 12 {
                    0 => hello("rogue"),
                    1 => v2::ToAgent::Created { flow, info: info() },
                    2 => v2::ToAgent::Closed { flow },
                    3 => v2::ToAgent::Installed { uid: ccplane_contract::ProgramUid(program) },
                    4 => v2::ToAgent::Done,
                    5 => v2::ToAgent::Refused(DatapathError::NoFlow(flow)),
                    6 => v2::ToAgent::Dropped { count: u64::from(b) },
                    7 => v2::ToAgent::Heartbeat { now_us: u64::from(a) << (b % 56) },
                    _ if b % 4 == 1 => v2::ToAgent::Bye { reason: ByeReason::Stopping, text: "so long" },
                    _ => v2::ToAgent::FlowStats { last: b.is_multiple_of(2), flows: (&[]).into() },
                };
                let _ = message.encode(request, &mut bytes);
            }
            _ => {
                let sid = flow.0 as u32;
                let values: Vec<u64> = (0..u64::from(b % 12)).map(|n| n << (a % 60)).collect();
                let message = match what % 12 {
                    0 => v1::ToAgent::Ready { id: u32::from(a) },
                    1..=3 => v1::ToAgent::Create(
                        v1::Create::from_info(sid, &info(), AddrOrder::Network, None).unwrap(),
                    ),
                    4 => v1::ToAgent::Close { sid },
                    _ => {
                        let values = values.as_slice().into();
                        v1::ToAgent::Measure(v1::Measure { sid, program_uid: program, values })
                    }
                };
                let _ = message.encode(&mut bytes);
            }
        }
        let _ = self.socket.send(&bytes);
        self.last = bytes;
    }
}

fn hello(name: &'static str) -> v2::ToAgent<'static> {
    v2::ToAgent::Hello(v2::Hello {
        minors: 0..=1,
        clock: Clock::Monotonic,
        features: Features::FULL_LANGUAGE,
        now_us: 1,
        max_programs: MAX_PROGRAMS,
        max_flows: MAX_FLOWS,
        kind: "quic",
        name,
        slots: (&[]).into(),
    })
}

/// The agent's side, and a datapath that keeps to the rules.
struct World {
    hub: Hub,
    core: Core,
    good: Rogue,
    /// The agent's name of the good one.
    good_id: PeerId,
    joined: Vec<PeerId>,
    now_us: u64,
    dir: tempfile::TempDir,
    sockets: u64,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let heartbeat_timeout = Duration::from_millis(500);
        let options =
            HubOptions { max_peers: 8, heartbeat_timeout, session: 1, rings: false, wake: Wake::Sleep };
        let hub = Hub::bind(&dir.path().join("ccp.sock"), options).unwrap();
        let reno: Vec<_> = ccplane_algs::all().into_iter().filter(|a| a.name() == "reno").collect();
        let catalog = Catalog::new(reno, 2).unwrap();
        let core = Core::new(catalog, Rules::all("reno"), Config::default()).unwrap();
        let good = socket(&dir, 0, true);
        let mut world = World {
            hub,
            core,
            good,
            good_id: PeerId(0),
            joined: Vec::new(),
            now_us: 1_000_000,
            dir,
            sockets: 1,
        };
        world.speak(&hello("good"), 0);
        world.turn(1);
        world.good_id = world.joined[0];
        world.serve_good();
        world.speak(&v2::ToAgent::Created { flow: FlowId(1), info: info() }, 0);
        world.turn(1);
        world.serve_good();
        world.turn(1);
        world.check_good();
        world
    }

    fn speak(&mut self, message: &v2::ToAgent<'_>, request: u32) {
        let mut bytes = Vec::new();
        message.encode(request, &mut bytes).unwrap();
        self.good.socket.send(&bytes).unwrap();
    }

    /// The good one answers all that it was asked.
    fn serve_good(&mut self) {
        let mut buffer = [0; 70_000];
        while let Ok(len) = self.good.socket.recv(&mut buffer) {
            for frame in v2::frames(&buffer[..len]).flatten() {
                let answer = match v2::ToDatapath::parse(frame).unwrap() {
                    Some(v2::ToDatapath::Install { uid, .. }) => v2::ToAgent::Installed { uid },
                    Some(v2::ToDatapath::Heartbeat { .. }) => v2::ToAgent::Heartbeat { now_us: self.now_us },
                    Some(v2::ToDatapath::Welcome(_)) | None => continue,
                    Some(v2::ToDatapath::Bye { .. }) => panic!("the agent has let the good one go"),
                    Some(_) => v2::ToAgent::Done,
                };
                let request = if matches!(answer, v2::ToAgent::Heartbeat { .. }) { 0 } else { frame.request };
                let mut bytes = Vec::new();
                answer.encode(request, &mut bytes).unwrap();
                // The queue is everyone's.
                while let Err(error) = self.good.socket.send(&bytes) {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    self.turn(1);
                }
            }
        }
    }

    fn rogue(&mut self, is_v2: bool) -> Rogue {
        self.sockets += 1;
        socket(&self.dir, self.sockets, is_v2)
    }

    /// Takes a turn as the agent's loop does.
    fn turn(&mut self, us: u64) {
        self.now_us += us;
        let mut changes = Vec::new();
        self.hub.receive(1000, self.now_us, &mut changes);
        let id = |peer: PeerId| DatapathId(peer.0 as u32);
        for change in changes {
            match change {
                Change::Joined(peer) => {
                    let Some(datapath) = self.hub.peer(peer) else { continue };
                    self.core.attach(id(peer), datapath.capabilities(), self.now_us).unwrap();
                    self.joined.push(peer);
                }
                Change::Left(peer) => {
                    if let Some(datapath) = self.hub.peer(peer) {
                        drive(&mut self.core, id(peer), datapath, self.now_us);
                    }
                    self.core.detach(id(peer));
                    self.hub.remove(peer);
                    self.joined.retain(|joined| *joined != peer);
                }
            }
        }
        for peer in &self.joined {
            if let Some(datapath) = self.hub.peer(*peer) {
                datapath.heartbeat();
                drive(&mut self.core, id(*peer), datapath, self.now_us);
            }
        }
    }

    /// The good one's flow is steered as ever.
    fn check_good(&self) {
        let flow = self.core.flow(DatapathId(self.good_id.0 as u32), FlowId(1)).unwrap();
        assert_eq!((flow.algorithm(), flow.native().is_none()), ("reno", true));
        assert!(self.joined.contains(&self.good_id));
    }

    /// Until only the good one is left.
    fn settle(&mut self) {
        for _ in 0..64 {
            self.turn(TURN_US);
            self.serve_good();
            if self.joined.len() == 1 && self.core.flows().count() == 1 {
                return;
            }
        }
        let flows: Vec<_> = self.core.flows().map(|f| (f.datapath(), f.flow())).collect();
        panic!("{:?} are left, with {flows:?}", self.joined);
    }
}

fn socket(dir: &tempfile::TempDir, number: u64, is_v2: bool) -> Rogue {
    let socket = UnixDatagram::bind(dir.path().join(format!("{number}"))).unwrap();
    socket.connect(dir.path().join("ccp.sock")).unwrap();
    socket.set_nonblocking(true).unwrap();
    Rogue { socket, is_v2, asked: Vec::new(), programs: Vec::new(), last: Vec::new() }
}

#[test]
fn a_good_datapath_is_served_whatever_rogues_say() {
    let mut world = World::new();
    let v1_life = [[0, 0, 0, 0], [0, 1, 1, 0], [4, 0, 0, 0], [0, 5, 1, 4], [4, 0, 0, 9], [0, 4, 1, 0]];
    let v2_life =
        [[2, 0, 0, 0], [4, 0, 0, 0], [2, 3, 0, 1], [2, 1, 1, 0], [4, 0, 0, 0], [2, 4, 0, 1], [2, 2, 1, 0]];
    let both = [v1_life.concat(), v2_life.concat()].concat();
    let target = Fuzz::new("datapath-sequences", env!("CARGO_MANIFEST_DIR"));
    let target = target.seeds([v1_life.concat(), v2_life.concat(), both]).max_bytes(MAX_STEPS * STEP_BYTES);
    target.part(2_000).run(|bytes| {
        let before = (world.core.counters(), world.hub.malformed());
        let mut rogues: [Option<Rogue>; 4] = [const { None }; 4];
        for step in bytes.chunks_exact(STEP_BYTES) {
            let [who, what, a, b] = *step else { unreachable!() };
            match who % 6 {
                4 => world.turn(u64::from(b) * 100),
                // It goes without a word.
                5 => rogues[usize::from(a % 4)] = None,
                who => {
                    let is_v2 = who >= 2;
                    let place = usize::from(who);
                    if rogues[place].is_none() {
                        rogues[place] = Some(world.rogue(is_v2));
                    }
                    let rogue = rogues[place].as_mut().unwrap();
                    rogue.hear();
                    rogue.say(what, a, b);
                }
            }
            let most = 1 + 2 * MAX_FLOWS as usize + 2 * FLOWS as usize;
            assert!(world.core.flows().count() <= 2 * most && world.joined.len() <= 1 + 8);
        }
        world.turn(1);
        world.serve_good();
        world.check_good();
        let after = (world.core.counters(), world.hub.malformed());
        drop(rogues);
        world.settle();
        world.check_good();
        let few = |n: u64| n.min(3);
        [
            after.0.flows_created - before.0.flows_created,
            after.0.flows_closed - before.0.flows_closed,
            after.0.reports - before.0.reports,
            after.0.stray_reports - before.0.stray_reports,
            after.1 - before.1,
        ]
        .into_iter()
        .fold(0, |way, n| way * 4 + few(n))
    });
}

/// Says that all is done, and streams nothing.
struct Toy;

impl Answer for Toy {
    fn answer(&self, _: Request) -> Pin<Box<dyn Future<Output = Response> + Send + '_>> {
        Box::pin(async { Response::Done })
    }

    fn events(&self, _: Filter) -> Pin<Box<dyn Future<Output = Result<Subscription, String>> + Send + '_>> {
        Box::pin(async { Err("no streams".to_owned()) })
    }
}

/// Clients that the toy's server serves at once.
const CLIENTS: usize = 3;

/// Returns for each line, in order, whether the answer is expected to be a success.
fn expected(said: &[u8]) -> Vec<bool> {
    let lines = said.split_inclusive(|byte| *byte == b'\n');
    let done = |line: &[u8]| {
        let request = serde_json::from_slice::<Request>(line);
        request.is_ok_and(|request| !matches!(request, Request::Qlog { .. }))
    };
    lines.map(done).collect()
}

fn answered(mut client: UnixStream) -> Vec<bool> {
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let done = |line: &str| match serde_json::from_str::<Response>(line).unwrap() {
        Response::Done => true,
        Response::Error { .. } => false,
        other => panic!("{other:?}"),
    };
    text.lines().map(done).collect()
}

#[test]
fn each_control_client_gets_its_answers_and_leaves_its_place_free() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = dir.path().join("control.sock");
    let served = path.clone();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limits = ServerLimits { clients: CLIENTS, timeout: Duration::from_secs(60) };
            let server = Server::bind(&served, limits).unwrap();
            ready.send(()).unwrap();
            server.serve(Arc::new(Toy)).await;
        });
    });
    is_ready.recv().unwrap();
    let requests: [&[u8]; 6] = [
        b"{\"request\":\"version\"}\n",
        b"{\"request\":\"qlog\",\"filter\":{}}\n",
        b"{\"request\":\"rollback\",\"slot\":3}\n{\"request\":\"stop\"}\n",
        b"{\"request\":\"push\",\"snapshot\":\"00\",\"force\":true}",
        b"\n",
        b"{\"request\":\"version\"",
    ];
    let seeds = [
        vec![0, 0, 0, 0, 1, 2, 0, 0],
        vec![0, 3, 0, 0, 0, 4, 0, 0],
        vec![0, 5, 0, 0, 2, 1, 0, 0, 0, 7, 5, 9],
    ];
    let target = Fuzz::new("control-sequences", env!("CARGO_MANIFEST_DIR")).seeds(seeds);
    target.max_bytes(MAX_STEPS * STEP_BYTES).part(1_000).run(|bytes| {
        let mut clients: Vec<(UnixStream, Vec<u8>)> = Vec::new();
        let mut way = 0;
        for step in bytes.chunks_exact(STEP_BYTES) {
            let [who, what, a, b] = *step else { unreachable!() };
            let place = usize::from(who) % 2;
            while clients.len() <= place {
                clients.push((UnixStream::connect(&path).unwrap(), Vec::new()));
            }
            let mut bytes = requests[usize::from(what) % requests.len()].to_vec();
            if what >= 128 {
                let at = usize::from(a) % bytes.len();
                bytes[at] = b;
            } else if what >= 64 {
                bytes.truncate(usize::from(a) % bytes.len());
            }
            let (client, said) = &mut clients[place];
            client.write_all(&bytes).unwrap();
            said.extend(bytes);
        }
        for (client, said) in clients {
            let expected = expected(&said);
            way = way * 64
                + (expected.len().min(7) * 8 + expected.iter().filter(|d| **d).count().min(7)) as u64;
            assert_eq!(answered(client), expected, "{:?}", String::from_utf8_lossy(&said));
        }
        // Places are free again, all of them.
        let next: Vec<_> = (0..CLIENTS).map(|_| served_once(&path)).collect();
        next.into_iter().for_each(|client| assert!(answered(client).is_empty()));
        way
    });
}

/// A client that was answered, once a place is free: sessions end a moment after their clients have left.
fn served_once(path: &std::path::Path) -> UnixStream {
    loop {
        let mut client = UnixStream::connect(path).unwrap();
        let _ = client.write_all(b"{\"request\":\"version\"}\n");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while client.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        if line == b"{\"response\":\"done\"}" {
            return client;
        }
        assert!(String::from_utf8_lossy(&line).contains("clients are being served"), "{line:?}");
    }
}

//! Helpers that the tests of QUIC share.
#![allow(dead_code)]

mod net;

pub use net::{Link, MemoryWire, Net};

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_algs::all;
use ccplane_contract::Datapath;
use ccplane_core::{Catalog, Config as CoreConfig, Core, DatapathId, Rules, drive};
use ccplane_engine::{Engine, EngineConfig, Handle, engine, engine_with_clock};
use ccplane_quic::files::{Done, FilesError, Folder, PROTOCOL, Server, Transfer, TransferStep, Writers};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, ConnectionError, ConnectionId, Endpoint, Event, UdpWire, Wire};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DATAPATH: DatapathId = DatapathId(0);
/// A heartbeat timeout for engines in virtual time, microseconds.
pub const HEARTBEAT_TIMEOUT_US: u64 = 500_000;
/// A heartbeat timeout for engines whose agent may have to wait for a processor, microseconds.
const LIVE_HEARTBEAT_TIMEOUT_US: u64 = 30_000_000;

pub fn engine_config() -> EngineConfig {
    EngineConfig { heartbeat_timeout_us: HEARTBEAT_TIMEOUT_US, ..EngineConfig::new("quic") }
}

pub fn live_engine() -> (Engine, Handle) {
    let config = EngineConfig { heartbeat_timeout_us: LIVE_HEARTBEAT_TIMEOUT_US, ..engine_config() };
    engine(config, Arc::new(|| {}))
}

/// Makes an engine in virtual time, with its clock in microseconds.
pub fn virtual_engine() -> (Engine, Handle, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&clock);
    let (engine, handle) =
        engine_with_clock(engine_config(), Arc::new(|| {}), Arc::new(move || read.load(Relaxed)));
    (engine, handle, clock)
}

/// An agent in the same process.
pub struct Agent {
    core: Core,
    pub handle: Handle,
}

impl Agent {
    pub fn new(handle: Handle, algorithm: &str) -> Agent {
        Agent::of(handle, all().into_iter().find(|a| a.name() == algorithm).unwrap())
    }

    pub fn of(handle: Handle, algorithm: Arc<dyn Algorithm>) -> Agent {
        let rules = Rules::all(algorithm.name());
        let catalog = Catalog::new(vec![algorithm], 1).unwrap();
        let mut core = Core::new(catalog, rules, CoreConfig::default()).unwrap();
        core.attach(DATAPATH, handle.capabilities(), 0).unwrap();
        Agent { core, handle }
    }

    pub fn turn(&mut self, now_us: u64) {
        drive(&mut self.core, DATAPATH, &mut self.handle, now_us);
    }
}

/// An algorithm that holds a window, and records its program's segment size, bytes.
#[derive(Clone, Default)]
pub struct Sizes(pub Arc<Mutex<Vec<i64>>>);

impl Algorithm for Sizes {
    fn name(&self) -> &'static str {
        "sizes"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        let source = "(def (Report (size 0)) (mss 1448))
            (when true (:= Report.size mss) (:= Cwnd (* mss 40)) (fallthrough))
            (when (> Micros 10000) (:= Micros 0) (report))";
        vec![ProgramSource { name: "main", source }]
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("main", &[("mss", info.mss_bytes.into())]);
        Box::new(self.clone())
    }
}

impl Flow for Sizes {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, _control: &mut Control) {
        self.0.lock().unwrap().extend(report.get("size"));
    }
}

/// Makes a folder with a file of random bytes; returns the file's hash, too.
pub fn folder_with(bytes: usize) -> (tempfile::TempDir, [u8; 32]) {
    let dir = tempfile::tempdir().unwrap();
    let mut content = vec![0; bytes];
    ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut content);
    std::fs::write(dir.path().join("file"), &content).unwrap();
    (dir, Sha256::digest(&content).into())
}

pub fn serve(path: &Path) -> Server {
    Server::new(Folder::open(path).unwrap(), Writers::default())
}

/// Makes a server's configuration and that of a client that trusts it.
pub fn pair() -> (ccplane_quic::quinn_proto::ServerConfig, ccplane_quic::quinn_proto::ClientConfig) {
    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    (tls::server(identity, PROTOCOL).unwrap(), tls::client(trust, PROTOCOL).unwrap())
}

/// Makes two endpoints on loopback, the first of them a server.
pub fn loopback(
    server_engine: Engine,
    client_engine: Engine,
    config: &Config,
) -> (Endpoint<UdpWire>, Endpoint<UdpWire>, ccplane_quic::quinn_proto::ClientConfig) {
    let bind = || UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (server_config, client_config) = pair();
    let mut server = Endpoint::new(bind(), server_engine, config.clone());
    server.serve(Some(server_config));
    (server, Endpoint::new(bind(), client_engine, config.clone()), client_config)
}

/// The outcome of a fetch.
#[derive(Debug)]
pub enum Ended {
    Done(Done),
    Failed(FilesError),
    Lost(ConnectionError),
}

impl Ended {
    pub fn sum(&self) -> Option<[u8; 32]> {
        if let Ended::Done(done) = self { Some(done.sum.0) } else { None }
    }
}

/// A client that fetches `file` over a connection.
pub struct Fetch {
    pub id: ConnectionId,
    transfer: Option<Transfer>,
    pub ended: Option<Ended>,
}

impl Fetch {
    pub fn new(id: ConnectionId) -> Fetch {
        Fetch { id, transfer: None, ended: None }
    }

    pub fn done_bytes(&self) -> u64 {
        self.transfer.as_ref().map_or(0, |t| t.progress().done_bytes)
    }

    /// Handles an event; true if there is more to do at once.
    pub fn on<W: Wire>(&mut self, endpoint: &mut Endpoint<W>, event: Option<Event>) -> bool {
        match event {
            Some(Event::Connected) => {
                let mut connection = endpoint.connection(self.id).unwrap();
                self.transfer = Some(Transfer::get(&mut connection, "file", std::io::sink()).unwrap());
            }
            Some(Event::Closed(reason)) if self.ended.is_none() => self.ended = Some(Ended::Lost(reason)),
            _ => {}
        }
        if self.ended.is_some() {
            return false;
        }
        let (Some(transfer), Some(mut connection)) = (&mut self.transfer, endpoint.connection(self.id))
        else {
            return false;
        };
        match transfer.advance(&mut connection) {
            Ok(TransferStep::More) => true,
            Ok(TransferStep::Waits) => false,
            Ok(TransferStep::Done(done)) => {
                connection.close(0, "done");
                self.ended = Some(Ended::Done(done));
                false
            }
            Err(e) => {
                self.ended = Some(Ended::Failed(e));
                false
            }
        }
    }
}

/// A transfer between two endpoints in virtual time.
pub struct World {
    pub net: Net,
    pub server: Endpoint<MemoryWire>,
    pub client: Endpoint<MemoryWire>,
    pub files: Server,
    pub fetch: Fetch,
    pub agent: Option<Agent>,
    /// The server's engine and its clock.
    pub engine: Engine,
    clock: Arc<AtomicU64>,
    began: Instant,
}

pub const SERVER: &str = "10.0.0.1:4433";
pub const CLIENT: &str = "10.0.0.2:5000";

impl World {
    /// Makes a client that fetches the folder's file from a server whose flows run `algorithm`.
    pub fn new(link: Link, seed: u64, algorithm: Option<&str>, folder: &Path) -> World {
        let of = |name| all().into_iter().find(|a| a.name() == name).unwrap();
        World::with(link, seed, algorithm.map(of), folder)
    }

    /// Makes a world as [`World::new`] does, with an algorithm of the test's own.
    pub fn with(link: Link, seed: u64, algorithm: Option<Arc<dyn Algorithm>>, folder: &Path) -> World {
        let net = Net::new(link, seed);
        let now = net.now();
        let config = Config { seed: Some([seed as u8; 32]), ..Config::default() };
        let (engine, handle, clock) = virtual_engine();
        let (client_engine, _, _) = virtual_engine();
        let (server_config, client_config) = pair();
        let mut server = Endpoint::at(net.wire(SERVER), engine.clone(), config.clone(), now);
        server.serve(Some(server_config));
        let mut client = Endpoint::at(net.wire(CLIENT), client_engine, config, now);
        let id = client.connect(client_config, SERVER.parse().unwrap(), "localhost").unwrap();
        World {
            net,
            server,
            client,
            files: serve(folder),
            fetch: Fetch::new(id),
            agent: algorithm.map(|algorithm| Agent::of(handle, algorithm)),
            engine,
            clock,
            began: now,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.net.now() - self.began
    }

    /// Runs until the fetch has ended, `until` returns true, or `longest` has passed.
    pub fn run(&mut self, longest: Duration, mut until: impl FnMut(&mut World) -> bool) {
        let end = self.net.now() + longest;
        while self.fetch.ended.is_none() && self.net.now() < end && !until(self) {
            self.step(end);
        }
    }

    fn step(&mut self, end: Instant) {
        let now = self.net.now();
        self.clock.store(self.engine.now_us(now), Relaxed);
        self.server.turn_at(now).unwrap();
        while let Some((id, event)) = self.server.poll() {
            self.files.on_event(&mut self.server, id, &event);
        }
        let mut busy = self.files.advance(&mut self.server);
        self.client.turn_at(now).unwrap();
        while let Some((id, event)) = self.client.poll() {
            if id == self.fetch.id {
                busy |= self.fetch.on(&mut self.client, Some(event));
            }
        }
        busy |= self.fetch.on(&mut self.client, None);
        if let Some(agent) = &mut self.agent {
            agent.turn(self.clock.load(Relaxed));
        }
        if !busy {
            let addresses = [self.server.wire().local_addr(), self.client.wire().local_addr()];
            let next = [self.server.deadline(), self.client.deadline(), self.net.next(&addresses)];
            let next = next.into_iter().flatten().min().unwrap_or(end);
            // The agent polls every 10 ms.
            self.net.set_now(next.clamp(now, (now + Duration::from_millis(10)).min(end)));
        }
    }
}

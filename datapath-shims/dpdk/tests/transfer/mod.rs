//! A file transfer from a server to a client at the two ends of a cable, disturbed while it runs.
#![allow(dead_code)]

mod faults;

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

pub use faults::Faults;

use crate::cable::{self, Cable};
use ccplane_contract::{Datapath, Mode};
use ccplane_core::{Catalog, Config as CoreConfig, Core, DatapathId, Rules, drive};
use ccplane_dpdk::net::Mac;
use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Idle, Memory, Port, PortOptions, WireOptions};
use ccplane_emulator::netns::Namespace;
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_quic::files::{Folder, PROTOCOL, Server, Transfer, TransferStep, Writers};
use ccplane_quic::quinn_proto::{ClientConfig, ServerConfig};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Endpoint, Event, UdpWire, Wire};
use ccplane_testing::wait_within;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

const ALGORITHM: &str = "cubic";
const DATAPATH: DatapathId = DatapathId(0);
/// Far longer than a transfer takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const SERVER: &str = "10.9.0.1";
pub const CLIENT: &str = "10.9.0.2";
pub const UDP_PORT: u16 = 4433;
/// The disturbance comes when this fraction of the file has arrived.
const UNDER_WAY_PART: u64 = 16;

/// DPDK's layer for all tests of this process; the first caller decides where packet buffers live.
pub fn eal(memory: Memory, memory_mib: u32) -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| Eal::start(&EalOptions { memory, memory_mib, ..EalOptions::default() }).unwrap())
}

/// Opens a port and makes a wire over each of its queues.
pub fn wires(kind: &str, address: &str, udp_port: u16, queues: u16) -> Vec<DpdkWire> {
    wires_beside(kind, address, udp_port, queues, Vec::new())
}

/// The same with neighbours that are not asked for.
pub fn wires_beside(
    kind: &str,
    address: &str,
    udp_port: u16,
    queues: u16,
    neighbours: Vec<(IpAddr, Mac)>,
) -> Vec<DpdkWire> {
    let (name, eal) = (format!("{kind}:veth0").parse().unwrap(), eal(Memory::Plain, 512));
    let port = Port::open(eal, &name, PortOptions { queues, ..PortOptions::default() }).unwrap();
    let options = WireOptions {
        addresses: vec![format!("{address}/24").parse().unwrap()],
        udp_port,
        neighbours,
        // Two poll loops, an agent and perhaps two processors.
        idle: Idle::Pause(Duration::from_micros(50)),
        ..WireOptions::default()
    };
    DpdkWire::over(port, &options).unwrap()
}

/// Makes a folder with a file of random bytes; returns the file's hash, too.
pub fn folder_with(bytes: usize) -> (tempfile::TempDir, [u8; 32]) {
    let folder = tempfile::tempdir().unwrap();
    let mut content = vec![0; bytes];
    ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut content);
    std::fs::write(folder.path().join("file"), &content).unwrap();
    (folder, Sha256::digest(&content).into())
}

/// A transfer to run.
pub struct Fetch<'a> {
    pub cable: &'a Cable,
    /// The wires of server and client: `kernel` or a kind of port.
    pub kinds: [&'a str; 2],
    pub folder: &'a Path,
    pub config: Config,
    /// Faults per thousand datagrams that arrive at either end.
    pub faults: Faults,
}

/// The outcome of a transfer.
#[derive(Debug)]
pub struct Outcome {
    pub fetched: Fetched,
    /// Whether the disturbance came before the whole file had arrived.
    pub in_time: bool,
    /// Time from the disturbance to the end.
    pub took: Duration,
    /// Time from the end of the disturbance until more data arrived, or all had ended.
    pub resumed: Duration,
    /// Time from the end until the server had closed the connection.
    pub let_go: Duration,
    /// Whether the server's flows ran programs.
    pub steered: bool,
    /// Packets that the server declared lost, and times that it found the path's MTU smaller.
    pub lost_packets: u64,
    pub black_holes: u64,
}

/// State that both ends and the test share.
#[derive(Default)]
struct Shared {
    arrived_bytes: AtomicU64,
    steered: AtomicBool,
    lost_packets: AtomicU64,
    black_holes: AtomicU64,
    /// The client has ended, and the server may end.
    ended: AtomicBool,
}

impl Fetch<'_> {
    /// Fetches the folder's file; calls `happens` when part of it has arrived.
    pub fn run(self, happens: impl FnOnce(&Cable)) -> Outcome {
        let Fetch { cable, kinds: [server, client], folder, config, faults } = self;
        for (end, kind, address) in [(&cable.a, server, SERVER), (&cable.b, client, CLIENT)] {
            if kind == "kernel" {
                cable::ip(end, &format!("address add {address}/24 dev veth0"));
            }
        }
        let identity = Identity::self_signed(&["localhost"]).unwrap();
        let trust = Trust::Pinned(identity.fingerprint());
        let tls = (tls::server(identity, PROTOCOL).unwrap(), tls::client(trust, PROTOCOL).unwrap());
        let total_bytes = std::fs::metadata(folder.join("file")).unwrap().len();
        let shared = Shared::default();
        let serve =
            Serve { tls: tls.0, config: config.clone(), folder, faults: faults.clone(), shared: &shared };
        let client_work = Client { tls: tls.1, config, faults, shared: &shared };
        let (fetched, in_time, took, resumed, let_go) = thread::scope(|scope| {
            let serving = scope.spawn(|| at(&cable.a, server, SERVER, UDP_PORT, serve));
            let fetching = scope.spawn(|| at(&cable.b, client, CLIENT, 0, client_work));
            let arrived_bytes = || shared.arrived_bytes.load(Relaxed);
            wait_within(PATIENCE, "the transfer is under way", || {
                (arrived_bytes() >= total_bytes / UNDER_WAY_PART || fetching.is_finished()).then_some(())
            });
            let happened = Instant::now();
            happens(cable);
            let (over, arrived) = (Instant::now(), arrived_bytes());
            wait_within(PATIENCE, "more of the file", || {
                (arrived_bytes() > arrived || fetching.is_finished()).then_some(())
            });
            let (in_time, resumed) = (arrived < total_bytes, over.elapsed());
            let (fetched, ended) = fetching.join().unwrap();
            shared.ended.store(true, Relaxed);
            let gone = serving.join().unwrap();
            (
                fetched,
                in_time,
                ended.saturating_duration_since(happened),
                resumed,
                gone.saturating_duration_since(ended),
            )
        });
        Outcome {
            fetched,
            in_time,
            took,
            resumed,
            let_go,
            steered: shared.steered.into_inner(),
            lost_packets: shared.lost_packets.into_inner(),
            black_holes: shared.black_holes.into_inner(),
        }
    }
}

/// Serves a folder on several queues of one port, each with a thread and an engine of its own.
///
/// The kernel at the other end fetches the file over another socket each time, until all queues have served it or
/// `most` times. Returns whether each queue has, and the fetched hashes.
pub fn on_queues(cable: &Cable, queues: u16, folder: &Path, most: usize) -> (Vec<bool>, Vec<Fetched>) {
    cable::ip(&cable.b, &format!("address add {CLIENT}/24 dev veth0"));
    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    let tls = (tls::server(identity, PROTOCOL).unwrap(), tls::client(trust, PROTOCOL).unwrap());
    let all: Vec<Shared> = (0..queues).map(|_| Shared::default()).collect();
    let wires = cable.a.run(|| wires("af_packet", SERVER, UDP_PORT, queues)).unwrap();
    let fetched = thread::scope(|scope| {
        for (wire, shared) in wires.into_iter().zip(&all) {
            let (tls, config, faults) = (tls.0.clone(), Config::default(), Faults::default());
            let serve = Serve { tls, config, folder, faults, shared };
            scope.spawn(|| cable.a.run(|| serve.over(wire)).unwrap());
        }
        let mut fetched = Vec::new();
        while fetched.len() < most && !all.iter().all(|shared| shared.steered.load(Relaxed)) {
            let (config, faults, shared) = (Config::default(), Faults::default(), &Shared::default());
            let client = Client { tls: tls.1.clone(), config, faults, shared };
            fetched.push(at(&cable.b, "kernel", CLIENT, 0, client).0);
        }
        all.iter().for_each(|shared| shared.ended.store(true, Relaxed));
        fetched
    });
    (all.into_iter().map(|shared| shared.steered.into_inner()).collect(), fetched)
}

/// The hash of the received file, or why the transfer failed.
pub type Fetched = Result<[u8; 32], String>;

/// The work of one end, over any wire.
trait Work {
    type Done: Send;
    fn over(self, wire: impl Wire) -> Self::Done;
}

/// Runs one end of the cable, over DPDK or a kernel socket.
fn at<W: Work + Send>(end: &Namespace, kind: &str, address: &str, udp_port: u16, work: W) -> W::Done {
    let run = || match kind {
        "kernel" => work.over(UdpWire::bind(format!("{address}:{udp_port}").parse().unwrap()).unwrap()),
        kind => work.over(wires(kind, address, udp_port, 1).remove(0)),
    };
    end.run(run).unwrap()
}

/// Serves a folder until the client has ended and no connection is left; returns the time of that.
struct Serve<'a> {
    tls: ServerConfig,
    config: Config,
    folder: &'a Path,
    faults: Faults,
    shared: &'a Shared,
}

impl Work for Serve<'_> {
    type Done = Instant;

    fn over(self, wire: impl Wire) -> Instant {
        let (engine, handle) = engine(EngineConfig::new("dpdk"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(self.faults.over(wire, 1), engine, self.config);
        endpoint.serve(Some(self.tls));
        let mut files = Server::new(Folder::open(self.folder).unwrap(), Writers::default());
        let (mut agent, began) = (Agent::new(handle), Instant::now());
        while !(self.shared.ended.load(Relaxed) && endpoint.is_empty()) && began.elapsed() < 2 * PATIENCE {
            endpoint.turn(Duration::from_millis(1)).unwrap();
            while let Some((id, event)) = endpoint.poll() {
                files.on_event(&mut endpoint, id, &event);
            }
            files.advance(&mut endpoint);
            agent.turn(began.elapsed().as_micros() as u64);
            let steered = agent.handle.flows().iter().any(|flow| flow.mode == Mode::Program);
            self.shared.steered.fetch_or(steered, Relaxed);
            for id in endpoint.connections() {
                let path = endpoint.connection(id).unwrap().stats().path;
                self.shared.lost_packets.fetch_max(path.lost_packets, Relaxed);
                self.shared.black_holes.fetch_max(path.black_holes_detected, Relaxed);
            }
        }
        Instant::now()
    }
}

/// Fetches the folder's file; returns its hash, and the time when all had arrived.
struct Client<'a> {
    tls: ClientConfig,
    config: Config,
    faults: Faults,
    shared: &'a Shared,
}

impl Work for Client<'_> {
    type Done = (Fetched, Instant);

    fn over(self, wire: impl Wire) -> Self::Done {
        let fetched = self.fetch(wire);
        (fetched, Instant::now())
    }
}

impl Client<'_> {
    fn fetch(self, wire: impl Wire) -> Fetched {
        let (engine, _datapath) = engine(EngineConfig::new("dpdk"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(self.faults.over(wire, 2), engine, self.config);
        let to = format!("{SERVER}:{UDP_PORT}").parse().unwrap();
        let id = endpoint.connect(self.tls, to, "localhost").unwrap();
        let (mut transfer, end) = (None, Instant::now() + PATIENCE);
        while Instant::now() < end {
            endpoint.turn(Duration::from_millis(1)).map_err(|e| e.to_string())?;
            while let Some((_, event)) = endpoint.poll() {
                match event {
                    Event::Connected => {
                        let mut connection = endpoint.connection(id).unwrap();
                        transfer = Some(Transfer::get(&mut connection, "file", std::io::sink()).unwrap());
                    }
                    Event::Closed(reason) => return Err(reason.to_string()),
                    Event::Stream(_) => {}
                }
            }
            let (Some(transfer), Some(mut connection)) = (&mut transfer, endpoint.connection(id)) else {
                continue;
            };
            loop {
                let step = transfer.advance(&mut connection).map_err(|e| e.to_string())?;
                self.shared.arrived_bytes.store(transfer.progress().done_bytes, Relaxed);
                match step {
                    TransferStep::More => {}
                    TransferStep::Waits => break,
                    TransferStep::Done(done) => {
                        connection.close(0, "done");
                        endpoint.turn(Duration::ZERO).map_err(|e| e.to_string())?;
                        return Ok(done.sum.0);
                    }
                }
            }
        }
        Err(format!("not within {PATIENCE:?}"))
    }
}

/// Runs an agent on the server's thread.
struct Agent {
    core: Core,
    handle: Handle,
}

impl Agent {
    fn new(handle: Handle) -> Agent {
        let algorithms = ccplane_algs::all().into_iter().filter(|a| a.name() == ALGORITHM).collect();
        let catalog = Catalog::new(algorithms, 1).unwrap();
        let mut core = Core::new(catalog, Rules::all(ALGORITHM), CoreConfig::default()).unwrap();
        core.attach(DATAPATH, handle.capabilities(), 0).unwrap();
        Agent { core, handle }
    }

    fn turn(&mut self, now_us: u64) {
        drive(&mut self.core, DATAPATH, &mut self.handle, now_us);
    }
}

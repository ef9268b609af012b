//! Files over QUIC over DPDK: at both ends, and at one with the kernel's sockets at the other; steered by an agent's program.
#![allow(clippy::unwrap_used)]

mod cable;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cable::Cable;
use ccplane_contract::{Datapath, Mode};
use ccplane_core::{Catalog, Config as CoreConfig, Core, DatapathId, Rules, drive};
use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Idle, Memory, Port, PortOptions, WireOptions};
use ccplane_emulator::netns::Namespace;
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_quic::files::{Folder, PROTOCOL, Server, Step, Transfer};
use ccplane_quic::quinn_proto::{ClientConfig, ServerConfig};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Endpoint, Event, UdpWire, Wire};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

const ALGORITHM: &str = "cubic";
const DATAPATH: DatapathId = DatapathId(0);
const FILE_BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
const SERVER: &str = "10.9.0.1";
const CLIENT: &str = "10.9.0.2";
const UDP_PORT: u16 = 4433;

/// One for all tests of this process.
fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        Eal::start(&EalOptions { memory: Memory::Plain, memory_mib: 256, ..EalOptions::default() }).unwrap()
    })
}

fn wire(kind: &str, address: &str, udp_port: u16) -> DpdkWire {
    let port = Port::open(eal(), &format!("{kind}:veth0").parse().unwrap(), PortOptions::default()).unwrap();
    let options = WireOptions {
        addresses: vec![format!("{address}/24").parse().unwrap()],
        udp_port,
        // Two poll loops, an agent and perhaps two processors.
        idle: Idle::Pause(Duration::from_micros(50)),
        ..WireOptions::default()
    };
    DpdkWire::over(port, &options).unwrap().remove(0)
}

/// What one end does, over whichever wire.
trait Work {
    type Done: Send;
    fn over(self, wire: impl Wire) -> Self::Done;
}

/// At one end of the cable, over DPDK or over a kernel socket.
fn at<W: Work + Send>(end: &Namespace, kind: &str, address: &str, udp_port: u16, work: W) -> W::Done {
    let run = || match kind {
        "kernel" => work.over(UdpWire::bind(format!("{address}:{udp_port}").parse().unwrap()).unwrap()),
        kind => work.over(wire(kind, address, udp_port)),
    };
    end.run(run).unwrap()
}

/// Serves a folder until it is told to stop; true if flows ran programs.
struct Serve<'a> {
    config: ServerConfig,
    folder: &'a std::path::Path,
    stop: &'a AtomicBool,
}

impl Work for Serve<'_> {
    type Done = bool;

    fn over(self, wire: impl Wire) -> bool {
        let (engine, handle) = engine(EngineConfig::new("dpdk"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(wire, engine, Config::default());
        endpoint.serve(Some(self.config));
        let mut files = Server::new(Folder::open(self.folder, true).unwrap());
        let (mut agent, began, mut steered) = (Agent::new(handle), Instant::now(), false);
        while !self.stop.load(Ordering::Relaxed) {
            endpoint.turn(Duration::from_millis(1)).unwrap();
            while let Some((id, event)) = endpoint.poll() {
                files.on_event(&mut endpoint, id, &event);
            }
            files.advance(&mut endpoint);
            agent.turn(began.elapsed().as_micros() as u64);
            steered |= agent.handle.flows().iter().any(|flow| flow.mode == Mode::Program);
        }
        steered
    }
}

/// Fetches the folder's file; its hash as it arrived.
struct Fetch {
    config: ClientConfig,
}

impl Work for Fetch {
    type Done = Result<[u8; 32], String>;

    fn over(self, wire: impl Wire) -> Self::Done {
        let (engine, _datapath) = engine(EngineConfig::new("dpdk"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(wire, engine, Config::default());
        let to = format!("{SERVER}:{UDP_PORT}").parse().unwrap();
        let id = endpoint.connect(self.config, to, "localhost").unwrap();
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
                    _ => {}
                }
            }
            let (Some(transfer), Some(mut connection)) = (&mut transfer, endpoint.connection(id)) else {
                continue;
            };
            loop {
                match transfer.advance(&mut connection).map_err(|e| e.to_string())? {
                    Step::More => {}
                    Step::Waits => break,
                    Step::Done(done) => {
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

/// An agent on the server's thread.
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

#[test]
fn files_arrive_whole_over_dpdk_and_between_dpdk_and_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let mut content = vec![0; FILE_BYTES];
    ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut content);
    std::fs::write(folder.path().join("file"), &content).unwrap();
    let sum: [u8; 32] = Sha256::digest(&content).into();
    for (server, client) in
        [("af_packet", "af_packet"), ("af_xdp", "af_xdp"), ("kernel", "af_packet"), ("af_xdp", "kernel")]
    {
        // DPDK 22.11 gives an interface back to af_xdp only when the process ends: each pair has its own.
        let Some(cable) = Cable::new(&format!("quic-{server}-{client}")) else { return };
        for (end, kind, address) in [(&cable.a, server, SERVER), (&cable.b, client, CLIENT)] {
            if kind == "kernel" {
                cable::ip(end, &format!("address add {address}/24 dev veth0"));
            }
        }
        let identity = Identity::self_signed(&["localhost"]).unwrap();
        let trust = Trust::Pinned(identity.fingerprint());
        let (config, client_config) =
            (tls::server(identity, PROTOCOL).unwrap(), tls::client(trust, PROTOCOL).unwrap());
        let stop = AtomicBool::new(false);
        let (steered, fetched) = thread::scope(|scope| {
            let serve = Serve { config, folder: folder.path(), stop: &stop };
            let serving = scope.spawn(|| at(&cable.a, server, SERVER, UDP_PORT, serve));
            let fetched = at(&cable.b, client, CLIENT, 0, Fetch { config: client_config });
            stop.store(true, Ordering::Relaxed);
            (serving.join().unwrap(), fetched)
        });
        assert_eq!(fetched, Ok(sum), "{server} to {client}");
        assert!(steered, "{server} to {client}: no program ran");
    }
}

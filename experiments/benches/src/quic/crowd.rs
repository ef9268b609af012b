//! `quic.connections`: a thousand connections of one endpoint at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::sink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_algs::RENO;
use ccplane_contract::{Datapath, Event as Happened, Field, FlowId, ProgramUid};
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_quic::files::{Folder, PROTOCOL, Server, Sha256Sum, Transfer, TransferStep, Writers};
use ccplane_quic::quinn_proto::ServerConfig;
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, ConnectionId, Endpoint, Event, UdpWire, Wire};

use super::flow::{compile, reno_fields, socket};
use super::missing;
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::proof::{self, Proof, Unproven};

const CONNECTIONS: usize = 1000;
/// The file that each connection fetches, bytes.
const FILE_BYTES: usize = 256 << 10;
const RUNS: usize = 3;
/// The time that a run may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The names of the file that each fetches, and of one that holds as much as all of them.
const EACH: &str = "each";
const ALL: &str = "all";
/// Events that the agent takes in one go.
const EVENTS: usize = 4096;
const UID: ProgramUid = ProgramUid(1);

/// Measures `quic.connections`: the throughput of many connections at once beside one.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let folder = context("make a folder", tempfile::tempdir())?;
    let all_bytes = CONNECTIONS * FILE_BYTES;
    for (name, bytes) in [(EACH, FILE_BYTES), (ALL, all_bytes)] {
        let content: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
        context("write a file", std::fs::write(folder.path().join(name), content))?;
    }
    // Both ends of a transfer compute its checksum; a single transfer gives the expected one.
    let expected = fetch(folder.path(), EACH, 1)?.sums;
    let (mut right, mut seconds, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let one = fetch(folder.path(), ALL, 1)?;
        let crowd = fetch(folder.path(), EACH, CONNECTIONS)?;
        let sound = crowd.sums.iter().filter(|sum| expected.contains(sum)).count();
        proofs.push(crowd.proof(CONNECTIONS)?.and(&one.proof(1)?));
        proofs.push(Proof::exactly("right hashes", sound as u64, CONNECTIONS as u64)?);
        right.push((sound as f64, CONNECTIONS as f64));
        seconds.push((crowd.seconds, one.seconds));
    }
    let proof = proof::all(&proofs)?;
    Ok(vec![
        Figure::paired("quic.connections", "connections", "those that were made at once", &right, &proof)
            .with_note(format!("that moved {FILE_BYTES} bytes with the right hash, all under the program")),
        Figure::paired("quic.connections.time", "s", "one connection that moves as much", &seconds, &proof).with_note(
            format!("{all_bytes} bytes, from the first request, with all connected, to the last hash; one thread has both ends"),
        ),
    ])
}

/// The results of all transfers of a run.
struct FinishedTransfers {
    sums: Vec<Sha256Sum>,
    seconds: f64,
    /// Flows that the agent gave the program, and those that have reported from it.
    steered: [usize; 2],
}

impl FinishedTransfers {
    /// Proves that all flows ran the program.
    fn proof(&self, flows: usize) -> Result<Proof, Unproven> {
        let [given, reported] = self.steered;
        let given = Proof::exactly("flows that were given the program", given as u64, flows as u64)?;
        Ok(given.and(&Proof::exactly("flows whose program reported", reported as u64, flows as u64)?))
    }
}

/// So many connections of one endpoint to another; once all are there, each fetches `name`.
fn fetch(folder: &Path, name: &str, connections: usize) -> Result<FinishedTransfers, BenchError> {
    let identity = Identity::self_signed(&["localhost"]).map_err(missing)?;
    let trust = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).map_err(missing)?;
    let mut ends = Ends::new(folder, tls::server(identity, PROTOCOL).map_err(missing)?)?;
    let to = ends.server.wire().local_addr();
    for _ in 0..connections {
        ends.client.connect(trust.clone(), to, "localhost").map_err(missing)?;
    }
    let mut connected = Vec::new();
    while connected.len() < connections {
        ends.turn(Duration::from_millis(1))?;
        while let Some((id, event)) = ends.client.poll() {
            match event {
                Event::Connected => connected.push(id),
                Event::Closed(reason) => return Err(missing(reason)),
                Event::Stream(_) => {}
            }
        }
    }
    let began = Instant::now();
    let mut transfers = BTreeMap::new();
    for id in &connected {
        let Some(mut connection) = ends.client.connection(*id) else { continue };
        transfers.insert(*id, Transfer::get(&mut connection, name, sink()).map_err(missing)?);
    }
    // Those that can go on.
    let mut ready: BTreeSet<ConnectionId> = connected.into_iter().collect();
    let mut sums = Vec::new();
    while sums.len() < connections {
        for id in std::mem::take(&mut ready) {
            let Some(transfer) = transfers.get_mut(&id) else { continue };
            let Some(mut connection) = ends.client.connection(id) else { continue };
            match transfer.advance(&mut connection).map_err(missing)? {
                TransferStep::More => drop(ready.insert(id)),
                TransferStep::Waits => {}
                TransferStep::Done(done) => {
                    sums.push(done.sum);
                    transfers.remove(&id);
                }
            }
        }
        ends.turn(if ready.is_empty() { Duration::from_millis(1) } else { Duration::ZERO })?;
        while let Some((id, event)) = ends.client.poll() {
            if let Event::Closed(reason) = event {
                return Err(missing(reason));
            }
            ready.insert(id);
        }
    }
    Ok(FinishedTransfers {
        sums,
        seconds: began.elapsed().as_secs_f64(),
        steered: [ends.steered.len(), ends.reported.len()],
    })
}

/// Both endpoints, and the agent of the server's, on one thread.
struct Ends {
    server: Endpoint<UdpWire>,
    client: Endpoint<UdpWire>,
    files: Server,
    agent: Handle,
    fields: Vec<(Field, i64)>,
    steered: BTreeSet<FlowId>,
    reported: BTreeSet<FlowId>,
    events: Vec<Happened>,
    /// The deadline of the run.
    until: Instant,
}

impl Ends {
    fn new(folder: &Path, tls: ServerConfig) -> Result<Ends, BenchError> {
        let config = Config { idle_timeout: PATIENCE, ..Config::default() };
        let new = || {
            engine(
                EngineConfig { heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("quic") },
                Arc::new(|| {}),
            )
        };
        let ((server_engine, mut agent), (client_engine, _)) = (new(), new());
        let reno = compile(RENO.programs()[0].source)?;
        agent.install(UID, &reno)?;
        let mut server = Endpoint::new(socket()?, server_engine, config.clone());
        server.serve(Some(tls));
        Ok(Ends {
            server,
            client: Endpoint::new(socket()?, client_engine, config),
            files: Server::new(context("open a folder", Folder::open(folder))?, Writers::default()),
            agent,
            fields: reno_fields(&reno),
            steered: BTreeSet::new(),
            reported: BTreeSet::new(),
            events: Vec::new(),
            until: Instant::now() + PATIENCE,
        })
    }

    /// Processes all pending events, waiting for them at most `longest`.
    fn turn(&mut self, longest: Duration) -> Result<(), BenchError> {
        if Instant::now() > self.until {
            return Err(missing(format!("not over after {PATIENCE:?}")));
        }
        context("turn", self.server.turn(Duration::ZERO))?;
        while let Some((id, event)) = self.server.poll() {
            self.files.on_event(&mut self.server, id, &event);
        }
        let busy = self.files.advance(&mut self.server);
        self.events.clear();
        self.agent.poll(EVENTS, &mut self.events);
        for event in &self.events {
            match event {
                Happened::Created { flow, .. } => {
                    self.agent.set_program(*flow, UID, &self.fields)?;
                    self.steered.insert(*flow);
                }
                Happened::Report { flow, program: UID, .. } => drop(self.reported.insert(*flow)),
                _ => {}
            }
        }
        context("turn", self.client.turn(if busy { Duration::ZERO } else { longest }))
    }
}

//! `quic.memory`: what a connection of ours takes beyond one of stock quinn-proto, over a network in memory and in virtual
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_algs::RENO;
use ccplane_contract::{Datapath, Event as Happened, ProgramUid};
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_quic::quinn_proto::{ClientConfig, Dir, StreamId};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, ConnectionId, Endpoint};

use super::missing;
use super::network::{MemoryWire, Network, Stock};
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::proof::{self, Proof, SteeredBy, Witness};

const CONNECTIONS: usize = 1000;
/// Those that send at the same time.
const AT_ONCE: usize = 100;
/// The bytes that each connection sends in a turn: one packet.
const TURN_BYTES: usize = 1000;
/// The bytes that each connection sends in all: more packets than are time-stamped in a round trip.
const SENT_BYTES: usize = 450 * TURN_BYTES;
/// A program with Reno's registers that does not limit sending, so that both contenders send the same.
const CWND: &str = "(when true (:= Cwnd 4000000) (fallthrough))";
/// Of the network, each way.
const DELAY: Duration = Duration::from_millis(200);
const TURN: Duration = Duration::from_millis(1);
/// The time that connections may take to send, virtual time.
const PATIENCE: Duration = Duration::from_secs(60);
const PROTOCOL: &[u8] = b"ccplane-bench";
const UID: ProgramUid = ProgramUid(1);
const ROUNDS: usize = 3;

/// Measures `quic.memory`: the memory of a connection beyond quinn's own.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let (mut above, mut pairs, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (stock, stock_proof) = bytes_each(&mut |network, _| Ok(Box::new(StockClient::new(network))))?;
        let (ours, proof) = bytes_each(&mut |network, at| Ok(Box::new(OurClient::new(network, at)?)))?;
        above.push((ours - stock, stock));
        pairs.push((ours, stock));
        proofs.push(proof.and(&stock_proof));
    }
    let proof = proof::all(&proofs)?;
    let mut figures = vec![
        Figure::paired("quic.memory", "B", "stock quinn-proto's own", &above, &proof).with_note(format!(
            "beyond quinn's own, each of {CONNECTIONS} connections that have sent {SENT_BYTES} bytes under a program; \
             wanted: at most 16384"
        )),
        Figure::paired("quic.memory.connection", "B", "stock quinn-proto", &pairs, &proof)
            .with_note("with what its endpoint and the receiver at the other end keep of it"),
    ];
    figures.extend(super::slow::figures()?);
    Ok(figures)
}

/// The client side of a contender.
trait Client {
    fn connect(&mut self, tls: ClientConfig, now: Instant) -> Result<(), BenchError>;
    /// Processes all events that are due.
    fn turn(&mut self, now: Instant) -> Result<(), BenchError>;
    /// Has the `n`th connection send as much as fits, and returns how many bytes that was.
    fn send(&mut self, n: usize, data: &[u8]) -> Result<usize, BenchError>;
    /// Proves that its connections were steered as intended.
    fn prove(&mut self) -> Result<Proof, BenchError>;
}

type Make<'a> = dyn FnMut(&Network, Instant) -> Result<Box<dyn Client>, BenchError> + 'a;

/// Measures the memory of a connection that has sent, both ends included, bytes.
fn bytes_each(make: &mut Make<'_>) -> Result<(f64, Proof), BenchError> {
    let mut now = Instant::now();
    let network = Network::new(DELAY);
    let identity = Identity::self_signed(&["localhost"]).map_err(missing)?;
    let trust = Trust::Pinned(identity.fingerprint());
    let trust = tls::client(trust, PROTOCOL).map_err(missing)?;
    let mut server = Stock::server(&network, tls::server(identity, PROTOCOL).map_err(missing)?);
    let mut client = make(&network, now)?;
    let before = in_use_bytes()?;
    let data = vec![7; SENT_BYTES];
    for first in (0..CONNECTIONS).step_by(AT_ONCE) {
        for _ in 0..AT_ONCE {
            client.connect(trust.clone(), now)?;
        }
        let (mut left, until) = ([SENT_BYTES; AT_ONCE], now + PATIENCE);
        let expected = (first + AT_ONCE) as u64 * SENT_BYTES as u64;
        while server.received_bytes() < expected {
            if now > until {
                return Err(missing("connections in memory do not come to their end"));
            }
            now += TURN;
            network.set_now(now);
            server.turn(now)?;
            client.turn(now)?;
            for (n, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
                *left -= client.send(first + n, &data[..TURN_BYTES.min(*left)])?;
            }
        }
    }
    // The last acknowledgements.
    for _ in 0..4 * DELAY.as_millis() / TURN.as_millis() {
        now += TURN;
        network.set_now(now);
        server.turn(now)?;
        client.turn(now)?;
    }
    let each = (in_use_bytes()? as f64 - before as f64) / CONNECTIONS as f64;
    let moved = Proof::exactly("bytes received", server.received_bytes(), (CONNECTIONS * SENT_BYTES) as u64)?;
    Ok((each, moved.and(&client.prove()?)))
}

/// A client of stock quinn-proto.
struct StockClient {
    stock: Stock,
    streams: Vec<Option<StreamId>>,
}

impl StockClient {
    fn new(network: &Network) -> StockClient {
        StockClient { stock: Stock::client(network), streams: Vec::new() }
    }
}

impl Client for StockClient {
    fn connect(&mut self, tls: ClientConfig, now: Instant) -> Result<(), BenchError> {
        self.streams.push(None);
        self.stock.connect(tls, now)
    }

    fn turn(&mut self, now: Instant) -> Result<(), BenchError> {
        self.stock.turn(now)
    }

    fn send(&mut self, n: usize, data: &[u8]) -> Result<usize, BenchError> {
        let Some(connection) = self.stock.connection(n) else { return Err(missing("a connection is lost")) };
        let stream = &mut self.streams[n];
        if stream.is_none() && !connection.is_handshaking() {
            *stream = connection.streams().open(Dir::Uni);
        }
        let Some(stream) = *stream else { return Ok(0) };
        Ok(connection.send_stream(stream).write(data).unwrap_or(0))
    }

    fn prove(&mut self) -> Result<Proof, BenchError> {
        let mut acks = 0;
        for n in 0..CONNECTIONS {
            acks += self.stock.connection(n).map_or(0, |connection| connection.stats().frame_rx.acks);
        }
        Ok(Proof::counted("ACK frames", acks)?)
    }
}

/// Our driver, with an agent whose program runs on every flow.
struct OurClient {
    endpoint: Endpoint<MemoryWire>,
    agent: Handle,
    events: Vec<Happened>,
    connections: Vec<(ConnectionId, Option<StreamId>)>,
    reports: u64,
}

impl OurClient {
    fn new(network: &Network, at: Instant) -> Result<OurClient, BenchError> {
        let config = EngineConfig { heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("quic") };
        let (engine, mut agent) = engine(config, Arc::new(|| {}));
        let source = super::with_clause(RENO.programs()[0].source, CWND);
        agent.install(UID, &super::flow::compile(&source)?)?;
        let config = Config { idle_timeout: Duration::MAX, keep_alive: None, ..Config::default() };
        let endpoint = Endpoint::at(network.client(), engine, config, at);
        Ok(OurClient { endpoint, agent, events: Vec::new(), connections: Vec::new(), reports: 0 })
    }
}

impl Client for OurClient {
    fn connect(&mut self, tls: ClientConfig, _now: Instant) -> Result<(), BenchError> {
        let id = self.endpoint.connect(tls, Network::SERVER, "localhost").map_err(missing)?;
        self.connections.push((id, None));
        Ok(())
    }

    fn turn(&mut self, now: Instant) -> Result<(), BenchError> {
        loop {
            context("turn", self.endpoint.turn_at(now))?;
            while self.endpoint.poll().is_some() {}
            if self.endpoint.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        self.events.clear();
        self.agent.poll(CONNECTIONS, &mut self.events);
        for event in &self.events {
            match event {
                Happened::Created { flow, .. } => self.agent.set_program(*flow, UID, &[])?,
                Happened::Report { program: UID, .. } => self.reports += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, n: usize, data: &[u8]) -> Result<usize, BenchError> {
        let (id, stream) = &mut self.connections[n];
        let Some(mut connection) = self.endpoint.connection(*id) else {
            return Err(missing("a connection is lost"));
        };
        if stream.is_none() && !connection.is_handshaking() {
            *stream = connection.open(Dir::Uni);
        }
        let Some(stream) = *stream else { return Ok(0) };
        connection.write(stream, data).map_err(missing)
    }

    fn prove(&mut self) -> Result<Proof, BenchError> {
        let mut witness = Witness::new(SteeredBy::Program(Some(UID)));
        witness.observe(&self.agent.flows());
        let reports = Proof::counted("reports", self.reports)?;
        Ok(reports.and(&witness.prove_started(CONNECTIONS)?))
    }
}

/// The memory that the allocator has given out, bytes.
#[cfg(target_env = "gnu")]
fn in_use_bytes() -> Result<u64, BenchError> {
    // SAFETY: takes nothing, and returns numbers.
    let info = unsafe { libc::mallinfo() };
    // They wrap at 4 GiB, which is more than is in use here.
    Ok(u64::from(info.uordblks as u32) + u64::from(info.hblkhd as u32))
}

#[cfg(not(target_env = "gnu"))]
fn in_use_bytes() -> Result<u64, BenchError> {
    Err(missing("only glibc's allocator says what is in use"))
}

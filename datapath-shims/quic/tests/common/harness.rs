//! The contract's harness around QUIC flows in virtual time, over any two wires; other crates with wires include it.

use ccplane_contract::suite::behaviour::{Harness, HarnessError};
use ccplane_contract::{Datapath, FlowId};
use ccplane_engine::{Engine, EngineConfig, Handle, engine_with_clock};
use ccplane_quic::quinn_proto::ClientConfig;
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, ConnectionId, Dir, Endpoint, Event, Read, StreamEvent, StreamId, Wire};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PROTOCOL: &[u8] = b"contract";
const HEARTBEAT_TIMEOUT_US: u64 = 60_000;
/// The application's sending rate at most, bytes per second: cases are about what programs do, not about how fast.
const LIMIT: u64 = 2_000_000;
/// Interval of the application's writes.
const WRITES_EVERY: Duration = Duration::from_millis(1);

/// The time that the wires run in.
pub trait Time {
    fn now(&self) -> Instant;
    fn set_now(&mut self, now: Instant);
    /// When the next datagram may arrive at one of these addresses; `None` if none is on its way.
    fn next(&self, at: &[SocketAddr]) -> Option<Instant>;
}

/// A client that writes without end to a server that reads.
pub struct Live<W: Wire, T: Time> {
    time: T,
    pub handle: Handle,
    engine: Engine,
    /// The clock of the client's engine.
    clock: Arc<AtomicU64>,
    server: Endpoint<W>,
    client: Endpoint<W>,
    trust: ClientConfig,
    sending: BTreeMap<ConnectionId, Option<StreamId>>,
    began: Instant,
    written: u64,
}

fn engine(kind: &'static str) -> (Engine, Handle, Arc<AtomicU64>) {
    let config = EngineConfig {
        heartbeat_timeout_us: HEARTBEAT_TIMEOUT_US,
        event_capacity: 100,
        batch_us: 0,
        ..EngineConfig::new(kind)
    };
    let clock = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&clock);
    let (engine, handle) = engine_with_clock(config, Arc::new(|| {}), Arc::new(move || read.load(Relaxed)));
    (engine, handle, clock)
}

impl<W: Wire, T: Time> Live<W, T> {
    pub fn new(kind: &'static str, time: T, [server, client]: [W; 2]) -> Live<W, T> {
        let (engine_here, handle, clock) = engine(kind);
        // The receiving side's flow is no flow of this datapath.
        let (server_engine, _, _) = engine(kind);
        let began = time.now();
        let config = Config { seed: Some([1; 32]), ..Config::default() };
        let identity = Identity::self_signed(&["localhost"]).unwrap();
        let trust = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).unwrap();
        let mut server = Endpoint::at(server, server_engine, config.clone(), began);
        server.serve(Some(tls::server(identity, PROTOCOL).unwrap()));
        let client = Endpoint::at(client, engine_here.clone(), config, began);
        let (engine, sending) = (engine_here, BTreeMap::new());
        Live { time, handle, engine, clock, server, client, trust, sending, began, written: 0 }
    }

    /// Does all work that is due now.
    fn turn(&mut self, now: Instant) {
        self.clock.store(self.engine.now_us(now), Relaxed);
        self.server.turn_at(now).unwrap();
        while let Some((id, event)) = self.server.poll() {
            let Some(mut connection) = self.server.connection(id) else { continue };
            if let Event::Stream(StreamEvent::Opened { dir }) = event {
                while let Some(stream) = connection.accept(dir) {
                    while let Ok(Read::Data(_)) = connection.read(stream, 1 << 20) {}
                }
            } else if let Event::Stream(StreamEvent::Readable { id }) = event {
                while let Ok(Read::Data(_)) = connection.read(id, 1 << 20) {}
            }
        }
        self.client.turn_at(now).unwrap();
        while let Some((id, event)) = self.client.poll() {
            match event {
                Event::Connected => {
                    let stream = self.client.connection(id).unwrap().open(Dir::Uni);
                    self.sending.insert(id, stream);
                }
                Event::Closed(error) => {
                    let began = self.sending.remove(&id) != Some(None);
                    assert!(began, "a connection ended before it began: {error}");
                }
                Event::Stream(_) => {}
            }
        }
        let due = (now - self.began).as_micros() as u64 * LIMIT / 1_000_000;
        for (id, stream) in &self.sending {
            let (Some(stream), Some(mut connection)) = (stream, self.client.connection(*id)) else {
                continue;
            };
            while self.written < due {
                match connection.write(*stream, &[7; 8000]) {
                    Ok(bytes) if bytes > 0 => self.written += bytes as u64,
                    _ => break,
                }
            }
        }
    }

    /// When there is work again.
    fn next(&self) -> Instant {
        let addresses = [self.server.wire().local_addr(), self.client.wire().local_addr()];
        let next = [self.server.deadline(), self.client.deadline(), self.time.next(&addresses)];
        let writes = self.time.now() + WRITES_EVERY;
        next.into_iter().flatten().fold(writes, Instant::min)
    }

    fn of(&mut self, flow: FlowId) -> Option<ConnectionId> {
        let ids: Vec<ConnectionId> = self.sending.keys().copied().collect();
        ids.into_iter().find(|id| {
            self.client.connection(*id).and_then(|c| c.flow_state()).is_some_and(|seen| seen.flow == flow)
        })
    }
}

impl<W: Wire, T: Time> Harness for Live<W, T> {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.handle
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        let id = self.client.connect(self.trust.clone(), self.server.wire().local_addr(), "localhost")?;
        self.sending.insert(id, None);
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        let id = self.of(flow).ok_or("no such flow")?;
        if let Some(mut connection) = self.client.connection(id) {
            connection.close(0, "stopped");
        }
        self.sending.remove(&id);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        let end = self.time.now() + Duration::from_micros(us);
        loop {
            let now = self.time.now();
            self.turn(now);
            if now == end {
                break;
            }
            self.time.set_now(self.next().clamp(now, end));
        }
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        HEARTBEAT_TIMEOUT_US
    }
}

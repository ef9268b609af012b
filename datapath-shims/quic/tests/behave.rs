//! The contract's suite on a live QUIC flow over loopback.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::{Datapath, Event as Happened, FlowId};
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_quic::quinn_proto::ClientConfig;
use ccplane_quic::{Config, ConnectionId, Dir, Endpoint, Event, Read, StreamEvent, StreamId, UdpWire, Wire};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HEARTBEAT_TIMEOUT_US: u64 = 60_000;
/// What a flow sends at most, bytes per second: cases are about what programs do, not about how fast.
const LIMIT: u64 = 2_000_000;

/// A client that writes without end to a server that reads.
struct Live {
    handle: Handle,
    server: Endpoint<UdpWire>,
    client: Endpoint<UdpWire>,
    trust: ClientConfig,
    sending: BTreeMap<ConnectionId, Option<StreamId>>,
    began: Instant,
    written: u64,
}

impl Live {
    fn new() -> Live {
        let config = EngineConfig {
            heartbeat_timeout_us: HEARTBEAT_TIMEOUT_US,
            event_capacity: 100,
            batch_us: 0,
            ..EngineConfig::new("quic")
        };
        let (client_engine, handle) = engine(config, Arc::new(|| {}));
        // The receiving side's flow is no flow of this datapath.
        let (server_engine, _) = common::live_engine();
        let (server, client, trust) = common::loopback(server_engine, client_engine, &Config::default());
        let began = Instant::now();
        Live { handle, server, client, trust, sending: BTreeMap::new(), began, written: 0 }
    }

    fn turn(&mut self) {
        self.server.turn(Duration::ZERO).unwrap();
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
        self.client.turn(Duration::from_micros(200)).unwrap();
        while let Some((id, event)) = self.client.poll() {
            if let Event::Connected = event {
                let stream = self.client.connection(id).unwrap().open(Dir::Uni);
                self.sending.insert(id, stream);
            }
        }
        let due = self.began.elapsed().as_micros() as u64 * LIMIT / 1_000_000;
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

    fn of(&mut self, flow: FlowId) -> Option<ConnectionId> {
        let ids: Vec<ConnectionId> = self.sending.keys().copied().collect();
        ids.into_iter().find(|id| {
            self.client.connection(*id).and_then(|c| c.seen()).is_some_and(|seen| seen.flow == flow)
        })
    }
}

impl Harness for Live {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.handle
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        let to = self.server.wire().local_addr();
        let id = self.client.connect(self.trust.clone(), to, "localhost")?;
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
        let end = Instant::now() + Duration::from_micros(us);
        while Instant::now() < end {
            self.turn();
        }
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        HEARTBEAT_TIMEOUT_US
    }
}

#[test]
fn keeps_the_contract_on_live_flows() {
    let result = behave(&mut || Ok(Box::new(Live::new())));
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

#[test]
fn flows_end_with_their_connections() {
    let mut live = Live::new();
    live.start_flow().unwrap();
    live.pass(50_000);
    let flow = live.handle.flows()[0].flow;
    live.stop_flow(flow).unwrap();
    live.pass(500_000);
    let mut events = Vec::new();
    live.handle.poll(10_000, &mut events);
    assert!(events.contains(&Happened::Closed { flow }), "{events:?}");
    assert!(live.handle.flows().is_empty());
}

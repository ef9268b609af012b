//! The engine under quinn's own driver.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_quic::WindowOnly;
use ccplane_quic::tls::{self, Identity, Trust};
use common::{Agent, live_engine};
use quinn::{Endpoint, TransportConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A window as no controller of quinn's would choose.
const WINDOW_BYTES: u64 = 77_777;
/// quinn sends while less than its window is in flight: ours is what may be.
const SHOWN_BYTES: u64 = WINDOW_BYTES + 1;
/// At least; and again until the window is as it shall be.
const BYTES: usize = 8 << 20;
const PROTOCOL: &[u8] = b"test";
const PATIENCE: Duration = Duration::from_secs(60);
/// What is written without being asked whether that is enough.
const CHUNK_BYTES: usize = 1 << 20;

/// Holds [`WINDOW_BYTES`].
struct Held;

impl Algorithm for Held {
    fn name(&self) -> &'static str {
        "held"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        let source = "(def (Report (acked 0))) (when true (:= Cwnd 77777))";
        vec![ProgramSource { name: "main", source }]
    }
    fn flow(&self, _: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("main", &[]);
        Box::new(Held)
    }
}

impl Flow for Held {
    fn on_report(&mut self, _: u64, _: &Report<'_>, _: &mut Control) {}
}

/// Moves bytes to a server, and says what the sender's window was in the end.
async fn transfer(transport: TransportConfig) -> u64 {
    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let mut client = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).unwrap();
    client.transport_config(Arc::new(transport));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(tls::server(identity, PROTOCOL).unwrap(), anywhere).unwrap();
    let to = server.local_addr().unwrap();
    let sink = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let mut received = 0;
        while let Some(chunk) = stream.read_chunk(usize::MAX, true).await.unwrap() {
            received += chunk.bytes.len();
        }
        received
    });
    let endpoint = Endpoint::client(anywhere).unwrap();
    let connection = endpoint.connect_with(client, to, "localhost").unwrap().await.unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    let (mut sent, chunk) = (0, vec![0; CHUNK_BYTES]);
    while sent < BYTES || connection.stats().path.cwnd != SHOWN_BYTES {
        stream.write_all(&chunk).await.unwrap();
        sent += chunk.len();
    }
    stream.finish().unwrap();
    assert_eq!(sink.await.unwrap(), sent);
    connection.stats().path.cwnd
}

#[test]
fn a_program_decides_the_window_of_stock_quinn() {
    let (engine, handle) = live_engine();
    let ended = AtomicBool::new(false);
    let window = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut agent, began) = (Agent::of(handle, Arc::new(Held)), Instant::now());
            while !ended.load(Relaxed) && began.elapsed() < PATIENCE {
                agent.turn(began.elapsed().as_micros() as u64);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut transport = TransportConfig::default();
        transport.congestion_controller_factory(Arc::new(WindowOnly::new(engine)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let window = runtime.block_on(async { tokio::time::timeout(PATIENCE, transfer(transport)).await });
        ended.store(true, Relaxed);
        window.expect("the program's window")
    });
    assert_eq!(window, SHOWN_BYTES);
}

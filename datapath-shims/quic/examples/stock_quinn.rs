//! quinn keeps its own driver and pacer, and a fold program sets its window: see [`WindowOnly`].
//!
//! ```text
//! cargo run --release -p ccplane-quic --example stock_quinn -- cubic
//! ```
#![allow(clippy::unwrap_used)]

use ccplane_contract::Datapath;
use ccplane_core::{Catalog, Core, DatapathId, Rules, drive};
use ccplane_engine::{EngineConfig, engine};
use ccplane_quic::WindowOnly;
use ccplane_quic::tls::{self, Identity, Trust};
use quinn::{Endpoint, PathStats, TransportConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;
const PROTOCOL: &[u8] = b"example";
const HERE: DatapathId = DatapathId(0);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let algorithm = std::env::args().nth(1).unwrap_or_else(|| "cubic".to_owned());

    // The datapath, with its agent in a thread beside: no packet waits for it.
    let (engine, mut datapath) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
    let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
    let mut core = Core::new(catalog, Rules::all(&algorithm), Default::default()).unwrap();
    core.attach(HERE, datapath.capabilities(), 0).unwrap();
    let began = Instant::now();
    std::thread::spawn(move || {
        loop {
            drive(&mut core, HERE, &mut datapath, began.elapsed().as_micros() as u64);
            std::thread::sleep(Duration::from_millis(10));
        }
    });

    // quinn needs nothing else.
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(WindowOnly::new(engine)));

    let from = Instant::now();
    let Moved { bytes, path, .. } = transfer(transport, |sent, _| sent < BYTES).await;
    let mbit_per_s = bytes as f64 * 8e-6 / from.elapsed().as_secs_f64();
    println!(
        "{algorithm}: {mbit_per_s:.0} Mb/s, window {} kB, {} packets lost",
        path.cwnd / 1000,
        path.lost_packets
    );
}

/// A transfer that has ended: the bytes that the client sent and the server received, and the client's path.
pub struct Moved {
    pub bytes: usize,
    pub received_bytes: usize,
    pub path: PathStats,
}

/// Sends bytes to a server on loopback while `more`, given the bytes sent so far and the connection's path, says so.
pub async fn transfer(transport: TransportConfig, more: impl Fn(usize, &PathStats) -> bool) -> Moved {
    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let mut client = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).unwrap();
    client.transport_config(Arc::new(transport));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(tls::server(identity, PROTOCOL).unwrap(), anywhere).unwrap();
    let to = server.local_addr().unwrap();
    let sink = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let mut received_bytes = 0;
        while let Some(chunk) = stream.read_chunk(usize::MAX, true).await.unwrap() {
            received_bytes += chunk.bytes.len();
        }
        received_bytes
    });

    let endpoint = Endpoint::client(anywhere).unwrap();
    let connection = endpoint.connect_with(client, to, "localhost").unwrap().await.unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    let (mut bytes, data) = (0, vec![0; 1 << 16]);
    while more(bytes, &connection.stats().path) {
        stream.write_all(&data).await.unwrap();
        bytes += data.len();
    }
    stream.finish().unwrap();
    Moved { bytes, received_bytes: sink.await.unwrap(), path: connection.stats().path }
}

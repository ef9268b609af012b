//! quinn keeps its driver, and its window is a fold program's. It paces by its own rule: see [`WindowOnly`].
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
use quinn::{Endpoint, TransportConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;
const PROTOCOL: &[u8] = b"example";
const HERE: DatapathId = DatapathId(0);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let algorithm = std::env::args().nth(1).unwrap_or_else(|| "cubic".to_owned());

    // A datapath, and its agent in a thread beside: no packet waits for it.
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

    // All that quinn needs to know.
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(Arc::new(WindowOnly::new(engine)));

    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let mut client = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).unwrap();
    client.transport_config(Arc::new(transport));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let server = Endpoint::server(tls::server(identity, PROTOCOL).unwrap(), anywhere).unwrap();
    let to = server.local_addr().unwrap();
    let sink = tokio::spawn(async move {
        let connection = server.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        while stream.read_chunk(usize::MAX, true).await.unwrap().is_some() {}
        server.close(0_u32.into(), b"done");
        server.wait_idle().await;
    });

    let endpoint = Endpoint::client(anywhere).unwrap();
    let connection = endpoint.connect_with(client, to, "localhost").unwrap().await.unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    let (data, from) = (vec![0; 1 << 16], Instant::now());
    for _ in 0..BYTES / data.len() {
        stream.write_all(&data).await.unwrap();
    }
    stream.finish().unwrap();
    sink.await.unwrap();
    let mbit_per_s = BYTES as f64 * 8e-6 / from.elapsed().as_secs_f64();
    let path = connection.stats().path;
    println!(
        "{algorithm}: {mbit_per_s:.0} Mb/s, window {} kB, {} packets lost",
        path.cwnd / 1000,
        path.lost_packets
    );
}

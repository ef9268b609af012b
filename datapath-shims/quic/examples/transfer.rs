//! A transfer over QUIC whose congestion control runs in an agent in the same process.
//!
//! ```text
//! cargo run --release -p ccplane-quic --example transfer -- bbr
//! ```
#![allow(clippy::unwrap_used)]

use ccplane_contract::Datapath;
use ccplane_core::{Catalog, Core, DatapathId, Rules, drive};
use ccplane_engine::{EngineConfig, engine};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{Config, Dir, Endpoint, Event, Read, StreamEvent, UdpWire, Wire};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 256 << 20;
const PROTOCOL: &[u8] = b"example";
const HERE: DatapathId = DatapathId(0);

fn main() {
    let algorithm = std::env::args().nth(1).unwrap_or_else(|| "cubic".to_owned());
    let identity = Identity::self_signed(&["localhost"]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    let to = serve(identity);

    // The datapath and its agent.
    let (engine, mut datapath) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
    let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
    let mut core = Core::new(catalog, Rules::all(&algorithm), Default::default()).unwrap();
    core.attach(HERE, datapath.capabilities(), 0).unwrap();

    // A connection whose flow they control.
    let mut endpoint =
        Endpoint::new(UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap(), engine, Config::default());
    let id = endpoint.connect(tls::client(trust, PROTOCOL).unwrap(), to, "localhost").unwrap();
    let (mut stream, mut left, began) = (None, BYTES, Instant::now());
    let data = vec![0; 1 << 16];
    'transfer: loop {
        endpoint.turn(Duration::from_millis(10)).unwrap();
        drive(&mut core, HERE, &mut datapath, began.elapsed().as_micros() as u64);
        while let Some((_, event)) = endpoint.poll() {
            match event {
                Event::Connected => stream = endpoint.connection(id).and_then(|mut c| c.open(Dir::Uni)),
                Event::Stream(StreamEvent::Finished { .. }) => break 'transfer,
                Event::Closed(reason) => panic!("{reason}"),
                Event::Stream(_) => {}
            }
        }
        let (Some(stream), Some(mut connection)) = (stream, endpoint.connection(id)) else { continue };
        while left > 0 {
            let written = connection.write(stream, &data[..left.min(data.len())]).unwrap();
            left -= written;
            if left == 0 {
                connection.finish(stream).unwrap();
            }
            if written == 0 {
                break;
            }
        }
    }
    let seen = endpoint.connection(id).and_then(|connection| connection.flow_state()).unwrap();
    println!(
        "{algorithm}: {:.0} Mb/s, window {} kB, rtt {} us, {} packets lost, steered by {:?}",
        BYTES as f64 * 8e-6 / began.elapsed().as_secs_f64(),
        seen.steer.cwnd_bytes / 1000,
        seen.sampled.srtt_us,
        seen.sampled.lost,
        seen.decided.mode,
    );
    endpoint.close(0, "done");
    endpoint.turn(Duration::ZERO).unwrap();
}

/// A server in a thread of its own, without an agent: it sends only acknowledgements.
fn serve(identity: Identity) -> SocketAddr {
    let wire = UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = wire.local_addr();
    std::thread::spawn(move || {
        let (engine, _) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(wire, engine, Config::default());
        endpoint.serve(Some(tls::server(identity, PROTOCOL).unwrap()));
        loop {
            endpoint.turn(Duration::from_secs(1)).unwrap();
            while let Some((id, event)) = endpoint.poll() {
                let Some(mut connection) = endpoint.connection(id) else { continue };
                let stream = match event {
                    Event::Stream(StreamEvent::Opened { dir }) => connection.accept(dir),
                    Event::Stream(StreamEvent::Readable { id }) => Some(id),
                    _ => None,
                };
                let Some(stream) = stream else { continue };
                while let Ok(Read::Data(_)) = connection.read(stream, usize::MAX) {}
            }
        }
    });
    at
}

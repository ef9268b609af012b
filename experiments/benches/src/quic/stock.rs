//! The baseline: quinn as it comes, with a controller of its own, one runtime a thread.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ccplane_quic::tls::{self, Identity, Trust};
use nix::sys::socket::{setsockopt, sockopt};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig, VarInt};

use super::flow::{CHUNK, QuinnControl, RECEIVE_WINDOW_BYTES, SEND_WINDOW_BYTES, acknowledged};
use super::missing;
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::proof::Proof;

const PROTOCOL: &[u8] = b"stock";

fn transport(control: QuinnControl) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .congestion_controller_factory(control.factory());
    Arc::new(transport)
}

/// With buffers as large as ours.
fn socket() -> Result<std::net::UdpSocket, BenchError> {
    let socket = context("bind", std::net::UdpSocket::bind("127.0.0.1:0"))?;
    let bytes = ccplane_quic::BUFFER_BYTES;
    let sized = setsockopt(&socket, sockopt::RcvBufForce, &bytes)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &bytes))
        .and_then(|()| setsockopt(&socket, sockopt::SndBufForce, &bytes))
        .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &bytes));
    context("size a socket's buffers", sized.map_err(Into::into))?;
    Ok(socket)
}

fn runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    context("start a runtime", tokio::runtime::Builder::new_current_thread().enable_all().build())
}

/// Measures the goodput in `time` after `warm`, Gb/s, and proves that the peer acknowledged it.
pub fn goodput_gbit(
    control: QuinnControl,
    warm: Duration,
    time: Duration,
) -> Result<(f64, Proof), BenchError> {
    let identity = Identity::self_signed(&["localhost"]).map_err(missing)?;
    let trust = Trust::Pinned(identity.fingerprint());
    let mut server = tls::server(identity, PROTOCOL).map_err(missing)?;
    let mut client = tls::client(trust, PROTOCOL).map_err(missing)?;
    server.transport_config(transport(control));
    client.transport_config(transport(control));
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (at, listening) = mpsc::channel();
    thread::scope(|scope| {
        let sink = scope.spawn(|| {
            let _core = OneCore::nth(1);
            runtime()?.block_on(receive(server, at, &received))
        });
        let stopped = &stop;
        let source = scope.spawn(move || {
            let _core = OneCore::nth(0);
            let to = listening.recv().map_err(missing)?;
            runtime()?.block_on(send(client, to, stopped))
        });
        let start = Instant::now();
        while received.load(Relaxed) == 0
            && start.elapsed() < Duration::from_secs(10)
            && !source.is_finished()
        {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(warm);
        let (from, before) = (Instant::now(), received.load(Relaxed));
        thread::sleep(time);
        let gbit = (received.load(Relaxed) - before) as f64 * 8e-9 / from.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        let proof = source.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        sink.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok((gbit, proof))
    })
}

async fn receive(
    config: quinn::ServerConfig,
    at: mpsc::Sender<SocketAddr>,
    received: &AtomicU64,
) -> Result<(), BenchError> {
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket()?, Arc::new(TokioRuntime));
    let endpoint = context("start quinn", endpoint)?;
    let _ = at.send(context("its address", endpoint.local_addr())?);
    let Some(incoming) = endpoint.accept().await else { return Ok(()) };
    let connection = incoming.await.map_err(missing)?;
    let mut stream = connection.accept_uni().await.map_err(missing)?;
    // Until the sender closes the connection.
    while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
        received.fetch_add(chunk.bytes.len() as u64, Relaxed);
    }
    Ok(())
}

async fn send(config: quinn::ClientConfig, to: SocketAddr, stop: &AtomicBool) -> Result<Proof, BenchError> {
    let endpoint = Endpoint::new(EndpointConfig::default(), None, socket()?, Arc::new(TokioRuntime));
    let endpoint = context("start quinn", endpoint)?;
    let connecting = endpoint.connect_with(config, to, "localhost").map_err(missing)?;
    let connection = connecting.await.map_err(missing)?;
    let mut stream = connection.open_uni().await.map_err(missing)?;
    while !stop.load(Relaxed) {
        stream.write_chunk(CHUNK.into()).await.map_err(missing)?;
    }
    let proof = acknowledged(&connection.stats())?;
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(proof)
}

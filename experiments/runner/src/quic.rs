//! A bulk QUIC flow between two network namespaces, steered by programs, sampled as TCP flows are.
//!
//! Both endpoints are threads of this process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_contract::INFINITE_SSTHRESH;
use ccplane_emulator::netns::Namespace;
use ccplane_engine::{Engine, EngineConfig, engine};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{
    Config, Connection, ConnectionId, Dir, Endpoint, Event, Read, StreamEvent, StreamId, UdpWire, Wire,
};

use crate::error::{Context, Error, Result};
use crate::tcp_info::TcpInfo;
use crate::traffic::{
    BulkFlow, CHUNK_BYTES, CONNECT_TIMEOUT, DRAIN, End, NAP, Sent, SharedBulk, TcpSample, join,
};

/// The application protocol that both ends name in the handshake.
const PROTOCOL: &[u8] = b"ccplane-bulk";
/// The name in the server's certificate.
const NAME: &str = "localhost";
/// IP packets that every link here carries, bytes.
const PACKET_BYTES: u16 = 1500;

/// The endpoints, algorithm and end of a QUIC flow.
#[derive(Clone, Copy, Debug)]
pub struct QuicPlan {
    /// The end of the flow, after the epoch.
    pub duration: Duration,
    pub sample_every: Duration,
    /// The origin of the times of samples and of the duration.
    pub epoch: Instant,
}

/// Sockets for a flow to `to`: the sender's, on the address that it reaches the receiver from, and the receiver's.
///
/// # Errors
/// There is no way there, or the receiver's address is taken.
pub fn udp_wires(sender: &Namespace, receiver: &Namespace, to: SocketAddr) -> Result<(UdpWire, UdpWire)> {
    let listening = receiver.run(|| UdpWire::bind(to))?.context("bind a QUIC receiver")?;
    let connect = || {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Nothing is sent: the kernel only chooses the address.
        let probe = UdpSocket::bind(SocketAddr::new(any, 0))?;
        probe.connect(to)?;
        UdpWire::bind(SocketAddr::new(probe.local_addr()?.ip(), 0))
    };
    let sending = sender.run(connect)?.context("bind a QUIC sender")?;
    Ok((sending, listening))
}

impl BulkFlow {
    /// Connects by QUIC and starts to send. `engine` carries the sender's flow.
    ///
    /// # Errors
    /// The connection does not come to be within [`CONNECT_TIMEOUT`], or a thread cannot start; nothing runs then.
    pub fn start_quic<W: Wire + Send + 'static>(
        (sending, listening): (W, W),
        engine: &Engine,
        plan: QuicPlan,
    ) -> Result<BulkFlow> {
        let identity = Identity::self_signed(&[NAME]).map_err(tls_failed)?;
        let trust = Trust::Pinned(identity.fingerprint());
        let (local, remote) = (sending.local_addr(), listening.local_addr());
        let shared = Arc::new(SharedBulk::default());
        let mut flow = BulkFlow { shared: Arc::clone(&shared), local, remote, sender: None, receiver: None };
        let spawn = |name: &str| thread::Builder::new().name(format!("{name}-{}", remote.port()));
        let receive = move || receive(listening, identity, &shared);
        flow.receiver = Some(spawn("ccp-qrx").spawn(receive).context("start the receiver thread")?);
        let (shared, engine) = (Arc::clone(&flow.shared), engine.clone());
        let (connected, outcome) = sync_channel(1);
        let send = move || {
            let sent = send(sending, trust, remote, engine, plan, &shared, &connected);
            shared.sender_done.store(true, Ordering::Release);
            sent
        };
        flow.sender = Some(spawn("ccp-qtx").spawn(send).context("start the sender thread")?);
        match outcome.recv_timeout(CONNECT_TIMEOUT) {
            Ok(()) => Ok(flow),
            Err(_) => {
                flow.stop();
                let sent = join(flow.sender.take(), "sender");
                sent.and(Err(Error::ConnectTimeout { remote, timeout_ms: CONNECT_TIMEOUT.as_millis() }))
            }
        }
    }
}

fn tls_failed(error: tls::TlsError) -> Error {
    Error::Quic { why: error.to_string() }
}

/// Takes samples on time and publishes them.
struct Sampler<'a> {
    plan: QuicPlan,
    next: Instant,
    sent: Sent,
    shared: &'a SharedBulk,
}

impl Sampler<'_> {
    fn sample(&mut self, connection: &Connection<'_>, now: Instant) {
        let at_us = now.saturating_duration_since(self.plan.epoch).as_micros() as u64;
        let sample = TcpSample { at_us, info: info(connection) };
        self.sent.push(sample);
        self.shared.publish(sample);
        // What was missed is not made up for: the next sample is the next on the grid.
        while self.next <= now {
            self.next += self.plan.sample_every;
        }
    }
}

/// The connection in TCP's terms: a segment is a QUIC packet, taken to be of full size, payload what packets carry. Counters of
/// packets wrap, as TCP's do.
fn info(connection: &Connection<'_>) -> TcpInfo {
    let mss_bytes = u64::from(connection.stats().path.current_mtu).max(1);
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let empty = TcpInfo {
        snd_mss_bytes: small(mss_bytes),
        snd_ssthresh: INFINITE_SSTHRESH,
        min_rtt_us: u32::MAX,
        ..TcpInfo::default()
    };
    let Some(seen) = connection.flow_state() else { return empty };
    let sampled = seen.sampled;
    TcpInfo {
        snd_cwnd: small(seen.steer.cwnd_bytes / mss_bytes),
        rtt_us: sampled.srtt_us,
        min_rtt_us: if sampled.min_rtt_us == 0 { u32::MAX } else { sampled.min_rtt_us },
        unacked: sampled.unacked,
        total_retrans: small(sampled.lost),
        pacing_rate: if seen.steer.rate == 0 { u64::MAX } else { seen.steer.rate },
        bytes_acked: sampled.bytes_acked,
        delivered: sampled.delivered as u32,
        ..empty
    }
}

/// UDP payload of a full packet, as TCP's are full: what programs take for a segment from the start. Emulated links serve in
/// opportunities of one full packet; of smaller ones two leave at once now and then, which makes delivery rates exceed the link's.
fn mtu_bytes(remote: SocketAddr) -> u16 {
    let headers_bytes = if remote.is_ipv4() { 20 + 8 } else { 40 + 8 };
    PACKET_BYTES - headers_bytes
}

fn send<W: Wire>(
    wire: W,
    trust: Trust,
    remote: SocketAddr,
    engine: Engine,
    plan: QuicPlan,
    shared: &SharedBulk,
    connected: &SyncSender<()>,
) -> Result<Sent> {
    let mtu_bytes = mtu_bytes(remote);
    let config = Config { initial_mtu_bytes: mtu_bytes, max_mtu_bytes: mtu_bytes, ..Config::default() };
    let mut endpoint = Endpoint::new(wire, engine, config);
    let client = tls::client(trust, PROTOCOL).map_err(tls_failed)?;
    let id = endpoint.connect(client, remote, NAME).map_err(|e| Error::Quic { why: e.to_string() })?;
    let mut sampler = Sampler { plan, next: plan.epoch, sent: Sent::new(), shared };
    let (deadline, mut stream) = (plan.epoch + plan.duration, None);
    sampler.sent.end = loop {
        let now = Instant::now();
        if shared.stop.load(Ordering::Acquire) {
            break End::Stopped;
        }
        if now >= deadline {
            break End::Duration;
        }
        if let Some(stream) = stream {
            if let Some(connection) = endpoint.connection(id).filter(|_| now >= sampler.next) {
                sampler.sample(&connection, now);
            }
            fill(&mut endpoint, id, stream)?;
        }
        let rest = sampler.next.min(deadline).saturating_duration_since(now).min(NAP);
        endpoint.turn(if stream.is_some() { rest } else { NAP }).context("turn a QUIC endpoint")?;
        while let Some((_, event)) = endpoint.poll() {
            match event {
                Event::Connected => {
                    stream = endpoint.connection(id).and_then(|mut connection| connection.open(Dir::Uni));
                    // The receiver of the result has given up.
                    let _ = connected.try_send(());
                }
                Event::Closed(reason) => return Err(Error::Quic { why: reason.to_string() }),
                Event::Stream(_) => {}
            }
        }
    };
    if let Some(connection) = endpoint.connection(id) {
        sampler.sample(&connection, Instant::now());
    }
    endpoint.close(0, "done");
    endpoint.turn(Duration::ZERO).context("turn a QUIC endpoint")?;
    Ok(sampler.sent)
}

/// Writes until there is no room.
fn fill<W: Wire>(endpoint: &mut Endpoint<W>, id: ConnectionId, stream: StreamId) -> Result<()> {
    static CHUNK: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
    let Some(mut connection) = endpoint.connection(id) else { return Ok(()) };
    while connection.write(stream, &CHUNK).map_err(|e| Error::Quic { why: e.to_string() })? == CHUNK.len() {}
    Ok(())
}

/// Reads and discards until the sender closes; returns how many bytes came.
fn receive<W: Wire>(wire: W, identity: Identity, shared: &SharedBulk) -> Result<u64> {
    // Acknowledgements need no agent.
    let (engine, _) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
    let mut endpoint = Endpoint::new(wire, engine, Config::default());
    endpoint.serve(Some(tls::server(identity, PROTOCOL).map_err(tls_failed)?));
    let mut received_bytes = 0;
    let mut give_up: Option<Instant> = None;
    loop {
        endpoint.turn(NAP).context("turn a QUIC endpoint")?;
        while let Some((id, event)) = endpoint.poll() {
            let Some(mut connection) = endpoint.connection(id) else { return Ok(received_bytes) };
            let stream = match event {
                Event::Stream(StreamEvent::Opened { dir }) => connection.accept(dir),
                Event::Stream(StreamEvent::Readable { id }) => Some(id),
                Event::Closed(_) => return Ok(received_bytes),
                Event::Connected | Event::Stream(_) => None,
            };
            let Some(stream) = stream else { continue };
            while let Ok(Read::Data(bytes)) = connection.read(stream, usize::MAX) {
                received_bytes += bytes.len() as u64;
            }
        }
        if shared.sender_done.load(Ordering::Acquire) || shared.stop.load(Ordering::Acquire) {
            let give_up = give_up.get_or_insert_with(|| Instant::now() + DRAIN);
            if Instant::now() >= *give_up {
                return Ok(received_bytes);
            }
        }
    }
}

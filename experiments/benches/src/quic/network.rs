//! A network in memory and in virtual time between two endpoints, and stock quinn-proto at the ends of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ccplane_quic::quinn_proto::congestion::CubicConfig;
use ccplane_quic::quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ServerConfig, StreamEvent, StreamId, Transmit, TransportConfig,
};
use ccplane_quic::{Config, Datagram, Wire};

use super::missing;
use crate::error::BenchError;

/// The congestion window of stock connections, bytes.
const WINDOW_BYTES: u64 = 4 << 20;
/// Datagrams of one send.
const SEGMENTS: usize = 8;

/// A network that delays datagrams and does nothing else.
#[derive(Clone)]
pub struct Network(Rc<RefCell<Flying>>);

struct Flying {
    delay: Duration,
    now: Instant,
    /// To the client and to the server, oldest first.
    to: [VecDeque<(Instant, Datagram)>; 2],
}

impl Network {
    /// The client's address.
    pub const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 5000);
    /// The server's address and port.
    pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4433);

    /// Creates a network with this one-way delay.
    pub fn new(delay: Duration) -> Network {
        Network(Rc::new(RefCell::new(Flying { delay, now: Instant::now(), to: Default::default() })))
    }

    /// Advances the virtual clock.
    pub fn set_now(&self, now: Instant) {
        self.0.borrow_mut().now = now;
    }

    /// Returns the client's end of the network.
    pub fn client(&self) -> MemoryWire {
        MemoryWire { network: self.clone(), is_server: false }
    }

    fn server(&self) -> MemoryWire {
        MemoryWire { network: self.clone(), is_server: true }
    }
}

/// One end of a [`Network`].
pub struct MemoryWire {
    network: Network,
    is_server: bool,
}

impl MemoryWire {
    fn next(&self) -> Option<Datagram> {
        let mut flying = self.network.0.borrow_mut();
        let now = flying.now;
        let queue = &mut flying.to[usize::from(self.is_server)];
        let arrived = queue.front().is_some_and(|(at, _)| *at <= now);
        if arrived { queue.pop_front().map(|(_, datagram)| datagram) } else { None }
    }

    fn put(&self, transmit: &Transmit, payload: &[u8]) {
        let mut flying = self.network.0.borrow_mut();
        let at = flying.now + flying.delay;
        for datagram in payload.chunks(transmit.segment_size.unwrap_or(payload.len()).max(1)) {
            let (remote, payload) = (self.local_addr(), BytesMut::from(datagram));
            let datagram = Datagram { remote, local_ip: None, ecn: transmit.ecn, payload };
            flying.to[usize::from(!self.is_server)].push_back((at, datagram));
        }
    }
}

impl Wire for MemoryWire {
    fn local_addr(&self) -> SocketAddr {
        if self.is_server { Network::SERVER } else { Network::CLIENT }
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        Ok(std::iter::from_fn(|| self.next()).map(each).count())
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        self.put(to, payload);
        Ok(true)
    }

    fn max_segments(&self) -> usize {
        SEGMENTS
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// quinn-proto as it comes, its connections driven one after the other. What they receive is thrown away.
pub struct Stock {
    wire: MemoryWire,
    endpoint: Endpoint,
    transport: Arc<TransportConfig>,
    connections: Vec<Connection>,
    received_bytes: u64,
    buffer: Vec<u8>,
}

impl Stock {
    /// Creates a client at the network's client end.
    pub fn client(network: &Network) -> Stock {
        Stock::new(network.client(), None)
    }

    /// Creates a server at the network's server end.
    pub fn server(network: &Network, tls: ServerConfig) -> Stock {
        Stock::new(network.server(), Some(tls))
    }

    fn new(wire: MemoryWire, tls: Option<ServerConfig>) -> Stock {
        let mut transport = TransportConfig::default();
        // Its window is no limit from the start.
        let mut cubic = CubicConfig::default();
        cubic.initial_window(WINDOW_BYTES);
        // Tables of streams are as large as at ours.
        let streams = Config::default().max_bidi_streams.into();
        transport
            .max_idle_timeout(None)
            .max_concurrent_bidi_streams(streams)
            .max_concurrent_uni_streams(streams)
            .datagram_receive_buffer_size(None)
            .congestion_controller_factory(Arc::new(cubic));
        let transport = Arc::new(transport);
        let tls = tls.map(|mut tls| {
            tls.transport_config(Arc::clone(&transport));
            Arc::new(tls)
        });
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), tls, true, None);
        Stock { wire, endpoint, transport, connections: Vec::new(), received_bytes: 0, buffer: Vec::new() }
    }

    /// The bytes received on all streams so far.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The `n`th that came to be.
    pub fn connection(&mut self, n: usize) -> Option<&mut Connection> {
        self.connections.get_mut(n)
    }

    /// Starts a connection to the server.
    pub fn connect(&mut self, mut tls: ClientConfig, now: Instant) -> Result<(), BenchError> {
        tls.transport_config(Arc::clone(&self.transport));
        let made = self.endpoint.connect(now, tls, Network::SERVER, "localhost").map_err(missing)?;
        self.insert(made.0, made.1)
    }

    fn insert(
        &mut self,
        ConnectionHandle(n): ConnectionHandle,
        connection: Connection,
    ) -> Result<(), BenchError> {
        if n != self.connections.len() {
            return Err(missing("quinn's handles have gaps"));
        }
        self.connections.push(connection);
        Ok(())
    }

    /// Processes all datagrams and timers that are due.
    pub fn turn(&mut self, now: Instant) -> Result<(), BenchError> {
        while let Some(Datagram { remote, local_ip, ecn, payload }) = self.wire.next() {
            self.buffer.clear();
            match self.endpoint.handle(now, remote, local_ip, ecn, payload, &mut self.buffer) {
                Some(DatagramEvent::ConnectionEvent(ConnectionHandle(n), event)) => {
                    if let Some(connection) = self.connections.get_mut(n) {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let made = self.endpoint.accept(incoming, now, &mut self.buffer, None);
                    let (handle, connection) = made.map_err(|refused| missing(refused.cause))?;
                    self.insert(handle, connection)?;
                }
                Some(DatagramEvent::Response(transmit)) => {
                    self.wire.put(&transmit, &self.buffer[..transmit.size]);
                }
                None => {}
            }
        }
        (0..self.connections.len()).for_each(|n| self.drive(n, now));
        Ok(())
    }

    fn drive(&mut self, n: usize, now: Instant) {
        let connection = &mut self.connections[n];
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(n), event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(stream) = connection.streams().accept(Dir::Uni) {
                        self.received_bytes += read(connection, stream);
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.received_bytes += read(connection, id),
                _ => {}
            }
        }
        self.buffer.clear();
        while let Some(transmit) = connection.poll_transmit(now, SEGMENTS, &mut self.buffer) {
            self.wire.put(&transmit, &self.buffer[..transmit.size]);
            self.buffer.clear();
        }
    }
}

/// All that a stream has; how many bytes.
fn read(connection: &mut Connection, stream: StreamId) -> u64 {
    let mut receiving = connection.recv_stream(stream);
    let Ok(mut chunks) = receiving.read(true) else { return 0 };
    let mut bytes = 0;
    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
        bytes += chunk.bytes.len() as u64;
    }
    // Its frames go out with the next transmission.
    let _ = chunks.finalize();
    bytes
}

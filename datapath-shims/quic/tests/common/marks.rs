//! A server whose packets PIAS decides about, and clients that read the traffic class of each datagram; other crates with wires
//! include it.

use bytes::BytesMut;
use ccplane_contract::{CodePoints, Datapath};
use ccplane_core::{Catalog, Config as CoreConfig, Core, DatapathId, Rules, drive};
use ccplane_engine::{EngineConfig, Handle, PacketsConfig, engine};
use ccplane_quic::quinn_proto::{ClientConfig, EcnCodepoint, Transmit};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{
    Config, ConnectionId, Datagram, Dir, Endpoint, Event, Packets, Read, StreamEvent, StreamId, Wire,
};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROTOCOL: &[u8] = b"marks";
const DATAPATH: DatapathId = DatapathId(0);
/// The agent may have to wait for a processor.
const HEARTBEAT_TIMEOUT_US: u64 = 30_000_000;
/// Unacknowledged bytes of a connection, which any socket's buffer holds: nothing is lost on the way.
const UNACKNOWLEDGED_BYTES: u64 = 32 << 10;
/// Longest train of datagrams that is decided about as one packet, bytes.
const TRAIN_BYTES: u64 = 65_000;
/// The code point of priority 0 in these tests; those of the others follow.
const FIRST_DSCP: u8 = 10;
const PATIENCE: Duration = Duration::from_secs(120);

/// A kernel socket as a wire that notes the traffic class and the length of each datagram.
pub struct ReadingWire {
    socket: UdpSocket,
    pub seen: Vec<(u8, u64)>,
}

impl ReadingWire {
    pub fn over(socket: UdpSocket) -> ReadingWire {
        socket.set_nonblocking(true).unwrap();
        match socket.local_addr().unwrap() {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::IpRecvTos, &true).unwrap(),
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvTClass, &true).unwrap(),
        }
        ReadingWire { socket, seen: Vec::new() }
    }
}

/// The traffic class that a control message tells of.
fn class(control: ControlMessageOwned) -> Option<u8> {
    match control {
        ControlMessageOwned::Ipv4Tos(class) => Some(class),
        ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
        // Linux names the message as it names the option to send, not the one to receive.
        ControlMessageOwned::Unknown(other)
            if (other.cmsg_header.cmsg_level, other.cmsg_header.cmsg_type)
                == (libc::IPPROTO_IP, libc::IP_TOS) =>
        {
            other.data_bytes.first().copied()
        }
        _ => None,
    }
}

impl Wire for ReadingWire {
    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let mut count = 0;
        let mut buffer = [0; 2048];
        loop {
            let mut controls = nix::cmsg_space!(libc::c_int, libc::c_int);
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let fd = self.socket.as_raw_fd();
            let received =
                recvmsg::<SockaddrStorage>(fd, &mut slices, Some(&mut controls), MsgFlags::empty());
            let (from, class, bytes) = match received {
                Ok(message) => {
                    let class = message.cmsgs()?.find_map(class).unwrap();
                    (message.address.unwrap(), class, message.bytes)
                }
                Err(Errno::EAGAIN) => return Ok(count),
                Err(error) => return Err(error.into()),
            };
            self.seen.push((class, bytes as u64));
            let v4 = from.as_sockaddr_in().map(|from| SocketAddr::from((from.ip(), from.port())));
            let v6 = from.as_sockaddr_in6().map(|from| SocketAddr::from((from.ip(), from.port())));
            each(Datagram {
                remote: v4.or(v6).unwrap(),
                local_ip: None,
                ecn: EcnCodepoint::from_bits(class & 3),
                payload: BytesMut::from(&buffer[..bytes]),
            });
            count += 1;
        }
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        for datagram in payload.chunks(to.segment_size.unwrap_or(payload.len()).max(1)) {
            self.socket.send_to(datagram, to.destination)?;
        }
        Ok(true)
    }

    fn max_segments(&self) -> usize {
        1
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// A server that writes to each client, over a stream of its own.
pub struct Scheduled<W> {
    server: Endpoint<W>,
    /// The agent that decides about its packets; none leaves them alone.
    agent: Option<Core>,
    pub packets: Handle,
    trust: ClientConfig,
    began: Instant,
    /// The bytes that the next client gets.
    pub next_bytes: u64,
    writing: BTreeMap<ConnectionId, (StreamId, u64)>,
}

/// A client that reads what it is sent.
pub struct Reader {
    endpoint: Endpoint<ReadingWire>,
    pub read_bytes: u64,
    pub is_done: bool,
}

impl<W: Wire> Scheduled<W> {
    pub fn new(wire: W, algorithm: Option<&str>) -> Scheduled<W> {
        let own = EngineConfig { heartbeat_timeout_us: HEARTBEAT_TIMEOUT_US, ..EngineConfig::new("marks") };
        let (flows, _) = engine(own, Arc::new(|| {}));
        let config = EngineConfig { packets: Some(PacketsConfig::default()), ..own };
        let (deciding, packets) = engine(config, Arc::new(|| {}));
        let code_points = CodePoints::new(std::array::from_fn(|n| FIRST_DSCP + n as u8)).unwrap();
        let identity = Identity::self_signed(&["localhost"]).unwrap();
        let trust = tls::client(Trust::Pinned(identity.fingerprint()), PROTOCOL).unwrap();
        let config = Config {
            send_window_bytes: UNACKNOWLEDGED_BYTES,
            packets: Some(Packets { engine: deciding, code_points }),
            ..Config::default()
        };
        let mut server = Endpoint::new(wire, flows, config);
        server.serve(Some(tls::server(identity, PROTOCOL).unwrap()));
        let agent = algorithm.map(|name| {
            let named = ccplane_algs::on_packets().into_iter().filter(|algorithm| algorithm.name() == name);
            let catalog = Catalog::new(named.collect(), 1).unwrap();
            let mut core = Core::new(catalog, Rules::all(name), CoreConfig::default()).unwrap();
            core.attach(DATAPATH, packets.capabilities(), 0).unwrap();
            core
        });
        let (began, writing) = (Instant::now(), BTreeMap::new());
        let mut scheduled = Scheduled { server, agent, packets, trust, began, next_bytes: 0, writing };
        scheduled.agent();
        scheduled
    }

    /// Connects a client over this socket, which is to get so many bytes.
    pub fn client(&self, socket: UdpSocket) -> Reader {
        let (flows, _) = engine(EngineConfig::new("reader"), Arc::new(|| {}));
        let mut endpoint = Endpoint::new(ReadingWire::over(socket), flows, Config::default());
        endpoint.connect(self.trust.clone(), self.server.wire().local_addr(), "localhost").unwrap();
        Reader { endpoint, read_bytes: 0, is_done: false }
    }

    fn agent(&mut self) {
        let now_us = self.began.elapsed().as_micros() as u64;
        if let Some(core) = &mut self.agent {
            drive(core, DATAPATH, &mut self.packets, now_us);
        }
    }

    fn turn(&mut self) {
        self.agent();
        self.server.turn(Duration::ZERO).unwrap();
        while let Some((id, event)) = self.server.poll() {
            if let Event::Connected = event {
                let stream = self.server.connection(id).unwrap().open(Dir::Uni).unwrap();
                self.writing.insert(id, (stream, self.next_bytes));
            }
        }
        let Scheduled { server, writing, .. } = self;
        writing.retain(|id, (stream, left_bytes)| {
            let Some(mut connection) = server.connection(*id) else { return false };
            while *left_bytes > 0 {
                let data = [7; 8000];
                let most = data.len().min(*left_bytes as usize);
                match connection.write(*stream, &data[..most]).unwrap() {
                    0 => return true,
                    written => *left_bytes -= written as u64,
                }
            }
            connection.finish(*stream).unwrap();
            false
        });
    }

    /// Turns the server and these clients until `is_enough`.
    pub fn run(&mut self, clients: &mut [&mut Reader], is_enough: impl Fn(&[&mut Reader]) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_enough(clients) {
            assert!(
                Instant::now() < end,
                "the clients read {:?}",
                clients.iter().map(|c| c.read_bytes).collect::<Vec<_>>()
            );
            self.turn();
            clients.iter_mut().for_each(|client| client.turn());
        }
    }
}

impl Reader {
    fn turn(&mut self) {
        self.endpoint.turn(Duration::ZERO).unwrap();
        while let Some((id, event)) = self.endpoint.poll() {
            let Some(mut connection) = self.endpoint.connection(id) else { continue };
            let stream = match event {
                Event::Stream(StreamEvent::Opened { dir }) => connection.accept(dir),
                Event::Stream(StreamEvent::Readable { id }) => Some(id),
                Event::Closed(error) => panic!("{error}"),
                _ => None,
            };
            let Some(stream) = stream else { continue };
            loop {
                match connection.read(stream, 1 << 16) {
                    Ok(Read::Data(data)) => self.read_bytes += data.len() as u64,
                    Ok(Read::End) => {
                        self.is_done = true;
                        break;
                    }
                    Ok(Read::Blocked) | Err(_) => break,
                }
            }
        }
    }

    /// The traffic class and length of each datagram so far.
    pub fn seen(&self) -> &[(u8, u64)] {
        &self.endpoint.wire().seen
    }

    /// The priorities of marked datagrams, each with the bytes of those before it.
    pub fn priorities(&self) -> Vec<(usize, u64)> {
        let marked = self.seen().iter().filter(|(class, _)| class >> 2 != 0);
        let priority = |sent: &mut u64, (class, bytes): &(u8, u64)| {
            let before = *sent;
            *sent += bytes;
            Some((usize::from((class >> 2).checked_sub(FIRST_DSCP)?), before))
        };
        marked.scan(0, priority).collect()
    }
}

/// Checks that each datagram has the priority that PIAS gives a flow which has sent so much, and returns the last one.
///
/// A train of datagrams is decided about as a whole, where it begins.
pub fn assert_falls_as_pias_says(client: &Reader) -> usize {
    let thresholds = ccplane_algs::Demotions::default().0;
    let of = |sent_bytes: u64| thresholds.iter().filter(|bytes| sent_bytes >= **bytes).count();
    let priorities = client.priorities();
    for (priority, sent_bytes) in &priorities {
        let range = of(sent_bytes.saturating_sub(TRAIN_BYTES))..=of(*sent_bytes);
        assert!(range.contains(priority), "{priority} after {sent_bytes} bytes");
    }
    assert!(priorities.is_sorted_by_key(|(priority, _)| *priority), "{priorities:?}");
    priorities.last().map_or(0, |(priority, _)| *priority)
}

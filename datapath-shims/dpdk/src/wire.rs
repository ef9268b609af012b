//! A queue of a DPDK port as a [`Wire`] for QUIC.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ccplane_contract::traffic_class;
use ccplane_quic::{Datagram, Wire};
use ipnet::IpNet;
use quinn_proto::{EcnCodepoint, Transmit};

use crate::error::Error;
use crate::ffi::{self, BACKLOG, Rx, Tx};
use crate::net::frame::{Dropped, Frame, Headers, Resolution, Verified};
use crate::net::{Drops, Interface, InterfaceConfig, Mac, NextHop};
use crate::port::{BUFFER_BYTES, Port};

/// Datagrams of one send, at most; payloads are cut into segments here.
pub const MAX_SEGMENTS: usize = 32;
/// Frames taken in one receive call, at most.
const MAX_RECEIVE: usize = 256;
/// Frames collected before they are given to the port.
const SEND_BURST: usize = 32;
/// Messages between two queues that wait to be read, at most.
const MAX_PASSED: usize = 1024;
/// Size of the chunks that payloads are cut from, bytes.
const CHUNK_BYTES: usize = 32 * 1024;
/// Time between two checks of the link.
const LINK_EVERY: Duration = Duration::from_millis(100);
/// The first dynamic UDP port (RFC 6335), and the number of such ports.
const DYNAMIC_PORTS: (u16, u16) = (49_152, 16_384);

/// Behaviour of a poll loop when nothing has arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once: lowest delay, and all of a core.
    #[default]
    Spin,
    /// Sleeps for this long, then polls again.
    Pause(Duration),
}

/// Options of wires over a port.
#[derive(Debug, Clone, Default)]
pub struct WireOptions {
    /// The port's addresses, each with the prefix that is on the link.
    pub addresses: Vec<IpNet>,
    /// Gateways for destinations that are not on the link, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Permanent neighbours, which are not asked for.
    pub neighbours: Vec<(IpAddr, Mac)>,
    /// The UDP port of all queues, which suits servers: the port's RSS keeps a connection on its queue.
    ///
    /// With 0 each queue takes a port of its own, which suits clients: datagrams that RSS brings to another queue are
    /// passed on.
    pub udp_port: u16,
    /// Behaviour of a poll loop when nothing has arrived.
    pub idle: Idle,
}

/// Counters of a wire since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams given to the port, or waiting for their next hop.
    pub sent: u64,
    /// Datagrams lost because the pool had no buffer.
    pub no_buffer: u64,
    /// Datagrams and neighbour messages lost because the queue that they were passed to did not read them.
    pub not_passed: u64,
    /// Frames and datagrams that were dropped.
    pub drops: Drops,
}

/// A message from one queue's thread to another's.
enum QueueMessage {
    Resolution(Resolution),
    Datagram(Datagram),
}

/// Another queue of the same port.
struct Sibling {
    udp_port: u16,
    inbox: SyncSender<QueueMessage>,
}

/// A queue of a port as a wire.
pub struct DpdkWire {
    interface: Interface,
    rx: Rx,
    tx: Tx,
    udp_port: u16,
    /// The code point of what is sent.
    dscp: u8,
    idle: Idle,
    siblings: Vec<Sibling>,
    inbox: Receiver<QueueMessage>,
    /// A message that `wait` has taken from the inbox already.
    passed: Option<QueueMessage>,
    /// Payloads are cut off the front of this chunk.
    chunk: BytesMut,
    counters: WireCounters,
    /// Whether the link was up at the last check, and the time of the next one.
    link: (bool, Instant),
    /// Whether the link came up and the endpoint was not told yet.
    came_up: bool,
    port: Arc<Port>,
}

impl DpdkWire {
    /// Makes a wire over each of a port's queues.
    ///
    /// # Errors
    /// [`Error::Config`]: addresses that contradict each other.
    pub fn over(port: Port, options: &WireOptions) -> Result<Vec<DpdkWire>, Error> {
        let port = Arc::new(port);
        let udp_port = |queue| if options.udp_port == 0 { dynamic_port(queue) } else { options.udp_port };
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..port.queues())
            .map(|queue| (queue, sync_channel(MAX_PASSED)))
            .map(|(q, (s, r))| ((q, s), (q, r)))
            .unzip();
        let mut wires = Vec::with_capacity(inboxes.len());
        for (queue, inbox) in inboxes {
            let config = InterfaceConfig {
                mac: port.mac(),
                mtu_bytes: port.mtu_bytes(),
                addresses: options.addresses.clone(),
                gateways: options.gateways.clone(),
                neighbours: options.neighbours.clone(),
                offload: port.offload(),
                lenient: port.is_lenient(),
            };
            let others = senders.iter().filter(|(other, _)| *other != queue);
            wires.push(DpdkWire {
                interface: Interface::new(config)?,
                rx: Rx::new(&port.device, queue),
                tx: Tx::new(&port.device, queue, usize::from(BUFFER_BYTES)),
                udp_port: udp_port(queue),
                dscp: 0,
                idle: options.idle,
                siblings: others
                    .map(|(other, inbox)| Sibling { udp_port: udp_port(*other), inbox: inbox.clone() })
                    .collect(),
                inbox,
                passed: None,
                chunk: BytesMut::new(),
                counters: WireCounters::default(),
                link: (true, Instant::now()),
                came_up: false,
                port: port.clone(),
            });
        }
        Ok(wires)
    }

    /// The port that the wire sends and receives on.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Counters since the wire was opened.
    pub fn counters(&self) -> WireCounters {
        WireCounters { drops: self.interface.drops(), ..self.counters }
    }

    /// Whether the link was up at the last check, at most a tenth of a second ago.
    pub fn is_up(&self) -> bool {
        self.link.0
    }

    /// Does the work beside datagrams: reads messages of other queues, checks the link, asks for neighbours, sends
    /// ready frames.
    fn serve(&mut self, now: Instant) {
        if now >= self.link.1 {
            let was_up = std::mem::replace(&mut self.link, (self.port.is_up(), now + LINK_EVERY)).0;
            if self.link.0 && !was_up {
                // The switch and our peers may have forgotten our address.
                self.interface.announce();
                self.came_up = true;
            }
        }
        self.interface.poll(now);
        let mut ready = false;
        while self.tx.waiting() < BACKLOG {
            let Some(frame) = self.interface.ready() else { break };
            ready |= self.tx.push(|to| copy(&frame, to));
        }
        if ready || self.tx.waiting() > 0 {
            self.tx.flush();
        }
    }

    fn hear_siblings(&mut self, now: Instant, each: &mut dyn FnMut(Datagram)) -> usize {
        let mut datagrams = 0;
        while let Some(passed) = self.passed.take().or_else(|| self.inbox.try_recv().ok()) {
            match passed {
                QueueMessage::Resolution(message) => self.interface.learn(message, now),
                QueueMessage::Datagram(datagram) => {
                    each(datagram);
                    datagrams += 1;
                }
            }
        }
        datagrams
    }
}

impl Wire for DpdkWire {
    fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.interface.address(), self.udp_port)
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let now = Instant::now();
        let mut datagrams = if self.siblings.is_empty() { 0 } else { self.hear_siblings(now, each) };
        let mut frames = 0;
        while frames < MAX_RECEIVE && self.rx.fill() {
            let DpdkWire { interface, rx, siblings, chunk, counters, udp_port, .. } = self;
            while let Some((bytes, hints)) = rx.next() {
                frames += 1;
                match take(interface, bytes, hints, now) {
                    Ok(Frame::Datagram(datagram)) => {
                        let to = datagram.destination.port();
                        let owned = Datagram {
                            remote: datagram.source,
                            local_ip: Some(datagram.destination.ip()),
                            ecn: EcnCodepoint::from_bits(datagram.ecn),
                            payload: cut(chunk, datagram.payload),
                        };
                        if to == *udp_port {
                            each(owned);
                            datagrams += 1;
                        } else if let Some(sibling) = siblings.iter().find(|sibling| sibling.udp_port == to) {
                            counters.not_passed +=
                                u64::from(sibling.inbox.try_send(QueueMessage::Datagram(owned)).is_err());
                        }
                    }
                    // Answers come to one queue, but all queues need them.
                    Ok(Frame::Resolution(message)) => {
                        for sibling in siblings.iter() {
                            counters.not_passed +=
                                u64::from(sibling.inbox.try_send(QueueMessage::Resolution(message)).is_err());
                        }
                    }
                    Err(_) => {}
                }
            }
        }
        self.counters.received += datagrams as u64;
        self.serve(now);
        Ok(datagrams)
    }

    fn set_dscp(&mut self, dscp: u8) {
        self.dscp = dscp;
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        let segment = to.segment_size.unwrap_or(payload.len()).max(1);
        let segments = payload.len().div_ceil(segment);
        if self.tx.waiting() + segments > BACKLOG {
            self.tx.flush();
            if self.tx.waiting() + segments > BACKLOG {
                return Ok(false);
            }
        }
        let class = traffic_class(self.dscp, to.ecn.map_or(0, |ecn| ecn as u8));
        match self.interface.path(to.src_ip, self.udp_port, to.destination, class, Instant::now()) {
            NextHop::Open(headers) => {
                let hints = self.hints(&headers);
                for datagram in payload.chunks(segment) {
                    if !self.interface.fits(&headers, datagram) {
                        continue;
                    }
                    let sent =
                        self.tx.push(|frame| headers.write(datagram, frame).map(|bytes| (bytes, hints)));
                    *if sent { &mut self.counters.sent } else { &mut self.counters.no_buffer } += 1;
                }
            }
            NextHop::Waits(hop, headers) => {
                for datagram in payload.chunks(segment) {
                    self.interface.hold(hop, &headers, datagram);
                    self.counters.sent += 1;
                }
            }
            NextHop::None => {}
        }
        if self.tx.waiting() >= SEND_BURST {
            self.tx.flush();
        }
        Ok(true)
    }

    fn max_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn max_payload_bytes(&self) -> u16 {
        self.interface.max_payload_bytes()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.serve(Instant::now());
        Ok(())
    }

    fn came_up(&mut self) -> bool {
        std::mem::take(&mut self.came_up)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let until = Instant::now() + timeout;
        let waiting = self.tx.waiting();
        loop {
            self.passed = self.passed.take().or_else(|| self.inbox.try_recv().ok());
            let news = self.passed.is_some() || self.came_up;
            if self.rx.fill() || news || self.tx.waiting() < waiting {
                return Ok(());
            }
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            self.serve(now);
            match self.idle {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Pause(pause) => thread::sleep(pause.min(until - now)),
            }
        }
    }
}

impl DpdkWire {
    fn hints(&self, headers: &Headers) -> u8 {
        let offload = self.port.offload();
        let hint = |set: bool, hint: u8| if set { hint } else { 0 };
        hint(offload.udp, ffi::SUM_UDP)
            | if headers.is_ipv4() { hint(offload.ip, ffi::SUM_IP) } else { ffi::IS_V6 }
    }
}

fn take<'f>(
    interface: &mut Interface,
    bytes: &'f [u8],
    hints: u8,
    now: Instant,
) -> Result<Frame<'f>, Dropped> {
    let verified = Verified { ip: hints & ffi::SUM_IP != 0, transport: hints & ffi::SUM_UDP != 0 };
    if hints & ffi::SUM_BAD != 0 {
        return interface.refuse(Dropped::Checksum);
    }
    if hints & ffi::IS_CUT != 0 {
        return interface.refuse(Dropped::Malformed);
    }
    interface.receive(bytes, verified, now)
}

/// Copies a payload into memory cut from a chunk that many payloads share.
fn cut(chunk: &mut BytesMut, payload: &[u8]) -> BytesMut {
    if chunk.capacity() < payload.len() {
        chunk.reserve(CHUNK_BYTES.max(payload.len()));
    }
    chunk.extend_from_slice(payload);
    chunk.split()
}

fn copy(frame: &[u8], to: &mut [u8]) -> Option<(usize, u8)> {
    to.get_mut(..frame.len())?.copy_from_slice(frame);
    Some((frame.len(), 0))
}

/// Chooses a dynamic UDP port that differs by process and queue.
fn dynamic_port(queue: u16) -> u16 {
    let (first, many) = DYNAMIC_PORTS;
    let process = (std::process::id() % u32::from(many)) as u16;
    first + process.wrapping_mul(31).wrapping_add(queue) % many
}

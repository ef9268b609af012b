//! Attacks by strangers on an endpoint's memory and bandwidth, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_quic::files::Server;
use ccplane_quic::quinn_proto::congestion::NewRenoConfig;
use ccplane_quic::quinn_proto::{ClientConfig, Transmit};
use ccplane_quic::{
    Config, Control, Datagram, Dir, Endpoint, Event, MAX_UNVALIDATED, Read, StreamEvent, Wire,
};
use ccplane_testing::attack_scale;
use common::{CLIENT, Fetch, Link, MemoryWire, Net, SERVER, folder_with, pair, serve};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(5);
/// The longest an honest client may take for its file of 64 KiB over a path of 20 ms, during any attack.
const HONEST_WITHIN: Duration = Duration::from_secs(1);
/// Bytes that a server may send to an unvalidated address for each byte received from it (RFC 9000 section 8).
const AMPLIFICATION: u64 = 3;

fn control() -> Control {
    Control::Quinn(Arc::new(NewRenoConfig::default()))
}

/// Bytes received from and sent to each peer.
type Counts = Rc<RefCell<BTreeMap<SocketAddr, (u64, u64)>>>;

struct Counting {
    wire: MemoryWire,
    counts: Counts,
}

impl Wire for Counting {
    fn local_addr(&self) -> SocketAddr {
        self.wire.local_addr()
    }
    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let counts = &self.counts;
        self.wire.receive(&mut |datagram| {
            counts.borrow_mut().entry(datagram.remote).or_default().0 += datagram.payload.len() as u64;
            each(datagram);
        })
    }
    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        self.counts.borrow_mut().entry(to.destination).or_default().1 += payload.len() as u64;
        self.wire.send(to, payload)
    }
    fn max_segments(&self) -> usize {
        self.wire.max_segments()
    }
    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.wire.wait(timeout)
    }
}

/// A server, and clients that come and go.
struct Attacked {
    net: Net,
    counts: Counts,
    server: Endpoint<Counting>,
    files: Server,
    trust: ClientConfig,
    most: usize,
    _folder: tempfile::TempDir,
}

impl Attacked {
    fn new(bytes: usize, config: Config) -> (Attacked, [u8; 32]) {
        let (folder, sum) = folder_with(bytes);
        let net = Net::new(Link::new(1000, 10), 1);
        let (tls, trust) = pair();
        let counts = Counts::default();
        let wire = Counting { wire: net.wire(SERVER), counts: Rc::clone(&counts) };
        let mut server = Endpoint::at(wire, control(), config, net.now());
        server.serve(Some(tls));
        let files = serve(folder.path());
        (Attacked { net, counts, server, files, trust, most: 0, _folder: folder }, sum)
    }

    fn client(&self, address: &str) -> (Endpoint<MemoryWire>, Fetch) {
        let mut client = Endpoint::at(self.net.wire(address), control(), Config::default(), self.net.now());
        let id = client.connect(self.trust.clone(), SERVER.parse().unwrap(), "localhost").unwrap();
        (client, Fetch::new(id))
    }

    /// Sends one Initial from this address, and nothing more.
    fn lone_initial(&self, address: SocketAddr) {
        let (mut client, _) = self.client(&address.to_string());
        client.turn_at(self.net.now()).unwrap();
    }

    /// Turns the server through one step of time.
    fn pass(&mut self) {
        let now = self.net.now() + STEP;
        self.net.set_now(now);
        loop {
            self.server.turn_at(now).unwrap();
            while let Some((id, event)) = self.server.poll() {
                self.files.on_event(&mut self.server, id, &event);
            }
            let busy = self.files.advance(&mut self.server);
            if !busy && self.server.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        self.most = self.most.max(self.server.len());
    }

    /// Runs until this client has its file; each step calls `each` as well.
    fn fetch(
        &mut self,
        (client, fetch): &mut (Endpoint<MemoryWire>, Fetch),
        within: Duration,
        mut meanwhile: impl FnMut(&mut Attacked),
    ) -> [u8; 32] {
        let began = self.net.now();
        while fetch.ended.is_none() {
            assert!(self.net.now() - began < within, "not within {within:?}");
            meanwhile(self);
            self.pass();
            turn(client, fetch, self.net.now());
        }
        let ended = fetch.ended.as_ref().unwrap();
        ended.sum().unwrap_or_else(|| panic!("{ended:?}"))
    }
}

fn turn(client: &mut Endpoint<MemoryWire>, fetch: &mut Fetch, now: Instant) {
    client.turn_at(now).unwrap();
    while let Some((_, event)) = client.poll() {
        fetch.on(client, Some(event));
    }
    while fetch.on(client, None) {}
    client.turn_at(now).unwrap();
}

#[test]
fn lone_initials_keep_nobody_out_and_are_not_amplified() {
    let initials: u32 = attack_scale(3000, 30_000);
    let (mut attacked, sum) = Attacked::new(64 << 10, Config::default());
    let mut honest = None;
    let each = 20;
    for n in (0..initials).step_by(each as usize) {
        // Of many networks, and of one that has many ports.
        for k in n..n + each {
            let one = Ipv4Addr::from_bits(0x0b00_0000 + (k << 8));
            let (ip, port) = if k % 2 == 0 {
                (one, 4000)
            } else {
                (Ipv4Addr::new(12, 0, 0, 1), 1024 + (k % 60_000) as u16)
            };
            attacked.lone_initial(SocketAddr::from((ip, port)));
        }
        attacked.pass();
        if n >= initials / 2 && honest.is_none() {
            // In the midst of the transfer.
            let mut client = attacked.client(CLIENT);
            let mut more = initials;
            let got = attacked.fetch(&mut client, HONEST_WITHIN, |attacked| {
                more += 1;
                attacked
                    .lone_initial(SocketAddr::from((Ipv4Addr::from_bits(0x0c10_0000 + (more << 8)), 4000)));
            });
            honest = Some(got);
        }
    }
    assert_eq!(honest, Some(sum));
    // The honest client counts, and may be closing still.
    assert!(attacked.most <= MAX_UNVALIDATED + 2, "{} connections at once", attacked.most);
    let honest: SocketAddr = CLIENT.parse().unwrap();
    let counts = attacked.counts.borrow().clone();
    let worst = counts.iter().filter(|(peer, _)| **peer != honest);
    let worst = worst.map(|(_, (received, sent))| *sent as f64 / *received as f64).fold(0.0, f64::max);
    assert!(worst > 0.0 && worst <= AMPLIFICATION as f64, "{worst} times what came was sent");
    for _ in 0..Duration::from_secs(11).div_duration_f64(STEP) as u32 {
        attacked.pass();
    }
    assert_eq!((attacked.server.len(), attacked.server.memory().used_bytes), (0, 0), "all is forgotten");
}

#[test]
fn clients_that_never_read_hold_no_more_than_the_memory() {
    /// Steps in which buffers fill up once all clients are served.
    const SETTLED_STEPS: u32 = 50;
    /// Time in which all clients are served; their last try in it is the fourth.
    const SERVED_WITHIN: Duration = Duration::from_secs(10);
    let readers: usize = attack_scale(100, 1000);
    let memory_bytes = readers as u64 * (256 << 10);
    let (mut attacked, sum) = Attacked::new(8 << 20, Config { memory_bytes, ..Config::default() });
    let mut slow: Vec<_> =
        (0..readers).map(|n| attacked.client(&format!("11.{}.{}.1:4000", n / 250, n % 250))).collect();
    // The clients connect and ask, and read nothing. Of the many that are asked to validate their address at once, some
    // do not get that, and ask again after a second.
    let (began, mut settled) = (attacked.net.now(), 0);
    while settled < SETTLED_STEPS {
        attacked.pass();
        let now = attacked.net.now();
        for (client, fetch) in &mut slow {
            client.turn_at(now).unwrap();
            while let Some((_, event)) = client.poll() {
                if fetch.done_bytes() == 0 {
                    fetch.on(client, Some(event));
                }
            }
        }
        let memory = attacked.server.memory();
        assert!(memory.used_bytes <= memory.total_bytes, "{memory:?}");
        let served = attacked.server.len();
        settled += u32::from(served >= readers);
        assert!(now - began < SERVED_WITHIN, "{served} of {readers} are served");
    }
    let mut client = attacked.client(CLIENT);
    assert_eq!(attacked.fetch(&mut client, Duration::from_secs(20), |_| {}), sum);
    drop(slow);
    for _ in 0..Duration::from_secs(20).div_duration_f64(STEP) as u32 {
        attacked.pass();
    }
    assert_eq!(attacked.server.memory().used_bytes, 0, "all of it is given back");
}

#[test]
fn data_arrives_in_order_with_little_memory() {
    let net = Net::new(Link::new(1000, 10), 1);
    let (tls, trust) = pair();
    let mut server = Endpoint::at(net.wire(SERVER), control(), Config::default(), net.now());
    server.serve(Some(tls));
    // There is room for its buffers of 16 KiB and for little else.
    let config = Config { memory_bytes: 300 << 10, ..Config::default() };
    let mut client = Endpoint::at(net.wire(CLIENT), control(), config, net.now());
    let id = client.connect(trust, SERVER.parse().unwrap(), "localhost").unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut written, mut streams, mut got) = (0, Vec::new(), Vec::new());
    for _ in 0..20_000 {
        net.set_now(net.now() + Duration::from_millis(1));
        client.turn_at(net.now()).unwrap();
        while let Some((_, event)) = client.poll() {
            let mut connection = client.connection(id).unwrap();
            match event {
                Event::Connected => streams.extend(connection.open(Dir::Uni)),
                Event::Stream(StreamEvent::Writable { .. }) => {}
                _ => continue,
            }
            written += connection.write(streams[0], &sent[written..]).unwrap();
        }
        server.turn_at(net.now()).unwrap();
        while let Some((id, event)) = server.poll() {
            let mut connection = server.connection(id).unwrap();
            let stream = match event {
                Event::Stream(StreamEvent::Opened { dir }) => connection.accept(dir).unwrap(),
                Event::Stream(StreamEvent::Readable { id }) => id,
                _ => continue,
            };
            while let Ok(Read::Data(data)) = connection.read(stream, 1 << 16) {
                got.extend_from_slice(&data);
            }
        }
        if got.len() == sent.len() {
            break;
        }
    }
    assert!(got == sent, "{} of {} arrived, {written} written", got.len(), sent.len());
}

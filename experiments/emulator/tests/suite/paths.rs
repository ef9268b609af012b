//! Real flows over several emulated paths, and through a priority queue. These need root; without it they say so and prove nothing.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use crate::emulator::root;
use ccplane_emulator::multi::{RECEIVER, SENDER};
use ccplane_emulator::{Emulator, LinkConfig, MultiPath, Queue, Shape};
use ccplane_testing::{PATIENCE, wait_until, within_tries};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd;

const PORT: u16 = 5003;
const TRIES: u32 = 4;

/// Three paths that differ in delay, up only.
fn paths() -> MultiPath {
    let path = |delay_us| {
        let mut config = LinkConfig::symmetric(Shape::Unlimited, 0);
        config.up.delay_us = delay_us;
        config
    };
    MultiPath::start(&[5_000, 15_000, 30_000].map(path)).unwrap()
}

fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    if v6 { (SENDER.v6.into(), RECEIVER.v6.into()) } else { (SENDER.v4.into(), RECEIVER.v4.into()) }
}

/// A connection whose socket had a mark before its first packet.
fn connect_marked(to: SocketAddr, mark: Option<u32>) -> TcpStream {
    let family = if to.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    if let Some(mark) = mark {
        setsockopt(&fd, sockopt::Mark, &mark).unwrap();
    }
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    TcpStream::from(fd)
}

/// Payload bytes per path that went up since `before`, rounded down to whole kilobytes, by the links' own counters.
fn up_kb(paths: &MultiPath, before: &[u64]) -> Vec<u64> {
    up_bytes(paths).iter().zip(before).map(|(now, before)| (now - before) / 1000).collect()
}

fn up_bytes(paths: &MultiPath) -> Vec<u64> {
    paths.stats().iter().map(|link| link.up.delivered_bytes).collect()
}

/// Sends `bytes` by TCP and waits until they have been answered by a byte.
fn send(stream: &mut TcpStream, bytes: usize) {
    stream.write_all(&vec![7; bytes]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// Takes `bytes` at a time, as often as told, and answers each.
fn take(listener: &TcpListener, bytes: usize, times: usize) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = vec![0; bytes];
    for _ in 0..times {
        stream.read_exact(&mut buffer).unwrap();
        stream.write_all(&[1]).unwrap();
    }
}

#[test]
fn a_flow_takes_the_path_of_its_mark() {
    if !root("a_flow_takes_the_path_of_its_mark") {
        return;
    }
    const BYTES: usize = 300_000;
    let paths = paths();
    for v6 in [false, true] {
        let to = SocketAddr::new(addresses(v6).1, PORT);
        for path in [None, Some(0), Some(1), Some(2)] {
            let listener = paths.receiver_ns().run(|| TcpListener::bind(to)).unwrap().unwrap();
            let before = up_bytes(&paths);
            let delay_ms = std::thread::scope(|scope| {
                scope.spawn(|| take(&listener, BYTES, 1));
                let mark = path.map(MultiPath::mark);
                let start = Instant::now();
                let mut stream = paths.sender_ns().run(|| connect_marked(to, mark)).unwrap();
                let delay_ms = start.elapsed().as_millis();
                send(&mut stream, BYTES);
                assert_eq!(stream.local_addr().unwrap().ip(), addresses(v6).0);
                delay_ms
            });
            let sent = up_kb(&paths, &before);
            let expected = path.unwrap_or(0);
            assert!(
                sent[expected] >= 300 && sent.iter().sum::<u64>() < sent[expected] + 2,
                "{path:?}: {sent:?}"
            );
            assert!(delay_ms >= [5, 15, 30][expected], "{path:?}: {delay_ms} ms");
        }
    }
}

#[test]
fn a_flow_moves_with_its_mark() {
    if !root("a_flow_moves_with_its_mark") {
        return;
    }
    const BYTES: usize = 200_000;
    let paths = paths();
    for v6 in [false, true] {
        let to = SocketAddr::new(addresses(v6).1, PORT);
        let listener = paths.receiver_ns().run(|| TcpListener::bind(to)).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| take(&listener, BYTES, 3));
            let mut stream = paths.sender_ns().run(|| connect_marked(to, None)).unwrap();
            for path in [2, 0, 1] {
                setsockopt(&stream, sockopt::Mark, &MultiPath::mark(path)).unwrap();
                let before = up_bytes(&paths);
                send(&mut stream, BYTES);
                let sent = up_kb(&paths, &before);
                let others = sent.iter().sum::<u64>() - sent[path];
                assert!(sent[path] >= 200 && others < 2, "{path}: {sent:?}");
            }
        });
    }
}

#[test]
fn a_path_can_be_slowed_while_others_are_not() {
    if !root("a_path_can_be_slowed_while_others_are_not") {
        return;
    }
    let paths = paths();
    paths.set_shape(1, ccplane_emulator::Direction::Up, Shape::mbit(8)).unwrap();
    assert!(paths.set_shape(3, ccplane_emulator::Direction::Up, Shape::mbit(8)).is_err());
    let to = SocketAddr::new(RECEIVER.v4.into(), PORT);
    let taken_ms = |path| {
        let listener = paths.receiver_ns().run(|| TcpListener::bind(to)).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| take(&listener, 500_000, 1));
            let mut stream =
                paths.sender_ns().run(|| connect_marked(to, Some(MultiPath::mark(path)))).unwrap();
            let start = Instant::now();
            send(&mut stream, 500_000);
            start.elapsed().as_millis()
        })
    };
    // 500 kB at 8 Mb/s take half a second; the others are as fast as this machine.
    assert!(taken_ms(1) >= 500);
    let stats = paths.stop().unwrap();
    assert!(stats[1].up.opportunities > 300 && stats[2].up.opportunities == 0);
}

#[test]
fn numbers_of_paths_are_checked() {
    let link = LinkConfig::symmetric(Shape::Unlimited, 0);
    for count in [0, 1, 9] {
        let refused = MultiPath::start(&vec![link.clone(); count]).unwrap_err().to_string();
        assert_eq!(refused, format!("paths: {count} is outside 2..=8"));
    }
}

/// Packets that wait before each of them.
const BULK: u32 = 50;
/// Classes of datagrams (RFC 2474), each with the payload by which the link's log tells it from the others, bytes.
const CLASSES: [(i32, usize); 3] = [(0xe0, 100), (0x20, 110), (0, 120)];

/// Returns the times for which datagrams of each class waited in the link's queue behind [`BULK`] full packets of the
/// last class, milliseconds.
fn waited_behind_bulk_ms(v6: bool) -> [Vec<u64>; 3] {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("up.log");
    let mut config = LinkConfig::symmetric(Shape::mbit(12), 1_000);
    config.up.queue = Queue::Priority { packets: Some(2 * BULK), bytes: None };
    config.up.log = Some(log.clone());
    let emulator = Emulator::start(&config).unwrap();
    let pick = |a: ccplane_emulator::Addresses| -> IpAddr { if v6 { a.v6.into() } else { a.v4.into() } };
    let (from, to) = (pick(emulator.sender_addresses()), pick(emulator.receiver_addresses()));
    let far = emulator.receiver_ns().run(|| UdpSocket::bind((to, PORT))).unwrap().unwrap();
    let near = emulator.sender_ns().run(|| UdpSocket::bind((from, PORT))).unwrap().unwrap();
    let bulk = emulator.sender_ns().run(|| UdpSocket::bind((from, 0))).unwrap().unwrap();
    near.connect((to, PORT)).unwrap();
    bulk.connect((to, PORT + 1)).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    for (class, bytes) in CLASSES.into_iter().cycle().take(3 * CLASSES.len()) {
        match v6 {
            true => setsockopt(&near, sockopt::Ipv6TClass, &class).unwrap(),
            false => setsockopt(&near, sockopt::Ipv4Tos, &class).unwrap(),
        }
        wait_until("the queue is empty", || emulator.stats().up.queued_packets == 0);
        for _ in 0..BULK {
            // Nobody listens there, which the next send may be told.
            let _ = bulk.send(&[7; 1400]);
        }
        near.send(&vec![1; bytes]).unwrap();
        assert_eq!(far.recv(&mut [0; 256]).unwrap(), bytes);
    }
    emulator.stop().unwrap();
    let text = std::fs::read_to_string(log).unwrap();
    let departures = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().unwrap();
        (words.len() == 4 && words[1] == "-").then(|| (number(words[2]), number(words[3])))
    });
    let departures: Vec<(u64, u64)> = departures.collect();
    let headers = if v6 { 48 } else { 28 } + 4;
    CLASSES.map(|(_, bytes)| {
        let own = departures.iter().filter(|(size, _)| *size == bytes as u64 + headers);
        own.map(|(_, waited_ms)| *waited_ms).collect()
    })
}

/// Fifty packets take 50 ms at 12 Mb/s; what is served first waits for one. The link's own times tell, which a busy machine does not
/// change; that the queue was still full when a datagram came may take another try.
#[test]
fn a_priority_queue_serves_marked_packets_first() {
    if !root("a_priority_queue_serves_marked_packets_first") {
        return;
    }
    for v6 in [false, true] {
        within_tries("unmarked packets wait in a full queue", TRIES, |_| {
            let [first, second, last] = waited_behind_bulk_ms(v6);
            assert_eq!([first.len(), second.len(), last.len()], [3; 3]);
            assert!(first.iter().chain(&second).all(|waited_ms| *waited_ms <= 3), "{first:?} {second:?}");
            if last.iter().all(|waited_ms| *waited_ms >= 20) { Ok(()) } else { Err(format!("{last:?} ms")) }
        });
    }
}

//! Real packets across emulated links. These need root; without it they say so and prove nothing.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use ccplane_emulator::{Direction, Emulator, LinkConfig, Loss, Queue, Shape, netns};
use ccplane_netsim::trace::Trace;
use ccplane_testing::{PATIENCE, wait_for, within_tries};

const PORT: u16 = 5001;
/// Of a link that is measured: what holds the machine up for a while spoils one.
const TRIES: u32 = 4;

/// Whether to go on; says loudly why not.
pub fn root(test: &str) -> bool {
    if !netns::available() {
        ccplane_testing::skipped(test, "needs root and /dev/net/tun to make network namespaces");
    }
    netns::available()
}

fn udp_pair(emulator: &Emulator, v6: bool) -> (UdpSocket, UdpSocket) {
    let pick = |a: ccplane_emulator::Addresses| -> IpAddr { if v6 { a.v6.into() } else { a.v4.into() } };
    let to = SocketAddr::new(pick(emulator.receiver_addresses()), PORT);
    let from = SocketAddr::new(pick(emulator.sender_addresses()), PORT);
    let receiver = emulator.receiver_ns().run(|| UdpSocket::bind(to)).unwrap().unwrap();
    let sender = emulator.sender_ns().run(|| UdpSocket::bind(from)).unwrap().unwrap();
    sender.connect(to).unwrap();
    receiver.connect(from).unwrap();
    sender.set_read_timeout(Some(PATIENCE)).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    (sender, receiver)
}

/// The round trip of small datagrams, echoed at the far end, milliseconds: the shortest of `count`, as the longer ones tell how
/// busy the machine is.
fn ping_ms(emulator: &Emulator, v6: bool, count: usize) -> f64 {
    let (sender, receiver) = udp_pair(emulator, v6);
    let times = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 64];
            for _ in 0..count {
                let len = receiver.recv(&mut buffer).unwrap();
                receiver.send(&buffer[..len]).unwrap();
            }
        });
        let mut buffer = [0; 64];
        let ping = |n: usize| {
            // Else every ping would start at the same phase of the link's opportunities, right after one.
            std::thread::sleep(Duration::from_micros(n as u64 % 20 * 370));
            let start = Instant::now();
            sender.send(&n.to_le_bytes()).unwrap();
            assert_eq!(sender.recv(&mut buffer).unwrap(), 8);
            assert_eq!(buffer[..8], n.to_le_bytes());
            start.elapsed().as_secs_f64() * 1e3
        };
        (0..count).map(ping).collect::<Vec<f64>>()
    });
    eprintln!("round trips ({}), ms: {times:.2?}", if v6 { "IPv6" } else { "IPv4" });
    times.into_iter().fold(f64::INFINITY, f64::min)
}

/// Sends by TCP for `duration`; returns the bytes that arrived.
fn tcp_bytes(emulator: &Emulator, port: u16, duration: Duration) -> u64 {
    let to = SocketAddr::new(emulator.receiver_addresses().v4.into(), port);
    let listener = emulator.receiver_ns().run(|| TcpListener::bind(to)).unwrap().unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = vec![0; 1 << 17];
            let mut total = 0;
            let start = Instant::now();
            while start.elapsed() < duration {
                match stream.read(&mut buffer).unwrap() {
                    0 => break,
                    n => total += n as u64,
                }
            }
            total
        });
        let mut stream = emulator.sender_ns().run(|| TcpStream::connect(to)).unwrap().unwrap();
        let chunk = vec![7; 1 << 17];
        // The receiver's close ends it.
        while stream.write_all(&chunk).is_ok() {}
        received.join().unwrap()
    })
}

/// Enough for one of them to be held up by nothing else.
const PINGS: usize = 60;

#[test]
fn round_trip_is_twice_the_delay() {
    if !root("round_trip_is_twice_the_delay") {
        return;
    }
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(12), 20_000)).unwrap();
    for v6 in [false, true] {
        let rtt_ms = ping_ms(&emulator, v6, PINGS);
        assert!((40.0..42.0).contains(&rtt_ms), "{rtt_ms} ms");
    }
    let stats = emulator.stop().unwrap();
    let pings = 2 * PINGS as u64;
    assert_eq!((stats.up.delivered_packets, stats.down.delivered_packets), (pings, pings));
    assert_eq!((stats.up.dropped_packets, stats.up.undeliverable_packets), (0, 0));

    // With no bottleneck there is nothing but the delay.
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::Unlimited, 20_000)).unwrap();
    let rtt_ms = ping_ms(&emulator, false, PINGS);
    assert!((40.0..41.0).contains(&rtt_ms), "{rtt_ms} ms");
    emulator.set_delay_us(Direction::Down, 5_000).unwrap();
    let rtt_ms = ping_ms(&emulator, false, PINGS);
    assert!((25.0..26.0).contains(&rtt_ms), "{rtt_ms} ms");
}

#[test]
fn tcp_fills_a_constant_link_and_the_log_agrees() {
    if !root("tcp_fills_a_constant_link_and_the_log_agrees") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("up.log");
    let mut config = LinkConfig::symmetric(Shape::mbit(12), 20_000);
    config.up.queue = Queue::packets(60);
    config.up.log = Some(log.clone());
    let emulator = Emulator::start(&config).unwrap();
    let duration = Duration::from_secs(6);
    let before = emulator.stats();
    let received = tcp_bytes(&emulator, PORT, duration);
    let after = emulator.stats();
    let used = (after.up.delivered_bytes - before.up.delivered_bytes) as f64;
    let utilisation = used / (after.up.capacity_bytes() - before.up.capacity_bytes()) as f64;
    let goodput = received as f64 * 8.0 / duration.as_secs_f64() / 1e6;
    eprintln!("utilisation {utilisation:.4}, goodput {goodput:.2} Mb/s, {:?}", after.up);
    assert!(utilisation >= 0.95, "{utilisation}");
    assert!(goodput > 12.0 * 0.95 * 1448.0 / 1504.0 - 0.3, "{goodput}");

    let up = emulator.stop().unwrap().up;
    assert!(up.dropped_packets > 0, "slow start overruns a queue of 60 packets");
    assert!(up.queueing_delay_max_us < 62_000, "60 packets last 60 ms: {}", up.queueing_delay_max_us);
    assert_eq!(up.offered_packets, up.lost_packets + up.delayed_packets + up.arrived_packets);
    assert_eq!(up.arrived_packets, up.delivered_packets + up.dropped_packets + up.queued_packets);

    let text = std::fs::read_to_string(log).unwrap();
    let lines = |kind: &str| -> Vec<Vec<u64>> {
        let events = text.lines().filter(|line| !line.starts_with('#'));
        let events = events.filter(|line| line.split(' ').nth(1) == Some(kind));
        events.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect()
    };
    let sum = |events: &[Vec<u64>], column: usize| events.iter().map(|event| event[column]).sum::<u64>();
    let (arrivals, departures, drops) = (lines("+"), lines("-"), lines("d"));
    assert_eq!((arrivals.len() as u64, sum(&arrivals, 1)), (up.arrived_packets, up.arrived_bytes));
    assert_eq!((departures.len() as u64, sum(&departures, 1)), (up.delivered_packets, up.delivered_bytes));
    assert_eq!((sum(&drops, 1), sum(&drops, 2)), (up.dropped_packets, up.dropped_bytes));
    assert_eq!(lines("#").len() as u64, up.opportunities);
}

#[test]
fn a_shape_changes_while_packets_flow() {
    if !root("a_shape_changes_while_packets_flow") {
        return;
    }
    // More than 24 Mb/s for 5 ms.
    const IN_FLIGHT_BYTES: u64 = 64 << 10;
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(24), 5_000)).unwrap();
    std::thread::scope(|scope| {
        let flow = scope.spawn(|| tcp_bytes(&emulator, PORT, Duration::from_secs(10)));
        wait_for("a flow that fills the link", || {
            (emulator.stats().up.delivered_bytes > 3 << 20).then_some(())
        });
        let trace = Trace::constant(6).unwrap();
        let traced = Shape::Trace { trace, repeat: true, source: "6 Mb/s".into() };
        emulator.set_shape(Direction::Up, traced).unwrap();
        let changed_at = emulator.stats().up.delivered_bytes;
        wait_for("packets of the new rate", || {
            (emulator.stats().up.delivered_bytes > changed_at + IN_FLIGHT_BYTES).then_some(())
        });
        let measure = |_| {
            let start = emulator.stats();
            // The time that the rate is an average over.
            std::thread::sleep(Duration::from_millis(1500));
            let end = emulator.stats();
            let seconds = (end.at_ns - start.at_ns) as f64 / 1e9;
            (end.up.delivered_bytes - start.up.delivered_bytes) as f64 * 8.0 / seconds / 1e6
        };
        within_tries("the changed rate", TRIES, |n| match measure(n) {
            rate if (5.7..6.3).contains(&rate) => Ok(()),
            rate => Err(format!("{rate} Mb/s")),
        });
        flow.join().unwrap();
    });
}

#[test]
fn losses_repeat_with_their_seed() {
    if !root("losses_repeat_with_their_seed") {
        return;
    }
    let lost = |seed| {
        let mut config = LinkConfig::symmetric(Shape::Unlimited, 0);
        config.up.loss = Loss { probability: 0.2, seed };
        let emulator = Emulator::start(&config).unwrap();
        let (sender, receiver) = udp_pair(&emulator, false);
        let mut seen = Vec::new();
        let mut buffer = [0; 8];
        for n in 0..200u64 {
            sender.send(&n.to_le_bytes()).unwrap();
        }
        let up = wait_for("each packet is lost or delivered", || {
            Some(emulator.stats().up).filter(|up| up.lost_packets + up.delivered_packets == 200)
        });
        for _ in 0..up.delivered_packets {
            receiver.recv(&mut buffer).unwrap();
            seen.push(u64::from_le_bytes(buffer));
        }
        emulator.stop().unwrap();
        assert!(seen.is_sorted());
        seen
    };
    let first = lost(7);
    assert!((130..190).contains(&first.len()), "{}", first.len());
    assert_eq!(first, lost(7));
    assert_ne!(first, lost(8));
}

#[test]
fn hundreds_of_megabits_pass() {
    if !root("hundreds_of_megabits_pass") {
        return;
    }
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(2000), 1_000)).unwrap();
    let duration = Duration::from_secs(2);
    let pass = |n| {
        let mbit_per_s = tcp_bytes(&emulator, PORT + n, duration) as f64 * 8.0 / duration.as_secs_f64() / 1e6;
        if mbit_per_s > 100.0 { Ok(()) } else { Err(format!("{mbit_per_s:.0} Mb/s by one TCP flow")) }
    };
    within_tries("hundreds of megabits", TRIES, |n| pass(n as u16));
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    Duration::from_micros((usage.user_time() + usage.system_time()).num_microseconds() as u64)
}

#[test]
fn many_links_at_once_carry_packets() {
    if !root("many_links_at_once_carry_packets") {
        return;
    }
    const LINKS: usize = 32;
    let config = LinkConfig::symmetric(Shape::mbit(12), 10_000);
    let links: Vec<Emulator> = (0..LINKS).map(|_| Emulator::start(&config).unwrap()).collect();
    let before = cpu();
    std::thread::scope(|scope| {
        for link in &links {
            scope.spawn(move || assert!(ping_ms(link, false, 5) >= 20.0));
        }
    });
    let used = cpu() - before;
    assert!(links.iter().all(|link| link.stats().down.delivered_packets == 5));
    // 320 datagrams; the other tests of this process run beside.
    eprintln!("{LINKS} links: {used:?} of CPU time, this process's other tests included");
}

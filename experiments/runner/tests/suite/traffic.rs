//! Bulk flows over the loopback device of namespaces of our own. Needs root; says so where it cannot run.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ccplane_emulator::netns::{Namespace, available};
use ccplane_runner::Error;
use ccplane_runner::traffic::{BulkFlow, End, FlowConfig, FlowOutcome, MAX_DURATION, check_congestion};
use ccplane_testing::{PATIENCE, wait_until};

fn namespace(test: &str) -> Option<Namespace> {
    if !available() {
        ccplane_testing::skipped(test, "making network namespaces needs root and /dev/net/tun");
        return None;
    }
    Some(Namespace::anonymous().unwrap())
}

fn config(congestion: &str) -> FlowConfig {
    FlowConfig {
        congestion: congestion.into(),
        receiver: SocketAddr::from(([127, 0, 0, 1], 0)),
        duration: Duration::from_millis(400),
        bytes: None,
        sample_every: Duration::from_millis(20),
    }
}

/// TCP sockets in the namespace, listeners and those in TIME_WAIT included.
fn sockets(namespace: &Namespace) -> usize {
    let tables =
        || ["tcp", "tcp6"].map(|t| std::fs::read_to_string(format!("/proc/thread-self/net/{t}")).unwrap());
    namespace.run(|| tables().iter().map(|t| t.lines().count() - 1).sum()).unwrap()
}

/// Threads that serve the flow to this port.
fn threads(port: u16) -> usize {
    let names = ["tx", "rx"].map(|end| format!("ccp-{end}-{port}\n"));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
        .filter(|comm| names.contains(comm))
        .count()
}

fn assert_monotone(outcome: &FlowOutcome) {
    for pair in outcome.samples.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        assert!(a.at_us < b.at_us, "{} then {}", a.at_us, b.at_us);
        assert!(a.info.bytes_acked <= b.info.bytes_acked);
        assert!(a.info.delivered <= b.info.delivered);
        assert!(a.info.total_retrans <= b.info.total_retrans);
        assert!(b.info.snd_cwnd > 0 && b.info.snd_mss_bytes > 0);
    }
}

#[test]
fn reno_and_cubic_for_a_time() {
    let Some(namespace) = namespace("reno_and_cubic_for_a_time") else { return };
    for (congestion, receiver) in
        [("reno", SocketAddr::from(([127, 0, 0, 1], 0))), ("cubic", "[::1]:0".parse().unwrap())]
    {
        let begun = Instant::now();
        let config = FlowConfig { receiver, ..config(congestion) };
        let flow = BulkFlow::start(&config, &namespace, &namespace, begun).unwrap();
        assert_eq!(flow.local().is_ipv6(), receiver.is_ipv6());
        let outcome = flow.finish().unwrap();
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(400) && took < PATIENCE, "{took:?}");
        assert_eq!(outcome.end, End::Duration);
        assert_monotone(&outcome);
        let last = outcome.samples.last().unwrap();
        // Loopback carries well over 100 Mb/s even when the machine is busy.
        assert!(outcome.received_bytes > 5_000_000, "{} bytes", outcome.received_bytes);
        assert!(outcome.received_bytes + 1 >= last.info.bytes_acked, "what was acknowledged was received");
        assert!(last.info.rtt_us > 0 && last.info.min_rtt_us <= last.info.rtt_us * 2);
        assert!((3..=25).contains(&outcome.samples.len()), "{} samples", outcome.samples.len());
        wait_until("no socket is left", || sockets(&namespace) == 0);
    }
}

#[test]
fn a_number_of_bytes_arrives_in_full() {
    let Some(namespace) = namespace("a_number_of_bytes_arrives_in_full") else { return };
    for bytes in [0, 1, 64 * 1024, 3_000_001] {
        let config = FlowConfig { bytes: Some(bytes), duration: Duration::from_secs(20), ..config("cubic") };
        let outcome =
            BulkFlow::start(&config, &namespace, &namespace, Instant::now()).unwrap().finish().unwrap();
        assert_eq!((outcome.received_bytes, outcome.end), (bytes, End::Bytes));
        let (first, last) = (outcome.samples.first().unwrap(), outcome.samples.last().unwrap());
        assert_eq!(last.info.bytes_acked - first.info.bytes_acked, bytes);
    }
    wait_until("no socket is left", || sockets(&namespace) == 0);
}

#[test]
fn a_dropped_flow_is_gone_at_once() {
    let Some(namespace) = namespace("a_dropped_flow_is_gone_at_once") else { return };
    let config = FlowConfig { duration: MAX_DURATION, ..config("reno") };
    let took = || {
        let flow = BulkFlow::start(&config, &namespace, &namespace, Instant::now()).unwrap();
        wait_until("it runs", || flow.latest().is_some_and(|sample| sample.info.bytes_acked > 1));
        let port = flow.remote().port();
        wait_until("both ends run", || threads(port) == 2);
        assert!(!flow.is_finished());
        let begun = Instant::now();
        drop(flow);
        let took = begun.elapsed();
        // The kernel lists a thread for a moment after it was joined.
        wait_until("no thread is left", || threads(port) == 0);
        wait_until("no socket is left", || sockets(&namespace) == 0);
        took
    };
    // On a machine that does nothing else meanwhile; it is about to do so now and then.
    let at_once = (0..10).map(|_| took()).find(|took| *took < Duration::from_millis(500));
    assert!(at_once.is_some());

    let flow = BulkFlow::start(&config, &namespace, &namespace, Instant::now()).unwrap();
    flow.stop();
    assert_eq!(flow.finish().unwrap().end, End::Stopped);
}

#[test]
fn what_cannot_run_is_refused_before_anything_is_made() {
    let Some(namespace) = namespace("what_cannot_run_is_refused_before_anything_is_made") else { return };
    let refused =
        |config: FlowConfig| BulkFlow::start(&config, &namespace, &namespace, Instant::now()).unwrap_err();
    assert!(matches!(refused(config("nosuch")), Error::NoCongestionControl { name } if name == "nosuch"));
    let long = FlowConfig { duration: MAX_DURATION + Duration::from_secs(1), ..config("reno") };
    assert!(matches!(refused(long), Error::Config { field: "duration", .. }));
    let dense = FlowConfig { sample_every: Duration::ZERO, ..config("reno") };
    assert!(matches!(refused(dense), Error::Config { field: "sample_every", .. }));
    let elsewhere = FlowConfig { receiver: SocketAddr::from(([192, 0, 2, 1], 9)), ..config("reno") };
    assert!(matches!(refused(elsewhere), Error::Io { what: "listen", .. }));
    assert_eq!(sockets(&namespace), 0);
    assert!(check_congestion("nosuch").is_err());
    assert!(check_congestion("cubic").is_ok());
}

//! The server over real sockets of this machine: each datapath answers and learns as the server does in memory.

use crate::support::{assert_flood_counted, converse, flood, inputs, portfolio, request, server};
use ccplane_predict::load::{self, Load, Pace};
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, Reply};
use ccplane_predict::{Choice, Key, Notice, Server, ServerCounters, ServerState, Service, sockets, uring};
use ccplane_testing::{PATIENCE, skipped, wait_for};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TURNS: [usize; 4] = [1, 0, 2, 0];
const SEED: [u8; 32] = [5; 32];

type Serve = fn(&UdpSocket, &mut Service, &AtomicBool) -> io::Result<()>;
const DATAPATHS: [(&str, Serve); 2] = [("socket", sockets::serve), ("io_uring", uring::serve)];

/// The reason why the system has no such datapath, with which a server ends before it answers.
fn lack(serve: Serve) -> Option<io::Error> {
    let [socket, asking] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    asking.connect(socket.local_addr().unwrap()).unwrap();
    asking.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let (mut service, _remote) = Service::new(server(&TURNS), SEED);
    let (stop, begun, question) = (AtomicBool::new(false), Instant::now(), request(0, 1, &inputs(0)));
    let answers = || asking.send(&question).is_ok() && asking.recv(&mut [0; MAX_DATAGRAM_BYTES]).is_ok();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&socket, &mut service, &stop));
        while !serving.is_finished() && !answers() && begun.elapsed() < PATIENCE {}
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap().err()
    })
}

/// Runs a client beside a server over loopback; returns what the server has become. `None` where the system has no such datapath.
fn beside(
    (name, serve): (&str, Serve),
    server: Server,
    address: &str,
    client: impl FnOnce(&UdpSocket, &ccplane_predict::Remote),
) -> Option<(Vec<u8>, ServerCounters)> {
    if name == "io_uring"
        && let Some(error) = lack(serve)
    {
        skipped("the prediction server over io_uring", error);
        return None;
    }
    let socket = UdpSocket::bind(address).unwrap();
    let asking = UdpSocket::bind(address).unwrap();
    asking.connect(socket.local_addr().unwrap()).unwrap();
    asking.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (service, remote) = Service::new(server, SEED);
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut service = service;
            if let Err(error) = serve(&socket, &mut service, &stop) {
                *failed.lock().unwrap() = Some(error);
            }
            service.end()
        });
        // A client's panic would leave the server waiting for ever.
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client(&asking, &remote)));
        stop.store(true, Ordering::Relaxed);
        let ended = serving.join().unwrap();
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(failed.lock().unwrap().is_none());
        Some(ended)
    })
}

#[test]
fn every_datapath_gives_the_answers_and_weights_of_the_server_in_memory() {
    for datapath in DATAPATHS {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            if address.starts_with('[') && UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
                skipped("the prediction server over IPv6", "this machine has no ::1");
                continue;
            }
            let mut in_memory = server(&TURNS);
            let mut draws = ChaCha8Rng::from_seed(SEED);
            let ended = beside(datapath, server(&TURNS), address, |client, _| {
                converse(client, &mut in_memory, &mut draws, 500, datapath.0);
            });
            let Some((state, counters)) = ended else { continue };
            assert_eq!(counters, *in_memory.counters());
            assert_eq!(state, in_memory.state(ccplane_predict::Ending::InOrder).encode());
        }
    }
}

#[test]
fn a_flood_is_counted_and_the_others_are_served() {
    for datapath in DATAPATHS {
        let mut answers = 0;
        let ended = beside(datapath, server(&TURNS), "127.0.0.1:0", |client, _| {
            // Other addresses than the client's: each socket is a port of its own.
            let strangers: Vec<UdpSocket> =
                (0..8).map(|n| UdpSocket::bind(format!("127.0.0.{}:0", n + 2)).unwrap()).collect();
            answers = flood::run(client, &strangers, &inputs(1));
        });
        let Some((_, counters)) = ended else { continue };
        assert_flood_counted(&counters, answers);
    }
}

#[test]
fn predictors_are_pushed_to_a_running_server_and_weights_are_handed_out() {
    for datapath in DATAPATHS {
        beside(datapath, server(&[0, 1]), "127.0.0.1:0", |client, remote| {
            let mut reply = [0; MAX_DATAGRAM_BYTES];
            let mut ask = |truth: u8| {
                client.send(&request(0, 1, &inputs(0))).unwrap();
                let length = client.recv(&mut reply).unwrap();
                let reply = Reply::parse(&reply[..length]).unwrap();
                client.send(&reply.feedback(truth)).unwrap();
                reply.class
            };
            for _ in 0..50 {
                assert!(ask(0) < 2);
            }
            let received = || remote.notice(Duration::from_millis(10));
            wait_for("weights are handed out", || match received() {
                Some(Notice::Learned { state, counters }) => {
                    let state = ServerState::parse(&state).unwrap();
                    assert!(state.session.is_none() && counters.right > 0);
                    Some(())
                }
                _ => None,
            });
            assert!(remote.push(portfolio(&[3, 3, 3])));
            wait_for("the new predictors answer", || match received() {
                Some(Notice::Pushed { names }) => (names.len() == 3).then_some(()),
                _ => None,
            });
            for _ in 0..20 {
                assert_eq!(ask(3), 3);
            }
            let other =
                ccplane_predict::Portfolio::new(vec![("p0".to_owned(), crate::support::ranged(0, 9))]);
            assert!(remote.push(Arc::new(other.unwrap())));
            wait_for("others are refused", || matches!(received(), Some(Notice::Refused(_))).then_some(()));
            assert_eq!(ask(3), 3);
        });
    }
}

#[test]
fn loads_count_what_comes_back() {
    let digits = crate::support::digits().split().test;
    let server = || {
        let network = crate::support::turned_digits();
        let networks = vec![("a".to_owned(), network.clone()), ("b".to_owned(), network)];
        let portfolio = ccplane_predict::Portfolio::new(networks).unwrap();
        Server::new(Arc::new(portfolio), &Choice::DEFAULT, Key([1; 16]), None).unwrap()
    };
    for datapath in DATAPATHS {
        for pace in [Pace::OneOutstanding, Pace::OpenLoop(2_000.0)] {
            let load = Load { slot: 1, pace, time: Duration::from_millis(300), feedback: true, spins: false };
            let (mut outcome, mut all_sent) = (load::LoadOutcome::default(), Vec::new());
            let ended = beside(datapath, server(), "127.0.0.1:0", |client, _| {
                let mut ended = |so_far: &load::LoadOutcome| all_sent.push((so_far.sent, so_far.answered));
                outcome = load::run_then(client, &digits, &load, &mut ended).unwrap();
            });
            let Some((_, counters)) = ended else { continue };
            let [(sent, answered)] = all_sent[..] else { panic!("the end is said {} times", all_sent.len()) };
            assert!(sent == outcome.sent && answered <= outcome.answered);
            assert!(outcome.answered > 0 && outcome.answered <= outcome.sent);
            assert!(counters.requests >= outcome.answered && counters.requests <= outcome.sent);
            assert!(counters.right <= outcome.right);
            let [median, worst] = [0.5, 1.0].map(|share| outcome.latency_ns(share).unwrap());
            assert!(median > 0 && median <= worst && worst < 2_000_000_000);
            if pace == Pace::OpenLoop(2_000.0) {
                // Whatever comes back: the rate is the sender's, and a busy machine sends late, not less.
                assert!((590..=601).contains(&outcome.sent), "{}", outcome.sent);
            }
        }
    }
}

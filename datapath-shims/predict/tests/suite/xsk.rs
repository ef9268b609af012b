//! The server over AF_XDP, at one end of a veth pair: the same answers and weights as in memory; other traffic is the kernel's.

use crate::support::{assert_flood_counted, converse, flood, inputs, server};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_predict::packet::MAX_DATAGRAM_BYTES;
use ccplane_predict::xsk::Xsk;
use ccplane_predict::{Ending, ServerCounters, Service};
use ccplane_testing::skipped;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const TURNS: [usize; 4] = [1, 0, 2, 0];
const SEED: [u8; 32] = [8; 32];
const PORT: u16 = 4434;

/// Runs `ip` in a namespace.
fn ip(namespace: &Namespace, arguments: &str) -> String {
    let mut command = Command::new("ip");
    let output = namespace.enter(command.args(arguments.split(' '))).unwrap().output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes two namespaces, named after the test, with a cable between them; `None`, which is said, where there can be none.
fn cable(test: &str) -> Option<[Namespace; 2]> {
    if !netns::available() || Command::new("ip").arg("-V").output().is_err() {
        skipped("the prediction server over AF_XDP", "needs root, /dev/net/tun and iproute2");
        return None;
    }
    let ends = ["a", "b"].map(|end| Namespace::create(&format!("xsk-{test}-{end}")).unwrap());
    ip(&ends[0], &format!("link add veth0 type veth peer name veth0 netns {}", ends[1].name().unwrap()));
    for (n, end) in ends.iter().enumerate() {
        ip(end, &format!("address add 10.9.7.{}/24 dev veth0", n + 1));
        ip(end, &format!("address add fd09:7::{}/64 dev veth0 nodad", n + 1));
        ip(end, "link set veth0 up");
    }
    Some(ends)
}

fn bind(namespace: &Namespace, address: &str) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

/// Runs a client beside a server on this socket; returns what the server has become, and its socket.
fn beside(mut xsk: Xsk, client: impl FnOnce()) -> ((Vec<u8>, ServerCounters), Xsk) {
    let (mut service, _remote) = Service::new(server(&TURNS), SEED);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            xsk.serve(&mut service, &stop).unwrap();
            (service.end(), xsk)
        });
        // A client's panic would leave the server waiting for ever.
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(client));
        stop.store(true, Ordering::Relaxed);
        let ended = served.join().unwrap();
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended
    })
}

#[test]
fn answers_and_weights_are_those_of_the_server_in_memory() {
    let Some([asking, serving]) = cable("answers") else { return };
    let xsk = serving.run(|| Xsk::open("veth0", PORT).unwrap()).unwrap();
    assert!(ip(&serving, "link show veth0").contains("xdp"), "no program is attached");
    let (mut in_memory, mut draws) = (server(&TURNS), ChaCha8Rng::from_seed(SEED));
    let ((state, counters), xsk) = beside(xsk, || {
        for (own, to) in [("10.9.7.1:0", "10.9.7.2"), ("[fd09:7::1]:0", "fd09:7::2")] {
            let client = bind(&asking, own);
            client.connect(SocketAddr::new(to.parse().unwrap(), PORT)).unwrap();
            converse(&client, &mut in_memory, &mut draws, 400, own);
            // Another port's datagrams are the kernel's.
            let other = bind(&serving, &own.replace("7.1:", "7.2:").replace("7::1]", "7::2]"));
            client.connect(other.local_addr().unwrap()).unwrap();
            client.send(b"elsewhere").unwrap();
            assert_eq!(other.recv(&mut [0; MAX_DATAGRAM_BYTES]).unwrap(), 9);
        }
    });
    assert_eq!(counters, *in_memory.counters());
    assert_eq!(state, in_memory.state(Ending::InOrder).encode());
    drop(xsk);
    assert!(!ip(&serving, "link show veth0").contains("xdp"), "the program is still attached");
}

#[test]
fn a_flood_is_counted_and_the_others_are_served() {
    let Some([asking, serving]) = cable("flood") else { return };
    let xsk = serving.run(|| Xsk::open("veth0", PORT).unwrap()).unwrap();
    let (client, strangers) = (bind(&asking, "10.9.7.1:0"), flood::strangers(&asking));
    client.connect(("10.9.7.2", PORT)).unwrap();
    let mut answers = 0;
    let ((_, counters), _xsk) = beside(xsk, || answers = flood::run(&client, &strangers, &inputs(1)));
    assert_flood_counted(&counters, answers);
}

/// The kernel frees what a closed socket held later than it closes.
#[test]
fn an_interface_is_served_again_as_soon_as_its_server_has_ended() {
    let Some([_asking, serving]) = cable("again") else { return };
    for _ in 0..20 {
        drop(serving.run(|| Xsk::open("veth0", PORT).unwrap()).unwrap());
    }
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let refused = Xsk::open("nosuchdevice", PORT).err().unwrap().to_string();
    assert!(refused.contains("find the interface"), "{refused}");
}

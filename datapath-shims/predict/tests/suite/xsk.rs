//! Server and client over AF_XDP, at one end of a veth pair: the same answers and weights as in memory; other traffic is the kernel's.

use crate::support::{assert_flood_counted, converse, digits, flood, inputs, request, server};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::veth::{self, DEVICE};
use ccplane_predict::frame::{Ends, Template};
use ccplane_predict::load::{self, Load, Pace, Transport};
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES};
use ccplane_predict::xsk::{Xsk, XskClient};
use ccplane_predict::{Ending, ServerCounters, Service, sockets};
use ccplane_testing::skipped;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const TURNS: [usize; 4] = [1, 0, 2, 0];
const SEED: [u8; 32] = [8; 32];
const PORT: u16 = 4434;
/// The port of a client over AF_XDP.
const CLIENT_PORT: u16 = 4435;

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

/// Runs a client beside a server; returns what the server has become.
fn beside_server(
    serve: impl FnOnce(&mut Service, &AtomicBool) -> io::Result<()> + Send,
    client: impl FnOnce(),
) -> (Vec<u8>, ServerCounters) {
    let (mut service, _remote) = Service::new(server(&TURNS), SEED);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            serve(&mut service, &stop).unwrap();
            service.end()
        });
        // A client's panic would leave the server waiting for ever.
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(client));
        stop.store(true, Ordering::Relaxed);
        let ended = served.join().unwrap();
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended
    })
}

/// Runs a client beside a server on this socket; returns what the server has become, and its socket.
fn beside(mut xsk: Xsk, client: impl FnOnce()) -> ((Vec<u8>, ServerCounters), Xsk) {
    let ended = beside_server(|service, stop| xsk.serve(service, stop), client);
    (ended, xsk)
}

/// The ends of a client's datagrams over a cable.
fn ends([asking, serving]: &[Namespace; 2]) -> Ends {
    let macs = [asking, serving].map(|end| veth::mac(end).unwrap());
    let address = |host, port| SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, host), port);
    Ends { macs, addresses: [address(1, CLIENT_PORT), address(2, PORT)] }
}

/// Puts frames on the cable at a namespace's end, as they are.
fn inject(namespace: &Namespace, frames: &[Vec<u8>]) {
    let inject = || {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just given us this descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the name ends with 0.
        let interface = unsafe { libc::if_nametoindex(c"veth0".as_ptr()) };
        let to = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0; 8],
        };
        let to_bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        for frame in frames {
            let (start, to) = (frame.as_ptr().cast(), (&raw const to).cast());
            // SAFETY: the frame and the address are live and of the lengths given.
            let sent = unsafe { libc::sendto(socket.as_raw_fd(), start, frame.len(), 0, to, to_bytes) };
            assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
        }
    };
    namespace.run(inject).unwrap();
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

#[test]
fn a_client_over_af_xdp_has_the_answers_that_a_socket_has() {
    let Some(cable) = cable("client") else { return };
    let [asking, serving] = &cable;
    for over_af_xdp in [false, true] {
        let (mut in_memory, mut draws) = (server(&TURNS), ChaCha8Rng::from_seed(SEED));
        let socket = bind(serving, &format!("10.9.7.2:{PORT}"));
        let ended = beside_server(
            |service, stop| sockets::serve(&socket, service, stop),
            || {
                if over_af_xdp {
                    let ends = ends(&cable);
                    let client = asking.run(|| XskClient::open(DEVICE, ends).unwrap()).unwrap();
                    converse(client, &mut in_memory, &mut draws, 400, "AF_XDP");
                } else {
                    let client = bind(asking, "10.9.7.1:0");
                    client.connect(("10.9.7.2", PORT)).unwrap();
                    converse(&client, &mut in_memory, &mut draws, 400, "a socket");
                }
            },
        );
        assert_eq!(ended, (in_memory.state(Ending::InOrder).encode(), *in_memory.counters()));
    }
    assert!(!ip(asking, "link show veth0").contains("xdp"), "the program is still attached");
}

#[test]
fn a_client_over_af_xdp_owns_its_port_and_no_other() {
    let Some(cable) = cable("port") else { return };
    let [asking, serving] = &cable;
    let mut ends = ends(&cable);
    ends.addresses[0].set_port(0);
    let client = asking.run(|| XskClient::open(DEVICE, ends).unwrap()).unwrap();
    let own = client.ends().addresses[0];
    assert_ne!(own.port(), 0);
    let taken = asking.run(|| UdpSocket::bind(own)).unwrap();
    assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    // Another port's datagrams are the kernel's.
    let (other, sender) = (bind(asking, "10.9.7.1:0"), bind(serving, "10.9.7.2:0"));
    sender.send_to(b"elsewhere", other.local_addr().unwrap()).unwrap();
    assert_eq!(other.recv(&mut [0; MAX_DATAGRAM_BYTES]).unwrap(), 9);
}

#[test]
fn frames_that_are_damaged_or_of_others_are_no_replies() {
    let Some(cable) = cable("damaged") else { return };
    let [asking, serving] = &cable;
    let ends = ends(&cable);
    let mut client = asking.run(|| XskClient::open(DEVICE, ends).unwrap()).unwrap();
    let mut reply = [0; MESSAGE_BYTES];
    assert!(server(&TURNS).handle(&request(0, 5, &inputs(0)), 0, &mut reply));
    let Ends { macs: [own, far], addresses: [to, from] } = ends;
    let frame = |from, to| {
        let mut frame = vec![0; 2048];
        let backwards = Ends { macs: [far, own], addresses: [from, to] };
        let length = Template::new(backwards).write(&mut frame, &reply).unwrap();
        frame.truncate(length);
        frame
    };
    let moved = |address: SocketAddrV4| SocketAddrV4::new(*address.ip(), address.port() + 1);
    let good = frame(from, to);
    let (mut damaged, mut short, mut fragment) = (good.clone(), good.clone(), good.clone());
    damaged[good.len() - 1] ^= 1;
    short.truncate(good.len() - 1);
    fragment[20] |= 0x20;
    let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, 3), PORT);
    let bad = [damaged, short, fragment, frame(moved(from), to), frame(from, moved(to)), frame(stranger, to)];
    // The last one is good, so that what came before it was seen.
    inject(serving, &[&bad[..], std::slice::from_ref(&good)].concat());
    client.wait_at_most(Some(Duration::from_secs(5))).unwrap();
    let mut received = [0; MAX_DATAGRAM_BYTES];
    assert_eq!(client.receive(&mut received).unwrap(), Some(MESSAGE_BYTES));
    assert_eq!(received[..MESSAGE_BYTES], reply);
    client.wait_at_most(None).unwrap();
    assert_eq!(client.receive(&mut received).unwrap(), None);
    // Nobody answers this load, so what it counts is what was put there.
    inject(serving, &[&bad[..], &[good], &bad[..]].concat());
    let time = Duration::from_millis(100);
    let load = Load { slot: 0, pace: Pace::OneOutstanding, time, feedback: false, spins: true };
    let outcome = load::run(&mut client, &digits().split().test, &load).unwrap();
    assert_eq!((outcome.sent, outcome.answered), (1, 1));
    // A late reply can be forgotten before the next load: once the one before it has come, it is there or about to be.
    inject(serving, &[frame(from, to), frame(from, to)]);
    client.wait_at_most(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(client.receive(&mut received).unwrap(), Some(MESSAGE_BYTES));
    client.forget();
    client.wait_at_most(None).unwrap();
    assert_eq!(client.receive(&mut received).unwrap(), None);
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

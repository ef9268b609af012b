//! The server at one end of a virtual cable, a client with ordinary sockets at the other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::support::flood::{self, FLOOD};
use crate::support::{KEY, PORT, WIDTHS, below, options, portfolio, request, rng};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::veth::{self, DEVICE, ENDS};
use ccplane_infer::Bits;
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, Reply};
use ccplane_predict::{Choice, Refusal, Server};
use ccplane_predict_xdp::{Attachment, Counter, Plain, Random, XdpMode, XdpServer};

/// Time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which no answer is expected any more.
const SILENCE: Duration = Duration::from_millis(200);
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];

/// Two namespaces with a cable; a program at the client's end, since the driver asks for one at both.
struct Lab {
    client: Namespace,
    server: Namespace,
    _pass: Attachment,
}

impl Lab {
    fn new(check: &str) -> Option<Lab> {
        if !netns::available() {
            ccplane_testing::skipped(check, "network namespaces need root");
            return None;
        }
        let (client, server) = (Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap());
        veth::connect(&client, &server).unwrap();
        let pass = match Plain::pass() {
            Ok(pass) => pass,
            Err(error) => {
                ccplane_testing::skipped(check, error);
                return None;
            }
        };
        let pass = client.run(|| pass.attach(DEVICE, XdpMode::Native)).unwrap().unwrap();
        Some(Lab { client, server, _pass: pass })
    }

    fn attach(&self, server: &XdpServer) -> Attachment {
        self.server.run(|| server.attach(DEVICE, XdpMode::Native)).unwrap().unwrap()
    }

    fn socket(&self, to: IpAddr) -> UdpSocket {
        let any: SocketAddr =
            if to.is_ipv6() { "[::]:0".parse().unwrap() } else { "0.0.0.0:0".parse().unwrap() };
        let socket = self.client.run(|| UdpSocket::bind(any).unwrap()).unwrap();
        socket.connect((to, PORT)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Gives both ends an IPv6 address; false, and the reason is said, without iproute2.
    fn add_v6(&self, check: &str) -> bool {
        for (namespace, address) in [(&self.client, V6[0]), (&self.server, V6[1])] {
            let mut ip = Command::new("ip");
            ip.args(["address", "add", &format!("{address}/64"), "dev", DEVICE, "nodad"]);
            match namespace.enter(&mut ip).unwrap().status() {
                Ok(status) => assert!(status.success()),
                Err(error) => {
                    ccplane_testing::skipped(check, format!("ip: {error}"));
                    return false;
                }
            }
        }
        true
    }
}

fn ask(socket: &UdpSocket, slot: u8, id: u64, inputs: &[u8]) -> Reply {
    socket.send(&request(slot, id, inputs)).unwrap();
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let length = socket.recv(&mut bytes).unwrap();
    let reply = Reply::parse(&bytes[..length]).unwrap();
    assert_eq!((reply.slot, reply.id), (slot, id));
    reply
}

/// The stack verifies the checksums of replies, as they come from a device that verifies none.
#[test]
fn serves_sockets_and_is_gone_when_dropped() {
    const CHECK: &str = "a server in XDP on a cable";
    let Some(lab) = Lab::new(CHECK) else { return };
    let portfolio = portfolio(21, 10, Bits::W8, &WIDTHS, (0, 16));
    let server = XdpServer::load(&options(Random::Kernel), &portfolio, None).unwrap();
    let attached = lab.attach(&server);
    let mut random = rng(22);
    let mut addresses = vec![ENDS[1]];
    if lab.add_v6(CHECK) {
        addresses.push(V6[1].into());
    }
    let mut asked = 0;
    for address in &addresses {
        let socket = lab.socket(*address);
        for id in 0..200 {
            let inputs: Vec<u8> = (0..WIDTHS[0]).map(|_| below(&mut random, 17) as u8).collect();
            let reply = ask(&socket, (id % 2) as u8, id, &inputs);
            socket.send(&reply.feedback(reply.class)).unwrap();
            asked += 1;
        }
    }
    ccplane_testing::wait_for("all feedback", || (server.count(Counter::Right) == asked).then_some(()));
    assert_eq!(server.count(Counter::Requests), asked);
    // Weights go on in a server of user space, as in the next one here.
    let state = server.state();
    let next = Server::new(portfolio.clone(), &Choice::DEFAULT, KEY, Some(&state)).unwrap();
    for (n, slot) in next.slots().iter().enumerate() {
        assert_eq!(server.deficits(n), slot.weights.deficits());
        assert!(server.deficits(n).iter().any(|deficit| *deficit > 0), "slot {n} has learned nothing");
    }
    let again = XdpServer::load(&options(Random::Kernel), &portfolio, Some(&state)).unwrap();
    assert_eq!(
        (0..2).map(|n| again.deficits(n)).collect::<Vec<_>>(),
        (0..2).map(|n| server.deficits(n)).collect::<Vec<_>>()
    );
    assert_eq!(again.epoch(), server.epoch() + 1);
    drop(attached);
    let socket = lab.socket(ENDS[1]);
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.send(&request(0, 1, &[0; WIDTHS[0]])).unwrap();
    socket.recv(&mut [0; MAX_DATAGRAM_BYTES]).unwrap_err();
}

/// Requests are answered throughout, each by a predictor of before or after.
#[test]
fn predictors_are_replaced_while_requests_are_answered() {
    let Some(lab) = Lab::new("replacing predictors in XDP") else { return };
    let portfolios = [31, 32].map(|seed| portfolio(seed, 10, Bits::W8, &WIDTHS, (0, 16)));
    let mut server = XdpServer::load(&options(Random::Kernel), &portfolios[0], None).unwrap();
    let _attached = lab.attach(&server);
    let (stop, socket) = (AtomicBool::new(false), lab.socket(ENDS[1]));
    let asked = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut asked = 0;
            while !stop.load(Relaxed) {
                let reply = ask(&socket, (asked % 2) as u8, asked, &[3; WIDTHS[0]]);
                socket.send(&reply.feedback(reply.class)).unwrap();
                asked += 1;
            }
            asked
        });
        for n in 1..200 {
            server.push(&portfolios[n % 2]).unwrap();
        }
        stop.store(true, Relaxed);
        client.join().unwrap()
    });
    assert!(asked > 0);
    let told = |server: &XdpServer| {
        let outdated = Counter::Refused(Refusal::Outdated);
        server.count(Counter::Right) + server.count(outdated)
    };
    ccplane_testing::wait_for("all feedback", || (told(&server) == asked).then_some(()));
    assert_eq!((server.count(Counter::Requests), server.count(Counter::Overtaken)), (asked, 0));
    assert_eq!(server.epoch(), 200);
}

#[test]
fn a_flood_is_counted_and_the_others_are_served() {
    const CHECK: &str = "a flood against a server in XDP";
    let Some(lab) = Lab::new(CHECK) else { return };
    if let Err(error) = Command::new("ip").arg("-V").output() {
        return ccplane_testing::skipped(CHECK, format!("ip: {error}"));
    }
    let portfolio = portfolio(51, 10, Bits::W8, &WIDTHS, (0, 16));
    let server = XdpServer::load(&options(Random::Kernel), &portfolio, None).unwrap();
    let _attached = lab.attach(&server);
    let (client, strangers) = (lab.socket(ENDS[1]), flood::strangers(&lab.client));
    let answers = flood::run(&client, &strangers, &[3; WIDTHS[0]]);
    let refused = |why| server.count(Counter::Refused(why));
    assert_eq!(server.count(Counter::Right) + server.count(Counter::Wrong), 0);
    let all: u64 = Refusal::ALL.into_iter().map(refused).sum();
    assert_eq!(refused(Refusal::Short) + refused(Refusal::Magic), all);
    assert!(all > FLOOD / 100);
    assert!(server.count(Counter::Requests) >= answers);
}

/// Processors that update at once lose nothing: the deficits are those of the same rewards in any order.
#[test]
fn no_update_is_lost_between_processors() {
    let portfolio = portfolio(41, 2, Bits::W8, &[4, 2], (0, 255));
    let server = match XdpServer::load(&options(Random::Kernel), &portfolio, None) {
        Ok(server) => server,
        Err(error) => return ccplane_testing::skipped("updates by two processors", error),
    };
    const EACH: u64 = 20_000;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for id in 0..EACH {
                    let headers = crate::support::Headers::PLAIN;
                    let packet = headers.packet(&request(1, id, &[thread, 2, 3, 4]));
                    let run = server.run(&packet).unwrap();
                    let reply = Reply::parse(headers.reply(&packet, &run.packet)).unwrap();
                    server.run(&headers.packet(&reply.feedback(reply.class))).unwrap();
                }
            });
        }
    });
    assert_eq!(server.count(Counter::Requests), 4 * EACH);
    assert_eq!(server.count(Counter::Right), 4 * EACH);
    assert_eq!(server.updates(1), 4 * EACH);
}

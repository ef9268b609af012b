//! Decisions about packets: the traffic classes with which a server's datagrams arrive.

use crate::marks::{Reader, Scheduled, assert_falls_as_pias_says};
use ccplane_contract::{Datapath, Mode};
use ccplane_quic::UdpWire;
use std::net::UdpSocket;

/// The first, which ends in the fifth priority, and one that never leaves the first.
const LONG_BYTES: u64 = 1 << 20;
const SHORT_BYTES: u64 = 2000;
/// The bits of a datagram that may be marked by a congested queue.
const ECT_0: u8 = 2;

fn bind(host: &str) -> Option<UdpSocket> {
    let bound = UdpSocket::bind(format!("{host}:0"));
    bound.inspect_err(|error| ccplane_testing::skipped("code points", error)).ok()
}

fn scheduled(host: &str, algorithm: Option<&str>) -> Option<(Scheduled<UdpWire>, UdpSocket)> {
    let (server, client) = (bind(host)?, bind(host)?);
    Some((Scheduled::new(UdpWire::over(server).unwrap(), algorithm), client))
}

fn all_done(clients: &[&mut Reader]) -> bool {
    clients.iter().all(|client| client.is_done)
}

#[test]
fn datagrams_leave_with_the_code_point_that_pias_asks_for() {
    for host in ["127.0.0.1", "[::1]"] {
        let Some((mut server, socket)) = scheduled(host, Some("pias")) else { continue };
        server.next_bytes = LONG_BYTES;
        let mut client = server.client(socket);
        server.run(&mut [&mut client], all_done);
        assert_eq!(client.read_bytes, LONG_BYTES);
        assert_eq!(assert_falls_as_pias_says(&client), 4, "{host}");
        let marked: Vec<u8> =
            client.seen().iter().map(|(class, _)| *class).filter(|class| class >> 2 != 0).collect();
        assert!(marked.iter().all(|class| class & 3 == ECT_0), "{host}: the marks' bits are others'");
        let flows = server.packets.flows();
        assert_eq!((flows.len(), flows[0].mode), (1, Mode::Program));
    }
}

/// Two connections share the server's socket.
#[test]
fn a_code_point_is_its_packets_own() {
    let Some((mut server, socket)) = scheduled("127.0.0.1", Some("pias")) else { return };
    server.next_bytes = LONG_BYTES;
    let mut long = server.client(socket);
    server.run(&mut [&mut long], |clients| clients[0].read_bytes > LONG_BYTES / 2);
    server.next_bytes = SHORT_BYTES;
    let mut short = server.client(bind("127.0.0.1").unwrap());
    server.run(&mut [&mut long, &mut short], all_done);
    assert_eq!(assert_falls_as_pias_says(&long), 4);
    assert_eq!(assert_falls_as_pias_says(&short), 0);
    assert!(!short.priorities().is_empty());
}

#[test]
fn without_a_program_datagrams_have_no_code_point() {
    let Some((mut server, socket)) = scheduled("127.0.0.1", None) else { return };
    server.next_bytes = SHORT_BYTES;
    let mut client = server.client(socket);
    server.run(&mut [&mut client], all_done);
    assert!(client.seen().iter().all(|(class, _)| class >> 2 == 0), "{:?}", client.seen());
}

//! Decisions about packets on a DPDK port: the traffic classes with which a server's datagrams arrive at a kernel socket.

use crate::cable::{self, Cable};
use crate::marks::{Scheduled, assert_falls_as_pias_says};
use crate::transfer::{CLIENT, SERVER, UDP_PORT, wires};
use std::net::UdpSocket;

const BYTES: u64 = 1 << 20;

#[test]
fn datagrams_leave_with_the_code_point_that_pias_asks_for() {
    let Some(cable) = Cable::new("packets") else { return };
    cable::ip(&cable.b, &format!("address add {CLIENT}/24 dev veth0"));
    let wire = cable.a.run(|| wires("af_packet", SERVER, UDP_PORT, 1)).unwrap().remove(0);
    let socket = cable.b.run(|| UdpSocket::bind((CLIENT, 0))).unwrap().unwrap();
    let mut server = Scheduled::new(wire, Some("pias"));
    server.next_bytes = BYTES;
    let mut client = server.client(socket);
    server.run(&mut [&mut client], |clients| clients[0].is_done);
    assert_eq!(client.read_bytes, BYTES);
    assert_eq!(assert_falls_as_pias_says(&client), 4);
}

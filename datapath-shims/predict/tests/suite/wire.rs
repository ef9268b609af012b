//! The server over a wire, as over a DPDK port: the same answers and weights as in memory, whatever comes together.

use crate::support::flood::FLOOD;
use crate::support::{INPUTS, inputs, request, server};
use ccplane_predict::packet::{MESSAGE_BYTES, Reply};
use ccplane_predict::{Ending, Refusal, Service, wire};
use ccplane_quic::{Datagram, Wire};
use quinn_proto::Transmit;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TURNS: [usize; 4] = [1, 0, 2, 0];
const SEED: [u8; 32] = [9; 32];
const REQUESTS: usize = 400;
/// Datagrams that come together, at most.
const MOST: u32 = 7;
/// Two clients, and the server's address that each of them asks.
const CLIENTS: [(&str, &str); 2] = [("10.0.0.1:700", "10.0.0.9"), ("[fd00::1]:701", "fd00::9")];

/// A reply, to whom it went, and the address that it went from.
type Sent = (SocketAddr, Option<IpAddr>, Vec<u8>);

/// A wire whose datagrams come from a list, a few at a time. It has no room for each `full_every`th reply.
struct Scripted<'a> {
    arrives: VecDeque<(SocketAddr, IpAddr, Vec<u8>)>,
    random: ChaCha8Rng,
    full_every: usize,
    offered: usize,
    sent: Vec<Sent>,
    waits: usize,
    stop: &'a AtomicBool,
}

impl<'a> Scripted<'a> {
    fn new(
        arrives: VecDeque<(SocketAddr, IpAddr, Vec<u8>)>,
        full_every: usize,
        stop: &'a AtomicBool,
    ) -> Self {
        let random = ChaCha8Rng::from_seed(SEED);
        Scripted { arrives, random, full_every, offered: 0, sent: Vec::new(), waits: 0, stop }
    }
}

impl Wire for Scripted<'_> {
    fn local_addr(&self) -> SocketAddr {
        "[::]:7117".parse().unwrap()
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        // Now and then nothing is there.
        let many = (self.random.next_u32() % (MOST + 1)) as usize;
        let together: Vec<_> = self.arrives.drain(..many.min(self.arrives.len())).collect();
        for (remote, own, payload) in &together {
            let payload = payload.iter().copied().collect();
            each(Datagram { remote: *remote, local_ip: Some(*own), ecn: None, payload });
        }
        if self.arrives.is_empty() {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(together.len())
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        assert_eq!((to.size, to.segment_size, payload.len()), (MESSAGE_BYTES, None, MESSAGE_BYTES));
        self.offered += 1;
        let has_room = self.full_every == 0 || !self.offered.is_multiple_of(self.full_every);
        if has_room {
            self.sent.push((to.destination, to.src_ip, payload.to_vec()));
        }
        Ok(has_room)
    }

    fn max_segments(&self) -> usize {
        1
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        self.waits += 1;
        Ok(())
    }
}

/// Serves requests, what is broken of them, and feedback; holds all against the server in memory.
fn serve(full_every: usize) {
    let (mut in_memory, mut draws) = (server(&TURNS), ChaCha8Rng::from_seed(SEED));
    let (mut arrives, mut expected) = (VecDeque::new(), Vec::new());
    for n in 0..REQUESTS {
        let (client, own) = CLIENTS[n % 2];
        let (client, own): (SocketAddr, IpAddr) = (client.parse().unwrap(), own.parse().unwrap());
        let asked = request((n / 2 % 2) as u8, n as u64, &inputs(n % INPUTS));
        let mut reply = [0; MESSAGE_BYTES];
        let broken = &asked[..n % 40];
        assert!(!in_memory.handle(broken, draws.next_u32(), &mut reply));
        assert!(in_memory.handle(&asked, draws.next_u32(), &mut reply));
        let feedback = Reply::parse(&reply).unwrap().feedback((n % INPUTS) as u8);
        expected.push((client, Some(own), reply.to_vec()));
        assert!(!in_memory.handle(&feedback, draws.next_u32(), &mut reply));
        arrives.extend([broken.to_vec(), asked, feedback.to_vec()].map(|bytes| (client, own, bytes)));
    }
    let stop = AtomicBool::new(false);
    let mut scripted = Scripted::new(arrives, full_every, &stop);
    let (mut service, _remote) = Service::new(server(&TURNS), SEED);
    wire::serve(&mut scripted, &mut service, &stop).unwrap();
    assert!(scripted.waits > 0, "it waits where nothing comes");
    // A reply for which there was no room is lost, and nothing else with it.
    let is_sent = |n: &usize| full_every == 0 || !(n + 1).is_multiple_of(full_every);
    let kept: Vec<Sent> = (0..REQUESTS).filter(is_sent).map(|n| expected[n].clone()).collect();
    assert_eq!(scripted.sent, kept);
    let (state, counters) = service.end();
    assert_eq!(counters, *in_memory.counters());
    assert_eq!(state, in_memory.state(Ending::InOrder).encode());
}

#[test]
fn answers_and_weights_are_those_of_the_server_in_memory() {
    serve(0);
}

#[test]
fn a_wire_without_room_loses_replies_and_no_weights() {
    serve(5);
}

/// Each datagram of the flood is of an address of its own.
#[test]
fn a_flood_is_counted_and_the_others_are_served() {
    const EVERY: u64 = 100;
    let (client, own) = CLIENTS[0];
    let (client, own): (SocketAddr, IpAddr) = (client.parse().unwrap(), own.parse().unwrap());
    let mut arrives = VecDeque::new();
    for n in 0..FLOOD {
        let stranger = SocketAddr::new(IpAddr::from([198, 51, (n >> 8) as u8, n as u8]), 700);
        arrives.push_back((stranger, own, vec![0x43; (n % 600) as usize]));
        if n.is_multiple_of(EVERY) {
            arrives.push_back((client, own, request(0, n, &inputs(1))));
        }
    }
    let stop = AtomicBool::new(false);
    let mut scripted = Scripted::new(arrives, 0, &stop);
    let (mut service, _remote) = Service::new(server(&TURNS), SEED);
    wire::serve(&mut scripted, &mut service, &stop).unwrap();
    assert_eq!(scripted.sent.len() as u64, FLOOD / EVERY);
    assert!(scripted.sent.iter().all(|(to, _, _)| *to == client), "a stranger was answered");
    let (_, counters) = service.end();
    let refused = counters.refused(Refusal::Short) + counters.refused(Refusal::Magic);
    assert_eq!((counters.requests, refused, counters.all_refused()), (FLOOD / EVERY, FLOOD, FLOOD));
}

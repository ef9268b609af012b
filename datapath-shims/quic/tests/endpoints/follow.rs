//! `follow_cores`: a server runs where the system handles its datagrams.

use crate::common::live_engine;
use ccplane_quic::{Config, Endpoint, UdpWire, Wire};
use ccplane_testing::{skipped, wait_until};
use ccplane_wait::affinity::{self, LOOKS, pin};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

/// The longest sleep of the server, which a datagram ends before.
const LONGEST: Duration = Duration::from_millis(20);

/// Ends a thread however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Loopback handles a datagram on its sender's core, which another thread keeps busy: the scheduler alone would have the
/// server run beside it.
#[test]
fn a_server_moves_to_the_core_of_its_datagrams() {
    /// Turns in a row after which the server stays there.
    const STAYS: usize = 2 * LOOKS as usize;
    let cores = affinity::cores().unwrap();
    if cores.len() < 2 || !nix::unistd::geteuid().is_root() {
        return skipped("a server that follows its datagrams", "it takes two cores, and CAP_BPF");
    }
    let (stop, ran_on) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let stop = Stop(&stop);
        let (stopped, ran_on) = (stop.0, &ran_on);
        scope.spawn(move || {
            let (engine, _handle) = live_engine();
            let wire = UdpWire::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            tell.send(wire.local_addr()).unwrap();
            let config = Config { follow_cores: true, ..Config::default() };
            let mut server = Endpoint::new(wire, engine, config);
            while !stopped.load(Ordering::Relaxed) {
                server.turn(LONGEST).unwrap();
                ran_on.lock().unwrap().push(affinity::here().unwrap());
            }
        });
        let to = told.recv().unwrap();
        for core in cores {
            let _pinned = pin(core).unwrap();
            let alone = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let leaves = Stop(&alone);
                scope.spawn(|| {
                    while !alone.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                wait_until("the server stays on the sender's core", || {
                    socket.send_to(b"no packet of QUIC", to).unwrap();
                    let ran_on = ran_on.lock().unwrap();
                    ran_on.iter().rev().take(STAYS).filter(|on| **on == core).count() == STAYS
                });
                drop(leaves);
            });
        }
    });
}

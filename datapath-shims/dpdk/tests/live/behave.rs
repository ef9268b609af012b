//! The contract's suite on QUIC flows over two DPDK ports. Frames cross the cable in real time; all else runs in steps of that.

use crate::cable::Cable;
use crate::harness::{Live, Time};
use crate::transfer::{CLIENT, SERVER, UDP_PORT, wires};
use ccplane_contract::suite::behaviour::behave;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// A datagram sent in one step arrives in the next.
const STEP: Duration = Duration::from_micros(500);

struct Steps(Instant);

impl Time for Steps {
    fn now(&self) -> Instant {
        self.0
    }
    /// Each step takes its time in reality, too: on a busy machine the kernel hands frames over late.
    fn set_now(&mut self, now: Instant) {
        thread::sleep(now - self.0);
        self.0 = now;
    }
    fn next(&self, _: &[SocketAddr]) -> Option<Instant> {
        Some(self.0 + STEP)
    }
}

#[test]
fn keeps_the_contract() {
    let Some(cable) = Cable::new("behave") else { return };
    let result = behave(&mut || {
        let server = cable.a.run(|| wires("af_packet", SERVER, UDP_PORT, 1))?.remove(0);
        let client = cable.b.run(|| wires("af_packet", CLIENT, 0, 1))?.remove(0);
        Ok(Box::new(Live::new("dpdk", Steps(Instant::now()), [server, client])))
    });
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

//! The contract's suite on QUIC flows over two DPDK ports. Frames cross the cable in real time; all else runs in steps.

use crate::cable::{Cable, mac};
use crate::harness::{Live, Time};
use crate::transfer::{CLIENT, SERVER, UDP_PORT, wires_beside};
use ccplane_contract::suite::behaviour::{HarnessError, behave};
use ccplane_dpdk::DpdkWire;
use ccplane_emulator::netns::Namespace;
use ccplane_quic::quinn_proto::Transmit;
use ccplane_quic::{Datagram, Forward, Wire};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A datagram sent in one step arrives in the next.
const STEP: Duration = Duration::from_micros(500);

struct Steps(Instant);

impl Time for Steps {
    fn now(&self) -> Instant {
        self.0
    }
    fn set_now(&mut self, now: Instant) {
        self.0 = now;
    }
    fn next(&self, _: &[SocketAddr]) -> Option<Instant> {
        Some(self.0 + STEP)
    }
}

/// One end of the cable. Steps without work take less than a microsecond, and a busy kernel hands frames over
/// milliseconds late. So while a datagram is on its way here, a step waits for it, at most as long in reality as the
/// step lasts.
struct End {
    wire: DpdkWire,
    /// Datagrams that this end has sent.
    sent: Rc<Cell<u64>>,
    /// Datagrams that the other end has sent.
    due: Rc<Cell<u64>>,
}

impl Forward for End {
    type Inner = DpdkWire;

    fn inner(&self) -> &DpdkWire {
        &self.wire
    }

    fn inner_mut(&mut self) -> &mut DpdkWire {
        &mut self.wire
    }

    fn forward_receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let until = Instant::now() + STEP;
        let mut count = self.wire.receive(each)?;
        while self.wire.counters().received < self.due.get() && Instant::now() < until {
            self.wire.wait(until.saturating_duration_since(Instant::now()))?;
            count += self.wire.receive(each)?;
        }
        // With more than was sent to it, a step would wait for nothing, and a handshake's time pass in a moment.
        let (received, due) = (self.wire.counters().received, self.due.get());
        assert!(received <= due, "{received} datagrams received of {due} that were sent here");
        Ok(count)
    }

    fn forward_send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        let sent = self.wire.send(to, payload)?;
        self.sent.set(self.wire.counters().sent);
        Ok(sent)
    }
}

#[test]
fn keeps_the_contract() {
    let Some(cable) = Cable::new("behave") else { return };
    // Neighbours are known: while they are asked for nothing is due, so that a handshake's ten seconds of steps are over
    // before a busy kernel hands over an answer.
    let knows = |address: &str, end| vec![(address.parse().unwrap(), mac(end).parse().unwrap())];
    let (a, b) = (knows(CLIENT, &cable.b), knows(SERVER, &cable.a));
    // Each case has ports of its own: what the kernel hands over late of the case before is not counted.
    let mut ports = UDP_PORT..=u16::MAX;
    let result = behave(&mut || {
        let mut wire = |end: &Namespace, address, neighbours: &Vec<_>| {
            let port = ports.next().ok_or("no port is left")?;
            Ok::<_, HarnessError>(
                end.run(|| wires_beside("af_packet", address, port, 1, neighbours.clone()))?.remove(0),
            )
        };
        let server = wire(&cable.a, SERVER, &a)?;
        let client = wire(&cable.b, CLIENT, &b)?;
        let (by_server, by_client) = (Rc::default(), Rc::default());
        let server = End { wire: server, sent: Rc::clone(&by_server), due: Rc::clone(&by_client) };
        let client = End { wire: client, sent: by_client, due: by_server };
        Ok(Box::new(Live::new("dpdk", Steps(Instant::now()), [server, client])))
    });
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

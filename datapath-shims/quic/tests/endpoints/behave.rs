//! The contract's suite on QUIC flows over wires in memory, in virtual time.

use crate::common::{CLIENT, Link, MemoryWire, Net, SERVER};
use crate::harness::{Live, Time};
use ccplane_contract::suite::behaviour::{Harness, behave};
use ccplane_contract::{Datapath, Event as Happened};
use std::net::SocketAddr;
use std::time::Instant;

impl Time for Net {
    fn now(&self) -> Instant {
        Net::now(self)
    }
    fn set_now(&mut self, now: Instant) {
        Net::set_now(self, now);
    }
    fn next(&self, at: &[SocketAddr]) -> Option<Instant> {
        Net::next(self, at)
    }
}

fn live() -> Live<MemoryWire, Net> {
    let net = Net::new(Link::new(100, 1), 1);
    let wires = [net.wire(SERVER), net.wire(CLIENT)];
    Live::new("quic", net, wires)
}

#[test]
fn keeps_the_contract() {
    let result = behave(&mut || Ok(Box::new(live())));
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

#[test]
fn flows_end_with_their_connections() {
    let mut live = live();
    live.start_flow().unwrap();
    live.pass(50_000);
    let flow = live.handle.flows()[0].flow;
    live.stop_flow(flow).unwrap();
    live.pass(500_000);
    let mut events = Vec::new();
    live.handle.poll(10_000, &mut events);
    assert!(events.contains(&Happened::Closed { flow }), "{events:?}");
    assert!(live.handle.flows().is_empty());
}

//! The server over any wire of QUIC's: kernel sockets by GSO and GRO, or a DPDK port.

use crate::packet::MESSAGE_BYTES;
use crate::service::Service;
use crate::sockets::TURN;
use ccplane_quic::{Datagram, Wire};
use quinn_proto::Transmit;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of the wire, after which `stop` is looked at.
const NAP: Duration = Duration::from_millis(20);

/// Serves datagrams of a wire until `stop` is set.
///
/// # Errors
/// The wire is broken.
pub fn serve(wire: &mut dyn Wire, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
    let mut arrived: Vec<Datagram> = Vec::new();
    let mut reply = [0; MESSAGE_BYTES];
    let mut next_turn = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let count = wire.receive(&mut |datagram| arrived.push(datagram))?;
        for datagram in arrived.drain(..) {
            if service.handle(&datagram.payload, &mut reply) {
                let to = Transmit {
                    destination: datagram.remote,
                    ecn: None,
                    size: MESSAGE_BYTES,
                    segment_size: None,
                    src_ip: datagram.local_ip,
                };
                // A reply for which there is no room is lost, as any datagram may be.
                wire.send(&to, &reply)?;
            }
        }
        wire.flush()?;
        if count == 0 {
            wire.wait(NAP)?;
        }
        let now = Instant::now();
        if now >= next_turn {
            service.turn(now);
            next_turn = now + TURN;
        }
    }
    Ok(())
}

//! The server over a kernel socket that blocks.

use crate::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES};
use crate::service::Service;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time between two turns of a service.
pub const TURN: Duration = Duration::from_millis(100);

/// Serves datagrams of a socket one by one until `stop` is set.
///
/// # Errors
/// The socket is broken.
pub fn serve(socket: &UdpSocket, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
    socket.set_read_timeout(Some(TURN))?;
    // One byte more than the longest, so that what is longer is seen to be.
    let (mut datagram, mut reply) = ([0; MAX_DATAGRAM_BYTES + 1], [0; MESSAGE_BYTES]);
    let mut next_turn = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut datagram) {
            Ok((length, from)) => {
                if service.handle(datagram.get(..length).unwrap_or_default(), &mut reply)
                    && let Err(error) = socket.send_to(&reply, from)
                    && is_broken(&error)
                {
                    return Err(error);
                }
            }
            Err(error) if is_broken(&error) => return Err(error),
            Err(_) => {}
        }
        let now = Instant::now();
        if now >= next_turn {
            service.turn(now);
            next_turn = now + TURN;
        }
    }
    Ok(())
}

/// Whether an error concerns the socket rather than one datagram, one peer, or nothing at all.
pub(crate) fn is_broken(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
            | ErrorKind::AddrNotAvailable
    )
}

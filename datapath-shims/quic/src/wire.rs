//! Wires: the interface through which datagrams come and go.

use bytes::BytesMut;
use quinn_proto::{EcnCodepoint, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A datagram that arrived.
#[derive(Debug)]
pub struct Datagram {
    pub remote: SocketAddr,
    /// The address that it was sent to, if the wire knows it.
    pub local_ip: Option<IpAddr>,
    /// Its ECN bits; `None` for Not-ECT.
    pub ecn: Option<EcnCodepoint>,
    /// One UDP payload.
    pub payload: BytesMut,
}

/// Sends and receives datagrams: kernel sockets in `UdpWire`, DPDK ports in `ccplane-dpdk`.
///
/// Only [`wait`](Wire::wait) blocks. An error means that the wire is broken for good; a failure that concerns one
/// datagram (no route, too large, a full queue) is a loss, which QUIC repairs.
pub trait Wire {
    /// The address that peers reach the wire at.
    fn local_addr(&self) -> SocketAddr;

    /// Hands over waiting datagrams, oldest first, and returns their number.
    ///
    /// A wire may keep some for the next call, and hands out at most a few hundred; 0 means that there are none.
    ///
    /// # Errors
    /// The wire is broken.
    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize>;

    /// Sends `payload`, which is one datagram, or as many as [`Transmit::segment_size`] cuts it into.
    ///
    /// These are at most [`max_segments`](Wire::max_segments). False if there is no room now and nothing was sent.
    ///
    /// # Errors
    /// The wire is broken.
    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool>;

    /// Sets the code point (DSCP) of the datagrams that are sent from now on; their ECN bits are [`Transmit::ecn`] as ever.
    ///
    /// A wire that cannot write it sends all with code point 0, which is every wire's at first.
    fn set_dscp(&mut self, dscp: u8) {
        let _ = dscp;
    }

    /// Datagrams that one [`send`](Wire::send) takes, at most; at least 1.
    fn max_segments(&self) -> usize;

    /// The largest UDP payload that the wire carries, bytes.
    fn max_payload_bytes(&self) -> u16 {
        u16::MAX
    }

    /// Whether datagrams may be fragmented on their way, so that the path's MTU cannot be discovered.
    fn may_fragment(&self) -> bool {
        false
    }

    /// Sends the datagrams that [`send`](Wire::send) has only queued.
    ///
    /// # Errors
    /// The wire is broken.
    fn flush(&mut self) -> io::Result<()>;

    /// Whether the wire has come up since the last call; connections that heard nothing for a while then probe their
    /// peers.
    ///
    /// A wire that cannot tell returns false.
    fn came_up(&mut self) -> bool {
        false
    }

    /// Has the wire's device polled for `us` microseconds by whoever waits, where the system can; elsewhere nothing changes.
    fn poll_device(&mut self, us: u32) {
        let _ = us;
    }

    /// The socket behind the wire; `None` where it is none of the system's.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The core on which the system handled the last datagram; `None` where it does not say.
    fn incoming_core(&self) -> Option<usize> {
        None
    }

    /// Waits until a datagram arrives, until there is room again after `send` found none, or until `timeout` has
    /// passed. May return early.
    ///
    /// # Errors
    /// The wire is broken.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;
}

//! Where datagrams come from and go to.

use bytes::BytesMut;
use quinn_proto::{EcnCodepoint, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A datagram that arrived.
#[derive(Debug)]
pub struct Datagram {
    /// Its sender.
    pub remote: SocketAddr,
    /// The address that it was sent to, where the wire knows.
    pub local_ip: Option<IpAddr>,
    /// Its ECN bits; `None` for Not-ECT.
    pub ecn: Option<EcnCodepoint>,
    /// What it carries: one UDP payload.
    pub payload: BytesMut,
}

/// Datagrams in and out: kernel sockets in `UdpWire`, DPDK ports in `ccplane-dpdk`.
///
/// Nothing here blocks but [`wait`](Wire::wait). An error means that the wire is broken for good; what concerns one
/// datagram only (no route, too large, a full queue) is a loss, which QUIC repairs.
pub trait Wire {
    /// The address that peers reach it at.
    fn local_addr(&self) -> SocketAddr;

    /// Hands over datagrams that are there now, oldest first, and says how many. A wire may keep some for the next call,
    /// and hands out at most a few hundred; 0 means that there are none.
    ///
    /// # Errors
    /// The wire is broken.
    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize>;

    /// Sends `payload`, which is one datagram, or as many as [`Transmit::segment_size`] cuts it into, at most
    /// [`max_segments`](Wire::max_segments). False: there is no room now and nothing was sent.
    ///
    /// # Errors
    /// The wire is broken.
    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool>;

    /// Datagrams that one [`send`](Wire::send) takes; at least 1.
    fn max_segments(&self) -> usize;

    /// The largest UDP payload that it carries at all, bytes.
    fn max_payload_bytes(&self) -> u16 {
        u16::MAX
    }

    /// Whether datagrams may be fragmented on their way: then the path's MTU cannot be discovered.
    fn may_fragment(&self) -> bool {
        false
    }

    /// Sends what [`send`](Wire::send) has only queued.
    ///
    /// # Errors
    /// The wire is broken.
    fn flush(&mut self) -> io::Result<()>;

    /// Whether it has come up since this was asked last: then connections that heard nothing for a while ask at once
    /// whether their peers are there. A wire that cannot tell says no.
    fn came_up(&mut self) -> bool {
        false
    }

    /// Waits until something arrives, until there is room again where `send` said that there is none, or until
    /// `timeout` has passed. May return early.
    ///
    /// # Errors
    /// The wire is broken.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;
}

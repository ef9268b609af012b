//! Wires that wrap another wire.

use crate::wire::{Datagram, Wire};
use quinn_proto::Transmit;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A wire that forwards everything to another one, with changes to what goes over it and when.
///
/// Meters use it, and tests that damage datagrams.
pub trait Forward {
    /// The wrapped wire.
    type Inner: Wire + ?Sized;

    /// The wrapped wire.
    fn inner(&self) -> &Self::Inner;

    /// The wrapped wire, to send and receive with.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Receives as [`Wire::receive`] does.
    ///
    /// # Errors
    /// As [`Wire::receive`].
    fn forward_receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        self.inner_mut().receive(each)
    }

    /// Sends as [`Wire::send`] does.
    ///
    /// # Errors
    /// As [`Wire::send`].
    fn forward_send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        self.inner_mut().send(to, payload)
    }

    /// Waits as [`Wire::wait`] does.
    ///
    /// # Errors
    /// As [`Wire::wait`].
    fn forward_wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.inner_mut().wait(timeout)
    }
}

impl<W: Wire + ?Sized> Forward for &mut W {
    type Inner = W;

    fn inner(&self) -> &W {
        self
    }

    fn inner_mut(&mut self) -> &mut W {
        self
    }
}

impl<W: Wire + ?Sized> Forward for Box<W> {
    type Inner = W;

    fn inner(&self) -> &W {
        self
    }

    fn inner_mut(&mut self) -> &mut W {
        self
    }
}

impl<T: Forward> Wire for T {
    fn local_addr(&self) -> SocketAddr {
        self.inner().local_addr()
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        self.forward_receive(each)
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        self.forward_send(to, payload)
    }

    fn set_dscp(&mut self, dscp: u8) {
        self.inner_mut().set_dscp(dscp);
    }

    fn max_segments(&self) -> usize {
        self.inner().max_segments()
    }

    fn max_payload_bytes(&self) -> u16 {
        self.inner().max_payload_bytes()
    }

    fn may_fragment(&self) -> bool {
        self.inner().may_fragment()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner_mut().flush()
    }

    fn came_up(&mut self) -> bool {
        self.inner_mut().came_up()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner().socket()
    }

    fn incoming_core(&self) -> Option<usize> {
        self.inner().incoming_core()
    }

    fn poll_device(&mut self, us: u32) {
        self.inner_mut().poll_device(us);
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.forward_wait(timeout)
    }
}

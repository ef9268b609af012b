//! A wire around another one.

use crate::wire::{Datagram, Wire};
use quinn_proto::Transmit;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A wire that leaves everything to another one; what goes over it and when may differ. For meters, and for tests that spoil
/// datagrams.
pub trait Forward {
    /// The other one.
    type Inner: Wire + ?Sized;

    /// Says what it is.
    fn inner(&self) -> &Self::Inner;

    /// Carries the datagrams.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// [`Wire::receive`].
    ///
    /// # Errors
    /// As there.
    fn forward_receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        self.inner_mut().receive(each)
    }

    /// [`Wire::send`].
    ///
    /// # Errors
    /// As there.
    fn forward_send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        self.inner_mut().send(to, payload)
    }

    /// [`Wire::wait`].
    ///
    /// # Errors
    /// As there.
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

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.forward_wait(timeout)
    }
}

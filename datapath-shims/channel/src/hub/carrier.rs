//! The media that carry datagrams to one datapath: the hub's socket, or another that a shim brings.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use nix::sys::socket::UnixAddr;

use super::socket::{SendError, Socket};

/// The way of datagrams to one datapath. Nothing here waits.
pub trait Carrier: Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Sends one datagram.
    ///
    /// # Errors
    /// [`SendError`]; nothing is sent then.
    fn send(&self, datagram: &[u8]) -> Result<(), SendError>;

    /// Sends one datagram with file descriptors, where the medium carries some.
    ///
    /// # Errors
    /// As [`Carrier::send`].
    fn send_with(&self, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError>;

    /// Whether the datapath is still at the other end.
    fn is_there(&self) -> bool;
}

/// One process at the hub's socket.
#[derive(Debug)]
pub(super) struct SocketTo {
    pub(super) socket: Arc<Socket>,
    pub(super) to: UnixAddr,
}

impl Carrier for SocketTo {
    fn send(&self, datagram: &[u8]) -> Result<(), SendError> {
        self.socket.send(datagram, &self.to)
    }

    fn send_with(&self, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.socket.send_with(datagram, fds, &self.to)
    }

    fn is_there(&self) -> bool {
        self.socket.is_there(&self.to)
    }
}

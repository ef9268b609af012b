//! The two transports to a portus agent: its unix datagram socket, and the kernel module's device for one that was started for
//! ccp-kernel's links.

use crate::Options;
use crate::relay::{Relay, is_relay};
use crate::socket::{Received, Socket, link_below, listens};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use tracing::debug;

/// A transport to portus, open while rules give flows to it.
pub(crate) enum Transport {
    Socket(Socket),
    Relay(Relay),
}

impl Transport {
    /// Opens the transport that the configured path calls for; the error says in words why it cannot be had.
    pub fn open(options: &Options) -> Result<Transport, String> {
        let path = &options.socket;
        if !is_relay(path) {
            return Socket::bind(&options.own).map(Transport::Socket).map_err(|error| error.to_string());
        }
        if !options.takes_kernel_flows {
            return Err(format!("{} is for the kernel's flows", path.display()));
        }
        Relay::open(path).map(Transport::Relay).map_err(|error| format!("open {}: {error}", path.display()))
    }

    /// Whether the path still calls for this transport: a device comes and goes with its module.
    pub fn fits(&self, path: &Path) -> bool {
        matches!(self, Transport::Relay(_)) == is_relay(path)
    }

    /// Connects to a portus that listens; the error says in words why there is none.
    pub fn connect(&self, options: &Options) -> Result<(), String> {
        let path = &options.socket;
        match self {
            Transport::Relay(relay) if relay.has_listener() => Ok(()),
            Transport::Relay(_) => Err(nobody(path)),
            Transport::Socket(socket) => {
                socket.connect(path).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => nobody(path),
                    _ => format!("connect to {}: {error}", path.display()),
                })?;
                if let Err(error) = link_below(path, &options.own) {
                    debug!(%error, "a portus of 0.7 or older could not answer");
                }
                Ok(())
            }
        }
    }

    /// Whether portus still listens.
    pub fn has_listener(&self, path: &Path) -> bool {
        match self {
            Transport::Socket(_) => listens(path),
            Transport::Relay(relay) => relay.has_listener(),
        }
    }

    /// Returns the bytes that portus has not read; over netlink 1 where it has no room.
    pub fn unread(&self) -> usize {
        match self {
            Transport::Socket(socket) => socket.unread(),
            Transport::Relay(relay) => relay.unread(),
        }
    }

    /// Becomes readable when portus has answered.
    pub fn ready(&self) -> BorrowedFd<'_> {
        match self {
            Transport::Socket(socket) => socket.ready(),
            Transport::Relay(relay) => relay.device(),
        }
    }

    /// Asks to be woken when portus has room again, of which the device says nothing: there the next turn tries again.
    pub fn wait_for_room(&mut self, wanted: bool) {
        if let Transport::Socket(socket) = self {
            socket.wait_for_room(wanted);
        }
    }

    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Transport::Socket(socket) => socket.receive(buffer),
            Transport::Relay(relay) => relay.receive(buffer),
        }
    }

    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Transport::Socket(socket) => socket.send(message),
            Transport::Relay(relay) => relay.send(message),
        }
    }
}

/// The message that no process listens at a path.
pub(crate) fn nobody(path: &Path) -> String {
    format!("nobody listens at {}", path.display())
}

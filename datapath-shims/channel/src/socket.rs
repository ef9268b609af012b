//! The datapath's datagram socket to the agent.
//!
//! It is connected: the kernel lets nobody but the agent send to it.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, bind,
    connect, recvmsg, send, setsockopt, socket, sockopt,
};
use nix::unistd::{Uid, geteuid};

use crate::end::Parts;
use crate::sys;

/// Start of the names of datapaths' sockets, which lie beside the agent's.
pub const SOCKET_PREFIX: &str = "datapath-";

/// Sockets that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Connected to one agent: only that one is heard. Never blocks; its name is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    path: Option<PathBuf>,
}

/// What [`Socket::receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// The buffer holds `bytes` bytes, and these file descriptors came along.
    Datagram { bytes: usize, fds: Vec<OwnedFd> },
    /// Nothing is waiting.
    Nothing,
    /// Nobody is at the other end any more.
    Gone,
}

/// How [`Socket::send`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    Yes,
    /// The agent has not read what is there: later.
    Full,
    /// Nobody is at the other end any more.
    Gone,
    /// The system does not take it, and never will.
    Failed(Errno),
}

impl Socket {
    /// Connects to the agent at `agent`.
    pub(crate) fn connect(agent: &Path) -> io::Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        setsockopt(&fd, sockopt::PassCred, &true)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(agent)?)?;
        // A name that the agent can answer to from any network namespace; where there is no place for one, an abstract
        // one, which works in this one.
        let path = bind_beside(&fd, agent).ok();
        if path.is_none() {
            bind(fd.as_raw_fd(), &UnixAddr::new_unnamed())?;
        }
        Ok(Socket { fd, path })
    }

    /// Takes one datagram of the agent's; others' are dropped unread.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Received {
        let mut ancillary = cmsg_space!(UnixCredentials, [i32; Parts::COUNT]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let received =
                match recvmsg::<UnixAddr>(self.fd.as_raw_fd(), &mut parts, Some(&mut ancillary), flags) {
                    Ok(received) => received,
                    Err(Errno::EINTR) => continue,
                    Err(Errno::EAGAIN) => return Received::Nothing,
                    Err(_) => return Received::Gone,
                };
            let (mut uid, mut fds) = (None, Vec::new());
            for message in received.cmsgs().into_iter().flatten() {
                match message {
                    ControlMessageOwned::ScmCredentials(who) => uid = Some(who.uid()),
                    ControlMessageOwned::ScmRights(raw) => fds.extend(sys::owned(&raw)),
                    _ => {}
                }
            }
            let whole = !received.flags.intersects(MsgFlags::MSG_TRUNC);
            if uid.is_some_and(may_speak) && whole {
                return Received::Datagram { bytes: received.bytes, fds };
            }
        }
    }

    /// Sends one datagram without waiting.
    pub(crate) fn send(&self, datagram: &[u8]) -> Sent {
        loop {
            return match send(self.fd.as_raw_fd(), datagram, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
            {
                Ok(_) => Sent::Yes,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN | Errno::ENOBUFS) => Sent::Full,
                Err(
                    Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::ENOENT | Errno::ENOTCONN | Errno::EPIPE,
                ) => Sent::Gone,
                Err(errno) => Sent::Failed(errno),
            };
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether an agent of this user may steer a datapath of ours: its own, or root's.
fn may_speak(uid: u32) -> bool {
    uid == 0 || Uid::from_raw(uid) == geteuid()
}

fn bind_beside(fd: &OwnedFd, agent: &Path) -> io::Result<PathBuf> {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let path = agent.with_file_name(format!("{SOCKET_PREFIX}{}-{number}", std::process::id()));
    let address = UnixAddr::new(&path)?;
    match bind(fd.as_raw_fd(), &address) {
        Ok(()) => {}
        Err(Errno::EADDRINUSE) => {
            // A process of this number died before us.
            std::fs::remove_file(&path)?;
            bind(fd.as_raw_fd(), &address)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    Ok(path)
}

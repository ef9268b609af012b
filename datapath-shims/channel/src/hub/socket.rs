//! The datagram socket that datapaths of other processes send to.

use crate::socket::may_speak;
use ccplane_contract::DatapathError;
use ccplane_files::{LockFile, Others, SocketError, SocketName};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    CmsgIterator, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrLike, UnixAddr,
    UnixCredentials, connect, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Bytes that the socket may hold of datagrams not yet read; the kernel grants what it allows.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Reasons why a datagram was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// Nobody listens there any more.
    #[error("the datapath is gone")]
    Gone,
    /// Nothing more fits: its queue is full, or ours is of what was not read yet.
    #[error("the datapath's socket is full")]
    Full,
    #[error("{0}")]
    Failed(Errno),
}

impl From<SendError> for DatapathError {
    fn from(error: SendError) -> DatapathError {
        let errno = match error {
            SendError::Gone => io::ErrorKind::NotConnected,
            SendError::Full => io::ErrorKind::WouldBlock,
            SendError::Failed(errno) => io::Error::from(errno).kind(),
        };
        DatapathError::Os { what: "send to the datapath".to_owned(), errno }
    }
}

/// A bound datagram socket that never blocks; unlinked when dropped.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UnixDatagram,
    /// A socket that tests whether peers are still there.
    probe: UnixDatagram,
    name: SocketName,
    /// The lock on the name, released last, so that no other process takes the name while it is removed.
    _lock: LockFile,
}

/// A result of [`Socket::receive`].
#[derive(Debug)]
pub(super) enum Received {
    /// The buffer holds `bytes` bytes from `from`, a process of ours or of root.
    Datagram {
        bytes: usize,
        from: UnixAddr,
    },
    /// A datagram that is rejected.
    Rejected(Rejected),
    Nothing,
}

/// Reasons why a datagram is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Rejected {
    /// Its sender is another user.
    #[error("user {uid} may not speak to this agent")]
    Forbidden { uid: u32 },
    /// The kernel attached no credentials.
    #[error("no credentials")]
    NoCredentials,
    /// Its sender is not bound, so that nothing can be answered.
    #[error("the sender has no address")]
    NoAddress,
    /// The datagram did not fit the buffer.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// Size of the buffer, bytes.
        limit: usize,
    },
}

impl Socket {
    /// Binds `path`, replacing the socket that a dead agent left.
    pub(super) fn bind(path: &Path) -> Result<Socket, SocketError> {
        let io = |what| move |source| SocketError::io(what, path, source);
        let mut name = SocketName::new(path, Others::Read)?;
        let lock = name.lock()?;
        let socket = UnixDatagram::from(name.bind(SockType::Datagram, SockFlag::SOCK_NONBLOCK)?);
        let probe = UnixDatagram::unbound().map_err(io("try"))?;
        let socket = Socket { socket, probe, name, _lock: lock };
        setsockopt(&socket.socket, sockopt::PassCred, &true)
            .map_err(|e| io("ask for credentials on")(e.into()))?;
        // Best effort: the default works, with less room for bursts.
        let _ = setsockopt(&socket.socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
        Ok(socket)
    }

    /// Returns the path to which it is bound.
    pub(super) fn path(&self) -> &Path {
        self.name.path()
    }

    /// Whether the name still leads to this socket.
    pub(super) fn is_reachable(&self) -> bool {
        self.name.is_there()
    }

    /// Whether a socket is bound to `at`. Unlike a datagram, a connection needs no reader: a peer that hangs would fill the
    /// room that all peers share in the send buffer.
    pub(super) fn is_there(&self, at: &UnixAddr) -> bool {
        let tried = connect(self.probe.as_raw_fd(), at);
        !matches!(tried, Err(Errno::ECONNREFUSED | Errno::ENOENT))
    }

    /// Takes one waiting datagram.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let limit = buffer.len();
        let mut ancillary = cmsg_space!(UnixCredentials);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let received = loop {
            match recvmsg::<UnixAddr>(fd, &mut parts, Some(&mut ancillary), MsgFlags::MSG_DONTWAIT) {
                Ok(received) => break received,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(Received::Nothing),
                Err(errno) => return Err(errno.into()),
            }
        };
        let uid = sender_uid(received.cmsgs());
        // The kernel gives an unbound sender's address no length at all, on which UnixAddr's accessors panic.
        let named = |a: &UnixAddr| a.len() as usize > std::mem::offset_of!(libc::sockaddr_un, sun_path);
        Ok(match (uid, received.address.filter(named)) {
            (None, _) => Received::Rejected(Rejected::NoCredentials),
            (Some(uid), _) if !may_speak(uid) => Received::Rejected(Rejected::Forbidden { uid }),
            (_, None) => Received::Rejected(Rejected::NoAddress),
            _ if received.flags.contains(MsgFlags::MSG_TRUNC) => {
                Received::Rejected(Rejected::TooLong { limit })
            }
            (_, Some(from)) => Received::Datagram { bytes: received.bytes, from },
        })
    }

    /// Sends one datagram without waiting.
    pub(super) fn send(&self, datagram: &[u8], to: &UnixAddr) -> Result<(), SendError> {
        self.send_with(datagram, &[], to)
    }

    /// Sends one datagram, with file descriptors, without waiting.
    pub(super) fn send_with(
        &self,
        datagram: &[u8],
        fds: &[BorrowedFd<'_>],
        to: &UnixAddr,
    ) -> Result<(), SendError> {
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[] } else { &rights[..] };
        let parts = [IoSlice::new(datagram)];
        loop {
            return match sendmsg(self.socket.as_raw_fd(), &parts, rights, MsgFlags::MSG_DONTWAIT, Some(to)) {
                Ok(_) => Ok(()),
                Err(Errno::EINTR) => continue,
                Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ECONNRESET) => Err(SendError::Gone),
                Err(Errno::EAGAIN) => Err(SendError::Full),
                Err(errno) => Err(SendError::Failed(errno)),
            };
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The user whose process sent what came with these messages.
pub(super) fn sender_uid(messages: nix::Result<CmsgIterator<'_>>) -> Option<libc::uid_t> {
    messages.ok()?.find_map(|message| match message {
        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.uid()),
        _ => None,
    })
}

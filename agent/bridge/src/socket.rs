//! Our unix datagram socket to portus, which never blocks.

use ccplane_channel::{may_speak, unread_bytes};
use ccplane_files::{Directory, LockFile, Others, SocketError, SocketName};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixCredentials, recvmsg, setsockopt, sockopt,
};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Lets portus 0.7 and older answer: they put the folder of their own socket before our whole address. A link there leads to
/// us, in a folder that nobody else can write to.
pub(crate) fn link_below(portus: &Path, own: &Path) -> io::Result<()> {
    let folder = portus.parent().unwrap_or(Path::new("/"));
    Directory::open(folder, Others::Read).map_err(io::Error::other)?;
    let own = std::path::absolute(own)?;
    let link = folder.join(own.strip_prefix("/").unwrap_or(&own));
    if std::fs::read_link(&link).is_ok_and(|leads| leads == own) {
        return Ok(());
    }
    std::fs::create_dir_all(link.parent().unwrap_or(folder))?;
    std::os::unix::fs::symlink(&own, &link)
}

/// The outcome of an attempt to take a datagram.
pub(crate) enum Received {
    Bytes(usize),
    /// Portus has gone; the next one may be there already.
    Gone,
    Stranger,
    Nothing,
}

/// Our socket, bound while rules give flows to portus.
pub(crate) struct Socket {
    socket: UnixDatagram,
    /// Becomes readable with portus's answers, and with room for messages that wait.
    ready: Epoll,
    waits_for_room: bool,
    _name: SocketName,
    /// Released last, so that no other process takes the name while it is removed.
    _lock: LockFile,
}

impl Socket {
    pub fn bind(own: &Path) -> Result<Socket, SocketError> {
        let mut name = SocketName::new(own, Others::Read)?;
        let lock = name.lock()?;
        let socket = UnixDatagram::from(name.bind_to_path(SockType::Datagram, SockFlag::SOCK_NONBLOCK)?);
        let io = |what| move |errno: Errno| SocketError::io(what, own, errno.into());
        setsockopt(&socket, sockopt::PassCred, &true).map_err(io("ask for credentials on"))?;
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io("poll"))?;
        ready.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(io("poll"))?;
        Ok(Socket { socket, ready, waits_for_room: false, _name: name, _lock: lock })
    }

    /// Asks to be woken when portus has room again, or no longer to be.
    pub fn wait_for_room(&mut self, wanted: bool) {
        if self.waits_for_room != wanted {
            self.waits_for_room = wanted;
            let flags = if wanted { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
            // Without it the next turn of the loop tries again.
            let _ = self.ready.modify(&self.socket, &mut EpollEvent::new(flags, 0));
        }
    }

    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut ancillary = cmsg_space!(UnixCredentials);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let received = match recvmsg::<()>(fd, &mut parts, Some(&mut ancillary), MsgFlags::MSG_DONTWAIT) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Received::Nothing),
            Err(errno) => return Err(errno.into()),
        };
        let uid = received.cmsgs().ok().and_then(|mut all| {
            all.find_map(|c| match c {
                ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.uid()),
                _ => None,
            })
        });
        Ok(if uid.is_some_and(may_speak) { Received::Bytes(received.bytes) } else { Received::Stranger })
    }

    /// Becomes readable with portus's answers, and with room where that was asked for.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }

    pub fn connect(&self, portus: &Path) -> io::Result<()> {
        self.socket.connect(portus)
    }

    /// Returns the bytes that portus has not read yet.
    pub fn unread(&self) -> usize {
        unread_bytes(self.socket.as_fd()).unwrap_or(0)
    }

    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram).map(|_| ())
    }
}

/// Whether a socket is bound there.
pub(crate) fn listens(path: &Path) -> bool {
    let tried = UnixDatagram::unbound().and_then(|probe| probe.connect(path));
    !tried.is_err_and(|e| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}

//! The datapath's datagram socket to the agent.
//!
//! It is connected, so that the kernel lets only the agent send to it.

use std::fs::Permissions;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, bind,
    connect, recvmsg, send, setsockopt, socket, sockopt,
};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Uid, geteuid};

use crate::end::Parts;
use crate::sys;

/// Start of the names of datapaths' sockets, which lie beside the agent's.
pub const SOCKET_PREFIX: &str = "datapath-";
/// Start of their names elsewhere.
const SOCKET_PREFIX_ELSEWHERE: &str = "ccplane-datapath-";
/// Permissions of a datapath's socket. All users may write, since the agent may be another user than the datapath; the
/// kernel lets only the agent send.
const SOCKET_MODE: u32 = 0o666;

/// Sockets that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A socket that is connected to one agent, and receives from no other. Never blocks; its name is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    path: Option<PathBuf>,
}

/// A result of [`Socket::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    /// The buffer holds `bytes` bytes, and these file descriptors came along.
    Datagram {
        bytes: usize,
        fds: Vec<OwnedFd>,
    },
    Nothing,
    /// Nobody is at the other end any more.
    Gone,
}

/// A result of [`Socket::send`].
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
        connect(fd.as_raw_fd(), &UnixAddr::new(agent)?)?;
        // A name that the agent can answer to from any network namespace; where there is no place for one, an abstract
        // one, which works in this one.
        let path = places(agent).find_map(|(place, prefix)| bind_in(&fd, &place, prefix).ok());
        if path.is_none() {
            bind(fd.as_raw_fd(), &UnixAddr::new_unnamed())?;
        }
        // Not before: a socket that asks for credentials is given an abstract name when it connects.
        setsockopt(&fd, sockopt::PassCred, &true)?;
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

/// Whether a process of this user may speak to ours, as an agent to a datapath or the other way round: one of the same user,
/// or root's.
pub fn may_speak(uid: u32) -> bool {
    uid == 0 || Uid::from_raw(uid) == geteuid()
}

/// Returns the places where a datapath's socket may be, the best first, and how its name starts there. One is beside
/// the agent's socket, where this process may be unable to write, for instance where a container has it read-only. The
/// others are where an agent may look that has the same files.
fn places(agent: &Path) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let beside = agent.parent().map(|place| (place.to_owned(), SOCKET_PREFIX));
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let elsewhere = own.into_iter().chain([std::env::temp_dir()]).filter(|place| place.is_absolute());
    beside.into_iter().chain(elsewhere.map(|place| (place, SOCKET_PREFIX_ELSEWHERE)))
}

fn bind_in(fd: &OwnedFd, place: &Path, prefix: &str) -> io::Result<PathBuf> {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // The agent has another working directory.
    let path = std::path::absolute(place.join(format!("{prefix}{}-{number}", std::process::id())))?;
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
    // As it was made it does for an agent of ours, or of root.
    let _ = open_to_all(&path);
    Ok(path)
}

/// Lets every user write to the socket at `path`, if it is one of ours: in a place of others', something else may have been
/// put there meanwhile. The mode is set on what was looked at, by its descriptor.
fn open_to_all(path: &Path) -> io::Result<()> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let stat = fstat(&fd)?;
    let is_socket = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
    if !is_socket || stat.st_uid != geteuid().as_raw() || stat.st_nlink != 1 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let by_descriptor = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string());
    std::fs::set_permissions(by_descriptor, Permissions::from_mode(SOCKET_MODE))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// The name that an agent at `path` sees of us, once it has answered to it.
    fn seen_at(path: &Path) -> PathBuf {
        let agent = UnixDatagram::bind(path).unwrap();
        let socket = Socket::connect(path).unwrap();
        assert_eq!(socket.send(b"hello"), Sent::Yes);
        let mut buffer = [0; 16];
        let (bytes, from) = agent.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"hello");
        let name = from.as_pathname().unwrap().to_owned();
        agent.send_to(b"welcome", &name).unwrap();
        assert!(matches!(socket.receive(&mut buffer), Received::Datagram { bytes: 7, .. }));
        let stranger = UnixDatagram::unbound().unwrap();
        assert!(stranger.send_to(b"welcome", &name).is_err(), "nobody but the agent");
        drop(socket);
        assert!(!name.exists());
        name
    }

    #[test]
    fn only_a_socket_of_ours_is_opened_to_all() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file, link) = (dir.path().join("s"), dir.path().join("f"), dir.path().join("l"));
        let _bound = UnixDatagram::bind(&socket).unwrap();
        open_to_all(&socket).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&socket), SOCKET_MODE);
        std::fs::write(&file, "precious").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open_to_all(&file).is_err() && open_to_all(&link).is_err());
        assert_eq!(mode(&file), 0o400);
    }

    #[test]
    fn has_a_name_that_works_from_any_network_namespace() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(seen_at(&dir.path().join("ccp.sock")).parent(), Some(dir.path()));
        // Beside this one our name is too long, however short our process's number.
        let deep = dir.path().join("d".repeat(97 - dir.path().as_os_str().len()));
        std::fs::create_dir(&deep).unwrap();
        let elsewhere = seen_at(&deep.join("ccp.sock"));
        assert!(elsewhere.file_name().unwrap().to_str().unwrap().starts_with(SOCKET_PREFIX_ELSEWHERE));
    }
}

//! Names of unix sockets in directories that are opened once, then checked and used by descriptor.
//!
//! Nobody can put another directory in their place between the check and the use.

use crate::{Directory, DirectoryError, LockError, LockFile, Others};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, SFlag, fchmod};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File name suffix of a socket's lock file.
const SOCKET_LOCK: &str = ".lock";
/// Mode of a socket: only its owner and root may connect.
const SOCKET_MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Reasons why a socket's name cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// Other users could reach the sockets in the directory, or it is not a directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The path has no parent directory.
    #[error("{}: not a path of a socket", path.display())]
    NoParent { path: PathBuf },
    /// A file that is not a socket has the name.
    #[error("{}: exists and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    /// A live process uses the socket.
    #[error("{}: a process listens there already; end it, or give this agent another socket", path.display())]
    InUse { path: PathBuf },
    /// A lock cannot be taken.
    #[error(transparent)]
    Lock(LockError),
}

impl SocketError {
    /// Makes an error of system call `what` on `path`.
    pub fn io(what: &'static str, path: &Path, source: io::Error) -> SocketError {
        SocketError::Io { what, path: path.to_owned(), source }
    }
}

/// The parent directory of a socket.
///
/// # Errors
/// Fails with [`SocketError::NoParent`] where the path has no directory or no name.
pub fn parent(socket: &Path) -> Result<&Path, SocketError> {
    split(socket).map(|(dir, _)| dir)
}

fn split(socket: &Path) -> Result<(&Path, &OsStr), SocketError> {
    match (socket.parent(), socket.file_name()) {
        (Some(dir), Some(name)) if !dir.as_os_str().is_empty() => Ok((dir, name)),
        _ => Err(SocketError::NoParent { path: socket.to_owned() }),
    }
}

/// The name of a socket in a checked directory; dropping it removes the socket that was bound to it.
#[derive(Debug)]
pub struct SocketName {
    directory: Directory,
    name: OsString,
    path: PathBuf,
    /// Device and inode of the bound socket.
    bound: Option<(u64, u64)>,
}

impl SocketName {
    /// Makes the name at `path`; creates its directory if it does not exist. `others` says what other users may do
    /// there.
    ///
    /// # Errors
    /// The directory is not ours.
    pub fn new(path: &Path, others: Others) -> Result<SocketName, SocketError> {
        let (dir, name) = split(path)?;
        let directory = Directory::create(dir, others)?;
        Ok(SocketName { directory, name: name.to_owned(), path: path.to_owned(), bound: None })
    }

    /// The path that the socket is bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock beside the socket, which keeps a second process from taking the name at the same time.
    ///
    /// # Errors
    /// [`SocketError::InUse`] while another process holds it; `Lock`.
    pub fn lock(&self) -> Result<LockFile, SocketError> {
        let name = format!("{}{SOCKET_LOCK}", self.name.to_string_lossy());
        LockFile::take(&self.directory, &name).map_err(|error| match error {
            LockError::Held { .. } => SocketError::InUse { path: self.path.clone() },
            error => SocketError::Lock(error),
        })
    }

    /// Whether the name still leads to the socket that was bound.
    pub fn is_there(&self) -> bool {
        let there = fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino())).ok();
        self.bound.is_some() && there == self.bound
    }

    fn there(&self) -> Option<(u64, u64)> {
        let stat = self.directory.stat(&self.name).ok()??;
        Some((stat.st_dev, stat.st_ino))
    }

    /// Binds a socket to the name, with owner-only access from the start; replaces a socket that a dead process left.
    ///
    /// # Errors
    /// A live process has it, something else is there, or a system call fails.
    pub fn bind(&mut self, kind: SockType, flags: SockFlag) -> Result<OwnedFd, SocketError> {
        let address = self.directory.by_descriptor(&self.name);
        self.bind_at(&address, kind, flags)
    }

    /// Binds the socket as [`SocketName::bind`] does, for peers that answer to the address from which they were sent
    /// something: the socket's address is its path, not one that only this process can follow.
    ///
    /// # Errors
    /// As [`SocketName::bind`]; also where the path no longer leads to the directory that was checked.
    pub fn bind_to_path(&mut self, kind: SockType, flags: SockFlag) -> Result<OwnedFd, SocketError> {
        let address = std::path::absolute(&self.path).map_err(|e| SocketError::io("name", &self.path, e))?;
        let fd = self.bind_at(&address, kind, flags)?;
        match self.bound {
            Some(_) => Ok(fd),
            None => Err(SocketError::io("bind", &self.path, io::ErrorKind::NotFound.into())),
        }
    }

    fn bind_at(&mut self, address: &Path, kind: SockType, flags: SockFlag) -> Result<OwnedFd, SocketError> {
        let path = self.path.as_path();
        let io = |what| move |errno: Errno| SocketError::io(what, path, errno.into());
        // A peer connects by this path, so it must fit an address.
        UnixAddr::new(path).map_err(io("bind"))?;
        remove_stale(&self.directory, &self.name, path, kind)?;
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | flags, None)
            .map_err(io("make a socket for"))?;
        // bind(2) gives the name the mode of its socket, so no path is changed afterwards.
        fchmod(&fd, SOCKET_MODE).map_err(io("set the mode of"))?;
        let address = UnixAddr::new(address).map_err(io("name"))?;
        bind(fd.as_raw_fd(), &address).map_err(io("bind"))?;
        self.bound = self.there();
        Ok(fd)
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if self.bound.is_some()
            && self.there() == self.bound
            && let Err(error) = self.directory.remove(&self.name)
        {
            tracing::debug!(%error, path = %self.path.display(), "unlink a socket");
        }
    }
}

/// Removes the socket at `path` if a dead process left it, and nothing else; says whether there was one.
///
/// # Errors
/// A live process has it, something else is there, or its directory is not ours.
pub fn remove_stale_socket(path: &Path, kind: SockType) -> Result<bool, SocketError> {
    let (dir, name) = split(path)?;
    match Directory::open(dir, Others::Read) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        directory => remove_stale(&directory?, name, path, kind),
    }
}

fn remove_stale(
    directory: &Directory,
    name: &OsStr,
    path: &Path,
    kind: SockType,
) -> Result<bool, SocketError> {
    let io = |what, source| SocketError::io(what, path, source);
    let Some(stat) = directory.stat(name).map_err(|e| io("look at", e))? else { return Ok(false) };
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    if is_alive(directory, name, kind).map_err(|e| io("try", e.into()))? {
        return Err(SocketError::InUse { path: path.to_owned() });
    }
    directory.remove(name).map_err(|e| io("remove", e))?;
    Ok(true)
}

/// Whether a process is bound to a socket: only an unbound one refuses a connection.
fn is_alive(directory: &Directory, name: &OsStr, kind: SockType) -> Result<bool, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, kind, flags, None)?;
    let tried = connect(probe.as_raw_fd(), &UnixAddr::new(&directory.by_descriptor(name))?);
    Ok(!matches!(tried, Err(Errno::ECONNREFUSED | Errno::ENOENT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("owner's/socket");
        Directory::create(parent(&path).unwrap(), Others::Nothing).unwrap();
        let bind = |kind| {
            let mut name = SocketName::new(&path, Others::Nothing).unwrap();
            let bound = name.bind(kind, SockFlag::empty());
            // A killed process leaves its socket like this.
            std::mem::forget(name);
            bound
        };
        let kinds = [SockType::Stream, SockType::Datagram];
        for (live, kind) in kinds.into_iter().flat_map(|live| kinds.map(|kind| (live, kind))) {
            let (stream, datagram);
            match live {
                SockType::Stream => stream = Some(UnixListener::bind(&path).unwrap()),
                _ => stream = None,
            }
            match live {
                SockType::Datagram => datagram = Some(UnixDatagram::bind(&path).unwrap()),
                _ => datagram = None,
            }
            assert!(matches!(bind(kind), Err(SocketError::InUse { .. })), "{live:?} {kind:?}");
            assert!(matches!(remove_stale_socket(&path, kind), Err(SocketError::InUse { .. })));
            drop((stream, datagram));
            drop(bind(kind).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert!(remove_stale_socket(&path, kind).unwrap());
            assert!(!remove_stale_socket(&path, kind).unwrap());
        }
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(SockType::Stream), Err(SocketError::NotASocket { .. })));
        assert!(matches!(remove_stale_socket(&path, SockType::Stream), Err(SocketError::NotASocket { .. })));
    }

    #[test]
    fn a_name_is_one_process_s_at_a_time() {
        let base = tempfile::tempdir().unwrap();
        let name = || SocketName::new(&base.path().join("socket"), Others::Read).unwrap();
        let held = name().lock().unwrap();
        assert!(matches!(name().lock(), Err(SocketError::InUse { .. })));
        drop(held);
        name().lock().unwrap();
    }
}

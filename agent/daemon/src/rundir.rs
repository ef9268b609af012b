//! The run directory: the control socket, the datapath socket and the locks that keep a second agent out.
//!
//! Directories are opened once, checked by descriptor, and used by descriptor, so that nobody can put another one in their
//! place between the check and the use.

use ccplane_files::{Directory, DirectoryError, Hold, LockError, LockFile, Others};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, SFlag, fchmod};
use nix::unistd::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of the lock file.
pub const LOCK_FILE: &str = "agent.lock";
/// Name of the control socket.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Name of the datapath socket.
pub const DATAPATH_SOCKET: &str = "ccp.sock";
/// What a socket's lock file is called after it.
const SOCKET_LOCK: &str = ".lock";
/// Sockets are for their owner, and root.
const SOCKET_MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// What is wrong with the run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no place for it.
    #[error("not root, XDG_RUNTIME_DIR is not set, and {} is not a directory of this user: set `socket` in [control]", path.display())]
    NotOurs {
        /// Where it would be.
        path: PathBuf,
    },
    /// Others could get at the sockets inside, or it is no directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The path names no directory to put a socket in.
    #[error("{}: not a path of a socket", path.display())]
    NoParent {
        /// The path.
        path: PathBuf,
    },
    /// Something that is no socket is in the way.
    #[error("{}: exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A live process has the socket.
    #[error("{}: a process listens there already; end it, or give this agent another socket", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Another agent holds the lock.
    #[error("an agent is running already{}; stop it with `ccplane stop`, or give this one another `socket` in [control]", pid.map(|p| format!(", pid {p}")).unwrap_or_default())]
    Held {
        /// Its process, where the lock file says so.
        pid: Option<u32>,
    },
    /// A lock cannot be had.
    #[error(transparent)]
    Lock(LockError),
}

impl RunDirError {
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> RunDirError {
        RunDirError::Io { what, path: path.to_owned(), source }
    }
}

/// The control socket where the configuration names none.
///
/// # Errors
/// [`RunDirError::NotOurs`].
pub fn default_control_socket() -> Result<PathBuf, RunDirError> {
    let dir = if geteuid().is_root() {
        PathBuf::from("/run/ccplane")
    } else if let Some(base) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(base).join("ccplane")
    } else {
        temporary(&std::env::temp_dir())?
    };
    Ok(dir.join(CONTROL_SOCKET))
}

/// A folder of this user's where everyone may make one, and where something else, or someone else's, may be in its place.
fn temporary(base: &Path) -> Result<PathBuf, RunDirError> {
    let uid = geteuid().as_raw();
    let path = base.join(format!("ccplane-{uid}"));
    match fs::symlink_metadata(&path) {
        Ok(meta) if !meta.is_dir() || meta.uid() != uid => Err(RunDirError::NotOurs { path }),
        Ok(_) | Err(_) => Ok(path),
    }
}

/// The directory of a socket.
///
/// # Errors
/// [`RunDirError::NoParent`].
pub fn parent(socket: &Path) -> Result<&Path, RunDirError> {
    split(socket).map(|(dir, _)| dir)
}

fn split(socket: &Path) -> Result<(&Path, &OsStr), RunDirError> {
    match (socket.parent(), socket.file_name()) {
        (Some(dir), Some(name)) if !dir.as_os_str().is_empty() => Ok((dir, name)),
        _ => Err(RunDirError::NoParent { path: socket.to_owned() }),
    }
}

/// Opens the run directory, which is made, owner-only, if it is not there. The default one, which has no other use, is made
/// owner-only if it is not.
///
/// # Errors
/// It cannot be made, or it is not ours alone.
pub fn prepare(dir: &Path) -> Result<Directory, RunDirError> {
    Ok(if default_control_socket().is_ok_and(|socket| socket.parent() == Some(dir)) {
        Directory::create_own(dir)?
    } else {
        Directory::create(dir, Others::Nothing)?
    })
}

/// A name for a socket, in a directory that was checked; once bound, it is removed when this is dropped.
#[derive(Debug)]
pub struct SocketName {
    directory: Directory,
    name: OsString,
    path: PathBuf,
    /// Device and inode of what was bound.
    bound: Option<(u64, u64)>,
}

impl SocketName {
    /// The name at `path`, whose directory is made if need be; what `others` may do there is up to the caller.
    ///
    /// # Errors
    /// The directory is not ours.
    pub fn new(path: &Path, others: Others) -> Result<SocketName, RunDirError> {
        let (dir, name) = split(path)?;
        let directory = Directory::create(dir, others)?;
        Ok(SocketName { directory, name: name.to_owned(), path: path.to_owned(), bound: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock beside it, which keeps a second process from taking the name at the same time.
    ///
    /// # Errors
    /// [`RunDirError::InUse`] while another process holds it; `Lock`.
    pub fn lock(&self) -> Result<LockFile, RunDirError> {
        let name = format!("{}{SOCKET_LOCK}", self.name.to_string_lossy());
        LockFile::take(&self.directory, &name).map_err(|error| match error {
            LockError::Held { .. } => RunDirError::InUse { path: self.path.clone() },
            error => RunDirError::Lock(error),
        })
    }

    /// Whether the name is still that of the socket that was bound.
    pub fn is_there(&self) -> bool {
        let there = fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino())).ok();
        self.bound.is_some() && there == self.bound
    }

    fn there(&self) -> Option<(u64, u64)> {
        let stat = self.directory.stat(&self.name).ok()??;
        Some((stat.st_dev, stat.st_ino))
    }

    /// A socket bound to the name, owner-only from its first moment on, in place of the one that a dead process left.
    ///
    /// # Errors
    /// A live process has it, something else is there, or a system call fails.
    pub fn bind(&mut self, kind: SockType, flags: SockFlag) -> Result<OwnedFd, RunDirError> {
        let path = self.path.as_path();
        let io = |what| move |errno: Errno| RunDirError::io(what, path, errno.into());
        // Who is to reach it needs it to fit an address.
        UnixAddr::new(path).map_err(io("bind"))?;
        remove_stale(&self.directory, &self.name, path, kind)?;
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | flags, None)
            .map_err(io("make a socket for"))?;
        // bind(2) gives the name the mode of its socket: no path is changed afterwards.
        fchmod(&fd, SOCKET_MODE).map_err(io("set the mode of"))?;
        let address = UnixAddr::new(&self.directory.by_descriptor(&self.name)).map_err(io("name"))?;
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

/// Removes the socket at `path` that a dead process left, and nothing else; whether there was one.
///
/// # Errors
/// A live process has it, something else is there, or its directory is not ours.
pub fn remove_stale_socket(path: &Path, kind: SockType) -> Result<bool, RunDirError> {
    let (dir, name) = split(path)?;
    match Directory::open(dir, Others::Look) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        directory => remove_stale(&directory?, name, path, kind),
    }
}

fn remove_stale(
    directory: &Directory,
    name: &OsStr,
    path: &Path,
    kind: SockType,
) -> Result<bool, RunDirError> {
    let io = |what, source| RunDirError::io(what, path, source);
    let Some(stat) = directory.stat(name).map_err(|e| io("look at", e))? else { return Ok(false) };
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
        return Err(RunDirError::NotASocket { path: path.to_owned() });
    }
    if is_alive(directory, name, kind).map_err(|e| io("try", e.into()))? {
        return Err(RunDirError::InUse { path: path.to_owned() });
    }
    directory.remove(name).map_err(|e| io("remove", e))?;
    Ok(true)
}

/// Whether a process is bound to a socket: only what nobody is bound to refuses a connection.
fn is_alive(directory: &Directory, name: &OsStr, kind: SockType) -> Result<bool, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, kind, flags, None)?;
    let tried = connect(probe.as_raw_fd(), &UnixAddr::new(&directory.by_descriptor(name))?);
    Ok(!matches!(tried, Err(Errno::ECONNREFUSED | Errno::ENOENT)))
}

/// Held by the one agent of a run directory; the kernel lets go of it however the agent ends.
#[derive(Debug)]
pub struct InstanceLock(LockFile);

impl InstanceLock {
    /// Takes the lock and writes our process number into it.
    ///
    /// # Errors
    /// [`RunDirError::Held`] when an agent runs; `Lock`.
    pub fn acquire(directory: &Directory) -> Result<InstanceLock, RunDirError> {
        LockFile::take(directory, LOCK_FILE).map(InstanceLock).map_err(|error| match error {
            LockError::Held { pid, .. } => RunDirError::Held { pid },
            error => RunDirError::Lock(error),
        })
    }

    /// Whether it still keeps a second agent out: its file is where it was.
    pub fn is_firm(&self) -> bool {
        self.0.hold() == Hold::Firm
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    #[test]
    fn a_folder_in_a_place_of_everyone_is_ours_or_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join(format!("ccplane-{}", geteuid()));
        let refused =
            || matches!(temporary(base.path()), Err(RunDirError::NotOurs { path: found }) if found == path);
        assert_eq!(temporary(base.path()).unwrap(), path, "not there yet");
        fs::create_dir(&path).unwrap();
        assert_eq!(temporary(base.path()).unwrap(), path);
        if geteuid().is_root() {
            chown(&path, Some(1), None).unwrap();
            assert!(refused(), "another user's");
        }
        fs::remove_dir(&path).unwrap();
        symlink(base.path(), &path).unwrap();
        assert!(refused(), "a link to a folder of ours");
        fs::remove_file(&path).unwrap();
        File::create(&path).unwrap();
        assert!(refused(), "a file");
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("owner's/socket");
        prepare(parent(&path).unwrap()).unwrap();
        let bind = |kind| {
            let mut name = SocketName::new(&path, Others::Nothing).unwrap();
            let bound = name.bind(kind, SockFlag::empty());
            // As a process that is killed leaves it.
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
            assert!(matches!(bind(kind), Err(RunDirError::InUse { .. })), "{live:?} {kind:?}");
            assert!(matches!(remove_stale_socket(&path, kind), Err(RunDirError::InUse { .. })));
            drop((stream, datagram));
            drop(bind(kind).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert!(remove_stale_socket(&path, kind).unwrap());
            assert!(!remove_stale_socket(&path, kind).unwrap());
        }
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(SockType::Stream), Err(RunDirError::NotASocket { .. })));
        assert!(matches!(remove_stale_socket(&path, SockType::Stream), Err(RunDirError::NotASocket { .. })));
    }

    #[test]
    fn a_name_is_one_process_s_at_a_time() {
        let base = tempfile::tempdir().unwrap();
        let name = || SocketName::new(&base.path().join("socket"), Others::Look).unwrap();
        let held = name().lock().unwrap();
        assert!(matches!(name().lock(), Err(RunDirError::InUse { .. })));
        drop(held);
        name().lock().unwrap();
    }
}

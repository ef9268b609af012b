//! The run directory: the control socket, the datapath socket and the lock that keeps a second agent out.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the lock file.
pub const LOCK_FILE: &str = "agent.lock";
/// Name of the control socket.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Name of the datapath socket.
pub const DATAPATH_SOCKET: &str = "ccp.sock";
/// Longest process number, digits.
const MAX_PID_DIGITS: u64 = 20;

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
    /// Others could get at the sockets inside.
    #[error("{}: must be a directory of user {uid} with mode 0700, is of user {owner} with mode {mode:04o}", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Who must own it.
        uid: u32,
        /// Who does.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
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
    /// Another agent holds the lock.
    #[error("an agent is running already{}; stop it with `ccplane stop`, or give this one another `socket` in [control]", pid.map(|p| format!(", pid {p}")).unwrap_or_default())]
    Held {
        /// Its process, where the lock file says so.
        pid: Option<u32>,
    },
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
    match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => Ok(dir),
        _ => Err(RunDirError::NoParent { path: socket.to_owned() }),
    }
}

/// Makes a directory, owner-only, if it is not there.
///
/// # Errors
/// It cannot be made.
pub fn create(dir: &Path) -> Result<(), RunDirError> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
    made.map_err(|source| RunDirError::io("create directory", dir, source))
}

/// Makes the run directory, owner-only, if it is not there; checks it if it is. The default one, which has no other
/// use, is made owner-only if it is not.
///
/// # Errors
/// It cannot be made, or it is not ours alone.
pub fn prepare(dir: &Path) -> Result<(), RunDirError> {
    create(dir)?;
    if default_control_socket().is_ok_and(|socket| socket.parent() == Some(dir)) {
        fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(|source| RunDirError::io("set the mode of", dir, source))?;
    }
    let meta = fs::metadata(dir).map_err(|source| RunDirError::io("look at", dir, source))?;
    let (uid, owner, mode) = (geteuid().as_raw(), meta.uid(), meta.permissions().mode() & 0o7777);
    if owner != uid || mode & 0o077 != 0 {
        return Err(RunDirError::Open { path: dir.to_owned(), uid, owner, mode });
    }
    Ok(())
}

/// Takes away group's and others' rights to a file.
///
/// # Errors
/// The mode cannot be changed.
pub fn owner_only(path: &Path) -> Result<(), RunDirError> {
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(|source| RunDirError::io("set the mode of", path, source))
}

/// Removes the socket of an agent that died; never anything else.
///
/// # Errors
/// Something else is there, or it cannot be removed.
pub fn remove_stale_socket(path: &Path) -> Result<(), RunDirError> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(RunDirError::io("look at", path, e)),
        Ok(meta) if meta.file_type().is_socket() => {
            fs::remove_file(path).map_err(|source| RunDirError::io("remove", path, source))
        }
        Ok(_) => Err(RunDirError::NotASocket { path: path.to_owned() }),
    }
}

/// Held by the one agent of a run directory; the kernel lets go of it however the agent ends.
#[derive(Debug)]
pub struct InstanceLock {
    _file: Flock<File>,
    path: PathBuf,
}

impl InstanceLock {
    /// Takes the lock and writes our process number into it.
    ///
    /// # Errors
    /// [`RunDirError::Held`] when an agent runs; `Io`.
    pub fn acquire(dir: &Path) -> Result<InstanceLock, RunDirError> {
        let path = dir.join(LOCK_FILE);
        let io = |what, source| RunDirError::io(what, &path, source);
        let mut file = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(|e| io("open", e))?;
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    return Err(RunDirError::Held { pid: read_pid(&mut file) });
                }
                Err((_, errno)) => return Err(io("lock", errno.into())),
            };
            // An agent that was just ending may have unlinked the file between our open and our lock.
            let ours = file.metadata().map_err(|e| io("look at", e))?;
            if fs::metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        file.set_len(0).map_err(|e| io("write", e))?;
        file.rewind().map_err(|e| io("write", e))?;
        writeln!(file, "{}", std::process::id()).map_err(|e| io("write", e))?;
        Ok(InstanceLock { _file: file, path })
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        // Unlinked while still locked: see `acquire`.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "unlink the lock file");
        }
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID_DIGITS).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

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
}

//! The run directory: the control socket, the datapath socket and the locks that keep a second agent out.
//!
//! Directories are opened once, then checked and used by descriptor. So nobody can put another one in their place
//! between the check and the use.

use ccplane_files::{Directory, DirectoryError, LockError, LockFile, LockState, Others, SocketError};
use nix::unistd::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Name of the lock file.
pub const LOCK_FILE: &str = "agent.lock";
/// Name of the control socket.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Name of the datapath socket.
pub const DATAPATH_SOCKET: &str = "ccp.sock";

/// The state directory of the package's service, which outlives a start of the machine.
pub(crate) const SERVICE_STATE: &str = "/var/lib/ccplane";

/// Errors of the run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// No place for it is ours.
    #[error("not root, XDG_RUNTIME_DIR is not set, and {} is not a directory of this user: set `socket` in [control]", path.display())]
    NotOurs {
        /// The path at which it would be.
        path: PathBuf,
    },
    /// The directory is not ours alone.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A socket's name cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another agent holds the lock.
    #[error("an agent is running already{}; stop it with `ccplane stop`, or give this one another `socket` in [control]", pid.map(|p| format!(", pid {p}")).unwrap_or_default())]
    Held {
        /// The process id in the lock file, if it has one.
        pid: Option<u32>,
    },
    /// A lock cannot be had.
    #[error(transparent)]
    Lock(LockError),
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
        self.0.state() == LockState::Held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
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

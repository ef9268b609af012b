//! Lock files: one process holds each and writes its number into it; the lock ends with the process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::directory::{Directory, DirectoryError};

/// Digits of a process number, at most.
const MAX_PID_DIGITS: u64 = 20;

/// Reasons why a lock is not held.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{} is locked{}", path.display(), pid.map(|p| format!(" by pid {p}")).unwrap_or_default())]
    Held {
        path: PathBuf,
        /// The holder's process number, if the file contains it.
        pid: Option<u32>,
    },
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// The lock's directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// The state of a lock that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockState {
    /// The lock still keeps other processes out.
    Held,
    /// The lock file was removed: the next process gets a lock of its own.
    Removed,
    /// Another file has taken its place: another process may hold that one.
    Replaced,
}

/// A lock file that this process holds; dropping it removes the file.
#[derive(Debug)]
pub struct LockFile {
    file: Flock<File>,
    directory: Directory,
    name: OsString,
    path: PathBuf,
}

impl LockFile {
    /// Takes the lock `name` and writes this process's number into it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(directory: &Directory, name: &str) -> Result<LockFile, LockError> {
        let path = directory.path().join(name);
        let name = OsString::from(name);
        let io = |what, source| LockError::Io { what, path: path.clone(), source };
        let mut file = loop {
            let file = File::from(directory.open_file(&name).map_err(|e| io("open", e))?);
            if !file.metadata().map_err(|e| io("look at", e))?.is_file() {
                return Err(io("lock", io::ErrorKind::InvalidInput.into()));
            }
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((file, Errno::EWOULDBLOCK)) => {
                    return Err(LockError::Held { path: path.clone(), pid: signed_by(file) });
                }
                Err((_, errno)) => return Err(io("lock", errno.into())),
            };
            // Its last holder may have removed the file between our opening and our locking it.
            let ours = file.metadata().map_err(|e| io("look at", e))?;
            let there = directory.stat(&name).map_err(|e| io("look at", e))?;
            if there.is_some_and(|there| (there.st_dev, there.st_ino) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        let signed = file.set_len(0).and_then(|()| file.rewind());
        signed.and_then(|()| writeln!(file, "{}", std::process::id())).map_err(|e| io("write", e))?;
        Ok(LockFile { file, directory: directory.try_clone()?, name, path })
    }

    /// The lock file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the lock still keeps other processes out.
    pub fn state(&self) -> LockState {
        let Ok(there) = fs::symlink_metadata(&self.path) else { return LockState::Removed };
        let same = self.file.metadata().is_ok_and(|o| (o.dev(), o.ino()) == (there.dev(), there.ino()));
        if same { LockState::Held } else { LockState::Replaced }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Removed while still locked: see `take`. What stays behind does no harm.
        if let (Ok(Some(there)), Ok(ours)) = (self.directory.stat(&self.name), self.file.metadata())
            && (there.st_dev, there.st_ino) == (ours.dev(), ours.ino())
        {
            let _ = self.directory.remove(&self.name);
        }
    }
}

fn signed_by(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID_DIGITS).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Others;
    use std::os::unix::fs::symlink;

    const NAME: &str = "one.lock";

    fn directory() -> (tempfile::TempDir, Directory) {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::create(&base.path().join("d"), Others::Nothing).unwrap();
        (base, directory)
    }

    #[test]
    fn one_process_holds_the_lock_and_leaves_no_file() {
        let (_base, directory) = directory();
        let held = LockFile::take(&directory, NAME).unwrap();
        match LockFile::take(&directory, NAME) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        assert_eq!(held.state(), LockState::Held);
        drop(held);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_lock_of_a_killed_process_is_taken_over() {
        let (_base, directory) = directory();
        fs::write(directory.path().join(NAME), "123456789012").unwrap();
        let _held = LockFile::take(&directory, NAME).unwrap();
    }

    #[test]
    fn a_lock_whose_file_is_removed_is_lost_and_harms_no_other() {
        let (_base, directory) = directory();
        let first = LockFile::take(&directory, NAME).unwrap();
        fs::remove_file(first.path()).unwrap();
        assert_eq!(first.state(), LockState::Removed);
        let second = LockFile::take(&directory, NAME).unwrap();
        assert_eq!((first.state(), second.state()), (LockState::Replaced, LockState::Held));
        drop(first);
        assert_eq!(second.state(), LockState::Held, "the other's is not removed");
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let (base, directory) = directory();
        let precious = base.path().join("precious");
        fs::write(&precious, "text").unwrap();
        symlink(&precious, directory.path().join(NAME)).unwrap();
        assert!(matches!(LockFile::take(&directory, NAME), Err(LockError::Io { .. })));
        assert_eq!(fs::read(&precious).unwrap(), b"text");
    }
}

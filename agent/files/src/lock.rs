//! Lock files: held by one process, which they name, until it ends however it ends.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::directory::{Directory, DirectoryError};

/// Longest process number, digits.
const MAX_PID_DIGITS: u64 = 20;

/// Why a lock is not held.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is locked{}", path.display(), pid.map(|p| format!(" by pid {p}")).unwrap_or_default())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The holder, where the file says so.
        pid: Option<u32>,
    },
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
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// What has become of a lock that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// It keeps others out.
    Firm,
    /// Its file was removed: the next process that asks gets a lock of its own.
    Lost,
    /// Another file is in its place: another process may hold that.
    Replaced,
}

/// A lock file that this process holds; removed when dropped.
#[derive(Debug)]
pub struct LockFile {
    file: Flock<File>,
    directory: Directory,
    name: OsString,
    path: PathBuf,
}

impl LockFile {
    /// Takes the lock called `name` and writes our process number into it.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still keeps others out.
    pub fn hold(&self) -> Hold {
        let Ok(there) = fs::symlink_metadata(&self.path) else { return Hold::Lost };
        let same = self.file.metadata().is_ok_and(|o| (o.dev(), o.ino()) == (there.dev(), there.ino()));
        if same { Hold::Firm } else { Hold::Replaced }
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
    fn one_process_holds_it_and_nothing_is_left() {
        let (_base, directory) = directory();
        let held = LockFile::take(&directory, NAME).unwrap();
        match LockFile::take(&directory, NAME) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        assert_eq!(held.hold(), Hold::Firm);
        drop(held);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_taken_over() {
        let (_base, directory) = directory();
        fs::write(directory.path().join(NAME), "123456789012").unwrap();
        let _held = LockFile::take(&directory, NAME).unwrap();
    }

    #[test]
    fn a_lock_whose_file_is_removed_is_lost_and_harms_no_other() {
        let (_base, directory) = directory();
        let first = LockFile::take(&directory, NAME).unwrap();
        fs::remove_file(first.path()).unwrap();
        assert_eq!(first.hold(), Hold::Lost);
        let second = LockFile::take(&directory, NAME).unwrap();
        assert_eq!((first.hold(), second.hold()), (Hold::Replaced, Hold::Firm));
        drop(first);
        assert_eq!(second.hold(), Hold::Firm, "the other's is not removed");
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

//! Directories that nobody else can change: they are opened once, then checked and used by descriptor.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// Permission bits, including set-id and sticky.
const MODE_BITS: u32 = 0o7777;
/// Permissions of an owner-only directory.
const OWNER_ONLY: Mode = Mode::S_IRWXU;

/// Permissions that other users may have on a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// No permission: the mode is 0700.
    Nothing,
    /// Other users may list the directory, but not write to it.
    Read,
}

impl Others {
    fn forbidden(self) -> u32 {
        match self {
            Others::Nothing => 0o077,
            Others::Read => 0o022,
        }
    }
}

/// Reasons why a directory is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// Something else is in its place.
    #[error("{}: is a symbolic link, or no directory", path.display())]
    NotADirectory { path: PathBuf },
    /// Other users could change the directory's content.
    #[error("{}: must be a directory of user {uid} {}, is of user {owner} with mode {mode:04o}", path.display(), match others { Others::Nothing => "with mode 0700", Others::Read => "that nobody else can write to" })]
    Open {
        path: PathBuf,
        /// The user that must own the directory.
        uid: u32,
        /// The user that owns the directory.
        owner: u32,
        mode: u32,
        /// Permissions that other users may have.
        others: Others,
    },
}

/// An open directory that belongs to this user and that nobody else can write to.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory; creates it with mode 0700 if it does not exist.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn create(path: &Path, others: Others) -> Result<Directory, DirectoryError> {
        let made = DirBuilder::new().mode(OWNER_ONLY.bits()).recursive(true).create(path);
        match made {
            // A file or a dangling link is in its place.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(DirectoryError::NotADirectory { path: path.to_owned() });
            }
            made => made.map_err(|e| io_error("create directory", path, e))?,
        }
        Directory::open(path, others)
    }

    /// Creates the directory as [`Directory::create`] does, for a directory that serves nothing else: its
    /// mode is set if it is ours.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn create_own(path: &Path) -> Result<Directory, DirectoryError> {
        match Directory::create(path, Others::Nothing) {
            Err(DirectoryError::Open { uid, owner, .. }) if uid == owner => {}
            other => return other,
        }
        let fd = open_nofollow(path)?;
        let stat = fstat(&fd).map_err(|e| io_error("look at", path, e.into()))?;
        if stat.st_uid == geteuid().as_raw() {
            fchmod(&fd, OWNER_ONLY).map_err(|e| io_error("set the mode of", path, e.into()))?;
        }
        check(fd, path, Others::Nothing)
    }

    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn open(path: &Path, others: Others) -> Result<Directory, DirectoryError> {
        check(open_nofollow(path)?, path, others)
    }

    /// Duplicates the directory's descriptor.
    ///
    /// # Errors
    /// `Io`.
    pub fn try_clone(&self) -> Result<Directory, DirectoryError> {
        let fd = self.fd.try_clone().map_err(|e| io_error("duplicate", &self.path, e))?;
        Ok(Directory { fd, path: self.path.clone() })
    }

    /// The path that the directory was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to the entry `name` of this very directory, even if [`Directory::path`] now leads elsewhere.
    pub fn by_descriptor(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }

    /// The status of the entry `name`, without following links; `None` if there is no such entry.
    ///
    /// # Errors
    /// The error of fstatat(2).
    pub fn stat(&self, name: &OsStr) -> io::Result<Option<FileStat>> {
        match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the file `name`.
    ///
    /// # Errors
    /// The error of unlinkat(2).
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Opens the file `name` without following links; creates it for the owner alone if it does not exist.
    ///
    /// # Errors
    /// The error of openat(2).
    pub fn open_file(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        Ok(openat(&self.fd, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io { what, path: path.to_owned(), source }
}

fn open_nofollow(path: &Path) -> Result<OwnedFd, DirectoryError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOTDIR | Errno::ELOOP => DirectoryError::NotADirectory { path: path.to_owned() },
        errno => io_error("open", path, errno.into()),
    })
}

fn check(fd: OwnedFd, path: &Path, others: Others) -> Result<Directory, DirectoryError> {
    let stat = fstat(&fd).map_err(|e| io_error("look at", path, e.into()))?;
    let (uid, owner, mode) = (geteuid().as_raw(), stat.st_uid, stat.st_mode & MODE_BITS);
    if owner != uid || mode & others.forbidden() != 0 {
        return Err(DirectoryError::Open { path: path.to_owned(), uid, owner, mode, others });
    }
    Ok(Directory { fd, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & MODE_BITS
    }

    #[test]
    fn is_made_for_its_owner_and_refused_where_others_can_write() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        Directory::create(&path, Others::Nothing).unwrap();
        assert_eq!(mode(&path), 0o700);
        for (bits, looks, writes) in [(0o755, true, false), (0o1777, false, false), (0o720, false, false)] {
            fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
            assert_eq!(Directory::open(&path, Others::Read).is_ok(), looks, "{bits:o}");
            assert_eq!(Directory::open(&path, Others::Nothing).is_ok(), writes, "{bits:o}");
            assert_eq!(mode(&path), bits, "what is refused is left as it is");
        }
        Directory::create_own(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        if geteuid().is_root() {
            chown(&path, Some(1), None).unwrap();
            for refused in [Directory::open(&path, Others::Read), Directory::create_own(&path)] {
                assert!(matches!(refused, Err(DirectoryError::Open { owner: 1, .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn a_link_or_a_file_in_its_place_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let target = base.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o755)).unwrap();
        let place = base.path().join("place");
        symlink(&target, &place).unwrap();
        let refused = |path: &Path| {
            for tried in [Directory::create(path, Others::Read), Directory::create_own(path)] {
                assert!(matches!(tried, Err(DirectoryError::NotADirectory { .. })), "{tried:?}");
            }
        };
        refused(&place);
        assert_eq!(mode(&target), 0o755, "untouched");
        fs::remove_file(&place).unwrap();
        symlink("nowhere", &place).unwrap();
        refused(&place);
        fs::remove_file(&place).unwrap();
        fs::write(&place, "").unwrap();
        refused(&place);
    }

    #[test]
    fn operations_use_the_directory_that_was_checked() {
        let base = tempfile::tempdir().unwrap();
        let (path, aside) = (base.path().join("dir"), base.path().join("aside"));
        let directory = Directory::create(&path, Others::Nothing).unwrap();
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        let name = OsStr::new("file");
        drop(directory.open_file(name).unwrap());
        assert!(aside.join(name).exists() && !path.join(name).exists());
        assert!(directory.by_descriptor(name).exists() && directory.stat(name).unwrap().is_some());
        directory.remove(name).unwrap();
        assert!(directory.stat(name).unwrap().is_none());
        symlink("/etc/passwd", aside.join(name)).unwrap();
        assert!(directory.open_file(name).is_err(), "links are not followed");
    }
}

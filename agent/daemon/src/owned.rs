//! Folders and files that only this user may change. Each is opened once and checked by descriptor, so that no name can be changed for
//! another in between.

use nix::dir::Dir;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Modes of new folders and files.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// Permission bits that group and others must not have: write, and for secrets any.
const WRITTEN_BY_OTHERS: u32 = 0o022;
const SEEN_BY_OTHERS: u32 = 0o077;
/// Entries of a folder that are looked at, at most.
const MAX_ENTRIES: usize = 4096;

/// Reasons why a folder or file is not used.
#[derive(Debug, thiserror::Error)]
pub enum OwnedError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Somebody else's, or others may write to it, or read it.
    #[error("{}: must be of user {uid} and not be {open_to}, is of user {owner} with mode {mode:04o}: mend it with chown and chmod, or name another", path.display())]
    Foreign {
        /// The folder or file.
        path: PathBuf,
        /// The user who has to own the folder.
        uid: u32,
        /// Access that others must not have, in words.
        open_to: &'static str,
        owner: u32,
        mode: u32,
    },
    /// Neither a folder nor a plain file.
    #[error("{}: {what} is needed, without links", path.display())]
    Kind { path: PathBuf, what: &'static str },
    #[error("{}: more than {limit} bytes", path.display())]
    Long { path: PathBuf, limit: usize },
}

/// A folder of this user's, to which nobody else writes.
#[derive(Debug)]
pub struct Folder {
    file: File,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder; makes it, for its owner alone, where it is not there.
    ///
    /// # Errors
    /// It cannot be made or opened, is a link, somebody else's, or others may write to it.
    pub fn open(path: &Path) -> Result<Folder, OwnedError> {
        let failed = |source| OwnedError::Io { path: path.to_owned(), source };
        DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(path).map_err(failed)?;
        Folder::opened(path)
    }

    /// Opens a folder that is there; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be opened, is a link, somebody else's, or others may write to it.
    pub fn find(path: &Path) -> Result<Option<Folder>, OwnedError> {
        match Folder::opened(path) {
            Err(OwnedError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn opened(path: &Path) -> Result<Folder, OwnedError> {
        let failed = |source| OwnedError::Io { path: path.to_owned(), source };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(AT_FDCWD, path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        let stat = fstat(&file).map_err(|e| failed(e.into()))?;
        owned(path, &stat, WRITTEN_BY_OTHERS)?;
        Ok(Folder { file: file.into(), path: path.to_owned() })
    }

    /// Another handle on the same folder.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn reopen(&self) -> Result<Folder, OwnedError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let file = openat(&self.file, ".", flags, Mode::empty()).map_err(|e| self.failed(".", e))?;
        Ok(Folder { file: file.into(), path: self.path.clone() })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of this user; `None` where no file has that name.
    ///
    /// # Errors
    /// It is somebody else's, others may write to it, it is no plain file, or longer than `limit` bytes.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, OwnedError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.file, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(nix::Error::ENOENT) => return Ok(None),
            Err(nix::Error::ELOOP) => {
                return Err(OwnedError::Kind { path: self.path.join(name), what: "a file" });
            }
            Err(error) => return Err(self.failed(name, error)),
        };
        read_owned(&self.path.join(name), file, WRITTEN_BY_OTHERS, limit).map(Some)
    }

    /// Whether anything has that name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn has(&self, name: &str) -> Result<bool, OwnedError> {
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(nix::Error::ENOENT) => Ok(false),
            Err(error) => Err(self.failed(name, error)),
        }
    }

    /// Copies a file of `from`, if it is there and nothing here has its name; whether it did.
    ///
    /// # Errors
    /// The file cannot be read, for a reason of [`Folder::read`], or the copy cannot be written.
    pub fn copy_from(&self, from: &Folder, name: &str, limit: usize) -> Result<bool, OwnedError> {
        if self.has(name)? {
            return Ok(false);
        }
        let Some(bytes) = from.read(name, limit)? else { return Ok(false) };
        self.replace(name, &bytes).map(|()| true)
    }

    /// Writes a file that is there whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), OwnedError> {
        let unfinished = format!("{name}.{}.new", std::process::id());
        let failed = |e| self.failed(name, e);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let create = || openat(&self.file, unfinished.as_str(), flags, FILE_MODE);
        let file = match create() {
            // Of a process of this number that died here: nobody else can write to this folder.
            Err(nix::Error::EEXIST) => {
                unlinkat(&self.file, unfinished.as_str(), UnlinkatFlags::NoRemoveDir).map_err(failed)?;
                create()
            }
            other => other,
        };
        let mut file = File::from(file.map_err(failed)?);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| Ok(renameat(&self.file, unfinished.as_str(), &self.file, name)?));
        renamed.map_err(|source| {
            let _ = unlinkat(&self.file, unfinished.as_str(), UnlinkatFlags::NoRemoveDir);
            OwnedError::Io { path: self.path.join(name), source }
        })
    }

    /// Removes a plain file of this user's, if it is there; nothing else.
    ///
    /// # Errors
    /// It is something else, or cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), OwnedError> {
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(nix::Error::ENOENT) => return Ok(()),
            Err(error) => return Err(self.failed(name, error)),
            Ok(stat) => {
                plain(&self.path.join(name), &stat)?;
                owned(&self.path.join(name), &stat, 0)?;
            }
        }
        unlinkat(&self.file, name, UnlinkatFlags::NoRemoveDir).map_err(|e| self.failed(name, e))
    }

    /// The names in it that end so.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names_ending(&self, end: &str) -> Result<Vec<String>, OwnedError> {
        let folder = self.reopen()?;
        let mut dir = Dir::from_fd(folder.file.into()).map_err(|e| self.failed(".", e))?;
        let names = dir.iter().take(MAX_ENTRIES).filter_map(Result::ok);
        let names = names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| name.ends_with(end)).collect())
    }

    /// Keeps other processes and threads that lock it out, until what is returned is dropped.
    ///
    /// # Errors
    /// It cannot be locked.
    pub fn lock(&self) -> Result<Flock<File>, OwnedError> {
        let own = self.reopen()?.file;
        Flock::lock(own, FlockArg::LockExclusive).map_err(|(_, error)| self.failed(".", error))
    }

    fn failed(&self, name: &str, error: nix::Error) -> OwnedError {
        OwnedError::Io { path: self.path.join(name), source: error.into() }
    }
}

/// A secret's text: from a plain file of this user's that nobody else may read.
///
/// # Errors
/// It is somebody else's, others may read it, it is no plain file, or longer than `limit` bytes.
pub fn read_secret(path: &Path, limit: usize) -> Result<String, OwnedError> {
    let failed = |source| OwnedError::Io { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    let bytes = read_owned(path, file, SEEN_BY_OTHERS, limit)?;
    String::from_utf8(bytes).map_err(|e| failed(io::Error::other(e)))
}

fn read_owned(path: &Path, file: File, forbidden: u32, limit: usize) -> Result<Vec<u8>, OwnedError> {
    let failed = |source| OwnedError::Io { path: path.to_owned(), source };
    let stat = fstat(&file).map_err(|e| failed(e.into()))?;
    plain(path, &stat)?;
    owned(path, &stat, forbidden)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > limit { Err(OwnedError::Long { path: path.to_owned(), limit }) } else { Ok(bytes) }
}

fn plain(path: &Path, stat: &FileStat) -> Result<(), OwnedError> {
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFREG {
        Ok(())
    } else {
        Err(OwnedError::Kind { path: path.to_owned(), what: "a file" })
    }
}

fn owned(path: &Path, stat: &FileStat, forbidden: u32) -> Result<(), OwnedError> {
    let (uid, owner, mode) = (geteuid().as_raw(), stat.st_uid, stat.st_mode & 0o7777);
    if owner == uid && mode & forbidden == 0 {
        return Ok(());
    }
    let open_to = if forbidden == SEEN_BY_OTHERS { "readable by others" } else { "writable by others" };
    Err(OwnedError::Foreign { path: path.to_owned(), uid, open_to, owner, mode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn folders_of_others_are_not_used() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b");
        assert!(Folder::open(&path).is_ok(), "made");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, FOLDER_MODE);
        for (mode, good) in [(0o755, true), (0o775, false), (0o702, false), (0o1777, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let opened = Folder::open(&path);
            assert_eq!(opened.is_ok(), good, "{mode:o}");
            assert!(good || matches!(opened, Err(OwnedError::Foreign { .. })));
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let link = base.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(Folder::open(&link).is_err(), "a link");
        assert!(Folder::open(Path::new("/dev/null")).is_err());
        if geteuid().is_root() {
            chown(&path, Some(1), None).unwrap();
            let refused = Folder::open(&path).unwrap_err();
            assert!(matches!(refused, OwnedError::Foreign { owner: 1, .. }), "{refused}");
        }
    }

    #[test]
    fn files_of_others_are_neither_read_nor_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::open(base.path()).unwrap();
        folder.replace("a", b"1").unwrap();
        folder.replace("a", b"22").unwrap();
        assert_eq!(folder.read("a", 2).unwrap().unwrap(), b"22");
        assert!(matches!(folder.read("a", 1), Err(OwnedError::Long { limit: 1, .. })));
        assert!(folder.read("b", 1).unwrap().is_none());
        let path = base.path().join("a");
        fs::set_permissions(&path, Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(folder.read("a", 9), Err(OwnedError::Foreign { mode: 0o622, .. })));
        symlink(&path, base.path().join("link")).unwrap();
        assert!(matches!(folder.read("link", 9), Err(OwnedError::Kind { .. })));
        assert!(folder.remove("link").is_err());
        nix::unistd::mkfifo(&base.path().join("fifo"), FILE_MODE).unwrap();
        assert!(matches!(folder.read("fifo", 9), Err(OwnedError::Kind { .. })), "without waiting");
        if geteuid().is_root() {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            chown(&path, Some(1), None).unwrap();
            assert!(matches!(folder.read("a", 9), Err(OwnedError::Foreign { owner: 1, .. })));
            assert!(folder.remove("a").is_err() && path.exists());
            chown(&path, Some(0), None).unwrap();
        }
        folder.remove("a").unwrap();
        folder.remove("a").unwrap();
        assert!(!path.exists());
        let left: Vec<_> = fs::read_dir(base.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "no unfinished file: {left:?}");
    }

    #[test]
    fn files_are_copied_where_nothing_is_in_their_place() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        assert!(Folder::find(&path("from")).unwrap().is_none() && !path("from").exists());
        let [from, to] = ["from", "to"].map(|name| Folder::open(&path(name)).unwrap());
        assert!(Folder::find(&path("from")).unwrap().is_some());
        assert!(!to.copy_from(&from, "a", 9).unwrap(), "nothing is there");
        from.replace("a", b"old").unwrap();
        assert!(matches!(to.copy_from(&from, "a", 2), Err(OwnedError::Long { limit: 2, .. })));
        assert!(to.copy_from(&from, "a", 3).unwrap() && to.has("a").unwrap());
        from.replace("a", b"new").unwrap();
        assert!(!to.copy_from(&from, "a", 9).unwrap());
        assert_eq!(to.read("a", 9).unwrap().unwrap(), b"old");
        // A link in the place of the file is neither followed nor replaced.
        symlink(path("from/a"), path("to/link")).unwrap();
        from.replace("link", b"1").unwrap();
        assert!(!to.copy_from(&from, "link", 9).unwrap());
    }

    #[test]
    fn secrets_are_for_one_pair_of_eyes() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("key");
        fs::write(&path, "secret").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path, 9).is_ok(), good, "{mode:o}");
        }
    }
}

//! A folder that is served, and nothing outside it.
//!
//! The kernel resolves names beneath it (`openat2`), so that neither `..` nor a symbolic link leads out, also not one
//! that is made meanwhile.

use super::newfile::NewFile;
use super::refusal::Refused;
use super::tree::{self, Amount, count};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two counts of a quota that seems to be used up.
const RECOUNT_AFTER: Duration = Duration::from_secs(10);

/// The limits on files put into a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Largest file, bytes.
    pub max_file_bytes: u64,
    /// Size of all regular files beneath the folder, at most, including those that were there before.
    pub max_bytes: u64,
    /// Regular files beneath the folder, at most, including those that were there before.
    pub max_files: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Quota { max_file_bytes: 4 << 30, max_bytes: 16 << 30, max_files: 10_000 }
    }
}

/// The folder's usage: the last count, files put since, and room promised to files on their way.
#[derive(Debug)]
struct Usage {
    there: Amount,
    promised: Amount,
    counted: Instant,
}

/// A folder that is served.
pub struct Folder {
    root: OwnedFd,
    quota: Option<Quota>,
    usage: Arc<Mutex<Usage>>,
}

impl Folder {
    /// Serves the files beneath `path` read-only.
    ///
    /// # Errors
    /// The path is not a folder, or not one that may be read.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())?;
        let (there, promised) = Default::default();
        let usage = Arc::new(Mutex::new(Usage { there, promised, counted: Instant::now() }));
        Ok(Folder { root, quota: None, usage })
    }

    /// Serves the files beneath `path` for reading and writing.
    ///
    /// It counts existing files, and removes unfinished ones that killed servers left.
    ///
    /// # Errors
    /// As [`Folder::open`], or there are too many files to count.
    pub fn writable(path: &Path, quota: Quota) -> io::Result<Folder> {
        let folder = Folder::open(path)?;
        lock(&folder.usage).there = count(&folder.root)?;
        Ok(Folder { quota: Some(quota), ..folder })
    }

    /// Whether files may be put into the folder.
    pub fn is_writable(&self) -> bool {
        self.quota.is_some()
    }

    /// Whether every user of this machine may read what is served, by the modes of files and folders beneath this one.
    ///
    /// # Errors
    /// A folder cannot be read, or there are too many names to look at.
    pub fn all_may_read(&self) -> io::Result<bool> {
        tree::all_may_read(&self.root)
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Opens a file for reading; returns its length in bytes, too.
    ///
    /// # Errors
    /// `Name`, `NotFound`, `NotAFile`, `System`.
    pub fn read(&self, name: &str) -> Result<(File, u64), Refused> {
        let path = checked(name)?;
        // A pipe without a writer must not hold up the server.
        let file = File::from(self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata.len())) } else { Err(Refused::NotAFile) }
    }

    /// Creates a file of this length; it appears under its name when it is [kept](PutFile::keep).
    ///
    /// # Errors
    /// All but those of a request and of who may write.
    pub fn create(&self, name: &str, bytes: u64) -> Result<PutFile, Refused> {
        let path = checked(name)?;
        let quota = self.quota.ok_or(Refused::ReadOnly)?;
        let file_name = path.file_name().and_then(|n| n.to_str()).ok_or(Refused::Name)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = self.beneath(parent, OFlags::DIRECTORY | OFlags::RDONLY)?;
        let promise = self.promise(quota, bytes)?;
        let own = parent.try_clone()?;
        let file = NewFile::create(parent, file_name.to_owned())?;
        Ok(PutFile { file, parent: own, name: file_name.to_owned(), promise })
    }

    /// Reserves room for a file, if the quota has it.
    fn promise(&self, quota: Quota, bytes: u64) -> Result<Promise, Refused> {
        if bytes > quota.max_file_bytes {
            return Err(Refused::TooLarge { bytes, max_bytes: quota.max_file_bytes });
        }
        let mut usage = lock(&self.usage);
        let mut left = usage.left(quota);
        if (left.files == 0 || left.bytes < bytes) && usage.counted.elapsed() >= RECOUNT_AFTER {
            // Others may have removed files.
            usage.there = count(&self.root)?;
            usage.counted = Instant::now();
            left = usage.left(quota);
        }
        if left.files == 0 || left.bytes < bytes {
            return Err(Refused::Quota { files: left.files, bytes: left.bytes });
        }
        usage.promised.files += 1;
        usage.promised.bytes += bytes;
        Ok(Promise { bytes, usage: Arc::clone(&self.usage) })
    }
}

impl Usage {
    fn left(&self, quota: Quota) -> Amount {
        let used = |there: u64, promised: u64| there.saturating_add(promised);
        Amount {
            files: quota.max_files.saturating_sub(used(self.there.files, self.promised.files)),
            bytes: quota.max_bytes.saturating_sub(used(self.there.bytes, self.promised.bytes)),
        }
    }
}

/// Room of the quota that is reserved for a file on its way, until it is dropped.
struct Promise {
    bytes: u64,
    usage: Arc<Mutex<Usage>>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut usage = lock(&self.usage);
        usage.promised.files -= 1;
        usage.promised.bytes -= self.bytes;
    }
}

fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that a path is relative and its parts are plain names: not hidden, and without control characters.
fn checked(name: &str) -> Result<&Path, Refused> {
    let path = Path::new(name);
    let plain = |part: Component<'_>| match part {
        Component::Normal(part) => !part.as_encoded_bytes().starts_with(b"."),
        _ => false,
    };
    let well_formed = !name.is_empty() && !name.ends_with('/') && !name.contains(char::is_control);
    if well_formed && path.components().all(plain) { Ok(path) } else { Err(Refused::Name) }
}

/// A file that a client puts. It is removed when it is dropped before it was kept.
pub struct PutFile {
    file: NewFile,
    parent: OwnedFd,
    name: String,
    promise: Promise,
}

impl PutFile {
    /// Gives the file its name, in place of any file that had it.
    ///
    /// # Errors
    /// `NotAFile`, `System`.
    pub fn keep(self) -> Result<(), Refused> {
        let PutFile { file, parent, name, promise } = self;
        let before = statat(&parent, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok();
        let before = before.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        file.keep()?;
        let there = &mut lock(&promise.usage).there;
        there.bytes = there.bytes.saturating_add(promise.bytes);
        match before {
            Some(stat) => there.bytes = there.bytes.saturating_sub(stat.st_size.cast_unsigned()),
            None => there.files += 1,
        }
        Ok(())
    }
}

impl io::Write for PutFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.file.write(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let served = dir.path().join("served");
        std::fs::create_dir_all(served.join("in")).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        std::fs::write(served.join("in/file"), "content").unwrap();
        symlink("../secret", served.join("out")).unwrap();
        symlink(dir.path(), served.join("up")).unwrap();
        symlink("in/file", served.join("within")).unwrap();
        symlink("loop", served.join("loop")).unwrap();
        let folder = Folder::writable(&served, Quota::default()).unwrap();
        for name in ["in/file", "within"] {
            let (mut file, length) = folder.read(name).unwrap();
            let mut content = String::new();
            file.read_to_string(&mut content).unwrap();
            assert_eq!((content.as_str(), length), ("content", 7), "{name}");
        }
        let absolute = served.join("in/file");
        let absolute = absolute.to_str().unwrap();
        for name in [
            "",
            "..",
            "../secret",
            "in/../../secret",
            absolute,
            "/",
            ".",
            "in/file/",
            "nul\0",
            ".hidden",
            "in/.hidden/file",
            "esc\u{1b}[2J",
            "c1\u{9b}2J",
            "out",
            "up/secret",
            "loop",
        ] {
            assert_eq!(folder.read(name).err(), Some(Refused::Name), "{name:?}");
            let created = folder.create(name, 4).err();
            assert!(
                created == Some(Refused::Name) || ["out", "loop"].contains(&name),
                "{name:?}: {created:?}"
            );
        }
        assert_eq!(folder.read("in").err(), Some(Refused::NotAFile));
        assert_eq!(folder.read("none").err(), Some(Refused::NotFound));
        assert_eq!(folder.read("none/none").err(), Some(Refused::NotFound));
        assert_eq!(folder.read("in/file/none").err(), Some(Refused::NotFound));
        assert_eq!(folder.create("none/new", 4).err(), Some(Refused::NotFound));
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"secret");
    }

    #[test]
    fn a_file_that_is_put_appears_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "old").unwrap();
        let folder = Folder::writable(dir.path(), Quota::default()).unwrap();
        let mut kept = folder.create("file", 4).unwrap();
        let mut dropped = folder.create("other", 4).unwrap();
        kept.write_all(b"new").unwrap();
        dropped.write_all(b"half").unwrap();
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["file"], "nothing to guess, and nothing to serve");
        kept.keep().unwrap();
        drop(dropped);
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let served = dir.path().join("served");
        std::fs::create_dir(&served).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink("../secret", served.join("out")).unwrap();
        let folder = Folder::writable(&served, Quota::default()).unwrap();
        let mut file = folder.create("out", 4).unwrap();
        file.write_all(b"mine").unwrap();
        file.keep().unwrap();
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read(served.join("out")).unwrap(), b"mine");
    }

    #[test]
    fn a_read_only_folder_refuses_files() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.create("file", 4).err(), Some(Refused::ReadOnly));
        assert!(Folder::open(&dir.path().join("none")).is_err());
    }

    #[test]
    fn all_may_read_where_each_served_file_and_folder_lets_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("in/below")).unwrap();
        std::fs::create_dir(path(".hidden")).unwrap();
        for name in ["file", "in/file", "in/below/file", ".hidden/file"] {
            std::fs::write(path(name), "content").unwrap();
        }
        symlink("none", path("link")).unwrap();
        let set =
            |name: &str, mode| std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        for name in ["in", "in/below"] {
            set(name, 0o711);
        }
        for name in ["file", "in/file", "in/below/file"] {
            set(name, 0o604);
        }
        set(".hidden", 0o700);
        let folder = Folder::open(dir.path()).unwrap();
        assert!(folder.all_may_read().unwrap());
        for (name, narrow, wide) in [("in/below/file", 0o660, 0o604), ("in/below", 0o770, 0o711)] {
            set(name, narrow);
            assert!(!folder.all_may_read().unwrap(), "{name}");
            set(name, wide);
            assert!(folder.all_may_read().unwrap(), "{name}");
        }
    }

    #[test]
    fn a_quota_holds_for_files_on_their_way_and_after() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("in/there"), [7; 40]).unwrap();
        let quota = Quota { max_file_bytes: 50, max_bytes: 100, max_files: 3 };
        let folder = Folder::writable(dir.path(), quota).unwrap();
        let refused = |name: &str, bytes: u64| folder.create(name, bytes).err();
        assert_eq!(refused("a", 51), Some(Refused::TooLarge { bytes: 51, max_bytes: 50 }));
        let a = folder.create("a", 50).unwrap();
        assert_eq!(refused("b", 11), Some(Refused::Quota { files: 1, bytes: 10 }), "it is promised");
        drop(a);
        let mut a = folder.create("a", 50).unwrap();
        a.write_all(&[7; 50]).unwrap();
        a.keep().unwrap();
        assert_eq!(refused("b", 11), Some(Refused::Quota { files: 1, bytes: 10 }), "it is there");
        // A file that replaces another takes its place in the count.
        let mut smaller = folder.create("a", 5).unwrap();
        smaller.write_all(&[7; 5]).unwrap();
        smaller.keep().unwrap();
        let b = folder.create("b", 11).unwrap();
        assert_eq!(refused("c", 0), Some(Refused::Quota { files: 0, bytes: 44 }));
        b.keep().unwrap();
        assert_eq!(refused("c", 0), Some(Refused::Quota { files: 0, bytes: 44 }));
    }

    #[test]
    fn a_quota_recounts_files_that_others_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("there"), [7; 40]).unwrap();
        let folder = Folder::writable(dir.path(), Quota { max_bytes: 40, ..Quota::default() }).unwrap();
        std::fs::remove_file(dir.path().join("there")).unwrap();
        assert!(folder.create("a", 1).is_err(), "it was counted just now");
        lock(&folder.usage).counted -= RECOUNT_AFTER;
        assert!(folder.create("a", 1).is_ok());
    }
}

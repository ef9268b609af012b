//! A folder that is served, and nothing outside it: the kernel resolves names beneath it (`openat2`), so that neither `..`
//! nor a symbolic link leads out, also not one that is made meanwhile.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

/// Why a name is not served, in words for who asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Neither `get NAME` nor `put LENGTH NAME`.
    #[error("no such request")]
    Request,
    /// The name is not a relative one of a file.
    #[error("not a name of a file in the folder")]
    Name,
    /// No such file.
    #[error("no such file")]
    NotFound,
    /// A folder, a device ...
    #[error("not a regular file")]
    NotAFile,
    /// The folder is served to be read.
    #[error("the folder is not writable: serve it with --writable")]
    ReadOnly,
    /// The server itself may not, or has no room.
    #[error("the server cannot: {0}")]
    System(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => Refused::NotFound,
            // Where a name leads out of the folder, or in circles.
            Errno::EXDEV | Errno::ELOOP => Refused::Name,
            Errno::EISDIR => Refused::NotAFile,
            errno => Refused::System(errno),
        }
    }
}

/// A folder.
pub struct Folder {
    root: OwnedFd,
    writable: bool,
}

impl Folder {
    /// Serves what is beneath `path`; if `writable`, files may be put there.
    ///
    /// # Errors
    /// It is not a folder, or not one that may be read.
    pub fn open(path: &Path, writable: bool) -> io::Result<Folder> {
        let how = OpenHow::new().flags(OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC);
        Ok(Folder { root: openat2(AT_FDCWD, path, how)?, writable })
    }

    fn beneath(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
        openat2(&self.root, path, how)
    }

    /// A file to read, and its length in bytes.
    ///
    /// # Errors
    /// All but `ReadOnly`.
    pub fn read(&self, name: &str) -> Result<(File, u64), Refused> {
        let path = checked(name)?;
        // A pipe without a writer must not hold up the server.
        let file = File::from(self.beneath(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
        let metadata = file.metadata().map_err(|e| Refused::System(errno(&e)))?;
        if metadata.is_file() { Ok((file, metadata.len())) } else { Err(Refused::NotAFile) }
    }

    /// A file to write; it appears under its name when it is [kept](NewFile::keep). `unique` tells files apart that are
    /// written at the same time.
    ///
    /// # Errors
    /// All.
    pub fn create(&self, name: &str, unique: u64) -> Result<NewFile, Refused> {
        let path = checked(name)?;
        if !self.writable {
            return Err(Refused::ReadOnly);
        }
        let file_name = path.file_name().and_then(|n| n.to_str()).ok_or(Refused::Name)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = self.beneath(parent, OFlag::O_DIRECTORY | OFlag::O_RDONLY)?;
        let temporary = format!(".{unique:016x}-{}.part", std::process::id());
        let how = OpenHow::new()
            .flags(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC)
            .mode(Mode::from_bits_truncate(0o644));
        let file = File::from(openat2(&folder, temporary.as_str(), how)?);
        Ok(NewFile { file, folder, temporary: Some(temporary), name: file_name.to_owned() })
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn checked(name: &str) -> Result<&Path, Refused> {
    let path = Path::new(name);
    let normal = path.components().all(|c| matches!(c, Component::Normal(_)));
    if normal && !name.is_empty() && !name.ends_with('/') && !name.contains('\0') {
        Ok(path)
    } else {
        Err(Refused::Name)
    }
}

/// A file that is being written. Gone when it is dropped before it was kept.
pub struct NewFile {
    file: File,
    folder: OwnedFd,
    temporary: Option<String>,
    name: String,
}

impl NewFile {
    /// Puts it where it belongs, in place of what was there.
    ///
    /// # Errors
    /// `NotAFile`, `System`.
    pub fn keep(mut self) -> Result<(), Refused> {
        if let Some(temporary) = &self.temporary {
            renameat(&self.folder, temporary.as_str(), &self.folder, self.name.as_str())?;
            self.temporary = None;
        }
        Ok(())
    }
}

impl io::Write for NewFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.file.write(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Nothing can be done about one that stays.
            let _ = unlinkat(self.folder.as_fd(), temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::symlink;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn nothing_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let served = dir.path().join("served");
        std::fs::create_dir_all(served.join("in")).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        std::fs::write(served.join("in/file"), "content").unwrap();
        symlink("../secret", served.join("out")).unwrap();
        symlink(dir.path(), served.join("up")).unwrap();
        symlink("in/file", served.join("within")).unwrap();
        symlink("loop", served.join("loop")).unwrap();
        let folder = Folder::open(&served, true).unwrap();
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
            "out",
            "up/secret",
            "loop",
        ] {
            assert_eq!(folder.read(name).err(), Some(Refused::Name), "{name:?}");
            let created = folder.create(name, 1).err();
            assert!(
                created == Some(Refused::Name) || ["out", "loop"].contains(&name),
                "{name:?}: {created:?}"
            );
        }
        assert_eq!(folder.read("in").err(), Some(Refused::NotAFile));
        assert_eq!(folder.read("none").err(), Some(Refused::NotFound));
        assert_eq!(folder.read("none/none").err(), Some(Refused::NotFound));
        assert_eq!(folder.read("in/file/none").err(), Some(Refused::NotFound));
        assert_eq!(folder.create("none/new", 1).err(), Some(Refused::NotFound));
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"secret");
    }

    #[test]
    fn what_is_put_is_there_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "old").unwrap();
        let folder = Folder::open(dir.path(), true).unwrap();
        let mut kept = folder.create("file", 1).unwrap();
        let mut dropped = folder.create("other", 2).unwrap();
        kept.write_all(b"new").unwrap();
        dropped.write_all(b"half").unwrap();
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"old");
        assert_eq!(names(dir.path()).len(), 3);
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
        let folder = Folder::open(&served, true).unwrap();
        let mut file = folder.create("out", 1).unwrap();
        file.write_all(b"mine").unwrap();
        file.keep().unwrap();
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read(served.join("out")).unwrap(), b"mine");
    }

    #[test]
    fn a_folder_to_read_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), false).unwrap();
        assert_eq!(folder.create("file", 1).err(), Some(Refused::ReadOnly));
        assert!(Folder::open(&dir.path().join("none"), false).is_err());
    }
}

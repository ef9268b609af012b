//! New files that appear only when they are complete, and of which nothing is left otherwise.
//!
//! A file is written without a name (`O_TMPFILE`), so that a killed process leaves nothing. A file system that has no
//! such files gets a folder with a random name that only its owner enters; [`remove_abandoned`] removes those that a killed
//! process left.

use super::refusal::Refused;
use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, fstat, fsync, linkat, mkdirat, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Prefix of the folders of unfinished files. No name that begins with a dot is served.
const STAGE_PREFIX: &str = ".ccplane-partial-";
/// Name of the file in such a folder.
const CONTENT: &str = "content";
/// Tries to make such a folder: another process may remove it before it is locked.
const STAGE_TRIES: u32 = 4;
/// Mode of a finished file, before the process's umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// An unfinished file and its future name.
///
/// [`keep`](NewFile::keep) gives it that name at once and whole. A file that had the name before is replaced by a
/// rename: a process that has it open goes on with the old content, and of two that are kept under one name the later
/// one stays.
pub struct NewFile {
    file: File,
    parent: OwnedFd,
    name: String,
    /// The folder of the unfinished file; `None` if it has no name at all.
    stage: Option<Stage>,
}

impl NewFile {
    /// Begins a file that is to be `name` in this folder.
    pub(super) fn create(parent: OwnedFd, name: String) -> Result<NewFile, Refused> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(&parent, ".", flags, FILE_MODE) {
            Ok(file) if rustix::fs::stat(link_of(&file)).is_ok() => {
                Ok(NewFile { file: file.into(), parent, name, stage: None })
            }
            // The file system has no such files, or there is no /proc to name one by.
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => NewFile::staged(parent, name),
            Err(e) => Err(e.into()),
        }
    }

    /// Begins a file on a file system where every file has a name.
    fn staged(parent: OwnedFd, name: String) -> Result<NewFile, Refused> {
        let stage = Stage::create(&parent)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&stage.dir, CONTENT, flags, FILE_MODE)?.into();
        Ok(NewFile { file, parent, name, stage: Some(stage) })
    }

    /// Begins a file at `path`, after removing what killed processes of the same user left beside it.
    ///
    /// # Errors
    /// Its folder is not there or may not be written to, or the path ends in no name.
    pub fn at(path: &Path) -> io::Result<NewFile> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let parent = openat(CWD, parent, flags, Mode::empty())?;
        remove_all_abandoned(&parent)?;
        NewFile::create(parent, name.to_owned()).map_err(io::Error::from)
    }

    /// A handle to write the content to.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file its name, in place of any file that had it.
    ///
    /// The content is flushed to the disk before, the name afterwards: a machine that loses its power keeps all of it
    /// or what was there.
    ///
    /// # Errors
    /// `NotAFile`: a folder has the name. `System`.
    pub fn keep(mut self) -> Result<(), Refused> {
        fsync(&self.file)?;
        self.name()?;
        match fsync(&self.parent) {
            // Some file systems do not flush folders.
            Err(Errno::INVAL) => Ok(()),
            flushed => Ok(flushed?),
        }
    }

    fn name(&mut self) -> Result<(), Refused> {
        let stage = match self.stage.take() {
            Some(stage) => stage,
            None => {
                let from = link_of(&self.file);
                match linkat(CWD, &from, &self.parent, self.name.as_str(), AtFlags::SYMLINK_FOLLOW) {
                    Err(Errno::EXIST) => {}
                    linked => return Ok(linked?),
                }
                let stage = Stage::create(&self.parent)?;
                if let Err(e) = linkat(CWD, &from, &stage.dir, CONTENT, AtFlags::SYMLINK_FOLLOW) {
                    stage.remove(&self.parent);
                    return Err(e.into());
                }
                stage
            }
        };
        let renamed = renameat(&stage.dir, CONTENT, &self.parent, self.name.as_str());
        stage.remove(&self.parent);
        Ok(renamed?)
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
        if let Some(stage) = self.stage.take() {
            stage.remove(&self.parent);
        }
    }
}

/// The path of a file without a name, as `linkat` takes it (open(2), O_TMPFILE).
fn link_of(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// A folder for one unfinished file, which is locked as long as its process lives.
struct Stage {
    dir: OwnedFd,
    name: String,
}

impl Stage {
    fn create(parent: &OwnedFd) -> rustix::io::Result<Stage> {
        let mut last = Errno::NOENT;
        for _ in 0..STAGE_TRIES {
            let mut random = [0; 16];
            getrandom(&mut random[..], GetRandomFlags::empty())?;
            let name = format!("{STAGE_PREFIX}{:032x}", u128::from_ne_bytes(random));
            mkdirat(parent, name.as_str(), Mode::RWXU)?;
            let dir = open_stage(parent.as_fd(), &name);
            match dir.and_then(|dir| flock(&dir, FlockOperation::NonBlockingLockExclusive).map(|()| dir)) {
                Ok(dir) => return Ok(Stage { dir, name }),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Removes the folder; one that cannot be removed is left to the next removal.
    fn remove(self, parent: &OwnedFd) {
        let _ = unlinkat(&self.dir, CONTENT, AtFlags::empty());
        let _ = unlinkat(parent, self.name.as_str(), AtFlags::REMOVEDIR);
    }
}

fn open_stage(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Removes the folder of this name if it is one for an unfinished file, belongs to this user, and no process has it
/// locked.
pub(super) fn remove_abandoned(parent: &OwnedFd, name: &str) {
    let remove = || -> rustix::io::Result<()> {
        let dir = open_stage(parent.as_fd(), name)?;
        if fstat(&dir)?.st_uid == geteuid().as_raw() {
            flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
            Stage { dir, name: name.to_owned() }.remove(parent);
        }
        Ok(())
    };
    if name.starts_with(STAGE_PREFIX)
        && let Err(error) = remove()
    {
        tracing::debug!(name, %error, "an unfinished file stays");
    }
}

/// Removes all such folders in a folder.
fn remove_all_abandoned(parent: &OwnedFd) -> rustix::io::Result<()> {
    let left: Vec<String> = Dir::read_from(parent)?
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| name.starts_with(STAGE_PREFIX))
        .collect();
    left.iter().for_each(|name| remove_abandoned(parent, name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    type Create = fn(OwnedFd, String) -> Result<NewFile, Refused>;

    #[test]
    fn a_new_file_appears_when_it_is_complete() {
        for create in [NewFile::create as Create, NewFile::staged] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("old"), "old").unwrap();
            for name in ["old", "new"] {
                let mut kept = create(open(dir.path()), name.to_owned()).unwrap();
                let mut dropped = create(open(dir.path()), name.to_owned()).unwrap();
                kept.write_all(b"whole").unwrap();
                dropped.write_all(b"half").unwrap();
                assert!(names(dir.path()).iter().all(|n| n == "old" || n.starts_with(STAGE_PREFIX)));
                kept.keep().unwrap();
                drop(dropped);
                assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"whole");
            }
            assert_eq!(names(dir.path()), ["new", "old"], "nothing else is left");
        }
    }

    /// Makes the disk fail for the calling thread while it is flushed, by a filter of system calls.
    fn break_disk() {
        use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
        let flushes = [libc::SYS_fsync, libc::SYS_fdatasync].map(|call| (call, Vec::new()));
        let fails = SeccompAction::Errno(libc::EIO as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(flushes.into(), SeccompAction::Allow, fails, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        apply_filter(&program).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_flushed_gets_no_name() {
        for create in [NewFile::create as Create, NewFile::staged] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("old"), "old").unwrap();
            let kept = std::thread::scope(|scope| {
                let keep = || {
                    break_disk();
                    ["old", "new"].map(|name| {
                        let mut file = create(open(dir.path()), name.to_owned()).unwrap();
                        file.write_all(b"lost").unwrap();
                        file.keep()
                    })
                };
                scope.spawn(keep).join().unwrap()
            });
            assert_eq!(kept, [Err(Refused::System(Errno::IO)); 2]);
            assert_eq!(names(dir.path()), ["old"]);
            assert_eq!(std::fs::read(dir.path().join("old")).unwrap(), b"old");
        }
    }

    #[test]
    fn a_folder_is_not_replaced() {
        for create in [NewFile::create as Create, NewFile::staged] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("taken")).unwrap();
            let file = create(open(dir.path()), "taken".to_owned()).unwrap();
            assert_eq!(file.keep().unwrap_err(), Refused::NotAFile);
            assert_eq!(names(dir.path()), ["taken"]);
        }
    }

    #[test]
    fn only_abandoned_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let live = NewFile::staged(open(dir.path()), "live".to_owned()).unwrap();
        // As a killed process leaves it: there, but locked by nobody.
        let dead = dir.path().join(format!("{STAGE_PREFIX}0"));
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(CONTENT), "half").unwrap();
        let other = NewFile::at(&dir.path().join("other")).unwrap();
        assert!(!dead.exists());
        live.keep().unwrap();
        drop(other);
        assert_eq!(names(dir.path()), ["live"]);
    }

    #[test]
    fn unfinished_files_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let _staged = NewFile::staged(open(dir.path()), "file".to_owned()).unwrap();
        let stage = dir.path().join(&names(dir.path())[0]);
        assert_eq!(stage.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}

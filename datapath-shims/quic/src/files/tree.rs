//! The files beneath a folder: how many, how large, and whether all may read them.

use super::newfile::remove_abandoned;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Names looked at beneath one folder, at most.
const MAX_ENTRIES: u64 = 1_000_000;

/// The number and size of regular files beneath a folder.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Amount {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Counts the files beneath `root`, and removes what killed servers left there. It follows no symbolic link.
///
/// # Errors
/// A folder cannot be read, or there are more than [`MAX_ENTRIES`].
pub(super) fn count(root: &OwnedFd) -> io::Result<Amount> {
    let mut amount = Amount::default();
    each(root, |folder, name| {
        remove_abandoned(folder, name);
        let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return Next::Over };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Next::Into,
            FileType::RegularFile => {
                amount.files += 1;
                amount.bytes = amount.bytes.saturating_add(stat.st_size.cast_unsigned());
            }
            _ => {}
        }
        Next::Over
    })?;
    Ok(amount)
}

/// Whether every user may read each file beneath `root` that is served, by the modes there. It follows no symbolic link.
///
/// # Errors
/// A folder cannot be read, or there are more than [`MAX_ENTRIES`].
pub(super) fn all_may_read(root: &OwnedFd) -> io::Result<bool> {
    const READ: u32 = 0o4;
    const PASS: u32 = 0o1;
    let mut readable = true;
    each(root, |folder, name| {
        if name.starts_with('.') {
            return Next::Over;
        }
        let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return Next::Over };
        let (wanted, next) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => (PASS, Next::Into),
            FileType::RegularFile => (READ, Next::Over),
            _ => return Next::Over,
        };
        readable = stat.st_mode & wanted != 0;
        if readable { next } else { Next::End }
    })?;
    Ok(readable)
}

/// The step after an entry.
enum Next {
    Into,
    Over,
    End,
}

/// Visits the names beneath `root`, folder by folder, and follows no symbolic link.
fn each(root: &OwnedFd, mut visit: impl FnMut(&OwnedFd, &str) -> Next) -> io::Result<()> {
    let mut entries = 0;
    let mut folders = vec![PathBuf::from(".")];
    while let Some(path) = folders.pop() {
        let folder = match open_folder(root, &path) {
            // The entry is gone, replaced by something else, or not ours to read, so that nothing is put there either.
            Err(_) if path != Path::new(".") => continue,
            opened => opened?,
        };
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(io::Error::other(format!("more than {MAX_ENTRIES} names beneath it")));
            }
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            match visit(&folder, name) {
                Next::Into => folders.push(path.join(name)),
                Next::Over => {}
                Next::End => return Ok(()),
            }
        }
    }
    Ok(())
}

fn open_folder(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

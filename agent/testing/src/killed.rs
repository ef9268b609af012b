//! What killed tests have left: a test marks its directory, and holds the mark for as long as its process lives.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Holds a directory's mark. The kernel lets go of it at the end of the process, however that comes.
#[derive(Debug)]
pub struct Marked {
    _lock: File,
}

/// Marks a new directory as one of this suite's, so that [`remove`] can tell later that its test is dead.
///
/// # Errors
/// The mark cannot be written.
pub fn mark(dir: &Path, suite: &str) -> io::Result<Marked> {
    // It has its name once it is held: whoever finds it before that would take this test for dead.
    let unnamed = dir.join(format!(".{suite}.new"));
    let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unnamed)?;
    lock.lock()?;
    fs::rename(&unnamed, path_of_mark(dir, suite))?;
    Ok(Marked { _lock: lock })
}

/// Removes this user's directories that dead tests of a suite have left among temporary files, and says each one. `clean` first
/// takes away what no removal of files does, such as mounts; a directory of which it cannot is left, and why is said.
pub fn remove(suite: &str, clean: impl Fn(&Path) -> Result<(), String>) {
    let Ok(listed) = fs::read_dir(std::env::temp_dir()) else { return };
    for dir in listed.flatten().map(|entry| entry.path()) {
        let Some(_mark) = abandoned(&dir, suite) else { continue };
        let removed = clean(&dir).and_then(|()| fs::remove_dir_all(&dir).map_err(|error| error.to_string()));
        let outcome = removed.map_or_else(|why| format!("stays: {why}"), |()| "removed".to_owned());
        crate::say(&format!("LEFT: {} by a test that was killed: {outcome}", dir.display()));
    }
}

fn path_of_mark(dir: &Path, suite: &str) -> PathBuf {
    dir.join(format!(".{suite}"))
}

/// The mark of a directory whose test is dead, held.
fn abandoned(dir: &Path, suite: &str) -> Option<Marked> {
    let (found, own) = (fs::symlink_metadata(dir).ok()?, fs::metadata("/proc/self").ok()?.uid());
    // Nobody but its owner may have put the mark there.
    if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
        return None;
    }
    let lock = File::open(path_of_mark(dir, suite)).ok()?;
    lock.try_lock().ok()?;
    Some(Marked { _lock: lock })
}

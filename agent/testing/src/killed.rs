//! Leftovers of killed tests: a test marks its directory, and holds the mark as long as its process lives.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Holds a directory's mark. The kernel lets go of it at the end of the process, however that comes.
#[derive(Debug)]
pub struct Marked {
    _lock: File,
}

/// The tests whose directories have marks of one name.
pub struct Suite {
    name: &'static str,
    clean: fn(&Path) -> Result<(), String>,
    cleared: Once,
}

impl Suite {
    /// Names the marks. `clean` takes away what no removal of files does, such as mounts, from a directory that a killed test left.
    pub const fn new(name: &'static str, clean: fn(&Path) -> Result<(), String>) -> Suite {
        Suite { name, clean, cleared: Once::new() }
    }

    /// Marks a new directory, so that a later process can tell whether its test is dead. The first call in a process removes
    /// the directories that dead tests have left.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn mark(&self, dir: &Path) -> io::Result<Marked> {
        self.cleared.call_once(|| self.clear());
        // The mark gets its name once it is held: whoever finds it before that would take this test for dead.
        let unnamed = dir.join(format!(".{}.new", self.name));
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unnamed)?;
        lock.lock()?;
        fs::rename(&unnamed, self.path_of_mark(dir))?;
        Ok(Marked { _lock: lock })
    }

    /// Removes this user's directories that dead tests have left among temporary files, and reports each one. A directory that
    /// cannot be cleaned is left, and the reason reported.
    pub fn clear(&self) {
        let Ok(listed) = fs::read_dir(std::env::temp_dir()) else { return };
        for dir in listed.flatten().map(|entry| entry.path()) {
            let Some(_mark) = self.abandoned(&dir) else { continue };
            let cleaned = (self.clean)(&dir);
            let removed = cleaned.and_then(|()| fs::remove_dir_all(&dir).map_err(|error| error.to_string()));
            let outcome = removed.map_or_else(|why| format!("stays: {why}"), |()| "removed".to_owned());
            crate::say(&format!("LEFT: {} by a test that was killed: {outcome}", dir.display()));
        }
    }

    fn path_of_mark(&self, dir: &Path) -> PathBuf {
        dir.join(format!(".{}", self.name))
    }

    /// Holds the mark of a directory whose test is dead.
    fn abandoned(&self, dir: &Path) -> Option<Marked> {
        let (found, own) = (fs::symlink_metadata(dir).ok()?, fs::metadata("/proc/self").ok()?.uid());
        // Nobody but its owner may have put the mark there.
        if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
            return None;
        }
        let lock = File::open(self.path_of_mark(dir)).ok()?;
        lock.try_lock().ok()?;
        Some(Marked { _lock: lock })
    }
}

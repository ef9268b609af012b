//! What keeps a second agent out: of a run directory, and of a datapath's name. The kernel knows a congestion control,
//! and the system's BPF file system its pins, by the name alone.

use std::fs::{self, DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::{EbpfError, os};
use crate::options::Options;

/// Where the locks of names lie, wherever the run directory is. Nobody but root can get in the way there.
const NAMES_DIR: &str = "/run/ccplane";
/// The lock of a run directory.
const RUN_DIR_LOCK: &str = "ebpf.lock";
/// Longest process number, digits.
const MAX_PID_DIGITS: u64 = 20;

/// The locks that the agent holds as long as it lives.
pub struct Lock {
    _run_dir: LockFile,
    _name: LockFile,
}

impl Lock {
    /// Takes the locks of a run directory, which is created if need be, and of a name.
    ///
    /// # Errors
    /// [`EbpfError::Busy`] while another agent holds one; [`EbpfError::Os`].
    pub fn take(options: &Options) -> Result<Lock, EbpfError> {
        Lock::take_in(Path::new(NAMES_DIR), &options.run_dir, &options.name)
    }

    fn take_in(names_dir: &Path, run_dir: &Path, name: &str) -> Result<Lock, EbpfError> {
        Ok(Lock {
            _run_dir: LockFile::take(run_dir, RUN_DIR_LOCK)?,
            _name: LockFile::take(names_dir, &format!("ebpf-{name}.lock"))?,
        })
    }
}

/// A locked file with our process number; removed when dropped.
struct LockFile {
    file: Flock<File>,
    path: PathBuf,
}

impl LockFile {
    fn take(dir: &Path, name: &str) -> Result<LockFile, EbpfError> {
        let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
        os(format!("create {}", dir.display()), made)?;
        let path = dir.join(name);
        let file = loop {
            let file = lock(&path)?;
            // Its last holder may have removed the file between our opening and our locking it.
            let ours = os(format!("look at {}", path.display()), file.metadata())?;
            if fs::metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino())) {
                break file;
            }
        };
        let mut lock = LockFile { file, path };
        os(format!("write {}", lock.path.display()), lock.sign())?;
        Ok(lock)
    }

    /// Says who holds it.
    fn sign(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(std::process::id().to_string().as_bytes())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Removed while still locked: see `take`. What stays behind does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens and locks a file.
fn lock(path: &Path) -> Result<Flock<File>, EbpfError> {
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = os(format!("open {}", path.display()), opened)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).or_else(|(file, errno)| match errno {
        Errno::EWOULDBLOCK => Err(EbpfError::Busy { pid: signed_by(file), lock: path.to_owned() }),
        errno => os(format!("lock {}", path.display()), Err(errno.into())),
    })
}

fn signed_by(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID_DIGITS).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(taken: Result<Lock, EbpfError>) -> PathBuf {
        match taken {
            Err(EbpfError::Busy { pid, lock }) => {
                assert_eq!(pid, Some(std::process::id()));
                lock
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("taken twice"),
        }
    }

    #[test]
    fn one_agent_of_a_name_and_one_of_a_run_directory() {
        let dir = tempfile::tempdir().unwrap();
        let [names, here, there] = ["names", "a/here", "there"].map(|d| dir.path().join(d));
        let held = Lock::take_in(&names, &here, "one").unwrap();
        assert_eq!(busy(Lock::take_in(&names, &there, "one")), names.join("ebpf-one.lock"));
        assert_eq!(busy(Lock::take_in(&names, &here, "two")), here.join("ebpf.lock"));
        // Who was refused holds nothing.
        let other = Lock::take_in(&names, &there, "two").unwrap();
        drop(held);
        let held = Lock::take_in(&names, &here, "one").unwrap();
        drop((held, other));
        for dir in [names, here, there] {
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing is left");
        }
    }

    #[test]
    fn what_a_killed_agent_left_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let (names, run) = (dir.path().join("names"), dir.path().join("run"));
        for (dir, name) in [(&names, "ebpf-one.lock"), (&run, "ebpf.lock")] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join(name), "123456789012").unwrap();
        }
        let _held = Lock::take_in(&names, &run, "one").unwrap();
        busy(Lock::take_in(&names, &run, "one"));
    }
}

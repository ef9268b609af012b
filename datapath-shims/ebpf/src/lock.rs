//! Locks that keep a second agent out of a run directory and of a datapath's name.
//!
//! The kernel knows a congestion control, and the system's BPF file system its pins, by the name alone.

use std::path::Path;

use ccplane_files::{Directory, LockError, LockFile, LockState, Others};

use crate::error::EbpfError;
use crate::options::Options;

/// Folder of the locks of names, independent of the run directory. Only root can write to it.
const NAMES_DIR: &str = "/run/ccplane";
/// The lock of a run directory.
const RUN_DIR_LOCK: &str = "ebpf.lock";

/// The locks that the agent holds as long as it lives.
pub struct Lock {
    run_dir: LockFile,
    name: LockFile,
}

impl Lock {
    /// Takes the locks of a run directory, which is created if need be, and of a name.
    ///
    /// # Errors
    /// [`EbpfError::Busy`] while another agent holds one; [`EbpfError::Lock`].
    pub fn take(options: &Options) -> Result<Lock, EbpfError> {
        Lock::take_in(Path::new(NAMES_DIR), &options.run_dir, &options.name)
    }

    fn take_in(names_dir: &Path, run_dir: &Path, name: &str) -> Result<Lock, EbpfError> {
        Ok(Lock {
            run_dir: take(run_dir, RUN_DIR_LOCK)?,
            name: take(names_dir, &format!("ebpf-{name}.lock"))?,
        })
    }

    /// The lock file in whose place is another one, if any: an agent that started since may hold that one.
    pub fn replaced(&self) -> Option<&Path> {
        let replaced = |lock: &&LockFile| lock.state() == LockState::Replaced;
        [&self.run_dir, &self.name].into_iter().find(replaced).map(LockFile::path)
    }
}

fn take(dir: &Path, name: &str) -> Result<LockFile, EbpfError> {
    let directory = Directory::create(dir, Others::Read).map_err(LockError::from)?;
    LockFile::take(&directory, name).map_err(|error| match error {
        LockError::Held { path, pid } => EbpfError::Busy { pid, lock: path },
        error => EbpfError::Lock(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

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
        // An agent that was refused holds nothing.
        let other = Lock::take_in(&names, &there, "two").unwrap();
        drop(held);
        let held = Lock::take_in(&names, &here, "one").unwrap();
        drop((held, other));
        for dir in [names, here, there] {
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing is left");
        }
    }

    #[test]
    fn a_lock_in_whose_place_is_another_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let (names, run) = (dir.path().join("names"), dir.path().join("run"));
        let first = Lock::take_in(&names, &run, "one").unwrap();
        fs::remove_dir_all(&names).unwrap();
        assert_eq!(first.replaced(), None, "it is gone, and nobody has another");
        fs::create_dir(&names).unwrap();
        fs::write(names.join("ebpf-one.lock"), "").unwrap();
        assert_eq!(first.replaced(), Some(&*names.join("ebpf-one.lock")));
    }
}

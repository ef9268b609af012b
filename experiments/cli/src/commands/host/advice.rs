//! The cores for an agent of this host, in a file beside the journal that the agent's `cores_file` may name.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file's name in the journal's folder.
const FILE: &str = "host.cores";

/// A file beside the journal cannot be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(super) struct AdviceError {
    path: PathBuf,
    source: io::Error,
}

/// Returns the place of the file beside a journal.
pub(super) fn path(journal: &Path) -> PathBuf {
    journal.join(FILE)
}

/// Writes the cores in place of those of before; where there are none, no file stays.
///
/// # Errors
/// The system refuses; the file is as it was.
pub(super) fn write(journal: &Path, cores: &[u32]) -> Result<(), AdviceError> {
    if cores.is_empty() {
        remove(journal)?;
        return Ok(());
    }
    // Whoever reads meanwhile finds the one or the other.
    let unfinished = journal.join(format!("{FILE}.new"));
    let written = fs::write(&unfinished, format!("{cores:?}\n"));
    let written = written.and_then(|()| fs::rename(&unfinished, path(journal)));
    written.map_err(|source| AdviceError { path: path(journal), source })
}

/// Removes the file; true where there was one.
///
/// # Errors
/// The system refuses.
pub(super) fn remove(journal: &Path) -> Result<bool, AdviceError> {
    match fs::remove_file(path(journal)) {
        Ok(()) => Ok(true),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(AdviceError { path: path(journal), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_written_in_place_of_those_of_before_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let text = || fs::read_to_string(path(folder.path())).ok();
        assert!(!remove(folder.path()).unwrap());
        for cores in [&[2, 3][..], &[1]] {
            write(folder.path(), cores).unwrap();
            assert_eq!(serde_json::from_str::<Vec<u32>>(&text().unwrap()).unwrap(), cores);
        }
        write(folder.path(), &[]).unwrap();
        assert_eq!(text(), None);
        write(folder.path(), &[1]).unwrap();
        assert!(remove(folder.path()).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let gone = folder.path().join("none");
        assert!(write(&gone, &[1]).unwrap_err().to_string().contains("none/host.cores: "));
    }
}

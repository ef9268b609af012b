//! A folder of predictors, and what becomes of it while a server runs.

use super::PredictError;
use crate::commands::snapshot::read_file;
use ccplane_agent::failure::Failure;
use ccplane_agent::sequences::Admissions;
use ccplane_predict::{Portfolio, PortfolioError};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ending of a snapshot's file.
pub(super) const ENDING: &str = "snapshot";
/// Files of a folder that are looked at, at most.
const MAX_FILES: usize = 1024;

/// A folder of predictors.
pub(super) struct Folder {
    path: PathBuf,
    admissions: Admissions,
    allow_older: bool,
    /// The files as they were when they were read last.
    seen: Vec<Seen>,
}

/// A file by all that changes when another is put in its place.
#[derive(PartialEq, Eq)]
struct Seen {
    name: String,
    inode: u64,
    bytes: u64,
    changed_ns: (i64, i64),
}

impl Folder {
    /// Names a folder of snapshots by signers that are trusted, older ones too where `allow_older` is set.
    pub(super) fn new(path: &Path, admissions: Admissions, allow_older: bool) -> Folder {
        Folder { path: path.to_owned(), admissions, allow_older, seen: Vec::new() }
    }

    /// Reads all predictors, in the order of their names.
    pub(super) fn read(&mut self) -> Result<Arc<Portfolio>, Failure> {
        self.seen = self.scan()?;
        let one = |seen: &Seen| {
            let path = self.path.join(format!("{}.{ENDING}", seen.name));
            let (_, snapshot) = read_file(&path).map_err(Failure::input)?;
            let wrong = |source| PredictError::Untrusted { path: path.clone(), source };
            let admitted = self.admissions.admit(snapshot, self.allow_older);
            Ok((seen.name.clone(), admitted.map_err(|e| Failure::input(wrong(e)))?))
        };
        let networks: Result<Vec<_>, Failure> = self.seen.iter().map(one).collect();
        let wrong = |source: PortfolioError| {
            Failure::input(PredictError::Predictors { folder: self.path.clone(), source })
        };
        Ok(Arc::new(Portfolio::new(networks?).map_err(wrong)?))
    }

    /// Reads all predictors again, if a file has changed since they were read.
    pub(super) fn read_if_changed(&mut self) -> Result<Option<Arc<Portfolio>>, Failure> {
        if self.scan()? == self.seen { Ok(None) } else { self.read().map(Some) }
    }

    fn scan(&self) -> Result<Vec<Seen>, Failure> {
        let failed =
            |source: io::Error| Failure::input(PredictError::File { path: self.path.clone(), source });
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)?.take(MAX_FILES) {
            let path = entry.map_err(failed)?.path();
            let name = path.file_stem().and_then(|stem| stem.to_str());
            let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == ENDING)) else {
                continue;
            };
            // A file that is gone by now is one that is not there.
            let Ok(stat) = fs::metadata(&path) else { continue };
            let changed_ns = (stat.mtime(), stat.mtime_nsec());
            files.push(Seen { name: name.to_owned(), inode: stat.ino(), bytes: stat.size(), changed_ns });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }
}

//! Cells on disk: one a line, so that an evaluation goes on where it was interrupted, and several share their references.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ccplane_files::{Bound, read_text};
use ccplane_results::Datapath;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::measure::Cell;

/// The bound of a file of cells.
pub const STORE: Bound = Bound { what: "a file of cells", bytes: 1 << 30 };
/// Version of the format, in each file's first line.
const VERSION: u32 = 1;

/// The first line of a file.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    cells: u32,
}

/// The names of case and algorithm, and the datapath.
type Key = (String, String, Datapath);

fn key(cell: &Cell) -> Key {
    (cell.case.clone(), cell.algorithm.clone(), cell.datapath)
}

/// An open file of cells, which threads may share.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    open: Mutex<(File, BTreeMap<Key, Cell>)>,
}

impl Store {
    /// Opens the file, or makes it. With `force` whatever is there is put aside.
    ///
    /// # Errors
    /// It cannot be made or read, or is of another version.
    pub fn open(path: &Path, force: bool) -> Result<Store, StoreError> {
        let io = |error| StoreError::Io { path: path.to_owned(), error };
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(io)?;
        }
        if force && path.exists() {
            std::fs::rename(path, path.with_extension("jsonl.old")).map_err(io)?;
        }
        if path.exists() {
            ccplane_results::repair(path)?;
        }
        let text = if path.exists() { read_text(path, STORE)? } else { String::new() };
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
        if text.is_empty() {
            write_line(&mut file, &Header { cells: VERSION }).map_err(io)?;
        }
        Ok(Store { path: path.to_owned(), open: Mutex::new((file, parsed(&text, path)?)) })
    }

    /// The cell of a case and contender, if it is there and was made from the same plan and programs.
    #[must_use]
    pub fn get(&self, case: &str, algorithm: &str, datapath: Datapath, digest: &str) -> Option<Cell> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = open.1.get(&(case.to_owned(), algorithm.to_owned(), datapath))?;
        (cell.digest == digest).then(|| cell.clone())
    }

    /// Keeps a cell, in place of an older one of the same case and contender.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, cell: &Cell) -> Result<(), StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let io = |error| StoreError::Io { path: self.path.clone(), error };
        write_line(&mut open.0, cell).map_err(io)?;
        open.1.insert(key(cell), cell.clone());
        Ok(())
    }
}

fn write_line(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}

/// The cells of a file's text; of two of the same name the later one counts.
fn parsed(text: &str, path: &Path) -> Result<BTreeMap<Key, Cell>, StoreError> {
    let mut lines = text.lines().enumerate();
    let version = lines.next().map(|(_, line)| serde_json::from_str::<Header>(line).map_or(0, |h| h.cells));
    if version.is_some_and(|found| found != VERSION) {
        return Err(StoreError::Version { path: path.to_owned() });
    }
    let cell = |(n, line): (usize, &str)| {
        let json = |error| StoreError::Json { path: path.to_owned(), line: n + 1, error };
        serde_json::from_str(line).map_err(json).map(|cell: Cell| (key(&cell), cell))
    };
    lines.map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figures;

    fn cell(case: &str, digest: &str, throughput_bps: u64) -> Cell {
        Cell {
            case: case.to_owned(),
            algorithm: "reno".to_owned(),
            datapath: Datapath::Sim,
            digest: digest.to_owned(),
            figures: Figures { throughput_bps, ..Figures::default() },
        }
    }

    #[test]
    fn cells_outlive_a_process_that_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/cells.jsonl");
        let store = Store::open(&path, false).unwrap();
        store.keep(&cell("a/0", "1", 5)).unwrap();
        store.keep(&cell("a/0", "2", 6)).unwrap();
        store.keep(&cell("a/1", "1", 7)).unwrap();
        drop(store);
        // The last line is torn.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        let store = Store::open(&path, false).unwrap();
        let bps = |case: &str, digest: &str| {
            store.get(case, "reno", Datapath::Sim, digest).map(|c| c.figures.throughput_bps)
        };
        assert_eq!((bps("a/0", "2"), bps("a/0", "1"), bps("a/1", "1")), (Some(6), None, None));
        store.keep(&cell("a/1", "1", 8)).unwrap();
        assert_eq!(bps("a/1", "1"), Some(8));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
    }

    #[test]
    fn what_is_no_store_is_refused_and_put_aside_on_demand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.jsonl");
        std::fs::write(&path, "{\"cells\":2}\n").unwrap();
        assert!(matches!(Store::open(&path, false), Err(StoreError::Version { .. })));
        std::fs::write(&path, "{\"cells\":1}\nx\n").unwrap();
        assert!(matches!(Store::open(&path, false), Err(StoreError::Json { line: 2, .. })));
        let store = Store::open(&path, true).unwrap();
        store.keep(&cell("a/0", "1", 5)).unwrap();
        assert!(path.with_extension("jsonl.old").exists());
    }
}

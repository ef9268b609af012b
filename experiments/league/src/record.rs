//! The book of the test set: each use of it is written down in a file under version control.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::LeagueError;

/// One use of the test set; a line of the book.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Use {
    /// When: RFC 3339, UTC.
    pub at: String,
    /// The command line.
    pub command: String,
    /// The commit of the program.
    pub commit: String,
    /// What was ranked.
    pub algorithms: Vec<String>,
    /// Links of each family.
    pub links: u32,
}

/// Writes a use down before the test set is played, so that none goes unrecorded.
///
/// # Errors
/// The book cannot be written; the test set must not be used then.
pub fn record(book: &Path, of: &Use) -> Result<(), LeagueError> {
    let wrong = |source| LeagueError::File { path: book.to_owned(), source };
    let line = serde_json::to_string(of).map_err(|e| wrong(e.into()))?;
    let mut file = OpenOptions::new().append(true).create(true).open(book).map_err(wrong)?;
    writeln!(file, "{line}").and_then(|()| file.sync_all()).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_pile_up_and_no_book_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let book = directory.path().join("uses.jsonl");
        let of = Use {
            at: "2026-01-01T00:00:00Z".to_owned(),
            command: "ccplane league --final".to_owned(),
            commit: String::new(),
            algorithms: vec!["reno".to_owned()],
            links: 10,
        };
        record(&book, &of).unwrap();
        record(&book, &of).unwrap();
        let text = std::fs::read_to_string(&book).unwrap();
        let lines: Vec<Use> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [of.clone(), of.clone()]);
        assert!(record(directory.path(), &of).is_err());
    }
}

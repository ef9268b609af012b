//! The book of the test set: each use of it is written down in a file under version control.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::LeagueError;

/// One use of the test set; a line of the book.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Use {
    /// The time of the use, RFC 3339, UTC.
    pub at: String,
    /// The command line of the use.
    pub command: String,
    /// The commit of the program.
    pub commit: String,
    /// The ranked algorithms.
    pub algorithms: Vec<String>,
    /// Links of each family.
    pub links: u32,
}

/// A use of the test links that is written down, which [`crate::FamilyLink::test`] needs.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    #[cfg(test)]
    pub(crate) fn of_tests() -> Permit {
        Permit(())
    }
}

/// Writes a use down before the test set is played, so that none goes unrecorded.
///
/// # Errors
/// The book is no file under version control, or cannot be written.
pub fn record(book: &Path, of: &Use) -> Result<Permit, LeagueError> {
    let wrong = |source| LeagueError::File { path: book.to_owned(), source };
    if !is_tracked(book) {
        return Err(LeagueError::Book { path: book.to_owned() });
    }
    let line = serde_json::to_string(of).map_err(|e| wrong(e.into()))?;
    let mut file = OpenOptions::new().append(true).open(book).map_err(wrong)?;
    writeln!(file, "{line}").and_then(|()| file.sync_all()).map_err(wrong)?;
    Ok(Permit(()))
}

/// Whether it is a regular file that git has in its index.
fn is_tracked(book: &Path) -> bool {
    let (Some(folder), Some(name)) = (book.parent(), book.file_name()) else { return false };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(folder).args(["ls-files", "--error-unmatch", "--"]).arg(name);
        git.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    book.symlink_metadata().is_ok_and(|meta| meta.is_file()) && git()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_pile_up_in_a_file_under_version_control_and_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let book = directory.path().join("uses.jsonl");
        let of = Use {
            at: "2026-01-01T00:00:00Z".to_owned(),
            command: "ccplane league --final".to_owned(),
            commit: String::new(),
            algorithms: vec!["reno".to_owned()],
            links: 10,
        };
        let git = |args: &[&str]| {
            let done = Command::new("git").arg("-C").arg(directory.path()).args(args).output().unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        git(&["init", "--quiet"]);
        std::fs::write(&book, "").unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.path().join("nothing")).unwrap();
        git(&["add", "nothing"]);
        for refused in [&book, Path::new("/dev/null"), directory.path(), &directory.path().join("nothing")] {
            assert!(matches!(record(refused, &of), Err(LeagueError::Book { .. })), "{}", refused.display());
        }
        assert_eq!(std::fs::read_to_string(&book).unwrap(), "");
        git(&["add", "uses.jsonl"]);
        record(&book, &of).unwrap();
        record(&book, &of).unwrap();
        let text = std::fs::read_to_string(&book).unwrap();
        let lines: Vec<Use> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [of.clone(), of.clone()]);
    }
}

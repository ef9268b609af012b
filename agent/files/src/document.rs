//! TOML files that people write, parsed at the edge: bounded in size, and refused with file, line, column and field.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::{Bound, ReadError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A field that is wrong, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}{}{message}", if field.is_empty() { "" } else { ": " })]
pub struct Problem {
    /// Path of the field, such as `rule[0].remote`; empty where the text is no TOML.
    pub field: String,
    /// The defect and the expected value.
    pub message: String,
}

impl Problem {
    /// Makes a problem of the field at this path.
    pub fn new(field: impl Into<String>, message: impl fmt::Display) -> Problem {
        // serde_path_to_error's name of the whole document.
        let field = Some(field.into()).filter(|f| f != ".").unwrap_or_default();
        Problem { field, message: message.to_string().replace('\n', ", ") }
    }
}

/// A problem and the byte range of the text that it is about, if known.
pub type Placed = (Option<Range<usize>>, Problem);

/// Reasons why a file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file cannot be read, is not a regular file, is too large, or is not text.
    #[error(transparent)]
    File(#[from] ReadError),
    /// A field is wrong.
    #[error("{}:{line}:{column}: {problem}{}", file.display(), excerpt(*line, *column, text))]
    Invalid {
        file: PathBuf,
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The text of that line.
        text: String,
        problem: Problem,
    },
}

impl DocumentError {
    /// Places a problem in `text`; at its start if the range is unknown.
    #[must_use]
    pub fn at(file: &Path, text: &str, (span, problem): Placed) -> DocumentError {
        let start = span.map_or(0, |s| s.start).min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = before.matches('\n').count() + 1;
        let shown = text.get(line_start..).and_then(|t| t.lines().next()).unwrap_or_default().to_owned();
        // A problem with the line's end may lie between its carriage return and its line feed.
        let before_on_line = before.get(line_start..).unwrap_or_default().chars().count();
        let column = before_on_line.min(shown.chars().count()) + 1;
        DocumentError::Invalid { file: file.to_owned(), line, column, text: shown, problem }
    }
}

/// The line with a caret under the column, as compilers show it.
fn excerpt(line: usize, column: usize, text: &str) -> String {
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let caret = " ".repeat(column.saturating_sub(1));
    format!("\n {margin} |\n {number} | {text}\n {margin} | {caret}^")
}

/// Reads the text of a regular file within a bound.
///
/// # Errors
/// The file cannot be read, is larger, or is not text.
pub fn read(file: &Path, bound: Bound) -> Result<String, DocumentError> {
    Ok(crate::read_text(file, bound)?)
}

/// Parses a text as a TOML document.
///
/// # Errors
/// The text is not TOML.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Placed> {
    DeTable::parse(text).map_err(|e| (e.span(), Problem::new("", e.message())))
}

/// The key of a document's version.
const VERSION: &str = "version";

/// Takes the key `version` out of a document, and refuses another one than `read`; a document without one is of this version.
///
/// It is to be called first, since other keys of another version may be unknown or mean something else. `advice` says what to do
/// about such a file.
///
/// # Errors
/// The document is of another version, or its version is no number.
pub fn take_version(
    document: &mut Spanned<DeTable<'_>>,
    read: u64,
    advice: impl fmt::Display,
) -> Result<(), Placed> {
    #[derive(Deserialize)]
    struct Versioned {
        version: Option<u64>,
    }
    let Versioned { version } = value(document.clone())?;
    if let Some(found) = version.filter(|found| *found != read) {
        let why = format!("the file is of version {found}, this program reads version {read}: {advice}");
        return Err(locate(document, Problem::new(VERSION, why)));
    }
    document.get_mut().remove(VERSION);
    Ok(())
}

/// Deserializes the value that a document describes.
///
/// # Errors
/// The first field that has no place in it, or is not of its type.
pub fn value<T: DeserializeOwned>(document: Spanned<DeTable<'_>>) -> Result<T, Placed> {
    serde_path_to_error::deserialize(toml::Deserializer::from(document)).map_err(|e| {
        let field = e.path().to_string();
        (e.inner().span(), Problem::new(field, e.inner().message()))
    })
}

/// Finds the byte range of the field that a problem names (`a.b[2].c`), or of the innermost table around it that
/// exists.
#[must_use]
pub fn locate(document: &Spanned<DeTable<'_>>, problem: Problem) -> Placed {
    (span(document, &problem.field), problem)
}

fn span(document: &Spanned<DeTable<'_>>, field: &str) -> Option<Range<usize>> {
    let mut steps = field.split('.').flat_map(|part| {
        let (key, index) = part.split_once('[').unwrap_or((part, ""));
        let index = index.trim_end_matches(']').parse::<usize>().ok().map(Step::Index);
        std::iter::once(Step::Key(key)).chain(index)
    });
    let Some(Step::Key(first)) = steps.next() else { return None };
    let mut value = document.get_ref().get(first)?;
    for step in steps {
        let next = match (step, value.get_ref()) {
            (Step::Key(key), DeValue::Table(table)) => table.get(key),
            (Step::Index(index), DeValue::Array(array)) => array.get(index),
            _ => None,
        };
        let Some(next) = next else { break };
        value = next;
    }
    Some(value.span())
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn place(text: &str) -> (usize, usize) {
        match DocumentError::at(Path::new("f.toml"), text, parse(text).unwrap_err()) {
            DocumentError::Invalid { line, column, .. } => (line, column),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_problem_with_a_lines_end_is_at_its_end() {
        assert_eq!(place("\"\n"), (1, 2));
        assert_eq!(place("\"\r\n"), (1, 2));
        assert_eq!(place("a = 1\r\nb = \"\r\nc = 2"), (2, 6));
    }

    #[test]
    fn a_version_is_taken_out_or_refused_where_it_stands() {
        for text in ["a = 1\nversion = 3\n", "a = 1\n"] {
            let mut document = parse(text).unwrap();
            take_version(&mut document, 3, "write it anew").unwrap();
            assert_eq!(document.get_ref().len(), 1, "{text}");
        }
        let mut document = parse("a = 1\nversion = 4\n").unwrap();
        let (span, problem) = take_version(&mut document, 3, "write it anew").unwrap_err();
        assert_eq!(span, Some(16..17));
        let said = "version: the file is of version 4, this program reads version 3: write it anew";
        assert_eq!(problem.to_string(), said);
        assert!(take_version(&mut parse("version = \"3\"").unwrap(), 3, "").is_err(), "no number");
    }
}

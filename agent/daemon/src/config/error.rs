//! What is wrong with a configuration, and where.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

/// What is wrong with a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Path of the field, such as `rule[0].remote`; empty where the text is no TOML.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl Problem {
    pub(super) fn field(field: &str, message: impl fmt::Display) -> Problem {
        let field = if field == "." { "" } else { field };
        Problem { field: field.to_owned(), message: message.to_string() }
    }

    pub(super) fn syntax(error: &toml::de::Error) -> Problem {
        Problem { field: String::new(), message: error.message().replace('\n', ", ") }
    }
}

impl std::error::Error for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is larger than [`super::MAX_CONFIG_BYTES`].
    #[error("{}: {bytes} bytes, at most {} are allowed", file.display(), super::MAX_CONFIG_BYTES)]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A field is wrong.
    #[error("{}:{line}:{column}: {problem}{}", file.display(), excerpt(*line, *column, text))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The text of that line.
        text: String,
        /// What is wrong.
        problem: Problem,
    },
}

impl ConfigError {
    /// `problem` at the byte range `span` of `text`; at its start where the range is not known.
    pub(super) fn at(file: PathBuf, text: &str, span: Option<Range<usize>>, problem: Problem) -> ConfigError {
        let start = span.map_or(0, |s| s.start).min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let shown = text.get(line_start..).and_then(|t| t.lines().next()).unwrap_or_default().to_owned();
        ConfigError::Invalid { file, line, column, text: shown, problem }
    }
}

/// The line with a caret under the column, as compilers show it.
fn excerpt(line: usize, column: usize, text: &str) -> String {
    let number = line.to_string();
    let margin = " ".repeat(number.len());
    let caret = " ".repeat(column.saturating_sub(1));
    format!("\n {margin} |\n {number} | {text}\n {margin} | {caret}^")
}

/// The byte range of the value at `field` (`a.b[2].c`), or of the innermost table around it that exists.
pub(super) fn locate(text: &str, field: &str) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut keys = field.split('.').flat_map(|part| {
        let (key, index) = part.split_once('[').unwrap_or((part, ""));
        let index = index.trim_end_matches(']').parse::<usize>().ok().map(Step::Index);
        std::iter::once(Step::Key(key)).chain(index)
    });
    let Some(Step::Key(first)) = keys.next() else { return None };
    let mut value = root.get_ref().get(first)?;
    for step in keys {
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

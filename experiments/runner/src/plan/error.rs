//! Why a plan is refused, and where.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Path of the field, such as `link[0].rate_mbit`; empty where the text is no TOML.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl Problem {
    pub(super) fn new(field: impl Into<String>, message: impl fmt::Display) -> Problem {
        let field = field.into();
        let field = if field == "." { String::new() } else { field };
        Problem { field, message: message.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// Why a plan is refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// There is neither such a file nor such a shipped plan.
    #[error("no file `{name}`, and no plan of that name comes with ccplane; there are: {}", known.join(", "))]
    NoSuchPlan {
        /// As asked for.
        name: String,
        /// The plans that are shipped.
        known: Vec<&'static str>,
    },
    /// It cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is larger than [`super::MAX_PLAN_BYTES`].
    #[error("{}: {bytes} bytes, at most {} are allowed", file.display(), super::MAX_PLAN_BYTES)]
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

impl PlanError {
    /// `problem` at the byte range `span` of `text`; at its start where the range is not known.
    pub(super) fn at(file: PathBuf, text: &str, span: Option<Range<usize>>, problem: Problem) -> PlanError {
        let start = span.map_or(0, |s| s.start).min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = before.matches('\n').count() + 1;
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        let shown = text.get(line_start..).and_then(|t| t.lines().next()).unwrap_or_default().to_owned();
        PlanError::Invalid { file, line, column, text: shown, problem }
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
pub(super) fn locate(root: &Spanned<DeTable<'_>>, field: &str) -> Option<Range<usize>> {
    let mut steps = field.split('.').flat_map(|part| {
        let (key, index) = part.split_once('[').unwrap_or((part, ""));
        let index = index.trim_end_matches(']').parse::<usize>().ok().map(Step::Index);
        std::iter::once(Step::Key(key)).chain(index)
    });
    let Some(Step::Key(first)) = steps.next() else { return None };
    let mut value = root.get_ref().get(first)?;
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

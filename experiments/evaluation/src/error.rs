//! Reasons why an evaluation cannot be made.

use std::path::PathBuf;

use ccplane_files::ReadError;
use ccplane_results::ResultsError;

/// Reasons why an evaluation cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// No criterion of that name.
    #[error("no criterion is called `{found}`; there are {}", .known.join(", "))]
    NoCriterion {
        /// The name that was given.
        found: String,
        known: Vec<&'static str>,
    },
    /// No algorithm of that name.
    #[error("no algorithm is called `{found}`; there are {}", .known.join(", "))]
    NoAlgorithm {
        /// The name that was given.
        found: String,
        known: Vec<&'static str>,
    },
    /// No case of that name.
    #[error("`{found}` names no case; one is called SET/NUMBER, such as heavy-loss/3; sets are {}", .known.join(", "))]
    NoCase {
        /// The name that was given.
        found: String,
        known: Vec<&'static str>,
    },
    /// A drawn case makes no plan.
    #[error("{case}: {why}")]
    Plan {
        case: String,
        /// The error of the plan's parser.
        why: String,
    },
    /// A run of an algorithm in a case failed.
    #[error("{algorithm} in {case}: {source}")]
    Run { algorithm: String, case: String, source: Box<ccplane_runner::Error> },
    /// Live runs cannot be made here.
    #[error("{case}: {source}")]
    Live { case: String, source: Box<ccplane_runner::experiment::ExperimentError> },
    /// The cells cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Errors of reading and writing the file of measured cells.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be made or written.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// The file cannot be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
    /// A torn last line cannot be cut off.
    #[error(transparent)]
    Torn(#[from] ResultsError),
    /// A line is no cell.
    #[error("{}:{line}: {error}; --force starts anew and keeps the file as .old", path.display())]
    Json {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        error: serde_json::Error,
    },
    /// Written by another version.
    #[error("{}: cells of another version; --force starts anew and keeps the file as .old", path.display())]
    Version { path: PathBuf },
}

//! Reasons why a report could not be written.

use std::path::PathBuf;

/// Reasons why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file could not be written.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    /// A chart could not be drawn as a picture.
    #[error("{path}: {why}")]
    Picture { path: PathBuf, why: String },
}

//! Why a report could not be written.

use std::path::PathBuf;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system said no.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A chart could not be drawn as a picture.
    #[error("{path}: {why}")]
    Picture {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

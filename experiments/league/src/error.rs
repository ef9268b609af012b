//! Reasons why a league cannot be played.

use std::path::PathBuf;

/// Reasons why a league cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum LeagueError {
    /// No family of that name.
    #[error("no family is called `{found}`; there are {}", .known.join(", "))]
    NoFamily {
        /// The name that was given.
        found: String,
        /// All valid names.
        known: Vec<&'static str>,
    },
    /// No algorithm of that name.
    #[error("no algorithm is called `{found}`; there are {}", .known.join(", "))]
    NoAlgorithm {
        /// The name that was given.
        found: String,
        /// All valid names.
        known: Vec<&'static str>,
    },
    /// A link's name cannot be read.
    #[error("`{found}` names no link; one is called FAMILY/SET/NUMBER, such as steady/validation/3")]
    NoLink {
        /// The name that was given.
        found: String,
    },
    /// A test link, outside `--final`.
    #[error("{link} is a test link: those are played by --final only, which writes it down")]
    Sealed { link: String },
    /// Uses of the test cannot be written down there.
    #[error("{}: uses of the test links are written to a file under version control; `git add` it first", .path.display())]
    Book { path: PathBuf },
    /// A drawn link makes no plan.
    #[error("{link}: {why}")]
    Plan {
        link: String,
        /// The error of the plan's parser.
        why: String,
    },
    /// A run of an algorithm on a link failed.
    #[error("{algorithm} on {link}: {source}")]
    Run { algorithm: String, link: String, source: Box<ccplane_runner::Error> },
    /// A file cannot be written.
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
}

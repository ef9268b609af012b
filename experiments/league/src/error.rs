//! Why a league cannot be played.

use std::path::PathBuf;

/// Why a league cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum LeagueError {
    /// No family of that name.
    #[error("no family is called `{found}`; there are {}", .known.join(", "))]
    NoFamily {
        /// What was asked for.
        found: String,
        /// Those that there are.
        known: Vec<&'static str>,
    },
    /// No algorithm of that name.
    #[error("no algorithm is called `{found}`; there are {}", .known.join(", "))]
    NoAlgorithm {
        /// What was asked for.
        found: String,
        /// Those that there are.
        known: Vec<&'static str>,
    },
    /// A link's name cannot be read.
    #[error("`{found}` names no link; one is called FAMILY/SET/NUMBER, such as steady/validation/3")]
    NoLink {
        /// What was asked for.
        found: String,
    },
    /// A test link, outside `--final`.
    #[error("{link} is a test link: those are played by --final only, which writes it down")]
    Sealed {
        /// The link's name.
        link: String,
    },
    /// Uses of the test cannot be written down there.
    #[error("{}: uses of the test links are written to a file under version control; `git add` it first", .path.display())]
    Book {
        /// The file.
        path: PathBuf,
    },
    /// A drawn link makes no plan.
    #[error("{link}: {why}")]
    Plan {
        /// The link's name.
        link: String,
        /// What the plan's parser says.
        why: String,
    },
    /// A run failed.
    #[error("{algorithm} on {link}: {source}")]
    Run {
        /// The algorithm.
        algorithm: String,
        /// The link's name.
        link: String,
        /// Why.
        source: Box<ccplane_runner::Error>,
    },
    /// A file cannot be written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

//! A soak: a real agent whose flows learn runs for hours under faults that are drawn from a seed.
//!
//! Long and short TCP flows cross an emulated link between namespaces of their own; files are fetched from a QUIC server, and put
//! there, by flows that the agent steers; the agent is stopped, killed and frozen, snapshots are pushed and rolled back by hand, the
//! link is made anew.
//! [`Sample`]s go to a JSON Lines file; at the end a robust slope of each quantity ([`slope`]) is held against its
//! [`BOUNDS`], and nothing may be left in the kernel. Whatever ends a run, but SIGKILL, ends what it started.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod processes;
mod random;
mod run;
mod sample;
pub mod slope;
mod verdict;

pub use run::{Config, Counts, SoakOutcome, run};
pub use sample::{ProcessSample, Sample};
pub use verdict::{BOUNDS, Bound, GrowthVerdict, Judged, Per, judge, table};

use std::process::ExitStatus;

/// Reasons why a soak could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {error}")]
    Io {
        /// The action that failed.
        what: String,
        error: std::io::Error,
    },
    /// The link could not be made.
    #[error("the emulated link: {0}")]
    Link(#[from] ccplane_emulator::Error),
    /// A process ended by itself, or in another way than it should.
    #[error("{what} ended with {status}; it last said {said:?}")]
    Ended {
        what: &'static str,
        status: ExitStatus,
        /// The last lines of its log.
        said: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {seconds} s")]
    Late {
        /// The event that was awaited.
        what: &'static str,
        /// The time limit, seconds.
        seconds: u64,
    },
    /// A process printed something unexpected.
    #[error("{what} said {said:?}")]
    UnexpectedOutput { what: &'static str, said: String },
}

/// Adds the action that failed to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::Io { what: what(), error: error.into() })
    }
}

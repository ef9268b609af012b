//! What can go wrong: where, what was found, what would be right.

use std::fmt;
use std::path::PathBuf;

use ccplane_netsim::trace::{MAX_OPPORTUNITIES, TraceError};

use crate::log::LogReason;
use crate::markov::ModelError;
use crate::series::SeriesReason;

/// Where in the input: `a.log:3`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The file, when the text came from one.
    pub file: Option<PathBuf>,
    /// The line, from 1, where the reason lies in one.
    pub line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => write!(f, "input")?,
        }
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// What is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// A number outside its range.
    #[error("{field}: {found} is outside {low}..={high} {unit}")]
    OutOfRange {
        /// Its name.
        field: &'static str,
        /// Its value.
        found: f64,
        /// The smallest allowed.
        low: f64,
        /// The largest.
        high: f64,
        /// Of all three.
        unit: &'static str,
    },
    /// More opportunities than a trace may have.
    #[error(
        "the trace would have {found} lines, above the limit of {MAX_OPPORTUNITIES}: make it shorter or slower"
    )]
    TooLong {
        /// How many.
        found: u64,
    },
    /// A rate of 0 all along.
    #[error("the rate is 0 throughout: a trace needs at least one opportunity")]
    NoRate,
    /// A trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A series of numbers.
    #[error("{place}: {reason}")]
    Series {
        /// Where.
        place: Place,
        /// Why.
        reason: SeriesReason,
    },
    /// A link log.
    #[error("{place}: {reason}")]
    Log {
        /// Where.
        place: Place,
        /// Why.
        reason: LogReason,
    },
    /// A fitted model.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Error {
    /// The same, with the file that the text came from.
    #[must_use]
    pub fn in_file(mut self, path: impl Into<PathBuf>) -> Error {
        let file = Some(path.into());
        match &mut self {
            Error::Trace(error) => error.file = file,
            Error::Series { place, .. } | Error::Log { place, .. } => place.file = file,
            Error::OutOfRange { .. } | Error::TooLong { .. } | Error::NoRate | Error::Model(_) => {}
        }
        self
    }
}

pub(crate) fn check_range(
    field: &'static str,
    found: f64,
    low: f64,
    high: f64,
    unit: &'static str,
) -> Result<(), Error> {
    if (low..=high).contains(&found) {
        Ok(())
    } else {
        Err(Error::OutOfRange { field, found, low, high, unit })
    }
}

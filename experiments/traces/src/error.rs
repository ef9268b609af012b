//! Errors with their place, the value found and the right values.

use std::fmt;
use std::path::PathBuf;

use ccplane_netsim::trace::{MAX_OPPORTUNITIES, TraceError};

use crate::reason::{LogReason, ModelError, SeriesReason};

/// A place in the input: `a.log:3`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InputPlace {
    /// The file, when the text came from one.
    pub file: Option<PathBuf>,
    /// The line, from 1, where the reason lies in one.
    pub line: Option<usize>,
}

impl fmt::Display for InputPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => write!(f, "input")?,
        }
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// An input that is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// A number outside its range.
    #[error("{field}: {found} is outside {low}..={high} {unit}")]
    OutOfRange {
        field: &'static str,
        found: f64,
        low: f64,
        high: f64,
        /// The unit of all three values.
        unit: &'static str,
    },
    /// More opportunities than a trace may have.
    #[error(
        "the trace would have {found} lines, above the limit of {MAX_OPPORTUNITIES}: make it shorter or slower"
    )]
    TooLong { found: u64 },
    /// A rate of 0 all along.
    #[error("the rate is 0 throughout: a trace needs at least one opportunity")]
    NoRate,
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A series of numbers.
    #[error("{place}: {reason}")]
    Series { place: InputPlace, reason: SeriesReason },
    #[error("{place}: {reason}")]
    Log { place: InputPlace, reason: LogReason },
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file as a whole is refused, though no single line is wrong.
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: Box<Error> },
}

impl Error {
    /// The same, with the file that the text came from.
    #[must_use]
    pub fn in_file(mut self, path: impl Into<PathBuf>) -> Error {
        let file = path.into();
        match &mut self {
            Error::Trace(error) => error.file = Some(file),
            Error::Series { place, .. } | Error::Log { place, .. } => place.file = Some(file),
            Error::TooLong { .. } | Error::NoRate => {
                return Error::File { file, source: Box::new(self) };
            }
            // Options, models and what names its file already.
            Error::OutOfRange { .. } | Error::Model(_) | Error::File { .. } => {}
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

//! Refused configurations, and the ranges that they are checked against.

use std::path::PathBuf;

/// Longest propagation delay of one direction, microseconds.
pub const MAX_DELAY_US: u64 = 10_000_000;
/// Longest tag of a namespace, bytes.
pub const MAX_TAG: usize = 64;

/// A refused configuration: the field, the value found, and the values allowed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{field}: {found} is outside {low}..={high}{}{unit}", if unit.is_empty() { "" } else { " " })]
    OutOfRange {
        field: &'static str,
        found: f64,
        /// The smallest value allowed.
        low: f64,
        high: f64,
        /// The unit of all three.
        unit: &'static str,
    },
    /// Text that is no number.
    #[error("{field}: {found:?} is no number")]
    NotANumber { field: &'static str, found: String },
    /// A link that is neither ever on nor ever off.
    #[error("mean on-time and mean off-time: not both can be 0")]
    NeverOnNorOff,
    /// A kind of queue that is not known.
    #[error(
        "{field}: unknown queue {found:?}; expected infinite, droptail, drophead, priority, codel or pie"
    )]
    UnknownQueue {
        /// The flag or field.
        field: &'static str,
        found: String,
    },
    /// Queue arguments that cannot be read.
    #[error(
        "{field}: cannot take {found:?}; expected packets=N, bytes=N, for codel target=MS, interval=MS, for pie qdelay_ref=MS, max_burst=MS, separated by commas"
    )]
    QueueArgs {
        /// The flag or field.
        field: &'static str,
        /// The part that is wrong.
        found: String,
    },
    /// A dropping queue with no limit.
    #[error("{field}: a {kind} queue needs packets=N or bytes=N, above 0")]
    NoLimit {
        /// The flag or field.
        field: &'static str,
        /// The name of the queue's kind.
        kind: &'static str,
    },
    /// A PIE queue without a reference delay or a burst time.
    #[error("{field}: a pie queue needs qdelay_ref=MS and max_burst=MS, above 0")]
    PieArgs {
        /// The flag or field.
        field: &'static str,
    },
    /// An infinite queue with arguments.
    #[error("{field}: an infinite queue takes no arguments, found {found:?}")]
    NoArgs {
        /// The flag or field.
        field: &'static str,
        found: String,
    },
    /// A name that cannot be part of a namespace's name.
    #[error("tag: {found:?} is not 1 to {max} of the characters a-z, A-Z, 0-9, '-' and '_'", max = MAX_TAG)]
    Tag { found: String },
    /// A log that cannot be created.
    #[error("{}: cannot create the log: {kind}", path.display())]
    Log { path: PathBuf, kind: std::io::ErrorKind },
    /// An address block, handed from shell to shell, that is not one.
    #[error("CCPLANE_SHELL_BLOCK: {found:?} is no block of 100.64.0.0/10")]
    Block { found: String },
}

pub(crate) fn check_delay_us(field: &'static str, delay_us: u64) -> Result<(), ConfigError> {
    check_range(field, delay_us as f64, 0.0, MAX_DELAY_US as f64, "us")
}

pub(crate) fn check_range(
    field: &'static str,
    found: f64,
    low: f64,
    high: f64,
    unit: &'static str,
) -> Result<(), ConfigError> {
    if (low..=high).contains(&found) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, found, low, high, unit })
    }
}

//! Limits of logs, series, models and rates.

/// Latest time in a log: 30 days. Keeps all sums of bits and milliseconds far inside 64 bits.
pub const MAX_LOG_MS: u32 = 30 * 24 * 3600 * 1000;
/// Events of one log.
pub const MAX_EVENTS: usize = 1 << 27;
/// Lines of one series.
pub const MAX_LINES: usize = 1 << 24;
/// The version of models' files. A file without one is of the first.
pub const MODEL_VERSION: u32 = 1;
/// States of a model, at most.
pub const MAX_STATES: usize = 256;
/// The longest window of a fit, milliseconds.
pub const MAX_STEP_MS: u32 = 60_000;
/// Windows that a trace must have to be fitted.
pub const MIN_WINDOWS: usize = 100;
/// Fastest rate of a trace that is made here, bits per second.
pub const MAX_BIT_PER_S: u64 = 100_000_000_000;

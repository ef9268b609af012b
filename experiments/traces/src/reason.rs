//! Reasons why a log, a series or a model is refused.

use crate::limits::{
    MAX_BIT_PER_S, MAX_EVENTS, MAX_LINES, MAX_LOG_MS, MAX_STATES, MAX_STEP_MS, MIN_WINDOWS, MODEL_VERSION,
};

/// Reasons why a log is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogReason {
    /// The line is not an event.
    #[error(
        "expected `MS + BYTES`, `MS # BYTES`, `MS - BYTES DELAY_MS` or `MS d PACKETS BYTES`, all whole numbers, found {found:?}"
    )]
    NotAnEvent {
        /// The line, cut to a printable length.
        found: String,
    },
    /// A number past its bound.
    #[error("{field} {found} is past the limit of {limit}")]
    TooLarge { field: &'static str, found: u64, limit: u32 },
    /// An event from before the base timestamp.
    #[error("the event is at {at_ms} ms, before the base timestamp of {base_ms} ms")]
    BeforeBase {
        /// The time of the event, milliseconds.
        at_ms: u32,
        /// The base timestamp in the header, milliseconds.
        base_ms: u32,
    },
    /// A packet that arrived before the base timestamp.
    #[error(
        "a packet that left at {at_ms} ms, {delay_ms} ms after it arrived, arrived before the base timestamp of {base_ms} ms"
    )]
    ArrivedBeforeBase {
        /// The time at which the packet left, milliseconds.
        at_ms: u32,
        /// The time for which it waited.
        delay_ms: u32,
        /// The base timestamp in the header, milliseconds.
        base_ms: u32,
    },
    /// An event with no base timestamp before it.
    #[error("an event comes before the header's `# base timestamp: MS`")]
    NoBase,
    /// A base timestamp that is not a whole number, or past the limit.
    #[error("expected `# base timestamp: MS`, MS a whole number up to {MAX_LOG_MS}, found {found:?}")]
    BadBase {
        /// The line, cut to a printable length.
        found: String,
    },
    /// A second base timestamp: two logs in one file.
    #[error("a second base timestamp: is this more than one log?")]
    SecondBase,
    /// More events than [`MAX_EVENTS`].
    #[error("more than {MAX_EVENTS} events")]
    TooLong,
    /// No departure, so that there is no delay to speak of.
    #[error("no packet left the link: expected at least one departure, `MS - BYTES DELAY_MS`")]
    NoDepartures,
    /// All events in one millisecond, so that there is no rate to speak of.
    #[error("all events are at the same time: expected a log of at least 1 ms")]
    NoTime,
}

/// Reasons why a series is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SeriesReason {
    /// Neither `VALUE` nor `TIME,VALUE`.
    #[error("expected one number, or a time in seconds and a number with a comma between, found {found:?}")]
    NotNumbers {
        /// The line, cut to a printable length.
        found: String,
    },
    /// A line of the other kind than those before.
    #[error("expected {expected} number(s) as on the lines before, found {found:?}")]
    Mixed {
        /// The numbers on each line.
        expected: usize,
        /// The line, cut to a printable length.
        found: String,
    },
    /// A value below 0 or past the fastest rate.
    #[error("{found} is outside 0..={limit} {unit}")]
    Value { found: f64, limit: f64, unit: &'static str },
    /// A time below 0 or past a day.
    #[error("time {found} s is outside 0..={limit} s")]
    Time { found: f64, limit: u64 },
    /// A time no later than the one before, in whole milliseconds.
    #[error("time {found} s is less than 1 ms after {previous} s")]
    NotLater {
        /// The time as read, to the millisecond.
        found: f64,
        /// The number on the line before.
        previous: f64,
    },
    /// One number a line, and no interval.
    #[error("one number a line needs an interval (--interval-ms)")]
    NoInterval,
    /// Only one line with a time, and no interval: how long it holds is open.
    #[error("a single time needs an interval (--interval-ms), for how long its value holds")]
    OnlyTime,
    /// No number at all.
    #[error("no numbers")]
    Empty,
    /// More lines than [`MAX_LINES`].
    #[error("more than {MAX_LINES} lines")]
    TooLong,
}

/// Reasons why a model is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// A trace that is too short to be fitted.
    #[error("the trace has {windows} windows of {step_ms} ms: a fit needs at least {MIN_WINDOWS}")]
    TooShort {
        windows: usize,
        /// The length of a window, milliseconds.
        step_ms: u32,
    },
    /// A file of another version.
    #[error("version {found} of a model, this ccplane reads version {MODEL_VERSION}")]
    Version { found: u32 },
    /// A field that a model does not have.
    #[error("{field}: a model has no such field")]
    Field { field: String },
    /// A step out of range.
    #[error("step_ms: {found} is outside 1..={MAX_STEP_MS}")]
    Step { found: u32 },
    /// No state, or too many.
    #[error("states_bit_per_s: {found} states, expected 1 to {MAX_STATES}")]
    States { found: usize },
    /// A rate past the limit.
    #[error("states_bit_per_s[{state}]: {found} is past the limit of {MAX_BIT_PER_S}")]
    Rate {
        /// The index of the state, from 0.
        state: usize,
        /// The rate of the state, bits per second.
        found: u64,
    },
    /// The table has another size than the states ask for.
    #[error("transitions{}: {found} entries, expected {expected}, one a state", row.map(|r| format!("[{r}]")).unwrap_or_default())]
    Shape {
        /// The index of the row, from 0; `None` stands for the table.
        row: Option<usize>,
        /// The number of entries that it has.
        found: usize,
        /// The number of states.
        expected: usize,
    },
    /// A state that nothing follows.
    #[error("transitions[{row}]: all 0, so that nothing could follow state {row}")]
    DeadEnd {
        /// The index of the row, from 0.
        row: usize,
    },
}

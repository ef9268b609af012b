//! Link traces in mahimahi's format: when a link can deliver.
//!
//! One integer millisecond per line, not decreasing, the last one above 0. Each line is one opportunity to
//! deliver [`OPPORTUNITY_BYTES`]; a millisecond may repeat. A trace that ends starts over, shifted by its last
//! timestamp (mahimahi 0.98, `link_queue.cc`).

use ccplane_files::{Bound, ReadError};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that one line lets pass: an Ethernet MTU and mahimahi's 4-byte tun header.
pub const OPPORTUNITY_BYTES: u32 = 1504;
/// Lines of one trace.
pub const MAX_OPPORTUNITIES: usize = 1 << 24;
/// The bound of a trace file.
pub const TRACE: Bound = Bound { what: "a trace", bytes: 128 << 20 };
/// Latest timestamp of one trace: a day.
pub const MAX_TIMESTAMP_MS: u64 = 24 * 3600 * 1000;
/// Fastest constant-rate trace, kilobits per second.
pub const MAX_CONSTANT_KBIT: u32 = 10_000_000;

const OPPORTUNITY_BITS: u64 = OPPORTUNITY_BYTES as u64 * 8;

/// The fault of a trace.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceReason {
    #[error("the line is empty; expected a timestamp in milliseconds")]
    EmptyLine,
    /// Something else than a decimal number.
    #[error("expected a timestamp in milliseconds, found {found:?}")]
    NotANumber {
        /// The line, cut to a printable length.
        found: String,
    },
    /// A timestamp before its predecessor.
    #[error("timestamp {found} ms comes after {previous} ms; timestamps must not decrease")]
    Decreasing {
        found: u64,
        /// The timestamp on the line before, milliseconds.
        previous: u64,
    },
    /// A timestamp past [`MAX_TIMESTAMP_MS`].
    #[error("timestamp {found} ms is past the limit of {MAX_TIMESTAMP_MS} ms")]
    TooLate { found: u64 },
    /// More lines than [`MAX_OPPORTUNITIES`].
    #[error("more than {MAX_OPPORTUNITIES} lines")]
    TooLong,
    /// No line at all.
    #[error("no timestamps")]
    NoTimestamps,
    /// The last timestamp is 0, so that the trace could not repeat.
    #[error("the last timestamp is 0; a trace must last at least 1 ms")]
    ZeroDuration,
    /// A constant rate of 0 or above [`MAX_CONSTANT_KBIT`].
    #[error("a constant rate of {kbit} kbit/s is outside 1..={MAX_CONSTANT_KBIT}")]
    RateOutOfRange {
        /// The rate asked for, kb/s.
        kbit: u32,
    },
    /// The file could not be read.
    #[error("{0}")]
    Unreadable(String),
    /// The line is no text.
    #[error("not UTF-8 text")]
    NotText,
}

/// A refused trace: where, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// The file, when it came from one.
    pub file: Option<PathBuf>,
    /// The line, from 1, where the reason lies in one.
    pub line: Option<usize>,
    pub reason: TraceReason,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}:", file.display())?,
            None => write!(f, "trace:")?,
        }
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.reason)
    }
}

impl std::error::Error for TraceError {}

impl From<TraceReason> for TraceError {
    fn from(reason: TraceReason) -> TraceError {
        TraceError { file: None, line: None, reason }
    }
}

/// A verified trace: at least one opportunity, ascending, the last after time 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Milliseconds since the start of a lap.
    opportunities_ms: Arc<[u32]>,
}

impl Trace {
    /// Parses the text of a trace.
    ///
    /// # Errors
    /// The first line that is wrong, and why; `file` is `None`.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut opportunities_ms = Vec::new();
        let mut previous = 0;
        // As in mahimahi, a newline at the end is no empty line.
        let body = text.strip_suffix('\n').unwrap_or(text);
        if body.is_empty() {
            return Err(TraceReason::NoTimestamps.into());
        }
        for (n, line) in body.split('\n').enumerate() {
            let ms = parse_line(line, previous, n).map_err(|reason| TraceError {
                file: None,
                line: Some(n + 1),
                reason,
            })?;
            opportunities_ms.push(ms as u32);
            previous = ms;
        }
        if previous == 0 {
            let line = Some(opportunities_ms.len());
            return Err(TraceError { file: None, line, reason: TraceReason::ZeroDuration });
        }
        Ok(Trace { opportunities_ms: opportunities_ms.into() })
    }

    /// The trace of these opportunities, milliseconds since the start of a lap.
    ///
    /// # Errors
    /// The first one (counted as a line) that a file could not have either.
    pub fn from_opportunities_ms(opportunities_ms: Vec<u32>) -> Result<Trace, TraceError> {
        let mut previous = 0;
        for (n, ms) in opportunities_ms.iter().map(|ms| u64::from(*ms)).enumerate() {
            let line = Some(n + 1);
            check_next(ms, previous, n).map_err(|reason| TraceError { file: None, line, reason })?;
            previous = ms;
        }
        match opportunities_ms.len() {
            0 => Err(TraceReason::NoTimestamps.into()),
            n if previous == 0 => {
                Err(TraceError { file: None, line: Some(n), reason: TraceReason::ZeroDuration })
            }
            _ => Ok(Trace { opportunities_ms: opportunities_ms.into() }),
        }
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// As [`Trace::parse`], with `file` set; or [`TraceReason::Unreadable`].
    pub fn load(path: &Path) -> Result<Trace, TraceError> {
        let at = |line, reason| TraceError { file: Some(path.to_owned()), line, reason };
        let text = ccplane_files::read_text(path, TRACE).map_err(|error| match error {
            ReadError::NotText { line, .. } => at(Some(line), TraceReason::NotText),
            error => at(None, TraceReason::Unreadable(error.reason())),
        })?;
        Trace::parse(&text).map_err(|e| at(e.line, e.reason))
    }

    /// The trace of a constant rate in megabits per second, exact over its period.
    ///
    /// # Errors
    /// [`TraceReason::RateOutOfRange`].
    pub fn constant(mbit: u32) -> Result<Trace, TraceError> {
        Trace::constant_kbit(mbit.saturating_mul(1000))
    }

    /// The trace of a constant rate in kilobits per second, exact over its period.
    ///
    /// # Errors
    /// [`TraceReason::RateOutOfRange`].
    pub fn constant_kbit(kbit: u32) -> Result<Trace, TraceError> {
        if kbit == 0 || kbit > MAX_CONSTANT_KBIT {
            return Err(TraceReason::RateOutOfRange { kbit }.into());
        }
        // A kilobit per second is a bit per millisecond: opportunity n comes when n * OPPORTUNITY_BITS have
        // passed. The smallest whole number of milliseconds that holds a whole number of opportunities:
        let lines = u64::from(kbit) / gcd(u64::from(kbit), OPPORTUNITY_BITS);
        let opportunities_ms =
            (1..=lines).map(|n| (n * OPPORTUNITY_BITS).div_ceil(u64::from(kbit)) as u32).collect();
        Ok(Trace { opportunities_ms })
    }

    /// Milliseconds since the start of a lap, ascending; never empty.
    pub fn opportunities_ms(&self) -> &[u32] {
        &self.opportunities_ms
    }

    /// Returns the length of a lap, milliseconds; above 0.
    pub fn period_ms(&self) -> u64 {
        self.opportunities_ms.last().copied().map_or(1, u64::from)
    }

    /// Mean rate over a lap, bits per second.
    pub fn mean_rate_bit_per_s(&self) -> u64 {
        self.opportunities_ms.len() as u64 * OPPORTUNITY_BITS * 1000 / self.period_ms()
    }

    /// The opportunities in order from time 0, lap after lap, or only one lap (mahimahi's `--once`).
    pub fn schedule(&self, repeat: bool) -> Schedule {
        Schedule { trace: self.clone(), next: 0, lap_start_ms: 0, repeat }
    }

    /// The first opportunity at or after `t_ms`, milliseconds; `None` when the trace does not repeat and is over.
    pub fn next_at_or_after(&self, t_ms: u64, repeat: bool) -> Option<u64> {
        let mut schedule = self.schedule(repeat);
        schedule.seek(t_ms);
        schedule.peek()
    }
}

/// Writes the trace as mahimahi reads it.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.opportunities_ms.iter().try_for_each(|ms| writeln!(f, "{ms}"))
    }
}

/// Iterates over a trace's opportunities, milliseconds since the start of its first lap.
#[derive(Clone, Debug)]
pub struct Schedule {
    trace: Trace,
    next: usize,
    lap_start_ms: u64,
    repeat: bool,
}

impl Schedule {
    /// The next opportunity; `None` when a trace that does not repeat is over.
    pub fn peek(&self) -> Option<u64> {
        let ms = self.trace.opportunities_ms.get(self.next)?;
        Some(self.lap_start_ms + u64::from(*ms))
    }

    /// Moves to the first opportunity at or after `t_ms`, back or forth.
    pub fn seek(&mut self, t_ms: u64) {
        let period_ms = self.trace.period_ms();
        // A lap's last opportunity falls on the start of the next, so that laps are half-open at the left.
        let lap = if self.repeat { t_ms.saturating_sub(1) / period_ms } else { 0 };
        self.lap_start_ms = lap * period_ms;
        let offset_ms = t_ms - self.lap_start_ms;
        self.next = self.trace.opportunities_ms.partition_point(|ms| u64::from(*ms) < offset_ms);
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let now = self.peek()?;
        self.next += 1;
        if self.repeat && self.next == self.trace.opportunities_ms.len() {
            self.next = 0;
            self.lap_start_ms += self.trace.period_ms();
        }
        Some(now)
    }
}

fn parse_line(line: &str, previous: u64, line_index: usize) -> Result<u64, TraceReason> {
    if line.is_empty() {
        return Err(TraceReason::EmptyLine);
    }
    if !line.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TraceReason::NotANumber { found: line.chars().take(32).collect() });
    }
    // Only digits: what does not fit is too late.
    let ms = line.parse().unwrap_or(u64::MAX);
    check_next(ms, previous, line_index)?;
    Ok(ms)
}

/// Checks a timestamp against its predecessor.
fn check_next(ms: u64, previous: u64, index: usize) -> Result<(), TraceReason> {
    if index >= MAX_OPPORTUNITIES {
        return Err(TraceReason::TooLong);
    }
    if ms > MAX_TIMESTAMP_MS {
        return Err(TraceReason::TooLate { found: ms });
    }
    if ms < previous {
        return Err(TraceReason::Decreasing { found: ms, previous });
    }
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(text: &str) -> (Option<usize>, TraceReason) {
        let e = Trace::parse(text).unwrap_err();
        (e.line, e.reason)
    }

    #[test]
    fn reads_what_mahimahi_reads() {
        let trace = Trace::parse("0\n5\n5\n10").unwrap();
        assert_eq!(trace.opportunities_ms(), [0, 5, 5, 10]);
        assert_eq!(trace, Trace::parse("0\n5\n5\n10\n").unwrap());
        assert_eq!(trace.to_string(), "0\n5\n5\n10\n");
        let laps: Vec<u64> = trace.schedule(true).take(10).collect();
        assert_eq!(laps, [0, 5, 5, 10, 10, 15, 15, 20, 20, 25]);
        assert_eq!(trace.schedule(false).count(), 4);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        assert_eq!(refusal(""), (None, TraceReason::NoTimestamps));
        assert_eq!(refusal("\n"), (None, TraceReason::NoTimestamps));
        assert_eq!(refusal("1\n\n3\n"), (Some(2), TraceReason::EmptyLine));
        assert_eq!(refusal("1\n\n"), (Some(2), TraceReason::EmptyLine));
        assert_eq!(refusal("1\n2 ms"), (Some(2), TraceReason::NotANumber { found: "2 ms".into() }));
        assert_eq!(refusal("-1"), (Some(1), TraceReason::NotANumber { found: "-1".into() }));
        assert_eq!(refusal("7\n6"), (Some(2), TraceReason::Decreasing { found: 6, previous: 7 }));
        assert_eq!(refusal("99999999999999999999999"), (Some(1), TraceReason::TooLate { found: u64::MAX }));
        assert_eq!(refusal("0\n0\n"), (Some(2), TraceReason::ZeroDuration));
        let error = Trace::load(Path::new("/nonexistent/lte.up")).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/lte.up: No such file or directory (os error 2)");
        let error = TraceError { file: Some("a.up".into()), ..Trace::parse("3\nx").unwrap_err() };
        assert_eq!(error.to_string(), r#"a.up:2: expected a timestamp in milliseconds, found "x""#);
    }

    #[test]
    fn constant_rates_are_exact() {
        let trace = Trace::constant(12).unwrap();
        assert_eq!((trace.opportunities_ms().len(), trace.period_ms()), (375, 376));
        for kbit in [1, 999, 1000, 12_000, 96_000, 100_000, 1_000_000, MAX_CONSTANT_KBIT] {
            let trace = Trace::constant_kbit(kbit).unwrap();
            assert_eq!(trace.mean_rate_bit_per_s(), u64::from(kbit) * 1000, "{kbit}");
        }
        for kbit in [0, MAX_CONSTANT_KBIT + 1] {
            assert_eq!(Trace::constant_kbit(kbit).unwrap_err().reason, TraceReason::RateOutOfRange { kbit });
        }
    }

    proptest! {
        #[test]
        fn seeking_agrees_with_iterating(
            mut ms in prop::collection::vec(0u32..50, 1..20), t_ms in 0u64..500, repeat: bool,
        ) {
            ms.sort_unstable();
            ms.push(ms[ms.len() - 1] + 1);
            let text: String = ms.iter().map(|m| format!("{m}\n")).collect();
            let trace = Trace::parse(&text).unwrap();
            let mut seeking = trace.schedule(repeat);
            seeking.seek(t_ms);
            let iterating = trace.schedule(repeat).skip_while(|m| *m < t_ms);
            prop_assert!(seeking.clone().take(40).eq(iterating.take(40)));
            prop_assert_eq!(trace.next_at_or_after(t_ms, repeat), seeking.peek());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a\\n -]{0,40}") {
            if let Ok(trace) = Trace::parse(&text) {
                let numbers: Vec<u32> = text.lines().map(|l| l.parse().unwrap()).collect();
                prop_assert_eq!(trace.opportunities_ms(), numbers.as_slice());
                prop_assert_eq!(Trace::from_opportunities_ms(numbers), Ok(trace));
            }
        }
    }
}

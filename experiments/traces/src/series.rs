//! Series of numbers: what other tools have where this one has traces.
//!
//! One number a line, each holding for the same interval; or `time,value` lines, time in seconds, each value holding until
//! the next one's time and the last as long as the one before. Empty lines and `#` comments are skipped, and a first line of
//! two words is a header.

use std::fmt::Write;

use ccplane_netsim::trace::MAX_TIMESTAMP_MS;

use crate::error::{Error, InputPlace, check_range};
use crate::rates::{MAX_BIT_PER_S, OPPORTUNITY_BITS, RateStep};

pub use crate::limits::MAX_LINES;
pub use crate::reason::SeriesReason;

/// Of a wrong line, how much is shown.
const SHOWN_CHARS: usize = 40;

/// The unit of the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Packets of 1504 bytes (a trace's opportunities) per second.
    Pps,
    Mbps,
}

impl Unit {
    /// Bits per second of one.
    fn bit_per_s(self) -> u64 {
        match self {
            Unit::Pps => OPPORTUNITY_BITS,
            Unit::Mbps => 1_000_000,
        }
    }

    /// Returns its short name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Pps => "pps",
            Unit::Mbps => "mbps",
        }
    }
}

/// Parses a series of rates over time.
///
/// `interval_ms` is how long each number holds, or, of `time,value` lines, the last.
///
/// # Errors
/// [`Error::Series`] with the first line that is wrong.
pub fn parse(text: &str, unit: Unit, interval_ms: Option<u32>) -> Result<Vec<RateStep>, Error> {
    if let Some(ms) = interval_ms {
        check_range("interval", ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
    }
    let mut reader = Reader { unit, values: Vec::new(), starts_ms: Vec::new() };
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        let skipped =
            line.is_empty() || line.starts_with('#') || (reader.values.is_empty() && is_header(line));
        if !skipped {
            reader.line(line).map_err(|reason| at(Some(n + 1), reason))?;
        }
    }
    reader.steps(interval_ms).map_err(|reason| at(None, reason))
}

/// Writes rates as one number a line, or with each step's start in seconds before it, under a header.
pub fn write(steps: &[RateStep], unit: Unit, times: bool) -> String {
    let mut text = if times { format!("time_s,{}\n", unit.name()) } else { String::new() };
    let mut start_ms: u64 = 0;
    for step in steps {
        let value = step.bit_per_s as f64 / unit.bit_per_s() as f64;
        // Writing to a String cannot fail.
        let _ = if times {
            writeln!(text, "{}.{:03},{value:.6}", start_ms / 1000, start_ms % 1000)
        } else {
            writeln!(text, "{value:.6}")
        };
        start_ms += u64::from(step.duration_ms);
    }
    text
}

struct Reader {
    unit: Unit,
    /// Rates, bits per second.
    values: Vec<u64>,
    /// Empty if the lines have no times.
    starts_ms: Vec<u32>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), SeriesReason> {
        if self.values.len() == MAX_LINES {
            return Err(SeriesReason::TooLong);
        }
        let found = || line.chars().take(SHOWN_CHARS).collect();
        let numbers: Option<Vec<f64>> = line.split(',').map(|word| word.trim().parse().ok()).collect();
        let (time, value) = match numbers.as_deref() {
            Some([value]) => (None, *value),
            Some([time, value]) => (Some(*time), *value),
            _ => return Err(SeriesReason::NotNumbers { found: found() }),
        };
        let timed = !self.starts_ms.is_empty();
        if !self.values.is_empty() && time.is_some() != timed {
            return Err(SeriesReason::Mixed { expected: 1 + usize::from(timed), found: found() });
        }
        let limit = MAX_BIT_PER_S as f64 / self.unit.bit_per_s() as f64;
        if !(0.0..=limit).contains(&value) {
            return Err(SeriesReason::Value { found: value, limit, unit: self.unit.name() });
        }
        if let Some(time) = time {
            let ms = self.start_ms(time)?;
            self.starts_ms.push(ms);
        }
        self.values.push((value * self.unit.bit_per_s() as f64).round() as u64);
        Ok(())
    }

    fn start_ms(&self, time_s: f64) -> Result<u32, SeriesReason> {
        let limit = MAX_TIMESTAMP_MS / 1000;
        if !(0.0..=limit as f64).contains(&time_s) {
            return Err(SeriesReason::Time { found: time_s, limit });
        }
        let ms = (time_s * 1000.0).round() as u32;
        match self.starts_ms.last() {
            Some(previous) if ms <= *previous => {
                let seconds = |ms: u32| f64::from(ms) / 1000.0;
                Err(SeriesReason::NotLater { found: seconds(ms), previous: seconds(*previous) })
            }
            _ => Ok(ms),
        }
    }

    fn steps(self, interval_ms: Option<u32>) -> Result<Vec<RateStep>, SeriesReason> {
        let durations_ms: Vec<u32> = match self.starts_ms.as_slice() {
            [] if self.values.is_empty() => return Err(SeriesReason::Empty),
            [] => vec![interval_ms.ok_or(SeriesReason::NoInterval)?; self.values.len()],
            starts => {
                let mut durations: Vec<u32> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
                let last = interval_ms.or(durations.last().copied()).ok_or(SeriesReason::OnlyTime)?;
                durations.push(last);
                durations
            }
        };
        let steps = durations_ms.into_iter().zip(self.values);
        Ok(steps.map(|(duration_ms, bit_per_s)| RateStep { duration_ms, bit_per_s }).collect())
    }
}

/// Two words that are no numbers.
fn is_header(line: &str) -> bool {
    let words: Vec<&str> = line.split(',').map(str::trim).collect();
    words.len() == 2
        && words.iter().all(|w| w.starts_with(|c: char| c.is_alphabetic()) && w.parse::<f64>().is_err())
}

fn at(line: Option<usize>, reason: SeriesReason) -> Error {
    Error::Series { place: InputPlace { file: None, line }, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{rates_of, trace_of};
    use proptest::prelude::*;

    fn steps(text: &str) -> Vec<(u32, u64)> {
        parse(text, Unit::Mbps, Some(100)).unwrap().iter().map(|s| (s.duration_ms, s.bit_per_s)).collect()
    }

    #[test]
    fn series_with_and_without_times_are_read() {
        assert_eq!(steps("12\n# half\n\n0.5\n"), [(100, 12_000_000), (100, 500_000)]);
        let timed = "time_s,mbps\n0,1\n0.25, 2\n1.25,0\n";
        assert_eq!(steps(timed), [(250, 1_000_000), (1000, 2_000_000), (100, 0)]);
        let last = parse(timed, Unit::Mbps, None).unwrap();
        assert_eq!(last[2].duration_ms, 1000, "as long as the one before");
        assert_eq!(parse("1000", Unit::Pps, Some(7)).unwrap()[0].bit_per_s, 12_032_000);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let refusal = |text: &str, ms| parse(text, Unit::Mbps, ms).unwrap_err().in_file("a.csv").to_string();
        assert_eq!(
            refusal("1\nx\n", Some(1)),
            "a.csv:2: expected one number, or a time in seconds and a number with a comma between, found \"x\""
        );
        assert!(refusal("1,2,3", None).starts_with("a.csv:1: expected one number"));
        assert_eq!(
            refusal("0,1\n3", None),
            "a.csv:2: expected 2 number(s) as on the lines before, found \"3\""
        );
        assert_eq!(refusal("-1", Some(1)), "a.csv:1: -1 is outside 0..=100000 mbps");
        assert!(refusal("NaN", Some(1)).starts_with("a.csv:1: NaN is outside"));
        assert!(refusal("inf", Some(1)).starts_with("a.csv:1: inf is outside"));
        assert_eq!(refusal("0,1\n0.0002,1", None), "a.csv:2: time 0 s is less than 1 ms after 0 s");
        assert!(refusal("90000,1", None).starts_with("a.csv:1: time 90000 s is outside 0..=86400 s"));
        assert_eq!(refusal("1\n2\n", None), "a.csv: one number a line needs an interval (--interval-ms)");
        assert!(refusal("0,2\n", None).starts_with("a.csv: a single time needs"));
        assert_eq!(refusal("# nothing\n", None), "a.csv: no numbers");
        assert!(refusal("1", Some(0)).starts_with("interval: 0 is outside"));
        let silent = crate::rates::trace_of(&parse("0\n0\n", Unit::Mbps, Some(5)).unwrap()).unwrap_err();
        assert!(silent.in_file("a.csv").to_string().starts_with("a.csv: the rate is 0 throughout"));
    }

    proptest! {
        #[test]
        fn there_and_back_keeps_the_rate(
            values in prop::collection::vec(0.1f64..300.0, 1..40), interval_ms in 50u32..400, times: bool, pps: bool,
        ) {
            let unit = if pps { Unit::Pps } else { Unit::Mbps };
            let text: String = values.iter().map(|v| format!("{v:.6}\n")).collect();
            let asked = parse(&text, unit, Some(interval_ms)).unwrap();
            prop_assume!(asked.iter().any(|s| s.bit_per_s > 0));
            let trace = trace_of(&asked).unwrap();
            let written = write(&rates_of(&trace, interval_ms).unwrap(), unit, times);
            let back = parse(&written, unit, Some(interval_ms)).unwrap();
            prop_assert_eq!(back.len(), asked.len());
            // To one opportunity an interval, and one more at the end.
            let one = 2 * OPPORTUNITY_BITS * 1000 / u64::from(interval_ms) + 2;
            for (a, b) in asked.iter().zip(&back) {
                prop_assert!(a.bit_per_s.abs_diff(b.bit_per_s) <= one && a.duration_ms == b.duration_ms);
            }
            let sum = |steps: &[RateStep]| steps.iter().map(|s| s.bit_per_s).sum::<u64>();
            prop_assert!(sum(&asked).abs_diff(sum(&back)) <= one + values.len() as u64);
        }
    }
}

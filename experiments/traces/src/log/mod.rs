//! Reads the logs of `mm-link`, mahimahi's and ours.
//!
//! A header of `#` lines, among them `# base timestamp: MS`, then one line an event, times in milliseconds since the link's
//! start: `T + BYTES` (arrival), `T # BYTES` (opportunity), `T - BYTES DELAY` (departure), `T d PACKETS BYTES` (drop; mahimahi
//! 0.98 itself logs none). [`LinkLog::parse`] takes nothing else.

mod figures;

pub use figures::{Bin, DelayPoint, Figures};

use crate::error::{Error, InputPlace};

pub use crate::limits::{MAX_EVENTS, MAX_LOG_MS};
pub use crate::reason::LogReason;

/// Bytes of one packet, opportunity or drop.
pub const MAX_EVENT_BYTES: u32 = 1 << 24;

const BASE_TIMESTAMP: &str = "# base timestamp: ";
const QUEUE: &str = "# queue: ";
const COMMAND_LINE: &str = "# command line: ";
/// Of a wrong line, how much is shown.
const SHOWN_CHARS: usize = 60;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A packet came to the link.
    Arrival,
    /// The link could deliver.
    Opportunity,
    /// A packet left the link, `delay_ms` after it arrived.
    Departure {
        delay_ms: u32,
    },
    Drop {
        packets: u32,
    },
}

/// A line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Milliseconds since the base timestamp.
    pub at_ms: u32,
    pub kind: Kind,
    /// To how many bytes.
    pub bytes: u32,
}

/// The events of a link's log, with its header.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkLog {
    /// The command that made the link; empty if the header does not say.
    pub command_line: String,
    /// The link's queue; empty if the header does not say.
    pub queue: String,
    /// In the order of the log, which need not be that of time.
    pub events: Vec<Event>,
}

impl LinkLog {
    /// Parses the text of a log.
    ///
    /// # Errors
    /// [`Error::Log`] with the first line that is wrong.
    pub fn parse(text: &str) -> Result<LinkLog, Error> {
        let mut log = LinkLog::default();
        let mut base_ms = None;
        for (n, line) in text.lines().enumerate() {
            log.read(line, &mut base_ms).map_err(|reason| {
                let place = InputPlace { file: None, line: Some(n + 1) };
                Error::Log { place, reason }
            })?;
        }
        Ok(log)
    }

    fn read(&mut self, line: &str, base_ms: &mut Option<u32>) -> Result<(), LogReason> {
        if !line.starts_with('#') {
            let base_ms = base_ms.ok_or_else(|| match event(line) {
                Err(error) => error,
                Ok(_) => LogReason::NoBase,
            })?;
            if self.events.len() == MAX_EVENTS {
                return Err(LogReason::TooLong);
            }
            self.events.push(since(event(line)?, base_ms)?);
        } else if let Some(base) = line.strip_prefix(BASE_TIMESTAMP) {
            let bad = || LogReason::BadBase { found: shown(line) };
            let base = number(base).filter(|ms| *ms <= u64::from(MAX_LOG_MS)).ok_or_else(bad)?;
            if base_ms.replace(base as u32).is_some() {
                return Err(LogReason::SecondBase);
            }
        } else if let Some(queue) = line.strip_prefix(QUEUE) {
            queue.clone_into(&mut self.queue);
        } else if let Some(command_line) = line.strip_prefix(COMMAND_LINE) {
            command_line.clone_into(&mut self.command_line);
        }
        Ok(())
    }
}

/// An event line, its time as written.
fn event(line: &str) -> Result<Event, LogReason> {
    let not_an_event = || LogReason::NotAnEvent { found: shown(line) };
    let mut words = line.split(' ');
    let mut word = || words.next();
    let (at_ms, kind) = (word().and_then(number).ok_or_else(not_an_event)?, word());
    let first = word().and_then(number).ok_or_else(not_an_event)?;
    let second = match kind {
        Some("-" | "d") => Some(word().and_then(number).ok_or_else(not_an_event)?),
        Some("+" | "#") => None,
        _ => return Err(not_an_event()),
    };
    if word().is_some() {
        return Err(not_an_event());
    }
    let at_ms = bounded("time", at_ms, MAX_LOG_MS)?;
    let (kind, bytes) = match (kind, second) {
        (Some("-"), Some(delay)) => {
            (Kind::Departure { delay_ms: bounded("delay", delay, MAX_LOG_MS)? }, first)
        }
        (_, Some(bytes)) => (Kind::Drop { packets: bounded("packets", first, MAX_EVENT_BYTES)? }, bytes),
        (Some("+"), None) => (Kind::Arrival, first),
        (_, None) => (Kind::Opportunity, first),
    };
    Ok(Event { at_ms, kind, bytes: bounded("bytes", bytes, MAX_EVENT_BYTES)? })
}

/// The event with its time since the base timestamp.
fn since(event: Event, base_ms: u32) -> Result<Event, LogReason> {
    let at_ms = event.at_ms;
    let Some(since_ms) = at_ms.checked_sub(base_ms) else {
        return Err(LogReason::BeforeBase { at_ms, base_ms });
    };
    match event.kind {
        Kind::Departure { delay_ms } if delay_ms > since_ms => {
            Err(LogReason::ArrivedBeforeBase { at_ms, delay_ms, base_ms })
        }
        _ => Ok(Event { at_ms: since_ms, ..event }),
    }
}

fn number(word: &str) -> Option<u64> {
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    // Only digits: a number that does not fit is reported as too large.
    digits.then(|| word.parse().unwrap_or(u64::MAX))
}

fn bounded(field: &'static str, found: u64, limit: u32) -> Result<u32, LogReason> {
    u32::try_from(found).ok().filter(|n| *n <= limit).ok_or(LogReason::TooLarge { field, found, limit })
}

fn shown(line: &str) -> String {
    line.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "# mahimahi mm-link (Uplink) [12] > up.log\n# command line: mm-link 12 12\n\
                          # queue: droptail [packets=100]\n# init timestamp: 1795259227714\n# base timestamp: 35\n";

    #[test]
    fn reads_what_mm_link_writes() {
        let log = LinkLog::parse(&format!("{HEADER}36 # 1504\n37 + 56\n38 d 2 3008\n40 - 56 3\n")).unwrap();
        assert_eq!(
            (log.queue.as_str(), log.command_line.as_str()),
            ("droptail [packets=100]", "mm-link 12 12")
        );
        let events: Vec<(u32, Kind, u32)> = log.events.iter().map(|e| (e.at_ms, e.kind, e.bytes)).collect();
        assert_eq!(
            events,
            [
                (1, Kind::Opportunity, 1504),
                (2, Kind::Arrival, 56),
                (3, Kind::Drop { packets: 2 }, 3008),
                (5, Kind::Departure { delay_ms: 3 }, 56),
            ]
        );
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let refusal = |text: &str| LinkLog::parse(&format!("{HEADER}{text}")).unwrap_err().to_string();
        for wrong in [
            "x", "", "36 +", "36 + 1 2", "36 - 56", "36 ? 56", "36  + 56", "-1 + 56", "36 + 5x", "36 d 1",
            "36 + 56 ",
        ] {
            let text = refusal(&format!("36 # 1504\n{wrong}\n"));
            assert!(text.starts_with("input:7: expected `MS + BYTES`"), "{wrong:?}: {text}");
            assert!(text.ends_with(&format!("found {wrong:?}")), "{wrong:?}: {text}");
        }
        assert_eq!(
            refusal("34 + 56\n"),
            "input:6: the event is at 34 ms, before the base timestamp of 35 ms"
        );
        assert!(
            refusal("40 - 56 6\n").starts_with("input:6: a packet that left at 40 ms, 6 ms after it arrived")
        );
        assert_eq!(refusal("9999999999 + 1\n"), "input:6: time 9999999999 is past the limit of 2592000000");
        assert_eq!(
            refusal("99999999999999999999 + 1\n"),
            format!("input:6: time {} is past the limit of 2592000000", u64::MAX)
        );
        assert!(refusal("36 + 99999999\n").contains("bytes 99999999 is past"));
        assert!(refusal("# base timestamp: 35\n").contains("input:6: a second base timestamp"));
        let text = |t: &str| LinkLog::parse(t).unwrap_err().in_file("up.log").to_string();
        assert_eq!(text("1 + 2\n"), "up.log:1: an event comes before the header's `# base timestamp: MS`");
        assert!(text("1\n").starts_with("up.log:1: expected `MS + BYTES`"), "a trace is no log");
        assert!(text("# base timestamp: x\n").starts_with("up.log:1: expected `# base timestamp: MS`"));
    }
}

//! Flows recorded from real programs, as `ccplane record` writes them.
//!
//! A recording is text, one JSON object a line: a header, the flows in order of their starts, and the counts. Hosts are
//! numbers; addresses are not kept.
//!
//! ```
//! use ccplane_netsim::workload::recorded::{Recording, Unit};
//! let text = r#"{"ccplane_recording":1,"burst_gap_us":10000,"command":"curl"}
//! {"start_us":0,"end_us":900,"app":"curl","opened":true,"host":0,"peer":1,"port":40000,"peer_port":80,"sent":90,"received":5000,"bursts":[[100,90]]}
//! {"flows":1,"open":0,"missed":0}
//! "#;
//! let recording = Recording::parse(text)?;
//! let sizes: Vec<u64> = recording.transfers(Unit::Connection).iter().map(|t| t.bytes).collect();
//! assert_eq!(sizes, [5000, 90]);
//! # Ok::<(), ccplane_netsim::workload::recorded::RecordingError>(())
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{FlowSizes, MAX_FLOW_BYTES, MAX_POINTS, PPM, Point, WorkloadError};

/// The version of the format.
pub const VERSION: u32 = 1;
/// Flows of one recording.
pub const MAX_FLOWS: usize = 1 << 20;
/// Bursts of one flow; a recorder joins later ones to the last.
pub const MAX_BURSTS: usize = 4096;
/// Hosts of one recording.
pub const MAX_HOSTS: u16 = u16::MAX;
/// Longest line, bytes.
pub const MAX_LINE_BYTES: usize = 256 << 10;
/// Longest recording, microseconds: a year.
pub const MAX_TIME_US: u64 = 365 * 86_400 * 1_000_000;
/// Longest name of an application, bytes: what the kernel keeps of a process's name.
pub const MAX_APP_BYTES: usize = 15;
/// Longest command, bytes.
pub const MAX_COMMAND_BYTES: usize = 4096;

/// The fault of a recording, with its line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A line longer than [`MAX_LINE_BYTES`].
    #[error("line {line}: {bytes} bytes, more than {MAX_LINE_BYTES}")]
    LongLine { line: usize, bytes: usize },
    /// A line that is not the object expected there.
    #[error("line {line}, column {column}: {reason}")]
    Syntax {
        line: usize,
        column: usize,
        /// The words of the JSON reader.
        reason: String,
    },
    /// Another version of the format.
    #[error("line 1: version {found}, this ccplane reads {VERSION}")]
    Version { found: u32 },
    /// A number outside its limits.
    #[error("line {line}: {field} = {found} is outside {min}..={max}")]
    Range { line: usize, field: &'static str, found: u64, min: u64, max: u64 },
    /// A text that is too long or holds other than printable ASCII characters.
    #[error("line {line}: {field} must be at most {max} printable ASCII characters")]
    Text { line: usize, field: &'static str, max: usize },
    /// The counts do not agree with the lines, or are not there.
    #[error("the recording ends after {found} flows; its last line must count them")]
    Counts { found: usize },
    /// Something follows the counts.
    #[error("line {line}: nothing may follow the counts")]
    Trailing { line: usize },
}

/// Bytes that a program wrote without a longer silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Burst(
    /// When it began, microseconds after its flow.
    pub u64,
    /// Payload, bytes.
    pub u64,
);

/// A TCP connection, as one of its ends saw it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFlow {
    /// Microseconds after the recording's start.
    pub start_us: u64,
    /// Microseconds after the recording's start.
    pub end_us: u64,
    /// The process's name; empty where it is not known.
    pub app: Arc<str>,
    /// Whether this end opened the connection.
    pub opened: bool,
    /// The end that was recorded.
    pub host: u16,
    /// The other end.
    pub peer: u16,
    pub port: u16,
    pub peer_port: u16,
    /// Payload that this end wrote, bytes.
    pub sent: u64,
    /// Payload that arrived here, bytes.
    pub received: u64,
    /// The writes of this end, in order of time.
    pub bursts: Vec<Burst>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    ccplane_recording: u32,
    burst_gap_us: u64,
    command: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    flows: u64,
    open: u64,
    missed: u64,
}

/// The flows of some programs over some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The silence that ends a burst, microseconds.
    pub burst_gap_us: u64,
    /// The command that was recorded.
    pub command: String,
    /// In order of their starts.
    pub flows: Vec<RecordedFlow>,
    /// Flows that had not ended, and are not among [`Recording::flows`].
    pub open: u64,
    /// Flows and bursts that could not be followed.
    pub missed: u64,
}

/// The part of a recording that is one transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// All that a connection carries in one direction.
    Connection,
    /// Each burst; a direction of which no end was recorded is one.
    Burst,
}

/// Bytes that one host sends to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Microseconds after the recording's start.
    pub start_us: u64,
    pub from: u16,
    pub to: u16,
    /// Whether the sender opened the connection.
    pub by_opener: bool,
    /// The port that the connection was opened to.
    pub service_port: u16,
    /// The sender's process where it is known, else the receiver's.
    pub app: Arc<str>,
    pub bytes: u64,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Recording, RecordingError> {
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let header: Header = match lines.next() {
            Some((_, line)) => object(1, line)?,
            None => return Err(RecordingError::Counts { found: 0 }),
        };
        if header.ccplane_recording != VERSION {
            return Err(RecordingError::Version { found: header.ccplane_recording });
        }
        within(1, "burst_gap_us", header.burst_gap_us, 1, MAX_TIME_US)?;
        printable(1, "command", &header.command, MAX_COMMAND_BYTES)?;
        let mut recording = Recording {
            burst_gap_us: header.burst_gap_us,
            command: header.command,
            flows: Vec::new(),
            open: 0,
            missed: 0,
        };
        while let Some((line, content)) = lines.next() {
            if content.starts_with("{\"flows\"") {
                let counts: Counts = object(line, content)?;
                if counts.flows != recording.flows.len() as u64 {
                    return Err(RecordingError::Counts { found: recording.flows.len() });
                }
                (recording.open, recording.missed) = (counts.open, counts.missed);
                return match lines.next() {
                    Some((line, _)) => Err(RecordingError::Trailing { line }),
                    None => Ok(recording),
                };
            }
            let flow: RecordedFlow = object(line, content)?;
            within(line, "flows", recording.flows.len() as u64 + 1, 1, MAX_FLOWS as u64)?;
            flow.check(line, recording.flows.last().map_or(0, |before| before.start_us))?;
            recording.flows.push(flow);
        }
        Err(RecordingError::Counts { found: recording.flows.len() })
    }

    /// Writes the recording as [`Recording::parse`] reads it.
    pub fn to_text(&self) -> String {
        let header = Header {
            ccplane_recording: VERSION,
            burst_gap_us: self.burst_gap_us,
            command: self.command.clone(),
        };
        let counts = Counts { flows: self.flows.len() as u64, open: self.open, missed: self.missed };
        let mut text = line(&header);
        self.flows.iter().for_each(|flow| text.push_str(&line(flow)));
        text.push_str(&line(&counts));
        text
    }

    /// Returns what hosts sent each other, in order of time. A connection that both ends recorded counts once.
    pub fn transfers(&self, unit: Unit) -> Vec<Transfer> {
        let twins = self.twins();
        let mut transfers = Vec::new();
        for (flow, has_twin) in self.flows.iter().zip(twins) {
            flow.sent_as(unit, &mut transfers);
            if !has_twin && flow.received > 0 {
                let received =
                    flow.transfer((flow.peer, flow.host), !flow.opened, flow.start_us, flow.received);
                transfers.push(received);
            }
        }
        transfers.sort_by_key(|t| (t.start_us, t.from, t.to, t.bytes));
        transfers
    }

    /// Returns the distribution of the sizes of transfers.
    ///
    /// # Errors
    /// [`WorkloadError::Points`] when there is no transfer.
    pub fn sizes(&self, name: &str, unit: Unit) -> Result<FlowSizes, WorkloadError> {
        let mut sizes: Vec<u64> = self.transfers(unit).iter().map(|t| t.bytes.max(1)).collect();
        sizes.sort_unstable();
        let Some(last) = sizes.len().checked_sub(1) else { return Err(WorkloadError::Points(0)) };
        let steps = sizes.len().clamp(2, MAX_POINTS) - 1;
        let point = |step: usize| Point {
            bytes: sizes[last * step / steps],
            at_most_ppm: (u64::from(PPM) * step as u64 / steps as u64) as u32,
        };
        FlowSizes::new(name, &(0..=steps).map(point).collect::<Vec<_>>())
    }

    /// For each flow, whether the recording has its other end.
    fn twins(&self) -> Vec<bool> {
        let mut opened: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, flow) in self.flows.iter().enumerate().filter(|(_, flow)| flow.opened) {
            opened.entry((flow.host, flow.port, flow.peer, flow.peer_port)).or_default().push(index);
        }
        let mut twins = vec![false; self.flows.len()];
        for (index, flow) in self.flows.iter().enumerate().filter(|(_, flow)| !flow.opened) {
            let ends = opened.get(&(flow.peer, flow.peer_port, flow.host, flow.port));
            let is_twin = |other: &&usize| {
                let end = &self.flows[**other];
                !twins[**other] && end.start_us <= flow.end_us && flow.start_us <= end.end_us
            };
            if let Some(other) = ends.and_then(|ends| ends.iter().find(is_twin)).copied() {
                twins[index] = true;
                twins[other] = true;
            }
        }
        twins
    }
}

impl RecordedFlow {
    fn check(&self, line: usize, before_us: u64) -> Result<(), RecordingError> {
        within(line, "start_us", self.start_us, before_us, MAX_TIME_US)?;
        within(line, "end_us", self.end_us, self.start_us, MAX_TIME_US)?;
        within(line, "sent", self.sent, 0, MAX_FLOW_BYTES)?;
        within(line, "received", self.received, 0, MAX_FLOW_BYTES)?;
        within(line, "bursts", self.bursts.len() as u64, 0, MAX_BURSTS as u64)?;
        printable(line, "app", &self.app, MAX_APP_BYTES)?;
        let (mut from_us, mut left) = (0, self.sent);
        for Burst(at_us, bytes) in &self.bursts {
            within(line, "bursts", *at_us, from_us, self.end_us - self.start_us)?;
            within(line, "bursts", *bytes, 1, left)?;
            (from_us, left) = (*at_us, left - bytes);
        }
        Ok(())
    }

    fn sent_as(&self, unit: Unit, to: &mut Vec<Transfer>) {
        let transfer =
            |at_us, bytes| self.transfer((self.host, self.peer), self.opened, self.start_us + at_us, bytes);
        match unit {
            Unit::Burst if !self.bursts.is_empty() => {
                to.extend(self.bursts.iter().map(|Burst(at_us, bytes)| transfer(*at_us, *bytes)));
            }
            _ if self.sent > 0 => to.push(transfer(self.bursts.first().map_or(0, |b| b.0), self.sent)),
            _ => {}
        }
    }

    fn transfer(&self, (from, to): (u16, u16), by_opener: bool, start_us: u64, bytes: u64) -> Transfer {
        let service_port = if self.opened { self.peer_port } else { self.port };
        Transfer { start_us, from, to, by_opener, service_port, app: Arc::clone(&self.app), bytes }
    }
}

fn object<'a, T: Deserialize<'a>>(line: usize, content: &'a str) -> Result<T, RecordingError> {
    if content.len() > MAX_LINE_BYTES {
        return Err(RecordingError::LongLine { line, bytes: content.len() });
    }
    serde_json::from_str(content).map_err(|error| RecordingError::Syntax {
        line,
        column: error.column(),
        reason: reason(&error.to_string()),
    })
}

/// The reason without the place, which every line of JSON gives as its first line.
fn reason(message: &str) -> String {
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

fn line(value: &impl Serialize) -> String {
    // These types have only numbers, texts and arrays, which always serialise.
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

fn within(line: usize, field: &'static str, found: u64, min: u64, max: u64) -> Result<(), RecordingError> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(RecordingError::Range { line, field, found, min, max })
}

fn printable(line: usize, field: &'static str, text: &str, max: usize) -> Result<(), RecordingError> {
    if text.len() <= max && text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
        return Ok(());
    }
    Err(RecordingError::Text { line, field, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(start_us: u64, opened: bool, ends: [(u16, u16); 2], bursts: &[(u64, u64)]) -> RecordedFlow {
        let [(host, port), (peer, peer_port)] = ends;
        RecordedFlow {
            start_us,
            end_us: start_us + 1000,
            app: if opened { "client" } else { "server" }.into(),
            opened,
            host,
            peer,
            port,
            peer_port,
            sent: bursts.iter().map(|b| b.1).sum(),
            received: 70,
            bursts: bursts.iter().map(|(at, bytes)| Burst(*at, *bytes)).collect(),
        }
    }

    fn recording(flows: Vec<RecordedFlow>) -> Recording {
        Recording { burst_gap_us: 100, command: "a b".into(), flows, open: 1, missed: 2 }
    }

    #[test]
    fn what_is_written_is_read() {
        let both = recording(vec![
            flow(5, true, [(0, 4000), (1, 80)], &[(1, 10), (500, 20)]),
            flow(6, false, [(1, 80), (0, 4000)], &[(400, 70)]),
        ]);
        assert_eq!(Recording::parse(&both.to_text()), Ok(both));
    }

    #[test]
    fn a_connection_that_both_ends_recorded_counts_once() {
        let ends = [(0, 4000), (1, 80)];
        let both = recording(vec![
            flow(5, true, ends, &[(1, 10), (500, 20)]),
            flow(6, false, [ends[1], ends[0]], &[(400, 70)]),
            // The port again, later, and this time only one end.
            flow(9000, true, ends, &[(3, 30)]),
        ]);
        let seen = |unit| {
            let of = |t: &Transfer| (t.start_us, t.from, t.to, t.bytes);
            both.transfers(unit).iter().map(of).collect::<Vec<_>>()
        };
        let later = [(9000, 1, 0, 70), (9003, 0, 1, 30)];
        assert_eq!(seen(Unit::Connection), [&[(6, 0, 1, 30), (406, 1, 0, 70)], &later[..]].concat());
        let bursts = [(6, 0, 1, 10), (406, 1, 0, 70), (505, 0, 1, 20)];
        assert_eq!(seen(Unit::Burst), [&bursts[..], &later].concat());
        assert!(
            both.transfers(Unit::Burst).iter().all(|t| t.service_port == 80 && t.by_opener == (t.from == 0))
        );
    }

    #[test]
    fn sizes_follow_the_transfers() {
        let flows = (1..=9u64).map(|n| flow(n, true, [(0, n as u16), (1, 80)], &[(0, n * 100)]));
        let mut recording = recording(flows.collect());
        recording.flows.iter_mut().for_each(|flow| flow.received = 0);
        let sizes = recording.sizes("x", Unit::Connection).unwrap();
        assert_eq!((sizes.quantile(0), sizes.quantile(1 << 31), sizes.quantile(u32::MAX)), (100, 500, 899));
        assert_eq!(
            Recording { flows: vec![], ..recording }.sizes("x", Unit::Burst),
            Err(WorkloadError::Points(0))
        );
    }

    #[test]
    fn refusals_name_the_line_and_the_limit() {
        let good = recording(vec![flow(5, true, [(0, 4000), (1, 80)], &[(1, 10)])]).to_text();
        let refusal = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            Recording::parse(&good.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert_eq!(refusal("recording\":1", "recording\":2"), "line 1: version 2, this ccplane reads 1");
        assert_eq!(refusal("\"sent\":10", "\"sent\":9"), "line 2: bursts = 10 is outside 1..=9");
        assert_eq!(
            refusal("\"end_us\":1005", "\"end_us\":4"),
            format!("line 2: end_us = 4 is outside 5..={MAX_TIME_US}")
        );
        assert_eq!(refusal("client", "a\\nb"), "line 2: app must be at most 15 printable ASCII characters");
        assert_eq!(
            refusal("\"flows\":1", "\"flows\":3"),
            "the recording ends after 1 flows; its last line must count them"
        );
        assert!(refusal("\"host\":0", "\"host\":65536").starts_with("line 2, column "));
        assert!(refusal("\"host\"", "\"hots\"").contains("unknown field `hots`"));
        assert_eq!(
            Recording::parse(&format!("{good}{{}}")).unwrap_err(),
            RecordingError::Trailing { line: 4 }
        );
        assert_eq!(Recording::parse(""), Err(RecordingError::Counts { found: 0 }));
        let long = "x".repeat(MAX_LINE_BYTES + 1);
        assert_eq!(
            Recording::parse(&long),
            Err(RecordingError::LongLine { line: 1, bytes: MAX_LINE_BYTES + 1 })
        );
    }
}

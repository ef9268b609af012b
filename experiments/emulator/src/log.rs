//! Logs in mahimahi's format, which `mm-throughput-graph` and `mm-delay-graph` read.
//!
//! A header of `#` lines, then one line an event, times in milliseconds since the link's start: `T + size` (arrival), `T # 1504`
//! (opportunity), `T - size delay` (departure), `T d packets bytes` (drop; one line for all those of one moment's cause). Losses and the
//! policer come before the link and show in no line. What CoDel drops shows here, where mahimahi writes drops at arrivals only.

use std::io::{self, Write};

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use crate::event::Event;

const NS_PER_MS: u64 = 1_000_000;

/// The contents of a log's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// The direction's name, `Uplink` or `Downlink`.
    pub link: &'a str,
    /// The source of the opportunities.
    pub trace: String,
    /// The file that the log goes to.
    pub log: String,
    /// The command that made the link.
    pub command_line: &'a str,
    /// The queue, as [`crate::Queue`] prints it.
    pub queue: String,
    /// The link's start, milliseconds since 1970.
    pub init_timestamp_ms: u64,
    /// First opportunity's origin, milliseconds since the link's start.
    pub base_timestamp_ms: u64,
    /// The shells that the link is in; empty: none.
    pub shell_prefix: &'a str,
}

/// Writes events as lines. An error ends the log; [`LogWriter::finish`] reports it.
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    to: W,
    failed: Option<io::Error>,
    /// Drops with no other event in between: when, packets, bytes.
    drops: Option<(u64, u64, u64)>,
}

impl<W: Write> LogWriter<W> {
    /// Starts a log with its header.
    ///
    /// # Errors
    /// What the writer says.
    pub fn new(mut to: W, header: &Header<'_>) -> io::Result<LogWriter<W>> {
        writeln!(to, "# mahimahi mm-link ({}) [{}] > {}", header.link, header.trace, header.log)?;
        writeln!(to, "# command line: {}", header.command_line)?;
        writeln!(to, "# queue: {}", header.queue)?;
        writeln!(to, "# init timestamp: {}", header.init_timestamp_ms)?;
        writeln!(to, "# base timestamp: {}", header.base_timestamp_ms)?;
        if !header.shell_prefix.is_empty() {
            writeln!(to, "# mahimahi config: {}", header.shell_prefix)?;
        }
        Ok(LogWriter { to, failed: None, drops: None })
    }

    /// Writes a line that readers skip.
    pub fn comment(&mut self, text: std::fmt::Arguments<'_>) {
        self.write_drops();
        self.keep(|to| writeln!(to, "# {text}"));
    }

    /// Writes an event's line.
    pub fn event<H>(&mut self, event: &Event<H>) {
        if let Event::Drop { at_ns, packet } = event {
            let (_, packets, bytes) = self.drops.unwrap_or_default();
            self.drops = Some((ms(*at_ns), packets + 1, bytes + u64::from(packet.size)));
            return;
        }
        self.write_drops();
        self.keep(|to| match event {
            Event::Loss { .. } | Event::Policed { .. } | Event::Drop { .. } => Ok(()),
            Event::Arrival { at_ns, size } => writeln!(to, "{} + {size}", ms(*at_ns)),
            Event::Opportunity { at_ns } => writeln!(to, "{} # {OPPORTUNITY_BYTES}", ms(*at_ns)),
            Event::Departure { at_ns, packet } => {
                // mahimahi subtracts the two rounded times, so that departure minus delay is the line of the arrival.
                let delay_ms = ms(*at_ns) - ms(packet.arrived_ns);
                writeln!(to, "{} - {} {delay_ms}", ms(*at_ns), packet.size)
            }
        });
    }

    fn write_drops(&mut self) {
        if let Some((ms, packets, bytes)) = self.drops.take() {
            self.keep(|to| writeln!(to, "{ms} d {packets} {bytes}"));
        }
    }

    /// Flushes the log and returns its writer.
    ///
    /// # Errors
    /// The first error of all writes.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_drops();
        self.keep(Write::flush);
        self.failed.map_or(Ok(self.to), Err)
    }

    fn keep(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.to).err();
        }
    }
}

fn ms(ns: u64) -> u64 {
    ns / NS_PER_MS
}

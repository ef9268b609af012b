//! Logs in mahimahi's format, which `mm-throughput-graph` and `mm-delay-graph` read.
//!
//! A header of `#` lines, then one line an event, times in milliseconds since the link's start: `T + size` (arrival), `T # 1504`
//! (opportunity), `T - size delay` (departure), `T d packets bytes` (drop). Random losses happen before the link and show in no line.

use std::io::{self, Write};

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use crate::path::Event;

const NS_PER_MS: u64 = 1_000_000;

/// What a log's header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// `Uplink` or `Downlink`.
    pub link: &'a str,
    /// Where the opportunities come from.
    pub trace: String,
    /// Where the log goes.
    pub log: String,
    /// What made the link.
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
}

impl<W: Write> LogWriter<W> {
    /// Writes the header.
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
        Ok(LogWriter { to, failed: None })
    }

    /// Writes a line that readers skip.
    pub fn comment(&mut self, text: std::fmt::Arguments<'_>) {
        self.keep(|to| writeln!(to, "# {text}"));
    }

    /// Writes an event's line.
    pub fn event<H>(&mut self, event: &Event<H>) {
        self.keep(|to| match event {
            Event::Loss { .. } => Ok(()),
            Event::Arrival { at_ns, size } => writeln!(to, "{} + {size}", ms(*at_ns)),
            Event::Opportunity { at_ns } => writeln!(to, "{} # {OPPORTUNITY_BYTES}", ms(*at_ns)),
            Event::Drop { at_ns, packet } => writeln!(to, "{} d 1 {}", ms(*at_ns), packet.size),
            Event::Departure { at_ns, packet } => {
                // mahimahi subtracts the two rounded times, so that departure minus delay is the line of the arrival.
                let delay_ms = ms(*at_ns) - ms(packet.arrived_ns);
                writeln!(to, "{} - {} {delay_ms}", ms(*at_ns), packet.size)
            }
        });
    }

    /// Flushes.
    ///
    /// # Errors
    /// The first error of all writes.
    pub fn finish(mut self) -> io::Result<W> {
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

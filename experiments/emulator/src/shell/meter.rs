//! mahimahi's meters, as lines on standard error in place of a window.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::link::StatsReader;
use crate::stats::{DirectionStats, LinkStats};

/// Between lines; mahimahi's windows average over as long.
const PERIOD: Duration = Duration::from_millis(500);

/// The meters that run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meters {
    /// `--meter-uplink`: capacity, arrivals and departures, Mb/s.
    pub uplink: bool,
    /// `--meter-uplink-delay`: queueing delay, ms.
    pub uplink_delay: bool,
    pub downlink: bool,
    pub downlink_delay: bool,
}

impl Meters {
    /// The meters of `--meter-all`.
    pub const ALL: Meters = Meters { uplink: true, uplink_delay: true, downlink: true, downlink_delay: true };

    fn line(self, before: &LinkStats, now: &LinkStats) -> String {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let mut line = format!("{:8.1} s", now.at_ns as f64 / 1e9);
        let mut direction = |name, rate: bool, delay: bool, before: &DirectionStats, now: &DirectionStats| {
            let window = now.since(before);
            if rate {
                let mbit = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8e-6 / seconds } else { 0.0 };
                let [out, of, into] =
                    [window.delivered_bytes, window.capacity_bytes(), window.arrived_bytes].map(mbit);
                // Writing to a String cannot fail.
                let _ = write!(line, "  {name} {out:.2} of {of:.2} Mb/s, {into:.2} arriving");
            }
            if delay {
                let max_us = window.queueing_delay.percentile(1.0);
                let text = max_us.map_or("-".to_owned(), |us| format!("{:.1}", us as f64 / 1e3));
                let _ = write!(line, "  {name} delay {text} ms");
            }
        };
        direction("uplink", self.uplink, self.uplink_delay, &before.up, &now.up);
        direction("downlink", self.downlink, self.downlink_delay, &before.down, &now.down);
        line
    }
}

/// A running meter; dropping it stops it.
#[derive(Debug)]
pub(super) struct Meter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Meter {
    /// Starts one, unless no meter is asked for.
    pub(super) fn start(meters: Meters, stats: StatsReader) -> Result<Option<Meter>> {
        if meters == Meters::default() {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let draw = move || {
            let mut before = stats.read();
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let now = stats.read();
                // A standard error that is closed is no reason to end the link.
                let _ = writeln!(std::io::stderr(), "{}", meters.line(&before, &now));
                before = now;
            }
        };
        let thread =
            std::thread::Builder::new().name("ccp-meter".into()).spawn(draw).map_err(Error::Thread)?;
        Ok(Some(Meter { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only prints.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_asked_for() {
        let mut now = LinkStats { at_ns: 2_000_000_000, ..LinkStats::default() };
        now.up.delivered_bytes = 150_000;
        now.up.arrived_bytes = 300_000;
        now.up.opportunities = 1_000;
        now.down.queueing_delay.record(12_000);
        let before = LinkStats { at_ns: 1_000_000_000, ..LinkStats::default() };
        let meters = Meters { uplink: true, downlink_delay: true, ..Meters::default() };
        assert_eq!(
            meters.line(&before, &now),
            "     2.0 s  uplink 1.20 of 12.03 Mb/s, 2.40 arriving  downlink delay 12.0 ms"
        );
        let uplink = Meters { uplink_delay: true, ..Meters::default() };
        assert_eq!(uplink.line(&before, &now), "     2.0 s  uplink delay - ms");
    }
}

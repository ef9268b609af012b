//! Service by a trace: a link that delivers by opportunities, as mahimahi's does.

use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Schedule, Trace};

const NS_PER_MS: u64 = 1_000_000;

/// A server that follows a trace, over and over.
#[derive(Debug)]
pub(crate) struct Opportunities {
    /// The opportunities to come.
    schedule: Schedule,
    /// The time of the one in use, nanoseconds, and the bytes that it can still carry.
    at_ns: u64,
    left_bytes: u32,
}

impl Opportunities {
    pub(crate) fn new(trace: &Trace) -> Opportunities {
        Opportunities { schedule: trace.schedule(true), at_ns: 0, left_bytes: 0 }
    }

    /// Returns the time at which a packet has left that comes now, nanoseconds; calls come in order of time.
    pub(crate) fn serve(&mut self, now_ns: u64, bytes: u32) -> u64 {
        if now_ns >= self.at_ns {
            // The link was idle: what it did not use is lost.
            self.schedule.seek(now_ns / NS_PER_MS + 1);
            self.left_bytes = 0;
        }
        let mut work_bytes = bytes;
        while work_bytes > self.left_bytes {
            work_bytes -= self.left_bytes;
            // A trace that repeats has a next one.
            let at_ms = self.schedule.next().unwrap_or(u64::MAX / NS_PER_MS);
            (self.at_ns, self.left_bytes) = (at_ms * NS_PER_MS, OPPORTUNITY_BYTES);
        }
        self.left_bytes -= work_bytes;
        self.at_ns
    }
}

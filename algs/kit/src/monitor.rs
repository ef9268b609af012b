//! The invariants that hold after each ACK.

use crate::violation::{Bounds, Violation};
use ccplane_program::ir::{INFINITY, Prim};
use ccplane_program::vm;

/// Whether the program reports on this ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reported {
    Now,
    /// A report is not due on this ACK.
    NotYet,
    /// A report is not due on this ACK. The program asks a policy: its reports are rows of intervals, of which there
    /// are none where the application limited them.
    NoRow,
}

/// Checks the invariants of one flow.
pub(crate) struct Monitor {
    bounds: Bounds,
    /// The smallest segment so far, bytes.
    min_mss_bytes: i64,
    max_mss_bytes: i64,
    faults: u64,
    acked_us: Option<u64>,
    /// The time since which a report has been due in the end: the last one, or the first ACK.
    reported_us: Option<u64>,
    max_rtt_us: u64,
}

impl Monitor {
    pub(crate) fn new(bounds: &Bounds, mss_bytes: u16) -> Monitor {
        Monitor {
            bounds: bounds.clone(),
            min_mss_bytes: mss_bytes.into(),
            max_mss_bytes: mss_bytes.into(),
            faults: 0,
            acked_us: None,
            reported_us: None,
            max_rtt_us: 0,
        }
    }

    pub(crate) fn mss_bytes(&mut self, mss_bytes: u16) {
        self.min_mss_bytes = self.min_mss_bytes.min(mss_bytes.into());
        self.max_mss_bytes = self.max_mss_bytes.max(mss_bytes.into());
    }

    /// Checks the invariants after the program has run on an ACK.
    pub(crate) fn after(
        &mut self,
        operation: usize,
        at_us: u64,
        prims: &vm::Prims,
        flow: &vm::ProgramState,
        reported: Reported,
    ) -> Result<(), Violation> {
        let (cwnd_bytes, rate) = (flow.cwnd_bytes, flow.rate_bytes_per_s);
        let (min, max) = (self.min_mss_bytes, self.bounds.max_cwnd_bytes);
        if !(min..=max).contains(&cwnd_bytes) {
            return Err(Violation::Window { operation, at_us, cwnd_bytes, min, max });
        }
        let (min, max) = (self.bounds.min_rate_bytes_per_s, self.bounds.max_rate_bytes_per_s);
        if rate != 0 && !(min..=max).contains(&rate) {
            return Err(Violation::Rate { operation, at_us, rate_bytes_per_s: rate, min, max });
        }
        if flow.faults != self.faults {
            return Err(Violation::Fault { operation, at_us, faults: flow.faults - self.faults });
        }
        let rtt_us = prims.get(Prim::FlowRttSampleUs);
        if rtt_us != INFINITY {
            self.max_rtt_us = self.max_rtt_us.max(rtt_us as u64);
        }
        let silent_us = at_us - *self.reported_us.get_or_insert(at_us);
        // An interval that the application limited in a part is no row: the next one is.
        let intervals = if reported == Reported::NoRow { 2 } else { 1 };
        let limit_us = intervals * (self.bounds.report_us + 2 * self.max_rtt_us);
        let unsent_bytes = prims.get(Prim::FlowBytesPending) - prims.get(Prim::FlowBytesInFlight);
        let paused = at_us - self.acked_us.replace(at_us).unwrap_or(at_us) > self.bounds.report_us;
        // Intervals are measured in round trips: none begins before one is known.
        let limited = paused || self.max_rtt_us == 0 || unsent_bytes < self.max_mss_bytes;
        if reported == Reported::Now || (reported == Reported::NoRow && limited) {
            self.reported_us = Some(at_us);
        } else if silent_us > limit_us {
            return Err(Violation::Silent { operation, at_us, silent_us, limit_us });
        }
        Ok(())
    }
}

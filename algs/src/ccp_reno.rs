//! Reno the way CCP has it (SIGCOMM'18, section 2): the datapath only measures, the agent decides the window on
//! each report. Here to be compared with: every decision waits for the agent.

use crate::parameters::{DEFAULT_REPORT_US, MAX_WINDOW_BYTES, REPORT_US, report_us};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, Report};
use std::sync::Arc;

// State

/// The window of one flow, decided here.
struct CcpRenoFlow {
    mss_bytes: u64,
    cwnd_bytes: u64,
    ssthresh_bytes: u64,
    /// Bytes acknowledged in congestion avoidance that have not grown the window yet.
    credit_bytes: u64,
    /// Bytes still to be acknowledged of what was outstanding at the last decrease.
    recovery_bytes: u64,
    /// The last decrease was a timeout's, after which slow start goes on at once.
    timed_out: bool,
}

/// Segments outstanding beyond the window when a loss is found: the lost one and the three duplicate ACKs that tell of it.
const BEYOND_WINDOW_SEGMENTS: u64 = 4;

// Behaviour

impl CcpRenoFlow {
    fn grow(&mut self, acked_bytes: u64) {
        if self.cwnd_bytes < self.ssthresh_bytes {
            // RFC 5681 section 3.1, slow start.
            self.cwnd_bytes = (self.cwnd_bytes + acked_bytes).min(self.ssthresh_bytes);
            return;
        }
        // Section 3.1, congestion avoidance: a segment per window acknowledged.
        self.credit_bytes += acked_bytes;
        while self.credit_bytes >= self.cwnd_bytes {
            self.credit_bytes -= self.cwnd_bytes;
            self.cwnd_bytes += self.mss_bytes;
        }
    }

    /// Lowers the window once for each window of data (RFC 5681 section 3.2): later losses of what was outstanding change nothing.
    fn decrease(&mut self, timeout: bool) {
        self.recovery_bytes = self.cwnd_bytes + BEYOND_WINDOW_SEGMENTS * self.mss_bytes;
        self.timed_out = timeout;
        // Section 3.1, equation 4.
        self.ssthresh_bytes = (self.cwnd_bytes / 2).max(2 * self.mss_bytes);
        self.cwnd_bytes = if timeout { self.mss_bytes } else { self.ssthresh_bytes };
        self.credit_bytes = 0;
    }
}

impl Flow for CcpRenoFlow {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name| report.get(name).unwrap_or(0).max(0) as u64;
        let (acked_bytes, timeout) = (get("acked"), get("timeout") != 0);
        let beyond_bytes = acked_bytes.saturating_sub(self.recovery_bytes);
        self.recovery_bytes = self.recovery_bytes.saturating_sub(acked_bytes);
        if timeout || get("lost") > 0 && self.recovery_bytes == 0 {
            self.decrease(timeout);
        } else {
            self.grow(if self.timed_out { acked_bytes } else { beyond_bytes });
        }
        self.cwnd_bytes = self.cwnd_bytes.min(MAX_WINDOW_BYTES);
        control.update(&[("Cwnd", self.cwnd_bytes as i64)]);
    }
}

// Config

/// The parameters of CCP's Reno.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CcpRenoConfig {
    /// Time between two reports, microseconds; 0 for one at each ACK. Loss is reported at once.
    pub report_us: u32,
}

// Defaults

impl Default for CcpRenoConfig {
    fn default() -> Self {
        CcpRenoConfig { report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes flows that the agent steers report by report.
#[derive(Clone, Default, Debug)]
pub struct CcpReno {
    pub config: CcpRenoConfig,
}

impl Algorithm for CcpReno {
    ccplane_alg::one_program!("ccp-reno", "ccp_reno.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("ccp-reno", &[("report_us", i64::from(self.config.report_us))]);
        let mss_bytes = u64::from(info.mss_bytes.max(1));
        Box::new(CcpRenoFlow {
            mss_bytes,
            cwnd_bytes: info.init_cwnd_bytes.max(mss_bytes),
            ssthresh_bytes: MAX_WINDOW_BYTES,
            credit_bytes: 0,
            recovery_bytes: 0,
            timed_out: false,
        })
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[REPORT_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(CcpReno { config: CcpRenoConfig { report_us: report_us(values) } }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, MSS, assert_stock_limits, window_set};

    fn flow() -> (Box<dyn Flow>, Control) {
        let mut control = Control::default();
        let flow = CcpReno::default().flow(&FlowInfo::example(1000, 10_000), &mut control);
        control.clear();
        (flow, control)
    }

    fn report(flow: &mut dyn Flow, control: &mut Control, now_us: u64, values: [i64; 3]) -> i64 {
        let names = ["acked", "lost", "timeout"].map(String::from);
        flow.on_report(
            now_us,
            &Report { program: "ccp-reno", names: &names, values: &values, truth: None },
            control,
        );
        window_set(control)
    }

    #[test]
    fn reports_as_often_as_asked() {
        let algorithm: Arc<dyn Algorithm> = Arc::new(CcpReno::default());
        let often = ccplane_alg::configure(&algorithm, [("report_us", 0)]).unwrap();
        assert_eq!(Bench::new(&*often, MSS as u32, MSS).reg("report_us"), 0);
    }

    #[test]
    fn keeps_within_stock_ccp() {
        assert_stock_limits(&Bench::new(&CcpReno::default(), MSS as u32, 10 * MSS).program);
    }

    #[test]
    fn grows_by_what_was_acknowledged_then_by_a_segment_a_window() {
        let (mut flow, mut control) = flow();
        assert_eq!(report(&mut *flow, &mut control, 1, [10_000, 0, 0]), 20_000);
        assert_eq!(report(&mut *flow, &mut control, 2, [0, 1, 0]), 10_000);
        // The same window of data, and what was sent on its duplicate ACKs: no second decrease, no growth.
        assert_eq!(report(&mut *flow, &mut control, 3, [23_999, 2, 0]), 10_000);
        assert_eq!(report(&mut *flow, &mut control, 4, [1, 0, 0]), 10_000);
        assert_eq!(report(&mut *flow, &mut control, 5, [9_999, 0, 0]), 10_000);
        assert_eq!(report(&mut *flow, &mut control, 6, [1, 0, 0]), 11_000);
        assert_eq!(report(&mut *flow, &mut control, 7, [0, 1, 0]), 5500);
    }

    #[test]
    fn a_timeout_starts_over() {
        let (mut flow, mut control) = flow();
        assert_eq!(report(&mut *flow, &mut control, 1, [0, 8, 1]), 1000);
        assert_eq!(report(&mut *flow, &mut control, 2, [1000, 0, 0]), 2000);
        // Of the window that the timer took for lost: slow start goes on.
        assert_eq!(report(&mut *flow, &mut control, 3, [1000, 1, 0]), 3000);
    }
}

//! Constant: one window, one pacing rate, and no reaction to anything.
//!
//! Not a congestion control: a source of inelastic cross traffic, and a probe for links and datapaths. Neither loss
//! nor a mark nor a timeout changes what it wants; what a datapath holds back on its own while losses are repaired,
//! it still holds back. Do not run it on a network that others use.
//!
//! It keeps within stock CCP's language and limits, so it also runs on libccp.

use crate::{DEFAULT_REPORT_US, MAX_MSS_BYTES, MAX_WINDOW_BYTES, REPORT_US};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, ProgramSource, Report};
use std::sync::Arc;

/// Largest rate, bytes per second: what 32 bits hold, as stock CCP cuts it.
const MAX_RATE_BYTES_PER_S: u64 = u32::MAX as u64;
/// Largest window, packets.
const MAX_CWND_PACKETS: u64 = 1 << 20;

// State

/// The agent's side of a constant flow. There is nothing to decide.
struct ConstantFlow;

// Behaviour

impl Flow for ConstantFlow {
    /// Reports are for those who watch: `acked`, `lost`, `timeouts`, `rtt_us`, `cwnd` and `rate`.
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

// Config

/// What can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConstantConfig {
    /// Pacing rate, bytes of payload per second, at most 2^32 - 1; 0 for none: the window alone limits the flow.
    pub rate_bytes_per_s: u64,
    /// Window, packets, at most 2^20; 0 for one that never limits the flow ([`MAX_WINDOW_BYTES`]), or, where no rate
    /// is set either, for the window that the flow starts with.
    pub cwnd_packets: u64,
    /// Least time between two reports of a flow, microseconds.
    pub report_us: u32,
}

impl ConstantConfig {
    /// The window, bytes.
    fn cwnd_bytes(&self, info: &FlowInfo) -> u64 {
        let mss_bytes = u64::from(info.mss_bytes.clamp(1, MAX_MSS_BYTES));
        let bytes = match (self.cwnd_packets, self.rate_bytes_per_s) {
            (0, 0) => info.init_cwnd_bytes,
            (0, _) => MAX_WINDOW_BYTES,
            (packets, _) => packets.min(MAX_CWND_PACKETS) * mss_bytes,
        };
        bytes.clamp(mss_bytes, MAX_WINDOW_BYTES)
    }
}

// Defaults

impl Default for ConstantConfig {
    /// 10 Mb/s.
    fn default() -> Self {
        ConstantConfig { rate_bytes_per_s: 1_250_000, cwnd_packets: 0, report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes flows that never change.
#[derive(Clone, Default, Debug)]
pub struct Constant {
    /// For every flow that starts.
    pub config: ConstantConfig,
}

impl Algorithm for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "constant", source: include_str!("constant.fold") }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let config = &self.config;
        let cwnd_bytes = config.cwnd_bytes(info) as i64;
        let rate = config.rate_bytes_per_s.min(MAX_RATE_BYTES_PER_S) as i64;
        let report_us = i64::from(config.report_us);
        control.set_program(
            "constant",
            &[("fixed_cwnd", cwnd_bytes), ("fixed_rate", rate), ("report_us", report_us)],
        );
        Box::new(ConstantFlow)
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[
            Parameter {
                name: "rate_bytes_per_s",
                about: "pacing rate; 0 for none",
                default: 1_250_000,
                min: 0,
                max: MAX_RATE_BYTES_PER_S as i64,
            },
            Parameter {
                name: "cwnd_packets",
                about: "window; 0 for one that does not limit the rate",
                default: 0,
                min: 0,
                max: MAX_CWND_PACKETS as i64,
            },
            REPORT_US,
        ]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut config = ConstantConfig::default();
        for (name, value) in values {
            match *name {
                "rate_bytes_per_s" => config.rate_bytes_per_s = u64::try_from(*value).unwrap_or(0),
                "cwnd_packets" => config.cwnd_packets = u64::try_from(*value).unwrap_or(0),
                "report_us" => config.report_us = u32::try_from(*value).unwrap_or(DEFAULT_REPORT_US),
                _ => {}
            }
        }
        Some(Arc::new(Constant { config }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ack, Bench, MSS, assert_stock_limits};
    use ccplane_alg::{ParameterError, configure};
    use proptest::prelude::*;

    fn start(rate_bytes_per_s: u64, cwnd_packets: u64) -> Bench {
        let config = ConstantConfig { rate_bytes_per_s, cwnd_packets, ..ConstantConfig::default() };
        Bench::new(&Constant { config }, MSS as u32, 10 * MSS)
    }

    #[test]
    fn keeps_within_stock_ccp() {
        assert_stock_limits(&start(1, 1).program);
    }

    #[test]
    fn what_is_left_out_does_not_limit() {
        for (rate, cwnd_packets, bytes) in
            [(0, 50, 50 * MSS), (1_000_000, 50, 50 * MSS), (1_000_000, 0, 1 << 30), (0, 0, 10 * MSS)]
        {
            let mut bench = start(rate, cwnd_packets);
            bench.round(40_000);
            assert_eq!((bench.rate(), bench.cwnd()), (rate as i64, bytes), "{rate} {cwnd_packets}");
        }
    }

    #[test]
    fn plans_set_it_by_name() {
        let constant: Arc<dyn Algorithm> = Arc::new(Constant::default());
        let set = configure(&constant, [("rate_bytes_per_s", 3_000_000), ("cwnd_packets", 7)]).unwrap();
        let mut bench = Bench::new(&*set, MSS as u32, 10 * MSS);
        bench.round(40_000);
        assert_eq!((bench.rate(), bench.cwnd()), (3_000_000, 7 * MSS));
        let refused = configure(&constant, [("cwnd_packets", -1)]).map(|a| a.name());
        assert!(matches!(refused, Err(ParameterError::OutOfRange { found: -1, .. })), "{refused:?}");
        for parameter in constant.parameters() {
            let set = configure(&constant, [(parameter.name, parameter.default)]).unwrap();
            assert_eq!(set.name(), "constant");
        }
    }

    proptest! {
        #[test]
        fn nothing_changes_it(
            lost in 0..1000i64, ecn in 0..1000i64, timeout: bool, rtt_us in 0..10_000_000i64, bytes in 0..1i64 << 30,
        ) {
            let mut bench = start(5_000_000, 0);
            bench.ack(1000, Ack { bytes, lost, ecn, timeout, rtt_us, in_flight: bytes });
            prop_assert_eq!((bench.rate(), bench.cwnd()), (5_000_000, 1 << 30));
        }
    }
}

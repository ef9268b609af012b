//! Constant: one window, one pacing rate, and no reaction to anything.
//!
//! Not a congestion control: a source of inelastic cross traffic, and a probe for links and datapaths. Neither loss nor
//! a mark nor a timeout changes what it wants; what a datapath holds back on its own while losses are repaired, it
//! still holds back. Do not run it on a network that others use. Without a window it sends on while nothing arrives.
//! After a blackout of seconds its receiver may lack the memory to wait for what was lost: the flow then crawls.
//!
//! It reports `acked`, `lost`, `timeouts`, `rtt_us`, `cwnd` and `rate`.
//!
//! It keeps within stock CCP's language and limits, so it also runs on libccp.

use crate::parameters::{MAX_MSS_BYTES, MAX_WINDOW_BYTES, REPORT, REPORT_US};
use ccplane_alg::{FoldAlgorithm, Parameter, Start, field};

/// The pacing rate, payload bytes per second: 10 Mb/s unless set, at most what 32 bits hold, as stock CCP cuts it.
const RATE: Parameter = Parameter {
    name: "rate_bytes_per_s",
    about: "pacing rate; 0 for none",
    default: 1_250_000,
    min: 0,
    max: u32::MAX as i64,
};
const CWND: Parameter = Parameter {
    name: "cwnd_packets",
    about: "window; 0 for one that does not limit the rate",
    default: 0,
    min: 0,
    max: 1 << 20,
};

/// Constant, at 10 Mb/s and without a limiting window.
pub const CONSTANT: FoldAlgorithm = FoldAlgorithm {
    name: "constant",
    source: include_str!("constant.fold"),
    parameters: &[RATE, CWND, REPORT_US],
    registers: &[("fixed_cwnd", fixed_cwnd), ("fixed_rate", |start| start.value(&RATE)), REPORT],
    resumed: &[("Cwnd", |info, from| field(from.window_bytes(info.mss_bytes)))],
};

/// Returns the window, bytes; with neither window nor rate set, the one that the flow starts with.
fn fixed_cwnd(start: &Start<'_>) -> i64 {
    let mss_bytes = i64::from(start.info.mss_bytes.clamp(1, MAX_MSS_BYTES));
    let bytes = match (start.value(&CWND), start.value(&RATE)) {
        (0, 0) => field(start.info.init_cwnd_bytes),
        (0, _) => MAX_WINDOW_BYTES as i64,
        (packets, _) => packets * mss_bytes,
    };
    bytes.clamp(mss_bytes, MAX_WINDOW_BYTES as i64)
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, MSS};

    fn start(rate_bytes_per_s: i64, cwnd_packets: i64) -> Bench {
        let values = [("rate_bytes_per_s", rate_bytes_per_s), ("cwnd_packets", cwnd_packets)];
        Bench::configured(CONSTANT, &values, MSS as u32, 10 * MSS)
    }

    #[test]
    fn what_is_left_out_does_not_limit() {
        for (rate, cwnd_packets, bytes) in
            [(0, 50, 50 * MSS), (1_000_000, 50, 50 * MSS), (1_000_000, 0, 1 << 30), (0, 0, 10 * MSS)]
        {
            let mut bench = start(rate, cwnd_packets);
            bench.round(40_000);
            assert_eq!((bench.rate(), bench.cwnd()), (rate, bytes), "{rate} {cwnd_packets}");
        }
    }
}

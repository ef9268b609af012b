//! What the links could have carried, for the report.

use ccplane_emulator::Shape;
use ccplane_report::Capacity;

use super::config::DemoConfig;

/// A trace's opportunities are counted in bins of this length.
const BIN_MS: u64 = 250;
/// Bits of one opportunity, as mahimahi counts them: 1500 bytes of IP packet and 4 of the device's header.
const OPPORTUNITY_BITS: u64 = 1504 * 8;

/// Capacity on the report's time axis; empty if any phase has no limit.
pub fn capacity(config: &DemoConfig) -> Vec<Capacity> {
    let mut steps = Vec::new();
    for (plan, phase) in config.phases.iter().zip(config.phase_times()) {
        match &plan.shape {
            Shape::Unlimited => return Vec::new(),
            Shape::Rate { bit_per_s } => steps.push(Capacity { t_ms: phase.t0_ms, capacity_bps: *bit_per_s }),
            Shape::Trace { trace, repeat, .. } => {
                let mut opportunities = trace.schedule(*repeat).peekable();
                for t_ms in (phase.t0_ms..phase.t1_ms).step_by(BIN_MS as usize) {
                    let bin_ms = BIN_MS.min(phase.t1_ms - t_ms);
                    let end_ms = t_ms + bin_ms - phase.t0_ms;
                    let mut count = 0;
                    while opportunities.next_if(|at_ms| *at_ms < end_ms).is_some() {
                        count += 1;
                    }
                    steps.push(Capacity { t_ms, capacity_bps: count * OPPORTUNITY_BITS * 1000 / bin_ms });
                }
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use ccplane_netsim::trace::Trace;

    #[test]
    fn rates_and_traces_in_order() {
        // One opportunity at 100 ms, three at 400 ms; a lap lasts 400 ms.
        let shape = Shape::Trace {
            trace: Trace::parse("100\n400\n400\n400\n").unwrap(),
            repeat: true,
            source: String::new(),
        };
        let mut config = DemoConfig::standard(String::new(), shape, "trace");
        config.phases[0].duration = Duration::from_secs(1);
        config.phases[1].duration = Duration::from_millis(600);
        let steps: Vec<_> = capacity(&config).iter().map(|c| (c.t_ms, c.capacity_bps)).collect();
        let per_bin = OPPORTUNITY_BITS * 4;
        // 100 | 400 400 400 | 500 falls into the last, shorter bin.
        assert_eq!(
            steps,
            [(0, 24_000_000), (1000, per_bin), (1250, 3 * per_bin), (1500, OPPORTUNITY_BITS * 10)]
        );
        config.phases[0].shape = Shape::Unlimited;
        assert!(capacity(&config).is_empty());
    }
}

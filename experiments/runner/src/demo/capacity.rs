//! What the links could have carried, for the report.

use ccplane_emulator::Shape;
use ccplane_report::Capacity;

use super::config::DemoConfig;
use crate::capacity::of_trace;

/// Capacity on the report's time axis; empty if any phase has no limit.
pub fn capacity(config: &DemoConfig) -> Vec<Capacity> {
    let mut steps = Vec::new();
    for (plan, phase) in config.phases.iter().zip(config.phase_times()) {
        match &plan.shape {
            Shape::Unlimited => return Vec::new(),
            Shape::Rate { bit_per_s } => steps.push(Capacity { t_ms: phase.t0_ms, capacity_bps: *bit_per_s }),
            Shape::Trace { trace, repeat, .. } => {
                let bins = of_trace(trace, *repeat, phase.t1_ms - phase.t0_ms);
                let at = |(t_ms, capacity_bps)| Capacity { t_ms: phase.t0_ms + t_ms, capacity_bps };
                steps.extend(bins.map(at));
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
        let per_bin = 1504 * 8 * 4;
        // 100 | 400 400 400 | 500 falls into the last, shorter bin.
        assert_eq!(steps, [(0, 24_000_000), (1000, per_bin), (1250, 3 * per_bin), (1500, 1504 * 8 * 10)]);
        config.phases[0].shape = Shape::Unlimited;
        assert!(capacity(&config).is_empty());
    }
}

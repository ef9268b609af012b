//! Algorithms on the same links.

use crate::decider::Decider;
use crate::error::EnvError;
use crate::flow::Prepared;
use crate::measure::{FlowTotals, Rtts};
use crate::scenario::Scenario;
use crate::world::run;
use ccplane_program::vm::{Decision, Knobs};

/// Wire over payload bytes of a full packet.
const WIRE_BYTES: u64 = 1500;

/// Has no policy: for algorithms that ask none.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoDecider;

impl Decider for NoDecider {
    fn decide(&mut self, _agent: usize, _cells: &[i32], _knobs: &mut Knobs) -> Decision {
        Decision::Native
    }
}

/// The performance of a scenario's first flow, after a fifth of its time.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct LinkPerformance {
    /// Arrived packets of all flows, as a share of what the link could carry.
    pub used: f64,
    /// Arrived packets of the first flow, as a share of the link's capacity.
    pub share: f64,
    /// Mean RTT over the path's own.
    pub rtt_ratio: f64,
    /// 95th percentile of what RTTs exceed the path's own by, milliseconds.
    pub queue_p95_ms: f64,
    /// Lost share of packets.
    pub loss: f64,
    /// Jain's index over the flows, where there are several.
    pub jain: Option<f64>,
}

/// Runs `scenario` and says what came of it.
///
/// # Errors
/// As [`run`].
pub fn outcome<D: Decider + ?Sized>(
    scenario: &Scenario,
    algorithms: &[Prepared],
    seed: u64,
    decider: &mut D,
) -> Result<LinkPerformance, EnvError> {
    let from_ns = scenario.until_ns / 5;
    let mut rtts = Rtts::from(from_ns);
    let measured: Vec<FlowTotals> = run(scenario, algorithms, seed, usize::MAX, decider, &mut rtts)?;
    let capacity = scenario.link.capacity_bytes(from_ns, scenario.until_ns) as f64;
    let shares: Vec<f64> = (0..scenario.flows.len())
        .map(|n| (rtts.packets(n) * WIRE_BYTES) as f64 / capacity.max(1.0))
        .collect();
    let delay_ns = scenario.flows[0].delay_ns as f64;
    let (delivered, lost) = measured.iter().fold((0, 0), |(d, l), m| (d + m.delivered, l + m.lost));
    Ok(LinkPerformance {
        used: shares.iter().sum(),
        share: shares.first().copied().unwrap_or(0.0),
        rtt_ratio: rtts.mean_ns(0) as f64 / delay_ns,
        queue_p95_ms: (rtts.percentile_ns(0, 95) as f64 - delay_ns).max(0.0) / 1e6,
        loss: lost as f64 / ((delivered + lost) as f64).max(1.0),
        jain: jain(&shares),
    })
}

/// Jain's index: 1 where all have the same, one over their number where one has all. `None` of fewer than two.
fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    let index = if squares > 0.0 { sum * sum / (squares * shares.len() as f64) } else { 0.0 };
    (shares.len() > 1).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flow_is_neither_fair_nor_unfair() {
        assert_eq!((jain(&[]), jain(&[0.9])), (None, None));
        assert_eq!((jain(&[0.4, 0.4]), jain(&[0.8, 0.0])), (Some(1.0), Some(0.5)));
        assert_eq!(jain(&[0.0, 0.0]), Some(0.0));
    }
}

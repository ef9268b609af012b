//! An episode: flows over a bottleneck, from event to event.

use crate::flow::{EnvFlow, HEADER_BYTES, Prepared};
use crate::link::{Bottleneck, NS_PER_S};
use crate::scenario::{OnOff, Scenario};
use crate::{AckObserver, Decider, Measured};
use ccplane_learn::Rng;

const NEVER: u64 = u64::MAX;
/// Wire bytes of a packet of cross traffic.
const CROSS_BYTES: u32 = 1500;
/// Names of random streams.
const LOSS: u64 = 1;
const CROSS: u64 = 2;
/// The rate that flows are told is at least this share of the link's largest: nothing is measured against 0.
const LEAST_LINK_SHARE: u64 = 20;

/// Cross traffic at work.
struct Cross {
    config: OnOff,
    rng: Rng,
    gap_ns: u64,
    on_until_ns: u64,
    due_ns: u64,
}

impl Cross {
    fn new(config: OnOff, rng: Rng) -> Cross {
        let gap_ns = (u64::from(CROSS_BYTES) * NS_PER_S).checked_div(config.bytes_per_s).unwrap_or(NEVER / 4);
        let mut cross = Cross { config, rng, gap_ns, on_until_ns: 0, due_ns: 0 };
        cross.next_on(0);
        cross
    }

    fn next_on(&mut self, now_ns: u64) {
        self.due_ns = now_ns + exponential(&mut self.rng, self.config.off_ns);
        self.on_until_ns = self.due_ns + exponential(&mut self.rng, self.config.on_ns);
    }

    fn advance(&mut self, bottleneck: &mut Bottleneck<'_>) {
        let now_ns = self.due_ns;
        bottleneck.offer(now_ns, CROSS_BYTES);
        self.due_ns += self.gap_ns;
        if self.due_ns > self.on_until_ns {
            self.next_on(now_ns);
        }
    }
}

/// A time of this mean.
fn exponential(rng: &mut Rng, mean_ns: u64) -> u64 {
    (-ccplane_learn::math::ln(1.0 - rng.uniform()) * mean_ns as f64) as u64
}

/// Runs a scenario until its end, or until an agent has decided more than `max_steps` times. `algorithms` are those that the
/// flows name; `watch` sees every ACK.
pub fn run<D: Decider + ?Sized>(
    scenario: &Scenario,
    algorithms: &[Prepared],
    seed: u64,
    max_steps: usize,
    decider: &mut D,
    watch: &mut dyn AckObserver,
) -> Vec<Measured> {
    let mut bottleneck = Bottleneck::new(&scenario.link, Rng::new(seed, &[LOSS]));
    let mut flows: Vec<EnvFlow<'_>> = scenario
        .flows
        .iter()
        .enumerate()
        .map(|(n, setup)| EnvFlow::new(&algorithms[setup.algorithm], setup, n, decider.foresees()))
        .collect();
    let mut cross = scenario.cross.map(|config| Cross::new(config, Rng::new(seed, &[CROSS])));
    let mut told = LinkShare::new(scenario);
    loop {
        let (mut due_ns, mut who) = (cross.as_ref().map_or(NEVER, |c| c.due_ns), flows.len());
        for (n, flow) in flows.iter().enumerate() {
            if flow.due_ns < due_ns {
                (due_ns, who) = (flow.due_ns, n);
            }
        }
        if due_ns >= scenario.until_ns {
            break;
        }
        if due_ns >= told.until_ns {
            told.update(due_ns, &mut flows);
        }
        let Some(flow) = flows.get_mut(who) else {
            if let Some(cross) = &mut cross {
                cross.advance(&mut bottleneck);
            }
            continue;
        };
        let before = flow.transport.delivered;
        if let Some(rtt_ns) = flow.advance(&mut bottleneck, decider) {
            watch.acked(who, due_ns, flow.transport.delivered - before, rtt_ns);
            if flow.counts.steps > max_steps {
                break;
            }
        }
    }
    flows.iter().map(Measured::of).collect()
}

/// The link rate that flows' rewards are computed with: an equal share of the capacity that cross traffic leaves.
struct LinkShare<'a> {
    scenario: &'a Scenario,
    phase: usize,
    least: u64,
    until_ns: u64,
}

impl<'a> LinkShare<'a> {
    fn new(scenario: &'a Scenario) -> LinkShare<'a> {
        let link = &scenario.link;
        let most = link.phases.iter().map(|phase| link.passed_bytes_per_s(phase)).max().unwrap_or(0);
        LinkShare { scenario, phase: 0, least: most / LEAST_LINK_SHARE, until_ns: 0 }
    }

    fn update(&mut self, now_ns: u64, flows: &mut [EnvFlow<'_>]) {
        let phases = &self.scenario.link.phases;
        while phases.get(self.phase + 1).is_some_and(|next| next.from_ns <= now_ns) {
            self.phase += 1;
        }
        self.until_ns = phases.get(self.phase + 1).map_or(NEVER, |next| next.from_ns);
        let cross = self.scenario.cross.map_or(0, |c| {
            (u128::from(c.bytes_per_s) * u128::from(c.on_ns) / u128::from((c.on_ns + c.off_ns).max(1))) as u64
        });
        let passed = self.scenario.link.passed_bytes_per_s(&phases[self.phase]);
        let all = passed.saturating_sub(cross).max(self.least);
        let wire = all / flows.len().max(1) as u64;
        for (flow, setup) in flows.iter_mut().zip(&self.scenario.flows) {
            flow.link_bytes_per_s = wire * setup.mss_bytes / (setup.mss_bytes + HEADER_BYTES);
        }
    }
}

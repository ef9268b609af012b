//! An episode: flows over a bottleneck, from event to event.
//!
//! The network and each flow's transport are those of the simulated datapath. Left out is what stands around them there: the
//! channel to an agent, samples, slots and the hosts.

use crate::decider::Decider;
use crate::error::EnvError;
use crate::flow::{EnvFlow, Prepared};
use crate::link::{NS_PER_S, Phase};
use crate::measure::{AckObserver, FlowTotals};
use crate::scenario::{BOTTLENECK, OnOff, Scenario};
use ccplane_netsim::{FlowIndex, Network, Occurrence};
use ccplane_sim::LOSS_TIMER;

/// Marks of the wake-ups with which phases begin, above those of flows.
const PHASES_FROM: u64 = 1 << 32;
/// The rate that flows are told is at least this share of the link's largest: nothing is measured against 0.
const LEAST_LINK_SHARE: u64 = 20;

/// Runs a scenario until its end, or until an agent has decided more than `max_steps` times. `algorithms` are those that the
/// flows name; `watch` sees every ACK.
///
/// # Errors
/// The first number of the scenario that is outside the simulator's limits.
pub fn run<D: Decider + ?Sized>(
    scenario: &Scenario,
    algorithms: &[Prepared],
    seed: u64,
    max_steps: usize,
    decider: &mut D,
    watch: &mut dyn AckObserver,
) -> Result<Vec<FlowTotals>, EnvError> {
    let mut world = World::new(scenario, algorithms, seed, decider.foresees())?;
    while let Some(occurrence) = world.net.next(scenario.until_ns) {
        match occurrence {
            Occurrence::Ack { flow, .. } => {
                if world.on_ack(flow, decider, watch) > max_steps {
                    break;
                }
            }
            Occurrence::Timer { flow, timer } => world.on_timer(flow, timer),
            Occurrence::Wake { token } => match token.checked_sub(PHASES_FROM) {
                Some(phase) => world.begin_phase(phase as usize)?,
                None => world.start(token as FlowIndex),
            },
        }
    }
    Ok(world.flows.iter().map(FlowTotals::of).collect())
}

/// The network of an episode and its flows, by their number in it.
struct World<'a> {
    scenario: &'a Scenario,
    net: Network,
    flows: Vec<EnvFlow<'a>>,
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        algorithms: &'a [Prepared],
        seed: u64,
        foresees: bool,
    ) -> Result<World<'a>, EnvError> {
        let mut net = Network::new(scenario.links(), seed)?;
        if let Some(cross) = scenario.cross.as_ref().and_then(OnOff::config) {
            net.add_cross(&cross)?;
        }
        let back_ns = scenario.way_back.as_ref().map_or(0, |link| link.delay_ns);
        let mut flows = Vec::with_capacity(scenario.flows.len());
        for setup in &scenario.flows {
            let config = scenario.flow(setup);
            let index = net.add_flow(&config.network_path())?;
            net.wake_at(setup.start_ns, index.into());
            let base_rtt_ns = setup.delay_ns + scenario.link.delay_ns_at(setup.start_ns) + back_ns;
            let algorithm = &algorithms[setup.algorithm];
            flows.push(EnvFlow::new(algorithm, setup, &config, index, base_rtt_ns, foresees));
        }
        let mut world = World { scenario, net, flows };
        world.begin_phase(0)?;
        Ok(world)
    }

    /// Changes the link to a phase, tells the flows of it, and asks to be woken for the next one.
    fn begin_phase(&mut self, number: usize) -> Result<(), EnvError> {
        let phases = &self.scenario.link.phases;
        let Some(phase) = phases.get(number) else { return Ok(()) };
        if number > 0 {
            self.net.change_link(BOTTLENECK, &self.scenario.link.change(phase))?;
        }
        if let Some(next) = phases.get(number + 1) {
            self.net.wake_at(next.from_ns, PHASES_FROM + number as u64 + 1);
        }
        let wire_bytes_per_s = self.share(phase);
        self.flows.iter_mut().for_each(|flow| flow.set_link_share(wire_bytes_per_s));
        Ok(())
    }

    /// Returns the link rate of a flow's rewards, wire bytes per second. It is an equal share of the rate without cross traffic and
    /// without flows that end.
    fn share(&self, phase: &Phase) -> u64 {
        let link = &self.scenario.link;
        let most = link.phases.iter().map(|phase| link.passed_bytes_per_s(phase)).max().unwrap_or(0);
        let cross = self.scenario.cross.map_or(0, |c| {
            (u128::from(c.bytes_per_s) * u128::from(c.on_ns) / u128::from((c.on_ns + c.off_ns).max(1))) as u64
        });
        let flows = &self.scenario.flows;
        let ending: u128 = flows.iter().filter_map(|flow| flow.bytes).map(u128::from).sum();
        let until_ns = u128::from(self.scenario.until_ns.max(1));
        let ending = u64::try_from(ending * u128::from(NS_PER_S) / until_ns).unwrap_or(u64::MAX);
        let passed = link.passed_bytes_per_s(phase).saturating_sub(ending);
        let all = passed.saturating_sub(cross).max(most / LEAST_LINK_SHARE);
        all / flows.iter().filter(|flow| flow.bytes.is_none()).count().max(1) as u64
    }

    fn start(&mut self, flow: FlowIndex) {
        if let Some(flow) = self.flows.get_mut(flow as usize) {
            flow.start(&mut self.net);
        }
    }

    /// Hands an ACK to its flow, and returns how often the flow has decided.
    fn on_ack<D: Decider + ?Sized>(
        &mut self,
        index: FlowIndex,
        decider: &mut D,
        watch: &mut dyn AckObserver,
    ) -> usize {
        let Some(flow) = self.flows.get_mut(index as usize).filter(|flow| !flow.ended) else { return 0 };
        let now_ns = self.net.now_ns();
        let acked = flow.on_ack(now_ns, self.net.acked(), decider);
        watch.acked(index as usize, now_ns, acked.packets(), acked.rtt_ns);
        flow.transmit(&mut self.net);
        flow.counts.steps
    }

    fn on_timer(&mut self, flow: FlowIndex, timer: u8) {
        let Some(flow) = self.flows.get_mut(flow as usize).filter(|flow| !flow.ended) else { return };
        if timer == LOSS_TIMER {
            flow.on_loss_timer(self.net.now_ns());
        }
        flow.transmit(&mut self.net);
    }
}

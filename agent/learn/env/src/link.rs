//! The bottleneck: a first-in-first-out queue before a link whose rate, delay and loss change on a schedule, or that follows a trace.

use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Trace};
use ccplane_netsim::{Capacity, ConfigError, Ingress, LinkChange, LinkConfig, Outage, QueueLimit};

/// Nanoseconds of a second.
pub(crate) const NS_PER_S: u64 = 1_000_000_000;
const MS_PER_S: u64 = 1000;
const BITS_PER_BYTE: u64 = 8;

/// A time from which on a link has these properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Virtual time at which the phase starts, nanoseconds.
    pub from_ns: u64,
    /// Wire bytes per second; 0 while it stands still.
    pub bytes_per_s: u64,
    /// Added to each flow's own propagation delay, nanoseconds.
    pub delay_ns: u64,
    /// Packets lost at random, millionths.
    pub loss_ppm: u32,
}

impl Phase {
    fn bit_per_s(&self) -> u64 {
        self.bytes_per_s.saturating_mul(BITS_PER_BYTE)
    }
}

/// A bottleneck link whose rate, delay and loss change over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvLink {
    /// The phases in order of time, the first from 0 on. The last one never stands still, unless there is a trace.
    pub phases: Vec<Phase>,
    /// Packets that may wait, beside the one under way into the link.
    pub queue_packets: usize,
    /// Largest extra delay of a packet behind the queue, drawn uniformly for each, nanoseconds. Packets stay in order.
    pub jitter_ns: u64,
    /// Bytes that a packet costs the link beside its own, such as 4 for a TUN header.
    pub overhead_bytes: u16,
    /// Impairments of packets before the queue.
    pub ingress: Ingress,
    /// The trace by which the link delivers, over and over, in place of its phases' rates.
    pub trace: Option<Trace>,
}

impl EnvLink {
    /// A link of these phases without jitter, overhead and impairments.
    pub fn new(phases: Vec<Phase>, queue_packets: usize) -> EnvLink {
        let ingress = Ingress::default();
        EnvLink { phases, queue_packets, jitter_ns: 0, overhead_bytes: 0, ingress, trace: None }
    }

    /// A link that delivers as `trace` says. Its phases tell the trace's mean rate of each second until `until_ns`; the rest of them is
    /// `like`'s.
    pub fn of_trace(trace: Trace, queue_packets: usize, like: Phase, until_ns: u64) -> EnvLink {
        let seconds = until_ns.div_ceil(NS_PER_S).max(1);
        let mut carried_bytes = vec![0; seconds as usize];
        for at_ms in trace.schedule(true).take_while(|at_ms| *at_ms < seconds * MS_PER_S) {
            carried_bytes[(at_ms / MS_PER_S) as usize] += u64::from(OPPORTUNITY_BYTES);
        }
        let phase = |(bytes_per_s, n): (u64, u64)| Phase { from_ns: n * NS_PER_S, bytes_per_s, ..like };
        let phases = carried_bytes.into_iter().zip(0..).map(phase).collect();
        EnvLink { trace: Some(trace), ..EnvLink::new(phases, queue_packets) }
    }

    /// Returns the simulator's link as it is in the first phase.
    pub fn config(&self) -> LinkConfig {
        let first = self.phases.first();
        let moving = self.phases.iter().find(|phase| phase.bytes_per_s > 0);
        let queue_packets = u32::try_from(self.queue_packets.max(1)).unwrap_or(u32::MAX);
        LinkConfig {
            jitter_ns: self.jitter_ns,
            loss_ppm: first.map_or(0, |phase| phase.loss_ppm),
            outages: self.outages(),
            overhead_bytes: self.overhead_bytes,
            ingress: self.ingress,
            ..LinkConfig::new(
                match &self.trace {
                    Some(trace) => Capacity::Trace { trace: trace.clone(), repeat: true },
                    None => Capacity::Rate { bit_per_s: moving.map_or(0, Phase::bit_per_s) },
                },
                first.map_or(0, |phase| phase.delay_ns),
                QueueLimit::Packets(queue_packets),
            )
        }
    }

    /// Returns the change of the simulator's link with which a phase begins.
    pub(crate) fn change(&self, phase: &Phase) -> LinkChange {
        let is_rated = phase.bytes_per_s > 0 && self.trace.is_none();
        LinkChange {
            bit_per_s: is_rated.then(|| phase.bit_per_s()),
            delay_ns: Some(phase.delay_ns),
            loss_ppm: Some(phase.loss_ppm),
        }
    }

    /// Returns the rate that a phase's link and the policer let pass, wire bytes per second.
    pub(crate) fn passed_bytes_per_s(&self, phase: &Phase) -> u64 {
        let policed = self.ingress.policer.map_or(u64::MAX, |policer| policer.bit_per_s / BITS_PER_BYTE);
        phase.bytes_per_s.min(policed)
    }

    /// Returns the times for which the link stands still; a trace has its own.
    fn outages(&self) -> Vec<Outage> {
        let mut outages: Vec<Outage> = Vec::new();
        if self.trace.is_some() {
            return outages;
        }
        for (phase, next) in self.phases.iter().zip(self.phases.iter().skip(1)) {
            if phase.bytes_per_s > 0 {
                continue;
            }
            match outages.last_mut() {
                Some(last) if last.until_ns == phase.from_ns => last.until_ns = next.from_ns,
                _ => outages.push(Outage { from_ns: phase.from_ns, until_ns: next.from_ns }),
            }
        }
        outages
    }

    /// # Errors
    /// The first number of any phase that is outside the simulator's limits.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let first = self.config();
        first.check()?;
        self.phases.iter().try_for_each(|phase| {
            let changed = LinkConfig {
                capacity: Capacity::Rate { bit_per_s: phase.bit_per_s().max(1) },
                delay_ns: phase.delay_ns,
                loss_ppm: phase.loss_ppm,
                ..first.clone()
            };
            changed.check()
        })
    }

    /// Returns the link's part of the propagation delay at a time, nanoseconds.
    pub(crate) fn delay_ns_at(&self, at_ns: u64) -> u64 {
        let begun = self.phases.iter().take_while(|phase| phase.from_ns <= at_ns);
        begun.last().map_or(0, |phase| phase.delay_ns)
    }

    /// Returns the bytes that the link could have carried from one time to another.
    pub(crate) fn capacity_bytes(&self, from_ns: u64, to_ns: u64) -> u64 {
        let mut bytes = 0;
        for (n, phase) in self.phases.iter().enumerate() {
            let end_ns = self.phases.get(n + 1).map_or(u64::MAX, |next| next.from_ns).min(to_ns);
            let ns = end_ns.saturating_sub(phase.from_ns.max(from_ns));
            bytes +=
                (u128::from(ns) * u128::from(self.passed_bytes_per_s(phase)) / u128::from(NS_PER_S)) as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::Policer;

    fn phase(from_ns: u64, bytes_per_s: u64) -> Phase {
        Phase { from_ns, bytes_per_s, delay_ns: from_ns, loss_ppm: 0 }
    }

    fn link(phases: Vec<Phase>) -> EnvLink {
        EnvLink::new(phases, 10)
    }

    #[test]
    fn what_a_link_could_carry_follows_its_phases() {
        let link = link(vec![phase(0, 1_000_000), phase(500_000, 0), phase(1_500_000, 2_000_000)]);
        assert_eq!(link.capacity_bytes(0, 2_500_000), 500 + 2000);
        assert_eq!(
            [0, 499_999, 500_000, 9_000_000].map(|at_ns| link.delay_ns_at(at_ns)),
            [0, 0, 500_000, 1_500_000]
        );
    }

    #[test]
    fn the_simulators_link_has_every_number_of_this_one() {
        let ingress = Ingress { duplicate_ppm: 5, ..Ingress::default() };
        let first = Phase { delay_ns: 2, loss_ppm: 3, ..phase(0, 1000) };
        let link = EnvLink { jitter_ns: 4, overhead_bytes: 6, ingress, ..EnvLink::new(vec![first], 7) };
        let (capacity, queue) = (Capacity::Rate { bit_per_s: 8000 }, QueueLimit::Packets(7));
        let expected = LinkConfig {
            loss_ppm: 3,
            jitter_ns: 4,
            ingress,
            overhead_bytes: 6,
            ..LinkConfig::new(capacity, 2, queue)
        };
        assert_eq!(link.config(), expected);
    }

    #[test]
    fn phases_without_a_rate_are_one_outage() {
        let rates = [0, 0, 1000, 0, 2000];
        let link = link(rates.into_iter().zip(0..).map(|(rate, n)| phase(n * 100, rate)).collect());
        let config = link.config();
        assert_eq!(config.capacity, Capacity::Rate { bit_per_s: 8000 });
        let outages: Vec<(u64, u64)> = config.outages.iter().map(|o| (o.from_ns, o.until_ns)).collect();
        assert_eq!(outages, [(0, 200), (300, 400)]);
        assert_eq!(link.change(&link.phases[3]).bit_per_s, None);
        assert!(link.check().is_ok());
    }

    #[test]
    fn a_traces_phases_have_its_rate_second_by_second_and_a_policer_its_own() {
        // Three packets in the first half of a lap of two seconds, one at its end.
        let trace = Trace::from_opportunities_ms(vec![100, 500, 900, 2000]).unwrap();
        let like = Phase { delay_ns: 7, ..phase(0, 0) };
        let link = EnvLink::of_trace(trace.clone(), 10, like, 3_500_000_000);
        let rates: Vec<(u64, u64)> =
            link.phases.iter().map(|p| (p.from_ns / NS_PER_S, p.bytes_per_s)).collect();
        assert_eq!(rates, [(0, 4512), (1, 0), (2, 6016), (3, 0)]);
        let config = link.config();
        assert_eq!((config.capacity, config.delay_ns), (Capacity::Trace { trace, repeat: true }, 7));
        assert!(config.outages.is_empty());
        assert_eq!(link.change(&link.phases[2]).bit_per_s, None);
        assert!(link.check().is_ok());
        let policer = Some(Policer { bit_per_s: 16_000, burst_bytes: 6000 });
        let ingress = Ingress { policer, ..Ingress::default() };
        assert_eq!(EnvLink { ingress, ..link }.capacity_bytes(0, 2 * NS_PER_S), 2000);
    }

    #[test]
    fn a_link_beyond_the_simulator_is_refused() {
        let refused = |link: EnvLink| match link.check() {
            Err(ConfigError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(link(Vec::new())), "bit_per_s");
        let late = Phase { delay_ns: u64::MAX, ..phase(1, 1000) };
        assert_eq!(refused(link(vec![phase(0, 1000), late])), "delay_ns");
        assert_eq!(
            refused(EnvLink { queue_packets: usize::MAX, ..link(vec![phase(0, 1000)]) }),
            "queue packets"
        );
    }
}

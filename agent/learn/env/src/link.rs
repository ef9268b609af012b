//! The bottleneck: a first-in-first-out queue before a link whose rate, delay and loss change on a schedule.

use ccplane_netsim::{Capacity, ConfigError, LinkChange, LinkConfig, Outage, QueueLimit};

/// Nanoseconds of a second.
pub(crate) const NS_PER_S: u64 = 1_000_000_000;

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
        self.bytes_per_s.saturating_mul(8)
    }

    /// Returns the change of the simulator's link with which the phase begins.
    pub(crate) fn change(&self) -> LinkChange {
        LinkChange {
            bit_per_s: Some(self.bit_per_s()).filter(|rate| *rate > 0),
            delay_ns: Some(self.delay_ns),
            loss_ppm: Some(self.loss_ppm),
        }
    }
}

/// A bottleneck link whose rate, delay and loss change over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The phases in order of time, the first from 0 on. The last one never stands still.
    pub phases: Vec<Phase>,
    /// Packets that may wait, beside the one under way into the link.
    pub queue_packets: usize,
    /// Largest extra delay of a packet behind the queue, drawn uniformly for each, nanoseconds. Packets stay in order.
    pub jitter_ns: u64,
}

impl Link {
    /// Returns the simulator's link as it is in the first phase.
    pub(crate) fn config(&self) -> LinkConfig {
        let first = self.phases.first();
        let moving = self.phases.iter().find(|phase| phase.bytes_per_s > 0);
        let queue_packets = u32::try_from(self.queue_packets.max(1)).unwrap_or(u32::MAX);
        LinkConfig {
            jitter_ns: self.jitter_ns,
            loss_ppm: first.map_or(0, |phase| phase.loss_ppm),
            outages: self.outages(),
            ..LinkConfig::new(
                Capacity::Rate { bit_per_s: moving.map_or(0, Phase::bit_per_s) },
                first.map_or(0, |phase| phase.delay_ns),
                QueueLimit::Packets(queue_packets),
            )
        }
    }

    /// Returns the times for which the link stands still.
    fn outages(&self) -> Vec<Outage> {
        let mut outages: Vec<Outage> = Vec::new();
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
            bytes += (u128::from(ns) * u128::from(phase.bytes_per_s) / u128::from(NS_PER_S)) as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(from_ns: u64, bytes_per_s: u64) -> Phase {
        Phase { from_ns, bytes_per_s, delay_ns: from_ns, loss_ppm: 0 }
    }

    fn link(phases: Vec<Phase>) -> Link {
        Link { phases, queue_packets: 10, jitter_ns: 0 }
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
    fn phases_without_a_rate_are_one_outage() {
        let rates = [0, 0, 1000, 0, 2000];
        let link = link(rates.into_iter().zip(0..).map(|(rate, n)| phase(n * 100, rate)).collect());
        let config = link.config();
        assert_eq!(config.capacity, Capacity::Rate { bit_per_s: 8000 });
        let outages: Vec<(u64, u64)> = config.outages.iter().map(|o| (o.from_ns, o.until_ns)).collect();
        assert_eq!(outages, [(0, 200), (300, 400)]);
        assert_eq!(link.phases[3].change().bit_per_s, None);
        assert!(link.check().is_ok());
    }

    #[test]
    fn a_link_beyond_the_simulator_is_refused() {
        let refused = |link: Link| match link.check() {
            Err(ConfigError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(link(Vec::new())), "bit_per_s");
        let late = Phase { delay_ns: u64::MAX, ..phase(1, 1000) };
        assert_eq!(refused(link(vec![phase(0, 1000), late])), "delay_ns");
        assert_eq!(
            refused(Link { queue_packets: usize::MAX, ..link(vec![phase(0, 1000)]) }),
            "queue packets"
        );
    }
}

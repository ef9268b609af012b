//! The bottleneck: a first-in-first-out queue before a link whose rate changes on a schedule.
//!
//! Nothing is simulated that can be computed: when a packet leaves follows from when the one before it left (Lindley's
//! recursion). That holds across changes of the rate, and from one opportunity of a trace to the next. Burst losses and policers before
//! the queue are the simulated network's own.

use crate::opportunities::Opportunities;
use ccplane_learn::Rng;
use ccplane_netsim::trace::{OPPORTUNITY_BYTES, Trace};
use ccplane_netsim::{BurstLoss, Bursts, Policer, TokenBucket};
use std::collections::VecDeque;

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
    /// Packets lost at random, of 2^32.
    pub loss_q32: u32,
}

/// A bottleneck link whose rate, delay and loss change over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The phases in order of time, the first from 0 on. The last one never stands still where no trace says when it delivers.
    pub phases: Vec<Phase>,
    /// Packets that may wait or be under way into the link.
    pub queue_packets: usize,
    /// Bytes that a packet costs the link beside its own, such as 4 for a TUN header.
    pub overhead_bytes: u32,
    /// Losses in bursts, beside the independent ones of each phase.
    pub burst_loss: Option<BurstLoss>,
    /// A token bucket before the queue, which drops what exceeds it.
    pub policer: Option<Policer>,
    /// The trace by which the link delivers, over and over, in place of its phases' rates.
    pub trace: Option<Trace>,
}

impl Link {
    /// A link of these phases that loses nothing in bursts, polices nothing and adds no bytes.
    pub fn new(phases: Vec<Phase>, queue_packets: usize) -> Link {
        Link { phases, queue_packets, overhead_bytes: 0, burst_loss: None, policer: None, trace: None }
    }

    /// A link that delivers as `trace` says. Its phases have the trace's mean rate of each second until `until_ns`; the rest of them is
    /// `like`'s.
    pub fn of_trace(trace: Trace, queue_packets: usize, like: Phase, until_ns: u64) -> Link {
        let seconds = until_ns.div_ceil(NS_PER_S).max(1);
        let mut carried_bytes = vec![0; seconds as usize];
        for at_ms in trace.schedule(true).take_while(|at_ms| *at_ms < seconds * MS_PER_S) {
            carried_bytes[(at_ms / MS_PER_S) as usize] += u64::from(OPPORTUNITY_BYTES);
        }
        let phase = |(bytes_per_s, n): (u64, u64)| Phase { from_ns: n * NS_PER_S, bytes_per_s, ..like };
        let phases = carried_bytes.into_iter().zip(0..).map(phase).collect();
        Link { trace: Some(trace), ..Link::new(phases, queue_packets) }
    }

    /// The rate that a phase's link and policer let pass, wire bytes per second.
    pub(crate) fn passed_bytes_per_s(&self, phase: &Phase) -> u64 {
        let policed = self.policer.map_or(u64::MAX, |policer| policer.bit_per_s / BITS_PER_BYTE);
        phase.bytes_per_s.min(policed)
    }
}

/// The fate of a packet that was sent into the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The packet leaves the link at `at_ns`, and its way takes `delay_ns` longer than without the link, nanoseconds.
    Leaves { at_ns: u64, delay_ns: u64 },
    /// The queue was full, or the policer's bucket empty.
    Dropped,
    /// The packet was lost on its way to the queue.
    Lost,
}

/// A link at work.
#[derive(Debug)]
pub(crate) struct Bottleneck<'a> {
    link: &'a Link,
    /// The phase in which the last packet left.
    phase: usize,
    /// The phase of the clock.
    now_phase: usize,
    left_ns: u64,
    /// The time when each packet in the queue leaves.
    queue: VecDeque<u64>,
    rng: Rng,
    bursts: Option<Bursts>,
    bucket: Option<TokenBucket>,
    opportunities: Option<Opportunities>,
    /// Wire bytes that left.
    pub(crate) carried_bytes: u64,
    pub(crate) dropped: u64,
}

impl<'a> Bottleneck<'a> {
    pub(crate) fn new(link: &'a Link, mut rng: Rng) -> Bottleneck<'a> {
        let bursts = link.burst_loss.map(|burst| Bursts::new(burst, rng.bits(), 0));
        Bottleneck {
            link,
            phase: 0,
            now_phase: 0,
            left_ns: 0,
            queue: VecDeque::with_capacity(link.queue_packets.min(1 << 14)),
            rng,
            bursts,
            bucket: link.policer.map(TokenBucket::new),
            opportunities: link.trace.as_ref().map(Opportunities::new),
            carried_bytes: 0,
            dropped: 0,
        }
    }

    /// Takes a packet. Calls come in order of time.
    #[inline]
    pub(crate) fn offer(&mut self, now_ns: u64, bytes: u32) -> Fate {
        while self.link.phases.get(self.now_phase + 1).is_some_and(|next| next.from_ns <= now_ns) {
            self.now_phase += 1;
        }
        let phase = &self.link.phases[self.now_phase];
        if phase.loss_q32 > 0 && (self.rng.bits() >> 32) < u64::from(phase.loss_q32) {
            return Fate::Lost;
        }
        if self.bursts.as_mut().is_some_and(Bursts::strike) {
            return Fate::Lost;
        }
        let cost_bytes = bytes + self.link.overhead_bytes;
        if self.bucket.as_mut().is_some_and(|bucket| !bucket.passes(now_ns, cost_bytes.into())) {
            self.dropped += 1;
            return Fate::Dropped;
        }
        while self.queue.front().is_some_and(|left_ns| *left_ns <= now_ns) {
            self.queue.pop_front();
        }
        if self.queue.len() >= self.link.queue_packets.max(1) {
            self.dropped += 1;
            return Fate::Dropped;
        }
        let delay_ns = phase.delay_ns;
        let at_ns = match &mut self.opportunities {
            Some(opportunities) => opportunities.serve(now_ns, cost_bytes),
            None => self.serve(now_ns, cost_bytes),
        };
        self.queue.push_back(at_ns);
        self.carried_bytes += u64::from(bytes);
        Fate::Leaves { at_ns, delay_ns }
    }

    /// Returns the time at which a packet leaves that comes now.
    #[inline]
    fn serve(&mut self, now_ns: u64, bytes: u32) -> u64 {
        let mut at_ns = now_ns.max(self.left_ns);
        // What is left to send, in bytes times nanoseconds of a second.
        let mut work = u64::from(bytes) * NS_PER_S;
        loop {
            let rate = self.link.phases[self.phase].bytes_per_s;
            let need_ns = work.checked_div(rate).unwrap_or(u64::MAX);
            match self.link.phases.get(self.phase + 1) {
                Some(next) if at_ns.saturating_add(need_ns) > next.from_ns => {
                    work -= next.from_ns.saturating_sub(at_ns).saturating_mul(rate).min(work);
                    at_ns = at_ns.max(next.from_ns);
                    self.phase += 1;
                }
                _ => {
                    self.left_ns = at_ns.saturating_add(need_ns);
                    return self.left_ns;
                }
            }
        }
    }

    /// Bytes that the link could have carried from one time to another.
    pub(crate) fn capacity_bytes(link: &Link, from_ns: u64, to_ns: u64) -> u64 {
        let mut bytes = 0;
        for (n, phase) in link.phases.iter().enumerate() {
            let end_ns = link.phases.get(n + 1).map_or(u64::MAX, |next| next.from_ns).min(to_ns);
            let ns = end_ns.saturating_sub(phase.from_ns.max(from_ns));
            bytes +=
                (u128::from(ns) * u128::from(link.passed_bytes_per_s(phase)) / u128::from(NS_PER_S)) as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_netsim::{Acks, Capacity, Ingress, LinkConfig, Network, PathConfig, QueueLimit, Segment};

    fn phase(from_ns: u64, bytes_per_s: u64) -> Phase {
        Phase { from_ns, bytes_per_s, delay_ns: 0, loss_q32: 0 }
    }

    fn leaves(bottleneck: &mut Bottleneck<'_>, now_ns: u64) -> Option<u64> {
        match bottleneck.offer(now_ns, 1000) {
            Fate::Leaves { at_ns, .. } => Some(at_ns),
            _ => None,
        }
    }

    #[test]
    fn packets_follow_each_other_and_a_full_queue_drops() {
        let link = Link::new(vec![phase(0, 1_000_000)], 3);
        let mut b = Bottleneck::new(&link, Rng::new(1, &[]));
        let ms = |n: u64| Some(n * 1_000_000);
        assert_eq!([leaves(&mut b, 0), leaves(&mut b, 0), leaves(&mut b, 0)], [ms(1), ms(2), ms(3)]);
        assert_eq!((leaves(&mut b, 0), b.dropped), (None, 1));
        assert_eq!(leaves(&mut b, 1_000_000), ms(4), "the first has left");
        assert_eq!(leaves(&mut b, 10_000_000), ms(11));
    }

    #[test]
    fn a_packet_under_way_feels_a_change_of_rate() {
        // Half of it at 1 MB/s, nothing for a millisecond, the rest at 2 MB/s.
        let phases = vec![phase(0, 1_000_000), phase(500_000, 0), phase(1_500_000, 2_000_000)];
        let link = Link::new(phases, 10);
        let mut b = Bottleneck::new(&link, Rng::new(1, &[]));
        assert_eq!(leaves(&mut b, 0), Some(1_750_000));
        assert_eq!(leaves(&mut b, 0), Some(2_250_000));
        assert_eq!(Bottleneck::capacity_bytes(&link, 0, 2_500_000), 500 + 2000);
    }

    #[test]
    fn loses_its_share() {
        let lossy = Phase { loss_q32: u32::MAX / 100, ..phase(0, 1_000_000_000) };
        let link = Link::new(vec![lossy], 10);
        let mut b = Bottleneck::new(&link, Rng::new(1, &[]));
        let lost = (0..100_000).filter(|n| b.offer(n * 2000, 1000) == Fate::Lost).count();
        assert!((850..1150).contains(&lost), "{lost}");
    }

    /// When packets of 1500 bytes, sent at these times, have left a link of the simulated network; `None` of those that never do.
    fn simulated(config: LinkConfig, seed: u64, times_ns: &[u64]) -> Vec<Option<u64>> {
        fn note(net: &mut Network, until_ns: u64, left_ns: &mut [Option<u64>]) {
            while net.next(until_ns).is_some() {
                let now_ns = net.now_ns();
                net.acked().iter().for_each(|delivery| left_ns[delivery.seq as usize] = Some(now_ns));
            }
        }
        let mut net = Network::new(vec![config], seed).unwrap();
        let flow = net.add_flow(&PathConfig { acks: Acks::EACH, ..PathConfig::new(vec![0], 0) }).unwrap();
        let mut left_ns = vec![None; times_ns.len()];
        for (at_ns, seq) in times_ns.iter().zip(0..) {
            note(&mut net, *at_ns, &mut left_ns);
            net.send(flow, Segment { seq, tx: seq, bytes: 1500, push: false });
        }
        note(&mut net, u64::MAX, &mut left_ns);
        left_ns
    }

    /// Trains of packets with pauses between, none at a whole millisecond, at which a trace's link may serve it or not.
    fn times_ns() -> Vec<u64> {
        let (mut rng, mut now_ns) = (Rng::new(3, &[]), 0_u64);
        let pause = |rng: &mut Rng| if rng.below(40) == 0 { 60_000_000 } else { 2_000_000 };
        let next = |_| {
            let most_ns = pause(&mut rng);
            now_ns += rng.below(most_ns) as u64;
            now_ns += u64::from(now_ns.is_multiple_of(1_000_000));
            now_ns
        };
        (0..4000).map(next).collect()
    }

    /// Burst losses, a policer and a trace give each packet the very fate that the simulated network's link gives it.
    #[test]
    fn shaped_links_are_the_simulated_networks_own() {
        let mut rng = Rng::new(5, &[]);
        let mut at_ms = 0_u32;
        let opportunity = |_| {
            at_ms += rng.below(4) as u32;
            at_ms
        };
        let trace = Trace::from_opportunities_ms((0..800).map(opportunity).collect()).unwrap();
        let burst =
            BurstLoss { to_bad_ppm: 5000, to_good_ppm: 200_000, loss_good_ppm: 0, loss_bad_ppm: 1_000_000 };
        let policer = Policer { bit_per_s: 6_000_000, burst_bytes: 20_000 };
        // A millisecond for each packet.
        let (plain, rate) =
            (Link::new(vec![phase(0, 1_504_000)], 4000), Capacity::Rate { bit_per_s: 12_032_000 });
        let follows = Capacity::Trace { trace: trace.clone(), repeat: true };
        let traced = Link::of_trace(trace, 20, phase(0, 0), 4 * NS_PER_S);
        for (link, capacity) in [
            (Link { burst_loss: Some(burst), ..plain.clone() }, rate.clone()),
            (Link { policer: Some(policer), ..plain }, rate),
            (Link { burst_loss: Some(burst), policer: Some(policer), ..traced.clone() }, follows.clone()),
            (traced, follows),
        ] {
            let link = Link { overhead_bytes: 4, ..link };
            let config = LinkConfig {
                overhead_bytes: 4,
                ingress: Ingress { burst_loss: link.burst_loss, policer: link.policer, ..Ingress::default() },
                ..LinkConfig::new(capacity, 0, QueueLimit::Packets(link.queue_packets as u32))
            };
            let (times_ns, mut bottleneck) = (times_ns(), Bottleneck::new(&link, Rng::new(9, &[])));
            let fates = times_ns.iter().map(|now_ns| match bottleneck.offer(*now_ns, 1500) {
                Fate::Leaves { at_ns, .. } => Some(at_ns),
                Fate::Dropped | Fate::Lost => None,
            });
            let fates: Vec<Option<u64>> = fates.collect();
            // The losses' seed is the first that the link draws.
            assert_eq!(fates, simulated(config, Rng::new(9, &[]).bits(), &times_ns), "{link:?}");
            let gone = fates.iter().filter(|fate| fate.is_none()).count();
            assert!((20..3000).contains(&gone), "{gone} of {link:?}");
        }
    }

    #[test]
    fn a_traces_phases_have_its_rate_second_by_second_and_a_policer_its_own() {
        // Three packets in the first half of a lap of two seconds, one at its end.
        let trace = Trace::from_opportunities_ms(vec![100, 500, 900, 2000]).unwrap();
        let link = Link::of_trace(trace, 10, Phase { delay_ns: 7, ..phase(0, 0) }, 3_500_000_000);
        let rates: Vec<(u64, u64)> =
            link.phases.iter().map(|p| (p.from_ns / NS_PER_S, p.bytes_per_s)).collect();
        assert_eq!(rates, [(0, 4512), (1, 0), (2, 6016), (3, 0)]);
        assert!(link.phases.iter().all(|p| p.delay_ns == 7));
        let policer = Some(Policer { bit_per_s: 16_000, burst_bytes: 6000 });
        assert_eq!(Bottleneck::capacity_bytes(&Link { policer, ..link }, 0, 2 * NS_PER_S), 2000);
    }
}

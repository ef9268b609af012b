//! The bottleneck: a first-in-first-out queue before a link whose rate changes on a schedule.
//!
//! Nothing is simulated that can be computed: when a packet leaves follows from when the one before it left (Lindley's
//! recursion), also across changes of the rate.

use ccplane_learn::Rng;
use std::collections::VecDeque;

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
    /// Packets lost at random, of 2^32.
    pub loss_q32: u32,
}

/// A bottleneck link whose rate, delay and loss change over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The phases in order of time, the first from 0 on. The last one never stands still.
    pub phases: Vec<Phase>,
    /// Packets that may wait or be under way into the link.
    pub queue_packets: usize,
}

/// The fate of a packet that was sent into the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The packet leaves the link at `at_ns`, and its way takes `delay_ns` longer than without the link, nanoseconds.
    Leaves { at_ns: u64, delay_ns: u64 },
    /// The queue was full.
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
    /// Wire bytes that left.
    pub(crate) carried_bytes: u64,
    pub(crate) dropped: u64,
}

impl<'a> Bottleneck<'a> {
    pub(crate) fn new(link: &'a Link, rng: Rng) -> Bottleneck<'a> {
        Bottleneck {
            link,
            phase: 0,
            now_phase: 0,
            left_ns: 0,
            queue: VecDeque::with_capacity(link.queue_packets.min(1 << 14)),
            rng,
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
        while self.queue.front().is_some_and(|left_ns| *left_ns <= now_ns) {
            self.queue.pop_front();
        }
        if self.queue.len() >= self.link.queue_packets.max(1) {
            self.dropped += 1;
            return Fate::Dropped;
        }
        let delay_ns = phase.delay_ns;
        let at_ns = self.serve(now_ns, bytes);
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
            bytes += (u128::from(ns) * u128::from(phase.bytes_per_s) / u128::from(NS_PER_S)) as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let link = Link { phases: vec![phase(0, 1_000_000)], queue_packets: 3 };
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
        let link = Link { phases, queue_packets: 10 };
        let mut b = Bottleneck::new(&link, Rng::new(1, &[]));
        assert_eq!(leaves(&mut b, 0), Some(1_750_000));
        assert_eq!(leaves(&mut b, 0), Some(2_250_000));
        assert_eq!(Bottleneck::capacity_bytes(&link, 0, 2_500_000), 500 + 2000);
    }

    #[test]
    fn loses_its_share() {
        let lossy = Phase { loss_q32: u32::MAX / 100, ..phase(0, 1_000_000_000) };
        let link = Link { phases: vec![lossy], queue_packets: 10 };
        let mut b = Bottleneck::new(&link, Rng::new(1, &[]));
        let lost = (0..100_000).filter(|n| b.offer(n * 2000, 1000) == Fate::Lost).count();
        assert!((850..1150).contains(&lost), "{lost}");
    }
}

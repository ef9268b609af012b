//! Packets on their way to the bottleneck.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use super::random::{Chance, Stream};
use super::{Impairments, Jitter};
use crate::event::Packet;

const NS_PER_US: u64 = 1_000;

/// A propagation delay, with jitter and reordering.
#[derive(Debug)]
pub(crate) struct DelayLine<H> {
    delay_ns: u64,
    jitter: Option<(Jitter, ChaCha8Rng)>,
    hold: Option<(Chance, u64, ChaCha8Rng)>,
    /// Packets that no other overtakes, in order of time.
    in_order: VecDeque<Entry<H>>,
    /// The others, the earliest on top.
    loose: BinaryHeap<Reverse<Entry<H>>>,
    entered: u64,
}

/// A packet and its turn among those of the same time.
#[derive(Debug)]
struct Entry<H> {
    packet: Packet<H>,
    turn: u64,
}

impl<H> DelayLine<H> {
    pub(crate) fn new(delay_us: u64, impairments: &Impairments) -> DelayLine<H> {
        let seed = impairments.seed;
        // One that cannot hold a packet back lets none overtake when the delay is shortened, either.
        let jitter = impairments.jitter.filter(|jitter| jitter.max_us > 0);
        let reorder = impairments.reorder.filter(|reorder| reorder.hold_us > 0);
        DelayLine {
            delay_ns: delay_us * NS_PER_US,
            jitter: jitter.map(|jitter| (jitter, Stream::Jitter.of(seed))),
            hold: reorder.map(|reorder| {
                (Chance::of(reorder.probability), reorder.hold_us * NS_PER_US, Stream::Reorder.of(seed))
            }),
            in_order: VecDeque::new(),
            loose: BinaryHeap::new(),
            entered: 0,
        }
    }

    /// Changes the delay of packets that enter from now on.
    pub(crate) fn set_delay_us(&mut self, delay_us: u64) {
        self.delay_ns = delay_us * NS_PER_US;
    }

    /// Takes a packet that came at its `arrived_ns`.
    pub(crate) fn enter(&mut self, mut packet: Packet<H>) {
        let now_ns = packet.arrived_ns;
        let (mut arrived_ns, mut loose) = (now_ns + self.delay_ns, false);
        if let Some((jitter, random)) = &mut self.jitter {
            let further = (u128::from(random.next_u64()) * u128::from(jitter.max_us * NS_PER_US)) >> 64;
            arrived_ns += further as u64;
            loose = jitter.reorder;
        }
        if let Some((chance, hold_ns, random)) = &mut self.hold
            && chance.strikes(random)
        {
            arrived_ns += *hold_ns;
            loose = true;
        }
        if !loose {
            // Neither jitter nor a delay that was shortened lets a packet overtake.
            arrived_ns = arrived_ns.max(self.in_order.back().map_or(0, |last| last.packet.arrived_ns));
        }
        packet.arrived_ns = arrived_ns;
        let entry = Entry { packet, turn: self.entered };
        self.entered += 1;
        match loose {
            true => self.loose.push(Reverse(entry)),
            false => self.in_order.push_back(entry),
        }
    }

    /// When the next packet arrives.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.first().map(|(entry, _)| entry.packet.arrived_ns)
    }

    /// The next packet that arrives by `now_ns`.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<Packet<H>> {
        let (_, loose) = self.first().filter(|(entry, _)| entry.packet.arrived_ns <= now_ns)?;
        let entry =
            if loose { self.loose.pop().map(|Reverse(entry)| entry) } else { self.in_order.pop_front() };
        entry.map(|entry| entry.packet)
    }

    /// Packets on their way.
    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.loose.len()
    }

    /// The earliest entry, and whether it is a loose one.
    fn first(&self) -> Option<(&Entry<H>, bool)> {
        match (self.in_order.front(), self.loose.peek()) {
            (Some(kept), Some(Reverse(loose))) if kept <= loose => Some((kept, false)),
            (_, Some(Reverse(loose))) => Some((loose, true)),
            (Some(kept), None) => Some((kept, false)),
            (None, None) => None,
        }
    }
}

impl<H> Entry<H> {
    fn key(&self) -> (u64, u64) {
        (self.packet.arrived_ns, self.turn)
    }
}

impl<H> Ord for Entry<H> {
    fn cmp(&self, other: &Entry<H>) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<H> PartialOrd for Entry<H> {
    fn partial_cmp(&self, other: &Entry<H>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> PartialEq for Entry<H> {
    fn eq(&self, other: &Entry<H>) -> bool {
        self.key() == other.key()
    }
}

impl<H> Eq for Entry<H> {}

#[cfg(test)]
mod tests {
    use super::super::Reorder;
    use super::*;

    fn packet<H>(arrived_ns: u64, handle: H) -> Packet<H> {
        Packet { handle, size: 100, priority: 0, arrived_ns }
    }

    /// Packets enter every millisecond; returns which arrive when, in order, microseconds.
    fn arrivals(impairments: Impairments) -> Vec<(u64, u64)> {
        let mut line = DelayLine::new(10_000, &impairments);
        (0..1000u64).for_each(|n| line.enter(packet(n * 1_000_000, n)));
        let mut arrived = vec![];
        while let Some(at_ns) = line.next_ns() {
            let packet = line.pop(at_ns).unwrap();
            assert_eq!(packet.arrived_ns, at_ns);
            arrived.push((packet.handle, at_ns / 1000));
        }
        assert_eq!((arrived.len(), line.len()), (1000, 0));
        assert!(arrived.is_sorted_by_key(|(_, at_us)| *at_us));
        arrived
    }

    #[test]
    fn jitter_keeps_the_order_unless_told() {
        for reorder in [false, true] {
            let jitter = Some(Jitter { max_us: 5_000, reorder });
            let arrived = arrivals(Impairments { jitter, seed: 4, ..Default::default() });
            let delays: Vec<u64> = arrived.iter().map(|(n, at_us)| at_us - n * 1000).collect();
            assert!(delays.iter().all(|us| (10_000..15_000).contains(us)), "{delays:?}");
            assert_eq!(arrived.is_sorted(), !reorder);
            let mean = delays.iter().sum::<u64>() / 1000;
            // Held up by those ahead, packets wait longer than the mean of 2.5 ms.
            assert!(if reorder { (12_300..12_700).contains(&mean) } else { mean > 13_000 }, "{mean}");
        }
    }

    #[test]
    fn some_are_held_back_and_the_others_pass_them() {
        let reorder = Some(Reorder { probability: 0.1, hold_us: 2_500 });
        let arrived = arrivals(Impairments { reorder, seed: 4, ..Default::default() });
        let held = arrived.iter().filter(|(n, at_us)| at_us - n * 1000 == 12_500).count();
        let on_time = arrived.iter().filter(|(n, at_us)| at_us - n * 1000 == 10_000).count();
        assert!((70..130).contains(&held) && held + on_time == 1000, "{held} {on_time}");
        assert!(!arrived.is_sorted());
    }

    #[test]
    fn a_shorter_delay_overtakes_nobody() {
        let no_jitter = Some(Jitter { max_us: 0, reorder: true });
        let nothing_held = Some(Reorder { probability: 1.0, hold_us: 0 });
        let idle = Impairments { jitter: no_jitter, reorder: nothing_held, ..Default::default() };
        for impairments in [Impairments::default(), idle] {
            let mut line = DelayLine::new(10_000, &impairments);
            line.enter(packet(0, 'a'));
            line.set_delay_us(0);
            line.enter(packet(1_000_000, 'b'));
            assert_eq!(line.pop(9_999_999), None);
            assert_eq!([line.pop(10_000_000), line.pop(10_000_000)].map(|p| p.unwrap().handle), ['a', 'b']);
        }
    }
}

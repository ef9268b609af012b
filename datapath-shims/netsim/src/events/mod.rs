//! The event queue: what happens next, in one total order.
//!
//! Events are ordered by time, and at the same time by when they were scheduled. So a run never depends on the
//! structure of the queue. Most events of a network travel on delay lines, whose times never decrease. A
//! [`LaneId`] keeps such a line in a ring buffer and only its head in a tournament. Alarms, of which each is
//! set once at a time, are there too. Timers are many but rarely due: they have a heap of their own.

mod heap;
mod tournament;

use heap::{Entry, Heap};
use std::collections::VecDeque;
use tournament::Tournament;

/// Names a delay line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LaneId(u32);

/// Names an alarm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AlarmId(u32);

/// An event of its own in 64 bits. A heap moves it as one number: an enum's parts, written one by one and read at once,
/// would stall the processor.
pub trait Packed: Copy {
    /// The event as a number.
    fn pack(self) -> u64;

    /// The event that was packed as this number.
    fn unpack(bits: u64) -> Self;
}

/// An event taken from the queue: an alarm's or scheduled on its own, or out of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<S, K, L> {
    /// Scheduled with [`EventQueue::schedule`] or [`EventQueue::set_alarm`].
    Single(S),
    /// An event that was scheduled with [`EventQueue::append`], and the kind of its lane.
    Lane(LaneId, K, L),
}

/// An event's place in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    at_ns: u64,
    seq: u64,
}

impl Key {
    /// Behind all events.
    const NEVER: Key = Key { at_ns: u64::MAX, seq: u64::MAX };

    /// Returns the key as one number, which is compared without a branch.
    #[inline]
    fn rank(self) -> u128 {
        u128::from(self.at_ns) << u64::BITS | u128::from(self.seq)
    }
}

/// One place of the tournament.
enum Source<S, K, L> {
    Alarm(S),
    /// A line's kind and its events, of which the first has the place's key.
    Lane(K, VecDeque<(Key, L)>),
}

/// Single events and alarms of type `S`, and delay lines of `L`, each of a kind `K`.
pub struct EventQueue<S, K, L> {
    sources: Vec<Source<S, K, L>>,
    heads: Tournament,
    singles: Heap,
    next_seq: u64,
}

impl<S, K, L> Default for EventQueue<S, K, L> {
    fn default() -> Self {
        EventQueue {
            sources: Vec::new(),
            heads: Tournament::default(),
            singles: Heap::default(),
            next_seq: 0,
        }
    }
}

impl<S: Packed, K: Copy, L> EventQueue<S, K, L> {
    /// Adds a delay line of this kind.
    pub fn add_lane(&mut self, kind: K) -> LaneId {
        LaneId(self.add(Source::Lane(kind, VecDeque::new())))
    }

    /// Adds an alarm that is this event whenever it is due.
    pub fn add_alarm(&mut self, what: S) -> AlarmId {
        AlarmId(self.add(Source::Alarm(what)))
    }

    fn add(&mut self, source: Source<S, K, L>) -> u32 {
        self.sources.push(source);
        self.heads.add() as u32
    }

    /// Schedules a single event.
    #[inline]
    pub fn schedule(&mut self, at_ns: u64, what: S) {
        let key = self.key(at_ns);
        self.singles.push(Entry { key, what: what.pack() });
    }

    /// Sets an alarm to a time, in the place of the one that it was set to.
    #[inline]
    pub fn set_alarm(&mut self, alarm: AlarmId, at_ns: u64) {
        let key = self.key(at_ns);
        self.heads.set(alarm.0 as usize, key);
    }

    /// Schedules an event on a delay line. A line keeps its order: an event that would overtake the line's
    /// last one comes right behind it.
    #[inline]
    pub fn append(&mut self, lane: LaneId, at_ns: u64, what: L) {
        let mut key = self.key(at_ns);
        let place = lane.0 as usize;
        let Some(Source::Lane(_, line)) = self.sources.get_mut(place) else { return };
        match line.back() {
            Some((last, _)) => key.at_ns = key.at_ns.max(last.at_ns),
            None => self.heads.set(place, key),
        }
        line.push_back((key, what));
    }

    /// The next event of a delay line.
    #[inline]
    pub fn front(&self, lane: LaneId) -> Option<&L> {
        match self.sources.get(lane.0 as usize) {
            Some(Source::Lane(_, line)) => line.front().map(|(_, what)| what),
            _ => None,
        }
    }

    /// Takes the next event if it happens no later than `until_ns`.
    #[inline]
    pub fn pop(&mut self, until_ns: u64) -> Option<(u64, Next<S, K, L>)> {
        let ((place, head), single) = (self.heads.first(), self.singles.first());
        let is_single = single.rank() < head.rank();
        let key = if is_single { single } else { head };
        if key.at_ns > until_ns || key == Key::NEVER {
            return None;
        }
        if is_single {
            return Some((key.at_ns, Next::Single(S::unpack(self.singles.take()))));
        }
        match self.sources.get_mut(place)? {
            Source::Alarm(what) => {
                let what = *what;
                self.heads.set(place, Key::NEVER);
                Some((key.at_ns, Next::Single(what)))
            }
            Source::Lane(kind, line) => {
                let (_, event) = line.pop_front()?;
                self.heads.set(place, line.front().map_or(Key::NEVER, |(key, _)| *key));
                Some((key.at_ns, Next::Lane(LaneId(place as u32), *kind, event)))
            }
        }
    }

    /// Events scheduled, all kinds together.
    pub fn len(&self) -> usize {
        let behind_heads: usize = self.lanes().map(|(_, line)| line.len().saturating_sub(1)).sum();
        self.heads.waiting() + self.singles.len() + behind_heads
    }

    /// Returns the events on the delay lanes with their lanes' kinds, in no order.
    pub fn in_lanes(&self) -> impl Iterator<Item = (K, &L)> {
        self.lanes().flat_map(|(kind, line)| line.iter().map(move |(_, what)| (*kind, what)))
    }

    fn lanes(&self) -> impl Iterator<Item = (&K, &VecDeque<(Key, L)>)> {
        self.sources.iter().filter_map(|source| match source {
            Source::Lane(kind, line) => Some((kind, line)),
            Source::Alarm(_) => None,
        })
    }

    /// Memory that it has allocated, bytes.
    pub fn heap_bytes(&self) -> usize {
        let lanes: usize = self.lanes().map(|(_, line)| line.capacity() * size_of::<(Key, L)>()).sum();
        let places = self.sources.capacity() * size_of::<Source<S, K, L>>() + self.heads.heap_bytes();
        lanes + places + self.singles.heap_bytes()
    }

    /// Whether nothing is scheduled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn key(&mut self, at_ns: u64) -> Key {
        let seq = self.next_seq;
        self.next_seq += 1;
        Key { at_ns, seq }
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Packed for u64 {
        fn pack(self) -> u64 {
            self
        }

        fn unpack(bits: u64) -> u64 {
            bits
        }
    }

    #[test]
    fn ties_come_in_the_order_of_scheduling() {
        let mut q = EventQueue::default();
        let lane = q.add_lane(());
        let alarm = q.add_alarm(5);
        q.schedule(5, 1u64);
        q.append(lane, 5, 2);
        q.schedule(5, 3);
        q.append(lane, 5, 4);
        q.set_alarm(alarm, 5);
        q.schedule(5, 6);
        q.schedule(4, 0);
        let order: Vec<u64> = std::iter::from_fn(|| q.pop(u64::MAX))
            .map(|(_, e)| match e {
                Next::Single(n) | Next::Lane(.., n) => n,
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_line_keeps_its_order() {
        let mut q = EventQueue::<u64, (), u8>::default();
        let lane = q.add_lane(());
        q.append(lane, 9, 1);
        q.append(lane, 3, 2);
        assert_eq!(q.front(lane), Some(&1));
        assert_eq!(q.pop(u64::MAX), Some((9, Next::Lane(lane, (), 1))));
        assert_eq!(q.front(lane), Some(&2));
        assert_eq!(q.pop(u64::MAX), Some((9, Next::Lane(lane, (), 2))));
        assert_eq!(q.front(lane), None);
    }

    #[test]
    fn an_alarm_set_again_is_due_once() {
        let mut q = EventQueue::<u64, (), u8>::default();
        let alarm = q.add_alarm(7);
        q.set_alarm(alarm, 9);
        q.set_alarm(alarm, 3);
        assert_eq!((q.len(), q.pop(2)), (1, None));
        assert_eq!(q.pop(u64::MAX), Some((3, Next::Single(7))));
        assert_eq!((q.pop(u64::MAX), q.is_empty()), (None, true));
    }

    /// Places that are added while others wait.
    #[test]
    fn every_place_is_found_whatever_their_number() {
        let mut q = EventQueue::<u64, (), u64>::default();
        for n in 0..100 {
            let lane = q.add_lane(());
            q.append(lane, 1000 - n, n);
        }
        let order = std::iter::from_fn(|| q.pop(u64::MAX)).map(|(at_ns, _)| at_ns);
        assert!(order.eq(901..=1000));
    }

    proptest! {
        /// Against a sorted list, with schedules and pops interleaved.
        #[test]
        fn pops_like_a_sorted_list(ops in prop::collection::vec((0u8..6, 0u64..40), 0..200)) {
            let mut q = EventQueue::<u64, (), u64>::default();
            let lanes = [q.add_lane(()), q.add_lane(())];
            let mut last_at = [0u64; 2];
            let mut model: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (n, (op, dt)) in ops.into_iter().enumerate() {
                let id = n as u64;
                match op {
                    0 => {
                        q.schedule(now + dt, id);
                        model.push((now + dt, id));
                    }
                    5 => {
                        let alarm = q.add_alarm(id);
                        q.set_alarm(alarm, now + dt);
                        model.push((now + dt, id));
                    }
                    1 | 2 => {
                        let lane = usize::from(op - 1);
                        last_at[lane] = last_at[lane].max(now + dt);
                        q.append(lanes[lane], last_at[lane], id);
                        model.push((last_at[lane], id));
                    }
                    _ => {
                        model.sort_unstable();
                        let expected = model.first().copied().filter(|(at, _)| *at <= now + dt);
                        let popped = q.pop(now + dt).map(|(at, e)| match e {
                            Next::Single(id) | Next::Lane(.., id) => (at, id),
                        });
                        prop_assert_eq!(popped, expected);
                        if let Some((at, _)) = expected {
                            model.remove(0);
                            now = at;
                        }
                    }
                }
                prop_assert_eq!(q.len(), model.len());
                prop_assert_eq!(q.is_empty(), model.is_empty());
            }
        }
    }
}

//! The event queue: what happens next, in one total order.
//!
//! Events are ordered by time, and at the same time by when they were scheduled. So a run never depends on the
//! structure of the queue. Most events of a network travel on delay lines, whose times never decrease; a
//! [`LaneId`] keeps such a line in a ring buffer and only its head in a heap. Timers are many but rarely due.
//! They have a heap of their own, so that the one that each packet goes through stays small.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::marker::PhantomData;

/// Names a delay line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LaneId(u32);

/// An event of its own in 63 bits. A heap moves it as one number: an enum's parts, written one by one and read at once,
/// would stall the processor.
pub trait Packed: Copy {
    /// The event as a number below 2^63.
    fn pack(self) -> u64;

    /// The event that was packed as this number.
    fn unpack(bits: u64) -> Self;
}

/// An event taken from the queue: scheduled on its own, or out of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<S, L> {
    /// Scheduled with [`EventQueue::schedule`] or [`EventQueue::schedule_rare`].
    Single(S),
    /// An event that was scheduled with [`EventQueue::append`].
    Lane(LaneId, L),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at_ns: u64,
    seq: u64,
}

/// The bit of [`Entry::what`] that says that the rest is a lane, whose first event this is.
const LANE_HEAD: u64 = 1 << 63;

struct Entry {
    key: Key,
    what: u64,
}

// Keys are unique, so that the order over keys is the order over entries.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Single events of type `S` and delay lines of `L`.
pub struct EventQueue<S, L> {
    heap: BinaryHeap<Reverse<Entry>>,
    rare: BinaryHeap<Reverse<Entry>>,
    lanes: Vec<VecDeque<(Key, L)>>,
    next_seq: u64,
    singles: PhantomData<S>,
}

impl<S, L> Default for EventQueue<S, L> {
    fn default() -> Self {
        EventQueue {
            heap: BinaryHeap::new(),
            rare: BinaryHeap::new(),
            lanes: Vec::new(),
            next_seq: 0,
            singles: PhantomData,
        }
    }
}

impl<S: Packed, L> EventQueue<S, L> {
    /// Adds a delay line.
    pub fn add_lane(&mut self) -> LaneId {
        self.lanes.push(VecDeque::new());
        LaneId(self.lanes.len() as u32 - 1)
    }

    /// Schedules a single event.
    #[inline]
    pub fn schedule(&mut self, at_ns: u64, what: S) {
        let key = self.key(at_ns);
        self.heap.push(Reverse(Entry { key, what: what.pack() }));
    }

    /// Schedules a single event of a kind of which many wait at once and few are due.
    #[inline]
    pub fn schedule_rare(&mut self, at_ns: u64, what: S) {
        let key = self.key(at_ns);
        self.rare.push(Reverse(Entry { key, what: what.pack() }));
    }

    /// Schedules an event on a delay line. A line keeps its order: an event that would overtake the line's
    /// last one comes right behind it.
    #[inline]
    pub fn append(&mut self, lane: LaneId, at_ns: u64, what: L) {
        let mut key = self.key(at_ns);
        let line = &mut self.lanes[lane.0 as usize];
        match line.back() {
            Some((last, _)) => key.at_ns = key.at_ns.max(last.at_ns),
            None => self.heap.push(Reverse(Entry { key, what: LANE_HEAD | u64::from(lane.0) })),
        }
        line.push_back((key, what));
    }

    /// The next event of a delay line.
    #[inline]
    pub fn front(&self, lane: LaneId) -> Option<&L> {
        self.lanes[lane.0 as usize].front().map(|(_, what)| what)
    }

    /// When the next event happens, nanoseconds.
    pub fn next_at_ns(&self) -> Option<u64> {
        self.heap.peek().into_iter().chain(self.rare.peek()).map(|Reverse(e)| e.key.at_ns).min()
    }

    /// Takes the next event if it happens no later than `until_ns`.
    #[inline]
    pub fn pop(&mut self, until_ns: u64) -> Option<(u64, Next<S, L>)> {
        let rare = self.rare.peek().map(|Reverse(e)| e.key);
        let heap = match (self.heap.peek(), rare) {
            (None, _) => &mut self.rare,
            (Some(Reverse(e)), Some(rare)) if rare < e.key => &mut self.rare,
            _ => &mut self.heap,
        };
        let mut top = heap.peek_mut()?;
        let at_ns = top.0.key.at_ns;
        if at_ns > until_ns {
            return None;
        }
        let what = top.0.what;
        if what & LANE_HEAD == 0 {
            PeekMut::pop(top);
            return Some((at_ns, Next::Single(S::unpack(what))));
        }
        let lane = LaneId(what as u32);
        let line = &mut self.lanes[lane.0 as usize];
        let (_, event) = line.pop_front()?;
        match line.front() {
            Some((key, _)) => top.0.key = *key,
            None => drop(PeekMut::pop(top)),
        }
        Some((at_ns, Next::Lane(lane, event)))
    }

    /// Events scheduled, all kinds together.
    pub fn len(&self) -> usize {
        let behind_heads: usize = self.lanes.iter().map(|l| l.len().saturating_sub(1)).sum();
        self.heap.len() + self.rare.len() + behind_heads
    }

    /// Returns the events on the delay lanes, in no order.
    pub fn in_lanes(&self) -> impl Iterator<Item = &L> {
        self.lanes.iter().flatten().map(|(_, what)| what)
    }

    /// Memory that it has allocated, bytes.
    pub fn heap_bytes(&self) -> usize {
        let lanes: usize = self.lanes.iter().map(|l| l.capacity() * size_of::<(Key, L)>()).sum();
        lanes + (self.heap.capacity() + self.rare.capacity()) * size_of::<Reverse<Entry>>()
    }

    /// Whether nothing is scheduled.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.rare.is_empty()
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
        let lane = q.add_lane();
        q.schedule(5, 1u64);
        q.append(lane, 5, 2);
        q.schedule(5, 3);
        q.append(lane, 5, 4);
        q.schedule(4, 0);
        let order: Vec<u64> = std::iter::from_fn(|| q.pop(u64::MAX))
            .map(|(_, e)| match e {
                Next::Single(n) | Next::Lane(_, n) => n,
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_line_keeps_its_order() {
        let mut q = EventQueue::<u64, u8>::default();
        let lane = q.add_lane();
        q.append(lane, 9, 1);
        q.append(lane, 3, 2);
        assert_eq!(q.front(lane), Some(&1));
        assert_eq!(q.pop(u64::MAX), Some((9, Next::Lane(lane, 1))));
        assert_eq!(q.front(lane), Some(&2));
        assert_eq!(q.pop(u64::MAX), Some((9, Next::Lane(lane, 2))));
        assert_eq!(q.front(lane), None);
    }

    proptest! {
        /// Against a sorted list, with schedules and pops interleaved.
        #[test]
        fn pops_like_a_sorted_list(ops in prop::collection::vec((0u8..6, 0u64..40), 0..200)) {
            let mut q = EventQueue::<u64, u64>::default();
            let lanes = [q.add_lane(), q.add_lane()];
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
                        q.schedule_rare(now + dt, id);
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
                            Next::Single(id) | Next::Lane(_, id) => (at, id),
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

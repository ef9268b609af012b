//! Events on their way to the agent: bounded, late by its latency, and honest about what did not fit. Rows wait for the
//! next batch; an event that wakes the agent takes those before it along, as a consumer that wakes reads all there is.

use ccplane_contract::Event;
use std::collections::VecDeque;

/// A bounded queue of events, in which [`Event::Dropped`] marks a gap in its place.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The events with the time from which the agent sees them, nanoseconds.
    events: VecDeque<(u64, Event)>,
    capacity: usize,
    dropped: u64,
}

impl Channel {
    pub(crate) fn new(capacity: usize) -> Channel {
        Channel { events: VecDeque::new(), capacity, dropped: 0 }
    }

    /// Queues an event that the agent sees at `due_ns`, with all events before it.
    pub(crate) fn push(&mut self, due_ns: u64, event: Event) {
        self.events
            .iter_mut()
            .rev()
            .map(|(due, _)| due)
            .take_while(|due| **due > due_ns)
            .for_each(|due| *due = due_ns);
        // After a gap, the mark takes a place of its own.
        let needed = if self.dropped > 0 { 2 } else { 1 };
        if self.events.len() + needed > self.capacity {
            self.dropped += 1;
            return;
        }
        self.mark_gap(due_ns);
        self.events.push_back((due_ns, event));
    }

    pub(crate) fn take(&mut self, now_ns: u64, max: usize, out: &mut Vec<Event>) -> usize {
        let due = self.events.iter().take(max).take_while(|(due_ns, _)| *due_ns <= now_ns).count();
        let mut count = due;
        out.extend(self.events.drain(..due).map(|(_, event)| event));
        if self.events.is_empty() && count < max && self.dropped > 0 {
            self.mark_gap(now_ns);
            out.extend(self.events.pop_front().map(|(_, event)| event));
            count += 1;
        }
        count
    }

    /// Whether anything is there for the agent to see.
    #[inline]
    pub(crate) fn has_due(&self, now_ns: u64) -> bool {
        match self.events.front() {
            Some((due_ns, _)) => *due_ns <= now_ns,
            None => self.dropped > 0,
        }
    }

    /// The time from which the agent sees the last event, nanoseconds.
    pub(crate) fn last_due_ns(&self) -> Option<u64> {
        self.events.back().map(|(due_ns, _)| *due_ns)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.events.capacity() * size_of::<(u64, Event)>()
    }

    fn mark_gap(&mut self, due_ns: u64) {
        if self.dropped > 0 {
            self.events.push_back((due_ns, Event::Dropped { count: std::mem::take(&mut self.dropped) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::FlowId;
    use proptest::prelude::*;

    #[test]
    fn marks_the_gap_where_it_is() {
        let closed = |n| Event::Closed { flow: FlowId(n) };
        let mut channel = Channel::new(3);
        (0..5).for_each(|n| channel.push(0, closed(n)));
        let mut out = Vec::new();
        assert_eq!(channel.take(0, 2, &mut out), 2);
        channel.push(0, closed(5));
        channel.push(0, closed(6));
        assert_eq!(channel.take(0, 9, &mut out), 4);
        let dropped = |count| Event::Dropped { count };
        assert_eq!(out, [closed(0), closed(1), closed(2), dropped(2), closed(5), dropped(1)]);
        assert!(!channel.has_due(u64::MAX));
    }

    #[test]
    fn an_event_is_seen_when_it_is_due() {
        let mut channel = Channel::new(9);
        let mut out = Vec::new();
        (0..3).for_each(|n| channel.push(10 * n, Event::Closed { flow: FlowId(n) }));
        assert_eq!(
            (channel.take(15, 9, &mut out), channel.has_due(19), channel.has_due(20)),
            (2, false, true)
        );
    }

    #[test]
    fn an_event_that_wakes_the_agent_takes_rows_along() {
        let closed = |n| Event::Closed { flow: FlowId(n) };
        let mut channel = Channel::new(9);
        let events = [(100, 0), (100, 1), (40, 2), (100, 3)];
        events.into_iter().for_each(|(due_ns, n)| channel.push(due_ns, closed(n)));
        let mut out = Vec::new();
        assert_eq!((channel.take(39, 9, &mut out), channel.last_due_ns()), (0, Some(100)));
        assert_eq!(channel.take(40, 9, &mut out), 3);
        assert_eq!(channel.take(100, 9, &mut out), 1);
        assert_eq!(out, [0, 1, 2, 3].map(closed));
    }

    proptest! {
        /// Everything pushed comes out, or is counted where it is missing.
        #[test]
        fn loses_nothing_uncounted(ops in prop::collection::vec((0u8..3, 0usize..6), 0..100), capacity in 2usize..6) {
            let (mut channel, mut out, mut next) = (Channel::new(capacity), Vec::new(), 0);
            for (op, max) in ops {
                if op < 2 {
                    channel.push(0, Event::Closed { flow: FlowId(next) });
                    next += 1;
                } else {
                    let before = out.len();
                    let count = channel.take(0, max, &mut out);
                    prop_assert!(count <= max && out.len() == before + count);
                }
                prop_assert!(channel.events.len() <= capacity);
            }
            channel.take(0, usize::MAX, &mut out);
            let mut expected = 0;
            for event in out {
                match event {
                    Event::Closed { flow } => {
                        prop_assert_eq!(flow, FlowId(expected));
                        expected += 1;
                    }
                    Event::Dropped { count } => expected += count,
                    other => panic!("{other:?}"),
                }
            }
            prop_assert_eq!(expected, next);
        }
    }
}

//! Events on their way to the agent: bounded, and honest about what did not fit.

use ccplane_contract::Event;
use std::collections::VecDeque;

/// A bounded queue of events. A gap is marked with [`Event::Dropped`] where it is.
#[derive(Debug)]
pub(crate) struct Channel {
    events: VecDeque<Event>,
    capacity: usize,
    dropped: u64,
}

impl Channel {
    pub(crate) fn new(capacity: usize) -> Channel {
        Channel { events: VecDeque::new(), capacity, dropped: 0 }
    }

    pub(crate) fn push(&mut self, event: Event) {
        // After a gap, the mark takes a place of its own.
        let needed = if self.dropped > 0 { 2 } else { 1 };
        if self.events.len() + needed > self.capacity {
            self.dropped += 1;
            return;
        }
        self.mark_gap();
        self.events.push_back(event);
    }

    pub(crate) fn take(&mut self, max: usize, out: &mut Vec<Event>) -> usize {
        let mut count = self.events.len().min(max);
        out.extend(self.events.drain(..count));
        if self.events.is_empty() && count < max && self.dropped > 0 {
            self.mark_gap();
            out.extend(self.events.pop_front());
            count += 1;
        }
        count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.dropped == 0
    }

    fn mark_gap(&mut self) {
        if self.dropped > 0 {
            self.events.push_back(Event::Dropped { count: std::mem::take(&mut self.dropped) });
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
        (0..5).for_each(|n| channel.push(closed(n)));
        let mut out = Vec::new();
        assert_eq!(channel.take(2, &mut out), 2);
        channel.push(closed(5));
        channel.push(closed(6));
        assert_eq!(channel.take(9, &mut out), 4);
        let dropped = |count| Event::Dropped { count };
        assert_eq!(out, [closed(0), closed(1), closed(2), dropped(2), closed(5), dropped(1)]);
        assert!(channel.is_empty());
    }

    proptest! {
        /// Everything pushed comes out, or is counted where it is missing.
        #[test]
        fn loses_nothing_uncounted(ops in prop::collection::vec((0u8..3, 0usize..6), 0..100), capacity in 2usize..6) {
            let (mut channel, mut out, mut next) = (Channel::new(capacity), Vec::new(), 0);
            for (op, max) in ops {
                if op < 2 {
                    channel.push(Event::Closed { flow: FlowId(next) });
                    next += 1;
                } else {
                    let before = out.len();
                    let count = channel.take(max, &mut out);
                    prop_assert!(count <= max && out.len() == before + count);
                }
                prop_assert!(channel.events.len() <= capacity);
            }
            channel.take(usize::MAX, &mut out);
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

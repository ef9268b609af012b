//! The far end of a flow: puts segments back into order and acknowledges each one at once.

use std::collections::VecDeque;

/// Segments past the next expected one that a receiver keeps; further ones are refused unacknowledged.
pub const MAX_AHEAD_SEGMENTS: u64 = 1 << 21;

/// What a receiver says on each segment that arrives, with enough for a sender to do what SACK (RFC 2018) and
/// timestamps (RFC 7323) allow: which segment, and which transmission of it, arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// All segments below this one have arrived.
    pub cumulative: u64,
    /// The segment that arrived.
    pub seq: u64,
    /// The transmission that arrived, as its sender numbered it.
    pub tx: u64,
}

/// Reassembly state of one flow.
#[derive(Clone, Default, Debug)]
pub struct Receiver {
    cumulative: u64,
    /// Whether segment `cumulative + i` has arrived; the first entry is always false.
    ahead: VecDeque<bool>,
    stats: ReceiverStats,
}

/// What a receiver has counted since its flow started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReceiverStats {
    /// Segments that arrived, duplicates included.
    pub arrived: u64,
    /// Segments that had arrived before.
    pub duplicates: u64,
    /// Segments too far ahead to keep.
    pub refused: u64,
    /// Wire bytes of segments that arrived for the first time.
    pub bytes: u64,
}

impl Receiver {
    /// Takes a segment; `None` if it is too far ahead to keep.
    #[inline]
    pub fn on_segment(&mut self, seq: u64, tx: u64, bytes: u16) -> Option<Ack> {
        self.stats.arrived += 1;
        if seq < self.cumulative {
            self.stats.duplicates += 1;
        } else if seq == self.cumulative && self.ahead.is_empty() {
            self.cumulative += 1;
            self.stats.bytes += u64::from(bytes);
        } else if !self.keep(seq - self.cumulative, bytes) {
            return None;
        }
        Some(Ack { cumulative: self.cumulative, seq, tx })
    }

    fn keep(&mut self, offset: u64, bytes: u16) -> bool {
        if offset >= MAX_AHEAD_SEGMENTS {
            self.stats.refused += 1;
            return false;
        }
        let index = offset as usize;
        if self.ahead.len() <= index {
            self.ahead.resize(index + 1, false);
        }
        if std::mem::replace(&mut self.ahead[index], true) {
            self.stats.duplicates += 1;
        } else {
            self.stats.bytes += u64::from(bytes);
        }
        while self.ahead.front() == Some(&true) {
            self.ahead.pop_front();
            self.cumulative += 1;
        }
        true
    }

    /// The next segment expected in order.
    pub fn cumulative(&self) -> u64 {
        self.cumulative
    }

    /// What it has counted.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn refuses_what_lies_too_far_ahead() {
        let mut r = Receiver::default();
        assert_eq!(r.on_segment(MAX_AHEAD_SEGMENTS, 0, 1500), None);
        assert!(r.on_segment(MAX_AHEAD_SEGMENTS - 1, 0, 1500).is_some());
        assert_eq!(r.stats(), ReceiverStats { arrived: 2, duplicates: 0, refused: 1, bytes: 1500 });
    }

    proptest! {
        /// Against a set of numbers: any order, any duplicates.
        #[test]
        fn acknowledges_like_a_set(segments in prop::collection::vec(0u64..60, 1..200)) {
            let (mut r, mut seen) = (Receiver::default(), BTreeSet::new());
            for (tx, seq) in segments.iter().enumerate() {
                seen.insert(*seq);
                let cumulative = (0..).find(|n| !seen.contains(n)).unwrap();
                let ack = r.on_segment(*seq, tx as u64, 100);
                prop_assert_eq!(ack, Some(Ack { cumulative, seq: *seq, tx: tx as u64 }));
            }
            let unique = seen.len() as u64;
            let arrived = segments.len() as u64;
            prop_assert_eq!(r.stats(), ReceiverStats {
                arrived, duplicates: arrived - unique, refused: 0, bytes: unique * 100,
            });
            prop_assert_eq!(r.ahead.iter().filter(|here| **here).count() as u64, unique - r.cumulative());
        }
    }
}

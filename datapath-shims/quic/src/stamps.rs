//! Delivery state at the time of each transmission, for rate samples.
//!
//! quinn names an acknowledged packet by its send time only, so that is the key.

use ccplane_engine::rate::SendStamp;
use std::collections::VecDeque;

/// Stamps that are kept, at most.
///
/// Where a window is sent in more calls than that, fewer are taken, evenly: a rate is then sampled over a little more
/// than the round trip.
pub(crate) const MAX_STAMPS: usize = 256;

/// The stamps of packets in flight, oldest first, at most one per send time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Stamps {
    kept: VecDeque<SendStamp>,
    /// Least time between two stamps, nanoseconds.
    gap_ns: u64,
}

impl Stamps {
    /// Adds the stamp of a packet sent now, not before any other one.
    pub(crate) fn push(&mut self, stamp: SendStamp) {
        if self.kept.back().is_some_and(|last| stamp.sent_ns <= last.sent_ns + self.gap_ns) {
            return;
        }
        if self.kept.len() == MAX_STAMPS {
            self.thin();
        }
        self.kept.push_back(stamp);
    }

    #[cold]
    fn thin(&mut self) {
        let (Some(first), Some(last)) = (self.kept.front(), self.kept.back()) else { return };
        self.gap_ns = (last.sent_ns - first.sent_ns) / (MAX_STAMPS as u64 / 2);
        let (gap_ns, mut kept_ns) = (self.gap_ns, None);
        self.kept.retain(|stamp| {
            let keep = kept_ns.is_none_or(|at_ns| stamp.sent_ns > at_ns + gap_ns);
            if keep {
                kept_ns = Some(stamp.sent_ns);
            }
            keep
        });
    }

    /// Takes the stamp of this send time, or the last one kept before it. Older ones are forgotten.
    pub(crate) fn take(&mut self, sent_ns: u64) -> Option<SendStamp> {
        let until = self.kept.partition_point(|stamp| stamp.sent_ns <= sent_ns);
        let found = self.kept.get(until.checked_sub(1)?).copied();
        self.kept.drain(..until - 1);
        if self.kept.len() < MAX_STAMPS / 8 {
            self.gap_ns = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_engine::rate::RateSampler;

    fn sent_at(stamps: &mut Stamps, times_ns: impl IntoIterator<Item = u64>) {
        let mut rates = RateSampler::default();
        times_ns.into_iter().for_each(|at| stamps.push(rates.on_send(at, false)));
    }

    fn take(stamps: &mut Stamps, sent_ns: u64) -> Option<u64> {
        stamps.take(sent_ns).map(|s| s.sent_ns)
    }

    #[test]
    fn the_stamp_of_a_send_time_or_the_last_before_is_found() {
        let mut stamps = Stamps::default();
        assert_eq!(take(&mut stamps, 5), None);
        sent_at(&mut stamps, [10, 20, 20, 30, 40]);
        assert_eq!(take(&mut stamps, 9), None);
        assert_eq!(take(&mut stamps, 20), Some(20));
        assert_eq!(take(&mut stamps, 10), None, "late ones are forgotten");
        assert_eq!(take(&mut stamps, 20), Some(20), "the rest of the same burst is not");
        assert_eq!((take(&mut stamps, 39), take(&mut stamps, 1000)), (Some(30), Some(40)));
    }

    #[test]
    fn a_large_window_is_thinned() {
        let mut stamps = Stamps::default();
        sent_at(&mut stamps, 0..10_000);
        assert!(stamps.kept.len() <= MAX_STAMPS && stamps.kept.capacity() <= 2 * MAX_STAMPS);
        for sent_ns in [1, 1000, 5000, 9999] {
            let found_ns = take(&mut stamps, sent_ns).unwrap();
            assert!(found_ns <= sent_ns && sent_ns - found_ns <= 128, "{sent_ns}: {found_ns}");
        }
    }
}

//! What a flow's transmissions remember of its deliveries, by the time they left: quinn names an acknowledged packet by
//! nothing else.

use ccplane_engine::rate::SendStamp;
use std::collections::VecDeque;

/// Stamps that are kept. Of a window sent in more calls than that, every second one goes, again and again: a rate is then
/// taken over a little more than the round trip, and stays a rate that was.
const MAX_STAMPS: usize = 256;

/// The stamps of what is in flight, oldest first, one for all that left at the same time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Stamps(VecDeque<SendStamp>);

impl Stamps {
    /// Something left, not before anything else did.
    pub(crate) fn push(&mut self, stamp: SendStamp) {
        if self.0.back().is_some_and(|last| stamp.sent_ns <= last.sent_ns) {
            return;
        }
        if self.0.len() == MAX_STAMPS {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.0.push_back(stamp);
    }

    /// The stamp of what left at this time, or of the last that is kept before it. Older ones are forgotten.
    pub(crate) fn take(&mut self, sent_ns: u64) -> Option<SendStamp> {
        let until = self.0.partition_point(|stamp| stamp.sent_ns <= sent_ns);
        let found = self.0.get(until.checked_sub(1)?).copied();
        self.0.drain(..until - 1);
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
    fn finds_what_left_then_or_before() {
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
        assert!(stamps.0.len() <= MAX_STAMPS && stamps.0.capacity() <= 2 * MAX_STAMPS);
        for sent_ns in [1, 1000, 5000, 9999] {
            let found_ns = take(&mut stamps, sent_ns).unwrap();
            assert!(found_ns <= sent_ns && sent_ns - found_ns <= 128, "{sent_ns}: {found_ns}");
        }
    }
}

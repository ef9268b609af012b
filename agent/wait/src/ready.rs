//! Marks of queues that have something, as bits: producers mark them, and one reader takes the marks without touching a queue.
//!
//! A second level has a bit for each word of the first. Finding nothing costs one load, and finding something costs by the
//! number of words with marks, however many queues there are.

use crate::atomic::{AtomicU64, Ordering};

/// Queues of one word.
const WORD_QUEUES: usize = u64::BITS as usize;
/// Queues that a bitmap may have.
pub const MAX_QUEUES: usize = WORD_QUEUES * WORD_QUEUES;

/// The queues are more than the bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} queues, 1 to {MAX_QUEUES} are expected")]
pub struct QueuesError {
    /// The number of queues asked for.
    pub found: usize,
}

/// The marks of some queues.
#[derive(Debug)]
pub struct Ready {
    /// A bit for each word that may have marks.
    summary: AtomicU64,
    words: Box<[AtomicU64]>,
    queues: usize,
}

impl Ready {
    /// Creates a bitmap without marks.
    ///
    /// # Errors
    /// There are no queues, or more than [`MAX_QUEUES`].
    pub fn new(queues: usize) -> Result<Ready, QueuesError> {
        if queues == 0 || queues > MAX_QUEUES {
            return Err(QueuesError { found: queues });
        }
        let words = (0..queues.div_ceil(WORD_QUEUES)).map(|_| AtomicU64::new(0)).collect();
        Ok(Ready { summary: AtomicU64::new(0), words, queues })
    }

    /// The number of queues.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Marks a queue, after something was put into it. A queue that does not exist is passed over.
    #[inline]
    pub fn mark(&self, queue: usize) {
        let Some(word) = self.words.get(queue / WORD_QUEUES) else { return };
        // Even where the mark is there already: the reader has to see what was put in before this one.
        let before = word.fetch_or(1 << (queue % WORD_QUEUES), Ordering::AcqRel);
        if before == 0 {
            self.summary.fetch_or(1 << (queue / WORD_QUEUES), Ordering::AcqRel);
        }
    }

    /// Whether no queue is marked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.load(Ordering::Relaxed) == 0
    }

    /// Takes all marks, and hands over the queues in order; returns how many there were.
    pub fn take(&self, mut each: impl FnMut(usize)) -> usize {
        let mut taken = 0;
        // The summary goes first: a mark that comes after it brings its own bit of the summary.
        for at in bits(self.summary.swap(0, Ordering::AcqRel)) {
            let Some(word) = self.words.get(at) else { continue };
            for bit in bits(word.swap(0, Ordering::AcqRel)) {
                taken += 1;
                each(at * WORD_QUEUES + bit);
            }
        }
        taken
    }
}

/// The places of a word's bits, the lowest first.
fn bits(word: u64) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)))
        .take_while(|word| *word != 0)
        .map(|word| word.trailing_zeros() as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn marks_are_taken_once_and_in_order(
            queues in 1..=MAX_QUEUES,
            rounds in proptest::collection::vec(proptest::collection::vec(any::<usize>(), 0..40), 1..4),
        ) {
            let ready = Ready::new(queues).unwrap();
            for marks in rounds {
                let marked: BTreeSet<usize> = marks.iter().map(|mark| mark % queues).collect();
                marks.iter().for_each(|mark| ready.mark(mark % queues));
                prop_assert_eq!(ready.is_empty(), marked.is_empty());
                let mut taken = Vec::new();
                prop_assert_eq!(ready.take(|queue| taken.push(queue)), marked.len());
                prop_assert_eq!(taken, marked.into_iter().collect::<Vec<_>>());
                prop_assert!(ready.is_empty());
            }
        }
    }

    #[test]
    fn a_bitmap_has_a_queue_and_not_too_many() {
        assert_eq!(Ready::new(0).unwrap_err(), QueuesError { found: 0 });
        assert_eq!(Ready::new(MAX_QUEUES + 1).unwrap_err(), QueuesError { found: MAX_QUEUES + 1 });
        let ready = Ready::new(65).unwrap();
        ready.mark(1_000_000);
        assert!(ready.is_empty());
    }
}

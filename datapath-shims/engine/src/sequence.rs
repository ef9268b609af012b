//! Words under a sequence counter: one thread writes them without waiting, any other reads them without stopping it.

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, fence, spin_loop, yield_now};

/// Attempts to read before the writer's thread is given the processor.
const SPINS: u32 = 100;

/// `N` words that are always read as one of the arrays that were written.
#[derive(Debug)]
pub(crate) struct SequenceCell<const N: usize> {
    /// Odd while the words are written.
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> SequenceCell<N> {
    pub(crate) fn new(words: [u64; N]) -> SequenceCell<N> {
        SequenceCell { sequence: AtomicU64::new(0), words: words.map(AtomicU64::new) }
    }

    /// Writes the words; only one thread may.
    #[inline]
    pub(crate) fn write(&self, words: [u64; N]) {
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Relaxed);
        // A reader of one of the words below reads the odd number too.
        fence(Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Release);
    }

    /// Returns the array that was written last.
    pub(crate) fn read(&self) -> [u64; N] {
        let mut tries = 0u32;
        loop {
            let before = self.sequence.load(Acquire);
            let words = std::array::from_fn(|n| self.words[n].load(Relaxed));
            fence(Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Relaxed) == before {
                return words;
            }
            tries += 1;
            if tries.is_multiple_of(SPINS) {
                yield_now();
            } else {
                spin_loop();
            }
        }
    }
}

//! A heap of events whose first place stays vacant until the next event comes: most that happen bring the next of their
//! kind, which then only sinks from there.

use super::Key;

/// An event, as a number, and its place in the order.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) what: u64,
}

/// A binary heap, least key first.
#[derive(Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
    /// Whether the first entry has been taken and none has come in its place.
    vacant: bool,
}

impl Heap {
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        if std::mem::take(&mut self.vacant) {
            self.sink(entry);
        } else {
            self.entries.push(entry);
            self.rise(entry);
        }
    }

    /// Returns the first key; [`Key::NEVER`] of an empty heap.
    #[inline]
    pub(super) fn first(&mut self) -> Key {
        if std::mem::take(&mut self.vacant)
            && let Some(last) = self.entries.pop()
            && !self.entries.is_empty()
        {
            self.sink(last);
        }
        self.entries.first().map_or(Key::NEVER, |entry| entry.key)
    }

    /// Takes the first event, whose key [`Heap::first`] has just returned.
    #[inline]
    pub(super) fn take(&mut self) -> u64 {
        self.vacant = true;
        self.entries.first().map_or(0, |entry| entry.what)
    }

    /// Moves the last entry up to its place.
    fn rise(&mut self, entry: Entry) {
        let mut at = self.entries.len() - 1;
        while at > 0 {
            let above = self.entries[(at - 1) / 2];
            if above.key.rank() < entry.key.rank() {
                break;
            }
            self.entries[at] = above;
            at = (at - 1) / 2;
        }
        self.entries[at] = entry;
    }

    /// Puts an entry into the first place, and moves it down to its own.
    fn sink(&mut self, entry: Entry) {
        let (mut at, len) = (0, self.entries.len());
        loop {
            let mut below = 2 * at + 1;
            if below >= len {
                break;
            }
            if below + 1 < len {
                let right_first = self.entries[below + 1].key.rank() < self.entries[below].key.rank();
                below += usize::from(right_first);
            }
            if entry.key.rank() < self.entries[below].key.rank() {
                break;
            }
            self.entries[at] = self.entries[below];
            at = below;
        }
        self.entries[at] = entry;
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - usize::from(self.vacant)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }
}

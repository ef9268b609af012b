//! A tournament among places of which each has one time: who is first, found in as many steps as the tree is high.
//!
//! A place's new time is played out from its leaf to the root, always over the same nodes. So the processor guesses no
//! branch, as it would in a heap of so few.

use super::Key;

/// Places with a key each; [`Key::NEVER`] waits for nothing.
#[derive(Default)]
pub(super) struct Tournament {
    /// One key for each leaf of the tree; those behind the last place wait for nothing.
    keys: Vec<Key>,
    places: usize,
    /// The places, as leaves, in the second half; before it the winner of each pair, from 1, which is the first of all.
    winners: Vec<u32>,
}

impl Tournament {
    /// Adds a place, and returns its number, from 0.
    pub(super) fn add(&mut self) -> usize {
        let place = self.places;
        self.places += 1;
        if self.places > self.keys.len() {
            self.grow();
        }
        place
    }

    /// Makes the tree one level higher.
    fn grow(&mut self) {
        let leaves = self.places.next_power_of_two();
        self.keys.resize(leaves, Key::NEVER);
        let (inner, places) = (std::iter::repeat_n(0, leaves), 0..leaves as u32);
        self.winners = inner.chain(places).collect();
        (0..leaves).for_each(|place| self.play(place));
    }

    /// Returns the first place and its key; [`Key::NEVER`] where none waits for anything.
    #[inline]
    pub(super) fn first(&self) -> (usize, Key) {
        let first = self.winners.get(1).map_or(0, |winner| *winner as usize);
        (first, self.keys.get(first).copied().unwrap_or(Key::NEVER))
    }

    /// Gives a place another key.
    #[inline]
    pub(super) fn set(&mut self, place: usize, key: Key) {
        self.keys[place] = key;
        self.play(place);
    }

    #[inline]
    fn play(&mut self, place: usize) {
        let mut node = (self.keys.len() + place) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            let right_wins = self.keys[right as usize].rank() < self.keys[left as usize].rank();
            self.winners[node] = if right_wins { right } else { left };
            node /= 2;
        }
    }

    /// Returns the number of places that wait for something.
    pub(super) fn waiting(&self) -> usize {
        self.keys.iter().filter(|key| **key != Key::NEVER).count()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>() + self.winners.capacity() * size_of::<u32>()
    }
}

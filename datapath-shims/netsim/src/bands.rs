//! Packets that wait by priority: the lowest number is served first, and room is made at the highest.

use std::collections::VecDeque;

/// A first-in, first-out queue for each of `N` priorities.
#[derive(Debug)]
pub struct Bands<P, const N: usize>([VecDeque<P>; N]);

impl<P, const N: usize> Default for Bands<P, N> {
    fn default() -> Bands<P, N> {
        Bands(std::array::from_fn(|_| VecDeque::new()))
    }
}

impl<P, const N: usize> Bands<P, N> {
    /// Adds a packet behind those of its priority; one beyond the last is served with the last.
    pub fn push(&mut self, priority: usize, packet: P) {
        if let Some(band) = self.0.get_mut(priority.min(N.saturating_sub(1))) {
            band.push_back(packet);
        }
    }

    /// Takes the oldest packet of the first priority that has one.
    pub fn pop(&mut self) -> Option<P> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Takes the newest packet of the last priority that has one, if that comes at or behind `from`.
    pub fn pop_last_from(&mut self, from: usize) -> Option<P> {
        self.0.get_mut(from..)?.iter_mut().rev().find_map(VecDeque::pop_back)
    }

    /// Returns the packets in the order of their service.
    pub fn iter(&self) -> impl Iterator<Item = &P> {
        self.0.iter().flatten()
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Returns the number of packets that fit without another allocation.
    pub fn capacity(&self) -> usize {
        self.0.iter().map(VecDeque::capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Operation {
        Push(usize),
        Pop,
        PopLastFrom(usize),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            3 => (0usize..6).prop_map(Operation::Push),
            1 => Just(Operation::Pop),
            1 => (0usize..6).prop_map(Operation::PopLastFrom),
        ]
    }

    proptest! {
        /// A sorted list of (priority, turn) says the same.
        #[test]
        fn serves_as_a_sorted_list_does(operations in prop::collection::vec(operation(), 0..60)) {
            let (mut bands, mut list) = (Bands::<_, 4>::default(), Vec::new());
            for (turn, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Push(priority) => {
                        bands.push(priority, (priority.min(3), turn));
                        list.push((priority.min(3), turn));
                        list.sort_unstable();
                    }
                    Operation::Pop => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(bands.pop(), first);
                    }
                    Operation::PopLastFrom(from) => {
                        let last = list.last().copied().filter(|(priority, _)| *priority >= from);
                        prop_assert_eq!(bands.pop_last_from(from), last);
                        list.truncate(list.len() - usize::from(last.is_some()));
                    }
                }
                prop_assert!(bands.iter().eq(&list));
                prop_assert_eq!((bands.len(), bands.is_empty()), (list.len(), list.is_empty()));
                prop_assert!(bands.capacity() >= bands.len());
            }
        }
    }
}

//! The programs in a libccp datapath's table, by their names on the wire.
//!
//! libccp puts a program into the first free place, never frees one, and forgets all of them when it installs
//! [`CLEAR_UID`]. So what lies where is known from then on. Before, only the programs are known that flows report.

use std::collections::{BTreeSet, HashSet};

/// Places of the table: one less than its usual size of 10, since libccp never uses the last one.
pub(super) const PLACES: usize = 9;
/// The name at which libccp forgets all programs and takes this one into the first place.
pub(super) const CLEAR_UID: u32 = 1;
/// The name of programs that only keep a place, so that a flow of an earlier agent that has its program there is heard.
pub(super) const FILLER_UID: u32 = 2;
/// The smallest name of a program that algorithms bring.
pub(super) const FIRST_UID: u32 = 3;

/// A datapath's table as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The programs in their places; `None` while those of an earlier agent may lie there.
    places: Option<Vec<u32>>,
    /// Programs that flows of an earlier agent report.
    seen: HashSet<u32>,
}

/// The way of one more program into the table.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ProgramRoom {
    /// The program is there.
    Held,
    /// The table's programs are not known: the flows that run them are to be heard first.
    Unknown,
    /// The next place is free.
    Append,
    /// The table is cleared, then filled with these.
    Rewrite(Vec<u32>),
    /// Flows run all programs that are there.
    Full,
}

impl Table {
    /// Notes that the datapath has just started, with an empty table.
    pub(super) fn emptied(&mut self) {
        self.places = Some(Vec::new());
        self.seen.clear();
    }

    /// Notes that the table does not hold what it should.
    pub(super) fn doubted(&mut self) {
        self.places = None;
        self.seen.clear();
    }

    /// Notes that a flow of an earlier agent reports a program.
    pub(super) fn saw(&mut self, uid: u32) {
        if self.places.is_none() && uid >= FIRST_UID {
            self.seen.insert(uid);
        }
    }

    /// Whether every place is known.
    pub(super) fn is_known(&self) -> bool {
        self.places.is_some()
    }

    /// Finds room for `uid`. `in_use`: programs of flows.
    pub(super) fn room(&self, uid: u32, in_use: &BTreeSet<u32>) -> ProgramRoom {
        let Some(places) = &self.places else {
            return if self.seen.contains(&uid) { ProgramRoom::Held } else { ProgramRoom::Unknown };
        };
        if places.contains(&uid) {
            return ProgramRoom::Held;
        }
        if places.is_empty() {
            return ProgramRoom::Rewrite(vec![CLEAR_UID, uid]);
        }
        if places.len() < PLACES {
            return ProgramRoom::Append;
        }
        let unused = |held: &u32| *held == FILLER_UID || (*held >= FIRST_UID && !in_use.contains(held));
        let place = places.iter().position(|held| *held == FILLER_UID);
        let Some(place) = place.or_else(|| places.iter().position(unused)) else { return ProgramRoom::Full };
        let mut places = places.clone();
        places[place] = uid;
        ProgramRoom::Rewrite(places)
    }

    /// A table by which every flow is heard, whatever its place: it reports at its next ACK.
    pub(super) fn beacons() -> Vec<u32> {
        let mut places = vec![FILLER_UID; PLACES];
        places[0] = CLEAR_UID;
        places
    }

    /// A table of the programs of flows, then of those that may be wanted later, each at the place that its name tells.
    pub(super) fn filled(in_use: &BTreeSet<u32>, loaded: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut places = Table::beacons();
        for uid in in_use.iter().copied().chain(loaded) {
            put(&mut places, uid);
        }
        places
    }

    /// Notes that `uid` was sent into the next place.
    pub(super) fn appended(&mut self, uid: u32) {
        if let Some(places) = &mut self.places {
            places.push(uid);
        }
    }

    /// Notes that the table was cleared and filled with `places`.
    pub(super) fn rewritten(&mut self, places: Vec<u32>) {
        self.places = Some(places);
        self.seen.clear();
    }
}

/// Puts a program into a place that its name tells, or the next free one: so that each agent puts it into the same, and
/// a flow without ACKs meanwhile seldom comes upon another one.
fn put(places: &mut [u32], uid: u32) {
    let count = places.len() - 1;
    let first = uid as usize % count;
    let mut free = (first..first + count).map(|n| 1 + n % count).filter(|n| places[*n] == FILLER_UID);
    let place = free.next();
    drop(free);
    if let Some(place) = place.filter(|_| !places.contains(&uid)) {
        places[place] = uid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used<const N: usize>(uids: [u32; N]) -> BTreeSet<u32> {
        uids.into()
    }

    #[test]
    fn a_fresh_table_fills_up_place_by_place() {
        let mut table = Table::default();
        table.emptied();
        assert_eq!(table.room(10, &used([])), ProgramRoom::Rewrite(vec![CLEAR_UID, 10]));
        table.rewritten(vec![CLEAR_UID, 10]);
        for uid in 11..18 {
            assert_eq!(table.room(uid, &used([])), ProgramRoom::Append);
            table.appended(uid);
        }
        assert_eq!(table.room(17, &used([])), ProgramRoom::Held);
        let all = used([10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(table.room(18, &all), ProgramRoom::Full);
        let mut rest = all;
        rest.remove(&12);
        let places = vec![CLEAR_UID, 10, 11, 18, 13, 14, 15, 16, 17];
        assert_eq!(table.room(18, &rest), ProgramRoom::Rewrite(places), "the others stay where they are");
    }

    #[test]
    fn an_earlier_agents_table_is_used_as_far_as_it_is_seen() {
        let mut table = Table::default();
        table.saw(FILLER_UID);
        table.saw(30);
        assert!(!table.is_known());
        assert_eq!(table.room(30, &used([])), ProgramRoom::Held);
        assert_eq!(table.room(40, &used([30])), ProgramRoom::Unknown);
        table.rewritten(Table::beacons());
        assert_eq!(table.room(40, &used([30])), ProgramRoom::Rewrite(vec![1, 40, 2, 2, 2, 2, 2, 2, 2]));
        let places = Table::filled(&used([30, 40]), [30, 50]);
        let filled = [CLEAR_UID, 40, FILLER_UID, 50, FILLER_UID, FILLER_UID, FILLER_UID, 30, FILLER_UID];
        assert_eq!(places, filled, "every place is filled, by names");
        table.rewritten(places);
        let ProgramRoom::Rewrite(places) = table.room(60, &used([])) else { panic!() };
        assert_eq!(places[..4], [CLEAR_UID, 40, 60, 50], "in the place of a filler");
        let most = Table::filled(&(70..78).collect(), 80..90);
        assert!((70..78).all(|uid| most.contains(&uid)), "what flows run comes first: {most:?}");
    }
}

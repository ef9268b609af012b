//! The agent's model of a datapath's slots. Commands are not waited for, so it holds their expected results until the
//! datapath reports its slots.

use ccplane_contract::slots::check_push;
use ccplane_contract::{DatapathError, Part, SlotStats, SnapshotUid};
use ccplane_infer::Shape;
use ccplane_infer::image::{self, NAME_WORDS};
use ccplane_program::ir::MAX_POLICY_SLOTS;
use std::collections::BTreeMap;

/// The slots of one datapath.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: BTreeMap<u8, SlotStats>,
    /// Names of the snapshots that have a part, by slot and uid.
    names: BTreeMap<(u8, SnapshotUid), [u64; NAME_WORDS]>,
    /// The GET_SLOTS whose answer is of use: nothing was asked for since.
    asking: Option<u32>,
}

impl Slots {
    /// Creates the model from the slots that the datapath lists at the start.
    pub(super) fn new(said: impl Iterator<Item = SlotStats>) -> Slots {
        let mut slots = Slots::default();
        slots.adopt(said);
        slots
    }

    /// All of them, as [`Datapath::slots`](ccplane_contract::Datapath::slots) lists them.
    pub(super) fn stats(&self) -> Vec<SlotStats> {
        self.slots.values().cloned().collect()
    }

    /// Returns the shape of a defined slot.
    pub(super) fn shape(&self, slot: u8) -> Option<Shape> {
        self.slots.get(&slot).map(|s| s.shape)
    }

    /// GET_SLOTS was sent under this number.
    pub(super) fn asked(&mut self, request: u32) {
        self.asking = Some(request);
    }

    /// The answer to GET_SLOTS; of no use if something was asked for since.
    pub(super) fn answered(&mut self, request: u32, said: impl Iterator<Item = SlotStats>) {
        if self.asking == Some(request) {
            self.adopt(said);
        }
    }

    fn adopt(&mut self, said: impl Iterator<Item = SlotStats>) {
        self.slots = said.map(|stats| (stats.slot, stats)).collect();
        for stats in self.slots.values() {
            if let Some(active) = stats.active {
                self.names.insert((stats.slot, active), stats.active_name);
            }
        }
        self.forget_names();
    }

    /// Whether the slot may be defined so.
    pub(super) fn check_define(&self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return Err(DatapathError::NoSlot(slot));
        }
        match self.slots.get(&slot) {
            Some(stats) if stats.shape != *shape => Err(DatapathError::OtherShape { slot }),
            _ => Ok(()),
        }
    }

    /// Notes a definition that was sent.
    pub(super) fn define(&mut self, slot: u8, shape: &Shape) {
        self.asking = None;
        self.slots.entry(slot).or_insert(SlotStats {
            slot,
            shape: *shape,
            active: None,
            active_name: [0; NAME_WORDS],
            canary: None,
            canary_share: 0,
            last_good: None,
        });
    }

    /// Whether `image` may be pushed.
    pub(super) fn check_push(&self, slot: u8, image: &[u64]) -> Result<(), DatapathError> {
        let stats = self.get(slot)?;
        let held = [stats.active, stats.canary, stats.last_good].into_iter().flatten();
        check_push(slot, &stats.shape, image, held.map(|uid| uid.0)).map(drop)
    }

    /// Notes a push that was sent.
    pub(super) fn push(&mut self, slot: u8, image: &[u64], part: Part) {
        let uid = SnapshotUid(image::u32_at(image, image::UID));
        let name = std::array::from_fn(|n| image::u64_at(image, image::NAME + 8 * n));
        self.names.insert((slot, uid), name);
        self.change(slot, |stats| match part {
            Part::Active => make_active(stats, uid),
            Part::Canary { share } => (stats.canary, stats.canary_share) = (Some(uid), share),
        });
    }

    /// Whether there is a canary to promote, or to give a share.
    pub(super) fn check_canary(&self, slot: u8) -> Result<(), DatapathError> {
        match self.get(slot)?.canary {
            Some(_) => Ok(()),
            None => Err(DatapathError::NoSnapshot { slot, what: "canary" }),
        }
    }

    /// Notes a share that was sent.
    pub(super) fn share(&mut self, slot: u8, share: u16) {
        self.change(slot, |stats| stats.canary_share = share);
    }

    /// Notes a promotion that was sent.
    pub(super) fn promote(&mut self, slot: u8) {
        self.change(slot, |stats| {
            if let Some(canary) = stats.canary {
                make_active(stats, canary);
            }
        });
    }

    /// Whether there is anything to go back to.
    pub(super) fn check_rollback(&self, slot: u8) -> Result<(), DatapathError> {
        let stats = self.get(slot)?;
        if stats.canary.is_none() && stats.last_good.is_none() {
            return Err(DatapathError::NoSnapshot { slot, what: "last good snapshot" });
        }
        Ok(())
    }

    /// Notes a rollback that was sent.
    pub(super) fn rollback(&mut self, slot: u8) {
        self.change(slot, |stats| match stats.canary.take() {
            Some(_) => stats.canary_share = 0,
            None => stats.active = stats.last_good.take(),
        });
    }

    fn get(&self, slot: u8) -> Result<&SlotStats, DatapathError> {
        self.slots.get(&slot).ok_or(DatapathError::NoSlot(slot))
    }

    fn change(&mut self, slot: u8, change: impl FnOnce(&mut SlotStats)) {
        self.asking = None;
        let Some(stats) = self.slots.get_mut(&slot) else { return };
        change(stats);
        let name = stats.active.and_then(|uid| self.names.get(&(slot, uid)));
        stats.active_name = name.copied().unwrap_or_default();
        self.forget_names();
    }

    fn forget_names(&mut self) {
        let slots = &self.slots;
        self.names.retain(|(slot, uid), _| {
            slots.get(slot).is_some_and(|s| [s.active, s.canary, s.last_good].contains(&Some(*uid)))
        });
    }
}

/// Changes the statistics as [`ccplane_contract::slots::pushed`] does with buffers.
fn make_active(stats: &mut SlotStats, uid: SnapshotUid) {
    stats.last_good = stats.active.replace(uid).or(stats.last_good);
    (stats.canary, stats.canary_share) = (None, 0);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use ccplane_contract::SlotTable;
    use ccplane_contract::suite::images;
    use ccplane_infer::Bits;
    use proptest::prelude::*;

    fn named(shape: &Shape, uid: u32) -> Vec<u64> {
        let mut image = images::idle(shape, uid);
        image::set_u64(&mut image, image::NAME, u64::from(uid) << 8);
        image
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        /// A datapath does what is expected of it.
        #[test]
        fn expects_what_a_datapath_does(ops in prop::collection::vec((0_u8..6, 0_u8..2, any::<u16>()), 1..60)) {
            let shapes = [[2, 1], [3, 1]].map(|widths| Shape::new(Bits::W8, &widths).unwrap());
            let (mut table, mut slots) = (SlotTable::plain(), Slots::default());
            for ((op, slot, share), uid) in ops.into_iter().zip(1..) {
                let shape = shapes[usize::from(share % 2)];
                let part = if share % 3 == 0 { Part::Active } else { Part::Canary { share } };
                let image = named(&shape, uid);
                let (checked, done) = match op {
                    0 => (slots.check_define(slot, &shape), table.define(slot, &shape)),
                    1 | 2 => (slots.check_push(slot, &image), table.push(slot, &image, part)),
                    3 => (slots.check_canary(slot), table.share(slot, share)),
                    4 => (slots.check_canary(slot), table.promote(slot)),
                    _ => (slots.check_rollback(slot), table.rollback(slot)),
                };
                prop_assert_eq!(&checked, &done);
                if checked.is_ok() {
                    match op {
                        0 => slots.define(slot, &shape),
                        1 | 2 => slots.push(slot, &image, part),
                        3 => slots.share(slot, share),
                        4 => slots.promote(slot),
                        _ => slots.rollback(slot),
                    }
                }
                prop_assert_eq!(slots.stats(), table.stats());
            }
            prop_assert!(slots.names.len() <= 6);
        }
    }

    /// The datapath's word counts, unless it was given before the last command came to it.
    #[test]
    fn an_answer_that_is_out_of_date_is_of_no_use() {
        let shape = Shape::new(Bits::W8, &[2, 1]).unwrap();
        let mut slots = Slots::default();
        slots.define(0, &shape);
        let said = SlotStats { canary: None, active: Some(SnapshotUid(9)), ..slots.stats()[0].clone() };
        slots.asked(5);
        slots.push(0, &named(&shape, 1), Part::Active);
        slots.answered(5, std::iter::once(said.clone()));
        assert_eq!(slots.stats()[0].active, Some(SnapshotUid(1)));
        slots.asked(6);
        slots.answered(6, std::iter::once(said.clone()));
        assert_eq!(slots.stats(), [said]);
    }
}

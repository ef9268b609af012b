//! The policy slots on the agent's side: snapshots in memory that programs read at any time.
//!
//! A push writes to a buffer that has had no part for a while: its uid first (0) and last. Then it changes the slot's
//! control word. That is one store, and every decision that begins after it uses the new word. The commands' effects on
//! the parts are the contract's ([`ccplane_contract::slots`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use ccplane_contract::slots::{
    check_push, dropped, free_buffer, promoted, pushed, rolled_back, shared, slot_stats,
};
use ccplane_contract::{DatapathError, Part, SlotStats};
use ccplane_infer::image::{CLIP_LIMIT, NAME, UID, u32_at};
use ccplane_infer::{BUFFERS, Control, Shape};
use ccplane_nn_codegen::bpf;
use ccplane_program::ir::MAX_POLICY_SLOTS;

use crate::layout::policy;
use crate::policy::Slots;
use ccplane_bpf::SharedMap;

/// Time for which a buffer rests after it lost its part, microseconds.
///
/// A decision that has chosen it takes well under a microsecond; one whose processor is taken away for longer than this
/// finds the uid changed.
pub const GRACE_US: u64 = 100;

/// Writes the commands on the deployments of a datapath that keeps a [`SlotMemory`] in this field.
macro_rules! deployment_commands {
    ($slots:ident) => {
        fn push(
            &mut self,
            slot: u8,
            image: &[u64],
            part: ccplane_contract::Part,
        ) -> Result<(), ccplane_contract::DatapathError> {
            self.$slots.push(slot, image, part, ccplane_files::monotonic_us())
        }
        fn share(&mut self, slot: u8, share: u16) -> Result<(), ccplane_contract::DatapathError> {
            self.$slots.share(slot, share, ccplane_files::monotonic_us())
        }
        fn promote(&mut self, slot: u8) -> Result<(), ccplane_contract::DatapathError> {
            self.$slots.promote(slot, ccplane_files::monotonic_us())
        }
        fn rollback(&mut self, slot: u8) -> Result<(), ccplane_contract::DatapathError> {
            self.$slots.rollback(slot, ccplane_files::monotonic_us())
        }
        fn slots(&mut self) -> Vec<ccplane_contract::SlotStats> {
            self.$slots.stats()
        }
    };
}
pub(crate) use deployment_commands;

/// The memory of all slots.
pub struct SlotMemory {
    memory: SharedMap,
}

impl SlotMemory {
    /// Wraps `memory`, which maps all of them.
    pub fn new(memory: SharedMap) -> SlotMemory {
        SlotMemory { memory }
    }

    /// Writes the tables of activations for the programs.
    pub fn fill_tables(&self) {
        for (n, word) in bpf::tables().into_iter().enumerate() {
            self.memory.u64(policy::TABLES as usize + 8 * n).store(word, Relaxed);
        }
    }

    fn block(&self, slot: u8, field: u32) -> usize {
        (policy::slot(slot) + field) as usize
    }

    /// The shape of a slot that was defined.
    pub fn shape(&self, slot: u8) -> Option<Shape> {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return None;
        }
        Shape::from_code(self.memory.u64(self.block(slot, policy::SHAPE)).load(Relaxed))
    }

    /// The slots that programs are compiled against, for the map `map`.
    pub fn shapes(&self, map: i32) -> Slots {
        Slots { map, shapes: std::array::from_fn(|slot| self.shape(slot as u8)) }
    }

    /// Defines a slot, which is then empty; the buffers of a slot that never had a shape need no rest.
    pub fn define(&self, slot: u8, shape: &Shape, now_us: u64) {
        let now_us = if self.shape(slot).is_some() { now_us } else { 0 };
        self.memory.u64(self.block(slot, policy::CONTROL)).store(Control::EMPTY.to_word(), Release);
        for buffer in 0..BUFFERS as u8 {
            self.uid(slot, buffer).store(0, Relaxed);
            self.retire(slot, buffer, now_us);
        }
        self.memory.u64(self.block(slot, policy::SHAPE)).store(shape.code(), Relaxed);
    }

    /// Pushes a snapshot as [`ccplane_contract::Datapath::push`] does.
    pub fn push(&self, slot: u8, image: &[u64], part: Part, now_us: u64) -> Result<(), DatapathError> {
        let shape = self.shape(slot).ok_or(DatapathError::NoSlot(slot))?;
        let uids = self.uids(slot);
        check_push(slot, &shape, image, uids)?;
        let control = self.control(slot);
        let buffer = free_buffer(control, uids).ok_or(DatapathError::SlotBusy { slot })?;
        let retired = self.memory.u64(self.retired(slot, buffer)).load(Relaxed);
        if now_us.saturating_sub(retired) < GRACE_US {
            return Err(DatapathError::SlotBusy { slot });
        }
        self.write(slot, buffer, image);
        self.change(slot, control, pushed(control, buffer, part), now_us);
        Ok(())
    }

    /// Changes the canary's share as [`ccplane_contract::Datapath::share`] does.
    pub fn share(&self, slot: u8, share: u16, now_us: u64) -> Result<(), DatapathError> {
        self.shape(slot).ok_or(DatapathError::NoSlot(slot))?;
        let control = self.control(slot);
        self.change(slot, control, shared(slot, control, share)?, now_us);
        Ok(())
    }

    /// Promotes the canary as [`ccplane_contract::Datapath::promote`] does.
    pub fn promote(&self, slot: u8, now_us: u64) -> Result<(), DatapathError> {
        self.shape(slot).ok_or(DatapathError::NoSlot(slot))?;
        let control = self.control(slot);
        self.change(slot, control, promoted(slot, control)?, now_us);
        Ok(())
    }

    /// Rolls back as [`ccplane_contract::Datapath::rollback`] does.
    pub fn rollback(&self, slot: u8, now_us: u64) -> Result<(), DatapathError> {
        self.shape(slot).ok_or(DatapathError::NoSlot(slot))?;
        let control = self.control(slot);
        let to = rolled_back(slot, control)?;
        self.change(slot, control, to, now_us);
        dropped(control, to).for_each(|buffer| self.uid(slot, buffer).store(0, Release));
        Ok(())
    }

    /// The slots' states as [`ccplane_contract::Datapath::slots`] gives them.
    pub fn stats(&self) -> Vec<SlotStats> {
        let defined = (0..MAX_POLICY_SLOTS as u8).filter_map(|slot| Some((slot, self.shape(slot)?)));
        defined.map(|(slot, shape)| self.slot_stats(slot, &shape)).collect()
    }

    fn slot_stats(&self, slot: u8, shape: &Shape) -> SlotStats {
        let word = |buffer, n| {
            let at = policy::image(slot, buffer) as usize + NAME + 8 * n;
            self.memory.u64(at).load(Relaxed)
        };
        let name = |buffer| std::array::from_fn(|n| word(buffer, n));
        slot_stats(slot, shape, self.control(slot), self.uids(slot), name)
    }

    /// The uid in a buffer; 0 while it holds no image.
    pub fn uid(&self, slot: u8, buffer: u8) -> &std::sync::atomic::AtomicU32 {
        self.memory.u32(policy::image(slot, buffer) as usize + UID)
    }

    fn uids(&self, slot: u8) -> [u32; BUFFERS] {
        std::array::from_fn(|buffer| self.uid(slot, buffer as u8).load(Relaxed))
    }

    fn control(&self, slot: u8) -> Control {
        Control::from_word(self.memory.u64(self.block(slot, policy::CONTROL)).load(Acquire))
    }

    fn retired(&self, slot: u8, buffer: u8) -> usize {
        self.block(slot, policy::RETIRED_US) + 8 * usize::from(buffer)
    }

    fn retire(&self, slot: u8, buffer: u8, now_us: u64) {
        self.memory.u64(self.retired(slot, buffer)).store(now_us, Relaxed);
    }

    /// Writes an image so that a reader of its uid sees the whole of it.
    fn write(&self, slot: u8, buffer: u8, image: &[u64]) {
        let at = policy::image(slot, buffer) as usize;
        self.uid(slot, buffer).store(0, Relaxed);
        fence(Release);
        self.memory.u32(at + CLIP_LIMIT).store(u32_at(image, CLIP_LIMIT), Relaxed);
        for (n, word) in image.iter().enumerate().skip(1) {
            self.memory.u64(at + 8 * n).store(*word, Relaxed);
        }
        self.uid(slot, buffer).store(u32_at(image, UID), Release);
    }

    /// Changes the parts at once; buffers that lost theirs begin to rest.
    fn change(&self, slot: u8, from: Control, to: Control, now_us: u64) {
        self.memory.u64(self.block(slot, policy::CONTROL)).store(to.to_word(), Release);
        dropped(from, to).for_each(|buffer| self.retire(slot, buffer, now_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::SnapshotUid;
    use ccplane_contract::suite::images;
    use ccplane_infer::Bits;
    use std::os::fd::OwnedFd;

    const SLOT: u8 = 2;
    const ACTIVE: Option<SnapshotUid> = Some(SnapshotUid(2));
    const LAST_GOOD: Option<SnapshotUid> = Some(SnapshotUid(1));

    fn agent(file: &OwnedFd) -> SlotMemory {
        SlotMemory::new(SharedMap::new(file, 0, policy::BYTES as usize, true).unwrap())
    }

    fn push(slots: &SlotMemory, shape: &Shape, uid: u32) {
        let now_us = u64::from(uid) * 10 * GRACE_US;
        slots.push(SLOT, &images::idle(shape, uid), Part::Active, now_us).unwrap();
    }

    fn held(slots: &SlotMemory) -> (Option<SnapshotUid>, Option<SnapshotUid>) {
        let stats = slots.stats().remove(0);
        assert_eq!((stats.slot, stats.canary), (SLOT, None));
        (stats.active, stats.last_good)
    }

    /// An agent may die anywhere in a push: the next one finds the slot unchanged, and all buffers can be used again.
    #[test]
    fn a_push_that_was_not_finished_has_no_part() {
        let shape = Shape::new(Bits::W8, &[3, 4, 1]).unwrap();
        let image = images::idle(&shape, 3);
        // The uid is cleared and some words are written; at last all of them and the uid, but no part is changed.
        for words in 0..=image.len() {
            let file = tempfile::tempfile().unwrap();
            file.set_len(policy::BYTES.into()).unwrap();
            let file = OwnedFd::from(file);
            let dead = agent(&file);
            dead.define(SLOT, &shape, 0);
            push(&dead, &shape, 1);
            push(&dead, &shape, 2);
            let buffer = free_buffer(dead.control(SLOT), dead.uids(SLOT)).unwrap();
            let at = policy::image(SLOT, buffer) as usize;
            dead.uid(SLOT, buffer).store(0, Relaxed);
            for (n, word) in image.iter().enumerate().take(words).skip(1) {
                dead.memory.u64(at + 8 * n).store(*word, Relaxed);
            }
            if words == image.len() {
                dead.write(SLOT, buffer, &image);
            }
            drop(dead);

            let next = agent(&file);
            assert_eq!(held(&next), (ACTIVE, LAST_GOOD), "{words} words");
            // Each buffer once, and around.
            for uid in 4..4 + 2 * BUFFERS as u32 {
                push(&next, &shape, uid);
                assert_eq!(held(&next), (Some(SnapshotUid(uid)), held_before(uid)), "{words} words");
                let active = next.control(SLOT).active.unwrap();
                let at = policy::image(SLOT, active) as usize;
                let word = |n: usize| next.memory.u64(at + 8 * n).load(Relaxed);
                let found: Vec<u64> = (0..image.len()).map(word).collect();
                assert_eq!(found, images::idle(&shape, uid), "{words} words, {uid}");
            }
        }
    }

    fn held_before(uid: u32) -> Option<SnapshotUid> {
        if uid == 4 { ACTIVE } else { Some(SnapshotUid(uid - 1)) }
    }
}

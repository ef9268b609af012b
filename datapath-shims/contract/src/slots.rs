//! Policy slots: the effect of each command on them, the same in every shim, and the slot table of user-space
//! datapaths.

use crate::command::Part;
use crate::datapath::SlotStats;
use crate::error::DatapathError;
use crate::ids::SnapshotUid;
use ccplane_infer::image::{self, FEATURES, NAME_WORDS};
use ccplane_infer::{BUFFERS, Control, FlowPolicy, ImageError, Model, Prepared, Shape, Slot, Verdict};
use ccplane_program::ir::{MAX_POLICY_SLOTS, Op, Program, Src};
use ccplane_program::vm::{self, Decision, Policies};
use std::sync::Arc;

/// Whether every policy of `program` asks a slot that `shape_of` knows, with as many inputs as its snapshots take.
///
/// # Errors
/// `NoSlot`, or `Refused` at the instruction that asks.
pub fn check_policies(
    program: &Program,
    shape_of: impl Fn(u8) -> Option<Shape>,
) -> Result<(), DatapathError> {
    let found = program.policy_inputs();
    for (at, inst) in program.insts().iter().enumerate() {
        let (Op::Policy, Src::Imm(slot)) = (inst.op, inst.a) else { continue };
        let slot = slot as u8;
        let inputs = shape_of(slot).ok_or(DatapathError::NoSlot(slot))?.inputs();
        if inputs != found {
            let reason = format!(
                "policy slot {slot} takes {inputs} inputs, the program's histories have {found} cells"
            );
            return Err(DatapathError::Refused { at: Some(at), reason });
        }
    }
    Ok(())
}

/// Whether a slot of this shape may hold `image`, and under which uid.
///
/// # Errors
/// `OtherShape`, or `BadImage` with what [`ccplane_infer::check`] says of it.
pub fn check_image(slot: u8, shape: &Shape, image: &[u64]) -> Result<SnapshotUid, DatapathError> {
    match ccplane_infer::check(shape, image) {
        Ok(()) => Ok(SnapshotUid(image::u32_at(image, image::UID))),
        Err(ImageError::Shape { .. }) => Err(DatapathError::OtherShape { slot }),
        Err(_) if image.len() * 8 >= FEATURES && image::u64_at(image, image::SHAPE) != shape.code() => {
            Err(DatapathError::OtherShape { slot })
        }
        Err(error) => Err(DatapathError::BadImage { reason: error.to_string() }),
    }
}

/// Checks a push of `image` to a slot of this shape that holds images of the uids `held`; returns its uid.
///
/// # Errors
/// As [`check_image`]; `BadImage` if its uid is held.
pub fn check_push(
    slot: u8,
    shape: &Shape,
    image: &[u64],
    held: impl IntoIterator<Item = u32>,
) -> Result<SnapshotUid, DatapathError> {
    let uid = check_image(slot, shape, image)?;
    if held.into_iter().any(|held| held == uid.0) {
        return Err(DatapathError::BadImage { reason: format!("the slot holds its uid {} already", uid.0) });
    }
    Ok(uid)
}

/// The name in an image's head.
fn name(image: &[u64]) -> [u64; NAME_WORDS] {
    std::array::from_fn(|n| image::u64_at(image, image::NAME + 8 * n))
}

/// The buffer that the next snapshot goes to: of those without a part an empty one, else the one with the smallest uid;
/// flows that are pinned to it follow the slot again. `uids` of the images, 0 where a buffer is empty.
pub fn free_buffer(control: Control, uids: [u32; BUFFERS]) -> Option<u8> {
    let parts = [control.active, control.canary, control.last_good];
    let free = (0..BUFFERS as u8).filter(|b| !parts.contains(&Some(*b)));
    free.min_by_key(|b| uids[usize::from(*b)])
}

/// Returns a slot's control word after a push into `buffer`.
pub fn pushed(control: Control, buffer: u8, part: Part) -> Control {
    match part {
        Part::Active => Control {
            active: Some(buffer),
            canary: None,
            canary_share: 0,
            last_good: control.active.or(control.last_good),
        },
        Part::Canary { share } => Control { canary: Some(buffer), canary_share: share, ..control },
    }
}

/// Returns a slot's control word after its canary was promoted.
///
/// # Errors
/// `NoSnapshot`.
pub fn promoted(slot: u8, control: Control) -> Result<Control, DatapathError> {
    let canary = control.canary.ok_or(DatapathError::NoSnapshot { slot, what: "canary" })?;
    Ok(pushed(control, canary, Part::Active))
}

/// Returns a slot's control word after its canary was given this share of the flows, in units of 2^-16.
///
/// # Errors
/// `NoSnapshot`.
pub fn shared(slot: u8, control: Control, share: u16) -> Result<Control, DatapathError> {
    match control.canary {
        Some(_) => Ok(Control { canary_share: share, ..control }),
        None => Err(DatapathError::NoSnapshot { slot, what: "canary" }),
    }
}

/// Returns a slot's control word after a rollback: without its canary, or if it has none, with its
/// last good snapshot active.
///
/// # Errors
/// `NoSnapshot`.
pub fn rolled_back(slot: u8, control: Control) -> Result<Control, DatapathError> {
    if control.canary.is_some() {
        return Ok(Control { canary: None, canary_share: 0, ..control });
    }
    let good = control.last_good.ok_or(DatapathError::NoSnapshot { slot, what: "last good snapshot" })?;
    Ok(Control { active: Some(good), last_good: None, ..control })
}

/// The buffers that have a part in `from` and none in `to`. After a rollback their uids are 0: what was taken back also
/// lets go of the flows that are pinned to it.
pub fn dropped(from: Control, to: Control) -> impl Iterator<Item = u8> {
    let has_part = |c: &Control, buffer| [c.active, c.canary, c.last_good].contains(&Some(buffer));
    (0..BUFFERS as u8).filter(move |b| has_part(&from, *b) && !has_part(&to, *b))
}

/// Returns a slot's state as the agent sees it; `name` reads the name from the image in a buffer.
pub fn slot_stats(
    slot: u8,
    shape: &Shape,
    control: Control,
    uids: [u32; BUFFERS],
    name: impl Fn(u8) -> [u64; NAME_WORDS],
) -> SlotStats {
    let uid = |buffer: Option<u8>| buffer.map(|b| SnapshotUid(uids[usize::from(b) % BUFFERS]));
    SlotStats {
        slot,
        shape: *shape,
        active: uid(control.active),
        active_name: control.active.map(name).unwrap_or_default(),
        canary: uid(control.canary),
        canary_share: control.canary_share,
        last_good: uid(control.last_good),
    }
}

/// The slots of a datapath in user space. Changed by one thread; others decide by clones, which share all that has not
/// changed since.
#[derive(Clone, Default, Debug)]
pub struct SlotTable {
    slots: [Option<Arc<Entry>>; MAX_POLICY_SLOTS],
    plain: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    shape: Shape,
    control: Control,
    images: [Arc<[u64]>; BUFFERS],
    /// The images' networks, unless the table is plain.
    networks: [Option<Arc<Prepared>>; BUFFERS],
}

impl Entry {
    fn uids(&self) -> [u32; BUFFERS] {
        std::array::from_fn(|b| image::u32_at(&self.images[b], image::UID))
    }
}

impl SlotTable {
    /// No slot is defined. Networks will run on the processor's vector unit.
    pub fn new() -> SlotTable {
        SlotTable::default()
    }

    /// No slot is defined. Networks will run as the oracle does it.
    pub fn plain() -> SlotTable {
        SlotTable { plain: true, ..SlotTable::default() }
    }

    /// Gives a slot its shape, as [`Datapath::define_slot`](crate::Datapath::define_slot).
    ///
    /// # Errors
    /// `NoSlot`, `OtherShape`.
    pub fn define(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        let entry = self.slots.get_mut(usize::from(slot)).ok_or(DatapathError::NoSlot(slot))?;
        match entry {
            Some(entry) if entry.shape != *shape => Err(DatapathError::OtherShape { slot }),
            Some(_) => Ok(()),
            None => {
                *entry = Some(Arc::new(Entry {
                    shape: *shape,
                    control: Control::EMPTY,
                    images: Default::default(),
                    networks: Default::default(),
                }));
                Ok(())
            }
        }
    }

    /// Pushes an image as [`Datapath::push`](crate::Datapath::push) does. No buffer is ever busy: what
    /// still decides by another clone keeps its image.
    ///
    /// # Errors
    /// `NoSlot`, `OtherShape`, `BadImage`.
    pub fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        let plain = self.plain;
        let entry = self.entry(slot)?;
        let uids = entry.uids();
        check_push(slot, &entry.shape, image, uids)?;
        let buffer = free_buffer(entry.control, uids).ok_or(DatapathError::SlotBusy { slot })?;
        entry.networks[usize::from(buffer)] =
            if plain { None } else { Prepared::new(&entry.shape, image).ok().map(Arc::new) };
        entry.images[usize::from(buffer)] = image.into();
        entry.control = pushed(entry.control, buffer, part);
        Ok(())
    }

    /// Changes the canary's share, as [`Datapath::share`](crate::Datapath::share).
    ///
    /// # Errors
    /// `NoSlot`, `NoSnapshot`.
    pub fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        let entry = self.entry(slot)?;
        entry.control = shared(slot, entry.control, share)?;
        Ok(())
    }

    /// Makes the canary active, as [`Datapath::promote`](crate::Datapath::promote).
    ///
    /// # Errors
    /// `NoSlot`, `NoSnapshot`.
    pub fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        let entry = self.entry(slot)?;
        entry.control = promoted(slot, entry.control)?;
        Ok(())
    }

    /// Drops the canary or goes back, as [`Datapath::rollback`](crate::Datapath::rollback).
    ///
    /// # Errors
    /// `NoSlot`, `NoSnapshot`.
    pub fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        let entry = self.entry(slot)?;
        let to = rolled_back(slot, entry.control)?;
        for buffer in dropped(entry.control, to) {
            image::set_u32(Arc::make_mut(&mut entry.images[usize::from(buffer)]), image::UID, 0);
        }
        entry.control = to;
        Ok(())
    }

    /// Lists the defined slots, as [`Datapath::slots`](crate::Datapath::slots).
    pub fn stats(&self) -> Vec<SlotStats> {
        let defined = self.slots.iter().zip(0..).filter_map(|(entry, slot)| Some((slot, entry.as_deref()?)));
        let stats = |(slot, entry): (u8, &Entry)| {
            let name = |b: u8| name(&entry.images[usize::from(b) % BUFFERS]);
            slot_stats(slot, &entry.shape, entry.control, entry.uids(), name)
        };
        defined.map(stats).collect()
    }

    /// The shape of a slot that was defined.
    pub fn shape(&self, slot: u8) -> Option<Shape> {
        Some(self.slots.get(usize::from(slot))?.as_ref()?.shape)
    }

    /// Whether `program` may be installed beside these slots.
    ///
    /// # Errors
    /// As [`check_policies`].
    pub fn check(&self, program: &Program) -> Result<(), DatapathError> {
        check_policies(program, |slot| self.shape(slot))
    }

    /// Returns the policies of one flow, whose id is `key` and whose policy state is `flow`.
    pub fn policies<'a>(&'a self, key: u64, flow: &'a mut FlowPolicy) -> SlotPolicies<'a> {
        SlotPolicies { table: self, key, flow }
    }

    fn entry(&mut self, slot: u8) -> Result<&mut Entry, DatapathError> {
        let entry = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        Ok(Arc::make_mut(entry.ok_or(DatapathError::NoSlot(slot))?))
    }
}

/// A [`SlotTable`] as one flow's programs ask it.
#[derive(Debug)]
pub struct SlotPolicies<'a> {
    table: &'a SlotTable,
    key: u64,
    flow: &'a mut FlowPolicy,
}

impl Policies for SlotPolicies<'_> {
    fn decide(&mut self, slot: u8, inputs: &[i32], knobs: &mut vm::Knobs) -> Decision {
        let Some(Some(entry)) = self.table.slots.get(usize::from(slot)) else { return Decision::Native };
        let slot = Slot {
            shape: &entry.shape,
            control: entry.control,
            images: std::array::from_fn(|b| &*entry.images[b]),
        };
        let vm::Knobs { cwnd_bytes, rate_bytes_per_s } = *knobs;
        let mut changed = ccplane_infer::Knobs { cwnd_bytes, rate_bytes_per_s };
        let infer = |buffer: u8, model: Model<'_>| match &entry.networks[usize::from(buffer)] {
            Some(network) => network.infer(inputs),
            None => model.infer(inputs),
        };
        match slot.decide_with(self.key, self.flow, &mut changed, infer) {
            Verdict::Decided { action_q16, uid } => {
                (knobs.cwnd_bytes, knobs.rate_bytes_per_s) = (changed.cwnd_bytes, changed.rate_bytes_per_s);
                Decision::Action { action_q16, snapshot: uid }
            }
            Verdict::Native => Decision::Native,
        }
    }
}

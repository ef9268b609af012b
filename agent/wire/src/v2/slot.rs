//! Policy slots: what they hold, images, and what a flow's policy has decided.

use ccplane_contract::{Part, SlotStats, SnapshotUid};
use ccplane_infer::image::NAME_WORDS;
use ccplane_infer::{FlowPolicy, Level, MAX_IMAGE_BYTES, Noise, Shape};

use super::{HEADER_BYTES, MAX_FRAME_BYTES};
use crate::bytes::Reader;
use crate::list::Item;
use crate::{DecodeError, EncodeError, Out};

/// The minor version that brought slots.
pub const SLOTS_MINOR: u8 = 1;
/// Words of an image, at most.
pub const MAX_IMAGE_WORDS: usize = MAX_IMAGE_BYTES / 8;

// An image is one frame, with room for what is around it.
const _: () = assert!(HEADER_BYTES + MAX_IMAGE_BYTES < MAX_FRAME_BYTES);

pub(super) fn read_shape(r: &mut Reader<'_>) -> Result<Shape, DecodeError> {
    let found = r.u64("shape")?;
    Shape::from_code(found).ok_or(DecodeError::Unknown { field: "shape", found })
}

pub(super) fn write_shape(shape: &Shape, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&shape.code().to_le_bytes())
}

pub(super) fn read_part(r: &mut Reader<'_>) -> Result<Part, DecodeError> {
    match (r.u8("part")?, r.u16("share")?) {
        (0, 0) => Ok(Part::Active),
        (1, share) => Ok(Part::Canary { share }),
        (0, share) => Err(DecodeError::TooLarge { field: "share", found: u64::from(share), limit: 0 }),
        (part, _) => Err(DecodeError::Unknown { field: "part", found: u64::from(part) }),
    }
}

pub(super) fn write_part(part: Part, out: &mut impl Out) -> Result<(), EncodeError> {
    let (code, share) = match part {
        Part::Active => (0, 0),
        Part::Canary { share } => (1, share),
    };
    out.put(&[code])?;
    out.put(&u16::to_le_bytes(share))
}

fn read_snapshot(r: &mut Reader<'_>, field: &'static str) -> Result<Option<SnapshotUid>, DecodeError> {
    Ok(if r.bool(field)? { Some(SnapshotUid(r.u32(field)?)) } else { None })
}

fn write_snapshot(uid: Option<SnapshotUid>, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&[u8::from(uid.is_some())])?;
    uid.map_or(Ok(()), |uid| out.put(&uid.0.to_le_bytes()))
}

impl<'a> Item<'a> for SlotStats {
    const WHAT: &'static str = "slot";

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (slot, shape) = (r.u8("slot")?, read_shape(r)?);
        let active = read_snapshot(r, "active")?;
        let mut active_name = [0; NAME_WORDS];
        for word in &mut active_name {
            *word = r.u64("name")?;
        }
        Ok(SlotStats {
            slot,
            shape,
            active,
            active_name,
            canary: read_snapshot(r, "canary")?,
            canary_share: r.u16("share")?,
            last_good: read_snapshot(r, "last good")?,
        })
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        out.put(&[self.slot])?;
        write_shape(&self.shape, out)?;
        write_snapshot(self.active, out)?;
        self.active_name.iter().try_for_each(|word| out.put(&word.to_le_bytes()))?;
        write_snapshot(self.canary, out)?;
        out.put(&self.canary_share.to_le_bytes())?;
        write_snapshot(self.last_good, out)
    }
}

pub(super) fn read_policy(r: &mut Reader<'_>) -> Result<FlowPolicy, DecodeError> {
    Ok(FlowPolicy {
        noise: Noise(r.u64("noise")?),
        uid: r.u32("uid")?,
        buffer: r.u32("buffer")?,
        level: match r.u32("level")? {
            0 => Level::Chosen,
            1 => Level::LastGood,
            2 => Level::Native,
            found => return Err(DecodeError::Unknown { field: "level", found: u64::from(found) }),
        },
        level_uid: r.u32("level_uid")?,
        penalty: r.u32("penalty")?,
        decisions: r.u32("decisions")?,
        saturated: r.u32("saturated")?,
        clipped: r.u32("clipped")?,
        collapsed: r.u32("collapsed")?,
        trips: r.u32("trips")?,
    })
}

pub(super) fn write_policy(policy: &FlowPolicy, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&policy.noise.0.to_le_bytes())?;
    let FlowPolicy { uid, buffer, level, level_uid, penalty, decisions, .. } = *policy;
    let FlowPolicy { saturated, clipped, collapsed, trips, .. } = *policy;
    let words =
        [uid, buffer, level as u32, level_uid, penalty, decisions, saturated, clipped, collapsed, trips];
    words.iter().try_for_each(|word| out.put(&word.to_le_bytes()))
}

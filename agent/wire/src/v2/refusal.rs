//! A datapath's refusals: [`DatapathError`] on the wire.

use std::io::ErrorKind;

use ccplane_contract::DatapathError;

use super::field::{read_field, write_field};
use super::flow::{read_flow, read_uid, write_flow, write_uid};
use crate::bytes::{Reader, put_text};
use crate::{DecodeError, EncodeError, Out};

/// Longest text of a refusal or a farewell; longer ones are cut when they are encoded.
pub const MAX_REASON_BYTES: usize = 1024;

/// Stands for "no instruction".
const NO_INST: u32 = u32::MAX;

/// Names of missing snapshots by their number on the wire; an unknown number becomes the first.
const SNAPSHOTS: [&str; 3] = ["snapshot", "canary", "last good snapshot"];

/// The error kinds that travel, by their numbers; any other becomes `Other`.
const KINDS: [ErrorKind; 16] = [
    ErrorKind::Other,
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::ConnectionRefused,
    ErrorKind::ConnectionReset,
    ErrorKind::BrokenPipe,
    ErrorKind::AlreadyExists,
    ErrorKind::WouldBlock,
    ErrorKind::InvalidInput,
    ErrorKind::InvalidData,
    ErrorKind::TimedOut,
    ErrorKind::Interrupted,
    ErrorKind::Unsupported,
    ErrorKind::OutOfMemory,
    ErrorKind::ResourceBusy,
    ErrorKind::ArgumentListTooLong,
];

pub(super) fn read(r: &mut Reader<'_>) -> Result<DatapathError, DecodeError> {
    let text = |r: &mut Reader<'_>, field| r.text(field, MAX_REASON_BYTES).map(str::to_owned);
    Ok(match r.u8("reason")? {
        1 => DatapathError::Unsupported { feature: text(r, "feature")? },
        2 => DatapathError::ProgramsFull { limit: r.u32("limit")? as usize },
        3 => DatapathError::NoProgram(read_uid(r)?),
        4 => DatapathError::ProgramInUse { uid: read_uid(r)?, flows: r.u32("flows")? as usize },
        5 => DatapathError::NoFlow(read_flow(r)?),
        6 => DatapathError::BadField(read_field(r)?),
        7 => {
            let at = r.u32("instruction")?;
            let at = (at != NO_INST).then_some(at as usize);
            DatapathError::Refused { at, reason: text(r, "text")? }
        }
        8 => {
            let kind = r.u8("errno")?;
            let errno = KINDS
                .get(usize::from(kind))
                .copied()
                .ok_or(DecodeError::Unknown { field: "errno", found: u64::from(kind) })?;
            DatapathError::Os { what: text(r, "what")?, errno }
        }
        9 => DatapathError::NoSlot(r.u8("slot")?),
        10 => DatapathError::OtherShape { slot: r.u8("slot")? },
        11 => {
            let (slot, found) = (r.u8("slot")?, r.u8("what")?);
            let what = SNAPSHOTS.get(usize::from(found)).copied();
            let what = what.ok_or(DecodeError::Unknown { field: "what", found: u64::from(found) })?;
            DatapathError::NoSnapshot { slot, what }
        }
        12 => DatapathError::SlotBusy { slot: r.u8("slot")? },
        13 => DatapathError::BadImage { reason: text(r, "text")? },
        found => return Err(DecodeError::Unknown { field: "reason", found: u64::from(found) }),
    })
}

pub(super) fn write(error: &DatapathError, out: &mut impl Out) -> Result<(), EncodeError> {
    match error {
        DatapathError::Unsupported { feature } => {
            out.put(&[1])?;
            write_clipped(out, feature)
        }
        DatapathError::ProgramsFull { limit } => {
            out.put(&[2])?;
            out.put(&clamp(*limit).to_le_bytes())
        }
        DatapathError::NoProgram(uid) => {
            out.put(&[3])?;
            write_uid(*uid, out)
        }
        DatapathError::ProgramInUse { uid, flows } => {
            out.put(&[4])?;
            write_uid(*uid, out)?;
            out.put(&clamp(*flows).to_le_bytes())
        }
        DatapathError::NoFlow(flow) => {
            out.put(&[5])?;
            write_flow(*flow, out)
        }
        DatapathError::BadField(field) => {
            out.put(&[6])?;
            write_field(*field, out)
        }
        DatapathError::Refused { at, reason } => {
            out.put(&[7])?;
            out.put(&at.map_or(NO_INST, clamp).to_le_bytes())?;
            write_clipped(out, reason)
        }
        DatapathError::Os { what, errno } => {
            let kind = KINDS.iter().position(|k| k == errno).unwrap_or_default();
            out.put(&[8, kind as u8])?;
            write_clipped(out, what)
        }
        DatapathError::NoSlot(slot) => out.put(&[9, *slot]),
        DatapathError::OtherShape { slot } => out.put(&[10, *slot]),
        DatapathError::NoSnapshot { slot, what } => {
            let what = SNAPSHOTS.iter().position(|w| w == what).unwrap_or_default();
            out.put(&[11, *slot, what as u8])
        }
        DatapathError::SlotBusy { slot } => out.put(&[12, *slot]),
        DatapathError::BadImage { reason } => {
            out.put(&[13])?;
            write_clipped(out, reason)
        }
        // One that this version has no number for is still a refusal, in words.
        other => {
            out.put(&[7])?;
            out.put(&NO_INST.to_le_bytes())?;
            write_clipped(out, &other.to_string())
        }
    }
}

/// Appends as much of `text` as a refusal carries: it must never fail for being verbose.
pub(super) fn write_clipped(out: &mut impl Out, text: &str) -> Result<(), EncodeError> {
    let mut end = text.len().min(MAX_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_text(out, "text", text.get(..end).unwrap_or_default(), MAX_REASON_BYTES)
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

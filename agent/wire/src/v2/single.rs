//! A report alone, in a frame that fits a cache line of a ring where its numbers are small.

use ccplane_contract::{FlowId, ProgramUid};
use ccplane_program::ir::MAX_REGS;

use super::{Frame, Report, encode};
use crate::bytes::{Reader, put_varint};
use crate::list::Item;
use crate::{DecodeError, EncodeError, List, Out};

/// The kind of a REPORT frame.
pub(super) const REPORT: u16 = 0x0c;

/// The first minor version with REPORT.
pub const REPORT_MINOR: u8 = 2;

/// A signed number, written in fewer bytes the nearer it is to 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Varint(pub i64);

/// A program executed `(report)`, and its report has a frame of its own; of [`Report`]s one frame has many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SingleReport<'a> {
    pub flow: FlowId,
    /// The program that reported.
    pub program: ProgramUid,
    /// Counts the flow's reports from 1; a gap means that the datapath dropped some.
    pub seq: u32,
    /// The datapath's clock at the ACK, microseconds.
    pub at_us: u64,
    /// The report registers, at most [`MAX_REGS`].
    pub values: List<'a, Varint>,
}

impl<'a> Item<'a> for Varint {
    const WHAT: &'static str = "value";

    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let zigzag = r.varint("value")?;
        Ok(Varint((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)))
    }

    #[inline]
    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        put_varint(out, ((self.0 << 1) ^ (self.0 >> 63)) as u64)
    }
}

impl<'a> SingleReport<'a> {
    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let flow = r.varint("flow").map(FlowId)?;
        let program = r.varint_u32("uid").map(ProgramUid)?;
        let (seq, at_us) = (r.varint_u32("seq")?, r.varint("at_us")?);
        let found = usize::from(r.u8("values")?);
        if found > MAX_REGS {
            return Err(DecodeError::TooMany { field: "values", found, limit: MAX_REGS });
        }
        Ok(SingleReport { flow, program, seq, at_us, values: List::read(r, found)? })
    }

    pub(super) fn encode(&self, request: u32, out: &mut impl Out) -> Result<(), EncodeError> {
        encode(out, REPORT, request, |out| {
            let SingleReport { flow, program, seq, at_us, values } = self;
            write_head(out, (*flow, *program, *seq, *at_us), values.len())?;
            values.write(out)
        })
    }
}

/// Appends a REPORT frame, which only an end that speaks [`REPORT_MINOR`] understands.
///
/// # Errors
/// `TooMany` values, or `Full`; nothing is written then.
pub fn encode_report(report: &Report<'_>, out: &mut impl Out) -> Result<(), EncodeError> {
    encode(out, REPORT, 0, |out| {
        let Report { flow, program, seq, at_us, values } = report;
        write_head(out, (*flow, *program, *seq, *at_us), values.len())?;
        values.iter().try_for_each(|value| Varint(value).write(out))
    })
}

/// Writes what precedes the values.
#[inline]
fn write_head(
    out: &mut impl Out,
    (flow, program, seq, at_us): (FlowId, ProgramUid, u32, u64),
    found: usize,
) -> Result<(), EncodeError> {
    let Some(count) = u8::try_from(found).ok().filter(|_| found <= MAX_REGS) else {
        return Err(EncodeError::TooMany { field: "values", found, limit: MAX_REGS });
    };
    for number in [flow.0, program.0.into(), seq.into(), at_us] {
        put_varint(out, number)?;
    }
    out.put(&[count])
}

impl<'a> Frame<'a> {
    /// The report of a REPORT frame; `None` for any other.
    ///
    /// # Errors
    /// The same as those of [`ToAgent::parse`](super::ToAgent::parse).
    #[inline]
    pub fn report(&self) -> Result<Option<SingleReport<'a>>, DecodeError> {
        if self.ty != REPORT {
            return Ok(None);
        }
        let r = &mut Reader::new(self.body);
        let report = SingleReport::read(r)?;
        self.finish(r)?;
        Ok(Some(report))
    }
}

//! Batches of reports: the one message whose cost counts.

use ccplane_contract::{FlowId, ProgramUid};
use ccplane_program::ir::MAX_REGS;

use super::flow::{read_flow, read_uid};
use super::{Frame, HEADER_BYTES, MAX_FRAME_BYTES, close, encode};
use crate::bytes::{Reader, all_or_nothing};
use crate::list::{Item, read_list};
use crate::{DecodeError, EncodeError, List, Out};

/// The kind of a REPORTS frame.
pub(super) const REPORTS: u16 = 0x07;

/// Reports of one batch.
pub const MAX_REPORTS: usize = 2048;

/// Bytes of a report before the number of its values.
const FIXED_BYTES: usize = 8 + 4 + 4 + 8;

/// A program executed `(report)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report<'a> {
    pub flow: FlowId,
    /// The program that reported.
    pub program: ProgramUid,
    /// Counts the flow's reports from 1; a gap means that the datapath dropped some.
    pub seq: u32,
    /// The datapath's clock at the ACK, microseconds.
    pub at_us: u64,
    /// The report registers, at most [`MAX_REGS`].
    pub values: List<'a, i64>,
}

impl<'a> Item<'a> for Report<'a> {
    const WHAT: &'static str = "report";

    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (flow, program) = (read_flow(r)?, read_uid(r)?);
        let (seq, at_us) = (r.u32("seq")?, r.u64("at_us")?);
        let found = usize::from(r.u8("values")?);
        if found > MAX_REGS {
            return Err(DecodeError::TooMany { field: "values", found, limit: MAX_REGS });
        }
        Ok(Report { flow, program, seq, at_us, values: List::read(r, found)? })
    }

    #[inline]
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        // All but the number of values may be anything.
        let found = r.rest().get(FIXED_BYTES).map(|n| usize::from(*n)).filter(|n| *n <= MAX_REGS);
        let rest = found.and_then(|n| r.rest().get(FIXED_BYTES + 1 + n * size_of::<i64>()..));
        match rest {
            Some(rest) => {
                *r = Reader::new(rest);
                Ok(())
            }
            // What is wrong is named by who reads it.
            None => Self::read(r).map(drop),
        }
    }

    #[inline]
    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        let found = self.values.len();
        let Some(count) = u8::try_from(found).ok().filter(|_| found <= MAX_REGS) else {
            return Err(EncodeError::TooMany { field: "values", found, limit: MAX_REGS });
        };
        // In one piece: each asks for room.
        let mut fixed = [0; FIXED_BYTES + 1];
        fixed[..8].copy_from_slice(&self.flow.0.to_le_bytes());
        fixed[8..12].copy_from_slice(&self.program.0.to_le_bytes());
        fixed[12..16].copy_from_slice(&self.seq.to_le_bytes());
        fixed[16..24].copy_from_slice(&self.at_us.to_le_bytes());
        fixed[24] = count;
        out.put(&fixed)?;
        self.values.write(out)
    }
}

impl<'a> Frame<'a> {
    /// The reports of a REPORTS frame; `None` for any other. What most frames to an agent are.
    ///
    /// # Errors
    /// The same as those of [`ToAgent::parse`](super::ToAgent::parse).
    #[inline]
    pub fn reports(&self) -> Result<Option<List<'a, Report<'a>>>, DecodeError> {
        if self.ty != REPORTS {
            return Ok(None);
        }
        let r = &mut Reader::new(self.body);
        let reports = read_list(r, "reports", MAX_REPORTS)?;
        self.finish(r)?;
        Ok(Some(reports))
    }
}

/// Writes a REPORTS frame report by report, without allocation. What was written is a valid frame at any
/// time.
#[derive(Debug)]
pub struct ReportBatch<'o, O> {
    out: &'o mut O,
    start: usize,
    len: u16,
}

impl<'o, O: Out> ReportBatch<'o, O> {
    /// Starts an empty frame at the end of `out`.
    ///
    /// # Errors
    /// `Full`; nothing is written then.
    pub fn start(out: &'o mut O) -> Result<Self, EncodeError> {
        let start = out.written();
        encode(out, REPORTS, 0, |out| out.put(&0_u16.to_le_bytes()))?;
        Ok(ReportBatch { out, start, len: 0 })
    }

    /// Appends one report to the batch.
    ///
    /// # Errors
    /// `TooMany` reports or frame bytes, or `Full`: send this batch and start another; `TooMany` values: no
    /// batch can carry it. Nothing is written then.
    pub fn push(&mut self, report: &Report<'_>) -> Result<(), EncodeError> {
        let (start, len) = (self.start, self.len + 1);
        if usize::from(len) > MAX_REPORTS {
            return Err(EncodeError::TooMany {
                field: "reports",
                found: usize::from(len),
                limit: MAX_REPORTS,
            });
        }
        all_or_nothing(self.out, |out| {
            report.write(out)?;
            close(out, start)
        })?;
        self.out.patch(start + HEADER_BYTES, &len.to_le_bytes());
        self.len = len;
        Ok(())
    }

    /// Returns the number of reports that it holds.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

// The largest report fits a frame, so that `push` into an empty batch fails only for the caller's buffer.
const _: () = assert!(HEADER_BYTES + 2 + 25 + 8 * MAX_REGS <= MAX_FRAME_BYTES);

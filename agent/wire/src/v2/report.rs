//! Batches of reports: the one message whose cost counts.

use ccplane_contract::{FlowId, ProgramUid};
use ccplane_program::ir::MAX_REGS;

use super::flow::{read_flow, read_uid, write_flow, write_uid};
use super::messages::REPORTS;
use super::{HEADER_BYTES, MAX_FRAME_BYTES, close, encode};
use crate::bytes::{Reader, all_or_nothing};
use crate::list::Item;
use crate::{DecodeError, EncodeError, List, Out};

/// Reports of one batch.
pub const MAX_REPORTS: usize = 2048;

/// A program executed `(report)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report<'a> {
    /// The flow.
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

    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (flow, program) = (read_flow(r)?, read_uid(r)?);
        let (seq, at_us) = (r.u32("seq")?, r.u64("at_us")?);
        let found = usize::from(r.u8("values")?);
        if found > MAX_REGS {
            return Err(DecodeError::TooMany { field: "values", found, limit: MAX_REGS });
        }
        Ok(Report { flow, program, seq, at_us, values: List::read(r, found)? })
    }

    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        write_flow(self.flow, out)?;
        write_uid(self.program, out)?;
        out.put(&self.seq.to_le_bytes())?;
        out.put(&self.at_us.to_le_bytes())?;
        match u8::try_from(self.values.len()) {
            Ok(n) if usize::from(n) <= MAX_REGS => out.put(&[n])?,
            _ => {
                return Err(EncodeError::TooMany {
                    field: "values",
                    found: self.values.len(),
                    limit: MAX_REGS,
                });
            }
        }
        self.values.write(out)
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

    /// Appends one report.
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

    /// How many reports it holds.
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

//! ccplane's protocol between the agent and datapaths in other processes: the calls and events of
//! [`ccplane_contract::Datapath`] on a wire.
//!
//! Frames follow each other on a stream, or share a datagram; one is at most [`MAX_FRAME_BYTES`] long. All
//! numbers are little endian and unaligned; types are given in hexadecimal.
//! ```text
//! frame     "CCPL" | major u8 = 2 | minor u8 | type u16 | len u32, header included | request u32 | body
//! text, x*  n u16 | n bytes of UTF-8, or n elements x             option  0, or 1 and the value
//! end       port u16 | v4: addr [4]; v6: addr [16], flowinfo u32, scope u32
//! info      mss u32 | init_cwnd u64 | family u8 (4 or 6) | local end | remote end | option cgroup u64
//!           | min_rtt_us u32 (0: unknown)
//! where     0, register u8 | 1, 0 (Cwnd) | 2, 0 (Rate)            field   where | value i64
//! report    flow u64 | uid u32 | seq u32 | at_us u64 | n u8 | n values i64
//! reason    1 Unsupported text | 2 ProgramsFull u32 | 3 NoProgram uid | 4 ProgramInUse uid, flows u32
//!           | 5 NoFlow u64 | 6 BadField where | 7 Refused inst u32 (!0: none), text | 8 Os kind u8, text
//!       .1  | 9 NoSlot u8 | 0a OtherShape u8 | 0b NoSnapshot slot u8, what u8 | 0c SlotBusy u8 | 0d BadImage text
//! program   see `encode_program`
//! slot  .1  number u8 | shape u64 | active option u32 | name 4 u64 | canary option u32 | share u16
//!           | last good option u32
//!
//! to the agent                                     to the datapath
//! 01 HELLO      minor_min u8 | minor_max u8        41 WELCOME      minor u8 | heartbeat_timeout_ms u32
//!               | clock u8 | features u32                          | session u64
//!               | now_us u64 | max_programs u32    42 TURNED_AWAY  u8, a u32, b u32: 1 version a to b
//!               | max_flows u32 | kind text                        | 2 too many, a | 3 name taken
//!               | name text                                        | 4 not allowed
//! 02 INSTALLED  uid u32                            43 INSTALL      uid u32 | program
//! 03 DONE                                          44 REMOVE       uid u32
//! 04 REFUSED    reason                             45 SET_PROGRAM  flow u64 | uid u32 | field*
//! 05 CREATED    flow u64 | info                    46 UPDATE       flow u64 | field*
//! 06 CLOSED     flow u64                           47 RELEASE      flow u64
//! 07 REPORTS    report*                            48 GET_FLOWS
//! 08 FLOW_STATS last u8 | stats*                   both ways
//! 09 DROPPED    count u64                          81 HEARTBEAT  now_us u64       82 BYE  u8 | text
//! 800b REQUESTED flow u64 | name text (before the flow's CREATED)
//! since minor version 1
//! 01 HELLO      ... | slot*                        41 WELCOME      ... | wake u8 | spin_us u32
//! 0a SLOTS      slot*                                              | ring_bytes u32 (0: no ring)
//!                                                  49 DEFINE_SLOT  slot u8 | shape u64
//!                                                  4a PUSH         slot u8 | part u8 | share u16 | u64*
//!                                                  4b SHARE        slot u8 | share u16
//!                                                  4c PROMOTE      slot u8
//!                                                  4d ROLLBACK     slot u8
//!                                                  4e GET_SLOTS
//!
//! since minor version 2
//! 0c REPORT     flow num | uid num | seq num | at_us num | n u8 | n values snum
//!
//! since minor version 3, to datapaths with feature bit 3
//! 4f SET_FIRST       uid u32 | field*              50 CLEAR_FIRST  hook u8
//! 51 ENSURE_PROGRAM  flow u64 | uid u32 | field*
//!
//! num       7 bits a byte, the lowest first, bit 7 set in all but the last, in as few bytes as it takes
//! snum      num of x << 1, its bits flipped where x is negative
//! stats     the fields of `FlowStats`, in its order, but `policy`; program is an option
//!       .1  where bit 7 of mode is set, the fields of `FlowPolicy` follow, in its order
//! clock 0 own, 1 CLOCK_MONOTONIC, 2 virtual; features bit 0 policy, bit 1 full language, bit 2 ring,
//! bit 3 hooks send and connect in place of ack; hook 0 ack, 1 send, 2 connect;
//! mode 0 program, 1 no program, 2 agent silent, 3 policy without an answer; BYE 0 stopping, 1 protocol, 2 silent;
//! part 0 active (share 0), 1 canary; what 0 snapshot, 1 canary, 2 last good snapshot;
//! wake 0 sleep, 1 spin for spin_us, then sleep, 2 busy: what the agent asks of the datapath's end
//! ```
//! A conversation starts with HELLO, then WELCOME with the minor version to speak ([`negotiate`]), or
//! TURNED_AWAY. Commands (43 to 51) carry a request number, and the answer (INSTALLED, DONE, REFUSED,
//! FLOW_STATS, SLOTS) repeats it; a GET_FLOWS or GET_SLOTS that comes while answers wait for room may have none.
//! Request 0 asks for no INSTALLED or DONE, and is what unasked messages carry.
//! Commands are carried out in the order in which they come, and so are the answers. An image is at most half a
//! frame, so that PUSH is one frame.
//!
//! A WELCOME with ring_bytes comes with two file descriptors (SCM_RIGHTS): the memory of two rings, of so many bytes
//! each, and one of two connected stream sockets, on which both sleep and wake each other. From then on all frames go through the rings, but for
//! the datapath's HEARTBEAT, which finds out whether the agent is still there, and BYE: they go over the socket.
//!
//! Magic and major never move. A minor version may add types, and append to bodies: what follows the known
//! part of a body is skipped in a frame of a newer minor version, and an error in others. An unknown type is
//! skipped if [`OPTIONAL`] is set in it, and refused if not. Encoding is canonical: one message, one sequence
//! of bytes. A peer that speaks minor version 0 is told nothing of minor version 1 ([`refusal_for`],
//! [`stats_for`]), except behind the known part of HELLO and WELCOME.

mod field;
mod flow;
mod hello;
mod messages;
mod older;
mod program;
mod refusal;
mod report;
mod single;
mod slot;

pub use ccplane_wait::Wake;
pub use hello::{Clock, Features, Hello, TurnedAway, Welcome, negotiate};
pub use messages::{ByeReason, FIRST_MINOR, MAX_FIELDS, MAX_FLOW_STATS, ToAgent, ToDatapath};
pub use older::{refusal_for, stats_for};
pub use program::{MAX_HISTORY_REGS, MAX_REG_NAME_BYTES, decode_program, encode_program};
pub use refusal::MAX_REASON_BYTES;
pub use report::{MAX_REPORTS, Report, ReportBatch};
pub use single::{REPORT_MINOR, SingleReport, Varint, encode_report};
pub use slot::{MAX_IMAGE_WORDS, SLOTS_MINOR};

use crate::bytes::{Reader, all_or_nothing};
use crate::{DecodeError, EncodeError, Out};

/// The first four bytes of each frame, "CCPL".
pub const MAGIC: u32 = u32::from_le_bytes(*b"CCPL");
/// The major version that this crate speaks.
pub const MAJOR: u8 = 2;
/// The newest minor version that this crate speaks.
pub const MINOR: u8 = 3;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Length of the longest frame, bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 16;
/// Bit in a message's type by which a receiver that does not know the type may skip the message.
pub const OPTIONAL: u16 = 1 << 15;

/// One frame whose header is right and whose content is still to be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The minor version that its sender speaks.
    pub minor: u8,
    pub ty: u16,
    /// The number of the command, or of the one that this answers; 0 for none.
    pub request: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame in `bytes`, and what follows it; `None` if more bytes must arrive first.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Short` or `TooMany` bytes: nothing tells where the next frame starts, so that the
    /// connection is of no more use.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, DecodeError> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let mut r = Reader::new(header);
        let found = r.u32("magic")?;
        if found != MAGIC {
            return Err(DecodeError::Magic { found });
        }
        let found = r.u8("major")?;
        if found != MAJOR {
            return Err(DecodeError::Version { found, supported: MAJOR });
        }
        let (minor, ty) = (r.u8("minor")?, r.u16("type")?);
        let (len, request) = (r.u32("len")? as usize, r.u32("request")?);
        if len < HEADER_BYTES {
            return Err(DecodeError::Short { field: "header", need: HEADER_BYTES, have: len });
        }
        if len > MAX_FRAME_BYTES {
            return Err(DecodeError::TooMany { field: "frame bytes", found: len, limit: MAX_FRAME_BYTES });
        }
        let Some((frame, rest)) = bytes.split_at_checked(len) else { return Ok(None) };
        let body = frame.get(HEADER_BYTES..).unwrap_or_default();
        Ok(Some((Frame { minor, ty, request, body }, rest)))
    }

    /// Whether a receiver that does not know the type may skip it.
    pub fn is_optional(&self) -> bool {
        self.ty & OPTIONAL != 0
    }

    /// An unknown type: skipped if it is optional.
    fn unknown<T>(&self) -> Result<Option<T>, DecodeError> {
        if self.is_optional() { Ok(None) } else { Err(DecodeError::UnknownType { found: self.ty }) }
    }

    /// Only a newer minor version may have appended to the body.
    #[inline]
    fn finish(&self, r: &Reader<'_>) -> Result<(), DecodeError> {
        let newer = self.minor > MINOR;
        let found = HEADER_BYTES + self.body.len();
        match r.left() {
            left if left > 0 && !newer => Err(DecodeError::Length { found, expected: found - left }),
            _ => Ok(()),
        }
    }
}

/// The frames of one datagram, in order. A wrong header, or a frame that the datagram cuts off, is an error
/// and ends the iteration. On a stream use [`Frame::split`].
pub fn frames(datagram: &[u8]) -> Frames<'_> {
    Frames(datagram)
}

/// Iterates over the frames of a datagram: see [`frames`].
#[derive(Clone, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        match Frame::split(bytes) {
            Ok(Some((frame, rest))) => {
                self.0 = rest;
                Some(Ok(frame))
            }
            Ok(None) => {
                let need = bytes
                    .get(8..12)
                    .and_then(|len| len.try_into().ok())
                    .map_or(HEADER_BYTES, |len| (u32::from_le_bytes(len) as usize).max(HEADER_BYTES));
                Some(Err(DecodeError::Short { field: "frame", need, have: bytes.len() }))
            }
            Err(e) => Some(Err(e)),
        }
    }
}

/// Offset of the length in a header.
const LEN_AT: usize = 8;

/// Appends a frame around what `body` writes.
#[inline]
fn encode<O: Out>(
    out: &mut O,
    ty: u16,
    request: u32,
    body: impl FnOnce(&mut O) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    all_or_nothing(out, |out| {
        let start = out.written();
        let ([m0, m1, m2, m3], [t0, t1]) = (MAGIC.to_le_bytes(), ty.to_le_bytes());
        let [r0, r1, r2, r3] = request.to_le_bytes();
        let header: [u8; HEADER_BYTES] = [m0, m1, m2, m3, MAJOR, MINOR, t0, t1, 0, 0, 0, 0, r0, r1, r2, r3];
        out.put(&header)?;
        body(out)?;
        close(out, start)
    })
}

/// Writes the length of the frame that started at `start` and ends here.
#[inline]
fn close(out: &mut impl Out, start: usize) -> Result<(), EncodeError> {
    let found = out.written() - start;
    match u32::try_from(found) {
        Ok(len) if found <= MAX_FRAME_BYTES => {
            out.patch(start + LEN_AT, &len.to_le_bytes());
            Ok(())
        }
        _ => Err(EncodeError::TooMany { field: "frame bytes", found, limit: MAX_FRAME_BYTES }),
    }
}

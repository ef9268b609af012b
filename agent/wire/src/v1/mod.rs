//! CCP's own protocol, as portus 0.9 and libccp 1.2 speak it.
//!
//! ```text
//! header   type u16 | len u16, header included | sid u32          little endian, unaligned
//! CREATE 0        init_cwnd mss src_ip src_port dst_ip dst_port: u32 each | cong_alg [u8; 64], NUL-ended
//! MEASURE 1       program_uid u32 | n u32 | n values u64          uid 0 with n 0: the flow closed
//! INSTALL 2       program_uid u32 | events u32 | insts u32 | events of 4 u32 | instructions of 16 B
//! UPDATE_FIELD 3  n u32 | n of (register type u8, index u32, value u64)
//! CHANGE_PROG 4   program_uid u32 | n u32 | n fields as above
//! READY 5         id u32
//! ```
//!
//! CREATE, MEASURE and READY go to the agent ([`ToAgent`]), the others to the datapath ([`ToDatapath`]); what
//! arrives at the wrong side is an error, where portus 0.9 stops. Several messages may share a datagram
//! towards the agent ([`frames`]), as portus reads them; libccp reads one message per datagram, so send it
//! one. libccp keeps 16 bits of a sid and gives none above.
//!
//! The limits are libccp's real ones, which it mostly does not check itself: see the constants here and
//! beside [`Bytecode`].

mod bytecode;
mod messages;

pub use bytecode::{
    Bytecode, Event, Index, Inst, MAX_CONTROL_REGS, MAX_EVENTS, MAX_INSTS, MAX_LOCALS, MAX_REPORT_REGS,
    MAX_TMPS, Op, Reg, Special,
};
pub use messages::{
    AddrOrder, ChangeProg, Create, Endpoint, Field, Install, Measure, ToAgent, ToDatapath, Update,
};

use crate::DecodeError;
use crate::bytes::Reader;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;
/// The longest message that libccp reads (`BIGGEST_MSG_SIZE`, serialize.h).
pub const MAX_MSG_BYTES: usize = 32678;
/// The longest datagram that a portus agent reads (run.rs).
pub const MAX_PORTUS_DATAGRAM_BYTES: usize = 1024;
/// Bytes of CREATE's algorithm name, its NUL included (`MAX_CONG_ALG_SIZE`, ccp.h).
pub const CONG_ALG_BYTES: usize = 64;
/// Fields of one UPDATE_FIELD. libccp reads the count's first byte as a signed char, so that 128 and more are
/// refused there, or misread.
pub const MAX_UPDATE_FIELDS: usize = 127;
/// Fields of one CHANGE_PROG (`MAX_MUTABLE_REG`, serialize.h).
pub const MAX_CHANGE_FIELDS: usize = 222;

/// The type of a message, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum MsgType {
    Create = 0,
    /// A program reported, or a flow ended.
    Measure = 1,
    Install = 2,
    /// Set fields of the running program.
    UpdateField = 3,
    ChangeProg = 4,
    Ready = 5,
}

impl MsgType {
    /// Returns the protocol's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            MsgType::Create => "CREATE",
            MsgType::Measure => "MEASURE",
            MsgType::Install => "INSTALL",
            MsgType::UpdateField => "UPDATE_FIELD",
            MsgType::ChangeProg => "CHANGE_PROG",
            MsgType::Ready => "READY",
        }
    }

    fn from_wire(found: u16) -> Result<Self, DecodeError> {
        Ok(match found {
            0 => MsgType::Create,
            1 => MsgType::Measure,
            2 => MsgType::Install,
            3 => MsgType::UpdateField,
            4 => MsgType::ChangeProg,
            5 => MsgType::Ready,
            _ => return Err(DecodeError::UnknownType { found }),
        })
    }
}

/// One message whose header is right and whose content is still to be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub ty: MsgType,
    /// The flow; 0 in READY and in portus's INSTALL, which concern all.
    pub sid: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// The messages of one datagram, in order.
///
/// A header that does not fit the datagram is an error and ends the iteration, since nothing tells where the
/// next message starts. An unknown type is an error too, but the messages after it follow.
pub fn frames(datagram: &[u8]) -> Frames<'_> {
    Frames(datagram)
}

/// Iterates over the messages of a datagram: see [`frames`].
#[derive(Clone, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (frame, rest) = split(self.0);
        self.0 = rest;
        Some(frame)
    }
}

/// The first message, and what follows it: nothing when its header is wrong.
fn split(datagram: &[u8]) -> (Result<Frame<'_>, DecodeError>, &[u8]) {
    let header = || {
        let mut r = Reader::new(datagram);
        let (ty, len, sid) = (r.u16("type")?, usize::from(r.u16("len")?), r.u32("sid")?);
        let Some(body_len) = len.checked_sub(HEADER_BYTES) else {
            return Err(DecodeError::Short { field: "header", need: HEADER_BYTES, have: len });
        };
        if len > MAX_MSG_BYTES {
            return Err(DecodeError::TooMany { field: "message bytes", found: len, limit: MAX_MSG_BYTES });
        }
        let body = r.bytes(body_len, "body")?;
        Ok((ty, sid, body, r.rest()))
    };
    match header() {
        Ok((ty, sid, body, rest)) => (MsgType::from_wire(ty).map(|ty| Frame { ty, sid, body }), rest),
        Err(e) => (Err(e), &[]),
    }
}

//! The datagrams of the protocol: `docs/predict.md` describes them in plain words.

use crate::Refusal;
use crate::token::TOKEN_BYTES;

/// The first bytes of every datagram.
pub const MAGIC: [u8; 4] = *b"CCPR";
/// The version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes before the inputs of a request, and before the token of the others.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a reply and of feedback; a request has at least as many, so that no answer is larger than its question.
pub const MESSAGE_BYTES: usize = HEADER_BYTES + TOKEN_BYTES;
/// Bytes of the longest datagram.
pub const MAX_DATAGRAM_BYTES: usize = HEADER_BYTES + ccplane_infer::MAX_INPUTS;

/// Offsets in the header.
pub mod offset {
    /// The [version](super::VERSION), one byte.
    pub const VERSION: usize = 4;
    /// The [kind](super::kind), one byte.
    pub const KIND: usize = 5;
    /// The slot that is asked, one byte.
    pub const SLOT: usize = 6;
    /// The number of inputs, the class of a reply, or the true class of feedback: one byte.
    pub const ARGUMENT: usize = 7;
    /// Eight bytes of the client's, which the reply repeats.
    pub const ID: usize = 8;
}

/// The kinds of datagrams.
pub mod kind {
    /// Asks for the class of inputs.
    pub const REQUEST: u8 = 1;
    /// Answers with a class and a token.
    pub const REPLY: u8 = 2;
    /// Says what was true of a token.
    pub const FEEDBACK: u8 = 3;
}

/// A server's limits that datagrams are held against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    pub slots: u8,
    /// The inputs of every predictor.
    pub inputs: u8,
    /// The classes of every predictor.
    pub classes: u8,
}

/// A datagram to a server, whose numbers are within the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Datagram<'a> {
    Request {
        slot: u8,
        inputs: &'a [u8],
    },
    Feedback {
        slot: u8,
        /// The class that was true.
        truth: u8,
        token: &'a [u8; TOKEN_BYTES],
    },
}

/// Bytes of a request with so many inputs.
pub const fn request_bytes(inputs: usize) -> usize {
    let bytes = HEADER_BYTES + inputs;
    if bytes > MESSAGE_BYTES { bytes } else { MESSAGE_BYTES }
}

/// Parses a datagram that a server has received.
///
/// # Errors
/// The first reason to refuse it, in the order of the fields.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Datagram<'a>, Refusal> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Refusal::Short)?;
    if header[..MAGIC.len()] != MAGIC {
        return Err(Refusal::Magic);
    }
    if header[offset::VERSION] != VERSION {
        return Err(Refusal::Version);
    }
    let (kind, slot, argument) = (header[offset::KIND], header[offset::SLOT], header[offset::ARGUMENT]);
    if kind != kind::REQUEST && kind != kind::FEEDBACK {
        return Err(Refusal::Kind);
    }
    if slot >= limits.slots {
        return Err(Refusal::Slot);
    }
    if kind == kind::REQUEST && argument != limits.inputs {
        return Err(Refusal::Inputs);
    }
    let inputs = usize::from(limits.inputs);
    let expected = if kind == kind::REQUEST { request_bytes(inputs) } else { MESSAGE_BYTES };
    if bytes.len() != expected {
        return Err(if bytes.len() < expected { Refusal::Short } else { Refusal::Long });
    }
    let rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
    if kind == kind::REQUEST {
        return Ok(Datagram::Request { slot, inputs: rest.get(..inputs).ok_or(Refusal::Short)? });
    }
    if argument >= limits.classes {
        return Err(Refusal::Truth);
    }
    Ok(Datagram::Feedback { slot, truth: argument, token: rest.first_chunk().ok_or(Refusal::Short)? })
}

/// Writes a request; returns its length.
///
/// Inputs beyond [`MAX_INPUTS`](ccplane_infer::MAX_INPUTS) are left out.
pub fn write_request(to: &mut [u8; MAX_DATAGRAM_BYTES], slot: u8, id: u64, inputs: &[u8]) -> usize {
    let inputs = inputs.get(..ccplane_infer::MAX_INPUTS).unwrap_or(inputs);
    to.fill(0);
    to[..MAGIC.len()].copy_from_slice(&MAGIC);
    to[offset::VERSION] = VERSION;
    to[offset::KIND] = kind::REQUEST;
    to[offset::SLOT] = slot;
    to[offset::ARGUMENT] = inputs.len() as u8;
    to[offset::ID..HEADER_BYTES].copy_from_slice(&id.to_le_bytes());
    to[HEADER_BYTES..HEADER_BYTES + inputs.len()].copy_from_slice(inputs);
    request_bytes(inputs.len())
}

/// Writes the reply to a request that [`parse`] has accepted.
pub(crate) fn write_reply(
    to: &mut [u8; MESSAGE_BYTES],
    request: &[u8],
    class: u8,
    token: &[u8; TOKEN_BYTES],
) {
    if let Some(header) = request.first_chunk::<HEADER_BYTES>() {
        to[..HEADER_BYTES].copy_from_slice(header);
    }
    to[offset::KIND] = kind::REPLY;
    to[offset::ARGUMENT] = class;
    to[HEADER_BYTES..].copy_from_slice(token);
}

/// A reply as a client reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    pub slot: u8,
    pub id: u64,
    pub class: u8,
    bytes: [u8; MESSAGE_BYTES],
}

impl Reply {
    /// Reads a reply; `None` if the datagram is none.
    pub fn parse(datagram: &[u8]) -> Option<Reply> {
        let bytes: [u8; MESSAGE_BYTES] = datagram.try_into().ok()?;
        let is_reply = bytes[..MAGIC.len()] == MAGIC
            && bytes[offset::VERSION] == VERSION
            && bytes[offset::KIND] == kind::REPLY;
        let id = bytes[offset::ID..HEADER_BYTES].first_chunk().map(|id| u64::from_le_bytes(*id))?;
        is_reply.then_some(Reply { slot: bytes[offset::SLOT], id, class: bytes[offset::ARGUMENT], bytes })
    }

    /// The feedback to this reply: the reply itself, with another kind and the true class.
    pub fn feedback(&self, truth: u8) -> [u8; MESSAGE_BYTES] {
        let mut bytes = self.bytes;
        bytes[offset::KIND] = kind::FEEDBACK;
        bytes[offset::ARGUMENT] = truth;
        bytes
    }
}

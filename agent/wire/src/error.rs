//! Reasons why a message is refused.

use ccplane_program::ir::VerifyError;

/// Reasons why bytes are not a message. The field is named as in this crate's types.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a field.
    #[error("{field}: needs {need} bytes, {have} are left")]
    Short {
        field: &'static str,
        /// Bytes that it takes.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// The header's length is not that of the content.
    #[error("length: the header says {found} bytes, the content takes {expected}")]
    Length {
        /// Length in the header, bytes.
        found: usize,
        /// Length of the content, bytes.
        expected: usize,
    },
    /// More of something than the protocol allows.
    #[error("{field}: {found}, at most {limit} are allowed")]
    TooMany { field: &'static str, found: usize, limit: usize },
    /// A value above its limit.
    #[error("{field}: {found} is above the limit {limit}")]
    TooLarge {
        field: &'static str,
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A field that must not be 0.
    #[error("{field}: must not be 0")]
    Zero { field: &'static str },
    /// A code that names nothing.
    #[error("{field}: {found} is not a known code")]
    Unknown { field: &'static str, found: u64 },
    /// A value that is known, but not here.
    #[error("{field}: {found} is not allowed here")]
    NotAllowed { field: &'static str, found: &'static str },
    /// Text that is not UTF-8, or that lacks its terminating NUL.
    #[error("{field}: not UTF-8, or not terminated")]
    Text { field: &'static str },
    /// The first bytes are not v2's.
    #[error("magic: {found:#010x} is not ccplane's")]
    Magic { found: u32 },
    /// A major version that this crate does not speak.
    #[error("version: {found}, only {supported} is spoken")]
    Version {
        /// The sender's major version.
        found: u8,
        /// The major version that this crate speaks.
        supported: u8,
    },
    /// A message type that this crate does not know, and that must not be skipped.
    #[error("type: {found} is not known")]
    UnknownType { found: u16 },
    /// A message that only the other side sends.
    #[error("type: {name} was sent to {to}, which never receives it")]
    Direction {
        /// The message's name.
        name: &'static str,
        /// The side that received it.
        to: &'static str,
    },
    /// One element of a list is wrong.
    #[error("{what} {index}: {error}")]
    At {
        /// The kind of the list's elements.
        what: &'static str,
        index: usize,
        error: Box<DecodeError>,
    },
    /// The program does not verify.
    #[error("program: {0}")]
    Program(#[from] VerifyError),
}

/// Reasons why a message cannot be encoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The buffer is too small.
    #[error("buffer: needs {need} bytes more, {room} are free")]
    Full {
        need: usize,
        /// Bytes that are free.
        room: usize,
    },
    /// More of something than the protocol allows.
    #[error("{field}: {found}, at most {limit} are allowed")]
    TooMany { field: &'static str, found: usize, limit: usize },
    /// A value above what the protocol can carry.
    #[error("{field}: {found} is above the limit {limit}")]
    TooLarge {
        field: &'static str,
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A field that must not be 0.
    #[error("{field}: must not be 0")]
    Zero { field: &'static str },
    /// Text that would end early where it is read.
    #[error("{field}: contains a NUL")]
    Nul { field: &'static str },
    /// CCP v1 cannot express an IPv6 flow.
    #[error("{field}: CCP v1 carries IPv4 addresses only")]
    Ipv6 { field: &'static str },
    /// One endpoint is IPv4, the other IPv6.
    #[error("local and remote: not of one address family")]
    MixedFamilies,
}

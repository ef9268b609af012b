//! Why a message is refused.

use ccplane_program::ir::VerifyError;

/// Why bytes are not a message. The field is named as in this crate's types.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a field.
    #[error("{field}: needs {need} bytes, {have} are left")]
    Short {
        /// The field.
        field: &'static str,
        /// Bytes that it takes.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// The header's length is not that of the content.
    #[error("length: the header says {found} bytes, the content takes {expected}")]
    Length {
        /// What the header says.
        found: usize,
        /// What the content takes.
        expected: usize,
    },
    /// More of something than the protocol allows.
    #[error("{field}: {found}, at most {limit} are allowed")]
    TooMany {
        /// What there is too much of.
        field: &'static str,
        /// How many were found.
        found: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A value above its limit.
    #[error("{field}: {found} is above the limit {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What was found.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A field that must not be 0.
    #[error("{field}: must not be 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A code that names nothing.
    #[error("{field}: {found} is not a known code")]
    Unknown {
        /// The field.
        field: &'static str,
        /// What was found.
        found: u64,
    },
    /// A value that is known, but not here.
    #[error("{field}: {found} is not allowed here")]
    NotAllowed {
        /// The field.
        field: &'static str,
        /// What was found.
        found: &'static str,
    },
    /// Text that is not UTF-8, or that lacks its terminating NUL.
    #[error("{field}: not UTF-8, or not terminated")]
    Text {
        /// The field.
        field: &'static str,
    },
    /// The first bytes are not v2's.
    #[error("magic: {found:#010x} is not ccplane's")]
    Magic {
        /// What was found.
        found: u32,
    },
    /// A major version that this crate does not speak.
    #[error("version: {found}, only {supported} is spoken")]
    Version {
        /// The sender's major version.
        found: u8,
        /// Ours.
        supported: u8,
    },
    /// A message type that this crate does not know, and that must not be skipped.
    #[error("type: {found} is not known")]
    UnknownType {
        /// The type's number.
        found: u16,
    },
    /// A message that only the other side sends.
    #[error("type: {name} was sent to {to}, which never receives it")]
    Direction {
        /// The message.
        name: &'static str,
        /// Who received it.
        to: &'static str,
    },
    /// One element of a list is wrong.
    #[error("{what} {index}: {error}")]
    At {
        /// What the list holds.
        what: &'static str,
        /// The element.
        index: usize,
        /// What is wrong with it.
        error: Box<DecodeError>,
    },
    /// The program does not verify.
    #[error("program: {0}")]
    Program(#[from] VerifyError),
}

/// Why a message cannot be encoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The buffer is too small.
    #[error("buffer: needs {need} bytes more, {room} are free")]
    Full {
        /// Bytes to write.
        need: usize,
        /// Bytes that are free.
        room: usize,
    },
    /// More of something than the protocol allows.
    #[error("{field}: {found}, at most {limit} are allowed")]
    TooMany {
        /// What there is too much of.
        field: &'static str,
        /// How many were given.
        found: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A value above what the protocol can carry.
    #[error("{field}: {found} is above the limit {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// What was given.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A field that must not be 0.
    #[error("{field}: must not be 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// Text that would end early where it is read.
    #[error("{field}: contains a NUL")]
    Nul {
        /// The field.
        field: &'static str,
    },
    /// CCP v1 cannot express an IPv6 flow.
    #[error("{field}: CCP v1 carries IPv4 addresses only")]
    Ipv6 {
        /// The endpoint.
        field: &'static str,
    },
    /// One endpoint is IPv4, the other IPv6.
    #[error("local and remote: not of one address family")]
    MixedFamilies,
}

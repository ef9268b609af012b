//! File transfer over QUIC streams: the protocol of `ccplane quic`.
//!
//! A client opens a bidirectional stream for each file and says in a line what it wants; names are UTF-8, relative, with
//! `/` between folders, no part of them begins with a dot, and they have no control characters. Content is followed by its
//! SHA-256, 32 bytes, and the stream's end.
//!
//! ```text
//! get NAME\n                                   ok LENGTH\n CONTENT SHA256      or   no REASON\n
//! put LENGTH NAME\n CONTENT SHA256             ok\n                            or   no REASON\n
//! put-with PROOF LENGTH NAME\n CONTENT SHA256  the same
//! ```
//!
//! Anyone may get. Who puts shows a certificate in the handshake, or with `put-with` that it has the server's [`Token`]: PROOF
//! is, in hexadecimal, the HMAC-SHA256 under the token of 32 bytes that TLS exports for the connection. A file that a server
//! cannot read to its end is reset with the code [`READ_FAILED`].

mod body;
mod client;
mod folder;
mod keeper;
mod line;
mod newfile;
mod refusal;
mod server;
mod tree;
mod writers;

pub use body::Sha256Sum;
pub use client::{Done, Progress, Transfer, TransferStep};
pub use folder::{Folder, PutFile, Quota};
pub use newfile::NewFile;
pub use refusal::Refused;
pub use server::{Served, Server};
pub use writers::{Token, TokenError, Writers};

use crate::StreamError;

/// The protocol's name in ALPN.
pub const PROTOCOL: &[u8] = b"ccplane-files/1";
/// The longest line, bytes.
pub const MAX_LINE_BYTES: usize = 2048;
/// Error code with which an end gives up a stream.
const FAILED: u32 = 1;
/// Error code with which a server gives up a file that it cannot read to its end: its content has no room for a
/// message.
pub const READ_FAILED: u32 = 2;

/// Reasons why a file did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The server refused the request.
    #[error("the server refused: {reason}")]
    Refused {
        /// The server's reason.
        reason: String,
    },
    /// The received content differs from the sent content.
    #[error("the content's SHA-256 is {found}, sent was {sent}")]
    Hash {
        /// The hash that the sender computed.
        sent: Sha256Sum,
        /// The hash of the received content.
        found: Sha256Sum,
    },
    /// The peer violates the protocol.
    #[error("the peer does not speak the protocol: {what}")]
    Protocol {
        /// The violation.
        what: &'static str,
    },
    /// The server could not read the file to its end.
    #[error("the server could not read the file to its end: it became shorter, or its disk failed")]
    Unreadable,
    /// The stream failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The local file could not be read.
    #[error("cannot read the file: {0}")]
    Read(std::io::Error),
    /// The local file could not be written.
    #[error("cannot write the file: {0}")]
    Write(std::io::Error),
}

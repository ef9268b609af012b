//! Files over streams: what `ccplane quic` speaks.
//!
//! A client opens a bidirectional stream for each file and says in a line what it wants; names are UTF-8, relative, with
//! `/` between folders. Content is followed by its SHA-256, 32 bytes, and the stream's end.
//!
//! ```text
//! get NAME\n                                   ok LENGTH\n CONTENT SHA256      or   no REASON\n
//! put LENGTH NAME\n CONTENT SHA256             ok\n                            or   no REASON\n
//! ```

mod body;
mod client;
mod folder;
mod line;
mod server;

pub use body::Sha256Sum;
pub use client::{Done, Progress, Step, Transfer};
pub use folder::{Folder, Refused};
pub use server::{Served, Server};

use crate::StreamError;

/// The protocol's name (ALPN).
pub const PROTOCOL: &[u8] = b"ccplane-files/1";
/// The longest line, bytes.
pub const MAX_LINE_BYTES: usize = 2048;
/// Streams are given up with this code where an end cannot go on.
const FAILED: u32 = 1;

/// Why a file did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The server would not.
    #[error("the server refused: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// The content is not what was sent.
    #[error("the content's SHA-256 is {found}, sent was {sent}")]
    Hash {
        /// As the sender has it.
        sent: Sha256Sum,
        /// As it arrived.
        found: Sha256Sum,
    },
    /// The peer does not keep to the protocol.
    #[error("the peer does not speak the protocol: {what}")]
    Protocol {
        /// What it did.
        what: &'static str,
    },
    /// The stream broke.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The file here could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

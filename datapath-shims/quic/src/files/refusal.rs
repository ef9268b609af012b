//! Refusals of names and requests, as the client is told them.

use rustix::io::Errno;
use std::io;

/// Reasons why a name is not served, in words for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The request is neither `get NAME` nor `put LENGTH NAME`.
    #[error("no such request")]
    Request,
    /// The name is not a relative one of a file that is not hidden.
    #[error("not a name of a file in the folder, or a hidden one")]
    Name,
    /// The file does not exist.
    #[error("no such file")]
    NotFound,
    /// The name is a folder's, a device's or the like.
    #[error("not a regular file")]
    NotAFile,
    /// The folder is served read-only.
    #[error("the folder is not writable: serve it with --writable")]
    ReadOnly,
    /// The client has shown neither a token nor a certificate that the server knows.
    #[error(
        "only writers that the server knows may put: give its token with --token, or a certificate with --cert and --key"
    )]
    NotAWriter,
    /// The token is not the server's.
    #[error("the token is not the server's")]
    WrongToken,
    /// The file is larger than the server accepts.
    #[error("the file has {bytes} bytes, the server takes files of at most {max_bytes}")]
    TooLarge { bytes: u64, max_bytes: u64 },
    /// The file would exceed the folder's quota.
    #[error("the folder has room for {files} more files and {bytes} more bytes by the server's quota")]
    Quota {
        /// Files that may still be put.
        files: u64,
        /// Bytes that may still be put.
        bytes: u64,
    },
    /// The server lacks a permission or has no room.
    #[error("the server cannot: {0}")]
    System(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Refused::NotFound,
            // The name leads out of the folder, or in circles.
            Errno::XDEV | Errno::LOOP => Refused::Name,
            Errno::ISDIR => Refused::NotAFile,
            errno => Refused::System(errno),
        }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::System(errno(&error))
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        match refused {
            Refused::System(errno) => errno.into(),
            Refused::NotFound => io::ErrorKind::NotFound.into(),
            other => io::Error::other(other),
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

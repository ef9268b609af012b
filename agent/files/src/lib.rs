//! Careful file access: reads are bounded, directories are checked by descriptor, and lock files name their holder.
//! [`monotonic_us`] is the clock that processes on one machine share. [`server_address`] and [`is_listening`] are for who starts
//! another program's server.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod clock;
mod descriptors;
mod directory;
pub mod document;
mod listener;
mod lock;
mod read;
mod socket;

pub use clock::monotonic_us;
pub use descriptors::raise_descriptor_limit;
pub use directory::{Directory, DirectoryError, Others};
pub use listener::{is_listening, server_address};
pub use lock::{LockError, LockFile, LockState};
pub use read::{Bound, ReadError, open, read, read_from, read_text, text};
pub use socket::{SocketError, SocketName, parent, remove_stale_socket};

//! Files opened with care: what is read has a bound, directories are checked by descriptor, lock files name their holder.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod directory;
mod lock;
mod read;

pub use directory::{Directory, DirectoryError, Others};
pub use lock::{Hold, LockError, LockFile};
pub use read::{Bound, ReadError, open, read, read_from, read_text, text};

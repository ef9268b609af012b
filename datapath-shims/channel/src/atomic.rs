//! The atomics, which are loom's where `make loom` checks the orderings.

#[cfg(all(loom, test))]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(loom, test)))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

//! The atomics, which are loom's where `make loom` checks the orderings.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

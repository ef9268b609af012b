//! Environments and trainings as a whole.
#![allow(clippy::unwrap_used)]

mod bits;
mod nudge;
mod stepped;

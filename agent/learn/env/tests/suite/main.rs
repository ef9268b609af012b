//! Environments and trainings as a whole.
#![allow(clippy::unwrap_used)]

mod exact;
mod nudge;
mod stepped;

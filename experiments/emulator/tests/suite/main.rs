//! Real packets and flows across emulated links.
#![allow(clippy::unwrap_used)]

mod emulator;
mod paths;
mod readme;

//! Frames without a port: interfaces beside smoltcp, errors of options, and whatever bytes arrive.
#![allow(clippy::unwrap_used)]

mod errors;
mod fuzz;
mod net;
mod support;

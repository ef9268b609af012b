//! The prediction server: beside textbook bandits, on each datapath, and given whatever bytes arrive.
#![allow(clippy::unwrap_used)]

mod frame;
mod fuzz;
mod live;
mod server;
mod support;
#[cfg(feature = "wire")]
mod wire;
mod xsk;

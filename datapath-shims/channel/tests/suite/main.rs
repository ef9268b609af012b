//! Both ends of the channel: rings, sockets, processes that die, and whatever they write.
#![allow(clippy::unwrap_used)]

mod common;
mod fuzz;
mod fuzz_hub;
mod glance;
mod packets;
mod process;
mod ring;
mod serve;

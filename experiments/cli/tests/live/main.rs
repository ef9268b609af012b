//! Real agents and the flows that they steer: in the kernel, over QUIC, behind the channel.
#![allow(clippy::unwrap_used)]

mod aggregate;
mod channel;
#[path = "../common/mod.rs"]
mod common;
mod evaluate;
mod follow;
mod kernel;
mod league;
mod learned;
mod packets;
mod quic;
mod record;
mod run;
mod upgrade;

//! The way between the agent and datapaths in other processes.
//!
//! A datapath says HELLO over the agent's unix datagram socket ([`ccplane_wire::v2`]). Where both want it, the WELCOME
//! brings a piece of sealed shared memory with two rings ([`ring`], [`End`]). A report takes some hundred nanoseconds
//! over them; else everything goes over the socket. [`Served`] is the datapath's side of that for any
//! [`Datapath`](ccplane_contract::Datapath), [`hub::Hub`] the agent's.
//!
//! Neither side ever waits for the other. An agent that does not read leaves events in the datapath's own bounded
//! queue, which counts what does not fit. An agent that goes away is looked for again; meanwhile flows go on by their
//! programs, until the datapath's heartbeat timeout. What comes out of shared memory is checked like what comes from a
//! socket: garbage ends the conversation, and nothing else.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod atomic;
pub mod clock;
mod end;
pub mod hub;
#[cfg(all(loom, test))]
mod model;
pub mod ring;
mod serve;
mod socket;
#[allow(unsafe_code)]
mod sys;
mod waker;

pub use ccplane_wait::Wake;
pub use ccplane_wire::v2::Clock;
pub use end::{End, Parts, RING_BYTES, RingError};
pub use ring::RecordBuffer;
pub use serve::{Mismatch, ServeOptions, Served, ServedLink, Transport, Turn, spawn};
pub use socket::{SOCKET_PREFIX, may_speak};
pub use sys::{MemoryError, SharedWords, unread_bytes};
pub use waker::Waker;

//! Active queue management without I/O or clock: CoDel (RFC 8289) and PIE (RFC 8033), in integers.
//!
//! The simulator's queues and the emulator's ask them about each packet; the queue itself is the caller's.

mod codel;
mod pie;

pub use codel::Codel;
pub use pie::Pie;

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Pass,
    Mark,
    Drop,
}

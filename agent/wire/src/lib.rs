//! Messages between agent and datapaths.
//!
//! [`v1`] is CCP's own protocol, byte for byte as portus 0.9 and libccp 1.2 speak it, in both directions: our
//! agent can steer a libccp datapath, and our datapaths can serve a portus agent. [`v2`] is ccplane's
//! protocol for datapaths in other processes: versioned, negotiated, IPv6, signed registers, batched reports.
//!
//! Nothing here does I/O. Bytes are parsed once, at the edge, into types that can't be wrong, and no input
//! panics: every refusal is a [`DecodeError`] that names the field and the limit. Parsed messages borrow
//! their datagram; variable-length parts are [`List`]s, which are checked when they are parsed and read
//! again, unaligned, as they are iterated. Encoding appends to any [`Out`] and leaves it as it was on an
//! error.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod list;

pub mod v1;
pub mod v2;

pub use bytes::{Out, SliceOut};
pub use error::{DecodeError, EncodeError};
pub use list::{Iter, List};

//! The prediction server wholly in XDP: a device's receive path parses, checks, chooses, infers and answers.
//!
//! The instructions are assembled here and follow the reference to the bit: the same answers, the same weights. User space only
//! pushes predictors and reads counters and weights, through memory that it shares with the program.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bandit;
mod counters;
mod error;
mod frame;
mod layout;
mod program;
mod server;
mod siphash;

pub use ccplane_bpf::{XdpMode, XdpRun};
pub use counters::Counter;
pub use error::XdpError;
pub use frame::{MAX_ADDRESSES, Target, XDP_DROP, XDP_PASS, XDP_TX};
pub use program::Random;
pub use server::{Attachment, MAX_PROCESSORS, Options, Plain, XdpServer};

//! A prediction server below the socket layer, after Okuyama et al. (ISPA 2018): requests carry inputs, replies a class and a token,
//! feedback the token and what was true. A bandit learns from that which of several integer networks to ask.
//!
//! [`Server`] is all of it but sockets, clock and randomness; what it answers and learns is defined there, and every other datapath
//! gives the same bits. `docs/predict.md` describes the datagrams, `ccplane_bandit::integer` the bandit, `nn-inkernel/ARITHMETIC.md` the
//! networks.
//!
//! Production ready? Whoever may send requests may also lie about what was true; let only those reach the port whose feedback you
//! believe. Forged, repeated and late feedback is dropped.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod choice;
mod counters;
pub mod data;
pub mod frame;
pub mod load;
pub mod packet;
mod portfolio;
mod server;
mod service;
pub mod sockets;
mod state;
mod token;
pub mod train;
pub mod uring;
mod window;
#[cfg(feature = "wire")]
pub mod wire;
pub mod xsk;

pub use choice::{Choice, MAX_SLOTS};
pub use counters::{Refusal, ServerCounters};
pub use portfolio::{MAX_NAME_BYTES, Portfolio, PortfolioError, Predictor};
pub use server::{Ending, Server, ServerError, Slot};
pub use service::{KEEP_EVERY, Notice, Remote, Service};
pub use state::{MAX_STATE_BYTES, ServerState, Session, StateError};
pub use token::{Key, TOKEN_BYTES, Token};
pub use window::{WINDOW, WINDOW_WORDS, Window};

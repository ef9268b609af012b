//! Runs TCP flows over emulated links and collects what they did.
//!
//! [`traffic`] is a bulk sender and receiver in given network namespaces, sampled by TCP_INFO; [`table`] shows flows while
//! they run; [`plan`] says what to compare and [`experiment`] runs that.
//!
//! Everything is released by drop: threads end, sockets are closed, namespaces are removed.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capacity;
#[cfg(feature = "dpdk")]
mod dpdk;
pub mod echo;
mod error;
pub mod experiment;
pub mod host;
mod percentiles;
pub mod plan;
mod preflight;
pub mod quic;
pub mod sim;
#[allow(unsafe_code)]
mod sys;
pub mod table;
pub mod tcp_info;
pub mod traffic;

pub use error::{Error, Result};
pub use preflight::{Missing, missing_for_links};

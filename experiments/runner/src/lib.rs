//! Runs TCP flows over emulated links and collects what they did.
//!
//! [`traffic`] is a bulk sender and receiver in given network namespaces, sampled by TCP_INFO; [`table`] shows flows while
//! they run; [`demo`] is the experiment of `ccplane demo`: it returns a [`ccplane_report::Report`].
//!
//! Everything is released by drop: threads end, sockets are closed, namespaces are removed.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capacity;
pub mod demo;
#[cfg(feature = "dpdk")]
mod dpdk;
mod error;
pub mod experiment;
pub mod host;
pub mod plan;
pub mod quic;
pub mod sim;
#[allow(unsafe_code)]
mod sys;
pub mod table;
pub mod tcp_info;
pub mod traffic;

pub use error::{Error, Result};

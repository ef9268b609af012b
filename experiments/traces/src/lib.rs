//! Link traces and link logs: what `ccplane trace` does, as a library.
//!
//! A trace says when a link can deliver ([`ccplane_netsim::trace`] reads it). Here traces are made from rates over time
//! ([`rates`]). The rates are a few shapes ([`shape`]), a random walk ([`cellular`]) or a Markov chain fitted to
//! another trace ([`markov`]); turned into series of numbers and back ([`series`]); put into figures ([`summary`]) and
//! drawn ([`plot`]). [`log`] reads what `mm-link` logs and computes the figures that mahimahi's graphs print.
//!
//! No I/O, clock or global randomness: text comes in, text goes out, and a seed gives the same bytes everywhere.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cellular;
mod error;
mod limits;
pub mod log;
pub mod markov;
pub mod plot;
pub mod rates;
mod reason;
pub mod series;
pub mod shape;
pub mod stats;
pub mod summary;

pub use error::{Error, InputPlace};

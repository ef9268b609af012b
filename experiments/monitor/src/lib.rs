//! Live pages of a running agent: on a terminal ([`top`]) and in a browser ([`web`]).
//!
//! Both ask the agent's control socket ([`source`]), keep what it answers for some minutes ([`model`]), and draw that. Nothing
//! here changes anything in the agent.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod model;
pub mod series;
pub mod source;
pub mod top;
pub mod units;
pub mod web;

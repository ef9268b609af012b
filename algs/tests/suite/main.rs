//! Algorithms over the simulated datapath, with the agent beside them.
#![allow(clippy::unwrap_used)]

mod common;
mod copa;
mod dual;
mod example;
mod nimbus;
mod portfolio;
mod sim;
mod vegas;

//! The simulated datapath: the contract, goldens, measurements, and programs of hosts.
#![allow(clippy::unwrap_used)]

mod common;
mod conformance;
mod goldens;
mod hosts;
mod measurements;
mod trains;
mod world;

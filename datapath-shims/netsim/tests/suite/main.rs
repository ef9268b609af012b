//! The virtual-time network, seen from its senders, and whatever text its parsers are given.
#![allow(clippy::unwrap_used)]

mod classes;
mod fuzz;
mod ingress;
mod network;
mod paths;
mod recordings;

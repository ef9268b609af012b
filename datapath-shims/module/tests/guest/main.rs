//! The module in virtual machines with Debian's kernels. The tests outside of `host` run there: this very program is one of the
//! files that the machine gets.
#![allow(clippy::unwrap_used)]

mod agent;
mod algorithms;
mod contract;
mod faults;
mod host;
mod lab;
mod live;
mod plans;
mod portus;

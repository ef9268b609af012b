//! The fold language: what a congestion control program means, and everything that can be done to one
//! without a datapath.
//!
//! [`compile`] turns source text into the verified intermediate representation [`ir`] that every back end
//! lowers; [`vm`] is the reference executor (no allocation, no panics) that every other executor agrees with
//! bit for bit.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod ir;
pub mod lang;
pub mod vm;

pub use lang::{Diagnostic, compile};

//! The fold language: what a congestion control program means, and everything that can be done to one
//! without a datapath.
//!
//! [`ir`] is the verified intermediate representation that every back end lowers, [`vm`] the reference
//! executor (no allocation, no panics) that every other executor agrees with bit for bit.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod ir;
pub mod vm;

//! The fold language: what a congestion control program means, and everything that can be done to one
//! without a datapath.
//!
//! [`compile`] turns source text into the verified intermediate representation [`ir`] that every back end
//! lowers; [`vm`] is the reference executor (no allocation, no panics) that every other executor agrees with
//! bit for bit. [`stock`] lowers programs for the datapaths of CCP, [`disasm`] shows what was compiled.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod disasm;
mod hook;
pub mod ir;
pub mod lang;
pub mod stock;
pub mod vm;

pub use lang::{Diagnostic, compile};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

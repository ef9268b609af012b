//! The fold language: what compiles, what is refused, and properties of every executor.
#![allow(clippy::unwrap_used)]

mod common;
mod compile;
mod fuzz;
mod guards;
mod lift;
mod policy;
mod properties;

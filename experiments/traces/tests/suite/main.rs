//! Traces: fits of models, and whatever text the parsers are given.
#![allow(clippy::unwrap_used)]

mod fit;
mod fuzz;

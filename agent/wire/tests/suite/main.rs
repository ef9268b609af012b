//! Messages: goldens, properties, refusals, and whatever bytes arrive.
#![allow(clippy::unwrap_used)]

mod fuzz;
mod goldens;
mod properties;
mod refusals;
mod support;

//! Tests of the host's settings, measurements, learning and search.
#![allow(clippy::unwrap_used)]

mod acceptance;
mod journal;
mod searches;
mod sweeps;

//! Fuzz targets of the agent: configurations, requests, and sequences of datapaths and control clients.
#![allow(clippy::unwrap_used)]

mod fuzz;
mod fuzz_sequences;

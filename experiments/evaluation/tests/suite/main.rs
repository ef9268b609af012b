//! Criteria from end to end: cases drawn, simulated, judged, reported.
#![allow(clippy::unwrap_used)]

mod criteria;

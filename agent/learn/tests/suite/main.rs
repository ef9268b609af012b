//! Learners on toy environments, policy files, and whatever bytes they are read from.
#![allow(clippy::unwrap_used)]

mod fuzz;
mod learning;
mod online;
mod policy;
mod toys;

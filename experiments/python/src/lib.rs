//! `ccplane._native`: what the Python package `ccplane` is made of.
//!
//! Python sees the package in `python/ccplane`, which wraps this module; its stubs, `_native.pyi`, say what each call takes.
//! Calls that take long let go of the interpreter's lock. Arrays are written to where Python has them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod algorithm;
mod command;
mod echo;
mod environment;
mod error;
mod families;
mod names;
mod policy;
mod simulated;
mod vector;

use pyo3::prelude::*;

/// The extension module, whose content the package wraps.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::algorithm::{Control, Hosted};
    #[pymodule_export]
    use crate::command::{algorithms, command};
    #[pymodule_export]
    use crate::environment::{Flows, run_in_rust};
    #[pymodule_export]
    use crate::policy::{policy_from_bytes, policy_to_bytes, read_policy};
    #[pymodule_export]
    use crate::simulated::{play_links, read_results, simulate};
    #[pymodule_export]
    use crate::vector::Vector;
}

//! The whole `ccplane` command, with Python's algorithms beside the built-in ones.

use crate::algorithm::own;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command in this process and returns its exit code: 0 done, 1 failed at run time, 2 the input is wrong.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>, hosted: &Bound<'_, PyList>) -> PyResult<u8> {
    let own = own(hosted)?;
    let arguments = std::iter::once(OsString::from("ccplane")).chain(arguments);
    let code = py.detach(move || ccplane::run_from(arguments, own));
    // An exit code does not tell its number, but whether it is another.
    Ok((0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(u8::MAX))
}

/// The names of the built-in algorithms.
#[pyfunction]
pub(crate) fn algorithms() -> Vec<&'static str> {
    ccplane_algs::all().iter().map(|algorithm| algorithm.name()).collect()
}

//! The number of threads that libtorch computes with.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

/// OpenBLAS starts threads of its own, one per core, that [`tch::set_num_threads`] says nothing to. A libtorch that
/// multiplies by another library does not have it.
const OPENBLAS: &CStr = c"openblas_set_num_threads";

/// Sets it for the whole process.
pub(super) fn set(threads: i32) {
    tch::set_num_threads(threads);
    // SAFETY: the name is a C string, which dlsym only reads.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, OPENBLAS.as_ptr()) };
    if !found.is_null() {
        // SAFETY: a function of this name is `void openblas_set_num_threads(int)` (OpenBLAS's cblas.h).
        let set: extern "C" fn(c_int) = unsafe { std::mem::transmute(found) };
        set(threads);
    }
}

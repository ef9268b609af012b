//! Control of the system's allocator.
#![allow(unsafe_code)]

/// Returns free pages of the heap to the system. glibc keeps those that lie between others in use until it is asked.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches only the allocator's own free memory, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

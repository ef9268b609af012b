//! Installs seccomp filters with `SECCOMP_FILTER_FLAG_LOG`, which the seccompiler crate cannot set.
//!
//! Under that flag the kernel logs every refused call (seccomp(2)). The audit record, of type 1326, has the process,
//! its executable and the call's number. The record goes to the audit daemon's log if one runs, else to the kernel's,
//! limited to the rate of its messages.

use libc::{c_long, sock_filter, sock_fprog};
use nix::errno::Errno;
use seccompiler::BpfProgram;
use std::io;

/// The threads that a filter applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// The calling thread, and threads that it starts later.
    This,
    /// All threads of the process.
    All,
}

/// Whether the kernel logs refused calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusals {
    /// The kernel logs each refused call.
    Logged,
    /// The kernel does not log: callers are expected to try a call and to fall back.
    Silent,
}

/// Installs `program` for good; the threads can no longer gain privileges.
///
/// # Errors
/// The error is `EINVAL` for a program that the kernel does not take or has no room for. It is `ESRCH` where a
/// thread cannot be reached, or what else the system refuses with.
pub fn apply(program: &BpfProgram, threads: Threads, refusals: Refusals) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let len = u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?;
    let same = |i: &seccompiler::sock_filter| sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k };
    let mut filter: Vec<sock_filter> = program.iter().map(same).collect();
    let program = sock_fprog { len, filter: filter.as_mut_ptr() };
    let of_threads = if threads == Threads::All { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    let of_refusals = if refusals == Refusals::Logged { libc::SECCOMP_FILTER_FLAG_LOG } else { 0 };
    // SAFETY: `program` and the `len` instructions that it points to live until the call returns, which copies them.
    let told: c_long = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            of_threads | of_refusals,
            &raw const program,
        )
    };
    match told {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // The kernel names the thread that it could not synchronise.
        _ => Err(Errno::ESRCH.into()),
    }
}

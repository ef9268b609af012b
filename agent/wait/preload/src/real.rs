//! The system's own functions, which come after ours where the loader looks for names.
#![allow(unsafe_code)]

use libc::{
    c_int, c_uint, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t,
    sockaddr, socklen_t,
};
use libc::{ssize_t, timespec, timeval};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address of the next function of this name; a program without it cannot go on.
fn next(name: &CStr, at: &AtomicUsize) -> usize {
    let known = at.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: the name ends with a NUL, and the call only looks it up.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if found == 0 {
        eprintln!("ccplane: the system has no {}", name.to_string_lossy());
        std::process::abort();
    }
    at.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($name:ident, $text:literal, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        /// Calls the system's function of this name.
        ///
        /// # Safety
        /// The arguments are as that function demands.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static AT: AtomicUsize = AtomicUsize::new(0);
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: libc's function of this name has this type.
            let function = unsafe { std::mem::transmute::<usize, Function>(next($text, &AT)) };
            // SAFETY: the caller's promise.
            unsafe { function($($argument),*) }
        }
    };
}

real!(ppoll, c"ppoll", (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int);
real!(select, c"select", (
    count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *mut timeval
) -> c_int);
real!(epoll_pwait, c"epoll_pwait", (
    epoll: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const sigset_t
) -> c_int);
real!(recvfrom, c"recvfrom", (
    socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
) -> ssize_t);
real!(recvmsg, c"recvmsg", (socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t);
real!(read, c"read", (fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t);
real!(write, c"write", (fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t);
real!(sendto, c"sendto", (
    socket: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t
) -> ssize_t);
real!(readv, c"readv", (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t);
real!(accept, c"accept", (socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int);
real!(accept4, c"accept4", (socket: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int);
real!(recvmmsg, c"recvmmsg", (
    socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
) -> c_int);
real!(pselect, c"pselect", (
    count: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set, timeout: *const timespec,
    mask: *const sigset_t
) -> c_int);
real!(epoll_pwait2, c"epoll_pwait2", (
    epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t
) -> c_int);

/// Returns the calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets this thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address is that of this thread's own number.
    unsafe { *libc::__errno_location() = errno }
}

//! The calls that wait and are not served: each goes to the system as it is, and is counted where it may wait.
#![allow(unsafe_code)]

use crate::calls::blocks;
use crate::mode::{ACCEPT, EPOLL_PWAIT2, PSELECT, READV, RECVMMSG};
use crate::real;
use libc::{
    MSG_DONTWAIT, c_int, c_uint, epoll_event, fd_set, iovec, mmsghdr, sigset_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

/// Whether the descriptor is a socket on which calls wait.
fn is_blocking_socket(fd: c_int) -> bool {
    let (mut kind, mut length): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: number and length live for the call, which writes at most as many bytes as the length says.
    let got = unsafe {
        let kind = &raw mut kind;
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, kind.cast(), &raw mut length)
    };
    got == 0 && blocks(fd)
}

/// Whether a call with this time waits at all.
///
/// # Safety
/// The pointer is null or can be read.
unsafe fn waits(timeout: *const timespec) -> bool {
    // SAFETY: the caller's promise.
    unsafe { timeout.as_ref() }.is_none_or(|time| time.tv_sec != 0 || time.tv_nsec != 0)
}

/// Counts the calls of readv(2) on sockets that may wait.
///
/// # Safety
/// Stands for libc's `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let before = real::errno();
    if is_blocking_socket(fd) {
        READV.note();
    }
    // A file or a pipe has just failed to be a socket, of which the program is not to hear.
    real::set_errno(before);
    // SAFETY: the caller's promise.
    unsafe { real::readv(fd, parts, count) }
}

/// Counts the calls of accept(2) that may wait.
///
/// # Safety
/// Stands for libc's `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if blocks(socket) {
        ACCEPT.note();
    }
    // SAFETY: the caller's promise.
    unsafe { real::accept(socket, from, length) }
}

/// Counts the calls of accept4(2) that may wait.
///
/// # Safety
/// Stands for libc's `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    socket: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if blocks(socket) {
        ACCEPT.note();
    }
    // SAFETY: the caller's promise.
    unsafe { real::accept4(socket, from, length, flags) }
}

/// Counts the calls of recvmmsg(2) that may wait.
///
/// # Safety
/// Stands for libc's `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if flags & MSG_DONTWAIT == 0 && blocks(socket) {
        RECVMMSG.note();
    }
    // SAFETY: the caller's promise.
    unsafe { real::recvmmsg(socket, messages, count, flags, timeout) }
}

/// Counts the calls of pselect(2) that may wait.
///
/// # Safety
/// Stands for libc's `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { waits(timeout) } {
        PSELECT.note();
    }
    // SAFETY: the caller's promise.
    unsafe { real::pselect(count, read, write, other, timeout, mask) }
}

/// Counts the calls of epoll_pwait2(2) that may wait.
///
/// # Safety
/// Stands for libc's `epoll_pwait2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { waits(timeout) } {
        EPOLL_PWAIT2.note();
    }
    // SAFETY: the caller's promise.
    unsafe { real::epoll_pwait2(epoll, events, most, timeout, mask) }
}

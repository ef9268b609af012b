//! System calls that nix does not offer. All of the crate's `unsafe` is here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_long};
use nix::sys::epoll::EpollEvent;

/// The busy polling of an epoll(7) instance, as the kernel reads it (include/uapi/linux/eventpoll.h).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct EpollParams {
    pub(crate) busy_poll_usecs: u32,
    pub(crate) busy_poll_budget: u16,
    pub(crate) prefer_busy_poll: u8,
    pub(crate) padding: u8,
}

mod ioctl {
    use super::EpollParams;

    /// EPOLL_IOC_TYPE of include/uapi/linux/eventpoll.h.
    const EPOLL: u8 = 0x8a;

    nix::ioctl_write_ptr!(set_params, EPOLL, 1, EpollParams);
    nix::ioctl_read!(get_params, EPOLL, 2, EpollParams);
}

/// Calls of futex(2) and futex_waitv(2). The model checks use loom's condition variable in their place.
#[cfg(not(all(loom, test)))]
pub(crate) mod futex {
    use super::timespec;
    use libc::c_long;
    use std::io;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// A word of futex_waitv(2), as the kernel reads it (include/uapi/linux/futex.h).
    #[repr(C)]
    struct WaitedWord {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }

    /// FUTEX_32 and FUTEX_PRIVATE_FLAG, as futex_waitv(2) has them.
    const WAITED_FLAGS: u32 = 2 | 128;

    /// Sleeps while `word` is `expected`; returns for any reason.
    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word lives for the call, and the time, where there is one, too; the kernel writes to neither.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                timeout,
            );
        }
    }

    /// Wakes up to `threads` that sleep on `word`.
    pub(crate) fn wake(word: &AtomicU32, threads: u32) {
        // SAFETY: the kernel uses the word's address as a name, and neither reads nor writes it.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                threads,
            );
        }
    }

    /// Sleeps while all words have their values; returns for any reason but that the call is not there.
    pub(crate) fn wait_any(words: &[(&AtomicU32, u32)], timeout: Duration) -> io::Result<()> {
        let waited: Vec<WaitedWord> = words
            .iter()
            .map(|(word, value)| WaitedWord {
                value: u64::from(*value),
                address: word.as_ptr() as u64,
                flags: WAITED_FLAGS,
                reserved: 0,
            })
            .collect();
        let clock = nix::time::ClockId::CLOCK_MONOTONIC;
        let now = Duration::from(nix::time::clock_gettime(clock)?);
        let until = timespec(now.saturating_add(timeout));
        // SAFETY: the list, the words that it names and the time live for the call, which writes to none of them.
        let woken = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                waited.as_ptr(),
                waited.len() as c_long,
                0 as c_long,
                &raw const until,
                libc::CLOCK_MONOTONIC as c_long,
            )
        };
        let error = io::Error::last_os_error();
        let is_refused = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM));
        if woken < 0 && is_refused { Err(error) } else { Ok(()) }
    }
}

fn timespec(time: Duration) -> libc::timespec {
    let seconds = time.as_secs().try_into().unwrap_or(c_long::MAX);
    libc::timespec { tv_sec: seconds, tv_nsec: c_long::from(time.subsec_nanos() as i32) }
}

/// Puts the calling thread under SCHED_FIFO. Threads that it starts are not.
pub(crate) fn set_fifo(priority: c_int) -> io::Result<()> {
    // SAFETY: numbers alone, of which musl's has more.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: the parameter lives for the call, which only reads it.
    let set = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameter)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets a socket's option that is one number.
pub(crate) fn set_option(socket: BorrowedFd<'_>, option: c_int, value: c_int) -> io::Result<()> {
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the number lives for the call, and the length is its own.
    let set = unsafe {
        let value = &raw const value;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), length)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket's option that is one number.
pub(crate) fn option(socket: BorrowedFd<'_>, option: c_int) -> io::Result<c_int> {
    let (mut value, mut length): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: number and length live for the call, which writes at most as many bytes as the length says.
    let got = unsafe {
        let value = &raw mut value;
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), &raw mut length)
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Whether something can be read from a descriptor now, or it has ended.
pub(crate) fn is_readable(descriptor: RawFd) -> bool {
    let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: it is one entry, which lives for the call; a number that names nothing is only reported.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

/// Sets the busy polling of an epoll(7) instance.
pub(crate) fn set_epoll_params(epoll: BorrowedFd<'_>, params: EpollParams) -> io::Result<()> {
    // SAFETY: the parameters live for the call, which only reads them.
    let set = unsafe { ioctl::set_params(epoll.as_raw_fd(), &raw const params) };
    Ok(set.map(|_| ())?)
}

/// Reads the busy polling of an epoll(7) instance.
pub(crate) fn epoll_params(epoll: BorrowedFd<'_>) -> io::Result<EpollParams> {
    let mut params = EpollParams::default();
    // SAFETY: the parameters live for the call, which writes exactly them.
    let got = unsafe { ioctl::get_params(epoll.as_raw_fd(), &raw mut params) };
    Ok(got.map(|_| params)?)
}

/// Waits for events at most as long as `timeout`, to the nanosecond; returns how many there are, 0 also after a signal.
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut [EpollEvent],
    timeout: Duration,
) -> io::Result<usize> {
    let (room, timeout) = (c_int::try_from(events.len()).unwrap_or(c_int::MAX), timespec(timeout));
    // SAFETY: the time lives for the call, and the events do, of which it writes at most as many as there are; each is an
    // `epoll_event`. There is no signal mask.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            &raw const timeout,
            std::ptr::null::<libc::sigset_t>(),
            0 as c_long,
        )
    };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

//! The calls that are served in the place of the system's. Their names, arguments and results are libc's.
#![allow(unsafe_code)]

use crate::mode::{RECEIVE_ALL, WRITE};
use crate::real;
use crate::thread::{Answer, wait};
use libc::{
    EAGAIN, ENOTSOCK, FD_SETSIZE, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_WAITALL, POLLIN, c_int, c_void,
    epoll_event, fd_set, msghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval,
};
use std::ptr;
use std::time::Duration;

/// The time that a number of milliseconds means, as poll(2) and epoll_wait(2) have it.
fn millis(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

fn to_timespec(time: Duration) -> timespec {
    timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

fn to_timeval(time: Duration) -> timeval {
    timeval {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(time.subsec_micros() as i32),
    }
}

/// The result of one try. The error is kept, since later calls change `errno`.
struct Tried {
    result: isize,
    errno: c_int,
}

impl Tried {
    fn new(result: isize) -> Tried {
        Tried { result, errno: if result < 0 { real::errno() } else { 0 } }
    }

    /// An answer of a call that returns 0 where nothing is there.
    fn or_zero(self) -> Answer<Tried> {
        if self.result == 0 { Answer::Nothing(self) } else { Answer::Done(self) }
    }

    fn give(self) -> isize {
        if self.result < 0 {
            real::set_errno(self.errno);
        }
        self.result
    }
}

/// Takes the place of poll(2) in a program.
///
/// # Safety
/// Stands for libc's `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { poll_for(fds, count, millis(timeout_ms), ptr::null()) }
}

/// Takes the place of poll(2) as programs call it that check the sizes of their arrays.
///
/// # Safety
/// Stands for libc's `__poll_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    bytes: size_t,
) -> c_int {
    if bytes / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { poll(fds, count, timeout_ms) }
}

/// Takes the place of ppoll(2) in a program.
///
/// # Safety
/// Stands for libc's `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise; a pointer that is not null can be read.
    let timeout = match unsafe { timeout.as_ref() } {
        None => None,
        Some(time) => match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
            (Ok(seconds), Ok(nanos @ 0..=999_999_999)) => Some(Duration::new(seconds, nanos)),
            // SAFETY: the caller's promise; the system refuses such a time by itself.
            _ => return unsafe { real::ppoll(fds, count, timeout, mask) },
        },
    };
    // SAFETY: the caller's promise.
    unsafe { poll_for(fds, count, timeout, mask) }
}

/// # Safety
/// As that of ppoll(2).
unsafe fn poll_for(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let tried = wait(timeout, |left| {
        let left = left.map(to_timespec);
        let left = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the caller's promise; the time lives for the call.
        Tried::new(unsafe { real::ppoll(fds, count, left, mask) } as isize).or_zero()
    });
    tried.give() as c_int
}

/// Takes the place of select(2) in a program.
///
/// # Safety
/// Stands for libc's `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise; a pointer that is not null can be read.
    let given = unsafe { timeout.as_ref() };
    let time = given.map(|time| (u64::try_from(time.tv_sec), u32::try_from(time.tv_usec)));
    let time = match time {
        None => None,
        Some((Ok(seconds), Ok(micros @ 0..=999_999))) => Some(Duration::new(seconds, micros * 1000)),
        // SAFETY: the caller's promise; the system refuses such a time by itself.
        Some(_) => return unsafe { real::select(count, read, write, other, timeout) },
    };
    if usize::try_from(count).is_ok_and(|count| count > FD_SETSIZE) {
        // Sets of another size than libc's: they cannot be copied.
        // SAFETY: the caller's promise.
        return unsafe { real::select(count, read, write, other, timeout) };
    }
    let sets = [read, write, other];
    // SAFETY: the caller's promise; a pointer that is not null can be read.
    let wanted = sets.map(|set| unsafe { set.as_ref() }.copied());
    let start = std::time::Instant::now();
    let tried = wait(time, |left| {
        // The system leaves in the sets what is ready: each try has those of the caller.
        for (set, wanted) in sets.iter().zip(wanted) {
            // SAFETY: the caller's promise; a pointer that is not null can be written to.
            if let (Some(set), Some(wanted)) = (unsafe { set.as_mut() }, wanted) {
                *set = wanted;
            }
        }
        let mut left = left.map(to_timeval);
        let left = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the caller's promise; the time lives for the call.
        Tried::new(unsafe { real::select(count, read, write, other, left) } as isize).or_zero()
    });
    // SAFETY: the caller's promise; a pointer that is not null can be written to.
    if let (Some(timeout), Some(time)) = (unsafe { timeout.as_mut() }, time) {
        // Linux leaves the time there that was not slept.
        *timeout = to_timeval(time.saturating_sub(start.elapsed()));
    }
    tried.give() as c_int
}

/// Takes the place of epoll_wait(2) in a program.
///
/// # Safety
/// Stands for libc's `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { epoll_pwait(epoll, events, most, timeout_ms, ptr::null()) }
}

/// Takes the place of epoll_pwait(2) in a program.
///
/// # Safety
/// Stands for libc's `epoll_pwait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let tried = wait(millis(timeout_ms), |left| {
        // A sleep of less is slept on the descriptor itself, which is readable where events are there.
        let exact = left.filter(|left| left.subsec_nanos() % 1_000_000 != 0);
        let left_ms = match exact {
            Some(left) => {
                let mut one = pollfd { fd: epoll, events: POLLIN, revents: 0 };
                let left = to_timespec(left);
                // SAFETY: one descriptor and the time live for the call; the mask is the caller's promise.
                let ready = unsafe { real::ppoll(&raw mut one, 1, &raw const left, mask) };
                if ready < 0 {
                    return Answer::Done(Tried::new(ready as isize));
                }
                0
            }
            None => left.map_or(-1, |left| c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX)),
        };
        // SAFETY: the caller's promise.
        Tried::new(unsafe { real::epoll_pwait(epoll, events, most, left_ms, mask) } as isize).or_zero()
    });
    tried.give() as c_int
}

/// Takes the place of read(2) in a program, where it reads from a socket.
///
/// # Safety
/// Stands for libc's `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    let before = real::errno();
    // Whoever asks for nothing gets it at once from read(2), but not from recv(2).
    if bytes > 0 {
        // SAFETY: the caller's promise.
        let received = receive(fd, 0, |flags| unsafe {
            real::recvfrom(fd, buffer, bytes, flags, ptr::null_mut(), ptr::null_mut())
        });
        if received >= 0 || real::errno() != ENOTSOCK {
            return received;
        }
        real::set_errno(before);
    }
    // SAFETY: the caller's promise.
    unsafe { real::read(fd, buffer, bytes) }
}

/// Takes the place of read(2) as programs call it that check the sizes of their buffers.
///
/// # Safety
/// Stands for libc's `__read_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t) -> ssize_t {
    if bytes > room {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { read(fd, buffer, bytes) }
}

/// Takes the place of write(2) in a program: one that would wait for room in a socket goes on in the system, and is counted.
///
/// # Safety
/// Stands for libc's `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    let before = real::errno();
    // SAFETY: the caller's promise; without an address it goes where the socket is connected to.
    let sent = unsafe { real::sendto(fd, buffer, bytes, MSG_DONTWAIT, ptr::null(), 0) };
    if sent < 0 && real::errno() == ENOTSOCK {
        real::set_errno(before);
        // SAFETY: the caller's promise.
        return unsafe { real::write(fd, buffer, bytes) };
    }
    let done = size_t::try_from(sent).unwrap_or(0);
    let failed = sent < 0 && real::errno() != EAGAIN;
    if failed || (sent >= 0 && done >= bytes) || !blocks(fd) {
        return sent;
    }
    WRITE.note();
    // SAFETY: the caller's promise; the rest lies behind what was sent.
    let rest = unsafe { real::write(fd, buffer.byte_add(done), bytes - done) };
    // What was sent before a failure is what the call has done.
    if rest < 0 && done > 0 { sent } else { rest + done as ssize_t }
}

/// Takes the place of recv(2) in a program.
///
/// # Safety
/// Stands for libc's `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { recvfrom(socket, buffer, bytes, flags, ptr::null_mut(), ptr::null_mut()) }
}

/// Takes the place of recv(2) as programs call it that check the sizes of their buffers.
///
/// # Safety
/// Stands for libc's `__recv_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    socket: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if bytes > room {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { recv(socket, buffer, bytes, flags) }
}

/// Takes the place of recvfrom(2) in a program.
///
/// # Safety
/// Stands for libc's `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    receive(socket, flags, |flags| {
        // SAFETY: the caller's promise; a length is written only where something was received.
        unsafe { real::recvfrom(socket, buffer, bytes, flags, from, length) }
    })
}

/// Takes the place of recvmsg(2) in a program.
///
/// # Safety
/// Stands for libc's `recvmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    receive(socket, flags, |flags| {
        // SAFETY: the caller's promise; the message is written to only where something was received.
        unsafe { real::recvmsg(socket, message, flags) }
    })
}

/// Receives by `call`, which takes flags; waits as its thread does where the socket blocks.
fn receive(socket: c_int, flags: c_int, mut call: impl FnMut(c_int) -> ssize_t) -> ssize_t {
    // Errors of packets are there or not: nobody waits for them.
    if flags & (MSG_DONTWAIT | MSG_ERRQUEUE) != 0 {
        return call(flags);
    }
    if flags & MSG_WAITALL != 0 {
        if blocks(socket) {
            RECEIVE_ALL.note();
        }
        return call(flags);
    }
    let tried = Tried::new(call(flags | MSG_DONTWAIT));
    if tried.result >= 0 || tried.errno != EAGAIN || !blocks(socket) {
        return tried.give();
    }
    let timeout = receive_timeout(socket);
    let tried = wait(timeout, |left| {
        let Some(left) = left else {
            // A sleep without an end is the call's own, and signals end it or not as without the library.
            return Answer::Done(Tried::new(call(flags)));
        };
        if !left.is_zero() {
            let mut one = pollfd { fd: socket, events: POLLIN, revents: 0 };
            let left = to_timespec(left);
            // SAFETY: one descriptor and the time live for the call.
            let ready = unsafe { real::ppoll(&raw mut one, 1, &raw const left, ptr::null()) };
            if ready < 0 {
                return Answer::Done(Tried::new(ready as isize));
            }
        }
        let tried = Tried::new(call(flags | MSG_DONTWAIT));
        if tried.result < 0 && tried.errno == EAGAIN { Answer::Nothing(tried) } else { Answer::Done(tried) }
    });
    tried.give()
}

/// Whether calls on the descriptor wait.
pub(crate) fn blocks(socket: c_int) -> bool {
    // SAFETY: the call reads flags and touches no memory.
    let flags = unsafe { libc::fcntl(socket, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// Returns the longest wait of a receiving call on the socket (`SO_RCVTIMEO`); `None` where there is no limit.
fn receive_timeout(socket: c_int) -> Option<Duration> {
    let mut time = timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<timeval>() as socklen_t;
    // SAFETY: time and length live for the call, which writes at most as many bytes as the length says.
    let got = unsafe {
        let time = &raw mut time;
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time.cast(), &raw mut length)
    };
    let (seconds, micros) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_usec).ok()?);
    let time = Duration::new(seconds, micros.checked_mul(1000)?);
    (got == 0 && !time.is_zero()).then_some(time)
}

//! Unmodified programs wait on their sockets by ccplane's modes: a library for `LD_PRELOAD`.
//!
//! ```console
//! $ LD_PRELOAD=target/release/libccplane_wait_preload.so CCPLANE_WAKE=auto:10 redis-server
//! ```
//! `CCPLANE_WAKE` is `sleep`, `spin:US` or `auto:PERCENT`; without it, `auto:10`. Another text ends the program at its start, with
//! exit code 2 and a message. With `CCPLANE_WAKE_COUNTS` set, the program says at its end how often it polled and slept.
//!
//! Served are poll, ppoll, select, epoll_wait, epoll_pwait, and recv, recvfrom and recvmsg of sockets that block. Each thread has a
//! waiter of its own. What a call returns is the system's answer to that very call, made without waiting or with less time.
//!
//! Not served, and left as they are: read(2), pselect(2), epoll_pwait2(2), accept(2), receiving with `MSG_WAITALL`, and whatever does
//! not go through libc's functions (io_uring, statically linked programs, Go). `busy` is refused, since a signal that comes
//! while a thread polls does not end its call with `EINTR`, as it would have to.
#![warn(unsafe_code)]

mod calls;
mod mode;
mod real;
mod thread;

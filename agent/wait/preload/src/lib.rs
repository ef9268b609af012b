//! Unmodified programs wait on their sockets by ccplane's modes: a library for `LD_PRELOAD`.
//!
//! ```console
//! $ LD_PRELOAD=target/release/libccplane_wait_preload.so CCPLANE_WAKE=auto:10 redis-server
//! ```
//! `CCPLANE_WAKE` is `sleep`, `spin:US` or `auto:PERCENT`; without it, `auto:10`. Another text ends the program at its start, with
//! exit code 2 and a message. With `CCPLANE_WAKE_COUNTS` set, the program says at its end how often it polled and slept, and which
//! calls were not served. With `CCPLANE_WAKE_STRICT` set, the first call that is not served ends it, with exit code 2 and a message.
//!
//! Served are poll, ppoll, select, epoll_wait, epoll_pwait, and read, recv, recvfrom and recvmsg of sockets that block. Each thread
//! has a waiter of its own. What a call returns is the system's answer to that very call, made without waiting or with less time.
//!
//! Left as they are, and counted where they may wait: readv, accept, recvmmsg, pselect, epoll_pwait2, receiving with
//! `MSG_WAITALL`, and a write that finds no room. Neither served nor seen are send(2) and its kin, which wait for room
//! and not for a message. The same holds for whatever does not go through libc's functions (io_uring, statically linked
//! programs, Go). `busy` is refused, since a signal that comes while a thread polls does not end its call with `EINTR`,
//! as it would have to. A signal that comes while `auto` sleeps until a window ends the call with `EINTR`, also where
//! its handler asks for a restart.
//!
//! A read or write of what is no socket costs one system call more, which says so.
#![warn(unsafe_code)]

mod calls;
mod mode;
mod real;
mod thread;
mod unserved;

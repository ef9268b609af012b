//! Busy polling of sockets by the kernel: whoever waits on one takes its packets from the device, and no interrupt has to.

use crate::sys;
use std::io;
use std::os::fd::BorrowedFd;

/// Packets that the kernel takes from a device in one go for a waiting thread.
const BUDGET: libc::c_int = 64;

/// Why the kernel does not poll for a socket.
#[derive(Debug, thiserror::Error)]
pub enum BusyPollError {
    /// The kernel has no such option.
    #[error("this kernel has no {option}")]
    Absent { option: &'static str },
    /// The option takes CAP_NET_ADMIN.
    #[error("{option} takes CAP_NET_ADMIN")]
    NotAllowed { option: &'static str },
    #[error("{option}: {source}")]
    Os { option: &'static str, source: io::Error },
}

/// Lets the kernel poll the socket's device for `us` microseconds whenever a thread waits on it; 0 ends that.
///
/// A socket whose packets come from no device with NAPI, such as loopback's, takes the options and does not change.
///
/// # Errors
/// [`BusyPollError`]; options that were set before the one that failed stay set.
pub fn set_busy_poll(socket: BorrowedFd<'_>, us: u32) -> Result<(), BusyPollError> {
    let us = libc::c_int::try_from(us).unwrap_or(libc::c_int::MAX);
    set(socket, "SO_BUSY_POLL", libc::SO_BUSY_POLL, us)?;
    set(socket, "SO_PREFER_BUSY_POLL", libc::SO_PREFER_BUSY_POLL, libc::c_int::from(us > 0))?;
    set(socket, "SO_BUSY_POLL_BUDGET", libc::SO_BUSY_POLL_BUDGET, BUDGET)
}

/// How long the kernel polls for the socket, microseconds.
///
/// # Errors
/// The kernel has no such option.
pub fn busy_poll_us(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(u32::try_from(sys::option(socket, libc::SO_BUSY_POLL)?).unwrap_or(0))
}

fn set(
    socket: BorrowedFd<'_>,
    option: &'static str,
    number: libc::c_int,
    value: libc::c_int,
) -> Result<(), BusyPollError> {
    sys::set_option(socket, number, value).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOPROTOOPT) => BusyPollError::Absent { option },
        Some(libc::EPERM) => BusyPollError::NotAllowed { option },
        _ => BusyPollError::Os { option, source },
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_is_polled_for_as_long_as_it_was_asked() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        match set_busy_poll(socket.as_fd(), 40) {
            Ok(()) => {
                assert_eq!(busy_poll_us(socket.as_fd()).unwrap(), 40);
                set_busy_poll(socket.as_fd(), 0).unwrap();
                assert_eq!(busy_poll_us(socket.as_fd()).unwrap(), 0);
            }
            Err(error @ (BusyPollError::Absent { .. } | BusyPollError::NotAllowed { .. })) => {
                ccplane_testing::skipped("busy polling of sockets", error);
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = set_busy_poll(file.as_fd(), 40).unwrap_err();
        assert!(matches!(error, BusyPollError::Os { option: "SO_BUSY_POLL", .. }), "{error}");
    }
}

//! Busy polling of sockets by the kernel: whoever waits on one takes its packets from the device, and no interrupt has to.

use crate::sys::{self, EpollParams};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Packets that the kernel takes from a device in one go for a waiting thread, the most that needs no privilege.
const BUDGET: u16 = 64;
/// Descriptors that are found ready by one wait, at most.
const MAX_READY: usize = 8;

/// Reasons why the kernel does not poll for a socket.
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
    set(socket, "SO_BUSY_POLL_BUDGET", libc::SO_BUSY_POLL_BUDGET, libc::c_int::from(BUDGET))
}

/// Returns the time for which the kernel polls for the socket, microseconds.
///
/// # Errors
/// The kernel has no such option.
pub fn busy_poll_us(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(u32::try_from(sys::option(socket, libc::SO_BUSY_POLL)?).unwrap_or(0))
}

/// The number of the device's queue (NAPI) that the socket's last packet came from; `None` where it came from none that can be
/// polled, as over loopback, or no packet came yet.
pub fn incoming_napi(socket: BorrowedFd<'_>) -> Option<u32> {
    let id = sys::option(socket, libc::SO_INCOMING_NAPI_ID).ok()?;
    u32::try_from(id).ok().filter(|id| *id > 0)
}

/// Waits for descriptors, each of which begins with the kernel polling the devices of those that are sockets.
///
/// While such waits find packets, a device of which the kernel may suspend interrupts (`irq-suspend-timeout`, Linux 6.13) raises none.
#[derive(Debug)]
pub struct BusyWait(Epoll);

impl BusyWait {
    /// Polls for at most `us` microseconds in each wait. It needs no privilege.
    ///
    /// # Errors
    /// [`BusyPollError`]; the kernel has it from Linux 6.9 on.
    pub fn new(us: u32) -> Result<BusyWait, BusyPollError> {
        let option = "EPIOCSPARAMS of epoll(7)";
        let os = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOTTY) => BusyPollError::Absent { option },
            Some(libc::EPERM) => BusyPollError::NotAllowed { option },
            _ => BusyPollError::Os { option, source },
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| os(errno.into()))?;
        let params =
            EpollParams { busy_poll_usecs: us, busy_poll_budget: BUDGET, prefer_busy_poll: 1, padding: 0 };
        sys::set_epoll_params(epoll.0.as_fd(), params).map_err(os)?;
        Ok(BusyWait(epoll))
    }

    /// Returns the time for which a wait polls, microseconds, as the kernel says.
    ///
    /// # Errors
    /// The error of ioctl(2).
    pub fn us(&self) -> io::Result<u32> {
        Ok(sys::epoll_params(self.0.0.as_fd())?.busy_poll_usecs)
    }

    /// Waits also for this descriptor to be readable; `token` names it.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.0.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Waits also until this descriptor can be written to, or not any more.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn set_writable(&self, descriptor: impl AsFd, token: u64, is_wanted: bool) -> io::Result<()> {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, is_wanted);
        Ok(self.0.modify(descriptor, &mut EpollEvent::new(flags, token))?)
    }

    /// Waits at most `timeout`, and hands over the tokens of what is ready. A signal ends it early.
    ///
    /// # Errors
    /// The error of epoll_pwait2(2), which the kernel has from Linux 5.11 on.
    pub fn wait(&self, timeout: Duration, mut ready: impl FnMut(u64)) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); MAX_READY];
        let count = sys::epoll_wait(self.0.0.as_fd(), &mut events, timeout)?;
        events.iter().take(count).for_each(|event| ready(event.data()));
        Ok(())
    }
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

    /// Over loopback there is no device to poll; the waits are as they are without.
    #[test]
    fn busy_waits_end_when_something_is_ready_or_in_time() {
        let waits = match BusyWait::new(40) {
            Ok(waits) => waits,
            Err(error @ BusyPollError::Absent { .. }) => {
                return ccplane_testing::skipped("busy polling in waits", error);
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(waits.us().unwrap(), 40);
        let (here, there) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        waits.add(&here, 7).unwrap();
        let wait = |timeout| {
            let mut found = Vec::new();
            waits.wait(timeout, |token| found.push(token)).unwrap();
            found
        };
        let began = std::time::Instant::now();
        assert!(wait(Duration::from_micros(1_500)).is_empty());
        assert!(began.elapsed() >= Duration::from_micros(1_500));
        assert_eq!(incoming_napi(here.as_fd()), None, "nothing came yet");
        there.send_to(b"x", here.local_addr().unwrap()).unwrap();
        assert_eq!(wait(ccplane_testing::PATIENCE), [7]);
        assert_eq!(here.recv(&mut [0; 8]).unwrap(), 1);
        assert_eq!(incoming_napi(here.as_fd()), None, "loopback has no device");
        assert!(wait(Duration::ZERO).is_empty());
        waits.set_writable(&here, 7, true).unwrap();
        assert_eq!(wait(ccplane_testing::PATIENCE), [7]);
        waits.set_writable(&here, 7, false).unwrap();
        assert!(wait(Duration::ZERO).is_empty());
    }

    #[test]
    fn a_time_beyond_what_the_kernel_counts_is_refused() {
        assert!(BusyWait::new(u32::MAX).is_err());
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = set_busy_poll(file.as_fd(), 40).unwrap_err();
        assert!(matches!(error, BusyPollError::Os { option: "SO_BUSY_POLL", .. }), "{error}");
    }
}

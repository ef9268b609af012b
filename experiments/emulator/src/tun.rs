//! A TUN device: one end of an emulated link, packet by packet.

use std::fs::{self, File};
use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use netlink_packet_route::link::LinkAttribute;
use nix::errno::Errno;
use nix::libc;

use crate::error::{Context, Error, Result};
use crate::netlink::Netlink;
use crate::sys;

/// Largest IP packet on the link, bytes.
pub(crate) const MTU: u32 = 1500;
/// Packets that wait in the device while the forwarding thread is not scheduled: 100 ms at 1 Gb/s.
const TX_QUEUE_PACKETS: u32 = 8192;

/// The device by which TUN devices are made.
const DEVICE: &str = "/dev/net/tun";

/// An open device; it goes when closed.
#[derive(Debug)]
pub(crate) struct Tun(OwnedFd);

impl Tun {
    /// Makes the device in the calling thread's namespace and brings it up with the addresses given.
    pub(crate) fn create(name: &str, addresses: &[(IpAddr, u8)]) -> Result<Tun> {
        let fd: OwnedFd = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(DEVICE)
            .map_err(|error| refused(&error))?
            .into();
        let name = sys::attach_tun(&fd, name).context("make TUN device", name)?;
        let netlink = Netlink::open()?;
        netlink.set_up(&name, vec![LinkAttribute::Mtu(MTU), LinkAttribute::TxQueueLen(TX_QUEUE_PACKETS)])?;
        for (address, prefix_len) in addresses {
            netlink.add_address(&name, *address, *prefix_len)?;
        }
        Ok(Tun(fd))
    }

    /// Reads one packet or train, behind its header; `EAGAIN` when none waits.
    pub(crate) fn read(&self, packet: &mut [u8]) -> nix::Result<usize> {
        nix::unistd::read(&self.0, packet)
    }

    /// Hands one packet or train, behind its header and in parts, to the namespace's stack.
    pub(crate) fn write(&self, parts: &[IoSlice<'_>]) -> nix::Result<()> {
        nix::sys::uio::writev(&self.0, parts).map(drop)
    }
}

/// Whether this user may make devices at all; told before anything is made.
///
/// # Errors
/// What is missing.
pub(crate) fn check_access() -> Result<()> {
    File::options().read(true).write(true).open(DEVICE).map(drop).map_err(|error| refused(&error))
}

/// Says what would have to change.
fn refused(error: &std::io::Error) -> Error {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let hint = match (errno, fs::metadata(DEVICE)) {
        (Errno::EACCES | Errno::EPERM, Ok(found)) => {
            let (mode, user, group) = (found.mode() & 0o7777, found.uid(), found.gid());
            format!(
                "it has mode {mode:04o}, user {user} and group {group}, and must be readable and writable for user {}, as it is \
                 on most systems (chmod 0666 {DEVICE})",
                nix::unistd::geteuid()
            )
        }
        (Errno::ENOENT | Errno::ENXIO | Errno::ENODEV, _) => {
            format!(
                "the kernel's tun module is not loaded (modprobe tun), or {DEVICE} is missing (mknod {DEVICE} c 10 200)"
            )
        }
        _ => format!("{DEVICE} must be readable and writable"),
    };
    Error::TunDevice { hint, errno }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

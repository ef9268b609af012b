//! A TUN device: one end of an emulated link, packet by packet.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use netlink_packet_route::link::LinkAttribute;
use nix::libc;

use crate::error::{Context, Result};
use crate::netlink::Netlink;
use crate::sys;

/// Largest IP packet on the link, bytes.
pub(crate) const MTU: u32 = 1500;
/// Packets that wait in the device while the forwarding thread is not scheduled: 100 ms at 1 Gb/s.
const TX_QUEUE_PACKETS: u32 = 8192;

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
            .open("/dev/net/tun")
            .context("open", "/dev/net/tun")?
            .into();
        let name = sys::attach_tun(&fd, name).context("make TUN device", name)?;
        let netlink = Netlink::open()?;
        netlink.set_up(&name, vec![LinkAttribute::Mtu(MTU), LinkAttribute::TxQueueLen(TX_QUEUE_PACKETS)])?;
        for (address, prefix_len) in addresses {
            netlink.add_address(&name, *address, *prefix_len)?;
        }
        Ok(Tun(fd))
    }

    /// Reads one packet; `EAGAIN` when none waits.
    pub(crate) fn read(&self, packet: &mut [u8]) -> nix::Result<usize> {
        nix::unistd::read(&self.0, packet)
    }

    /// Hands one packet to the namespace's stack.
    pub(crate) fn write(&self, packet: &[u8]) -> nix::Result<()> {
        nix::unistd::write(&self.0, packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

//! News of the links of this network namespace from the kernel (rtnetlink(7)).

use nix::errno::Errno;
use nix::libc::{
    IFF_LOWER_UP, IFF_RUNNING, RTM_NEWADDR, RTM_NEWLINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_LINK,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a message that are read: `struct nlmsghdr`, and `struct ifinfomsg` behind it.
const HEADER_BYTES: usize = 32;
/// Offset of the message's type, before that of the interface's flags.
const TYPE_AT: usize = 4;
const FLAGS_AT: usize = 24;

/// A socket that receives news of links and addresses.
pub(crate) struct Links(OwnedFd);

impl Links {
    /// Opens the socket; `None` if the system does not allow it.
    pub(crate) fn listen() -> Option<Links> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket_fd =
            socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).ok()?;
        let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
        bind(socket_fd.as_raw_fd(), &NetlinkAddr::new(0, groups as u32)).ok()?;
        Some(Links(socket_fd))
    }

    /// The socket, to wait for news.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Whether a link came up or an address was added since the last call.
    pub(crate) fn came_up(&self) -> bool {
        let (mut message, mut came_up) = ([0; HEADER_BYTES], false);
        loop {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                Ok(bytes) => came_up |= is_up(&message[..bytes.min(HEADER_BYTES)]),
                // News was lost because there was too much: it may have been that.
                Err(Errno::ENOBUFS) => came_up = true,
                Err(Errno::EINTR) => {}
                Err(_) => return came_up,
            }
        }
    }
}

/// Whether a message reports a running link or a new address.
fn is_up(message: &[u8]) -> bool {
    let kind = message.get(TYPE_AT..TYPE_AT + 2).and_then(|bytes| bytes.try_into().ok());
    let flags = message.get(FLAGS_AT..FLAGS_AT + 4).and_then(|bytes| bytes.try_into().ok());
    match (kind.map(u16::from_ne_bytes), flags.map(u32::from_ne_bytes)) {
        (Some(RTM_NEWADDR), _) => true,
        // The carrier's flag is set at once, the other one only once the kernel has handled the change.
        (Some(RTM_NEWLINK), Some(flags)) => flags & (IFF_RUNNING | IFF_LOWER_UP) as u32 != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[TYPE_AT..TYPE_AT + 2].copy_from_slice(&kind.to_ne_bytes());
        bytes[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    #[test]
    fn links_that_come_up_are_told_from_links_that_go_down() {
        let running = IFF_RUNNING as u32 | 1;
        assert!(is_up(&message(RTM_NEWLINK, running)));
        assert!(!is_up(&message(RTM_NEWLINK, 1)), "no carrier");
        assert!(is_up(&message(RTM_NEWADDR, 0)));
        assert!(!is_up(&message(nix::libc::RTM_DELLINK, running)));
        assert!(!is_up(&message(RTM_NEWLINK, running)[..20]) && !is_up(&[]));
    }
}

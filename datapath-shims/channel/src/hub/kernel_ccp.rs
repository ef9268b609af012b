//! The links that ccp-kernel offers: a netlink multicast group, and a character device.
//!
//! Both carry CCP's own protocol, one message each. Over netlink the module multicasts to a group of `NETLINK_USERSOCK`
//! in the initial network namespace. It receives what is sent to port 0, behind a header of 16 bytes. The device gives
//! one message a read(2) and takes one a write(2); it cannot be waited for.

use super::carrier::Carrier;
use super::socket::{SendError, sender_uid};
use crate::socket::may_speak;
use ccplane_wire::List;
use ccplane_wire::v1::{ToDatapath, Update};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, UnixCredentials, bind,
    getsockname, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::debug;

/// The multicast group that ccp-kernel sends to (ccp_nl.c).
const GROUP: u32 = 22;
/// Groups are joined by a mask, in which the first one is bit 0.
const GROUP_MASK: u32 = 1 << (GROUP - 1);
/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// The message type of ccp-kernel's messages, `NLMSG_DONE`.
const NLMSG_DONE: u16 = 3;
/// Bytes that the socket may hold of messages not yet read; the kernel grants what it allows.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// The kernel's list of netlink sockets.
const NETLINK_SOCKETS: &str = "/proc/net/netlink";

/// Reasons why a link to ccp-kernel cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KernelLinkError {
    #[error("netlink group {GROUP} of ccp-kernel: {what}: {errno}")]
    Netlink { what: &'static str, errno: Errno },
    /// Another agent would clear the programs that this one installs.
    #[error(
        "netlink group {GROUP} of ccp-kernel: port {port}, mostly the process of that number, listens there already, as a \
         portus agent does; end it first"
    )]
    InUse { port: u32 },
    #[error("{}: {source}; is ccp-kernel loaded with ipc=1, or does another agent have the device?", path.display())]
    Device { path: PathBuf, source: io::Error },
}

/// A link to ccp-kernel, opened.
#[derive(Clone, Debug)]
pub struct KernelLink(Medium);

#[derive(Clone, Debug)]
enum Medium {
    Netlink(Arc<OwnedFd>),
    Device(Arc<File>),
}

/// A message that a link brought, or none.
#[derive(Debug)]
pub(super) enum Brought {
    /// The buffer holds a message in `start..end`, from netlink port `port`; 0 is the kernel.
    Message {
        start: usize,
        end: usize,
        port: u32,
    },
    /// The sender is another user, or the message is cut off.
    Rejected,
    Nothing,
}

impl KernelLink {
    /// Joins the group that ccp-kernel sends to, which takes CAP_NET_ADMIN.
    ///
    /// # Errors
    /// A refused system call, or another agent in the group.
    pub fn netlink() -> Result<KernelLink, KernelLinkError> {
        let error = |what| move |errno| KernelLinkError::Netlink { what, errno };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkUserSock;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).map_err(error("socket"))?;
        setsockopt(&fd, sockopt::PassCred, &true).map_err(error("ask for credentials"))?;
        // Best effort: the default works, with less room for bursts.
        let _ = setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES);
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUP_MASK))
            .map_err(error("join, which takes CAP_NET_ADMIN"))?;
        let own: NetlinkAddr = getsockname(fd.as_raw_fd()).map_err(error("getsockname"))?;
        let sockets = std::fs::read_to_string(NETLINK_SOCKETS).unwrap_or_default();
        match listeners(&sockets).find(|port| *port != own.pid()) {
            Some(port) => Err(KernelLinkError::InUse { port }),
            None => Ok(KernelLink(Medium::Netlink(Arc::new(fd)))),
        }
    }

    /// Opens ccp-kernel's character device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn device(path: &Path) -> Result<KernelLink, KernelLinkError> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let error = |source| KernelLinkError::Device { path: path.to_owned(), source };
        Ok(KernelLink(Medium::Device(Arc::new(opened.map_err(error)?))))
    }

    /// Takes one waiting message.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Brought> {
        match &self.0 {
            Medium::Netlink(fd) => receive_netlink(fd, buffer),
            Medium::Device(file) => match (&**file).read(buffer) {
                Ok(0) => Ok(Brought::Nothing),
                Ok(end) => Ok(Brought::Message { start: 0, end, port: 0 }),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    Ok(Brought::Nothing)
                }
                Err(e) => Err(e),
            },
        }
    }

    /// Speaks first, of no flow: libccp whose last agent went says nothing until a new one does.
    pub(super) fn wake(&self) {
        let mut message = Vec::new();
        let nothing = Update { sid: 0, fields: List::from(&[][..]) };
        if let Err(error) = ToDatapath::Update(nothing).encode(&mut message) {
            return debug!(%error, "a message to ccp-kernel");
        }
        // A module that is not there yet says READY when it comes.
        if let Err(error) = self.carrier(0).send(&message) {
            debug!(%error, "no ccp-kernel yet");
        }
    }

    /// The way back to the sender of a message.
    pub(super) fn carrier(&self, port: u32) -> Box<dyn Carrier> {
        Box::new(KernelCarrier { medium: self.0.clone(), port })
    }
}

impl AsFd for KernelLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Medium::Netlink(fd) => fd.as_fd(),
            Medium::Device(file) => file.as_fd(),
        }
    }
}

/// Returns the ports of the sockets that are in the group, from the text of [`NETLINK_SOCKETS`].
fn listeners(sockets: &str) -> impl Iterator<Item = u32> {
    sockets.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (protocol, port, groups) = (columns.next()?, columns.next()?, columns.next()?);
        let in_group = u32::from_str_radix(groups, 16).is_ok_and(|groups| groups & GROUP_MASK != 0);
        let is_user = protocol.parse() == Ok(libc::NETLINK_USERSOCK);
        port.parse().ok().filter(|_| in_group && is_user)
    })
}

fn receive_netlink(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Brought> {
    let mut ancillary = cmsg_space!(UnixCredentials);
    let (bytes, uid, port, is_whole) = {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = match recvmsg::<NetlinkAddr>(fd.as_raw_fd(), &mut parts, Some(&mut ancillary), flags) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Brought::Nothing),
            // Messages were dropped before this one.
            Err(Errno::ENOBUFS) => return Ok(Brought::Rejected),
            Err(errno) => return Err(errno.into()),
        };
        let uid = sender_uid(received.cmsgs());
        let is_whole = !received.flags.contains(MsgFlags::MSG_TRUNC);
        (received.bytes, uid, received.address.map(|from| from.pid()), is_whole)
    };
    let claimed = buffer.first_chunk::<4>().map_or(0, |length| u32::from_ne_bytes(*length) as usize);
    let end = claimed.min(bytes);
    match (uid, port) {
        (Some(uid), Some(port)) if may_speak(uid) && is_whole && end >= HEADER_BYTES => {
            Ok(Brought::Message { start: HEADER_BYTES, end, port })
        }
        _ => Ok(Brought::Rejected),
    }
}

/// The way to one datapath behind a link.
#[derive(Debug)]
struct KernelCarrier {
    medium: Medium,
    port: u32,
}

impl Carrier for KernelCarrier {
    fn send(&self, datagram: &[u8]) -> Result<(), SendError> {
        match &self.medium {
            Medium::Netlink(fd) => send_netlink(fd, datagram, self.port),
            Medium::Device(file) => match (&**file).write(datagram) {
                Ok(written) if written == datagram.len() => Ok(()),
                Ok(_) => Err(SendError::Failed(Errno::EMSGSIZE)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(SendError::Full),
                Err(e) => Err(SendError::Failed(e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))),
            },
        }
    }

    fn send_with(&self, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        if fds.is_empty() { self.send(datagram) } else { Err(SendError::Failed(Errno::EOPNOTSUPP)) }
    }

    /// Nothing tells but a message that cannot be sent.
    fn is_there(&self) -> bool {
        true
    }
}

fn send_netlink(fd: &OwnedFd, datagram: &[u8], port: u32) -> Result<(), SendError> {
    let bytes =
        u32::try_from(HEADER_BYTES + datagram.len()).map_err(|_| SendError::Failed(Errno::EMSGSIZE))?;
    // struct nlmsghdr: length, type, flags, sequence number, port.
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&bytes.to_ne_bytes());
    header[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
    let parts = [IoSlice::new(&header), IoSlice::new(datagram)];
    let to = NetlinkAddr::new(port, 0);
    loop {
        return match sendmsg(fd.as_raw_fd(), &parts, &[], MsgFlags::MSG_DONTWAIT, Some(&to)) {
            Ok(_) => Ok(()),
            Err(Errno::EINTR) => continue,
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => Err(SendError::Gone),
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Err(SendError::Full),
            Err(errno) => Err(SendError::Failed(errno)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_to_ccp_kernel_is_found_among_netlink_sockets() {
        let sockets = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                       0000000000000000 2   4711       00200000 0        0        0     2        0        9\n\
                       0000000000000000 2   4712       00100000 0        0        0     2        0        9\n\
                       0000000000000000 0   4713       00200000 0        0        0     2        0        9\n\
                       0000000000000000 2   0          00000000 0        0        0     2        0        9\n";
        assert_eq!(listeners(sockets).collect::<Vec<_>>(), [4711]);
    }
}

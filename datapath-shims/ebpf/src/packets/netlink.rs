//! Requests to the kernel's traffic control: a `clsact` qdisc, and classifiers on its egress.
//!
//! The requests that take things back are made beforehand, so that a process that may not allocate can send them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Types and flags of requests (include/uapi/linux/{netlink,rtnetlink}.h).
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Attributes of requests (include/uapi/linux/{rtnetlink,pkt_cls}.h).
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
/// Handles of the qdisc and its hooks.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const EGRESS: u32 = 0xffff_fff3;
const INGRESS: u32 = 0xffff_fff2;
/// `ETH_P_ALL` in network order.
const ETH_P_ALL: u32 = 0x0003_u16.to_be() as u32;
/// The place among the classifiers of a hook, which are asked in ascending order.
const PRIORITY: u32 = 0xb000;
const HANDLE: u32 = 1;
/// The name under which `tc filter show` lists the classifier.
const NAME: &str = "ccplane";

const HEADER_BYTES: usize = 16;
const TCMSG_BYTES: usize = 20;
/// Longest part of a reply that is read at once.
const MAX_REPLY: usize = 16 << 10;
/// Longest request that is made here, bytes.
pub const MAX_REQUEST: usize = 128;

/// A route socket of the network namespace that it was opened in.
pub struct TrafficControl(OwnedFd);

/// A request that is ready to be sent.
#[derive(Clone, Copy)]
pub struct Request {
    bytes: [u8; MAX_REQUEST],
    len: usize,
}

impl Request {
    fn new(kind: u16, flags: u16, ifindex: u32, handle: u32, parent: u32, info: u32) -> Request {
        let mut request = Request { bytes: [0; MAX_REQUEST], len: 0 };
        request.put(&[0; 4]);
        request.put(&kind.to_ne_bytes());
        request.put(&(NLM_F_REQUEST | flags).to_ne_bytes());
        request.put(&[0; 8]);
        for word in [0, ifindex, handle, parent, info] {
            request.put(&word.to_ne_bytes());
        }
        debug_assert_eq!(request.len, HEADER_BYTES + TCMSG_BYTES);
        request
    }

    fn put(&mut self, bytes: &[u8]) {
        let to = &mut self.bytes[self.len..];
        let n = bytes.len().min(to.len());
        to[..n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.put(&[0; 3][..value.len().wrapping_neg() % 4]);
        self
    }

    fn finish(mut self) -> Request {
        let len = self.len as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self
    }
}

/// Makes the request that takes a device's classifier back.
pub fn remove_classifier(ifindex: u32) -> Request {
    let info = PRIORITY << 16 | ETH_P_ALL;
    let request = Request::new(RTM_DELTFILTER, NLM_F_ACK, ifindex, HANDLE, EGRESS, info);
    request.attribute(TCA_KIND, b"bpf\0").finish()
}

/// Makes the request that takes a device's qdisc back.
fn remove_qdisc(ifindex: u32) -> Request {
    let request = Request::new(RTM_DELQDISC, NLM_F_ACK, ifindex, CLSACT_HANDLE, CLSACT, 0);
    request.attribute(TCA_KIND, b"clsact\0").finish()
}

impl TrafficControl {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> io::Result<TrafficControl> {
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(TrafficControl(socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?))
    }

    /// The socket's descriptor, which lives as long as this does.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes a `clsact` qdisc on a device; false if somebody has made one before.
    pub fn add_qdisc(&self, ifindex: u32) -> io::Result<bool> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let request = Request::new(RTM_NEWQDISC, flags, ifindex, CLSACT_HANDLE, CLSACT, 0);
        match ask(self.fd(), &request.attribute(TCA_KIND, b"clsact\0").finish()) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts a classifier on a device's egress.
    pub fn add_classifier(&self, ifindex: u32, program: &OwnedFd) -> io::Result<()> {
        let info = PRIORITY << 16 | ETH_P_ALL;
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut options = Request { bytes: [0; MAX_REQUEST], len: 0 };
        options = options.attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
        options = options.attribute(TCA_BPF_NAME, format!("{NAME}\0").as_bytes());
        options = options.attribute(TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        let request = Request::new(RTM_NEWTFILTER, flags, ifindex, HANDLE, EGRESS, info)
            .attribute(TCA_KIND, b"bpf\0")
            .attribute(TCA_OPTIONS, &options.bytes[..options.len]);
        Ok(ask(self.fd(), &request.finish())?)
    }
}

/// Sends a request over a route socket and waits for its acknowledgement; allocates nothing.
pub fn ask(fd: RawFd, request: &Request) -> nix::Result<()> {
    send(fd, &request.bytes[..request.len], MsgFlags::empty())?;
    let mut reply = [0; MAX_REPLY];
    let len = recv(fd, &mut reply, MsgFlags::empty())?;
    let code = word(&reply[..len], HEADER_BYTES).ok_or(Errno::EBADMSG)?;
    match code as i32 {
        0 => Ok(()),
        code => Err(Errno::from_raw(-code)),
    }
}

/// Takes a device's qdisc back, unless others have put classifiers there; allocates nothing.
pub fn remove_qdisc_if_empty(fd: RawFd, ifindex: u32) -> nix::Result<()> {
    for hook in [EGRESS, INGRESS] {
        let dump = Request::new(RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, hook, 0).finish();
        if has_classifiers(fd, &dump)? {
            return Ok(());
        }
    }
    ask(fd, &remove_qdisc(ifindex))
}

/// Whether a classifier of ours is on a device's egress.
pub fn has_ours(fd: RawFd, ifindex: u32) -> nix::Result<bool> {
    let info = PRIORITY << 16 | ETH_P_ALL;
    let dump = Request::new(RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, EGRESS, info).finish();
    lists(fd, &dump, |message| message.windows(NAME.len()).any(|bytes| bytes == NAME.as_bytes()))
}

/// Whether the kernel lists any classifier in answer to a request.
fn has_classifiers(fd: RawFd, dump: &Request) -> nix::Result<bool> {
    lists(fd, dump, |_| true)
}

/// Whether the kernel lists a classifier for whose message `wanted` holds.
fn lists(fd: RawFd, dump: &Request, wanted: impl Fn(&[u8]) -> bool) -> nix::Result<bool> {
    send(fd, &dump.bytes[..dump.len], MsgFlags::empty())?;
    let mut found = false;
    let mut reply = [0; MAX_REPLY];
    loop {
        let len = recv(fd, &mut reply, MsgFlags::empty())?;
        let mut rest = reply.get(..len).unwrap_or_default();
        while let (Some(bytes), Some(kind)) = (word(rest, 0), word(rest, 4)) {
            match kind as u16 {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(Errno::EBADMSG),
                RTM_NEWTFILTER => found |= wanted(rest.get(..bytes as usize).unwrap_or_default()),
                _ => {}
            }
            let next = (bytes as usize).next_multiple_of(4).max(HEADER_BYTES);
            rest = rest.get(next..).unwrap_or_default();
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

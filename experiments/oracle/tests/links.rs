//! The links that ccp-kernel offers, with the real libccp behind them in this process, a real `ccplane agent` in another.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Home, LibccpFlow, MSS, MessageLink, Shim, wait_for};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendmsg, socket,
};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use portus::ipc::{Blocking, Ipc, netlink};

/// `struct nlmsghdr`, the type `NLMSG_DONE`, and the group that ccp-kernel multicasts to.
const HEADER_BYTES: usize = 16;
const NLMSG_DONE: u16 = 3;
const GROUP_MASK: u32 = 1 << 21;

/// One test at a time: netlink has one group, and portus's socket goes on in every process that another test starts meanwhile.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands in for ccp-kernel: the same protocol, group and header. Its port is not 0, which is the kernel's own.
struct Netlink(OwnedFd);

impl Netlink {
    fn new() -> Netlink {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkUserSock;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).unwrap();
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
        Netlink(fd)
    }
}

impl MessageLink for Netlink {
    fn send(&self, message: &[u8]) {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&((HEADER_BYTES + message.len()) as u32).to_ne_bytes());
        header[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
        let parts = [IoSlice::new(&header), IoSlice::new(message)];
        let to = NetlinkAddr::new(0, GROUP_MASK);
        // Unicast to port 0 comes with it and reaches nobody: no module of the kernel's is there.
        match sendmsg(self.0.as_raw_fd(), &parts, &[], MsgFlags::empty(), Some(&to)) {
            Ok(_) | Err(Errno::ECONNREFUSED | Errno::ENOBUFS) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        let n = recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT).ok()?;
        let claimed = u32::from_ne_bytes(*buffer.first_chunk().unwrap()) as usize;
        assert_eq!(claimed, n, "the header tells the length, as ccp-kernel takes it");
        buffer.copy_within(HEADER_BYTES..n, 0);
        Some(n - HEADER_BYTES)
    }
}

/// Stands in for ccp-kernel's device: a terminal, whose bytes come in order but without the messages' ends, which are found
/// by their headers here.
struct Device {
    ours: RefCell<File>,
    read: RefCell<Vec<u8>>,
    // Held open: a terminal without a reader hangs up.
    _theirs: File,
    path: PathBuf,
}

impl Device {
    fn new() -> Device {
        let ours = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_NONBLOCK).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = PathBuf::from(ptsname_r(&ours).unwrap());
        let theirs = File::options().read(true).write(true).open(&path).unwrap();
        let mut raw = tcgetattr(&theirs).unwrap();
        cfmakeraw(&mut raw);
        tcsetattr(theirs.as_fd(), SetArg::TCSANOW, &raw).unwrap();
        let ours = File::from(ours.as_fd().try_clone_to_owned().unwrap());
        Device { ours: RefCell::new(ours), read: RefCell::default(), _theirs: theirs, path }
    }
}

impl MessageLink for Device {
    fn send(&self, message: &[u8]) {
        self.ours.borrow_mut().write_all(message).unwrap();
    }

    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut read = self.read.borrow_mut();
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = self.ours.borrow_mut().read(&mut chunk) {
            read.extend(&chunk[..n]);
        }
        let length = usize::from(u16::from_le_bytes([*read.get(2)?, *read.get(3)?]));
        if read.len() < length {
            return None;
        }
        buffer[..length].copy_from_slice(&read[..length]);
        read.drain(..length);
        Some(length)
    }
}

/// Steers a flow, kills the agent, and has the next one steer it.
fn is_steered_over(home: &Home, link: Rc<dyn MessageLink>) {
    let agent = home.agent();
    let shim = Shim::over(link);
    let mut flow = LibccpFlow::start(&shim, 1);
    flow.ack_until("the window opens", |f| f.cwnd() >= 40 * MSS);
    flow.ack_until("reports reach the agent", |_| {
        home.flows().first().is_some_and(|f| f["reports"].as_u64().unwrap() > 3)
    });
    let listed = &home.flows()[0];
    assert_eq!((&listed["datapath"], &listed["mode"]), (&"ccp-v1".into(), &"program".into()));
    assert_eq!(listed["local"], "10.0.0.1:4001");
    drop(agent);
    let _next = home.agent();
    let changes = shim.changes.get();
    flow.ack_until("the next agent steers it", |_| shim.changes.get() > changes);
    drop(flow);
    wait_for("its end is noticed", || home.flows().is_empty().then_some(()));
}

#[test]
fn a_libccp_flow_is_steered_over_netlink() {
    let _one = alone();
    let Some(home) = Home::new("a_libccp_flow_is_steered_over_netlink", "reno") else { return };
    if !nix::unistd::geteuid().is_root() {
        return ccplane_testing::skipped("a_libccp_flow_is_steered_over_netlink", "needs CAP_NET_ADMIN");
    }
    home.configure_with("reno", "[datapath.ccp_kernel]\nlink = \"netlink\"\n");
    // Another agent, a real portus's end, is there: the stand-in says to it what ccp-kernel would, and ours is not started.
    let mut portus = netlink::Socket::<Blocking>::new().unwrap();
    let stand_in = Netlink::new();
    stand_in.send(b"as ccp-kernel");
    let mut received = [0; 1024];
    let (n, ()) = portus.recv(&mut received).unwrap();
    assert_eq!(&received[..n], b"as ccp-kernel");
    let refused = home.run(&["agent"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("listens there already, as a portus agent does; end it first"), "{said}");
    portus.close().unwrap();
    std::mem::forget(portus);
    is_steered_over(&home, Rc::new(stand_in));
}

#[test]
fn a_libccp_flow_is_steered_over_a_device() {
    let _one = alone();
    let Some(home) = Home::new("a_libccp_flow_is_steered_over_a_device", "cubic") else { return };
    let device = Device::new();
    let config = format!("[datapath.ccp_kernel]\nlink = \"device\"\ndevice = {:?}\n", device.path);
    home.configure_with("cubic", &config);
    is_steered_over(&home, Rc::new(device));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let _one = alone();
    let Some(home) = Home::new("a_device_that_is_not_there_is_named", "cubic") else { return };
    home.configure_with(
        "cubic",
        "[datapath.ccp_kernel]\nlink = \"device\"\ndevice = \"/nonexistent/ccpkp\"\n",
    );
    let refused = home.run(&["agent"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("datapath.ccp_kernel.link: /nonexistent/ccpkp") && said.contains("ipc=1"),
        "{said}"
    );
}

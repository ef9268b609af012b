//! Ports, and how they are opened.

use std::ffi::{CString, NulError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::eal::{Eal, last_messages};
use crate::error::Error;
use crate::ffi::{self, Device};
use crate::name::PortName;
use crate::net::Mac;
use crate::net::frame::Offload;

/// Bytes of a packet buffer for data, behind its headroom.
pub(crate) const BUFFER_BYTES: u16 = 2048;
/// The longest IP packet that fits a buffer and the ring that af_packet shares with the kernel, bytes.
pub const MAX_MTU_BYTES: u16 = 1900;
/// Packet buffers of a queue by default: full rings, as many frames on their way to the kernel, and caches.
const DEFAULT_BUFFERS: u32 = 8191;

/// Options for opening a port.
#[derive(Debug, Clone, Copy)]
pub struct PortOptions {
    /// Number of queues, each for one polling thread; the port spreads flows over them.
    pub queues: u16,
    /// Packet buffers of each queue.
    pub buffers: u32,
}

impl Default for PortOptions {
    fn default() -> PortOptions {
        PortOptions { queues: 1, buffers: DEFAULT_BUFFERS }
    }
}

/// A running port.
#[derive(Debug)]
pub struct Port {
    name: PortName,
    pub(crate) device: Arc<Device>,
    queues: u16,
    mac: Mac,
    mtu_bytes: u16,
    offload: Offload,
    kernels: Option<KernelLink>,
}

impl Port {
    /// Opens a port. It is closed when the last of its queues is dropped.
    ///
    /// # Errors
    /// [`Error::NoSuchInterface`], [`Error::NoSuchDevice`], [`Error::Permission`], [`Error::DriverMissing`],
    /// [`Error::Queues`], or [`Error::Port`] with the driver's own words.
    pub fn open(_running: &Eal, name: &PortName, options: PortOptions) -> Result<Port, Error> {
        let refused = |action: &'static str, errno: Errno| Error::Port {
            port: name.clone(),
            action,
            errno,
            said: last_messages(),
        };
        let mtu_bytes = name.interface().map(interface_mtu).transpose()?;
        let kernels = name.interface().and_then(KernelLink::of);
        let (capabilities, needs) = name.needs();
        let missing = |capability: &Capability| {
            matches!(caps::has_cap(None, CapSet::Effective, *capability), Ok(false))
        };
        if capabilities.iter().any(missing) {
            return Err(Error::Permission { port: name.clone(), needs });
        }
        // Earlier log messages are not about this port.
        ffi::take_log();
        let mut device = attach(name, options.queues)?;
        let info = device.info().map_err(|errno| refused("asked what it can do", errno))?;
        let has = info.rx_queues.min(info.tx_queues);
        if options.queues == 0 || options.queues > has {
            return Err(Error::Queues { port: name.clone(), asked: options.queues, has });
        }
        device
            .run(options.queues, options.buffers, BUFFER_BYTES)
            .map_err(|errno| refused("started", errno))?;
        let has = |checksum| info.tx_offloads & checksum != 0;
        Ok(Port {
            name: name.clone(),
            device: Arc::new(device),
            queues: options.queues,
            mac: Mac(info.mac),
            mtu_bytes: mtu_bytes.unwrap_or(info.mtu_bytes).min(MAX_MTU_BYTES),
            offload: Offload { ip: has(ffi::SUM_IP), udp: has(ffi::SUM_UDP) },
            kernels,
        })
    }

    /// The name by which the port was opened.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// The port's Ethernet address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The longest IP packet on its link, bytes; at most [`MAX_MTU_BYTES`].
    pub fn mtu_bytes(&self) -> u16 {
        self.mtu_bytes
    }

    /// The checksums that the port computes itself.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// The number of queues that it was opened with.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Whether its link is up. For a kernel interface this is the interface's state, which not every driver checks.
    pub fn is_up(&self) -> bool {
        self.kernels.as_ref().map_or_else(|| self.device.is_up(), KernelLink::is_up)
    }

    /// Whether UDP checksums may arrive incomplete, from the kernel at the other end of a veth pair.
    pub fn is_lenient(&self) -> bool {
        self.name.interface().is_some()
    }
}

/// A kernel interface, and a socket in its namespace to query it.
#[derive(Debug)]
struct KernelLink {
    name: CString,
    socket: OwnedFd,
}

impl KernelLink {
    fn of(interface: &str) -> Option<KernelLink> {
        let name = CString::new(interface).ok()?;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
        Some(KernelLink { name, socket })
    }

    fn is_up(&self) -> bool {
        ffi::interface_runs(self.socket.as_fd(), &self.name)
    }
}

fn interface_mtu(interface: &str) -> Result<u16, Error> {
    let missing = || Error::NoSuchInterface { interface: interface.to_owned() };
    let name = CString::new(interface).map_err(|_: NulError| missing())?;
    ffi::interface_mtu_bytes(&name).ok_or_else(missing)
}

fn attach(name: &PortName, queues: u16) -> Result<Device, Error> {
    static PLUGGED: AtomicU32 = AtomicU32::new(0);
    let invalid = |_: NulError| Error::Port {
        port: name.clone(),
        action: "named",
        errno: Errno::EINVAL,
        said: "a name with a NUL in it".to_owned(),
    };
    let Some((driver, arguments)) = name.driver(queues) else {
        let address = name.pci().unwrap_or_default();
        let found = Device::find(&CString::new(address).map_err(invalid)?);
        return found.map_err(|_| Error::NoSuchDevice { address: address.to_owned(), said: last_messages() });
    };
    let number = PLUGGED.fetch_add(1, Ordering::Relaxed);
    let vdev = CString::new(format!("{driver}{number}")).map_err(invalid)?;
    Device::plug(vdev, &CString::new(arguments).map_err(invalid)?).map_err(|errno| match errno {
        // DPDK finds no driver of that name.
        Errno::EFAULT | Errno::ENOTSUP => Error::DriverMissing { driver: driver.to_owned() },
        errno => Error::Port { port: name.clone(), action: "made", errno, said: last_messages() },
    })
}

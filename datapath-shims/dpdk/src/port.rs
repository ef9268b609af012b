//! Ports: which ones there are, and how one is opened.

use std::ffi::{CString, NulError};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::eal::{Eal, said};
use crate::error::Error;
use crate::ffi::{self, Device};
use crate::net::Mac;
use crate::net::frame::Offload;

/// Bytes of a packet buffer for data, behind its headroom.
pub(crate) const BUFFER_BYTES: u16 = 2048;
/// The longest IP packet that fits a buffer, and the ring that af_packet shares with the kernel.
pub const MAX_MTU_BYTES: u16 = 1900;
/// Packet buffers of a queue: its rings full, as many frames on their way to the kernel, caches besides.
const DEFAULT_BUFFERS: u32 = 8191;
/// Frames in each of af_packet's rings.
const AF_PACKET_FRAMES: u32 = 4096;
/// The longest name that the kernel gives an interface.
const MAX_INTERFACE_NAME: usize = 15;

/// Which port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortName {
    /// `af_packet:IFACE`: an interface of the kernel's, by packet sockets.
    AfPacket(String),
    /// `af_xdp:IFACE`: the same, by XDP sockets: the kernel does not see what arrives. As many queues must be opened as the
    /// interface receives on: what arrives at others goes to the kernel. DPDK 22.11's driver gives an interface back only
    /// when the process ends, so a process opens it once.
    AfXdp(String),
    /// `tap:IFACE`: an interface that is made, with the kernel at its other end.
    Tap(String),
    /// `pci:ADDRESS`: a NIC that DPDK drives itself.
    Pci(String),
    /// `vdev:DRIVER[,ARGUMENTS]`: any other virtual driver of DPDK's.
    Virtual {
        /// Such as `net_ring`.
        driver: String,
        /// Such as `copy=1`; may be empty.
        arguments: String,
    },
}

/// Text that names no port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} names no port; one is named af_packet:IFACE, af_xdp:IFACE, tap:IFACE, pci:ADDRESS \
     or vdev:DRIVER[,ARGUMENTS]"
)]
pub struct PortNameError {
    found: String,
}

impl FromStr for PortName {
    type Err = PortNameError;

    fn from_str(text: &str) -> Result<PortName, PortNameError> {
        let plain = |name: &str, extra: &str, longest: usize| {
            let fits = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
            (!name.is_empty() && name.len() <= longest && name.chars().all(fits)).then(|| name.to_owned())
        };
        let interface = |name| plain(name, "-_.@", MAX_INTERFACE_NAME);
        let port = text.split_once(':').and_then(|(kind, name)| match kind {
            "af_packet" => interface(name).map(PortName::AfPacket),
            "af_xdp" => interface(name).map(PortName::AfXdp),
            "tap" => interface(name).map(PortName::Tap),
            "pci" => plain(name, ":.", 16).map(PortName::Pci),
            "vdev" => {
                let (driver, arguments) = name.split_once(',').unwrap_or((name, ""));
                let arguments = arguments.to_owned();
                plain(driver, "_", 32).map(|driver| PortName::Virtual { driver, arguments })
            }
            _ => None,
        });
        port.ok_or_else(|| PortNameError { found: text.to_owned() })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::AfPacket(interface) => write!(f, "af_packet:{interface}"),
            PortName::AfXdp(interface) => write!(f, "af_xdp:{interface}"),
            PortName::Tap(interface) => write!(f, "tap:{interface}"),
            PortName::Pci(address) => write!(f, "pci:{address}"),
            PortName::Virtual { driver, arguments } if arguments.is_empty() => write!(f, "vdev:{driver}"),
            PortName::Virtual { driver, arguments } => write!(f, "vdev:{driver},{arguments}"),
        }
    }
}

impl PortName {
    /// The PCI address, which EAL must be told when it starts.
    pub fn pci(&self) -> Option<&str> {
        match self {
            PortName::Pci(address) => Some(address),
            _ => None,
        }
    }

    /// An interface that must be there already.
    fn interface(&self) -> Option<&str> {
        match self {
            PortName::AfPacket(interface) | PortName::AfXdp(interface) => Some(interface),
            _ => None,
        }
    }

    /// The virtual driver with its arguments.
    fn driver(&self, queues: u16) -> Option<(&str, String)> {
        match self {
            PortName::AfPacket(interface) => Some((
                "net_af_packet",
                format!(
                    "iface={interface},qpairs={queues},blocksz=65536,framesz=2048,framecnt={AF_PACKET_FRAMES},qdisc_bypass=1"
                ),
            )),
            PortName::AfXdp(interface) => {
                Some(("net_af_xdp", format!("iface={interface},queue_count={queues}")))
            }
            PortName::Tap(interface) => Some(("net_tap", format!("iface={interface}"))),
            PortName::Virtual { driver, arguments } => Some((driver, arguments.clone())),
            PortName::Pci(_) => None,
        }
    }

    /// What the kernel asks of who opens it.
    fn needs(&self) -> (&'static [Capability], &'static str) {
        match self {
            PortName::AfPacket(_) => (&[Capability::CAP_NET_RAW], "CAP_NET_RAW"),
            PortName::AfXdp(_) => (
                &[Capability::CAP_NET_RAW, Capability::CAP_NET_ADMIN, Capability::CAP_BPF],
                "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
            ),
            PortName::Tap(_) => (&[Capability::CAP_NET_ADMIN], "CAP_NET_ADMIN"),
            PortName::Pci(_) | PortName::Virtual { .. } => (&[], "access to its device"),
        }
    }
}

/// How a port is opened.
#[derive(Debug, Clone, Copy)]
pub struct PortOptions {
    /// Queues, each for one thread that polls; the port spreads flows over them.
    pub queues: u16,
    /// Packet buffers of each queue.
    pub buffers: u32,
}

impl Default for PortOptions {
    fn default() -> PortOptions {
        PortOptions { queues: 1, buffers: DEFAULT_BUFFERS }
    }
}

/// A port that runs.
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
            said: said(),
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
        // What was logged before is none of this port's.
        ffi::said();
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

    /// Its name.
    pub fn name(&self) -> &PortName {
        &self.name
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// The longest IP packet on its link, bytes; [`MAX_MTU_BYTES`] at most.
    pub fn mtu_bytes(&self) -> u16 {
        self.mtu_bytes
    }

    /// What it computes by itself.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// How many queues it was opened with.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Whether its link is up: that of the kernel's interface, where it is one, which not every driver looks at.
    pub fn is_up(&self) -> bool {
        self.kernels.as_ref().map_or_else(|| self.device.is_up(), KernelLink::is_up)
    }

    /// Whether UDP checksums may arrive unfinished: from the kernel at the other end of a veth pair.
    pub fn is_lenient(&self) -> bool {
        self.name.interface().is_some()
    }
}

/// An interface of the kernel's, and a socket to ask for it in its namespace.
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
        return found.map_err(|_| Error::NoSuchDevice { address: address.to_owned(), said: said() });
    };
    let number = PLUGGED.fetch_add(1, Ordering::Relaxed);
    let vdev = CString::new(format!("{driver}{number}")).map_err(invalid)?;
    Device::plug(vdev, &CString::new(arguments).map_err(invalid)?).map_err(|errno| match errno {
        // DPDK finds no driver of that name.
        Errno::EFAULT | Errno::ENOTSUP => Error::DriverMissing { driver: driver.to_owned() },
        errno => Error::Port { port: name.clone(), action: "made", errno, said: said() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for name in [
            "af_packet:eth0",
            "af_xdp:veth-a.1",
            "tap:ccp0",
            "pci:0000:01:00.0",
            "vdev:net_null",
            "vdev:net_null,copy=1",
        ] {
            assert_eq!(name.parse::<PortName>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_could_smuggle_an_argument_in_is_refused() {
        for name in [
            "",
            "eth0",
            "af_packet:",
            "af_packet:a,qpairs=9",
            "af_xdp:an_interface_too_long",
            "tap:../x",
            "pci:0,0",
            "vdev:a b",
            "raw:eth0",
        ] {
            let refused = name.parse::<PortName>().unwrap_err().to_string();
            assert!(refused.contains("af_xdp:IFACE"), "{refused}");
        }
    }

    #[test]
    fn drivers_get_their_queues() {
        let port: PortName = "af_packet:eth0".parse().unwrap();
        let (driver, arguments) = port.driver(2).unwrap();
        assert_eq!(driver, "net_af_packet");
        assert!(arguments.starts_with("iface=eth0,qpairs=2,"), "{arguments}");
        assert_eq!("pci:0000:01:00.0".parse::<PortName>().unwrap().driver(1), None);
    }
}

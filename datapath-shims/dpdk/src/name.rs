//! The names of ports, and the drivers that they stand for.

use std::fmt;
use std::str::FromStr;

use caps::Capability;

/// Frames in each of af_packet's rings.
const AF_PACKET_FRAMES: u32 = 4096;
/// Longest name of a kernel interface.
const MAX_INTERFACE_NAME: usize = 15;

/// The name of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortName {
    /// `af_packet:IFACE`: a kernel interface, by packet sockets.
    AfPacket(String),
    /// `af_xdp:IFACE`: a kernel interface by XDP sockets, whose packets the kernel does not see.
    ///
    /// As many queues must be opened as the interface receives on: the packets of others go to the kernel. DPDK 22.11's
    /// driver releases an interface only when the process ends, so a process opens it once.
    AfXdp(String),
    /// `tap:IFACE`: a new interface with the kernel at its other end.
    Tap(String),
    /// `pci:ADDRESS`: a NIC that DPDK drives itself.
    Pci(String),
    /// `vdev:DRIVER[,ARGUMENTS]`: any other virtual driver of DPDK.
    Virtual {
        /// The driver's name, such as `net_ring`.
        driver: String,
        /// The driver's arguments, such as `copy=1`; may be empty.
        arguments: String,
    },
}

/// The text is not a port's name.
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
    /// The PCI address, which EAL must know when it starts.
    pub fn pci(&self) -> Option<&str> {
        match self {
            PortName::Pci(address) => Some(address),
            _ => None,
        }
    }

    /// The kernel interface that must exist already.
    pub(crate) fn interface(&self) -> Option<&str> {
        match self {
            PortName::AfPacket(interface) | PortName::AfXdp(interface) => Some(interface),
            _ => None,
        }
    }

    /// The virtual driver with its arguments.
    pub(crate) fn driver(&self, queues: u16) -> Option<(&str, String)> {
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

    /// Capabilities that the kernel requires to open the port.
    pub(crate) fn needs(&self) -> (&'static [Capability], &'static str) {
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
    fn names_that_smuggle_arguments_in_are_refused() {
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

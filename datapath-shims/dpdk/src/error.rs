//! Why a port could not be had.

use nix::errno::Errno;

use crate::net::ConfigError;
use crate::port::PortName;

/// Why there is no port. Each says what to do about it, where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// DPDK's own rule.
    #[error("DPDK was started in this process before, and can be only once: share the `Eal`")]
    AlreadyStarted,
    /// Not enough hugepages are free.
    #[error(
        "DPDK is to have {wanted_mib} MiB of hugepages, and {free_mib} MiB are free: make some \
         (echo {pages} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or let it do without"
    )]
    Hugepages {
        /// What was asked for, MiB.
        wanted_mib: u32,
        /// What is free, MiB.
        free_mib: u32,
        /// Pages of 2 MiB that would do.
        pages: u32,
    },
    /// DPDK did not start.
    #[error("DPDK does not start ({errno}): {said}")]
    Start {
        /// Its error.
        errno: Errno,
        /// Its own words.
        said: String,
    },
    /// No interface has that name, in this network namespace.
    #[error("there is no network interface {interface}; `ip link` lists those that are there")]
    NoSuchInterface {
        /// The name.
        interface: String,
    },
    /// No port was found at a PCI address.
    #[error(
        "DPDK found no port at PCI address {address}: the device must be bound to vfio-pci (dpdk-devbind.py --status), \
         and this user must be allowed to open /dev/vfio. {said}"
    )]
    NoSuchDevice {
        /// The address.
        address: String,
        /// DPDK's own words.
        said: String,
    },
    /// A privilege is missing.
    #[error("port {port} needs {needs}: run as root, or give the program these capabilities (setcap)")]
    Permission {
        /// The port.
        port: PortName,
        /// Capabilities.
        needs: &'static str,
    },
    /// No driver for it is installed.
    #[error("DPDK has no driver {driver} here; Debian and Ubuntu have it in librte-{}NN, which libdpdk-dev brings", driver.replace('_', "-"))]
    DriverMissing {
        /// The driver's name.
        driver: String,
    },
    /// A driver refused.
    #[error("port {port} cannot be {action}: {said} (error {})", *errno as i32)]
    Port {
        /// The port.
        port: PortName,
        /// What was tried.
        action: &'static str,
        /// The driver's error; many say EPERM to everything.
        errno: Errno,
        /// DPDK's own words.
        said: String,
    },
    /// More queues than it has.
    #[error("port {port} has {has} queues, not {asked}")]
    Queues {
        /// The port.
        port: PortName,
        /// What was asked for.
        asked: u16,
        /// What it has.
        has: u16,
    },
    /// Its addresses contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No thread could be started.
    #[error("DPDK's first thread cannot be started")]
    Thread(#[source] std::io::Error),
}

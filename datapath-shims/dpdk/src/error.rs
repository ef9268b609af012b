//! Errors of starting DPDK and opening ports.

use nix::errno::Errno;

use crate::name::PortName;
use crate::net::ConfigError;

/// Reasons why there is no port, each with a remedy if one is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// DPDK can be started only once in a process.
    #[error("DPDK was started in this process before, and can be only once: share the `Eal`")]
    AlreadyStarted,
    /// Not enough hugepages are free.
    #[error(
        "DPDK is to have {wanted_mib} MiB of hugepages, and {free_mib} MiB are free: make some \
         (echo {pages} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or let it do without"
    )]
    Hugepages {
        /// The memory asked for, MiB.
        wanted_mib: u32,
        /// The free hugepages, MiB.
        free_mib: u32,
        /// Pages of 2 MiB that would suffice.
        pages: u32,
    },
    /// DPDK did not start.
    #[error("DPDK does not start ({errno}): {said}")]
    Start {
        errno: Errno,
        /// DPDK's log messages.
        said: String,
    },
    /// No interface has that name, in this network namespace.
    #[error("there is no network interface {interface}; `ip link` lists those that are there")]
    NoSuchInterface { interface: String },
    /// DPDK found no port at a PCI address.
    #[error(
        "DPDK found no port at PCI address {address}: the device must be bound to vfio-pci (dpdk-devbind.py --status), \
         and this user must be allowed to open /dev/vfio. {said}"
    )]
    NoSuchDevice {
        address: String,
        /// DPDK's log messages.
        said: String,
    },
    /// A privilege is missing.
    #[error("port {port} needs {needs}: run as root, or give the program these capabilities (setcap)")]
    Permission {
        port: PortName,
        /// The missing capabilities.
        needs: &'static str,
    },
    /// The driver for the port is not installed.
    #[error("DPDK has no driver {driver} here; Debian and Ubuntu have it in librte-{}NN, which libdpdk-dev brings", driver.replace('_', "-"))]
    DriverMissing { driver: String },
    /// The driver refused an operation.
    #[error("port {port} cannot be {action}: {said} (error {})", *errno as i32)]
    Port {
        port: PortName,
        action: &'static str,
        /// The driver's error; many say EPERM to everything.
        errno: Errno,
        /// DPDK's log messages.
        said: String,
    },
    /// The port has fewer queues than were asked for.
    #[error("port {port} has {has} queues, not {asked}")]
    Queues { port: PortName, asked: u16, has: u16 },
    /// The port's addresses contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A thread could not be started.
    #[error("DPDK's first thread cannot be started")]
    Thread(#[source] std::io::Error),
}

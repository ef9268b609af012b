//! Several emulated paths between two namespaces, of which each flow takes the one that its mark names.
//!
//! Both ends have a service address of each family on their loopback device, routed over every link. A rule for each path
//! sends what carries its mark through a table of its own; what carries none takes the first path.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addresses::Addresses;
use crate::config::{Direction, LinkConfig};
use crate::error::{Context, Result};
use crate::half_link::Change;
use crate::link::EmulatedLink;
use crate::netlink::Netlink;
use crate::netns::Namespace;
use crate::refusal::check_range;
use crate::shape::Shape;
use crate::stats::LinkStats;
use crate::tun::Tun;

/// Fewest and most paths.
pub const MIN_PATHS: usize = 2;
/// The most paths that programs can choose from.
pub const MAX_PATHS: usize = 8;
/// The sender's addresses on its loopback device.
pub const SENDER: Addresses =
    Addresses { v4: Ipv4Addr::new(10, 98, 0, 1), v6: Ipv6Addr::new(0xfdcc, 0x9a6d, 0, 0, 0, 0, 0, 1) };
/// The receiver's addresses on its loopback device.
pub const RECEIVER: Addresses =
    Addresses { v4: Ipv4Addr::new(10, 98, 0, 2), v6: Ipv6Addr::new(0xfdcc, 0x9a6d, 0, 0, 0, 0, 0, 2) };

/// Prefix length of a link's two IPv4 addresses.
const LINK_PREFIX_LEN: u8 = 30;
/// Prefix length of a single IPv4 address.
const HOST_PREFIX_LEN: u8 = 32;
/// The routing table of the first path; the kernel's own are 253 to 255.
const FIRST_TABLE: u32 = 100;
/// The preference of the first path's rule: before the main table's, 32766.
const FIRST_RULE: u32 = 1000;

/// Two namespaces with several emulated links between them.
///
/// Dropping it stops the links and removes the namespaces with their routes and rules; so does the end of the process,
/// SIGKILL included, for they have no names.
#[derive(Debug)]
pub struct MultiPath {
    // Dropped in this order: the threads end before their namespaces go.
    links: Vec<EmulatedLink>,
    sender: Namespace,
    receiver: Namespace,
}

impl MultiPath {
    /// Makes the namespaces and starts one link for each configuration.
    ///
    /// # Errors
    /// Too few or too many paths, a refused configuration, or the kernel's refusal; what was made is removed.
    pub fn start(paths: &[LinkConfig]) -> Result<MultiPath> {
        check_range("paths", paths.len() as f64, MIN_PATHS as f64, MAX_PATHS as f64, "")?;
        paths.iter().try_for_each(LinkConfig::check)?;
        let (sender, receiver) = (Namespace::anonymous()?, Namespace::anonymous()?);
        sender.run(|| prepare(SENDER))??;
        receiver.run(|| prepare(RECEIVER))??;
        let mut links = Vec::with_capacity(paths.len());
        for (path, config) in paths.iter().enumerate() {
            let logs = config.create_logs()?;
            let near = sender.run(|| end(path, SENDER, RECEIVER, Side::Sender))??;
            let far = receiver.run(|| end(path, RECEIVER, SENDER, Side::Receiver))??;
            links.push(EmulatedLink::start(config, logs, near, far)?);
        }
        Ok(MultiPath { links, sender, receiver })
    }

    /// The mark of sockets and packets that take a path.
    pub const fn mark(path: usize) -> u32 {
        1 + path as u32
    }

    /// Returns the name of a path's device, at either end.
    pub fn device(path: usize) -> String {
        format!("ccp{path}")
    }

    /// The namespace whose packets go up.
    pub fn sender_ns(&self) -> &Namespace {
        &self.sender
    }

    /// The namespace whose packets go down.
    pub fn receiver_ns(&self) -> &Namespace {
        &self.receiver
    }

    /// Returns the number of paths.
    pub fn paths(&self) -> usize {
        self.links.len()
    }

    /// Changes how fast a direction of a path delivers, within a millisecond; what is queued stays.
    ///
    /// # Errors
    /// A rate or a path out of range, or a link that has stopped.
    pub fn set_shape(&self, path: usize, direction: Direction, shape: Shape) -> Result<()> {
        shape.check(direction.fields().shape)?;
        check_range("path", path as f64, 0.0, (self.links.len() - 1) as f64, "")?;
        self.links.get(path).map_or(Ok(()), |link| link.change(direction, Change::Shape(shape)))
    }

    /// Returns a snapshot of each path's counters.
    pub fn stats(&self) -> Vec<LinkStats> {
        self.links.iter().map(EmulatedLink::stats).collect()
    }

    /// Stops the links, flushes their logs and removes the namespaces; returns the last counters.
    ///
    /// # Errors
    /// The first link that could not write its log, or what ended it before.
    pub fn stop(mut self) -> Result<Vec<LinkStats>> {
        self.links.iter_mut().map(EmulatedLink::stop).collect()
    }
}

#[derive(Clone, Copy)]
enum Side {
    Sender,
    Receiver,
}

/// Gives the calling thread's namespace its service addresses.
fn prepare(own: Addresses) -> Result<()> {
    let netlink = Netlink::open()?;
    for (address, prefix_len) in own.with_prefixes(HOST_PREFIX_LEN) {
        netlink.add_address("lo", address, prefix_len)?;
    }
    // Answers to what came by a marked path leave by the first one, which a strict filter takes for spoofed.
    for device in ["all", "default"] {
        let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        fs::write(&file, "0").context("write", file)?;
    }
    Ok(())
}

/// Makes one end of a path in the calling thread's namespace, with its routes and rules.
fn end(path: usize, own: Addresses, peer: Addresses, side: Side) -> Result<Tun> {
    let device = MultiPath::device(path);
    let addresses = link_addresses(path, side);
    let tun = Tun::create(&device, &addresses.with_prefixes(LINK_PREFIX_LEN))?;
    let netlink = Netlink::open()?;
    let ends: [(IpAddr, IpAddr); 2] = [(own.v4.into(), peer.v4.into()), (own.v6.into(), peer.v6.into())];
    for (from, to) in ends {
        let table = FIRST_TABLE + path as u32;
        if path == 0 {
            netlink.add_host_route(&device, to, from, None)?;
        }
        netlink.add_host_route(&device, to, from, Some(table))?;
        netlink.add_mark_rule(from.is_ipv6(), MultiPath::mark(path), table, FIRST_RULE + path as u32)?;
    }
    Ok(tun)
}

/// The addresses of a path's device, in networks of the path's own.
fn link_addresses(path: usize, side: Side) -> Addresses {
    let host = match side {
        Side::Sender => 1,
        Side::Receiver => 2,
    };
    Addresses {
        v4: Ipv4Addr::new(10, 97, path as u8, host),
        v6: Ipv6Addr::new(0xfdcc, 0x9a6c, 0, path as u16, 0, 0, 0, host.into()),
    }
}

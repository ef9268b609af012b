//! The network of a data centre: its links, and the path and transport of each flow.

use ccplane_netsim::workload::HostArrival;
use ccplane_netsim::{
    Acks, Capacity, ConfigError, Discipline, LeafSpine, LinkChange, LinkConfig, QueueLimit,
};
use ccplane_sim::{FlowConfig, HostsConfig, Native, Source};
use std::net::{Ipv4Addr, SocketAddr};

/// The port of the first application of each host; the others follow.
const FIRST_SERVICE_PORT: u16 = 5000;
/// The first port of senders.
const FIRST_LOCAL_PORT: u16 = 16_384;
/// The time for which hosts know what they measured of a path, microseconds: at half of 10 Gb/s a host has a flow to
/// each other leaf over each spine every 40 ms.
const PATH_MEMORY_US: u64 = 100_000;
/// Bits of a byte.
const BITS: u64 = 8;

/// The port by which an application of a host is known.
pub fn service_port(application: u16) -> u16 {
    FIRST_SERVICE_PORT.saturating_add(application)
}

/// A change of one of a fabric's links at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricChange {
    pub at_us: u64,
    /// The number of the link, such as [`LeafSpine::to_spine`] tells.
    pub link: u8,
    pub change: LinkChange,
}

/// A leaf-spine network with its hosts.
#[derive(Clone, PartialEq, Debug)]
pub struct Fabric {
    pub shape: LeafSpine,
    /// Rate of the links between hosts and leaves, bits per second.
    pub edge_bit_per_s: u64,
    /// Rate of the links between leaves and spines, bits per second.
    pub core_bit_per_s: u64,
    /// Propagation delay of each link, and the share of the way back that stands for it, nanoseconds.
    pub link_delay_ns: u64,
    /// Delay of the two hosts' stacks together, on the way back, nanoseconds.
    pub host_delay_ns: u64,
    /// Longest queue of a link, bytes.
    pub queue_bytes: u64,
    /// Queue of an edge link from which on packets are marked, bytes; that of others grows with their rate.
    pub mark_at_bytes: u64,
    /// Payload of a full segment, bytes.
    pub mss_bytes: u32,
    /// Window at a flow's start, packets.
    pub init_cwnd_packets: u32,
    pub native: Native,
    /// Least time by which retransmission timeouts exceed the RTT, microseconds.
    pub min_rto_us: u32,
    /// Bytes that applications write ahead of what is sent, at most.
    pub send_buffer_bytes: u64,
    pub hosts: HostsConfig,
    /// Changes of links, in order of time.
    pub changes: Vec<FabricChange>,
}

impl Fabric {
    /// A fabric of so many hosts, four to a leaf, without oversubscription: as many spines as hosts of a leaf, at most
    /// eight, all links equally fast. Marks begin at 65 packets at 10 Gb/s and in proportion (DCTCP, section 3.4), and
    /// queues hold 1000 packets at 10 Gb/s. The least retransmission timeout is 5 ms, and applications write 16 KiB at
    /// a time.
    pub fn new(hosts: usize, bit_per_s: u64) -> Fabric {
        let hosts_per_leaf = if hosts > 32 { 8 } else { 4 };
        let shape = LeafSpine { leaves: hosts.div_ceil(hosts_per_leaf), hosts_per_leaf, spines: 4 };
        let packets = |at_ten_gbit: u64| at_ten_gbit * 1500 * bit_per_s / 10_000_000_000;
        let spines = shape.spines as u64;
        Fabric {
            shape,
            edge_bit_per_s: bit_per_s,
            core_bit_per_s: bit_per_s * hosts_per_leaf as u64 / spines,
            link_delay_ns: 1000,
            host_delay_ns: 10_000,
            queue_bytes: packets(1000).max(256 * 1024),
            mark_at_bytes: packets(65).max(16 * 1024),
            mss_bytes: 1448,
            init_cwnd_packets: 10,
            native: Native::Dctcp,
            min_rto_us: 5_000,
            send_buffer_bytes: 16 * 1024,
            hosts: HostsConfig { path_memory_us: PATH_MEMORY_US, ..HostsConfig::default() },
            changes: Vec::new(),
        }
    }

    /// Returns the links for the simulation, in the numbering of [`LeafSpine`].
    ///
    /// # Errors
    /// More links than a network has.
    pub fn links(&self) -> Result<Vec<LinkConfig>, ConfigError> {
        let link = |bit_per_s: u64| {
            let scaled = |bytes: u64| {
                let bytes =
                    u128::from(bytes) * u128::from(bit_per_s) / u128::from(self.edge_bit_per_s.max(1));
                QueueLimit::Bytes(u64::try_from(bytes).unwrap_or(u64::MAX).max(1))
            };
            let discipline = Discipline::StrictPriority { mark_at: Some(scaled(self.mark_at_bytes)) };
            let capacity = Capacity::Rate { bit_per_s };
            LinkConfig {
                discipline,
                ..LinkConfig::new(capacity, self.link_delay_ns, scaled(self.queue_bytes))
            }
        };
        self.shape.links(&link(self.edge_bit_per_s), &link(self.core_bit_per_s))
    }

    /// The address of a host: hosts of a leaf share a /24.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        let (leaf, own) = (host / self.shape.hosts_per_leaf, host % self.shape.hosts_per_leaf);
        Ipv4Addr::new(10, 0, leaf as u8, 1 + own as u8)
    }

    /// Returns the flow of an arrival, the `number`th of the simulation.
    pub fn flow(&self, arrival: &HostArrival, number: usize) -> FlowConfig {
        let HostArrival { start_us, bytes, from, to, application } = *arrival;
        let hops = if from / self.shape.hosts_per_leaf == to / self.shape.hosts_per_leaf { 2 } else { 4 };
        let mut path = self.shape.path(from, to, self.host_delay_ns + hops * self.link_delay_ns);
        path.ecn = true;
        path.acks = Acks::EACH;
        let local_ports = usize::from(u16::MAX - FIRST_LOCAL_PORT);
        let local_port = FIRST_LOCAL_PORT + (number % local_ports) as u16;
        FlowConfig {
            start_us,
            path,
            mss_bytes: self.mss_bytes,
            init_cwnd_packets: self.init_cwnd_packets,
            native: self.native,
            min_rto_us: self.min_rto_us,
            send_buffer_bytes: self.send_buffer_bytes,
            local: SocketAddr::new(self.address(from).into(), local_port),
            remote: SocketAddr::new(self.address(to).into(), service_port(application)),
            ..FlowConfig::new(Source::Bytes(bytes), 0)
        }
    }

    /// The time that a flow of so many bytes takes alone: its bytes with their headers on an edge link, and half a round trip more.
    pub fn ideal_ns(&self, bytes: u64, base_rtt_ns: u64) -> u64 {
        let packets = bytes.div_ceil(u64::from(self.mss_bytes).max(1));
        let wire_bits = (bytes + packets * 52) * BITS;
        let ns = u128::from(wire_bits) * 1_000_000_000 / u128::from(self.edge_bit_per_s.max(1));
        base_rtt_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_of_8_to_64_hosts_have_as_much_capacity_above_as_below() {
        for hosts in [8, 16, 32, 64] {
            for bit_per_s in [10_000_000_000, 100_000_000_000] {
                let fabric = Fabric::new(hosts, bit_per_s);
                assert_eq!(fabric.shape.hosts(), hosts);
                let up = fabric.core_bit_per_s * fabric.shape.spines as u64;
                assert_eq!(up, bit_per_s * fabric.shape.hosts_per_leaf as u64);
                assert_eq!(
                    fabric.links().unwrap().len(),
                    2 * (hosts + fabric.shape.leaves * fabric.shape.spines)
                );
            }
        }
    }

    #[test]
    fn hosts_of_a_leaf_share_a_network_and_have_one_path() {
        let fabric = Fabric::new(8, 10_000_000_000);
        let arrival = |to| HostArrival { start_us: 3, bytes: 9, from: 1, to, application: 2 };
        let (near, far) = (fabric.flow(&arrival(2), 0), fabric.flow(&arrival(6), 1));
        assert_eq!(near.path.other_routes.len() + 1, 1);
        assert_eq!(far.path.other_routes.len() + 1, 4);
        assert_eq!(
            (near.local.ip().to_string(), far.remote.to_string()),
            ("10.0.0.2".into(), "10.0.1.3:5002".into())
        );
        assert_ne!(near.local.port(), far.local.port());
        // 1500 bytes at 10 Gb/s.
        assert_eq!(fabric.ideal_ns(1448, 10_000), 11_200);
    }
}

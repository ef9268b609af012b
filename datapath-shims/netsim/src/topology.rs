//! The usual shapes of networks: links, and paths over them.

use crate::config::{ConfigError, LinkConfig, MAX_LINKS, PathConfig, within};
use crate::packet::MAX_ROUTES;

/// Links and paths that fit each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The links for [`Network::new`](crate::Network::new).
    pub links: Vec<LinkConfig>,
    /// The paths for [`Network::add_flow`](crate::Network::add_flow).
    pub paths: Vec<PathConfig>,
}

impl Topology {
    /// One link that all flows share; each flow has an access delay, nanoseconds, at either side of it. The way
    /// back is as long, and uncongested.
    pub fn dumbbell(bottleneck: LinkConfig, access_delays_ns: &[u64]) -> Topology {
        let delay_ns = bottleneck.delay_ns;
        let path = |access_ns: &u64| PathConfig {
            access_delay_ns: *access_ns,
            ..PathConfig::new(vec![0], delay_ns + access_ns)
        };
        Topology { links: vec![bottleneck], paths: access_delays_ns.iter().map(path).collect() }
    }

    /// Links in a row. `long` flows cross all of them and come first; then `short` flows for each link cross only
    /// that one. The ways back are as long, and uncongested.
    pub fn parking_lot(links: Vec<LinkConfig>, long: usize, short: usize) -> Topology {
        let over = |hops: std::ops::Range<usize>| {
            let delay_ns = links[hops.clone()].iter().map(|l| l.delay_ns).sum();
            PathConfig::new(hops.map(|n| n as u8).collect(), delay_ns)
        };
        let mut paths = vec![over(0..links.len()); long];
        for n in 0..links.len() {
            paths.extend(vec![over(n..n + 1); short]);
        }
        Topology { links, paths }
    }

    /// The same with real ways back: each link gets one in the other direction, as `back` makes it, and
    /// acknowledgements cross those of their path. Their delays take the place of the uncongested way's.
    pub fn with_return_links(mut self, back: impl Fn(&LinkConfig) -> LinkConfig) -> Topology {
        let first = self.links.len();
        for path in &mut self.paths {
            let there_ns: u64 = path.links.iter().map(|l| self.links[usize::from(*l)].delay_ns).sum();
            path.return_links = path.links.iter().rev().map(|l| (first + usize::from(*l)) as u8).collect();
            path.return_delay_ns = path.return_delay_ns.saturating_sub(there_ns);
        }
        let twins: Vec<LinkConfig> = self.links.iter().map(back).collect();
        self.links.extend(twins);
        self
    }

    /// The same with every path changed so, such as to acknowledge otherwise.
    pub fn with_paths(mut self, change: impl FnMut(&mut PathConfig)) -> Topology {
        self.paths.iter_mut().for_each(change);
        self
    }
}

/// A fabric of two tiers: each host has a link to its leaf and one from it, each leaf one to every spine and one from it.
///
/// Between hosts of different leaves a flow has one route through each spine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafSpine {
    pub leaves: usize,
    pub hosts_per_leaf: usize,
    pub spines: usize,
}

impl LeafSpine {
    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        self.leaves * self.hosts_per_leaf
    }

    /// Returns the links for [`Network::new`](crate::Network::new): `edge` between hosts and leaves, `core` between leaves
    /// and spines.
    ///
    /// # Errors
    /// More links or routes than a network has.
    pub fn links(&self, edge: &LinkConfig, core: &LinkConfig) -> Result<Vec<LinkConfig>, ConfigError> {
        within("spines", self.spines as u64, 1, MAX_ROUTES as u64)?;
        within("links", self.core_link(self.leaves, 0) as u64, 1, MAX_LINKS as u64)?;
        let edges = std::iter::repeat_n(edge, 2 * self.hosts());
        Ok(edges.chain(std::iter::repeat_n(core, 2 * self.leaves * self.spines)).cloned().collect())
    }

    /// The link from a host to its leaf.
    pub fn up(&self, host: usize) -> u8 {
        (2 * host) as u8
    }

    /// The link from its leaf to a host.
    pub fn down(&self, host: usize) -> u8 {
        (2 * host + 1) as u8
    }

    fn core_link(&self, leaf: usize, spine: usize) -> usize {
        2 * (self.hosts() + leaf * self.spines + spine)
    }

    /// The link from a leaf to a spine.
    pub fn to_spine(&self, leaf: usize, spine: usize) -> u8 {
        self.core_link(leaf, spine) as u8
    }

    /// The link from a spine to a leaf.
    pub fn from_spine(&self, leaf: usize, spine: usize) -> u8 {
        (self.core_link(leaf, spine) + 1) as u8
    }

    /// Returns the way between two hosts, with a route through each spine where they have different leaves. The way back
    /// takes `return_delay_ns`, nanoseconds, uncongested.
    pub fn path(&self, from: usize, to: usize, return_delay_ns: u64) -> PathConfig {
        let (first, last) = (from / self.hosts_per_leaf, to / self.hosts_per_leaf);
        if first == last {
            return PathConfig::new(vec![self.up(from), self.down(to)], return_delay_ns);
        }
        let over = |spine| {
            vec![self.up(from), self.to_spine(first, spine), self.from_spine(last, spine), self.down(to)]
        };
        let other_routes = (1..self.spines).map(over).collect();
        PathConfig { other_routes, ..PathConfig::new(over(0), return_delay_ns) }
    }
}

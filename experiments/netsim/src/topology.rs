//! The usual shapes of networks: links, and paths over them.

use crate::config::{LinkConfig, PathConfig};

/// Links and paths that fit each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// For [`Network::new`](crate::Network::new).
    pub links: Vec<LinkConfig>,
    /// For [`Network::add_flow`](crate::Network::add_flow).
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

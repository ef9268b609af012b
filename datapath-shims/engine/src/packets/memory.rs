//! A host's memory of earlier flows and of paths.

use ccplane_contract::FlowInfo;
use ccplane_program::ir::{MAX_PATHS, PAST_SIZES, Prim};
use ccplane_program::vm::SendPrims;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Weight of a new RTT sample in the smoothed one (RFC 6298): one eighth.
const RTT_SHIFT: u32 = 3;
/// Packets over which the shares of marked and lost ones are averaged.
const SHARE_PACKETS: u64 = 64;
/// A share of 1.
const ONE: u64 = 1 << 16;

/// An application and a destination, as a host sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct PeerKey {
    local: IpAddr,
    remote: IpAddr,
    /// The lower of the flow's ports, which is the service's.
    service: u16,
    cgroup: u64,
}

impl PeerKey {
    fn of(info: &FlowInfo) -> PeerKey {
        PeerKey {
            local: info.local.ip(),
            remote: info.remote.ip(),
            service: info.local.port().min(info.remote.port()),
            cgroup: info.cgroup.unwrap_or(0),
        }
    }
}

/// The flows so far of one application to one destination.
#[derive(Clone, Copy, Default, Debug)]
struct Peer {
    flows: u64,
    started_us: u64,
    /// Bytes that the last ones to end sent, the very last first.
    sizes: [u64; PAST_SIZES],
}

/// The facts about earlier flows that a flow knows from its start on.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Past {
    flows: u64,
    gap_us: u64,
    sizes: [u64; PAST_SIZES],
}

impl Past {
    pub(super) fn fill(&self, prims: &mut SendPrims) {
        prims.set(Prim::PeerFlows, integer(self.flows)).set(Prim::PeerGapUs, integer(self.gap_us));
        let sizes = [Prim::PeerSize1, Prim::PeerSize2, Prim::PeerSize3, Prim::PeerSize4];
        for (prim, bytes) in sizes.into_iter().zip(self.sizes) {
            prims.set(prim, integer(bytes));
        }
    }
}

/// The flows that were sent, by application and destination.
#[derive(Debug)]
struct Peers {
    peers: BTreeMap<PeerKey, Peer>,
    /// Most that are remembered; then the one whose last flow started first is forgotten.
    limit: usize,
}

impl Peers {
    /// Notes that a flow starts; returns the past of its application and destination.
    fn start(&mut self, info: &FlowInfo, now_us: u64) -> Past {
        let key = PeerKey::of(info);
        if self.peers.len() >= self.limit && !self.peers.contains_key(&key) {
            self.forget_one();
        }
        let peer = self.peers.entry(key).or_default();
        let gap_us = if peer.flows > 0 { now_us.saturating_sub(peer.started_us) } else { 0 };
        let past = Past { flows: peer.flows, gap_us, sizes: peer.sizes };
        (peer.flows, peer.started_us) = (peer.flows + 1, now_us);
        past
    }

    #[cold]
    fn forget_one(&mut self) {
        let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.started_us);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.peers.remove(&key);
        }
    }

    /// Notes the size of a flow that ended.
    fn end(&mut self, info: &FlowInfo, bytes: u64) {
        if let Some(peer) = self.peers.get_mut(&PeerKey::of(info)) {
            peer.sizes.rotate_right(1);
            peer.sizes[0] = bytes;
        }
    }
}

/// A host, and the network of destinations whose paths it measures together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct PathsKey {
    local: IpAddr,
    network: IpAddr,
}

/// One path as a host's flows find it.
#[derive(Clone, Copy, Default, Debug)]
struct MeasuredPath {
    srtt_us: u64,
    /// When it was measured last, microseconds; 0 for never.
    at_us: u64,
    /// Share of the packets that were marked, in 2^-16.
    marked: u64,
    /// Share of the packets that were lost, in 2^-16.
    lost: u64,
    bytes_in_flight: u64,
}

/// The outcome of packets on one path, as one ACK tells it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathSample {
    /// Round-trip time, microseconds, where the ACK gave one.
    pub rtt_us: Option<u64>,
    /// Packets that were delivered.
    pub packets: u64,
    /// Delivered packets that carried a congestion mark.
    pub marked: u64,
    /// Packets that were found lost.
    pub lost: u64,
}

/// The paths from one host to one network, as its flows find them.
#[derive(Clone, Copy, Debug)]
struct Measured {
    key: PathsKey,
    /// Flows that are on these paths now.
    flows: usize,
    paths: [MeasuredPath; MAX_PATHS],
}

/// The paths of every host.
#[derive(Debug)]
struct Paths {
    index: BTreeMap<PathsKey, usize>,
    all: Vec<Measured>,
    /// Networks that are remembered without a flow, at most.
    limit: usize,
}

impl Paths {
    /// Returns the number of the paths that a flow's host has to its destination's network: /24 or /48.
    fn join(&mut self, info: &FlowInfo) -> usize {
        let network = match info.remote.ip() {
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & !0xff).into()),
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 80 << 80).into()),
        };
        let key = PathsKey { local: info.local.ip(), network };
        let number = self.index.get(&key).copied().unwrap_or_else(|| self.add(key));
        self.all[number].flows += 1;
        number
    }

    /// Adds paths, in place of some that no flow is on where there are many.
    fn add(&mut self, key: PathsKey) -> usize {
        let measured = Measured { key, flows: 0, paths: Default::default() };
        let is_full = self.all.len() >= self.limit;
        let free = if is_full { self.all.iter().position(|paths| paths.flows == 0) } else { None };
        let number = free.unwrap_or(self.all.len());
        match self.all.get_mut(number) {
            Some(old) => {
                let old = std::mem::replace(old, measured);
                self.index.remove(&old.key);
            }
            None => self.all.push(measured),
        }
        self.index.insert(key, number);
        number
    }

    fn leave(&mut self, number: usize) {
        self.all[number].flows -= 1;
    }

    fn path(&mut self, number: usize, path: u8) -> &mut MeasuredPath {
        &mut self.all[number].paths[usize::from(path) % MAX_PATHS]
    }

    fn sample(&mut self, number: usize, path: u8, now_us: u64, sample: &PathSample) {
        let path = self.path(number, path);
        // Where everything is lost, only losses tell of the path.
        path.at_us = now_us.max(1);
        if let Some(rtt_us) = sample.rtt_us {
            let is_first = path.srtt_us == 0;
            let old_us = if is_first { rtt_us } else { path.srtt_us };
            path.srtt_us = old_us - (old_us >> RTT_SHIFT) + (rtt_us >> RTT_SHIFT);
            path.srtt_us = if is_first { rtt_us } else { path.srtt_us.max(1) };
        }
        let told = (sample.packets + sample.lost).min(SHARE_PACKETS);
        for (share, count) in [(&mut path.marked, sample.marked), (&mut path.lost, sample.lost)] {
            *share = (*share * (SHARE_PACKETS - told) + count.min(told) * ONE) / SHARE_PACKETS;
        }
    }

    /// Moves what a flow has in flight from one path to another, or changes how much it is.
    fn carry(&mut self, number: usize, (from, before): (u8, u64), (to, now): (u8, u64)) {
        self.path(number, from).bytes_in_flight -= before;
        self.path(number, to).bytes_in_flight += now;
    }

    /// Fills in the first `count` paths; what is older than `memory_us` counts as unknown.
    fn fill(&self, number: usize, count: u8, now_us: u64, memory_us: u64, prims: &mut SendPrims) {
        prims.set(Prim::PathCount, count.into());
        let all = self.all[number].paths.iter().take(count.into());
        for (path, of) in all.zip(Prim::ALL[Prim::Path0RttUs as usize..].chunks_exact(4)) {
            let is_known = path.at_us > 0 && now_us - path.at_us.min(now_us) <= memory_us;
            let values = if is_known { [path.srtt_us, path.marked, path.lost] } else { [0; 3] };
            for (prim, value) in of.iter().zip(values.into_iter().chain([path.bytes_in_flight])) {
                prims.set(*prim, integer(value));
            }
        }
    }
}

/// The knowledge of one thread's hosts about earlier flows and paths, which their programs read.
#[derive(Debug)]
pub struct HostMemory {
    peers: Peers,
    paths: Paths,
    /// The time for which measurements of a path are known, microseconds.
    path_memory_us: u64,
}

/// The place of a flow's paths in a [`HostMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathsOf(usize);

impl HostMemory {
    /// Makes an empty memory.
    ///
    /// `max_peers` limits the pairs of application and destination, and `max_networks` the networks that no flow goes to. Where
    /// measurements of a path are older than `path_memory_us`, it counts as unknown.
    pub fn new(max_peers: usize, max_networks: usize, path_memory_us: u64) -> HostMemory {
        HostMemory {
            peers: Peers { peers: BTreeMap::new(), limit: max_peers },
            paths: Paths { index: BTreeMap::new(), all: Vec::new(), limit: max_networks },
            path_memory_us,
        }
    }

    /// Adds a flow of so many bytes to those that are remembered.
    pub fn remember(&mut self, info: &FlowInfo, bytes: u64, now_us: u64) {
        self.peers.start(info, now_us);
        self.peers.end(info, bytes);
    }

    /// Notes that a flow starts; returns its past and its paths.
    pub(super) fn start(&mut self, info: &FlowInfo, now_us: u64) -> (Past, PathsOf) {
        (self.peers.start(info, now_us), PathsOf(self.paths.join(info)))
    }

    /// Notes that a flow has ended, and its size if it sent anything.
    pub(super) fn end(&mut self, info: &FlowInfo, PathsOf(paths): PathsOf, bytes: u64) {
        self.paths.leave(paths);
        if bytes > 0 {
            self.peers.end(info, bytes);
        }
    }

    pub(super) fn sample(&mut self, PathsOf(paths): PathsOf, path: u8, now_us: u64, sample: &PathSample) {
        self.paths.sample(paths, path, now_us, sample);
    }

    /// Moves what a flow has in flight from one path to another, or changes how much it is.
    pub(super) fn carry(&mut self, PathsOf(paths): PathsOf, from: (u8, u64), to: (u8, u64)) {
        self.paths.carry(paths, from, to);
    }

    /// Fills in the first `count` paths.
    pub(super) fn fill(&self, PathsOf(paths): PathsOf, count: u8, now_us: u64, prims: &mut SendPrims) {
        self.paths.fill(paths, count, now_us, self.path_memory_us, prims);
    }
}

pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

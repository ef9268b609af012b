//! The hosts' memory of earlier flows and of paths.

use ccplane_contract::FlowInfo;
use ccplane_program::ir::{MAX_PATHS, PAST_SIZES, Prim};
use ccplane_program::vm::SendPrims;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Pairs of application and destination that all hosts remember together; flows of further ones have no past.
const MAX_PEERS: usize = 1 << 18;
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
    pub(super) fn tell(&self, prims: &mut SendPrims) {
        prims.set(Prim::PeerFlows, integer(self.flows)).set(Prim::PeerGapUs, integer(self.gap_us));
        let sizes = [Prim::PeerSize1, Prim::PeerSize2, Prim::PeerSize3, Prim::PeerSize4];
        for (prim, bytes) in sizes.into_iter().zip(self.sizes) {
            prims.set(prim, integer(bytes));
        }
    }
}

/// Every host's memory of the flows that it sent.
#[derive(Default, Debug)]
pub(super) struct Peers(BTreeMap<PeerKey, Peer>);

impl Peers {
    /// Notes that a flow starts; returns the past of its application and destination.
    pub(super) fn start(&mut self, info: &FlowInfo, now_us: u64) -> Past {
        let (key, is_full) = (PeerKey::of(info), self.0.len() >= MAX_PEERS);
        if is_full && !self.0.contains_key(&key) {
            return Past::default();
        }
        let peer = self.0.entry(key).or_default();
        let gap_us = if peer.flows > 0 { now_us - peer.started_us } else { 0 };
        let past = Past { flows: peer.flows, gap_us, sizes: peer.sizes };
        (peer.flows, peer.started_us) = (peer.flows + 1, now_us);
        past
    }

    /// Notes the size of a flow that ended.
    pub(super) fn end(&mut self, info: &FlowInfo, bytes: u64) {
        if let Some(peer) = self.0.get_mut(&PeerKey::of(info)) {
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
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PathSample {
    pub(crate) rtt_us: Option<u64>,
    pub(crate) packets: u64,
    pub(crate) marked: u64,
    pub(crate) lost: u64,
}

/// The paths of every host.
#[derive(Default, Debug)]
pub(super) struct Paths {
    index: BTreeMap<PathsKey, usize>,
    paths: Vec<[MeasuredPath; MAX_PATHS]>,
}

impl Paths {
    /// Returns the number of the paths that a flow's host has to its destination's network: /24 or /48.
    pub(super) fn find(&mut self, info: &FlowInfo) -> usize {
        let network = match info.remote.ip() {
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & !0xff).into()),
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 80 << 80).into()),
        };
        let paths = &mut self.paths;
        *self.index.entry(PathsKey { local: info.local.ip(), network }).or_insert_with(|| {
            paths.push(Default::default());
            paths.len() - 1
        })
    }

    pub(super) fn sample(&mut self, paths: usize, path: u8, now_us: u64, sample: &PathSample) {
        let path = &mut self.paths[paths][usize::from(path) % MAX_PATHS];
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
    pub(super) fn carry(&mut self, paths: usize, (from, before): (u8, u64), (to, now): (u8, u64)) {
        let paths = &mut self.paths[paths];
        paths[usize::from(from) % MAX_PATHS].bytes_in_flight -= before;
        paths[usize::from(to) % MAX_PATHS].bytes_in_flight += now;
    }

    /// Tells of the first `count` paths; what is older than `memory_us` counts as unknown.
    pub(super) fn tell(&self, paths: usize, count: u8, now_us: u64, memory_us: u64, prims: &mut SendPrims) {
        prims.set(Prim::PathCount, count.into());
        let all = self.paths[paths].iter().take(count.into());
        for (path, of) in all.zip(Prim::ALL[Prim::Path0RttUs as usize..].chunks_exact(4)) {
            let is_known = path.at_us > 0 && now_us - path.at_us.min(now_us) <= memory_us;
            let values = if is_known { [path.srtt_us, path.marked, path.lost] } else { [0; 3] };
            for (prim, value) in of.iter().zip(values.into_iter().chain([path.bytes_in_flight])) {
                prims.set(*prim, integer(value));
            }
        }
    }
}

pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

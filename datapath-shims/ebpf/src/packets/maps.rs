//! Maps of the packets' datapath.

use super::layout::{cache, flow, marking, page, path, peer, peer_key, route, storage};
use super::options::PacketsOptions;
use crate::btf;
use crate::error::{EbpfError, os};
use crate::kernel::Maps;
use crate::layout::{LAYOUT_VERSION, ctl};
use crate::maps::{Memory, OpenMaps};
use ccplane_bpf::{self as sys, MapType};
use ccplane_program::ir::MAX_PATHS;
use nix::net::if_::if_nametoindex;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Destinations that are remembered, for each flow that fits: the least recently used one makes room.
const PEERS_PER_FLOW: u32 = 4;

/// The descriptors of all maps, for programs.
#[derive(Clone, Copy)]
pub struct PacketMaps {
    pub common: Maps,
    /// The storage that lives with sockets.
    pub storage: i32,
    /// The destinations and what is known of them.
    pub peers: i32,
    /// The paths and what is known of them.
    pub paths: i32,
    /// A cache of the records' indices, which a packet's hash selects.
    pub cache: i32,
}

/// Open descriptors of all maps.
pub struct OpenPacketMaps {
    pub common: OpenMaps,
    storage: OwnedFd,
    peers: OwnedFd,
    paths: OwnedFd,
    cache: OwnedFd,
}

impl OpenPacketMaps {
    /// Creates maps with no flow in them.
    pub fn create(max_flows: u32) -> Result<OpenPacketMaps, EbpfError> {
        let common = OpenMaps::create(max_flows, [page::BYTES, flow::BYTES])?;
        let types = os("load BTF", sys::btf_load(&btf::storage_blob()))?;
        let storage = sys::map_create_storage("ccplane_socket", storage::BYTES, &types, btf::STORAGE_TYPES);
        let peers = max_flows.saturating_mul(PEERS_PER_FLOW);
        let peers =
            sys::map_create(MapType::LruHash, "ccplane_peers", peer_key::BYTES, peer::BYTES, peers, 0);
        let bytes = path::BYTES * MAX_PATHS as u32;
        let paths = sys::map_create(MapType::Array, "ccplane_paths", 4, bytes, 1, sys::F_MMAPABLE);
        let cache = sys::map_create(MapType::Array, "ccplane_cache", 4, cache::BYTES, 1, 0);
        Ok(OpenPacketMaps {
            common,
            storage: os("create map ccplane_socket", storage)?,
            peers: os("create map ccplane_peers", peers)?,
            paths: os("create map ccplane_paths", paths)?,
            cache: os("create map ccplane_cache", cache)?,
        })
    }

    /// The maps' descriptors, for programs.
    pub fn fds(&self) -> PacketMaps {
        PacketMaps {
            common: self.common.fds(),
            storage: self.storage.as_raw_fd(),
            peers: self.peers.as_raw_fd(),
            paths: self.paths.as_raw_fd(),
            cache: self.cache.as_raw_fd(),
        }
    }

    /// Writes the first state of the control page, and maps it and the flow table.
    pub fn fill(&self, options: &PacketsOptions) -> Result<Memory, EbpfError> {
        // The number of records stands in the page, which is mapped first.
        let page = os(
            "map the control page",
            sys::SharedMap::new(&self.common.ctl, 0, crate::maps::page_bytes(), true),
        )?;
        page.u64(ctl::VERSION as usize).store(LAYOUT_VERSION, Relaxed);
        page.u32(ctl::MAX_FLOWS as usize).store(options.max_flows, Relaxed);
        page.u32(ctl::AGENT_PID as usize).store(std::process::id(), Relaxed);
        let ns = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        page.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        page.u64(page::FLOWLET_NS as usize).store(ns(options.flowlet_gap), Relaxed);
        page.u64(page::SAMPLE_NS as usize).store(ns(options.sample_interval), Release);
        let put = |at: u32, value: u32| page.u32(at as usize).store(value, Relaxed);
        for (marks, at) in options.markings.iter().zip((page::PRIORITIES..).step_by(marking::BYTES as usize))
        {
            put(at + marking::SKB_PRIORITY, marks.skb_priority);
            put(at + marking::MARK, marks.mark);
            put(at + marking::DSCP, marks.dscp);
        }
        for (n, (way, at)) in
            options.paths.iter().zip((page::PATHS..).step_by(route::BYTES as usize)).enumerate()
        {
            put(at + route::MARK, way.mark);
            let ifindex = way.device.as_deref().map(index_of).transpose()?;
            put(at + route::IFINDEX, ifindex.unwrap_or(0));
            // Odd multiples, so that equal hashes get labels far from each other; path 0 keeps the socket's own.
            put(at + route::LABEL, (n as u32).wrapping_mul(0x3_779b));
        }
        self.common.slot_memory()?.fill_tables();
        Memory::map(&self.common, true)
    }
}

/// Returns a device's number.
pub fn index_of(device: &str) -> Result<u32, EbpfError> {
    os(format!("find device {device}"), if_nametoindex(device).map_err(Into::into))
}

//! Records the TCP flows of a cgroup or of network namespaces: when they start and end, what they carry, in which bursts.
//!
//! Four tracing programs follow each flow and send what has ended through a ring. Links hold them and nothing is pinned, so
//! that they go with this process, however it ends.

mod layout;
mod programs;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::attach::load;
use crate::btf::Btf;
use crate::error::{EbpfError, os};
use crate::maps::page_bytes;
use crate::ring::{Ring, RingRecord};
use ccplane_bpf::{self as sys, AttachTo, MapType, ProgType, ProgramLink, SharedMap};
use layout::{ctl, event, flow};
use programs::{Offsets, RecordMaps};

pub use layout::{COMM_BYTES, MAX_OPEN_FLOWS};

/// Network namespaces that one recording follows.
pub const MAX_NAMESPACES: usize = 64;
/// The longest silence between two bursts, microseconds: an hour.
pub const MAX_BURST_GAP_US: u64 = 3_600_000_000;
/// Size of the ring, bytes: some 8000 flows that end together.
const RING_BYTES: usize = 1 << 20;
/// The address family of IPv6 (include/linux/socket.h).
const AF_INET6: u32 = 10;

/// The flows that are recorded, by the place of their sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Sockets of a cgroup (v2) or of one below it.
    Cgroup {
        /// The cgroup's id, which is the inode number of its directory.
        id: u64,
        /// Steps from the root of the hierarchy, which has level 0.
        level: u32,
    },
    /// Sockets of network namespaces, by the inode numbers of their files.
    Namespaces(Vec<u32>),
}

/// The flows to record, and how bursts are told apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordOptions {
    pub scope: Scope,
    /// A silence longer than this ends a burst, microseconds.
    pub burst_gap_us: u64,
}

/// The side of a connection that a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opener {
    /// The recorded socket connected.
    Local,
    /// The recorded socket was accepted.
    Remote,
}

/// Bytes that an application wrote without a longer silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstEnd {
    /// The flow's number within the recording.
    pub flow: u64,
    /// When its first write returned, or was first seen to wait for room, microseconds of the monotonic clock.
    pub start_us: u64,
    pub bytes: u64,
}

/// A flow that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// The flow's number within the recording.
    pub flow: u64,
    /// When it began to connect, or was established where the peer opened it, microseconds of the monotonic clock.
    pub start_us: u64,
    /// When its socket closed, microseconds of the monotonic clock.
    pub end_us: u64,
    pub opener: Opener,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The first process that wrote or read, as the kernel names it; empty where none did.
    pub comm: [u8; COMM_BYTES],
    /// Payload that the application wrote, bytes.
    pub bytes_sent: u64,
    /// Payload that arrived in order, bytes.
    pub bytes_received: u64,
}

/// An event of a recorded flow, in order of time for each flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    Burst(BurstEnd),
    End(FlowEnd),
}

/// Counts of a recording so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordCounts {
    /// Flows that have started.
    pub started: u64,
    /// Flows that found [`MAX_OPEN_FLOWS`] others open and are not recorded.
    pub missed_flows: u64,
    /// Events that found the ring full.
    pub lost_events: u64,
}

/// A recording that runs; dropping it removes its programs from the kernel.
pub struct Recorder {
    ring: Ring,
    ctl: SharedMap,
    _links: Vec<ProgramLink>,
}

impl Recorder {
    /// Attaches the programs; flows that start from now on are recorded.
    ///
    /// # Errors
    /// An option outside its limits, a kernel that lacks something, or no permission.
    pub fn start(options: &RecordOptions) -> Result<Recorder, EbpfError> {
        check(options)?;
        let btf = Btf::kernel()?;
        let offsets = Offsets::new(&btf)?;
        let map = |kind, name: &str, key, value, entries, flags| {
            os(format!("create map {name}"), sys::map_create(kind, name, key, value, entries, flags))
        };
        let flows = map(MapType::Hash, "ccplane_rec", 8, flow::BYTES, MAX_OPEN_FLOWS, 0)?;
        let page = map(MapType::Array, "ccplane_rec_ctl", 4, ctl::BYTES, 1, sys::F_MMAPABLE)?;
        let spaces = map(MapType::Hash, "ccplane_rec_ns", 4, 4, MAX_NAMESPACES as u32, 0)?;
        let ring = map(MapType::Ringbuf, "ccplane_rec_rng", 0, 0, RING_BYTES as u32, 0)?;
        if let Scope::Namespaces(inodes) = &options.scope {
            for inode in inodes {
                let one = 1u32.to_ne_bytes();
                os("name a namespace", sys::map_update(&spaces, &inode.to_ne_bytes(), &one))?;
            }
        }
        let maps = RecordMaps::new(&flows, &page, &spaces, &ring);
        let mut links = Vec::new();
        for program in programs::all(&btf, &offsets, maps, options)? {
            let to = AttachTo { btf_id: program.attach_to, expected: sys::TRACE_RAW_TP };
            let fd = load(ProgType::Tracing, program.name, &program.insns, to)?;
            links.push(os(format!("attach {}", program.name), sys::raw_tracepoint_open(&fd))?);
        }
        let ctl = os("map the counts", SharedMap::new(&page, 0, page_bytes(), false))?;
        let ring = os("map the ring", Ring::new(ring, RING_BYTES, page_bytes()))?;
        Ok(Recorder { ring, ctl, _links: links })
    }

    /// Hands what has ended since the last call to `take`; waits for it for `timeout_ms` at most.
    ///
    /// # Errors
    /// The kernel's refusal to wait.
    pub fn poll(&self, timeout_ms: u16, mut take: impl FnMut(FlowEvent)) -> Result<(), EbpfError> {
        if self.ring.is_empty() {
            os("wait for flows", self.ring.sleep(Duration::from_millis(u64::from(timeout_ms)), None))?;
        }
        self.ring.drain(|record| {
            take(read(&record));
            true
        });
        Ok(())
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> RecordCounts {
        let word = |at: u32| self.ctl.u64(at as usize).load(Relaxed);
        RecordCounts {
            started: word(ctl::STARTED),
            missed_flows: word(ctl::MISSED_FLOWS),
            lost_events: word(ctl::LOST_EVENTS),
        }
    }
}

/// Returns the ids of all recorders' programs in the kernel.
///
/// # Errors
/// No permission to list programs.
pub fn program_ids() -> Result<BTreeSet<u32>, EbpfError> {
    let named = os("list programs", sys::prog_names())?;
    let ours = named.into_iter().filter(|(_, name)| name.starts_with(programs::PREFIX));
    Ok(ours.map(|(id, _)| id).collect())
}

fn check(options: &RecordOptions) -> Result<(), EbpfError> {
    let bad = |field, value: String, limit| Err(EbpfError::BadOption { field, value, limit });
    if !(1..=MAX_BURST_GAP_US).contains(&options.burst_gap_us) {
        return bad("burst_gap_us", options.burst_gap_us.to_string(), format!("1 to {MAX_BURST_GAP_US}"));
    }
    match &options.scope {
        Scope::Namespaces(inodes) if !(1..=MAX_NAMESPACES).contains(&inodes.len()) => {
            bad("namespaces", inodes.len().to_string(), format!("1 to {MAX_NAMESPACES} of them"))
        }
        Scope::Cgroup { level, .. } if *level > programs::MAX_LEVEL => {
            bad("cgroup level", level.to_string(), format!("at most {}", programs::MAX_LEVEL))
        }
        _ => Ok(()),
    }
}

fn read(record: &RingRecord<'_>) -> FlowEvent {
    const NS_PER_US: u64 = 1_000;
    let flow = record.u64(event::FLOW);
    let start_us = record.u64(event::START_NS) / NS_PER_US;
    if record.u32(event::KIND) == event::BURST {
        return FlowEvent::Burst(BurstEnd { flow, start_us, bytes: record.u64(event::BYTES) });
    }
    let mut comm = [0; COMM_BYTES];
    for (at, chunk) in comm.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&record.u64(event::COMM + 8 * at as u32).to_ne_bytes());
    }
    let v6 = record.u32(event::FAMILY) == AF_INET6;
    let end =
        |address: u32, port: u32| SocketAddr::new(address_at(record, address, v6), record.u32(port) as u16);
    let connected = record.u32(event::FLAGS) & flow::CONNECTED as u32 != 0;
    FlowEvent::End(FlowEnd {
        flow,
        start_us,
        end_us: record.u64(event::END_NS) / NS_PER_US,
        opener: if connected { Opener::Local } else { Opener::Remote },
        local: end(event::LOCAL, event::LOCAL_PORT),
        remote: end(event::REMOTE, event::REMOTE_PORT),
        comm,
        bytes_sent: record.u64(event::BYTES),
        bytes_received: record.u64(event::RECEIVED),
    })
}

fn address_at(record: &RingRecord<'_>, at: u32, v6: bool) -> IpAddr {
    if !v6 {
        return Ipv4Addr::from(record.u32(at).to_ne_bytes()).into();
    }
    let mut bytes = [0; 16];
    for (n, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&record.u64(at + 8 * n as u32).to_ne_bytes());
    }
    // A socket of both families holds IPv4 peers as mapped addresses.
    IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
}

//! The maps that kernel programs and agent share, and their memory as this process sees it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use ccplane_contract::Capabilities;
use ccplane_program::ir::Hook;

use crate::error::{EbpfError, os};
use crate::kernel::Maps;
use crate::layout::{LAYOUT_VERSION, MAX_PROGRAMS, RING_BYTES, ctl, policy, rec};
use crate::pins;
use crate::slots::SlotMemory;
use crate::table::Table;
use ccplane_bpf::{self as sys, MapType, SharedMap};

/// Open descriptors of all maps.
pub struct OpenMaps {
    pub ctl: OwnedFd,
    pub flows: OwnedFd,
    pub free: OwnedFd,
    pub ring: OwnedFd,
    pub slots: OwnedFd,
    pub policy: OwnedFd,
    /// Size of a flow's record, bytes.
    pub record_bytes: u32,
}

impl OpenMaps {
    /// Creates maps in which every record is free; control page and records have these sizes in bytes.
    pub fn create(max_flows: u32, [ctl_bytes, record_bytes]: [u32; 2]) -> Result<OpenMaps, EbpfError> {
        let map = |kind, name: &str, key, value, entries, flags| {
            os(format!("create map {name}"), sys::map_create(kind, name, key, value, entries, flags))
        };
        let maps = OpenMaps {
            ctl: map(MapType::Array, "ccplane_ctl", 4, ctl_bytes, 1, sys::F_MMAPABLE)?,
            flows: map(MapType::Array, "ccplane_flows", 4, record_bytes, max_flows, sys::F_MMAPABLE)?,
            free: map(MapType::Queue, "ccplane_free", 0, 4, max_flows, 0)?,
            ring: map(MapType::Ringbuf, "ccplane_ring", 0, 0, RING_BYTES as u32, 0)?,
            slots: map(MapType::ProgArray, "ccplane_slots", 4, 4, MAX_PROGRAMS as u32, 0)?,
            policy: map(MapType::Array, "ccplane_policy", 4, policy::BYTES, 1, sys::F_MMAPABLE)?,
            record_bytes,
        };
        for index in 0..max_flows {
            os("fill the list of free records", sys::map_update(&maps.free, &[], &index.to_ne_bytes()))?;
        }
        Ok(maps)
    }

    /// The maps, each with the name of its pin.
    pub fn named(&self) -> [(&'static str, &OwnedFd); 6] {
        [
            ("ctl", &self.ctl),
            ("flows", &self.flows),
            ("free", &self.free),
            ("ring", &self.ring),
            ("slots", &self.slots),
            ("policy", &self.policy),
        ]
    }

    /// Opens the maps pinned in `dir`.
    pub fn open(dir: &Path) -> Result<OpenMaps, EbpfError> {
        // Another version may have other maps.
        let ctl = pins::open(dir, "ctl")?;
        let page = os("map the control page", SharedMap::new(&ctl, 0, page_bytes(), false))?;
        let found = page.u64(ctl::VERSION as usize).load(Acquire);
        if found != LAYOUT_VERSION {
            return Err(EbpfError::OtherVersion { dir: dir.into(), found, ours: LAYOUT_VERSION });
        }
        Ok(OpenMaps {
            ctl,
            flows: pins::open(dir, "flows")?,
            free: pins::open(dir, "free")?,
            ring: pins::open(dir, "ring")?,
            slots: pins::open(dir, "slots")?,
            policy: pins::open(dir, "policy")?,
            record_bytes: rec::BYTES,
        })
    }

    /// The policy slots' memory.
    pub fn slot_memory(&self) -> Result<SlotMemory, EbpfError> {
        let bytes = (policy::BYTES as usize).next_multiple_of(page_bytes());
        Ok(SlotMemory::new(os("map the policy slots", SharedMap::new(&self.policy, 0, bytes, true))?))
    }

    /// The maps' descriptors, for programs.
    pub fn fds(&self) -> Maps {
        Maps {
            ctl: self.ctl.as_raw_fd(),
            flows: self.flows.as_raw_fd(),
            free: self.free.as_raw_fd(),
            ring: self.ring.as_raw_fd(),
            slots: self.slots.as_raw_fd(),
            policy: self.policy.as_raw_fd(),
        }
    }
}

/// Size of a page of memory, bytes.
pub fn page_bytes() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |v| v as usize)
}

/// The shared memory of an attached datapath.
pub struct Memory {
    pub ctl: SharedMap,
    pub table: Table,
}

impl Memory {
    /// Maps the control page and the flow table.
    pub fn map(maps: &OpenMaps, writable: bool) -> Result<Memory, EbpfError> {
        let page = page_bytes();
        let ctl = os("map the control page", SharedMap::new(&maps.ctl, 0, page, writable))?;
        let max_flows = ctl.u32(ctl::MAX_FLOWS as usize).load(Relaxed);
        let bytes = (max_flows as usize * maps.record_bytes as usize).next_multiple_of(page).max(page);
        let flows = os("map the flow table", SharedMap::new(&maps.flows, 0, bytes, writable))?;
        Ok(Memory { ctl, table: Table::new(flows, max_flows, maps.record_bytes) })
    }

    /// Returns the abilities of a datapath of this kind that runs programs of these hooks.
    pub fn capabilities(&self, kind: &'static str, hooks: &'static [Hook]) -> Capabilities {
        Capabilities {
            kind,
            max_programs: MAX_PROGRAMS,
            max_flows: self.table.records() as usize,
            policy: true,
            full_language: true,
            hooks,
        }
    }

    /// Takes the number of the next program that is loaded.
    pub fn next_instance(&self) -> u32 {
        self.ctl.u64(ctl::NEXT_INSTANCE as usize).fetch_add(1, Relaxed) as u32 + 1
    }

    /// Returns the time for which the agent has been silent.
    pub fn silence(&self) -> Duration {
        let last = self.ctl.u64(ctl::HEARTBEAT_US as usize).load(Relaxed);
        Duration::from_micros(ccplane_files::monotonic_us().saturating_sub(last))
    }

    /// Whether the silence exceeds the heartbeat timeout.
    pub fn is_silent(&self) -> bool {
        self.silence() > Duration::from_micros(self.ctl.u64(ctl::TIMEOUT_US as usize).load(Relaxed))
    }
}

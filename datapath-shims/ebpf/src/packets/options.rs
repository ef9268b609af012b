//! Options for attaching the packets' datapath.

use std::path::PathBuf;
use std::time::Duration;

use ccplane_contract::{MAX_DSCP, PRIORITIES};
use ccplane_program::ir::MAX_PATHS;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::error::EbpfError;
use crate::options::{MAX_FLOWS, MAX_NAME, MIN_TIMEOUT, is_name};

/// Most devices of one datapath.
pub const MAX_DEVICES: usize = 16;
/// The places where a machine may have its tree of control groups (v2).
const CGROUP_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The look of a priority on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Marking {
    /// The socket buffer's priority, by which queueing disciplines choose a band or class.
    pub skb_priority: u32,
    /// Bits of the mark.
    pub mark: u32,
    /// The code point in the packet's header.
    pub dscp: u32,
}

/// The route of a path.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PathRoute {
    /// Bits of the mark, for `ip rule` and filters.
    pub mark: u32,
    /// The device that packets of the path leave by; `None` leaves that to routes.
    pub device: Option<String>,
}

/// Options for attaching the packets' datapath.
#[derive(Clone, Debug)]
pub struct PacketsOptions {
    /// Folder of the lock file.
    pub run_dir: PathBuf,
    /// The datapath's name, which one agent at a time has.
    pub name: String,
    /// The devices whose packets are decided about, of the caller's network namespace.
    pub devices: Vec<String>,
    /// The control group (v2) whose sockets run programs of the start and tell of round trips; `None` for no such programs.
    pub cgroup: Option<PathBuf>,
    /// The paths, at most [`MAX_PATHS`]; none where there is but one.
    pub paths: Vec<PathRoute>,
    /// Whether a path shows in IPv6 flow labels, by which routers choose among equal paths.
    pub flow_label: bool,
    /// The marking that stands for each priority.
    pub markings: [Marking; PRIORITIES],
    /// Whether packets carry the code points of [`PacketsOptions::markings`].
    pub writes_dscp: bool,
    /// The bits of the mark that are the datapath's to write.
    pub mark_mask: u32,
    /// A pause longer than this begins a flowlet, whose first packet is a decision.
    pub flowlet_gap: Duration,
    /// Records in the flow table, at most [`MAX_FLOWS`].
    pub max_flows: u32,
    /// Silence of the agent after which packets are left as they are.
    pub heartbeat_timeout: Duration,
    /// Least time between two samples of a flow's statistics.
    pub sample_interval: Duration,
    /// Whether classifiers are attached as on kernels without tcx.
    pub without_tcx: bool,
}

impl Default for PacketsOptions {
    fn default() -> Self {
        PacketsOptions {
            run_dir: PathBuf::from("/run/ccplane"),
            name: "ccplane_packets".into(),
            devices: Vec::new(),
            cgroup: None,
            paths: Vec::new(),
            flow_label: false,
            markings: std::array::from_fn(|n| Marking { skb_priority: n as u32, mark: 0, dscp: 0 }),
            writes_dscp: false,
            mark_mask: 0,
            flowlet_gap: Duration::from_micros(500),
            max_flows: 4096,
            heartbeat_timeout: Duration::from_secs(1),
            sample_interval: Duration::from_millis(10),
            without_tcx: false,
        }
    }
}

impl PacketsOptions {
    /// Checks every option against its bounds.
    pub(super) fn check(&self) -> Result<(), EbpfError> {
        let bad = |field, value: String, limit: String| Err(EbpfError::BadOption { field, value, limit });
        if !is_name(&self.name) {
            return bad("name", self.name.clone(), format!("1 to {MAX_NAME} letters, digits or _"));
        }
        if self.devices.is_empty() || self.devices.len() > MAX_DEVICES {
            return bad("devices", self.devices.len().to_string(), format!("1 to {MAX_DEVICES} devices"));
        }
        if self.paths.len() > MAX_PATHS {
            return bad("paths", self.paths.len().to_string(), format!("at most {MAX_PATHS} paths"));
        }
        let marks = self.markings.iter().map(|m| m.mark).chain(self.paths.iter().map(|p| p.mark));
        if let Some(mark) = marks.into_iter().find(|mark| mark & !self.mark_mask != 0) {
            return bad("mark", format!("{mark:#x}"), format!("bits of mark_mask, {:#x}", self.mark_mask));
        }
        if let Some(marking) = self.markings.iter().find(|m| m.dscp > MAX_DSCP.into()) {
            return bad("dscp", marking.dscp.to_string(), format!("0 to {MAX_DSCP}"));
        }
        if self.max_flows == 0 || self.max_flows > MAX_FLOWS {
            return bad("max_flows", self.max_flows.to_string(), format!("1 to {MAX_FLOWS}"));
        }
        if self.heartbeat_timeout < MIN_TIMEOUT {
            let limit = format!("at least {MIN_TIMEOUT:?}");
            return bad("heartbeat_timeout", format!("{:?}", self.heartbeat_timeout), limit);
        }
        Ok(())
    }
}

/// The root of this machine's control groups (v2), if it has them mounted where it is usual.
pub fn cgroup_root() -> Option<PathBuf> {
    let is_v2 = |path: &&str| statfs(*path).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
    CGROUP_ROOTS.into_iter().find(is_v2).map(PathBuf::from)
}

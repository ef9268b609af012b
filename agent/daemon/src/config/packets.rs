//! Section `[datapath.packets]`: decisions about packets of TCP flows on their way out.

use super::{Bounded, Rule, Switch};
use ccplane_contract::{CodePoints, MAX_DSCP, PRIORITIES};
use ccplane_ebpf::packets::{MAX_DEVICES, Marking, PacketsOptions, PathRoute, cgroup_root};
use ccplane_files::document::Problem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The number of paths that programs can choose among.
const MAX_PATHS: usize = 8;

/// The section. The keys are documented in [`DEFAULT_TOML`](super::DEFAULT_TOML).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Packets {
    pub mode: Switch,
    pub name: String,
    pub devices: Vec<String>,
    pub algorithm: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    pub flowlet_gap_us: Bounded<1, 10_000_000>,
    pub max_flows: Bounded<1, { ccplane_ebpf::MAX_FLOWS as u64 }>,
    pub sample_interval_ms: Bounded<1, 10_000>,
    pub skb_priority: [u32; PRIORITIES],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<[u8; PRIORITIES]>,
    pub mark_mask: u32,
    pub marks: [u32; PRIORITIES],
    pub paths: Vec<PathConfig>,
    pub flow_label: bool,
}

/// One path of `paths`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PathConfig {
    pub mark: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Default for Packets {
    fn default() -> Packets {
        Packets {
            mode: Switch::Auto,
            name: "ccplane_packets".to_owned(),
            devices: Vec::new(),
            algorithm: ccplane_core::NATIVE.to_owned(),
            parameters: BTreeMap::new(),
            cgroup: None,
            flowlet_gap_us: const { Bounded::new(500) },
            max_flows: const { Bounded::new(4096) },
            sample_interval_ms: const { Bounded::new(10) },
            skb_priority: [0, 1, 2, 3, 4, 5, 6, 7],
            dscp: None,
            mark_mask: 0,
            marks: [0; PRIORITIES],
            paths: Vec::new(),
            flow_label: false,
        }
    }
}

impl Packets {
    /// Whether the agent is to decide about packets.
    pub fn is_wanted(&self) -> bool {
        self.mode == Switch::On || self.mode == Switch::Auto && !self.devices.is_empty()
    }

    /// Whether other processes ask the agent about their packets: an algorithm for these is named, here or by a rule, and priorities
    /// have code points, which is all that they can show.
    pub fn is_asked_of_peers(&self, rules: &[Rule]) -> bool {
        let on_packets = ccplane_algs::on_packets();
        let is_for_packets = |rule: &Rule| on_packets.iter().any(|of| of.name() == rule.algorithm);
        let is_named = self.algorithm != ccplane_core::NATIVE || rules.iter().any(is_for_packets);
        self.dscp.is_some() && is_named
    }

    /// Whether paths lead flows that start, and none that runs: each is a mark alone, which routes go by once.
    pub fn leads_starts_alone(&self) -> bool {
        let are_marks = !self.paths.is_empty() && self.paths.iter().all(|path| path.device.is_none());
        are_marks && !self.flow_label && self.cgroup.is_some()
    }

    /// Checks the conditions that involve several values.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let wrong = |field: &str, what: String| Err(Problem::new(format!("datapath.packets.{field}"), what));
        if self.mode == Switch::On && self.devices.is_empty() {
            return wrong("devices", "mode = \"on\" needs at least one device".to_owned());
        }
        if !ccplane_ebpf::is_name(&self.name) {
            let limit = ccplane_ebpf::MAX_NAME;
            return wrong("name", format!("`{}` is no name: 1 to {limit} letters, digits or _", self.name));
        }
        if self.devices.len() > MAX_DEVICES {
            return wrong(
                "devices",
                format!("{} devices, at most {MAX_DEVICES} are allowed", self.devices.len()),
            );
        }
        if self.paths.len() > MAX_PATHS {
            return wrong("paths", format!("{} paths, at most {MAX_PATHS} are allowed", self.paths.len()));
        }
        let beyond = |mark: &u32| mark & !self.mark_mask != 0;
        if let Some(mark) = self.marks.iter().find(|mark| beyond(mark)) {
            return wrong("marks", format!("{mark} has bits beyond mark_mask = {}", self.mark_mask));
        }
        if let Some(n) = self.paths.iter().position(|path| beyond(&path.mark)) {
            return wrong(
                &format!("paths[{n}].mark"),
                format!("it has bits beyond mark_mask = {}", self.mark_mask),
            );
        }
        if let Some(dscp) = self.dscp.iter().flatten().find(|dscp| **dscp > MAX_DSCP) {
            return wrong("dscp", format!("{dscp} is no code point: 0 to {MAX_DSCP}"));
        }
        let is_below = |path: &PathBuf| below(path).components().all(|c| matches!(c, Component::Normal(_)));
        if let Some(path) = self.cgroup.as_ref().filter(|path| !is_below(path)) {
            return wrong("cgroup", format!("`{}` is not a path below the cgroup root", path.display()));
        }
        Ok(())
    }

    /// The code points of priorities, for datapaths that write them in any case.
    pub fn code_points(&self) -> CodePoints {
        self.dscp.and_then(CodePoints::new).unwrap_or_default()
    }

    /// Returns how the datapath is attached.
    pub fn options(&self, run_dir: &Path, heartbeat_timeout: Duration) -> PacketsOptions {
        let marking = |n: usize| Marking {
            skb_priority: self.skb_priority[n],
            mark: self.marks[n],
            dscp: self.dscp.map_or(0, |dscp| dscp[n].into()),
        };
        let route = |path: &PathConfig| PathRoute { mark: path.mark, device: path.device.clone() };
        PacketsOptions {
            run_dir: run_dir.to_owned(),
            name: self.name.clone(),
            devices: self.devices.clone(),
            cgroup: self.cgroup.as_deref().and_then(|path| Some(cgroup_root()?.join(below(path)))),
            paths: self.paths.iter().map(route).collect(),
            flow_label: self.flow_label,
            markings: std::array::from_fn(marking),
            writes_dscp: self.dscp.is_some(),
            mark_mask: self.mark_mask,
            flowlet_gap: self.flowlet_gap_us.micros(),
            max_flows: u32::try_from(self.max_flows.get()).unwrap_or(ccplane_ebpf::MAX_FLOWS),
            heartbeat_timeout,
            sample_interval: self.sample_interval_ms.millis(),
            ..PacketsOptions::default()
        }
    }
}

fn below(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

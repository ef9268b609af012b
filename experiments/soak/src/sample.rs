//! Samples of processes, through /proc, and of the files that they leave.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A process at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ProcessSample {
    /// The number of processes of its kind that ran before it.
    pub life: u64,
    /// Seconds since it started.
    pub age_s: u64,
    pub rss_kib: u64,
    pub fds: u64,
    /// Open descriptors of BPF maps, programs and links.
    pub bpf_fds: u64,
    pub threads: u64,
}

/// All quantities at a moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start.
    pub at_s: f64,
    /// The agent, while it runs.
    pub agent: Option<ProcessSample>,
    pub server: Option<ProcessSample>,
    /// The process of the soak itself, which has the flows' sockets.
    pub soak: ProcessSample,
    /// Objects that the agent has pinned in BPF file systems.
    pub pins: u64,
    /// Network namespaces that any of the processes holds, or that are named after this one.
    pub namespaces: u64,
    /// The run directory without logs, KiB.
    pub run_dir_kib: u64,
    /// The size of all logs, KiB.
    pub logs_kib: u64,
    /// Flows that are under way.
    pub flows: u64,
}

impl ProcessSample {
    /// Samples a process and adds the network namespaces that it holds; `None` if it has gone.
    pub(crate) fn take(pid: u32, namespaces: &mut BTreeSet<String>) -> Option<ProcessSample> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let mut process = ProcessSample {
            rss_kib: field("VmRSS:")?,
            threads: field("Threads:")?,
            ..ProcessSample::default()
        };
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy();
            process.fds += 1;
            process.bpf_fds += u64::from(target.starts_with("anon_inode:bpf"));
            if target.starts_with("net:[") {
                namespaces.insert(target.into_owned());
            }
        }
        Some(process)
    }
}

/// The number and bytes of files below a folder; those of logs apart.
#[derive(Clone, Copy, Default)]
pub(crate) struct Files {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) log_bytes: u64,
}

/// Sums the files below a folder; files that vanish meanwhile do not count.
pub(crate) fn files(folder: &Path, is_log: &dyn Fn(&Path) -> bool) -> Files {
    let mut found = Files::default();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        if metadata.is_dir() {
            let below = files(&entry.path(), is_log);
            found.count += below.count;
            found.bytes += below.bytes;
            found.log_bytes += below.log_bytes;
            continue;
        }
        found.count += 1;
        if is_log(&entry.path()) {
            found.log_bytes += metadata.len();
        } else {
            found.bytes += metadata.len();
        }
    }
    found
}

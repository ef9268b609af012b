//! Operations that need no attached agent: reading flows while their agent may be dead or hung, removing the
//! remains of a dead one, and checking what this machine can run.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ccplane_contract::FlowStats;

use crate::btf::Btf;
use crate::error::EbpfError;
use crate::kernel::Kernel;
use crate::layout::ctl;
use crate::lock::Lock;
use crate::maps::{Memory, OpenMaps};
use crate::movement;
use crate::options::Options;
use crate::pins;
use ccplane_bpf::{self as sys, MapType};

/// An attached datapath, as its shared memory shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// Process id of the agent that attached or took over last.
    pub agent_pid: u32,
    /// The time for which that agent has been silent.
    pub silence: Duration,
    /// Whether the silence exceeds the heartbeat timeout, so that flows run the native algorithm.
    pub silent: bool,
    /// Flows that found the table full and run the native algorithm.
    pub table_full: u64,
    pub flows: Vec<FlowStats>,
}

/// Reads the flows from the pinned maps; needs no agent.
///
/// # Errors
/// [`EbpfError::NotAttached`], [`EbpfError::OtherVersion`], or what the operating system says.
pub fn read_flows(options: &Options) -> Result<View, EbpfError> {
    if !pins::exists(&options.run_dir, &options.name) {
        return Err(EbpfError::NotAttached(pins::directory(&options.run_dir, &options.name)));
    }
    let maps = OpenMaps::open(&pins::directory(&options.run_dir, &options.name))?;
    let memory = Memory::map(&maps, false)?;
    let silent = memory.is_silent();
    Ok(View {
        agent_pid: memory.ctl.u32(ctl::AGENT_PID as usize).load(Relaxed),
        silence: memory.silence(),
        silent,
        table_full: memory.ctl.u64(ctl::TABLE_FULL as usize).load(Relaxed),
        flows: memory.table.all_stats(silent),
    })
}

/// The result of [`clean`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanReport {
    /// Flows that were handed to another congestion control.
    pub flows_moved: u64,
    /// Files, directories and mounts that were removed.
    pub removed: Vec<PathBuf>,
}

/// Removes a datapath whose agent is dead, of whatever version: hands its flows to [`Options::handback`] and removes
/// the pins.
///
/// # Errors
/// [`EbpfError::BadOption`]; [`EbpfError::Busy`] while an agent of that name or run directory lives;
/// [`EbpfError::Os`] if a pin or the lock cannot be had.
pub fn clean(options: &Options) -> Result<CleanReport, EbpfError> {
    options.check()?;
    let _lock = Lock::take(options)?;
    let mut report = CleanReport::default();
    if pins::exists(&options.run_dir, &options.name) {
        // Flows that cannot be moved must not keep the pins from being removed.
        let moved =
            || -> Result<u64, EbpfError> { movement::hand_back(&Kernel::new(&Btf::kernel()?)?, options) };
        report.flows_moved = moved().unwrap_or(0);
    }
    let names = pins::names(&options.run_dir, &options.name);
    report.removed = pins::remove(&options.run_dir, &options.name)?;
    movement::wait_all_unregistered(&names, &options.name)?;
    Ok(report)
}

/// Removes every datapath that is pinned in a run directory's own BPF file system, as [`clean`] does.
///
/// # Errors
/// The first error of [`clean`]; the datapaths behind it stay.
pub fn clean_all(run_dir: &Path) -> Result<(), EbpfError> {
    pins::own(run_dir).into_iter().try_for_each(|name| {
        let options = Options { run_dir: run_dir.into(), name, ..Options::default() };
        clean(&options).map(drop)
    })
}

/// One requirement of the datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The requirement.
    pub what: &'static str,
    /// Whether the requirement is met.
    pub ok: bool,
    /// The observed state.
    pub found: String,
    /// The way to meet the requirement if it is not met.
    pub remedy: &'static str,
}

/// Returns the first requirement that this machine does not meet, and the state observed.
pub fn missing() -> Option<String> {
    let missing = checks().into_iter().find(|check| !check.ok)?;
    Some(format!("{}: {}", missing.what, missing.found))
}

/// Checks requirement by requirement whether this machine can run the datapath.
pub fn checks() -> Vec<Check> {
    let check = |what, result: Result<String, String>, remedy| match result {
        Ok(found) => Check { what, ok: true, found, remedy: "" },
        Err(found) => Check { what, ok: false, found, remedy },
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let btf = Btf::kernel().map_err(|e| e.to_string());
    let has_btf = btf.as_ref().map(|_| "/sys/kernel/btf/vmlinux".to_string()).map_err(Clone::clone);
    let fields = btf.and_then(|b| Kernel::new(&b).map_err(|e| e.to_string()));
    let map = sys::map_create(MapType::Array, "ccplane_probe", 4, 8, 1, 0);
    let jit = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").unwrap_or_else(|_| "1".into());
    vec![
        check("kernel type information (BTF)", has_btf, "use a kernel built with CONFIG_DEBUG_INFO_BTF=y"),
        check(
            "TCP struct_ops and the fields that programs use",
            fields.map(|_| format!("found in Linux {}", release.trim())),
            "use Linux 6.4 or later with CONFIG_BPF_JIT=y and CONFIG_BPF_SYSCALL=y",
        ),
        check(
            "permission to load BPF (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)",
            map.map(|_| "a map could be created".into()).map_err(|e| e.to_string()),
            "run as root, or grant the capabilities",
        ),
        check(
            "BPF JIT",
            if jit.trim() == "0" { Err("net.core.bpf_jit_enable is 0".into()) } else { Ok("on".into()) },
            "sysctl net.core.bpf_jit_enable=1",
        ),
    ]
}

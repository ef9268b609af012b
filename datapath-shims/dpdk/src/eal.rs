//! DPDK's environment abstraction layer (EAL), which a process starts once.

use std::ffi::CString;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::error::Error;
use crate::ffi;

/// The kernel's folder of hugepage counts.
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
/// Memory for packet buffers by default, MiB: enough for two queues.
const DEFAULT_MEMORY_MIB: u32 = 128;

/// The kind of pages that packet buffers live in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages if enough are free, else plain pages.
    #[default]
    Auto,
    /// Hugepages, which NICs need.
    Huge,
    /// Plain pages, which suffice for virtual ports.
    Plain,
}

/// Options of DPDK's start.
#[derive(Debug, Clone)]
pub struct EalOptions {
    /// The kind of pages that packet buffers live in.
    pub memory: Memory,
    /// Memory for packet buffers, MiB.
    pub memory_mib: u32,
    /// The processor that EAL's main thread stays on, which should not poll a port; `None` for one that is allowed.
    pub core: Option<usize>,
    /// Prefix of the names of EAL's run-time files.
    pub file_prefix: String,
    /// PCI addresses of the NICs that it may use, such as `0000:01:00.0`; if empty, it does not scan the bus.
    pub pci: Vec<String>,
}

impl Default for EalOptions {
    fn default() -> EalOptions {
        EalOptions {
            memory: Memory::Auto,
            memory_mib: DEFAULT_MEMORY_MIB,
            core: None,
            file_prefix: "ccplane".to_owned(),
            pci: Vec::new(),
        }
    }
}

/// Proof that DPDK runs in this process. It runs until the process ends.
#[derive(Debug, Clone)]
pub struct Eal(());

impl Eal {
    /// Starts DPDK on a thread of its own, so that the caller's affinity stays as it is.
    ///
    /// # Errors
    /// [`Error::AlreadyStarted`], [`Error::Hugepages`], after which it may be tried again; [`Error::Start`] with DPDK's own
    /// words, after which DPDK cannot be started in this process any more.
    pub fn start(options: &EalOptions) -> Result<Eal, Error> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        let args = arguments(options, free_hugepages_mib())?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::AlreadyStarted);
        }
        let started = thread::Builder::new()
            .name("dpdk-main".to_owned())
            .spawn(move || ffi::start(args))
            .map_err(Error::Thread)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        started.map(|()| Eal(())).map_err(|errno| Error::Start { errno, said: last_messages() })
    }
}

/// Builds EAL's command line. Only a name with NUL could make it something else; other names are checked elsewhere.
fn arguments(options: &EalOptions, free_mib: u32) -> Result<Vec<CString>, Error> {
    let wanted_mib = options.memory_mib;
    let huge = match options.memory {
        Memory::Auto => free_mib >= wanted_mib,
        Memory::Huge if free_mib < wanted_mib => {
            return Err(Error::Hugepages { wanted_mib, free_mib, pages: wanted_mib.div_ceil(2) });
        }
        Memory::Huge => true,
        Memory::Plain => false,
    };
    let core = options.core.unwrap_or_else(first_core);
    let mut args = vec![
        "ccplane".to_owned(),
        format!("--lcores=0@{core}"),
        format!("--file-prefix={}", options.file_prefix),
        "--no-telemetry".to_owned(),
        "--log-level=*:error".to_owned(),
        format!("-m{wanted_mib}"),
    ];
    let memory: &[&str] = if huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] };
    args.extend(memory.iter().map(|arg| (*arg).to_owned()));
    if options.pci.is_empty() {
        args.push("--no-pci".to_owned());
    }
    args.extend(options.pci.iter().map(|address| format!("--allow={address}")));
    Ok(args.into_iter().filter_map(|arg| CString::new(arg).ok()).collect())
}

/// The first processor that this process may use.
fn first_core() -> usize {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).find(|core| allowed.is_set(*core) == Ok(true)).unwrap_or(0)
}

/// Free hugepages of all sizes, MiB.
fn free_hugepages_mib() -> u32 {
    let sizes = fs::read_dir(HUGEPAGES).into_iter().flatten().flatten();
    let kib = sizes.filter_map(|size| {
        let name = size.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 = fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(kib.saturating_mul(free))
    });
    u32::try_from(kib.sum::<u64>() / 1024).unwrap_or(u32::MAX)
}

/// The messages that DPDK logged last, on one line.
pub(crate) fn last_messages() -> String {
    let text = ffi::take_log();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { "it gave no reason".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(options: &EalOptions, free_mib: u32) -> String {
        let args = arguments(options, free_mib).unwrap();
        args.iter().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_command_line_follows_the_options() {
        let options = EalOptions { core: Some(1), ..EalOptions::default() };
        let common = "ccplane --lcores=0@1 --file-prefix=ccplane --no-telemetry --log-level=*:error -m128";
        assert_eq!(line(&options, 127), format!("{common} --no-huge --no-shconf --no-pci"));
        assert_eq!(line(&options, 128), format!("{common} --in-memory --no-pci"));
        let plain = EalOptions { memory: Memory::Plain, ..options.clone() };
        assert_eq!(line(&plain, 4096), format!("{common} --no-huge --no-shconf --no-pci"));
        let pci = EalOptions { memory: Memory::Huge, pci: vec!["0000:01:00.0".into()], ..options };
        assert_eq!(line(&pci, 4096), format!("{common} --in-memory --allow=0000:01:00.0"));
    }

    #[test]
    fn too_few_hugepages_are_told_with_what_to_do() {
        let options = EalOptions { memory: Memory::Huge, ..EalOptions::default() };
        let refused = arguments(&options, 6).unwrap_err();
        assert!(matches!(refused, Error::Hugepages { wanted_mib: 128, free_mib: 6, pages: 64 }));
        let text = refused.to_string();
        assert!(
            text.contains("128 MiB") && text.contains("6 MiB are free") && text.contains("echo 64 > /sys"),
            "{text}"
        );
    }
}

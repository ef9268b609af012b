//! Moves running flows between congestion controls, in every network namespace that can be reached.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use crate::datapath::{Memory, OpenMaps, load};
use crate::error::{EbpfError, os};
use crate::layout::ctl;
use crate::sys::{self, AttachTo, ProgType};
use crate::tcp::{self, Kernel};

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// How long the kernel may take to let a congestion control go.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The congestion control that every kernel has.
const ALWAYS_THERE: &str = "reno";

/// `wanted`, if this kernel has it; else Reno.
pub fn available(wanted: &str) -> &str {
    let list = fs::read_to_string(AVAILABLE).unwrap_or_default();
    if list.split_whitespace().any(|name| name == wanted) { wanted } else { ALWAYS_THERE }
}

/// Waits until no congestion control of this name is registered: the kernel lets a link go some time after
/// its last pin and descriptor.
///
/// # Errors
/// It is still there after [`GONE_WITHIN`].
pub fn wait_unregistered(name: &str) -> Result<(), EbpfError> {
    let start = Instant::now();
    while fs::read_to_string(AVAILABLE).unwrap_or_default().split_whitespace().any(|n| n == name) {
        if start.elapsed() > GONE_WITHIN {
            let still = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
            return os(format!("unregister the congestion control `{name}`"), Err(still));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Moves the flows of `from` to `to`, in the namespace at `netns` or in all. Returns how many.
pub fn move_flows(
    kernel: &Kernel,
    maps: &OpenMaps,
    memory: &Memory,
    from: &str,
    to: &str,
    netns: Option<&Path>,
) -> Result<u64, EbpfError> {
    put_name(memory, ctl::MOVE_FROM, from);
    put_name(memory, ctl::MOVE_TO, to);
    memory.ctl.u64(ctl::MOVED as usize).store(0, Relaxed);
    let insns = tcp::mover(kernel, maps.fds())?;
    let attach = AttachTo { btf_id: kernel.iter_func(), expected: sys::TRACE_ITER };
    let prog = load(ProgType::Tracing, "ccplane_move", &insns, attach)?;
    let link = os("link the flow iterator", sys::link_iter(&prog))?;
    match netns {
        Some(path) => walk(&link, path)?,
        None => {
            for path in namespaces() {
                // One that went away since, or that we may not enter, has no flow that we could move.
                let _ = walk(&link, &path);
            }
        }
    }
    Ok(memory.ctl.u64(ctl::MOVED as usize).load(Relaxed))
}

fn put_name(memory: &Memory, at: u32, name: &str) {
    let mut bytes = [0u8; 16];
    let n = name.len().min(15);
    bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
    for (word, chunk) in bytes.chunks_exact(4).enumerate() {
        let v = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        memory.ctl.u32(at as usize + 4 * word).store(v, Relaxed);
    }
}

/// One path for each network namespace that a process or a name holds.
fn namespaces() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|e| e.path().join("ns/net"));
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|e| e.path());
    let mut seen = HashSet::new();
    named
        .chain(processes)
        .filter(|path| fs::metadata(path).is_ok_and(|m| seen.insert((m.dev(), m.ino()))))
        .collect()
}

/// Runs the iterator over one namespace. Its instance belongs to the namespace of the thread that makes it.
fn walk(link: &OwnedFd, netns: &Path) -> Result<(), EbpfError> {
    let what = || format!("walk the flows of {}", netns.display());
    let run = || -> std::io::Result<()> {
        setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
        let mut iter = File::from(sys::iter_create(link)?);
        let mut sink = [0u8; 4096];
        while iter.read(&mut sink)? != 0 {}
        Ok(())
    };
    let joined = std::thread::scope(|s| s.spawn(run).join());
    os(what(), joined.unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked"))))
}

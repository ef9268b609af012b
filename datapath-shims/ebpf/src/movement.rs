//! Moves running flows between congestion controls, in every network namespace that can be reached.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ccplane_files::Bound;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::attach::load;
use crate::error::{EbpfError, os};
use crate::kernel::Kernel;
use crate::maps::page_bytes;
use crate::options::Options;
use crate::pins;
use ccplane_bpf::{self as sys, AttachTo, MapType, ProgType, SharedMap};
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, R, Size};

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// The longest wait for the kernel to release a congestion control.
const GONE_WITHIN: Duration = Duration::from_secs(20);
/// Stack of the thread that walks a namespace's flows, bytes: little, since address space may be short when an agent
/// stops.
const WALK_STACK_BYTES: usize = 128 << 10;
/// Largest list of congestion controls that is read.
const LIST: Bound = Bound { what: "a list of congestion controls", bytes: 64 << 10 };
/// The congestion control that every kernel has.
const ALWAYS_THERE: &str = "reno";

/// Offsets in the iterator's map.
///
/// It holds two names of congestion controls (16 bytes each): that of the flows that move, and the one that they
/// get. A u64 count of moved flows follows.
const FROM: u32 = 0;
const TO: u32 = 16;
const MOVED: u32 = 32;
const BYTES: u32 = 40;

/// The congestion control `wanted` if this kernel has it; else Reno.
pub fn available(wanted: &str) -> &str {
    if is_registered(wanted).unwrap_or(false) { wanted } else { ALWAYS_THERE }
}

/// Whether this kernel has a congestion control of this name.
pub fn is_registered(name: &str) -> Result<bool, EbpfError> {
    let list = ccplane_files::read_text(Path::new(AVAILABLE), LIST);
    let list = list.map_err(|error| std::io::Error::other(error.to_string()));
    Ok(os("list congestion controls", list)?.split_whitespace().any(|n| n == name))
}

/// Waits until no congestion control of these names is registered: the kernel releases a link some time after its last
/// pin and descriptor.
///
/// # Errors
/// One is still there after [`GONE_WITHIN`], or the kernel's list cannot be read.
pub fn wait_all_unregistered(further: &[String], own: &str) -> Result<(), EbpfError> {
    further.iter().map(String::as_str).chain([own]).try_for_each(wait_unregistered)
}

fn wait_unregistered(name: &str) -> Result<(), EbpfError> {
    let start = Instant::now();
    while is_registered(name)? {
        if start.elapsed() > GONE_WITHIN {
            let still = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
            return os(format!("unregister the congestion control `{name}`"), Err(still));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Hands the flows of a datapath, under all of its names, to [`Options::handback`]. Returns how many.
pub fn hand_back(kernel: &Kernel, options: &Options) -> Result<u64, EbpfError> {
    let to = available(&options.handback);
    let mut moved = move_flows(kernel, &options.name, to, None)?;
    for name in pins::names(&options.run_dir, &options.name) {
        moved += move_flows(kernel, &name, to, None)?;
    }
    Ok(moved)
}

/// Moves flows that a datapath left to the one that has just been attached under its name. `before` are its further names.
///
/// A socket keeps a congestion control that is registered no more: that of another version, or one whose pins have gone
/// with their file system. Under it nobody steers the flow.
pub fn bring_along(kernel: &Kernel, options: &Options, before: Vec<String>) -> Result<(), EbpfError> {
    let further = pins::names(&options.run_dir, &options.name);
    let mut left: BTreeSet<String> = further.iter().cloned().chain(before).collect();
    left.insert(options.name.clone());
    for name in &left {
        let to = if further.contains(name) { name } else { &options.name };
        move_flows(kernel, name, to, None)?;
    }
    Ok(())
}

/// Moves the flows of `from` to `to`, in the namespace at `netns` or in all. Returns how many.
pub fn move_flows(kernel: &Kernel, from: &str, to: &str, netns: Option<&Path>) -> Result<u64, EbpfError> {
    let map = sys::map_create(MapType::Array, "ccplane_move", 4, BYTES, 1, sys::F_MMAPABLE);
    let map = os("create map ccplane_move", map)?;
    let memory = os("map the iterator's memory", SharedMap::new(&map, 0, page_bytes(), true))?;
    put_name(&memory, FROM, from);
    put_name(&memory, TO, to);
    let attach = AttachTo { btf_id: kernel.iter_func, expected: sys::TRACE_ITER };
    let prog = load(ProgType::Tracing, "ccplane_move", &mover(kernel, map.as_raw_fd())?, attach)?;
    let link = os("link the flow iterator", sys::link_iter(&prog))?;
    match netns {
        Some(path) => walk(&link, path)?,
        None => {
            let mut lacking = None;
            for path in namespaces()? {
                // A namespace that has gone, or that we may not enter, has no flow that we could move.
                lacking = walk(&link, &path).err().filter(is_lack).or(lacking);
            }
            lacking.map_or(Ok(()), Err)?;
        }
    }
    Ok(memory.u64(MOVED as usize).load(Relaxed))
}

fn put_name(memory: &SharedMap, at: u32, name: &str) {
    let mut bytes = [0u8; 16];
    let n = name.len().min(15);
    bytes[..n].copy_from_slice(&name.as_bytes()[..n]);
    for (word, chunk) in bytes.chunks_exact(4).enumerate() {
        let v = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        memory.u32(at as usize + 4 * word).store(v, Relaxed);
    }
}

/// Whether an error means that this process lacks descriptors, memory or threads, and not that a namespace is closed to
/// it.
fn is_lack(error: &EbpfError) -> bool {
    let EbpfError::Os { source, .. } = error else { return false };
    let errno = source.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN))
}

/// One path for each network namespace that a process or a name holds.
fn namespaces() -> Result<Vec<PathBuf>, EbpfError> {
    let processes = os("list processes", fs::read_dir("/proc"))?.flatten().map(|e| e.path().join("ns/net"));
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|e| e.path());
    let mut seen = HashSet::new();
    Ok(named
        .chain(processes)
        .filter(|path| fs::metadata(path).is_ok_and(|m| seen.insert((m.dev(), m.ino()))))
        .collect())
}

/// Runs the iterator over one namespace. An instance belongs to the namespace of the thread that makes it.
fn walk(link: &OwnedFd, netns: &Path) -> Result<(), EbpfError> {
    let what = || format!("walk the flows of {}", netns.display());
    let run = || -> std::io::Result<()> {
        setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
        let mut iter = File::from(sys::iter_create(link)?);
        let mut sink = [0u8; 4096];
        while iter.read(&mut sink)? != 0 {}
        Ok(())
    };
    let walked = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(WALK_STACK_BYTES).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
    });
    os(what(), walked)
}

/// Assembles an iterator over the TCP sockets of a namespace that moves those of one congestion control to another.
///
/// # Errors
/// A bug in this file.
fn mover(k: &Kernel, map: i32) -> Result<Vec<Insn>, AsmError> {
    /// The socket level `IPPROTO_TCP` and option `TCP_CONGESTION`.
    const SOL_TCP: i64 = 6;
    const TCP_CONGESTION: i64 = 13;
    const NAME_BYTES: i64 = 16;
    let mut asm = Asm::default();
    let out = asm.label();
    asm.load(Size::B8, R::R1, R::R1, 8);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
    asm.call(Helper::SkcToTcpSock);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, out);
    asm.mov(R::R6, R::R0);
    asm.load(Size::B8, R::R1, R::R6, k.icsk_ca_ops);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, out);
    asm.map_value(R::R7, map, 0);
    for word in (0..16).step_by(8) {
        asm.load(Size::B8, R::R2, R::R1, k.ca_name + word);
        asm.load(Size::B8, R::R3, R::R7, FROM as i16 + word);
        asm.jump_if(R::R2, Cond::Ne, R::R3, out);
    }
    asm.mov(R::R1, R::R6);
    asm.mov_imm(R::R2, SOL_TCP);
    asm.mov_imm(R::R3, TCP_CONGESTION);
    asm.mov(R::R4, R::R7);
    asm.alu_imm(Alu::Add, R::R4, TO as i32);
    asm.mov_imm(R::R5, NAME_BYTES);
    asm.call(Helper::SetSockOpt);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, out);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R7, MOVED as i16, R::R2);
    asm.finish_at(out)
}

//! The system calls by which datapaths load BPF: bpf(2), shared memory on maps, and the scheduler.
//!
//! Programs come as instructions of the repository's own assembler ([`ccplane_nn_codegen::asm`]); there is no libbpf.

mod locks;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use ccplane_nn_codegen::asm::Insn;

/// Map types of `enum bpf_map_type`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum MapType {
    Hash = 1,
    Array = 2,
    ProgArray = 3,
    LruHash = 9,
    XskMap = 17,
    Queue = 22,
    SkStorage = 24,
    StructOps = 26,
    Ringbuf = 27,
}

/// Program types of `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum ProgType {
    SocketFilter = 1,
    SchedCls = 3,
    Xdp = 6,
    SockOps = 13,
    CgroupSockAddr = 18,
    Tracing = 26,
    StructOps = 27,
}

/// Flag `BPF_F_MMAPABLE`: user space can map the array.
pub const F_MMAPABLE: u32 = 1 << 10;
/// Flag `BPF_F_LINK`: the struct_ops map is registered through a link.
pub const F_LINK: u32 = 1 << 13;
/// The attach type `BPF_TRACE_RAW_TP` of programs at a tracepoint with typed arguments.
pub const TRACE_RAW_TP: u32 = 23;
/// The attach type `BPF_TRACE_ITER` of iterator programs.
pub const TRACE_ITER: u32 = 28;
/// The attach type `BPF_CGROUP_SOCK_OPS` of programs on sockets' events.
pub const CGROUP_SOCK_OPS: u32 = 3;
/// The attach type `BPF_CGROUP_INET4_CONNECT` of programs where IPv4 sockets connect.
pub const CGROUP_INET4_CONNECT: u32 = 10;
/// The attach type `BPF_CGROUP_INET6_CONNECT` of programs where IPv6 sockets connect.
pub const CGROUP_INET6_CONNECT: u32 = 11;
/// The attach type `BPF_TCX_EGRESS` of classifiers.
pub const TCX_EGRESS: u32 = 47;
/// Flag `BPF_F_NO_PREALLOC`, which a map of socket storage must have.
const F_NO_PREALLOC: u32 = 1;
/// The attach type `BPF_XDP` of programs at a device's receive path.
pub const XDP: u32 = 37;
/// The attach type `BPF_STRUCT_OPS` of a struct_ops link.
const ATTACH_STRUCT_OPS: u32 = 44;

const CMD_MAP_CREATE: i64 = 0;
const CMD_MAP_UPDATE: i64 = 2;
const CMD_MAP_DELETE: i64 = 3;
const CMD_PROG_LOAD: i64 = 5;
const CMD_OBJ_PIN: i64 = 6;
const CMD_OBJ_GET: i64 = 7;
const CMD_PROG_TEST_RUN: i64 = 10;
const CMD_PROG_GET_NEXT_ID: i64 = 11;
const CMD_PROG_GET_FD_BY_ID: i64 = 13;
const CMD_OBJ_GET_INFO: i64 = 15;
const CMD_RAW_TRACEPOINT_OPEN: i64 = 17;
const CMD_BTF_LOAD: i64 = 18;
const CMD_LINK_CREATE: i64 = 28;
const CMD_LINK_UPDATE: i64 = 29;
const CMD_ENABLE_STATS: i64 = 32;
const CMD_ITER_CREATE: i64 = 33;
const CMD_LINK_DETACH: i64 = 34;

/// Size of the `union bpf_attr` that we pass, bytes; the kernel takes any size and zero-checks what it does not know.
const ATTR_BYTES: usize = 168;
/// Size of the verifier log that we keep, bytes.
const LOG_BYTES: usize = 1 << 20;

/// Times that a load is tried again while signals interrupt it, as libbpf does.
const LOAD_TRIES: usize = 5;

/// Bytes by which an XDP program may lengthen a packet in a test run.
const XDP_GROWTH_BYTES: usize = 256;

/// A `union bpf_attr`, filled by offset.
struct Attr([u8; ATTR_BYTES]);

impl Attr {
    fn new() -> Self {
        Attr([0; ATTR_BYTES])
    }
    fn u32(mut self, at: usize, v: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&v.to_ne_bytes());
        self
    }
    fn u64(mut self, at: usize, v: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&v.to_ne_bytes());
        self
    }
    fn fd(self, at: usize, fd: &OwnedFd) -> Self {
        self.u32(at, fd.as_raw_fd() as u32)
    }
    fn name(mut self, at: usize, name: &str) -> Self {
        let n = name.len().min(15);
        self.0[at..at + n].copy_from_slice(&name.as_bytes()[..n]);
        self
    }
    fn get_u32(&self, at: usize) -> u32 {
        let mut b = [0; 4];
        b.copy_from_slice(&self.0[at..at + 4]);
        u32::from_ne_bytes(b)
    }
    fn call(&mut self, cmd: i64) -> io::Result<RawFd> {
        // SAFETY: the attr is a live buffer of the size given; every pointer in it was made by a caller in
        // this file from a buffer that outlives the call.
        let r = unsafe { libc::syscall(libc::SYS_bpf, cmd, self.0.as_mut_ptr(), ATTR_BYTES) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as RawFd) }
    }
    fn call_fd(&mut self, cmd: i64) -> io::Result<OwnedFd> {
        let fd = self.call(cmd)?;
        // SAFETY: the kernel just returned this new descriptor to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn addr<T>(p: *const T) -> u64 {
    p as usize as u64
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Creates a map.
pub fn map_create(
    kind: MapType,
    name: &str,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    Attr::new()
        .u32(0, kind as u32)
        .u32(4, key_bytes)
        .u32(8, value_bytes)
        .u32(12, entries)
        .u32(16, flags)
        .name(28, name)
        .call_fd(CMD_MAP_CREATE)
}

/// Creates a struct_ops map, whose value is the kernel type `value_type_id`.
pub fn map_create_struct_ops(
    name: &str,
    value_bytes: u32,
    value_type_id: u32,
    btf: &OwnedFd,
) -> io::Result<OwnedFd> {
    Attr::new()
        .u32(0, MapType::StructOps as u32)
        .u32(4, 4)
        .u32(8, value_bytes)
        .u32(12, 1)
        .u32(16, F_LINK)
        .name(28, name)
        .fd(48, btf)
        .u32(60, value_type_id)
        .call_fd(CMD_MAP_CREATE)
}

/// Creates a map of storage that lives with sockets; `btf` holds the types of its keys and values.
pub fn map_create_storage(
    name: &str,
    value_bytes: u32,
    btf: &OwnedFd,
    [key_type, value_type]: [u32; 2],
) -> io::Result<OwnedFd> {
    Attr::new()
        .u32(0, MapType::SkStorage as u32)
        .u32(4, 4)
        .u32(8, value_bytes)
        .u32(16, F_NO_PREALLOC)
        .name(28, name)
        .fd(48, btf)
        .u32(52, key_type)
        .u32(56, value_type)
        .call_fd(CMD_MAP_CREATE)
}

/// A program's place in the kernel; dropping it takes the program out.
#[derive(Debug)]
pub struct ProgramLink(OwnedFd);

impl Drop for ProgramLink {
    /// The end of the descriptor alone is not enough while another one is open, as in a child before its exec.
    fn drop(&mut self) {
        // Tracepoints' links cannot be detached, and end with their descriptors.
        let _ = Attr::new().fd(0, &self.0).call(CMD_LINK_DETACH);
    }
}

/// Attaches a program to a device (by its index) or a control group (by its descriptor).
pub fn link_to(prog: &OwnedFd, target: u32, attach_type: u32) -> io::Result<ProgramLink> {
    Attr::new().fd(0, prog).u32(4, target).u32(8, attach_type).call_fd(CMD_LINK_CREATE).map(ProgramLink)
}

/// Puts another program into a link.
pub fn link_replace(link: &ProgramLink, prog: &OwnedFd) -> io::Result<()> {
    Attr::new().fd(0, &link.0).fd(4, prog).call(CMD_LINK_UPDATE).map(drop)
}

/// Attaches a program to the tracepoint that it was loaded for.
pub fn raw_tracepoint_open(prog: &OwnedFd) -> io::Result<ProgramLink> {
    Attr::new().fd(8, prog).call_fd(CMD_RAW_TRACEPOINT_OPEN).map(ProgramLink)
}

/// Starts a process that runs `work` and ends; it is nobody's child. Signals do not reach it, and of the descriptors it has
/// `keep` alone.
///
/// `work` must neither allocate nor take a lock: another thread may hold one in the moment of the copy.
pub fn detached_process(keep: &[RawFd], work: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the children only make system calls and run `work`, which does no more, until they end.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above.
            let child = unsafe { libc::fork() };
            if child == 0 {
                become_guard(keep);
                work();
            }
            // SAFETY: ends this process at once, without the handlers that belong to its parent.
            unsafe { libc::_exit(i32::from(child < 0)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the kernel writes one number.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
                if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    return Err(io::Error::last_os_error());
                }
            }
            if status == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
        }
    }
}

/// Blocks signals and closes all descriptors but `keep`, which is in ascending order.
fn become_guard(keep: &[RawFd]) {
    // SAFETY: plain system calls on local values, in a process of one thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        let mut from = 0;
        for fd in keep.iter().map(|fd| *fd as u32) {
            if fd > from {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, from, u32::MAX, 0);
    }
}

/// Creates an array of spin locks, each a value of its own: memory that holds a lock cannot be mapped.
pub fn map_create_locks(name: &str, entries: u32) -> io::Result<OwnedFd> {
    let btf = btf_load(&locks::btf())?;
    Attr::new()
        .u32(0, MapType::Array as u32)
        .u32(4, 4)
        .u32(8, locks::VALUE_BYTES)
        .u32(12, entries)
        .name(28, name)
        .fd(48, &btf)
        .u32(52, locks::KEY_TYPE)
        .u32(56, locks::VALUE_TYPE)
        .call_fd(CMD_MAP_CREATE)
}

/// Sets one element; a queue takes an empty key.
pub fn map_update(map: &OwnedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let key_ptr = if key.is_empty() { 0 } else { addr(key.as_ptr()) };
    Attr::new().fd(0, map).u64(8, key_ptr).u64(16, addr(value.as_ptr())).call(CMD_MAP_UPDATE).map(drop)
}

/// Runs a program of [`ProgType::SocketFilter`] for each packet that a socket gets, until the socket is closed.
pub fn attach_to_socket(prog: &OwnedFd, socket: BorrowedFd<'_>) -> io::Result<()> {
    let number = prog.as_raw_fd();
    let length = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the number lives for the call, which reads as many bytes as the length says.
    let set = unsafe {
        let value = (&raw const number).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, length)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Deletes one element.
pub fn map_delete(map: &OwnedFd, key: &[u8]) -> io::Result<()> {
    Attr::new().fd(0, map).u64(8, addr(key.as_ptr())).call(CMD_MAP_DELETE).map(drop)
}

/// The failure of a program's load, by the verifier or for another reason.
#[derive(Debug)]
pub struct LoadError {
    pub errno: io::Error,
    /// The verifier's log; empty when there is none.
    pub log: String,
}

/// The target that a program attaches to.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachTo {
    /// A type or function of the kernel's BTF.
    pub btf_id: u32,
    /// Member index (struct_ops) or attach type.
    pub expected: u32,
}

/// Loads a program; asks for the verifier's log only when it refuses.
pub fn prog_load(kind: ProgType, name: &str, insns: &[Insn], to: AttachTo) -> Result<OwnedFd, LoadError> {
    let license = c"Dual MIT/GPL";
    let attr = || {
        Attr::new()
            .u32(0, kind as u32)
            .u32(4, insns.len() as u32)
            .u64(8, addr(insns.as_ptr()))
            .u64(16, addr(license.as_ptr()))
            .name(48, name)
            .u32(68, to.expected)
            .u32(108, to.btf_id)
    };
    // The verifier gives up where a signal is on its way to the process.
    let interrupted = |loaded: &io::Result<OwnedFd>| {
        loaded.as_ref().is_err_and(|errno| errno.kind() == io::ErrorKind::WouldBlock)
    };
    let mut loaded = attr().call_fd(CMD_PROG_LOAD);
    for _ in 0..LOAD_TRIES {
        if !interrupted(&loaded) {
            break;
        }
        loaded = attr().call_fd(CMD_PROG_LOAD);
    }
    match loaded {
        Ok(fd) => Ok(fd),
        Err(errno) => {
            let mut log = Vec::new();
            // A process that is short of memory goes without a log.
            if log.try_reserve_exact(LOG_BYTES).is_err() {
                return Err(LoadError { errno, log: String::new() });
            }
            log.resize(LOG_BYTES, 0u8);
            let again = attr()
                .u32(24, 1)
                .u32(28, LOG_BYTES as u32)
                .u64(32, addr(log.as_mut_ptr()))
                .call_fd(CMD_PROG_LOAD);
            if let Ok(fd) = again {
                return Ok(fd);
            }
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            Err(LoadError { errno, log: String::from_utf8_lossy(&log[..end]).into_owned() })
        }
    }
}

/// Pins an object at a path.
pub fn pin(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    Attr::new().u64(0, addr(path.as_ptr())).fd(8, fd).call(CMD_OBJ_PIN).map(drop)
}

/// Opens a pinned object.
pub fn get_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    Attr::new().u64(0, addr(path.as_ptr())).call_fd(CMD_OBJ_GET)
}

/// Loads a BTF blob.
pub fn btf_load(blob: &[u8]) -> io::Result<OwnedFd> {
    Attr::new().u64(0, addr(blob.as_ptr())).u32(16, blob.len() as u32).call_fd(CMD_BTF_LOAD)
}

/// Registers the struct_ops of a filled map; dropping the link (and its pins) unregisters it.
pub fn link_struct_ops(map: &OwnedFd) -> io::Result<OwnedFd> {
    Attr::new().fd(0, map).u32(8, ATTACH_STRUCT_OPS).call_fd(CMD_LINK_CREATE)
}

/// The ways in which an XDP program is attached to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum XdpMode {
    /// By the driver if it can, else by the stack.
    Any = 0,
    /// By the stack, after it has made a packet of its own (`XDP_FLAGS_SKB_MODE`): any device can.
    Generic = 1 << 1,
    /// By the driver, before the stack sees a packet (`XDP_FLAGS_DRV_MODE`).
    Native = 1 << 2,
}

/// Attaches an XDP program to a device of the calling thread's network namespace; dropping the link detaches it.
pub fn link_xdp(prog: &OwnedFd, ifindex: u32, mode: XdpMode) -> io::Result<ProgramLink> {
    Attr::new()
        .fd(0, prog)
        .u32(4, ifindex)
        .u32(8, XDP)
        .u32(12, mode as u32)
        .call_fd(CMD_LINK_CREATE)
        .map(ProgramLink)
}

/// Makes a link for an iterator program.
pub fn link_iter(prog: &OwnedFd) -> io::Result<OwnedFd> {
    Attr::new().fd(0, prog).u32(8, TRACE_ITER).call_fd(CMD_LINK_CREATE)
}

/// Makes a readable instance of an iterator link, which walks the calling thread's network namespace.
pub fn iter_create(link: &OwnedFd) -> io::Result<OwnedFd> {
    Attr::new().fd(0, link).call_fd(CMD_ITER_CREATE)
}

/// Makes the kernel account run time and count of every BPF program while the descriptor is open.
pub fn enable_stats() -> io::Result<OwnedFd> {
    Attr::new().u32(0, 0).call_fd(CMD_ENABLE_STATS)
}

/// The nanoseconds and runs that the kernel has accounted to a program.
pub fn prog_stats(prog: &OwnedFd) -> io::Result<(u64, u64)> {
    // struct bpf_prog_info: run_time_ns at 192, run_cnt at 200.
    let mut info = [0u8; 232];
    Attr::new()
        .fd(0, prog)
        .u32(4, info.len() as u32)
        .u64(8, addr(info.as_mut_ptr()))
        .call(CMD_OBJ_GET_INFO)?;
    let word = |at: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(b)
    };
    Ok((word(192), word(200)))
}

/// The id and name of every program in the kernel.
pub fn prog_names() -> io::Result<Vec<(u32, String)>> {
    // struct bpf_prog_info: name at 64, 16 bytes.
    const NAME: std::ops::Range<usize> = 64..80;
    let (mut id, mut found) = (0, Vec::new());
    loop {
        let mut attr = Attr::new().u32(0, id);
        match attr.call(CMD_PROG_GET_NEXT_ID) {
            Ok(_) => id = attr.get_u32(4),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
            Err(error) => return Err(error),
        }
        // One that has gone since has no name.
        let Ok(prog) = Attr::new().u32(0, id).call_fd(CMD_PROG_GET_FD_BY_ID) else { continue };
        let mut info = [0u8; 232];
        Attr::new()
            .fd(0, &prog)
            .u32(4, info.len() as u32)
            .u64(8, addr(info.as_mut_ptr()))
            .call(CMD_OBJ_GET_INFO)?;
        let name = info[NAME].split(|byte| *byte == 0).next().unwrap_or_default();
        found.push((id, String::from_utf8_lossy(name).into_owned()));
    }
}

/// Runs a classifier program `repeat` times on a dummy packet; returns its value and the mean time in ns.
pub fn test_run(prog: &OwnedFd, repeat: u32) -> io::Result<(u32, u32)> {
    let packet = [0u8; 64];
    let mut attr =
        Attr::new().fd(0, prog).u32(8, packet.len() as u32).u64(16, addr(packet.as_ptr())).u32(32, repeat);
    attr.call(CMD_PROG_TEST_RUN)?;
    Ok((attr.get_u32(4), attr.get_u32(36)))
}

/// The result of an XDP program on one packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpRun {
    /// The program's verdict, such as `XDP_TX` (3).
    pub verdict: u32,
    /// The packet as the program left it.
    pub packet: Vec<u8>,
}

/// Runs an XDP program once on a packet of at least 14 bytes.
pub fn test_run_xdp(prog: &OwnedFd, packet: &[u8]) -> io::Result<XdpRun> {
    // A program may move a packet's ends.
    let mut out = vec![0u8; packet.len() + XDP_GROWTH_BYTES];
    let mut attr = Attr::new()
        .fd(0, prog)
        .u32(8, packet.len() as u32)
        .u32(12, out.len() as u32)
        .u64(16, addr(packet.as_ptr()))
        .u64(24, addr(out.as_mut_ptr()))
        .u32(32, 1);
    attr.call(CMD_PROG_TEST_RUN)?;
    out.truncate(attr.get_u32(12) as usize);
    Ok(XdpRun { verdict: attr.get_u32(4), packet: out })
}

/// Runs an XDP program that changes nothing `repeat` times on one packet; returns the mean time in ns.
pub fn time_xdp(prog: &OwnedFd, packet: &[u8], repeat: u32) -> io::Result<u32> {
    let mut attr =
        Attr::new().fd(0, prog).u32(8, packet.len() as u32).u64(16, addr(packet.as_ptr())).u32(32, repeat);
    attr.call(CMD_PROG_TEST_RUN)?;
    Ok(attr.get_u32(36))
}

/// A shared mapping of a map's memory.
///
/// Words are read and written atomically, since the kernel side runs concurrently.
pub struct SharedMap {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain shared memory that is only accessed through atomics.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps `bytes` of `map` from `offset`.
    pub fn new(map: &OwnedFd, offset: i64, bytes: usize, writable: bool) -> io::Result<SharedMap> {
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a fresh mapping chosen by the kernel; the descriptor is open.
        let p = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, map.as_raw_fd(), offset)
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMap { base: p.cast(), bytes })
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: in bounds and aligned, by the assertion; the mapping is page-aligned.
        unsafe { self.base.add(offset).cast() }
    }
    /// The 32-bit word at an offset, bytes.
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` gives an in-bounds aligned pointer that lives as long as the mapping.
        unsafe { &*self.at(offset) }
    }
    /// The 64-bit word at an offset, bytes.
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.at(offset) }
    }
    /// The signed 64-bit word at an offset, bytes.
    pub fn i64(&self, offset: usize) -> &AtomicI64 {
        // SAFETY: as above.
        unsafe { &*self.at(offset) }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference outlives self.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Makes the calling thread run only where a processor is idle (`SCHED_IDLE`, sched(7)); this needs no privilege.
///
/// # Errors
/// The kernel refuses.
pub fn run_when_idle() -> io::Result<()> {
    // SAFETY: numbers alone, of which musl's has more; the priority is 0.
    let priority: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads one `sched_param`, which lives across the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! The agent's handle: attaches the datapath, installs programs, takes events.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use ccplane_contract::{Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, ProgramUid, check_fields};
use ccplane_program::ir::Program;

use crate::btf::{self, Btf, BtfError};
use crate::codegen::{self, Compiled};
use crate::error::{EbpfError, os};
use crate::layout::{INDEX_BITS, LAYOUT_VERSION, STAGE_RELEASE, ctl, event, rec};
use crate::movement;
use crate::pins::{self, Lock};
use crate::ring::{Record, Ring};
use crate::sys::{self, AttachTo, MapType, ProgType, Shared};
use crate::table::{Change, Table, Values};
use crate::tcp::{self, Kernel, Maps, TcpHost};

/// Programs that can be installed at once.
pub const MAX_PROGRAMS: usize = 64;
/// Most flows that can be asked for.
pub const MAX_FLOWS: u32 = 1 << INDEX_BITS;
/// Bytes of the event ring.
const RING_BYTES: usize = 1 << 20;
/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less its zero).
pub const MAX_NAME: usize = 15;
/// `TCP_CONG_NON_RESTRICTED`: any user, and any network namespace, may choose it.
const TCP_CONG_NON_RESTRICTED: u32 = 1;
/// Lines of the verifier's log that a refusal quotes.
const LOG_LINES: usize = 6;

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the lock file, and our own BPF file system if need be, lie.
    pub run_dir: PathBuf,
    /// The congestion control's name, as in `TCP_CONGESTION` and `ss`; also names the pin directory.
    pub name: String,
    /// Records in the flow table, at most [`MAX_FLOWS`].
    pub max_flows: u32,
    /// Silence of the agent after which flows run the native algorithm.
    pub heartbeat_timeout: Duration,
    /// Least time between two samples of a flow's statistics.
    pub sample_interval: Duration,
    /// The congestion control that flows get when the datapath is detached; Reno where it is not known.
    pub handback: String,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            run_dir: PathBuf::from("/run/ccplane"),
            name: "ccplane".into(),
            max_flows: 4096,
            heartbeat_timeout: Duration::from_secs(1),
            sample_interval: Duration::from_millis(10),
            handback: "cubic".into(),
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), EbpfError> {
        let bad = |field, value: String, limit: String| Err(EbpfError::BadOption { field, value, limit });
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (field, name) in [("name", &self.name), ("handback", &self.handback)] {
            if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
                return bad(field, name.clone(), format!("1 to {MAX_NAME} letters, digits or _"));
            }
        }
        if self.max_flows == 0 || self.max_flows > MAX_FLOWS {
            return bad("max_flows", self.max_flows.to_string(), format!("1 to {MAX_FLOWS}"));
        }
        if self.heartbeat_timeout < Duration::from_millis(10) {
            return bad("heartbeat_timeout", format!("{:?}", self.heartbeat_timeout), "at least 10 ms".into());
        }
        Ok(())
    }
}

/// The maps, open.
pub(crate) struct OpenMaps {
    pub ctl: OwnedFd,
    pub flows: OwnedFd,
    pub free: OwnedFd,
    pub ring: OwnedFd,
    pub slots: OwnedFd,
}

impl OpenMaps {
    fn create(max_flows: u32) -> Result<OpenMaps, EbpfError> {
        let map = |kind, name: &str, key, value, entries, flags| {
            os(format!("create map {name}"), sys::map_create(kind, name, key, value, entries, flags))
        };
        let maps = OpenMaps {
            ctl: map(MapType::Array, "ccplane_ctl", 4, ctl::BYTES, 1, sys::F_MMAPABLE)?,
            flows: map(MapType::Array, "ccplane_flows", 4, rec::BYTES, max_flows, sys::F_MMAPABLE)?,
            free: map(MapType::Queue, "ccplane_free", 0, 4, max_flows, 0)?,
            ring: map(MapType::Ringbuf, "ccplane_ring", 0, 0, RING_BYTES as u32, 0)?,
            slots: map(MapType::ProgArray, "ccplane_slots", 4, 4, MAX_PROGRAMS as u32, 0)?,
        };
        for index in 0..max_flows {
            os("fill the list of free records", sys::map_update(&maps.free, &[], &index.to_ne_bytes()))?;
        }
        Ok(maps)
    }

    fn named(&self) -> [(&'static str, &OwnedFd); 5] {
        [
            ("ctl", &self.ctl),
            ("flows", &self.flows),
            ("free", &self.free),
            ("ring", &self.ring),
            ("slots", &self.slots),
        ]
    }

    pub(crate) fn open(dir: &Path) -> Result<OpenMaps, EbpfError> {
        Ok(OpenMaps {
            ctl: pins::open(dir, "ctl")?,
            flows: pins::open(dir, "flows")?,
            free: pins::open(dir, "free")?,
            ring: pins::open(dir, "ring")?,
            slots: pins::open(dir, "slots")?,
        })
    }

    pub(crate) fn fds(&self) -> Maps {
        Maps {
            ctl: self.ctl.as_raw_fd(),
            flows: self.flows.as_raw_fd(),
            free: self.free.as_raw_fd(),
            ring: self.ring.as_raw_fd(),
            slots: self.slots.as_raw_fd(),
        }
    }
}

/// While the result is open, the kernel accounts the run time of BPF programs, at a small cost to each run.
///
/// # Errors
/// What bpf(2) says.
pub fn account() -> std::io::Result<OwnedFd> {
    sys::enable_stats()
}

pub(crate) fn page_bytes() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |v| v as usize)
}

/// The shared memory of an attached datapath.
pub(crate) struct Memory {
    pub ctl: Shared,
    pub table: Table,
}

impl Memory {
    pub(crate) fn map(maps: &OpenMaps, writable: bool) -> Result<Memory, EbpfError> {
        let page = page_bytes();
        let ctl = os("map the control page", Shared::new(&maps.ctl, 0, page, writable))?;
        let max_flows = ctl.u32(ctl::MAX_FLOWS as usize).load(Relaxed);
        let bytes = (max_flows as usize * rec::BYTES as usize).next_multiple_of(page).max(page);
        let flows = os("map the flow table", Shared::new(&maps.flows, 0, bytes, writable))?;
        Ok(Memory { ctl, table: Table::new(flows, max_flows) })
    }

    /// How long the agent has been silent.
    pub(crate) fn silence(&self) -> Duration {
        let last = self.ctl.u64(ctl::HEARTBEAT_US as usize).load(Relaxed);
        Duration::from_micros(sys::monotonic_us().saturating_sub(last))
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silence() > Duration::from_micros(self.ctl.u64(ctl::TIMEOUT_US as usize).load(Relaxed))
    }
}

/// An installed program.
struct Installed {
    uid: ProgramUid,
    instance: u32,
    program: Program,
    /// Kept open: the program array alone does not count as a user.
    _fd: OwnedFd,
}

/// Linux TCP as a datapath.
pub struct EbpfDatapath {
    options: Options,
    kernel: Kernel,
    maps: OpenMaps,
    memory: Memory,
    ring: Ring,
    slots: Vec<Option<Installed>>,
    /// The program set on each record, by slot.
    running: HashMap<u32, usize>,
    /// Events that were made here rather than in the kernel.
    pending: VecDeque<Event>,
    dropped: u64,
    /// Our `cong_control`, if we loaded it ourselves: its account is every ACK's.
    dispatcher: Option<OwnedFd>,
    /// Flows whose creation was told, with their ids.
    known: HashMap<u32, FlowId>,
    _lock: Lock,
}

impl EbpfDatapath {
    /// Attaches the datapath, or takes over the one that a previous agent left, whose flows are then told as
    /// created.
    ///
    /// # Errors
    /// [`EbpfError`]; nothing is left behind.
    pub fn attach(options: Options) -> Result<EbpfDatapath, EbpfError> {
        options.check()?;
        let lock = Lock::take(&options.run_dir)?;
        let kernel = Kernel::new(&Btf::kernel()?)?;
        let (maps, dispatcher) = if pins::exists(&options.run_dir, &options.name) {
            (take_over(&options)?, None)
        } else {
            // A kill between two pins may have left some.
            pins::remove(&options.run_dir, &options.name)?;
            movement::wait_unregistered(&options.name)?;
            let made = create(&options, &kernel);
            let (maps, dispatcher) =
                made.inspect_err(|_| drop(pins::remove(&options.run_dir, &options.name)))?;
            (maps, Some(dispatcher))
        };
        let memory = Memory::map(&maps, true)?;
        let ring_fd = os("duplicate a descriptor", maps.ring.try_clone())?;
        let ring = os("map the event ring", Ring::new(ring_fd, RING_BYTES, page_bytes()))?;
        // What the previous agent did not read is told anew from the flow table.
        ring.drain(|_| true);
        memory.ctl.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        memory.ctl.u64(ctl::SAMPLE_US as usize).store(options.sample_interval.as_micros() as u64, Relaxed);
        memory.ctl.u32(ctl::AGENT_PID as usize).store(std::process::id(), Relaxed);
        memory.ctl.u32(ctl::WAITING as usize).store(0, Relaxed);
        let dropped = memory.ctl.u64(ctl::DROPPED as usize).load(Relaxed);
        let mut datapath = EbpfDatapath {
            options,
            kernel,
            maps,
            memory,
            ring,
            slots: (0..MAX_PROGRAMS).map(|_| None).collect(),
            running: HashMap::new(),
            pending: VecDeque::new(),
            dropped,
            dispatcher,
            known: HashMap::new(),
            _lock: lock,
        };
        datapath.heartbeat();
        let live: Vec<u32> = datapath.memory.table.live().collect();
        for index in live {
            let flow = datapath.memory.table.id(index);
            datapath.created(index, flow);
        }
        Ok(datapath)
    }

    fn created(&mut self, index: u32, flow: FlowId) {
        if self.known.insert(index, flow) != Some(flow) {
            self.running.remove(&index);
            let info = self.memory.table.info(index);
            self.pending.push_back(Event::Created { flow, info });
        }
    }

    /// Hands every flow to [`Options::handback`], in every network namespace that can be reached, and removes
    /// the datapath from the kernel. Returns how many flows were moved.
    ///
    /// # Errors
    /// [`EbpfError::Os`] if a pin could not be removed.
    pub fn detach(self) -> Result<u64, EbpfError> {
        let moved = self.hand_back()?;
        pins::remove(&self.options.run_dir, &self.options.name)?;
        movement::wait_unregistered(&self.options.name)?;
        Ok(moved)
    }

    fn hand_back(&self) -> Result<u64, EbpfError> {
        let to = movement::available(&self.options.handback);
        movement::move_flows(&self.kernel, &self.maps, &self.memory, &self.options.name, to, None)
    }

    /// Moves the running TCP flows of congestion control `from` to this datapath: those of the network
    /// namespace at `netns` (such as /run/netns/NAME), or of every one that can be reached. Returns how many.
    ///
    /// # Errors
    /// [`EbpfError`] when a namespace or the iterator cannot be used.
    pub fn adopt(&self, from: &str, netns: Option<&Path>) -> Result<u64, EbpfError> {
        movement::move_flows(&self.kernel, &self.maps, &self.memory, from, &self.options.name, netns)
    }

    /// Sleeps until an event arrives, or `timeout` passed.
    ///
    /// # Errors
    /// What poll(2) says.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<()> {
        let waiting = self.memory.ctl.u32(ctl::WAITING as usize);
        waiting.store(1, std::sync::atomic::Ordering::SeqCst);
        // A producer that looked before the store did not wake us: look again before sleeping.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let slept = if self.ring.is_empty() && self.pending.is_empty() {
            self.ring.sleep(timeout.as_millis().min(u128::from(u16::MAX)) as u16)
        } else {
            Ok(())
        };
        waiting.store(0, Release);
        slept
    }

    /// Nanoseconds and ACKs that the kernel has accounted to this datapath, programs included, while an
    /// [`account`] was open. None for a datapath that was taken over.
    ///
    /// # Errors
    /// What bpf(2) says.
    pub fn accounted(&self) -> std::io::Result<Option<(u64, u64)>> {
        self.dispatcher.as_ref().map(sys::prog_stats).transpose()
    }

    /// Installs a program that returns at once: what a benchmark of programs starts counting from. The window
    /// of a flow that runs it stays as it is.
    ///
    /// # Errors
    /// As [`Datapath::install`].
    pub fn install_empty(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let nothing = ccplane_program::ir::Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new())
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let mut asm = crate::asm::Asm::default();
        asm.exit0();
        let done = asm.finish().map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let slot = self.free_slot()?;
        self.put(slot, uid, 0, &nothing, &Compiled::plain(done.insns))
    }

    fn free_slot(&self) -> Result<usize, DatapathError> {
        let free = (0..MAX_PROGRAMS).find(|n| self.slots[*n].is_none() && self.users(*n) == 0);
        free.ok_or(DatapathError::ProgramsFull { limit: MAX_PROGRAMS })
    }

    /// Loads a compiled program and puts it into its slot.
    fn put(
        &mut self,
        slot: usize,
        uid: ProgramUid,
        instance: u32,
        program: &Program,
        compiled: &Compiled,
    ) -> Result<(), DatapathError> {
        let to = AttachTo { btf_id: self.kernel.ops_type, expected: self.kernel.cong_control };
        let fd = sys::prog_load(ProgType::StructOps, "ccplane_fold", &compiled.insns, to)
            .map_err(|e| refusal(compiled, &e))?;
        sys::map_update(&self.maps.slots, &(slot as u32).to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
            .map_err(|e| os_error("put the program into its slot", &e))?;
        self.slots[slot] = Some(Installed { uid, instance, program: program.clone(), _fd: fd });
        Ok(())
    }

    /// Whether an event waits to be polled; no system call.
    pub fn has_events(&self) -> bool {
        !self.ring.is_empty() || !self.pending.is_empty()
    }

    /// The slot of an installed program.
    fn slot(&self, uid: ProgramUid) -> Result<(usize, &Installed), DatapathError> {
        let found = self.slots.iter().enumerate().find_map(|(n, s)| s.as_ref().filter(|s| s.uid == uid).map(|s| (n, s)));
        found.ok_or(DatapathError::NoProgram(uid))
    }

    /// Flows that run the program in a slot, or are about to.
    fn users(&self, slot: usize) -> usize {
        let slot = slot as u32 + 1;
        self.memory.table.live().filter(|i| self.memory.table.slots(*i).contains(&slot)).count()
    }

    fn stage(&self, flow: FlowId, index: u32, installed: &Installed, start: Option<usize>, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        check_fields(Some(&installed.program), fields)?;
        let values = Values::new(&installed.program, fields);
        let change = Change {
            program: start.map(|s| s as u32 + 1),
            instance: installed.instance,
            cwnd: values.cwnd,
            rate: values.rate,
            regs: &values.regs,
        };
        if self.memory.table.stage(index, &change) { Ok(()) } else { Err(DatapathError::NoFlow(flow)) }
    }

    fn take(&mut self, record: &Taken, events: &mut Vec<Event>) {
        let flow = FlowId(record.flow);
        let index = (record.flow & ((1 << INDEX_BITS) - 1)) as u32;
        match record.kind {
            event::CREATED => {
                // Closed since: its record may be another flow's by now.
                if self.memory.table.index(flow).is_some() {
                    self.created(index, flow);
                    events.extend(self.pending.pop_back());
                }
            }
            event::CLOSED => {
                if self.known.get(&index) == Some(&flow) {
                    self.known.remove(&index);
                    self.running.remove(&index);
                    events.push(Event::Closed { flow });
                }
            }
            _ => {
                let uid = self.slots.iter().flatten().find(|s| s.instance == record.instance).map(|s| s.uid);
                if let (Some(program), true) = (uid, self.known.get(&index) == Some(&flow)) {
                    let values = record.values.clone();
                    events.push(Event::Report { flow, program, seq: record.seq, at_us: record.at_us, values });
                }
            }
        }
    }
}

/// An event, copied out of the ring.
struct Taken {
    kind: i32,
    flow: u64,
    seq: u32,
    instance: u32,
    at_us: u64,
    values: Vec<i64>,
}

impl Taken {
    fn new(record: Record<'_>) -> Taken {
        let len = record.u32(event::LEN).min(ccplane_program::ir::MAX_REGS as u32);
        Taken {
            kind: record.u32(event::KIND) as i32,
            flow: record.u64(event::FLOW),
            seq: record.u32(event::SEQ),
            instance: record.u32(event::INSTANCE),
            at_us: record.u64(event::AT_US),
            values: (0..len).map(|n| record.u64(event::VALUES + 8 * n) as i64).collect(),
        }
    }
}

/// Also hands out `cong_control`.
fn create(options: &Options, kernel: &Kernel) -> Result<(OpenMaps, OwnedFd), EbpfError> {
    let maps = OpenMaps::create(options.max_flows)?;
    {
        let page = os("map the control page", Shared::new(&maps.ctl, 0, page_bytes(), true))?;
        page.u64(ctl::VERSION as usize).store(LAYOUT_VERSION, Relaxed);
        page.u32(ctl::MAX_FLOWS as usize).store(options.max_flows, Relaxed);
        page.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        page.u64(ctl::HEARTBEAT_US as usize).store(sys::monotonic_us(), Release);
    }
    let (ops, link, dispatcher) = register(options, kernel, &maps)?;
    let dir = pins::create(&options.run_dir, &options.name)?;
    for (name, fd) in maps.named() {
        pins::pin(&dir, name, fd)?;
    }
    pins::pin(&dir, "ops", &ops)?;
    // The link last: it says that the rest is there.
    pins::pin(&dir, "link", &link)?;
    Ok((maps, dispatcher))
}

fn take_over(options: &Options) -> Result<OpenMaps, EbpfError> {
    let dir = pins::directory(&options.run_dir, &options.name);
    let maps = OpenMaps::open(&dir)?;
    let page = os("map the control page", Shared::new(&maps.ctl, 0, page_bytes(), true))?;
    let found = page.u64(ctl::VERSION as usize).load(Acquire);
    if found != LAYOUT_VERSION {
        return Err(EbpfError::OtherVersion { dir, found, ours: LAYOUT_VERSION });
    }
    Ok(maps)
}

/// Loads the members' programs, fills the struct_ops map and registers the congestion control. Returns the
/// map, the link and `cong_control`.
fn register(
    options: &Options,
    kernel: &Kernel,
    maps: &OpenMaps,
) -> Result<(OwnedFd, OwnedFd, OwnedFd), EbpfError> {
    const VALUE_TYPE: &str = "bpf_struct_ops_tcp_congestion_ops";
    let btf = Btf::kernel()?;
    let mut value = vec![0u8; btf.struct_bytes(VALUE_TYPE)? as usize];
    let data = btf.field(VALUE_TYPE, "data")?.offset as usize;
    let mut put = |field: &str, bytes: &[u8]| -> Result<(), EbpfError> {
        let at = data + btf.field("tcp_congestion_ops", field)?.offset as usize;
        value[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    let mut loaded = Vec::new();
    for member in tcp::OPS {
        let insns = tcp::member(member, kernel, maps.fds())?;
        let (index, _) = btf.func_member("tcp_congestion_ops", member)?;
        let to = AttachTo { btf_id: kernel.ops_type, expected: index };
        let fd = load(ProgType::StructOps, member, &insns, to)?;
        put(member, &(fd.as_raw_fd() as u64).to_ne_bytes())?;
        loaded.push(fd);
    }
    put("name", options.name.as_bytes())?;
    put("flags", &TCP_CONG_NON_RESTRICTED.to_ne_bytes())?;
    let own_btf = os("load BTF", sys::btf_load(&btf::minimal_blob()))?;
    let id = btf.struct_id(VALUE_TYPE)?;
    let ops = os(
        "create the struct_ops map",
        sys::map_create_struct_ops("ccplane_ops", value.len() as u32, id, &own_btf),
    )?;
    os("fill the struct_ops map", sys::map_update(&ops, &0u32.to_ne_bytes(), &value))?;
    let link = os(format!("register the congestion control `{}`", options.name), sys::link_struct_ops(&ops))?;
    // `cong_control` is the last of OPS.
    let dispatcher = loaded.pop().ok_or_else(|| BtfError::NoType { kind: "function", name: "cong_control".into() })?;
    Ok((ops, link, dispatcher))
}

/// Loads a program of ours.
pub(crate) fn load(kind: ProgType, name: &str, insns: &[crate::asm::Insn], to: AttachTo) -> Result<OwnedFd, EbpfError> {
    sys::prog_load(kind, name, insns, to).map_err(|e| EbpfError::Verifier {
        program: name.into(),
        source: e.errno,
        log: last_lines(&e.log),
    })
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|l| !l.is_empty() && !l.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// The instruction at which the verifier stopped: the last one that its log names.
fn refused_at(log: &str) -> Option<usize> {
    log.lines().rev().find_map(|line| {
        let (number, rest) = line.trim_start().split_once(':')?;
        rest.trim_start().starts_with('(').then(|| number.parse().ok())?
    })
}

pub(crate) fn refusal(compiled: &Compiled, e: &sys::LoadError) -> DatapathError {
    let words = last_lines(&e.log);
    let reason = if words.is_empty() { e.errno.to_string() } else { format!("{}: {words}", e.errno) };
    DatapathError::Refused { at: refused_at(&e.log).and_then(|at| compiled.ir_at(at)), reason }
}

fn os_error(what: &str, e: &std::io::Error) -> DatapathError {
    DatapathError::Os { what: what.into(), errno: e.kind() }
}

impl Datapath for EbpfDatapath {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "ebpf",
            max_programs: MAX_PROGRAMS,
            max_flows: self.options.max_flows as usize,
            policy: false,
            full_language: true,
        }
    }

    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        if program.uses_policy() {
            return Err(DatapathError::Unsupported { feature: "(policy ...) and (history ...)".into() });
        }
        let slot = self.free_slot()?;
        let instance = self.memory.ctl.u64(ctl::NEXT_INSTANCE as usize).fetch_add(1, Relaxed) as u32 + 1;
        let host = TcpHost { kernel: &self.kernel, maps: self.maps.fds(), instance };
        let compiled = codegen::compile(program, instance, &host)
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        self.put(slot, uid, instance, program, &compiled)
    }

    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let (slot, _) = self.slot(uid)?;
        let flows = self.users(slot);
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        sys::map_delete(&self.maps.slots, &(slot as u32).to_ne_bytes()).map_err(|e| os_error("empty a slot", &e))?;
        self.slots[slot] = None;
        Ok(())
    }

    fn set_program(&mut self, flow: FlowId, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let (slot, installed) = self.slot(uid)?;
        let index = self.memory.table.index(flow).ok_or(DatapathError::NoFlow(flow))?;
        self.stage(flow, index, installed, Some(slot), fields)?;
        self.memory.table.set_uid(index, uid.0);
        self.running.insert(index, slot);
        Ok(())
    }

    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let index = self.memory.table.index(flow).ok_or(DatapathError::NoFlow(flow))?;
        let installed = self.running.get(&index).and_then(|s| self.slots[*s].as_ref());
        match (installed, fields.first()) {
            (Some(installed), _) => self.stage(flow, index, installed, None, fields),
            (None, Some((field, _))) => Err(DatapathError::BadField(*field)),
            (None, None) => Ok(()),
        }
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        let index = self.memory.table.index(flow).ok_or(DatapathError::NoFlow(flow))?;
        let change = Change { program: Some(STAGE_RELEASE), instance: 0, cwnd: None, rate: None, regs: &[] };
        if !self.memory.table.stage(index, &change) {
            return Err(DatapathError::NoFlow(flow));
        }
        self.memory.table.set_uid(index, 0);
        self.running.remove(&index);
        Ok(())
    }

    fn heartbeat(&mut self) {
        self.memory.ctl.u64(ctl::HEARTBEAT_US as usize).store(sys::monotonic_us(), Release);
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let silent = self.memory.is_silent();
        self.memory.table.live().map(|i| self.memory.table.stats(i, silent)).collect()
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        while events.len() - before < max {
            let Some(event) = self.pending.pop_front() else { break };
            events.push(event);
        }
        let room = max - (events.len() - before);
        let mut taken = Vec::new();
        self.ring.drain(|record| {
            if taken.len() >= room {
                return false;
            }
            taken.push(Taken::new(record));
            true
        });
        for record in &taken {
            self.take(record, events);
        }
        let dropped = self.memory.ctl.u64(ctl::DROPPED as usize).load(Relaxed);
        if dropped != self.dropped {
            events.push(Event::Dropped { count: dropped - self.dropped });
            self.dropped = dropped;
        }
        events.len() - before
    }
}

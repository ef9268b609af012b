//! The agent's handle: it attaches the datapath, installs programs, and polls events.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use ccplane_contract::registry::{self, Programs, Shim};
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Field, FlowId, ON_PACKETS, ProgramUid, check_fields,
};
use ccplane_infer::Shape;
use ccplane_program::ir::{Dst, Hook, MAX_POLICY_SLOTS, Program};

use super::attach::{ATTACH_TO_GROUP, Attached, Hooking, attach, link_to_group, output};
use super::connect::{self, ConnectHost, Family};
use super::header::Output;
use super::host::{PacketHost, reads_header};
use super::layout::{first, flow, page};
use super::maps::OpenPacketMaps;
use super::options::PacketsOptions;
use crate::btf::Btf;
use crate::codegen;
use crate::error::{EbpfError, os, os_error};
use crate::kernel::Kernel;
use crate::known_flows::{Instance, KnownFlows};
use crate::layout::{MAX_PROGRAMS, RING_BYTES, ctl};
use crate::lock::Lock;
use crate::maps::{Memory, page_bytes};
use crate::options::Options;
use crate::refusal::refusal;
use crate::ring::Ring;
use crate::slots::SlotMemory;
use crate::table::{Start, Values};
use crate::waiting::KernelEvents;
use ccplane_bpf::{self as sys, AttachTo, ProgType, ProgramLink};

/// A program that is loaded into the kernel.
#[derive(Clone)]
pub struct LoadedPacketProgram {
    instance: u32,
    place: Place,
}

/// The places where a program runs.
#[derive(Clone)]
enum Place {
    /// On flows that it was set on, from this entry of the kernel's array.
    Send { slot: usize, _fd: Arc<OwnedFd> },
    /// At sockets that connect, once it is the one that flows start with.
    Connect,
}

impl Instance for LoadedPacketProgram {
    fn instance(&self) -> u32 {
        self.instance
    }
}

/// The priority and the path of a flow's packets, and how often its program has decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowSteering {
    pub priority: u32,
    pub path: u32,
    pub decisions: u32,
}

/// The programs' links where sockets connect, and the program that they run.
struct Connects {
    links: [ProgramLink; 2],
    uid: ProgramUid,
}

/// Packets of TCP flows as a datapath. Dropping it takes it out of the kernel.
pub struct PacketsDatapath {
    options: PacketsOptions,
    kernel: Kernel,
    maps: OpenPacketMaps,
    memory: Memory,
    policies: SlotMemory,
    /// The policy slots that were defined, a bit each.
    defined: u32,
    ring: Arc<Ring>,
    programs: Programs<LoadedPacketProgram>,
    known_flows: KnownFlows,
    connects: Option<Connects>,
    output: Output,
    attached: Attached,
    _lock: Lock,
}

impl PacketsDatapath {
    /// Attaches the datapath to devices of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`EbpfError`]; nothing is left behind.
    pub fn attach(options: PacketsOptions) -> Result<PacketsDatapath, EbpfError> {
        options.check()?;
        let (run_dir, name) = (options.run_dir.join("packets"), options.name.clone());
        let lock = Lock::take(&Options { run_dir, name, ..Options::default() })?;
        let btf = Btf::kernel()?;
        let kernel = Kernel::new(&btf)?;
        let maps = OpenPacketMaps::create(options.max_flows)?;
        let memory = maps.fill(&options)?;
        let policies = maps.common.slot_memory()?;
        let ring_fd = os("duplicate a descriptor", maps.common.ring.try_clone())?;
        let ring = Arc::new(os("map the event ring", Ring::new(ring_fd, RING_BYTES, page_bytes()))?);
        let attached = attach(&options, &btf, &kernel, &maps.fds())?;
        let mut datapath = PacketsDatapath {
            known_flows: KnownFlows::new(None, &memory),
            output: output(&options),
            options,
            kernel,
            maps,
            memory,
            policies,
            defined: 0,
            ring,
            programs: Programs::new(MAX_PROGRAMS).keeping_native().of_hooks(ON_PACKETS),
            connects: None,
            attached,
            _lock: lock,
        };
        datapath.heartbeat();
        Ok(datapath)
    }

    /// Returns the way in which classifiers are attached on this kernel.
    pub fn hooking(&self) -> Hooking {
        self.attached.hooking
    }

    /// Takes the datapath out of the kernel; sockets keep priority and mark that programs of the start have set.
    pub fn detach(self) {
        drop(self);
    }

    /// The datapath's events, to wait for.
    pub fn events(&self) -> KernelEvents<'_> {
        KernelEvents::new(&self.memory, &self.ring, &self.known_flows)
    }

    /// The number of decisions about a flow so far; `None` once it has ended.
    pub fn decisions(&self, flow: FlowId) -> Option<u32> {
        self.memory.table.word(flow, flow::DECISIONS)
    }

    /// Returns what a flow's packets get now; `None` once it has ended.
    pub fn steering(&self, flow: FlowId) -> Option<FlowSteering> {
        let word = |field| self.memory.table.word(flow, field);
        let (priority, path) = (word(flow::PRIORITY)?, word(flow::PATH)?);
        Some(FlowSteering { priority, path, decisions: word(flow::DECISIONS)? })
    }

    /// Flows that found the table full so far, counted with each packet.
    pub fn turned_away(&self) -> u64 {
        self.memory.ctl.u64(ctl::TABLE_FULL as usize).load(Relaxed)
    }

    /// The nanoseconds and packets that the kernel has accounted to the classifiers, programs included, while an
    /// [`account`](crate::account) was open.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn accounted(&self) -> std::io::Result<(u64, u64)> {
        self.attached.classifiers.iter().try_fold((0, 0), |(ns, runs), fd| {
            let (more_ns, more_runs) = sys::prog_stats(fd)?;
            Ok((ns + more_ns, runs + more_runs))
        })
    }

    /// Returns an entry of the kernel's array that holds no program, and whose last one no flow runs any more.
    fn free_slot(&self) -> Result<usize, DatapathError> {
        let is_taken = |slot| {
            let of = |place: &Place| matches!(place, Place::Send { slot: taken, .. } if *taken == slot);
            self.programs.iter().any(|(_, program)| of(&program.loaded.place))
        };
        let free = (0..MAX_PROGRAMS).find(|slot| !is_taken(*slot) && self.users(*slot) == 0);
        free.ok_or(DatapathError::ProgramsFull { limit: MAX_PROGRAMS })
    }

    /// The number of flows that run the program in an entry, or are about to.
    fn users(&self, slot: usize) -> usize {
        let slot = slot as u32 + 1;
        self.memory.table.live().filter(|(index, _)| self.memory.table.slots(*index).contains(&slot)).count()
    }

    /// Loads a program of flows' packets and puts it into a free entry.
    fn load_send(&self, instance: u32, program: &Program) -> Result<Place, DatapathError> {
        let slot = self.free_slot()?;
        let host = PacketHost {
            kernel: &self.kernel,
            maps: self.maps.fds(),
            output: self.output,
            instance,
            paths: self.options.paths.len(),
            reads_header: reads_header(program),
        };
        let fd = self.compile(program, instance, &host, ProgType::SchedCls, AttachTo::default())?;
        let key = (slot as u32).to_ne_bytes();
        sys::map_update(&self.maps.common.slots, &key, &fd.as_raw_fd().to_ne_bytes())
            .map_err(|e| os_error("put the program into its slot", &e))?;
        Ok(Place::Send { slot, _fd: Arc::new(fd) })
    }

    /// Loads a program of flows' starts for both families.
    fn load_connect(&self, program: &Program) -> Result<[OwnedFd; 2], DatapathError> {
        let load = |family| {
            let host = ConnectHost {
                kernel: &self.kernel,
                maps: self.maps.fds(),
                output: self.output,
                family,
                paths: self.options.paths.len(),
            };
            let to = AttachTo { btf_id: 0, expected: attach_type(family) };
            self.compile(program, connect::INSTANCE, &host, ProgType::CgroupSockAddr, to)
        };
        Ok([load(Family::V4)?, load(Family::V6)?])
    }

    /// Makes sockets of the control group run these programs when they connect.
    fn run_at_connect(&mut self, uid: ProgramUid, programs: &[OwnedFd; 2]) -> Result<(), DatapathError> {
        if let Some(connects) = &mut self.connects {
            for (link, program) in connects.links.iter().zip(programs) {
                sys::link_replace(link, program).map_err(|e| os_error("replace a program", &e))?;
            }
            connects.uid = uid;
            return Ok(());
        }
        let Some(group) = &self.attached.group else { return Ok(()) };
        let link = |n: usize, family| {
            link_to_group(&programs[n], group, attach_type(family)).map_err(|e| os_error(ATTACH_TO_GROUP, &e))
        };
        self.connects = Some(Connects { links: [link(0, Family::V4)?, link(1, Family::V6)?], uid });
        Ok(())
    }

    /// Tells the kernel the program that flows start with; `None` for none.
    fn put_first(&self, start: Option<(u32, u32, u32)>, regs: &[(u8, i64)]) {
        let page = &self.memory.ctl;
        let word = |field: u32| page.u32((page::FIRST + field) as usize);
        let changes = || word(first::VERSION).fetch_add(1, SeqCst);
        changes();
        let (slot, instance, uid) = start.unwrap_or_default();
        word(first::SLOT).store(slot, Relaxed);
        word(first::INSTANCE).store(instance, Relaxed);
        word(first::UID).store(uid, Relaxed);
        let mut masks = [0u64; 2];
        for (reg, value) in regs {
            masks[usize::from(*reg) / 64] |= 1 << (reg % 64);
            page.i64((page::FIRST + first::REGS) as usize + 8 * usize::from(*reg)).store(*value, Relaxed);
        }
        for (field, mask) in [first::MASK, first::MASK_HIGH].into_iter().zip(masks) {
            page.u64((page::FIRST + field) as usize).store(mask, Relaxed);
        }
        changes();
    }

    /// The program that flows start with, if it is one of packets.
    fn first_uid(&self) -> u32 {
        self.memory.ctl.u32((page::FIRST + first::UID) as usize).load(Relaxed)
    }

    fn compile(
        &self,
        program: &Program,
        instance: u32,
        host: &dyn codegen::Host,
        kind: ProgType,
        to: AttachTo,
    ) -> Result<OwnedFd, DatapathError> {
        let shapes = self.policies.shapes(self.maps.common.fds().policy);
        let compiled = codegen::compile(program, instance, host, &shapes)
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        sys::prog_load(kind, "ccplane_fold", &compiled.insns, to).map_err(|e| refusal(&compiled, &e))
    }
}

fn attach_type(family: Family) -> u32 {
    match family {
        Family::V4 => sys::CGROUP_INET4_CONNECT,
        Family::V6 => sys::CGROUP_INET6_CONNECT,
    }
}

impl Shim for PacketsDatapath {
    type Loaded = LoadedPacketProgram;

    ccplane_contract::program_table!(programs);

    fn check_support(&self, program: &Program) -> Result<(), DatapathError> {
        let unsupported = |feature: &str| Err(DatapathError::Unsupported { feature: feature.to_owned() });
        if program.hook() != Hook::Connect {
            return Ok(());
        }
        if program.writes(Dst::ShouldReport) {
            return unsupported("(report) at (hook connect), where the flow has no name yet");
        }
        if self.options.cgroup.is_none() {
            return unsupported("(hook connect) without a control group");
        }
        Ok(())
    }

    crate::known_flows::known!();

    fn load(&mut self, _: ProgramUid, program: &Arc<Program>) -> Result<LoadedPacketProgram, DatapathError> {
        let instance = self.memory.next_instance();
        let place = match program.hook() {
            // Loaded again, with its fields, when flows are to start with it.
            Hook::Connect => self.load_connect(program).map(|_| Place::Connect)?,
            _ => self.load_send(instance, program)?,
        };
        Ok(LoadedPacketProgram { instance, place })
    }

    /// Flows then start without it.
    fn unload(&mut self, uid: ProgramUid, loaded: &LoadedPacketProgram) -> Result<(), DatapathError> {
        match &loaded.place {
            Place::Send { slot, .. } => {
                if self.first_uid() == uid.0 {
                    self.put_first(None, &[]);
                }
                sys::map_delete(&self.maps.common.slots, &(*slot as u32).to_ne_bytes())
                    .map_err(|e| os_error("empty a slot", &e))?;
            }
            Place::Connect if self.connects.as_ref().is_some_and(|c| c.uid == uid) => self.connects = None,
            Place::Connect => {}
        }
        Ok(())
    }

    fn count_users(&self, _: ProgramUid, loaded: &LoadedPacketProgram) -> usize {
        match &loaded.place {
            Place::Send { slot, .. } => self.users(*slot),
            Place::Connect => 0,
        }
    }

    fn stage(
        &mut self,
        flow: FlowId,
        change: registry::Change<'_, LoadedPacketProgram>,
    ) -> Result<(), DatapathError> {
        let registry::Change { program, starts, fields } = change;
        let Some((uid, registry::Entry { program, loaded, .. })) = program else { return Ok(()) };
        let Place::Send { slot, .. } = loaded.place else {
            let feature = "(hook connect) on a flow that has started".to_owned();
            return Err(DatapathError::Unsupported { feature });
        };
        let values = Values::new(&program, fields);
        let start = Start { slot: slot as u32 + 1, uid: uid.0 };
        let change = values.change(starts.then_some(start), loaded.instance);
        self.known_flows.stage(&self.memory, flow, Some(uid), &change)
    }
}

impl Datapath for PacketsDatapath {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities("packets", ON_PACKETS)
    }

    ccplane_contract::program_commands!();

    fn set_first(&mut self, uid: ProgramUid, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let entry = self.programs.get(uid)?.clone();
        check_fields(Some(&entry.program), fields)?;
        let values = Values::new(&entry.program, fields);
        match entry.loaded.place {
            Place::Send { slot, .. } => {
                let start = (slot as u32 + 1, entry.loaded.instance, uid.0);
                self.put_first(Some(start), &values.regs);
                Ok(())
            }
            Place::Connect => {
                let programs = self.load_connect(&connect::with_fields(&entry.program, &values.regs)?)?;
                self.run_at_connect(uid, &programs)
            }
        }
    }

    fn is_running(&mut self, flow: FlowId, uid: ProgramUid) -> Result<bool, DatapathError> {
        self.programs.get(uid)?;
        let known = self.known_flows.known(&self.memory, flow)?;
        let runs = self.memory.table.uid(flow) == Some(uid);
        if runs {
            known.program = Some(uid);
        }
        Ok(runs)
    }

    fn clear_first(&mut self, hook: Hook) {
        match hook {
            Hook::Connect => self.connects = None,
            _ => self.put_first(None, &[]),
        }
    }

    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return Err(DatapathError::NoSlot(slot));
        }
        match self.slot_shape(slot) {
            Some(known) if known == *shape => return Ok(()),
            Some(_) => return Err(DatapathError::OtherShape { slot }),
            None => self.policies.define(slot, shape, ccplane_files::monotonic_us()),
        }
        self.defined |= 1 << slot;
        Ok(())
    }

    crate::slots::deployment_commands!(policies);

    fn heartbeat(&mut self) {
        let now_us = ccplane_files::monotonic_us();
        let timeout_us = self.options.heartbeat_timeout.as_micros() as u64;
        let page = &self.memory.ctl;
        page.u64(ctl::HEARTBEAT_US as usize).store(now_us, Relaxed);
        page.u64(page::DEADLINE_NS as usize).store((now_us + timeout_us).saturating_mul(1000), Release);
    }

    crate::known_flows::flow_commands!();
}

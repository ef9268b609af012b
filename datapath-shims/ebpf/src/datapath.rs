//! The agent's handle: it attaches the datapath, installs programs, and polls events.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use ccplane_contract::registry::{self, Programs, Shim};
use ccplane_contract::{Capabilities, Datapath, DatapathError, FlowId, ProgramUid};
use ccplane_infer::Shape;
use ccplane_program::ir::{MAX_POLICY_SLOTS, Program};

use crate::attach::{self, Members};
use crate::attachment::Attachment;
use crate::btf::Btf;
use crate::codegen::{self, Compiled};
use crate::error::{EbpfError, os, os_error};
use crate::host::TcpHost;
use crate::kernel::Kernel;
use crate::known_flows::{Instance, KnownFlows};
use crate::layout::{MAX_PROGRAMS, NO_INSTANCE, RING_BYTES, ctl};
use crate::maps::{Memory, OpenMaps, page_bytes};
use crate::movement;
use crate::options::Options;
use crate::pins;
use crate::refusal::refusal;
use crate::ring::Ring;
use crate::slots::SlotMemory;
use crate::table::{Start, Values};
use crate::waiting::KernelEvents;
use ccplane_bpf::{self as sys, AttachTo, ProgType};

/// Enables the kernel's accounting of BPF run time while the result is open, at a small cost to each run.
///
/// # Errors
/// The error of bpf(2).
pub fn account() -> std::io::Result<OwnedFd> {
    sys::enable_stats()
}

/// A program that is loaded into the kernel.
#[derive(Clone)]
pub struct LoadedProgram {
    /// Index into the kernel's array of programs.
    slot: usize,
    instance: u32,
    /// The open program, which the kernel's array alone does not keep.
    _fd: Arc<OwnedFd>,
}

/// Linux TCP as a datapath. Dropping it removes it from the kernel, unless [`EbpfDatapath::leave`] was called.
pub struct EbpfDatapath {
    options: Options,
    kernel: Kernel,
    maps: OpenMaps,
    memory: Memory,
    policies: SlotMemory,
    /// The policy slots that this agent has defined, a bit each.
    defined: u32,
    ring: Arc<Ring>,
    programs: Programs<LoadedProgram>,
    known_flows: KnownFlows,
    /// The program `cong_control`, if this process loaded it: its accounting covers every ACK.
    dispatcher: Option<OwnedFd>,
    /// The layout version of the datapath that this one has replaced.
    replaced: Option<u64>,
    attachment: Attachment,
}

impl EbpfDatapath {
    /// Attaches the datapath, or takes over the one that a previous agent left; its flows are then reported as created.
    ///
    /// A table that is taken over keeps its size. A datapath of another version is replaced: its flows come along, its slots
    /// do not.
    ///
    /// # Errors
    /// [`EbpfError`]; nothing is left behind.
    pub fn attach(options: Options) -> Result<EbpfDatapath, EbpfError> {
        options.check()?;
        let mut attachment = Attachment::new(&options)?;
        let btf = Btf::kernel()?;
        let kernel = Kernel::new(&btf)?;
        let mut replaced = None;
        if pins::exists(&options.run_dir, &options.name) {
            match OpenMaps::open(&pins::directory(&options.run_dir, &options.name)) {
                Ok(maps) => {
                    let lacking = unregistered(&options.requests)?;
                    if !lacking.is_empty() {
                        attach::register_also(
                            &lacking,
                            &options,
                            &btf,
                            &Members::load(&btf, &kernel, &maps)?,
                        )?;
                    }
                    // The datapath stays as it is until it is taken over.
                    let mut datapath = EbpfDatapath::over(options, kernel, maps, None, attachment)?;
                    datapath.attachment.own();
                    return Ok(datapath);
                }
                Err(EbpfError::OtherVersion { found, .. }) => replaced = Some(found),
                Err(error) => return Err(error),
            }
        }
        // An agent killed between two pins may have left some.
        let before = pins::names(&options.run_dir, &options.name);
        pins::remove(&options.run_dir, &options.name)?;
        movement::wait_all_unregistered(&before, &options.name)?;
        attachment.own();
        let (maps, members) = attach::create(&options, &btf, &kernel)?;
        attach::register_also(&unregistered(&options.requests)?, &options, &btf, &members)?;
        movement::bring_along(&kernel, &options, before)?;
        let mut datapath = EbpfDatapath::over(options, kernel, maps, members.into_dispatcher(), attachment)?;
        datapath.replaced = replaced;
        Ok(datapath)
    }

    /// Makes a handle on the attached datapath.
    fn over(
        options: Options,
        kernel: Kernel,
        maps: OpenMaps,
        dispatcher: Option<OwnedFd>,
        attachment: Attachment,
    ) -> Result<EbpfDatapath, EbpfError> {
        let memory = Memory::map(&maps, true)?;
        let policies = maps.slot_memory()?;
        let ring_fd = os("duplicate a descriptor", maps.ring.try_clone())?;
        let ring = Arc::new(os("map the event ring", Ring::new(ring_fd, RING_BYTES, page_bytes()))?);
        // Events that the previous agent did not read are replaced by those made from the flow table.
        ring.drain(|_| true);
        let control = &memory.ctl;
        control.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        control.u64(ctl::SAMPLE_US as usize).store(options.sample_interval.as_micros() as u64, Relaxed);
        control.u32(ctl::AGENT_PID as usize).store(std::process::id(), Relaxed);
        control.u32(ctl::WAITING as usize).store(0, Relaxed);
        control.u32(ctl::WAKER_CORE as usize).store(0, Relaxed);
        let known_flows = KnownFlows::new(Some(options.name.clone()), &memory);
        let mut datapath = EbpfDatapath {
            options,
            kernel,
            maps,
            memory,
            policies,
            defined: 0,
            ring,
            // Fields are staged for the instance of a program.
            programs: Programs::new(MAX_PROGRAMS).keeping_native(),
            known_flows,
            dispatcher,
            replaced: None,
            attachment,
        };
        datapath.heartbeat();
        datapath.known_flows.reconcile(&datapath.memory);
        Ok(datapath)
    }

    /// Detaches the datapath: hands every flow to [`Options::handback`], in every reachable network namespace, and
    /// removes the datapath from the kernel.
    ///
    /// Returns how many flows were moved.
    ///
    /// # Errors
    /// [`EbpfError`] if flows could not be moved or a pin could not be removed; what could be done is done.
    pub fn detach(mut self) -> Result<u64, EbpfError> {
        self.take_out()
    }

    /// The layout version of the datapath that this one has replaced; `None` if there was none, or it was taken over.
    pub fn replaced(&self) -> Option<u64> {
        self.replaced
    }

    /// Leaves the datapath and its flows to the next agent, as a killed agent does.
    pub fn leave(mut self) {
        self.attachment.disown();
    }

    fn take_out(&mut self) -> Result<u64, EbpfError> {
        self.attachment.draw_on_reserve();
        self.attachment.check().inspect_err(|_| self.attachment.disown())?;
        let moved = self.hand_back();
        self.attachment.remove()?;
        moved
    }

    fn hand_back(&self) -> Result<u64, EbpfError> {
        movement::hand_back(&self.kernel, &self.options)
    }

    /// The names of [`Options::requests`] under which sockets cannot choose this datapath: the kernel has others of that name.
    pub fn names_taken(&self) -> Vec<&str> {
        let ours = pins::names(&self.options.run_dir, &self.options.name);
        let wanted = self.options.requests.iter().filter(|name| **name != self.options.name);
        wanted.filter(|name| !ours.contains(name)).map(String::as_str).collect()
    }

    /// Moves running TCP flows of congestion control `from` to this datapath; returns how many.
    ///
    /// It moves those of the network namespace at `netns` (such as /run/netns/NAME), or of every reachable one.
    ///
    /// # Errors
    /// [`EbpfError`] when a namespace or the iterator cannot be used.
    pub fn adopt(&self, from: &str, netns: Option<&Path>) -> Result<u64, EbpfError> {
        movement::move_flows(&self.kernel, from, &self.options.name, netns)
    }

    /// Sleeps until an event arrives, or `timeout` passes.
    ///
    /// # Errors
    /// The error of ppoll(2).
    pub fn wait(&self, timeout: Duration) -> std::io::Result<()> {
        self.events().wait(timeout, None)
    }

    /// The datapath's events, to wait for.
    pub fn events(&self) -> KernelEvents<'_> {
        KernelEvents::new(&self.memory, &self.ring, &self.known_flows)
    }

    /// The nanoseconds and ACKs that the kernel has accounted to this datapath, programs included, while an [`account`]
    /// was open.
    ///
    /// `None` for a datapath that was taken over.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn accounted(&self) -> std::io::Result<Option<(u64, u64)>> {
        self.dispatcher.as_ref().map(sys::prog_stats).transpose()
    }

    /// Installs a program that returns at once, as the baseline of benchmarks.
    ///
    /// The window of a flow that runs it stays as it is.
    ///
    /// # Errors
    /// As [`Datapath::install`].
    pub fn install_empty(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let nothing = ccplane_program::ir::Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new())
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let mut asm = ccplane_nn_codegen::asm::Asm::default();
        asm.exit0();
        let done = asm.finish().map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        self.programs.check_room(uid)?;
        let slot = self.free_slot()?;
        let loaded = self.put(slot, NO_INSTANCE, &Compiled::plain(done.insns))?;
        self.programs.insert(uid, Arc::new(nothing), loaded);
        Ok(())
    }

    /// Returns a slot that holds no program, and whose last one no flow runs any more.
    fn free_slot(&self) -> Result<usize, DatapathError> {
        let is_taken = |slot| self.programs.iter().any(|(_, program)| program.loaded.slot == slot);
        let free = (0..MAX_PROGRAMS).find(|slot| !is_taken(*slot) && self.users(*slot) == 0);
        free.ok_or(DatapathError::ProgramsFull { limit: MAX_PROGRAMS })
    }

    /// Loads a compiled program and puts it into a slot.
    fn put(&self, slot: usize, instance: u32, compiled: &Compiled) -> Result<LoadedProgram, DatapathError> {
        let to = AttachTo { btf_id: self.kernel.ops_type, expected: self.kernel.cong_control };
        let fd = sys::prog_load(ProgType::StructOps, "ccplane_fold", &compiled.insns, to)
            .map_err(|e| refusal(compiled, &e))?;
        sys::map_update(&self.maps.slots, &(slot as u32).to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
            .map_err(|e| os_error("put the program into its slot", &e))?;
        Ok(LoadedProgram { slot, instance, _fd: Arc::new(fd) })
    }

    /// The number of flows that run the program in a slot, or are about to.
    fn users(&self, slot: usize) -> usize {
        let slot = slot as u32 + 1;
        self.memory.table.live().filter(|(index, _)| self.memory.table.slots(*index).contains(&slot)).count()
    }
}

impl Instance for LoadedProgram {
    fn instance(&self) -> u32 {
        self.instance
    }
}

/// Returns those of these names that the kernel has no congestion control of.
fn unregistered(names: &[String]) -> Result<BTreeSet<&str>, EbpfError> {
    let mut lacking = BTreeSet::new();
    for name in names {
        if !movement::is_registered(name)? {
            lacking.insert(name.as_str());
        }
    }
    Ok(lacking)
}

impl Drop for EbpfDatapath {
    fn drop(&mut self) {
        if self.attachment.is_ours() {
            // Callers that need the error call `detach`.
            let _ = self.take_out();
        }
    }
}

impl Shim for EbpfDatapath {
    type Loaded = LoadedProgram;

    ccplane_contract::program_table!(programs);

    crate::known_flows::known!();

    fn load(&mut self, _: ProgramUid, program: &Arc<Program>) -> Result<LoadedProgram, DatapathError> {
        let slot = self.free_slot()?;
        let instance = self.memory.next_instance();
        let host = TcpHost { kernel: &self.kernel, maps: self.maps.fds(), instance };
        let shapes = self.policies.shapes(self.maps.fds().policy);
        let compiled = codegen::compile(program, instance, &host, &shapes)
            .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        self.put(slot, instance, &compiled)
    }

    fn unload(&mut self, _: ProgramUid, loaded: &LoadedProgram) -> Result<(), DatapathError> {
        sys::map_delete(&self.maps.slots, &(loaded.slot as u32).to_ne_bytes())
            .map_err(|e| os_error("empty a slot", &e))
    }

    fn count_users(&self, _: ProgramUid, loaded: &LoadedProgram) -> usize {
        self.users(loaded.slot)
    }

    fn stage(
        &mut self,
        flow: FlowId,
        change: registry::Change<'_, LoadedProgram>,
    ) -> Result<(), DatapathError> {
        let registry::Change { program, starts, fields } = change;
        let Some((uid, registry::Entry { program, loaded, .. })) = program else { return Ok(()) };
        let values = Values::new(&program, fields);
        let start = Start { slot: loaded.slot as u32 + 1, uid: uid.0 };
        let change = values.change(starts.then_some(start), loaded.instance);
        self.known_flows.stage(&self.memory, flow, Some(uid), &change)
    }
}

impl Datapath for EbpfDatapath {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities("ebpf", ccplane_contract::ON_ACKS)
    }

    ccplane_contract::program_commands!();

    fn requested(&self, flow: FlowId) -> Option<&str> {
        self.known_flows.requested(flow)
    }

    /// Slots outlive the agent. The next one may define them with other shapes, before it installs programs that ask
    /// them: flows of the previous agent then get no answer.
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return Err(DatapathError::NoSlot(slot));
        }
        let (bit, other) = (1 << slot, self.policies.shape(slot) != Some(*shape));
        if other && self.defined & bit != 0 {
            return Err(DatapathError::OtherShape { slot });
        }
        if other {
            self.policies.define(slot, shape, ccplane_files::monotonic_us());
        }
        self.defined |= bit;
        Ok(())
    }

    crate::slots::deployment_commands!(policies);

    fn heartbeat(&mut self) {
        self.memory.ctl.u64(ctl::HEARTBEAT_US as usize).store(ccplane_files::monotonic_us(), Release);
    }

    crate::known_flows::flow_commands!();
}

//! The agent's handle: attaches the datapath, installs programs, takes events.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use ccplane_contract::slots::check_policies;
use ccplane_contract::{
    Capabilities, Datapath, DatapathError, Event, Field, FlowId, FlowStats, Part, ProgramUid, SlotStats,
    check_fields,
};
use ccplane_infer::Shape;
use ccplane_program::ir::{MAX_POLICY_SLOTS, MAX_REGS, Program};

use crate::attach;
use crate::attachment::Attachment;
use crate::btf::Btf;
use crate::codegen::{self, Compiled};
use crate::error::{EbpfError, os};
use crate::host::TcpHost;
use crate::kernel::Kernel;
use crate::layout::{MAX_PROGRAMS, NO_INSTANCE, RING_BYTES, STAGE_RELEASE, ctl, event};
use crate::maps::{Memory, OpenMaps, page_bytes};
use crate::movement;
use crate::options::Options;
use crate::pins;
use crate::refusal::refusal;
use crate::ring::{Record, Ring};
use crate::slots::SlotMemory;
use crate::sys::{self, AttachTo, ProgType};
use crate::table::{Change, Start, Values, index_of};

/// While the result is open, the kernel accounts the run time of BPF programs, at a small cost to each run.
///
/// # Errors
/// What bpf(2) says.
pub fn account() -> std::io::Result<OwnedFd> {
    sys::enable_stats()
}

/// An installed program.
struct Installed {
    uid: ProgramUid,
    instance: u32,
    program: Program,
    /// Kept open: the program array alone does not count as a user.
    _fd: OwnedFd,
}

/// A flow that the agent was told of.
struct Known {
    flow: FlowId,
    /// The slot of the program set on it.
    slot: Option<usize>,
}

/// Linux TCP as a datapath. Dropped, it is taken out of the kernel, unless [`EbpfDatapath::leave`] was called.
pub struct EbpfDatapath {
    options: Options,
    kernel: Kernel,
    maps: OpenMaps,
    memory: Memory,
    policies: SlotMemory,
    /// The policy slots that this agent has defined, a bit each.
    defined: u32,
    ring: Ring,
    slots: Vec<Option<Installed>>,
    /// By record.
    known: HashMap<u32, Known>,
    /// Events that wait to be polled.
    pending: VecDeque<Event>,
    /// Drops in the kernel that were told.
    dropped: u64,
    /// Our `cong_control`, if we loaded it ourselves: its account is every ACK's.
    dispatcher: Option<OwnedFd>,
    attachment: Attachment,
}

impl EbpfDatapath {
    /// Attaches the datapath, or takes over the one that a previous agent left, whose flows are then told as
    /// created. A table that is taken over keeps its size.
    ///
    /// # Errors
    /// [`EbpfError`]; nothing is left behind.
    pub fn attach(options: Options) -> Result<EbpfDatapath, EbpfError> {
        options.check()?;
        let mut attachment = Attachment::new(&options)?;
        let btf = Btf::kernel()?;
        let kernel = Kernel::new(&btf)?;
        if pins::exists(&options.run_dir, &options.name) {
            let maps = OpenMaps::open(&pins::directory(&options.run_dir, &options.name))?;
            // Until it is taken over it stays as it is.
            let mut datapath = EbpfDatapath::over(options, kernel, maps, None, attachment)?;
            datapath.attachment.own();
            return Ok(datapath);
        }
        // A kill between two pins may have left some.
        pins::remove(&options.run_dir, &options.name)?;
        movement::wait_unregistered(&options.name)?;
        attachment.own();
        let (maps, dispatcher) = attach::create(&options, &btf, &kernel)?;
        EbpfDatapath::over(options, kernel, maps, Some(dispatcher), attachment)
    }

    /// The handle on what is attached.
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
        let ring = os("map the event ring", Ring::new(ring_fd, RING_BYTES, page_bytes()))?;
        // What the previous agent did not read is told anew from the flow table.
        ring.drain(|_| true);
        let control = &memory.ctl;
        control.u64(ctl::TIMEOUT_US as usize).store(options.heartbeat_timeout.as_micros() as u64, Relaxed);
        control.u64(ctl::SAMPLE_US as usize).store(options.sample_interval.as_micros() as u64, Relaxed);
        control.u32(ctl::AGENT_PID as usize).store(std::process::id(), Relaxed);
        control.u32(ctl::WAITING as usize).store(0, Relaxed);
        let dropped = control.u64(ctl::DROPPED as usize).load(Relaxed);
        let mut datapath = EbpfDatapath {
            options,
            kernel,
            maps,
            memory,
            policies,
            defined: 0,
            ring,
            slots: (0..MAX_PROGRAMS).map(|_| None).collect(),
            known: HashMap::new(),
            pending: VecDeque::new(),
            dropped,
            dispatcher,
            attachment,
        };
        datapath.heartbeat();
        datapath.look_around();
        Ok(datapath)
    }

    /// Tells of the flows that started and ended without an event that we saw.
    fn look_around(&mut self) {
        let gone = |known: &Known| self.memory.table.index(known.flow).is_none();
        let gone: Vec<FlowId> = self.known.values().filter(|k| gone(k)).map(|k| k.flow).collect();
        gone.into_iter().for_each(|flow| self.closed(flow));
        let live: Vec<FlowId> = self.memory.table.live().map(|(_, flow)| flow).collect();
        live.into_iter().for_each(|flow| self.created(flow));
    }

    fn created(&mut self, flow: FlowId) {
        if self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow) {
            return;
        }
        // A flow that has ended since is not worth telling of: nothing is known of it any more.
        let Some(info) = self.memory.table.info(flow) else { return };
        if let Some(before) = self.known.insert(index_of(flow), Known { flow, slot: None }) {
            self.pending.push_back(Event::Closed { flow: before.flow });
        }
        self.pending.push_back(Event::Created { flow, info });
    }

    fn closed(&mut self, flow: FlowId) {
        if self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow) {
            self.known.remove(&index_of(flow));
            self.pending.push_back(Event::Closed { flow });
        }
    }

    /// Hands every flow to [`Options::handback`], in every network namespace that can be reached, and removes
    /// the datapath from the kernel. Returns how many flows were moved.
    ///
    /// # Errors
    /// [`EbpfError`] if flows could not be moved or a pin could not be removed; what could be done is done.
    pub fn detach(mut self) -> Result<u64, EbpfError> {
        self.take_out()
    }

    /// Leaves the datapath and its flows to the next agent, as one that is killed does.
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
        let to = movement::available(&self.options.handback);
        movement::move_flows(&self.kernel, &self.options.name, to, None)
    }

    /// Moves the running TCP flows of congestion control `from` to this datapath: those of the network
    /// namespace at `netns` (such as /run/netns/NAME), or of every one that can be reached. Returns how many.
    ///
    /// # Errors
    /// [`EbpfError`] when a namespace or the iterator cannot be used.
    pub fn adopt(&self, from: &str, netns: Option<&Path>) -> Result<u64, EbpfError> {
        movement::move_flows(&self.kernel, from, &self.options.name, netns)
    }

    /// Sleeps until an event arrives, or `timeout` passed.
    ///
    /// # Errors
    /// What poll(2) says.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<()> {
        let waiting = self.memory.ctl.u32(ctl::WAITING as usize);
        waiting.store(1, SeqCst);
        // A producer that looked before the store did not wake us: look again before sleeping.
        fence(SeqCst);
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
        let mut asm = ccplane_asm::Asm::default();
        asm.exit0();
        let done = asm.finish().map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let slot = self.slot_for(uid)?;
        self.put(slot, uid, NO_INSTANCE, &nothing, &Compiled::plain(done.insns))
    }

    /// A free slot for a new program.
    fn slot_for(&self, uid: ProgramUid) -> Result<usize, DatapathError> {
        if self.slot(uid).is_ok() {
            let reason = format!("a program is already installed as {}", uid.0);
            return Err(DatapathError::Refused { at: None, reason });
        }
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

    /// The shape of a slot that this agent has defined: what the one before left there is what it wanted.
    fn shape(&self, slot: u8) -> Option<Shape> {
        let defined = usize::from(slot) < MAX_POLICY_SLOTS && self.defined & 1 << slot != 0;
        defined.then(|| self.policies.shape(slot)).flatten()
    }

    /// Whether an event waits to be polled; no system call.
    pub fn has_events(&self) -> bool {
        !self.ring.is_empty() || !self.pending.is_empty()
    }

    /// The slot of an installed program.
    fn slot(&self, uid: ProgramUid) -> Result<(usize, &Installed), DatapathError> {
        let found = self
            .slots
            .iter()
            .enumerate()
            .find_map(|(n, s)| s.as_ref().filter(|s| s.uid == uid).map(|s| (n, s)));
        found.ok_or(DatapathError::NoProgram(uid))
    }

    /// Flows that run the program in a slot, or are about to.
    fn users(&self, slot: usize) -> usize {
        let slot = slot as u32 + 1;
        self.memory.table.live().filter(|(index, _)| self.memory.table.slots(*index).contains(&slot)).count()
    }

    /// The flow's entry, if the flow lives.
    fn known(&mut self, flow: FlowId) -> Result<&mut Known, DatapathError> {
        if self.memory.table.index(flow).is_none() {
            return Err(DatapathError::NoFlow(flow));
        }
        // It may be listed before its event is polled.
        self.created(flow);
        let entry = self.known.get_mut(&index_of(flow)).filter(|k| k.flow == flow);
        entry.ok_or(DatapathError::NoFlow(flow))
    }

    fn stage(
        &self,
        flow: FlowId,
        installed: &Installed,
        program: Option<Start>,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        check_fields(Some(&installed.program), fields)?;
        let values = Values::new(&installed.program, fields);
        let change = Change {
            program,
            instance: installed.instance,
            cwnd: values.cwnd,
            rate: values.rate,
            regs: &values.regs,
        };
        if self.memory.table.stage(flow, &change) { Ok(()) } else { Err(DatapathError::NoFlow(flow)) }
    }

    fn take(&mut self, record: Taken) {
        let flow = FlowId(record.flow);
        match record.kind {
            event::CREATED => self.created(flow),
            event::CLOSED => self.closed(flow),
            _ => {
                let known = self.known.get(&index_of(flow)).is_some_and(|k| k.flow == flow);
                let by = self.slots.iter().flatten().find(|s| s.instance == record.instance);
                if let (Some(by), true) = (by, known) {
                    let Taken { seq, at_us, values, .. } = record;
                    self.pending.push_back(Event::Report { flow, program: by.uid, seq, at_us, values });
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
    values: ccplane_contract::Values,
}

impl Taken {
    fn new(record: Record<'_>) -> Taken {
        let len = record.u32(event::LEN).min(MAX_REGS as u32);
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

impl Drop for EbpfDatapath {
    fn drop(&mut self) {
        if self.attachment.is_ours() {
            // Whoever wants to know calls `detach`.
            let _ = self.take_out();
        }
    }
}

fn os_error(what: &str, e: &std::io::Error) -> DatapathError {
    DatapathError::Os { what: what.into(), errno: e.kind() }
}

impl Datapath for EbpfDatapath {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "ebpf",
            max_programs: MAX_PROGRAMS,
            max_flows: self.memory.table.records() as usize,
            policy: true,
            full_language: true,
        }
    }

    fn install(&mut self, uid: ProgramUid, program: &Program) -> Result<(), DatapathError> {
        check_policies(program, |slot| self.shape(slot))?;
        let slot = self.slot_for(uid)?;
        let instance = self.memory.ctl.u64(ctl::NEXT_INSTANCE as usize).fetch_add(1, Relaxed) as u32 + 1;
        let host = TcpHost { kernel: &self.kernel, maps: self.maps.fds(), instance };
        let compiled =
            codegen::compile(program, instance, &host, &self.policies.shapes(self.maps.fds().policy))
                .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        self.put(slot, uid, instance, program, &compiled)
    }

    fn remove(&mut self, uid: ProgramUid) -> Result<(), DatapathError> {
        let (slot, _) = self.slot(uid)?;
        let flows = self.users(slot);
        if flows > 0 {
            return Err(DatapathError::ProgramInUse { uid, flows });
        }
        sys::map_delete(&self.maps.slots, &(slot as u32).to_ne_bytes())
            .map_err(|e| os_error("empty a slot", &e))?;
        self.slots[slot] = None;
        Ok(())
    }

    fn set_program(
        &mut self,
        flow: FlowId,
        uid: ProgramUid,
        fields: &[(Field, i64)],
    ) -> Result<(), DatapathError> {
        self.known(flow)?;
        let (slot, installed) = self.slot(uid)?;
        let start = Start { slot: slot as u32 + 1, uid: uid.0 };
        self.stage(flow, installed, Some(start), fields)?;
        self.known(flow)?.slot = Some(slot);
        Ok(())
    }

    fn update(&mut self, flow: FlowId, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
        let slot = self.known(flow)?.slot;
        match (slot.and_then(|s| self.slots[s].as_ref()), fields.first()) {
            (Some(installed), _) => self.stage(flow, installed, None, fields),
            (None, Some((field, _))) => Err(DatapathError::BadField(*field)),
            (None, None) => Ok(()),
        }
    }

    fn release(&mut self, flow: FlowId) -> Result<(), DatapathError> {
        self.known(flow)?;
        let program = Some(Start { slot: STAGE_RELEASE, uid: 0 });
        if !self
            .memory
            .table
            .stage(flow, &Change { program, instance: NO_INSTANCE, cwnd: None, rate: None, regs: &[] })
        {
            return Err(DatapathError::NoFlow(flow));
        }
        self.known(flow)?.slot = None;
        Ok(())
    }

    /// Slots outlive the agent. The next one may define them with other shapes, before it installs programs that ask
    /// them: flows of the one before then find no answer.
    fn define_slot(&mut self, slot: u8, shape: &Shape) -> Result<(), DatapathError> {
        if usize::from(slot) >= MAX_POLICY_SLOTS {
            return Err(DatapathError::NoSlot(slot));
        }
        let (bit, other) = (1 << slot, self.policies.shape(slot) != Some(*shape));
        if other && self.defined & bit != 0 {
            return Err(DatapathError::OtherShape { slot });
        }
        if other {
            self.policies.define(slot, shape, sys::monotonic_us());
        }
        self.defined |= bit;
        Ok(())
    }

    fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.policies.push(slot, image, part, sys::monotonic_us())
    }

    fn share(&mut self, slot: u8, share: u16) -> Result<(), DatapathError> {
        self.policies.share(slot, share, sys::monotonic_us())
    }

    fn promote(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.policies.promote(slot, sys::monotonic_us())
    }

    fn rollback(&mut self, slot: u8) -> Result<(), DatapathError> {
        self.policies.rollback(slot, sys::monotonic_us())
    }

    fn slots(&mut self) -> Vec<SlotStats> {
        self.policies.stats()
    }

    fn heartbeat(&mut self) {
        self.memory.ctl.u64(ctl::HEARTBEAT_US as usize).store(sys::monotonic_us(), Release);
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        self.memory.table.all_stats(self.memory.is_silent())
    }

    fn poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let mut taken = Vec::new();
        let room = max.saturating_sub(self.pending.len());
        self.ring.drain(|record| {
            let fits = taken.len() < room;
            if fits {
                taken.push(Taken::new(record));
            }
            fits
        });
        for record in taken {
            self.take(record);
        }
        let dropped = self.memory.ctl.u64(ctl::DROPPED as usize).load(Relaxed);
        if dropped != self.dropped {
            self.pending.push_back(Event::Dropped { count: dropped - self.dropped });
            self.dropped = dropped;
            // Starts and ends of flows may be among them.
            self.look_around();
        }
        let count = max.min(self.pending.len());
        events.extend(self.pending.drain(..count));
        count
    }
}

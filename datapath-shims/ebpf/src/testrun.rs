//! Runs compiled programs in the kernel on made-up primitives, without a flow; the conformance suite and the benchmarks
//! use it.
//!
//! The fold's code is the same as on live flows; only the host differs.

mod inference;

pub use inference::InferenceBench;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use ccplane_contract::slots::check_policies;
use ccplane_contract::suite::{
    Executor, ExecutorError, Observation, PolicyObservation, Script, ScriptStep, Sending,
};
use ccplane_contract::{DatapathError, Field, FlowId, Part};
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{ACK_PRIM_COUNT, Hook, MAX_REGS, PRIM_COUNT, Prim, Program};
use ccplane_program::vm::{InvokeOutcome, PrimValues, Prims, ProgramState};

use crate::codegen::{self, Host, claim_staged};
use crate::error::{EbpfError, os};
use crate::frame::{FLAG_ASKED, FLAGS, REC};
use crate::layout::{policy, rec, stage};
use crate::maps::page_bytes;
use crate::slots::{GRACE_US, SlotMemory};
use crate::table::{Change, FREE, Start, Table, Values};
use ccplane_bpf::{self as sys, AttachTo, MapType, ProgType, SharedMap};
use ccplane_nn_codegen::asm::{Alu, Asm, R, Size};

/// ACKs that a stream holds; a power of two.
pub const STREAM_ACKS: usize = 256;
/// Offsets in the exchange map.
///
/// In order: the number of invocations, the microseconds that the clock moves with each, and whether the program
/// reported. Then comes how the last invocation that may have asked a policy ended ([`FLAGS`]). Then come how often
/// the flow was given up, the flow's segment size, the reported values, and the primitives of each ACK of the stream.
const COUNT: u32 = 0;
const GAP_US: u32 = 8;
const REPORTED: u32 = 16;
const ENDED: u32 = 24;
const GIVEN_UP: u32 = 32;
const MSS: u32 = 40;
const VALUES: u32 = 48;
const STREAM: u32 = VALUES + 8 * MAX_REGS as u32;
const ACK_SHIFT: u32 = 7;
/// The last place has room for the primitives of a packet, too.
const EXCHANGE_BYTES: u32 = STREAM + ((STREAM_ACKS as u32) << ACK_SHIFT) + 8 * PRIM_COUNT as u32;
const _: () = assert!(8 * ACK_PRIM_COUNT <= 1 << ACK_SHIFT);

/// The place of a primitive among those of its hook; those of packets take the room of several ACKs.
fn stream_index(prim: Prim) -> u16 {
    match prim as u16 {
        ack if ack < ACK_PRIM_COUNT as u16 => ack,
        other => other - ACK_PRIM_COUNT as u16,
    }
}

/// R8 points at the primitives of this ACK.
struct TestHost {
    record: i32,
    exchange: i32,
    /// Whether the program asks policies.
    asks: bool,
}

impl Host for TestHost {
    fn enter(&self, asm: &mut Asm) {
        asm.map_value(REC, self.record, 0);
        asm.map_value(R::R8, self.exchange, 0);
        asm.load(Size::B8, R::R1, R::R8, COUNT as i16);
        asm.mov(R::R2, R::R1);
        asm.alu_imm(Alu::Add, R::R1, 1);
        asm.store(Size::B8, R::R8, COUNT as i16, R::R1);
        asm.alu_imm(Alu::And, R::R2, STREAM_ACKS as i32 - 1);
        asm.alu_imm(Alu::Lsh, R::R2, ACK_SHIFT as i32);
        asm.alu_imm(Alu::Add, R::R8, STREAM as i32);
        asm.alu(Alu::Add, R::R8, R::R2);
        claim_staged(asm);
    }
    fn load_prim(&self, asm: &mut Asm, prim: Prim) {
        asm.load(Size::B8, R::R1, R::R8, 8 * stream_index(prim) as i16);
        if prim == Prim::AckNow {
            asm.map_value(R::R2, self.exchange, 0);
            asm.load(Size::B8, R::R3, R::R2, COUNT as i16);
            asm.load(Size::B8, R::R4, R::R2, GAP_US as i16);
            asm.alu(Alu::Mul, R::R3, R::R4);
            asm.alu(Alu::Add, R::R1, R::R3);
        }
    }
    fn load_mss(&self, asm: &mut Asm) {
        asm.map_value(R::R2, self.exchange, 0);
        asm.load(Size::B4, R::R1, R::R2, MSS as i16);
    }
    fn apply(&self, _: &mut Asm) {}
    fn report(&self, asm: &mut Asm, report_len: usize, _: bool) {
        asm.map_value(R::R2, self.exchange, 0);
        asm.store_imm(Size::B8, R::R2, REPORTED as i16, 1);
        for n in 0..report_len {
            asm.load(Size::B8, R::R1, REC, rec::REGS as i16 + 8 * n as i16);
            asm.store(Size::B8, R::R2, VALUES as i16 + 8 * n as i16, R::R1);
        }
    }
    fn give_up(&self, asm: &mut Asm) {
        asm.map_value(R::R2, self.exchange, 0);
        asm.load(Size::B8, R::R1, R::R2, GIVEN_UP as i16);
        asm.alu_imm(Alu::Add, R::R1, 1);
        asm.store(Size::B8, R::R2, GIVEN_UP as i16, R::R1);
    }
    fn leave(&self, asm: &mut Asm) {
        if self.asks {
            asm.map_value(R::R2, self.exchange, 0);
            asm.store(Size::B8, R::R2, ENDED as i16, FLAGS);
        }
        asm.exit0();
    }
}

/// One record and the memory through which primitives go in and reports come out.
pub struct Bench {
    record: OwnedFd,
    exchange: OwnedFd,
    policy: OwnedFd,
    memory: SharedMap,
    table: Table,
    slots: SlotMemory,
    /// The clock by which buffers rest, microseconds.
    now_us: u64,
    /// The id of the record's flow.
    flow: FlowId,
    io: SharedMap,
}

/// A program loaded for a [`Bench`].
pub struct TestProgram {
    fd: OwnedFd,
    instance: u32,
    program: Program,
    /// Number of BPF instructions, before the kernel's own rewriting.
    pub insns: usize,
}

impl Bench {
    /// Creates the maps of a bench.
    ///
    /// # Errors
    /// [`EbpfError::Os`], usually for lack of CAP_BPF.
    pub fn new() -> Result<Bench, EbpfError> {
        let map = |name, bytes| {
            os(
                format!("create map {name}"),
                sys::map_create(MapType::Array, name, 4, bytes, 1, sys::F_MMAPABLE),
            )
        };
        let (record, exchange) = (map("ccplane_rec", rec::BYTES)?, map("ccplane_io", EXCHANGE_BYTES)?);
        let policy = map("ccplane_policy", policy::BYTES)?;
        let page = page_bytes();
        let memory = os("map the record", SharedMap::new(&record, 0, page, true))?;
        let table = Table::new(os("map the record", SharedMap::new(&record, 0, page, true))?, 1, rec::BYTES);
        let io_bytes = (EXCHANGE_BYTES as usize).next_multiple_of(page);
        let io = os("map the exchange", SharedMap::new(&exchange, 0, io_bytes, true))?;
        let slot_bytes = (policy::BYTES as usize).next_multiple_of(page);
        let slots = SlotMemory::new(os("map the slots", SharedMap::new(&policy, 0, slot_bytes, true))?);
        slots.fill_tables();
        let (now_us, flow) = (GRACE_US, FlowId(1));
        Ok(Bench { record, exchange, policy, memory, table, slots, now_us, flow, io })
    }

    /// Defines a policy slot, which is then empty, before programs that ask it are loaded.
    pub fn define_slot(&mut self, slot: u8, shape: &Shape) {
        self.slots.define(slot, shape, self.now_us);
    }

    /// Pushes a snapshot, with all buffers taken to have rested long enough.
    ///
    /// # Errors
    /// As [`ccplane_contract::Datapath::push`], without `SlotBusy`.
    pub fn push(&mut self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.now_us += GRACE_US;
        self.slots.push(slot, image, part, self.now_us)
    }

    /// Pushes a snapshot as the datapath does, also while programs run: buffers rest by the clock.
    ///
    /// # Errors
    /// As [`ccplane_contract::Datapath::push`].
    pub fn push_now(&self, slot: u8, image: &[u64], part: Part) -> Result<(), DatapathError> {
        self.slots.push(slot, image, part, ccplane_files::monotonic_us())
    }

    /// Compiles and loads a program.
    ///
    /// # Errors
    /// [`DatapathError::NoSlot`]; [`DatapathError::Refused`] by the verifier.
    pub fn load(&self, program: &Program, instance: u32) -> Result<TestProgram, DatapathError> {
        check_policies(program, |slot| self.slots.shape(slot))?;
        let host = TestHost {
            record: self.record.as_raw_fd(),
            exchange: self.exchange.as_raw_fd(),
            asks: !program.policy_slots().is_empty(),
        };
        let compiled =
            codegen::compile(program, instance, &host, &self.slots.shapes(self.policy.as_raw_fd()))
                .map_err(|e| DatapathError::Refused { at: None, reason: e.to_string() })?;
        let fd = sys::prog_load(ProgType::SchedCls, "ccplane_test", &compiled.insns, AttachTo::default())
            .map_err(|e| crate::refusal::refusal(&compiled, &e))?;
        Ok(TestProgram { fd, instance, program: program.clone(), insns: compiled.insns.len() })
    }

    /// Puts a flow's state into the record, with nothing staged.
    pub fn set(&self, flow: &ProgramState) {
        self.memory.u32(rec::STAGE_STATE as usize).store(stage::EMPTY, Relaxed);
        for (n, v) in flow.regs.iter().enumerate() {
            self.memory.i64(rec::REGS as usize + 8 * n).store(*v, Relaxed);
        }
        self.memory.i64(rec::CWND as usize).store(flow.cwnd_bytes, Relaxed);
        self.memory.i64(rec::RATE as usize).store(flow.rate_bytes_per_s, Relaxed);
        self.memory.i64(rec::PRIORITY as usize).store(flow.priority, Relaxed);
        self.memory.i64(rec::PATH as usize).store(flow.path, Relaxed);
        self.memory.i64(rec::DECIDE_AT as usize).store(flow.decide_at_bytes, Relaxed);
        self.memory.i64(rec::MICROS_ZERO as usize).store(flow.micros_zero_us, Relaxed);
        self.memory.u64(rec::FAULTS as usize).store(flow.faults, Relaxed);
        for (n, v) in flow.histories.iter().enumerate() {
            self.memory.u32(rec::HISTORY as usize + 4 * n).store(*v as u32, Relaxed);
        }
        self.memory.i64(rec::ACTION as usize).store(flow.action_q16, Relaxed);
        self.memory.u32(rec::SNAPSHOT as usize).store(flow.snapshot, Relaxed);
    }

    /// Makes the record's flow a new one with this id and no policy state.
    pub fn rename(&mut self, flow: FlowId) {
        self.flow = flow;
        for at in (rec::NOISE..rec::HISTORY).step_by(8) {
            self.memory.u64(at as usize).store(0, Relaxed);
        }
    }

    /// The policy state of the flow.
    pub fn policy(&self) -> FlowPolicy {
        self.table.policy(0)
    }

    /// Returns the number of times that the program gave up the flow in the last [`Bench::time`] or
    /// [`Bench::invoke`].
    pub fn given_up(&self) -> u64 {
        self.io.u64(GIVEN_UP as usize).load(Relaxed)
    }

    /// Reads the flow's state back.
    pub fn get(&self) -> ProgramState {
        let mut regs = [0; MAX_REGS];
        for (n, v) in regs.iter_mut().enumerate() {
            *v = self.memory.i64(rec::REGS as usize + 8 * n).load(Relaxed);
        }
        let histories =
            std::array::from_fn(|n| self.memory.u32(rec::HISTORY as usize + 4 * n).load(Relaxed) as i32);
        ProgramState {
            regs,
            cwnd_bytes: self.memory.i64(rec::CWND as usize).load(Relaxed),
            rate_bytes_per_s: self.memory.i64(rec::RATE as usize).load(Relaxed),
            priority: self.memory.i64(rec::PRIORITY as usize).load(Relaxed),
            path: self.memory.i64(rec::PATH as usize).load(Relaxed),
            decide_at_bytes: self.memory.i64(rec::DECIDE_AT as usize).load(Relaxed),
            micros_zero_us: self.memory.i64(rec::MICROS_ZERO as usize).load(Relaxed),
            faults: self.memory.u64(rec::FAULTS as usize).load(Relaxed),
            histories,
            action_q16: self.memory.i64(rec::ACTION as usize).load(Relaxed),
            snapshot: self.memory.u32(rec::SNAPSHOT as usize).load(Relaxed),
        }
    }

    /// Stages field updates, and a start of the program if `start`, as the agent does for live flows.
    ///
    /// False if the record could not be claimed.
    pub fn stage(&self, to: &TestProgram, start: bool, fields: &[(Field, i64)]) -> bool {
        let Values { cwnd, rate, regs } = Values::new(&to.program, fields);
        let program = start.then_some(Start { slot: 1, uid: 0 });
        // An id contains the flow's place in the table; a made-up one does not.
        let id = self.memory.u64(rec::ID as usize);
        id.store(FREE.0, Relaxed);
        let change = Change { program, instance: to.instance, cwnd, rate, regs: &regs };
        let staged = self.table.stage(FREE, &change);
        id.store(self.flow.0, Relaxed);
        staged
    }

    /// Invokes the program once, in the kernel. If it reports, the values are in `report`.
    ///
    /// # Errors
    /// [`EbpfError::Os`] if the kernel does not run it.
    pub fn invoke(
        &self,
        program: &TestProgram,
        prims: &impl PrimValues,
        report: &mut [i64; MAX_REGS],
    ) -> Result<InvokeOutcome, EbpfError> {
        self.io.u64(COUNT as usize).store(0, Relaxed);
        self.io.u64(GAP_US as usize).store(0, Relaxed);
        self.put(0, program.program.hook(), prims);
        for at in [REPORTED, ENDED, GIVEN_UP] {
            self.io.u64(at as usize).store(0, Relaxed);
        }
        os("run a program", sys::test_run(&program.fd, 1))?;
        let reported = self.io.u64(REPORTED as usize).load(Relaxed) != 0;
        if reported {
            for (n, v) in report.iter_mut().enumerate().take(program.program.report_len()) {
                *v = self.io.i64(VALUES as usize + 8 * n).load(Relaxed);
            }
        }
        let asked = self.io.u64(ENDED as usize).load(Relaxed) & FLAG_ASKED as u64 != 0;
        let native = self.given_up() != 0;
        Ok(InvokeOutcome { report: reported, asked, native })
    }

    fn put(&self, place: usize, hook: Hook, prims: &impl PrimValues) {
        for prim in hook.prims() {
            let at = STREAM as usize + (place << ACK_SHIFT) + usize::from(8 * stream_index(prim));
            self.io.i64(at).store(prims.get(prim), Relaxed);
        }
    }

    /// Invokes the program `times` times in one go, on these ACKs over and over, `gap_us` apart.
    ///
    /// Returns the mean nanoseconds of an invocation, including what surrounds it (see an empty program for that).
    ///
    /// # Errors
    /// As [`Bench::invoke`].
    pub fn time(
        &self,
        program: &TestProgram,
        acks: &[Prims; STREAM_ACKS],
        gap_us: u64,
        times: u32,
    ) -> Result<u32, EbpfError> {
        for (n, prims) in acks.iter().enumerate() {
            self.put(n, Hook::Ack, prims);
        }
        self.io.u64(COUNT as usize).store(0, Relaxed);
        self.io.u64(GAP_US as usize).store(gap_us, Relaxed);
        self.io.u64(GIVEN_UP as usize).store(0, Relaxed);
        Ok(os("run a program", sys::test_run(&program.fd, times))?.1)
    }
}

/// Runs the contract's suite, and other replays of scripts, in the kernel.
impl Executor for Bench {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        for (slot, shape) in &script.slots {
            self.define_slot(*slot, shape);
        }
        let load = |(program, instance)| self.load(program, instance);
        let loaded = script.programs.iter().zip(1..).map(load).collect::<Result<Vec<_>, _>>()?;
        let get = |n: usize| loaded.get(n).ok_or("the script names a program that it does not hold");
        let stage = |bench: &Bench, program: &TestProgram, start: bool, fields: &[(Field, i64)]| {
            bench.stage(program, start, fields).then_some(()).ok_or("the record was not claimed")
        };
        let mut current = get(0)?;
        self.rename(script.flow);
        self.set(&ProgramState::idle(script.cwnd_bytes));
        self.memory.u32(rec::FIRST_MSS as usize).store(script.mss_bytes, Relaxed);
        let segment_size = |bench: &Bench, bytes| bench.io.u32(MSS as usize).store(bytes, Relaxed);
        segment_size(self, script.mss_bytes);
        stage(self, current, true, &[])?;
        let (mut seen, mut native) = (Vec::new(), false);
        for step in &script.steps {
            match step {
                ScriptStep::Update(fields) => stage(self, current, false, fields)?,
                ScriptStep::SetProgram { program, fields } => {
                    (current, native) = (get(*program)?, false);
                    stage(self, current, true, fields)?;
                }
                ScriptStep::Push { slot, image, part } => {
                    self.push(*slot, script.images.get(*image).map_or(&[], Vec::as_slice), *part)?;
                }
                ScriptStep::Promote(slot) => self.slots.promote(*slot, self.now_us)?,
                ScriptStep::Rollback(slot) => self.slots.rollback(*slot, self.now_us)?,
                ScriptStep::SegmentSize { mss_bytes } => segment_size(self, *mss_bytes),
                ScriptStep::Invoke(prims) => seen.push(self.observe(current, prims, &mut native)?),
                ScriptStep::Decide(prims) => seen.push(self.observe(current, &**prims, &mut native)?),
            }
        }
        Ok(seen)
    }

    fn policies(&self) -> bool {
        true
    }

    fn hooks(&self) -> &'static [Hook] {
        &Hook::ALL
    }
}

impl Bench {
    /// Observes one ACK of a script. `native` says that the native algorithm controls the flow, and no program runs.
    fn observe(
        &self,
        current: &TestProgram,
        prims: &impl PrimValues,
        native: &mut bool,
    ) -> Result<Observation, ExecutorError> {
        let mut report = [0; MAX_REGS];
        let outcome = match native {
            true => InvokeOutcome { report: false, asked: false, native: true },
            false => self.invoke(current, prims, &mut report)?,
        };
        *native = outcome.native;
        let (flow, program) = (self.get(), &current.program);
        Ok(Observation {
            regs: flow.regs[..program.regs().len()].to_vec(),
            cwnd_bytes: flow.cwnd_bytes,
            rate_bytes_per_s: flow.rate_bytes_per_s,
            faults: flow.faults,
            report: outcome.report.then(|| report[..program.report_len()].to_vec()),
            sending: Sending::of(&flow),
            policy: Some(PolicyObservation::new(
                program,
                &flow,
                &self.policy(),
                outcome.asked,
                outcome.native,
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::suite::images;
    use ccplane_infer::Bits;
    use ccplane_infer::image::{self, map};
    use ccplane_program::lang::compile;

    const ASK: &str = "(def (Report (x 0))) (when true (history 1 Report.x) (policy 0) (report))";

    /// The agent takes the buffer of a decision away before the decision has read a word of it.
    #[test]
    fn a_decision_that_a_push_overtakes_is_dropped_and_its_row_with_it() {
        let mut bench = match Bench::new() {
            Ok(bench) => bench,
            Err(e) => return ccplane_testing::skipped("a decision that a push overtakes, in the kernel", e),
        };
        let shape = Shape::new(Bits::W8, &[1, 1]).unwrap();
        let mut image = images::idle(&shape, 7);
        image::set_u32(&mut image, image::MAP, map::RATE);
        bench.define_slot(0, &shape);
        bench.push(0, &image, Part::Active).unwrap();
        let program = compile(ASK).unwrap();
        let loaded = bench.load(&program, 1).unwrap();
        bench.set(&ProgramState {
            rate_bytes_per_s: 1 << 20,
            action_q16: 9,
            snapshot: 7,
            ..ProgramState::idle(14_480)
        });
        let ask = || {
            let outcome = bench.invoke(&loaded, &Prims::default(), &mut [0; MAX_REGS]).unwrap();
            (outcome.asked, outcome.native, bench.get().snapshot, bench.policy().decisions)
        };
        assert_eq!(ask(), (true, false, 7, 1));
        bench.slots.uid(0, 0).store(0, Relaxed);
        assert_eq!(ask(), (true, false, 0, 1), "no decision, and the flow is not given up");
        assert_eq!((bench.get().action_q16, bench.get().rate_bytes_per_s), (0, 1 << 20));
        bench.slots.uid(0, 0).store(7, Relaxed);
        assert_eq!(ask(), (true, false, 7, 2), "the next one is made");
    }
}

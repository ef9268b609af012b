//! Makes a flow's program report on demand, to time how long the agent takes to answer.
//!
//! Everything but the ACK is real: the program's code, the event ring, the flow's record.

use std::os::fd::OwnedFd;

use ccplane_program::ir::{Prim, Program};

use crate::attach::load;
use crate::codegen::{self, Host, claim_staged, no_sample_is_infinity};
use crate::error::{EbpfError, os};
use crate::events::send_report;
use crate::frame::{REC, STACK_HOST};
use crate::kernel::Maps;
use crate::layout::rec;
use crate::maps::{Memory, OpenMaps};
use crate::options::Options;
use crate::pins;
use crate::policy::Slots;
use ccplane_bpf::{self as sys, AttachTo, ProgType};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, R, Size};

/// Segment size of the made-up ACK: one segment, 20 ms after the one before it was sent.
const MSS: i64 = 1448;
const RTT_US: i64 = 20_000;
const STEP_US: i32 = 1_000_000;

struct ProbeHost {
    maps: Maps,
    index: u32,
    instance: u32,
}

impl Host for ProbeHost {
    fn enter(&self, asm: &mut Asm) {
        let found = asm.label();
        asm.store_imm(Size::B4, R::R10, STACK_HOST, self.index as i32);
        asm.map(R::R1, self.maps.flows);
        asm.mov(R::R2, R::R10);
        asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_HOST));
        asm.call(Helper::MapLookupElem);
        asm.jump_if_imm(R::R0, Cond::Ne, 0, found);
        asm.exit0();
        asm.bind(found);
        asm.mov(REC, R::R0);
        claim_staged(asm);
    }
    fn load_prim(&self, asm: &mut Asm, prim: Prim) {
        match prim {
            Prim::AckNow => {
                // The clock is far enough ahead that every interval of the program has passed.
                asm.load(Size::B8, R::R1, REC, rec::MICROS_ZERO as i16);
                asm.alu_imm(Alu::Add, R::R1, STEP_US);
            }
            Prim::AckBytesAcked => asm.mov_imm(R::R1, MSS),
            Prim::AckPacketsAcked => asm.mov_imm(R::R1, 1),
            Prim::FlowRttSampleUs => {
                asm.mov_imm(R::R1, RTT_US);
                no_sample_is_infinity(asm);
            }
            _ => asm.mov_imm(R::R1, 0),
        }
    }
    /// Loads the size that the flow's own ACKs left.
    fn load_mss(&self, asm: &mut Asm) {
        asm.load(Size::B4, R::R1, REC, rec::PROGRAM_MSS as i16);
    }
    fn apply(&self, _: &mut Asm) {}
    fn report(&self, asm: &mut Asm, report_len: usize, asks: bool) {
        send_report(asm, self.maps, (self.instance, Prim::AckNow), report_len, asks);
    }
    /// Does nothing: the flow's own ACKs go on with its program.
    fn give_up(&self, _: &mut Asm) {}
    fn leave(&self, asm: &mut Asm) {
        asm.exit0();
    }
}

/// A probe on one flow, which should be idle.
pub struct Probe {
    fd: OwnedFd,
    memory: Memory,
    index: u32,
    _maps: OpenMaps,
}

impl Probe {
    /// A probe on the first flow of the pinned datapath, for the program that it runs. Its policies have no answer.
    ///
    /// # Errors
    /// [`EbpfError::NotAttached`] without a datapath or without a flow whose program is set.
    pub fn open(options: &Options, program: &Program) -> Result<Probe, EbpfError> {
        let dir = pins::directory(&options.run_dir, &options.name);
        let maps = OpenMaps::open(&dir)?;
        let memory = Memory::map(&maps, false)?;
        let found = memory.table.live().map(|(index, _)| index).find(|i| memory.table.instance(*i) != 0);
        let Some(index) = found else { return Err(EbpfError::NotAttached(dir)) };
        let instance = memory.table.instance(index);
        let host = ProbeHost { maps: maps.fds(), index, instance };
        let compiled = codegen::compile(program, instance, &host, &Slots::NONE)?;
        let fd = load(ProgType::SchedCls, "ccplane_probe", &compiled.insns, AttachTo::default())?;
        Ok(Probe { fd, memory, index, _maps: maps })
    }

    /// Runs the program once; what the agent staged before is applied first.
    ///
    /// # Errors
    /// The error of bpf(2).
    pub fn invoke(&self) -> Result<(), EbpfError> {
        os("run the probe", sys::test_run(&self.fd, 1)).map(drop)
    }

    /// Whether the agent has answered: a change waits for the flow's next ACK.
    pub fn is_answered(&self) -> bool {
        self.memory.table.is_staged(self.index)
    }
}

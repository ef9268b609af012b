//! Runs the inference of one shape alone in the kernel on a stream of inputs, to compare it with other executors and to
//! time it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use ccplane_infer::{Inference, MAX_IMAGE_BYTES, MAX_INPUTS, Shape};
use ccplane_nn_codegen::asm::{Alu, Asm, R, Size};
use ccplane_nn_codegen::bpf::{self, Places, SCRATCH_BYTES, TABLES_BYTES};

use crate::attach::load;
use crate::error::{EbpfError, os};
use crate::maps::page_bytes;
use ccplane_bpf::{self as sys, AttachTo, MapType, ProgType, SharedMap};

/// Offsets in the memory: the number of runs, the image, the tables, the rows.
const COUNT: u32 = 0;
const IMAGE: u32 = 64;
const TABLES: u32 = IMAGE + MAX_IMAGE_BYTES as u32;
const ROWS: u32 = (TABLES + TABLES_BYTES as u32).next_multiple_of(4096);
/// Offsets in a row: the inputs, the action, the scratch space.
const INPUTS: u32 = 0;
const ACTION: u32 = 4 * MAX_INPUTS as u32;
const SCRATCH: u32 = ACTION + 8;
const ROW_SHIFT: u32 = 11;
const _: () = assert!(SCRATCH as usize + SCRATCH_BYTES <= 1 << ROW_SHIFT);

/// Two programs, one that infers and one that does not, and their memory.
pub struct InferenceBench {
    memory: SharedMap,
    rows: u32,
    inputs: usize,
    network: OwnedFd,
    empty: OwnedFd,
}

impl InferenceBench {
    /// Makes a bench with room for `2^rows_log2` rows of inputs of networks of this shape.
    ///
    /// # Errors
    /// [`EbpfError::Os`], usually for lack of CAP_BPF; [`EbpfError::Verifier`].
    pub fn new(shape: &Shape, rows_log2: u32) -> Result<InferenceBench, EbpfError> {
        let bytes = ROWS + (1 << (ROW_SHIFT + rows_log2));
        let map = os(
            "create map ccplane_nn",
            sys::map_create(MapType::Array, "ccplane_nn", 4, bytes, 1, sys::F_MMAPABLE),
        )?;
        let mapped = SharedMap::new(&map, 0, (bytes as usize).next_multiple_of(page_bytes()), true);
        let memory = os("map the inference's memory", mapped)?;
        for (n, word) in bpf::tables().into_iter().enumerate() {
            memory.u64(TABLES as usize + 8 * n).store(word, Relaxed);
        }
        let program = |with: bool| {
            let mut asm = Asm::default();
            emit(&mut asm, shape, map.as_raw_fd(), rows_log2, with);
            load(ProgType::SchedCls, "ccplane_nn", &asm.finish()?.insns, AttachTo::default())
        };
        let (network, empty) = (program(true)?, program(false)?);
        Ok(InferenceBench { memory, rows: 1 << rows_log2, inputs: shape.inputs(), network, empty })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Sets the network to run, of the bench's shape.
    pub fn set_image(&self, image: &[u64]) {
        for (n, word) in image.iter().enumerate().take(MAX_IMAGE_BYTES / 8) {
            self.memory.u64(IMAGE as usize + 8 * n).store(*word, Relaxed);
        }
    }

    /// Sets the inputs of a row.
    pub fn set_inputs(&self, row: usize, inputs: &[i32]) {
        for (n, value) in inputs.iter().enumerate().take(self.inputs) {
            self.memory.u32(self.at(row, INPUTS) + 4 * n).store(*value as u32, Relaxed);
        }
    }

    /// Runs the network on the first `count` rows, at most all of them; returns each result.
    ///
    /// # Errors
    /// [`EbpfError::Os`].
    pub fn infer(&self, count: usize) -> Result<Vec<Inference>, EbpfError> {
        let count = count.min(self.rows());
        self.run(&self.network, count as u32)?;
        let places = places(0);
        let row = |row| Inference {
            action_q16: self.memory.u64(self.at(row, ACTION)).load(Relaxed) as i64,
            clipped_inputs: self.memory.u32(self.at(row, places.clipped() as u32)).load(Relaxed),
        };
        Ok((0..count).map(row).collect())
    }

    /// The mean nanoseconds of an inference over `times` runs, beyond a program that only finds its row.
    ///
    /// # Errors
    /// As [`InferenceBench::infer`].
    pub fn time(&self, times: u32) -> Result<f64, EbpfError> {
        let empty = self.run(&self.empty, times)?;
        Ok(f64::from(self.run(&self.network, times)?) - f64::from(empty))
    }

    fn run(&self, program: &OwnedFd, times: u32) -> Result<u32, EbpfError> {
        self.memory.u64(COUNT as usize).store(0, Relaxed);
        Ok(os("run a network", sys::test_run(program, times))?.1)
    }

    fn at(&self, row: usize, field: u32) -> usize {
        ROWS as usize + ((row % self.rows()) << ROW_SHIFT) + field as usize
    }
}

fn places(map: i32) -> Places {
    Places {
        image: R::R6,
        memory: R::R7,
        inputs: INPUTS as i16,
        scratch: SCRATCH as i16,
        tables: (map, TABLES),
    }
}

fn emit(asm: &mut Asm, shape: &Shape, map: i32, rows_log2: u32, with: bool) {
    asm.map_value(R::R7, map, 0);
    asm.load(Size::B8, R::R1, R::R7, COUNT as i16);
    asm.mov(R::R2, R::R1);
    asm.alu_imm(Alu::Add, R::R2, 1);
    asm.store(Size::B8, R::R7, COUNT as i16, R::R2);
    asm.alu_imm(Alu::And, R::R1, (1 << rows_log2) - 1);
    asm.alu_imm(Alu::Lsh, R::R1, ROW_SHIFT as i32);
    asm.map_value(R::R7, map, ROWS);
    asm.alu(Alu::Add, R::R7, R::R1);
    asm.map_value(R::R6, map, IMAGE);
    asm.mov_imm(R::R0, 0);
    if with {
        bpf::infer(asm, shape, &places(map));
    }
    asm.store(Size::B8, R::R7, ACTION as i16, R::R0);
    asm.exit0();
}

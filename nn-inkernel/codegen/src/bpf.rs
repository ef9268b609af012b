//! Inference as BPF instructions: straight-line code for one shape, weights loaded from the image.
//!
//! [`infer`] needs the image in one register, and in another the caller's memory that holds inputs and
//! [scratch space](SCRATCH_BYTES); the [tables](TABLES_BYTES) lie in a map. Sums of a block of groups stay in
//! registers while the layer's inputs pass by once.

mod classify;

pub use classify::{ByteTable, LIST_BYTES, classify, fold, inputs, slack_bytes};

use crate::asm::{Alu, Asm, Cond, R, Size};
use ccplane_infer::image::{FEATURE_BYTES, FEATURES, OUT_MULT, OUT_SHIFT, feature};
use ccplane_infer::{Bits, MAX_WIDTH, Shape, tables};

/// Table indices are taken modulo this, for the verifier; those in images are smaller.
const BASES: usize = 1 << 15;
/// Entries after the last class that the verifier takes for reachable: the widest table index, and one more.
const SLACK: usize = tables::STRIDE_W16;
const _: () = assert!(tables::CLASSES * tables::STRIDE_W16 <= BASES + SLACK);
const _: () = assert!((tables::CLASSES - 1) * tables::STRIDE_W16 < BASES);

/// Offset of the 8-bit tables, bytes. Their entries have 127 added and are unsigned.
const W8_AT: usize = 0;
/// Offset of the 16-bit tables, bytes. Their entries have 8191 added and are unsigned.
const W16_AT: usize = (BASES + SLACK).next_multiple_of(8);
/// Size of the tables, bytes.
pub const TABLES_BYTES: usize = (W16_AT + 2 * (BASES + SLACK)).next_multiple_of(8);

/// Offsets in the scratch space: the activations of a layer (i64 each), its sums (a word a group), the count of clipped
/// inputs (u32).
const ACTIVATIONS: usize = 0;
const SUMS: usize = ACTIVATIONS + 8 * MAX_WIDTH;
const CLIPPED: usize = SUMS + 8 * MAX_WIDTH.div_ceil(Bits::W16.lanes());
/// Size of the scratch space, bytes.
pub const SCRATCH_BYTES: usize = CLIPPED + 8;

/// Registers of the sums that are computed at once.
const BLOCK: [R; 6] = [R::R0, R::R1, R::R2, R::R3, R::R4, R::R5];
/// Registers of an activation and of a product.
const X: R = R::R8;
const PRODUCT: R = R::R9;

/// The tables as the generated code reads them, word by word.
pub fn tables() -> Vec<u64> {
    let mut bytes = vec![0; TABLES_BYTES];
    let (w8, w16) = bytes.split_at_mut(W16_AT);
    // Beyond the tables lie zeros.
    w8.fill(Bits::W8.max_activation() as u8);
    for (to, entry) in w8.iter_mut().zip(tables::W8) {
        *to = (i64::from(entry) + Bits::W8.max_activation()) as u8;
    }
    let entries = tables::W16.into_iter().chain(std::iter::repeat(0));
    for (to, entry) in w16.chunks_exact_mut(2).zip(entries) {
        to.copy_from_slice(&((i64::from(entry) + Bits::W16.max_activation()) as u16).to_le_bytes());
    }
    bytes
        .chunks_exact(8)
        .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
        .collect()
}

/// Registers and offsets that the generated code uses.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The register that points at the image: R6 or R7.
    pub image: R,
    /// The register that points at the caller's memory: R7 or R6.
    pub memory: R,
    /// Offset of the inputs in the caller's memory, i32 each.
    pub inputs: i16,
    /// Offset of the scratch space in the caller's memory, [`SCRATCH_BYTES`] long; a multiple of 8.
    pub scratch: i16,
    /// The array map that holds the tables, by descriptor, and their offset in it.
    pub tables: (i32, u32),
}

impl Places {
    /// Offset from `memory` of the u32 that counts the clipped inputs.
    pub fn clipped(&self) -> i16 {
        self.scratch + CLIPPED as i16
    }
    fn activation(&self, n: usize) -> i16 {
        self.scratch + (ACTIVATIONS + 8 * n) as i16
    }
    fn sum(&self, group: usize) -> i16 {
        self.scratch + (SUMS + 8 * group) as i16
    }
}

/// Emits the inference: R0 becomes the action before noise and bound, [`Places::clipped`] the number of clipped inputs.
///
/// R1-R5, R8 and R9 are lost.
pub fn infer(asm: &mut Asm, shape: &Shape, at: &Places) {
    normalise(asm, shape, at);
    let last = shape.layers() - 1;
    for layer in 0..last {
        sums(asm, shape, layer, at);
        activate(asm, shape, layer, at);
    }
    output(asm, shape, last, at);
}

/// Emits the conversion of inputs to the first layer's activations, with clipping out of line.
fn normalise(asm: &mut Asm, shape: &Shape, at: &Places) {
    const HALF: R = R::R5;
    let done = asm.label();
    asm.store_imm(Size::B4, at.memory, at.clipped(), 0);
    asm.mov_imm(HALF, 1 << 31);
    let mut clips = Vec::new();
    for n in 0..shape.inputs() {
        let (low, high, back) = (asm.label(), asm.label(), asm.label());
        let spec = (FEATURES + FEATURE_BYTES * n) as i16;
        asm.load(Size::B4, R::R1, at.memory, at.inputs + 4 * n as i16);
        asm.load(Size::B4, R::R2, at.image, spec + feature::LO as i16);
        asm.load(Size::B4, R::R3, at.image, spec + feature::HI as i16);
        asm.jump32_if(R::R1, Cond::Slt, R::R2, low);
        asm.jump32_if(R::R1, Cond::Sgt, R::R3, high);
        asm.bind(back);
        asm.alu32(Alu::Sub, R::R1, R::R2);
        asm.load(Size::B8, R::R4, at.image, spec + feature::MULT as i16);
        asm.alu(Alu::Mul, R::R1, R::R4);
        asm.alu(Alu::Add, R::R1, HALF);
        asm.alu_imm(Alu::Rsh, R::R1, 32);
        asm.alu_imm(Alu::Sub, R::R1, shape.bits().max_activation() as i32);
        asm.store(Size::B8, at.memory, at.activation(n), R::R1);
        clips.push((low, high, back));
    }
    asm.jump(done);
    for (low, high, back) in clips {
        let count = asm.label();
        asm.bind(low);
        asm.mov(R::R1, R::R2);
        asm.jump(count);
        asm.bind(high);
        asm.mov(R::R1, R::R3);
        asm.bind(count);
        asm.load(Size::B4, R::R4, at.memory, at.clipped());
        asm.alu_imm(Alu::Add, R::R4, 1);
        asm.store(Size::B4, at.memory, at.clipped(), R::R4);
        asm.jump(back);
    }
    asm.bind(done);
}

/// Emits the computation of a layer's sums from its activations.
fn sums(asm: &mut Asm, shape: &Shape, layer: usize, at: &Places) {
    let (inputs, groups) = (shape.layer(layer).0, shape.groups(layer));
    for first in (0..groups).step_by(BLOCK.len()) {
        let block: Vec<(usize, R)> = (first..groups).zip(BLOCK).collect();
        for (group, sum) in &block {
            asm.load(Size::B8, *sum, at.image, (shape.bias_at(layer) + 8 * group) as i16);
        }
        for input in 0..inputs {
            asm.load(Size::B8, X, at.memory, at.activation(input));
            for (group, sum) in &block {
                let weight = shape.weights_at(layer) + 8 * (groups * input + group);
                asm.load(Size::B8, PRODUCT, at.image, weight as i16);
                asm.alu(Alu::Mul, PRODUCT, X);
                asm.alu(Alu::Add, *sum, PRODUCT);
            }
        }
        for (group, sum) in &block {
            asm.store(Size::B8, at.memory, at.sum(*group), *sum);
        }
    }
}

/// Emits the computation of the next layer's activations from a hidden layer's sums.
fn activate(asm: &mut Asm, shape: &Shape, layer: usize, at: &Places) {
    /// Registers of the tables and of a group's sums.
    const TABLES: R = R::R5;
    const WORD: R = R::R4;
    let (bits, neurons) = (shape.bits(), shape.layer(layer).1);
    let (map, offset) = at.tables;
    let table = match bits {
        Bits::W8 => W8_AT,
        Bits::W16 => W16_AT,
    };
    asm.map_value(TABLES, map, offset + table as u32);
    for n in 0..neurons {
        let lane = n % bits.lanes();
        if lane == 0 {
            asm.load(Size::B8, WORD, at.memory, at.sum(n / bits.lanes()));
        }
        // The lane's upper 11 bits.
        asm.mov(R::R1, WORD);
        asm.alu_imm(Alu::Rsh, R::R1, (bits.lane_bits() as usize * (lane + 1)) as i32 - 11);
        asm.alu_imm(Alu::And, R::R1, tables::STRIDE_W8 as i32 - 1);
        asm.load(Size::B4, R::R2, at.image, (shape.tables_at(layer) + 4 * n) as i16);
        asm.alu_imm(Alu::And, R::R2, BASES as i32 - 1);
        asm.alu(Alu::Add, R::R1, R::R2);
        if bits == Bits::W16 {
            asm.alu_imm(Alu::Lsh, R::R1, 1);
        }
        asm.alu(Alu::Add, R::R1, TABLES);
        match bits {
            Bits::W8 => asm.load(Size::B1, R::R1, R::R1, 0),
            Bits::W16 => interpolate(asm, WORD, lane),
        }
        asm.alu_imm(Alu::Sub, R::R1, bits.max_activation() as i32);
        asm.store(Size::B8, at.memory, at.activation(n), R::R1);
    }
}

/// Emits the interpolation between the entry of a 16-bit table that R1 points at and the next one; R1 becomes the
/// result. R2 and R3 are lost.
fn interpolate(asm: &mut Asm, word: R, lane: usize) {
    const FRACTION_BITS: i32 = 10;
    asm.load(Size::B2, R::R2, R::R1, 0);
    asm.load(Size::B2, R::R3, R::R1, 2);
    asm.alu(Alu::Sub, R::R3, R::R2);
    asm.mov(R::R1, word);
    asm.alu_imm(Alu::Rsh, R::R1, (Bits::W16.lane_bits() as usize * lane) as i32 + 11);
    asm.alu_imm(Alu::And, R::R1, (1 << FRACTION_BITS) - 1);
    asm.alu(Alu::Mul, R::R1, R::R3);
    asm.alu_imm(Alu::Arsh, R::R1, FRACTION_BITS);
    asm.alu(Alu::Add, R::R1, R::R2);
}

/// Emits the output's sum; R0 becomes the action. Even and odd inputs are summed apart, so that neither sum waits for
/// the other.
fn output(asm: &mut Asm, shape: &Shape, layer: usize, at: &Places) {
    let bits = shape.bits();
    asm.load(Size::B8, R::R0, at.image, shape.bias_at(layer) as i16);
    asm.mov_imm(R::R1, 0);
    for input in 0..shape.layer(layer).0 {
        asm.load(Size::B8, X, at.memory, at.activation(input));
        asm.load(Size::B8, PRODUCT, at.image, (shape.weights_at(layer) + 8 * input) as i16);
        asm.alu(Alu::Mul, PRODUCT, X);
        asm.alu(Alu::Add, BLOCK[input % 2], PRODUCT);
    }
    asm.alu(Alu::Add, R::R0, R::R1);
    match bits {
        Bits::W8 => asm.alu_imm(Alu::And, R::R0, (1 << bits.lane_bits()) - 1),
        Bits::W16 => asm.zext32(R::R0),
    }
    asm.mov_imm(R::R1, bits.lane_offset());
    asm.alu(Alu::Sub, R::R0, R::R1);
    asm.load(Size::B8, R::R1, at.image, OUT_MULT as i16);
    asm.alu(Alu::Mul, R::R0, R::R1);
    asm.load(Size::B4, R::R1, at.image, OUT_SHIFT as i16);
    asm.alu_imm(Alu::And, R::R1, 63);
    asm.alu(Alu::Arsh, R::R0, R::R1);
}

//! Classification of bytes: several networks of one shape decide on the same inputs, which are converted once.
//!
//! An input at the lower end of its range is not even multiplied. For that activations of the first layer are counted
//! from the lowest on: `x = u - A` with u from 0 to 2 A. Then `B + sum w x = (B - A sum w) + sum w u`. [`fold`] puts
//! the first of these two sums in the place of the biases, and [`inputs`] lists the inputs whose u is not 0.

use ccplane_infer::image::{self, feature};
use ccplane_infer::{Bits, MAX_INPUTS, Shape};

use super::{BLOCK, Places, activate, sums};
use crate::asm::{Alu, Asm, Cond, R, Size};

/// Values of a byte.
const BYTES: usize = 1 << 8;
/// An entry of the list of inputs: its activation (u32), and the offset of its weights from the first input's (u32).
const ENTRY_BYTES: usize = 8;
const ENTRY_SHIFT: i32 = 3;
const ENTRY_OFFSET: i16 = 4;
/// Size of the list of inputs, bytes: an activation of 0 is behind the last.
pub const LIST_BYTES: usize = ENTRY_BYTES * (MAX_INPUTS + 1);
/// Offset on the stack of the image's address.
const STACK_IMAGE: i16 = -16;

/// The first layer's activations for each value of each input byte, counted from the lowest, as memory that generated code reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteTable {
    words: Vec<u64>,
}

impl ByteTable {
    /// Makes the table from the input ranges of an image of this shape; `signed` says whether bytes are. Networks of the same ranges
    /// share it.
    pub fn new(shape: &Shape, image: &[u64], signed: bool) -> ByteTable {
        let mut bytes = Vec::with_capacity(ByteTable::bytes(shape));
        for input in 0..shape.inputs() {
            for value in 0..=u8::MAX {
                let value = if signed { i32::from(value as i8) } else { i32::from(value) };
                let entry = activation(image, input, value) as u16;
                match shape.bits() {
                    Bits::W8 => bytes.push(entry as u8),
                    Bits::W16 => bytes.extend(entry.to_le_bytes()),
                }
            }
        }
        let word = |c: &[u8]| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]);
        ByteTable { words: bytes.chunks_exact(8).map(word).collect() }
    }

    /// Size of the tables of this shape, bytes; a multiple of 8.
    pub fn bytes(shape: &Shape) -> usize {
        shape.inputs() * BYTES * entry_bytes(shape)
    }

    /// The table's memory, word by word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

fn entry_bytes(shape: &Shape) -> usize {
    match shape.bits() {
        Bits::W8 => 1,
        Bits::W16 => 2,
    }
}

/// The activation of a byte as [`ccplane_infer::Model`] computes it, counted from the lowest.
fn activation(image: &[u64], input: usize, value: i32) -> u64 {
    let at = image::FEATURES + image::FEATURE_BYTES * input;
    let lo = image::u32_at(image, at + feature::LO) as i32;
    let hi = image::u32_at(image, at + feature::HI) as i32;
    let above = (i64::from(value.min(hi).max(lo)) - i64::from(lo)) as u64;
    above.wrapping_mul(image::u64_at(image, at + feature::MULT)).wrapping_add(1 << 31) >> 32
}

/// The image that [`classify`] takes: its first layer's biases are for activations that are counted from the lowest.
pub fn fold(shape: &Shape, image: &[u64]) -> Vec<u64> {
    let mut folded = image.to_vec();
    let lowest = shape.bits().max_activation() as u64;
    for group in 0..shape.groups(0) {
        let weight =
            |input| image::u64_at(image, shape.weights_at(0) + 8 * (shape.groups(0) * input + group));
        let sum = (0..shape.inputs()).map(weight).fold(0, u64::wrapping_add);
        let at = shape.bias_at(0) + 8 * group;
        image::set_u64(&mut folded, at, image::u64_at(image, at).wrapping_sub(lowest.wrapping_mul(sum)));
    }
    folded
}

/// Memory beyond an image that the verifier takes for reachable, bytes.
pub fn slack_bytes(shape: &Shape) -> usize {
    row_mask(shape) as usize + 1
}

/// Bits that hold the offset of any input's weights from the first one's.
fn row_mask(shape: &Shape) -> i32 {
    (8 * shape.groups(0) * shape.inputs()).next_power_of_two() as i32 - 1
}

/// Emits the list of those inputs, among the bytes at `bytes` + `first`, whose activation is not the lowest, at `memory` + `list`.
///
/// `table` points at a [`ByteTable`] of this shape; the list has [`LIST_BYTES`]. R1, R4 and R5 are lost.
pub fn inputs(asm: &mut Asm, shape: &Shape, (bytes, first): (R, i16), table: R, (memory, list): (R, i16)) {
    /// Registers of an activation, of an entry's address, and of the list's length in bytes.
    const U: R = R::R1;
    const AT: R = R::R4;
    const LENGTH: R = R::R5;
    let entry = entry_bytes(shape);
    asm.mov_imm(LENGTH, 0);
    for input in 0..shape.inputs() {
        asm.load(Size::B1, U, bytes, first + input as i16);
        if entry == 2 {
            asm.alu_imm(Alu::Lsh, U, 1);
        }
        asm.alu(Alu::Add, U, table);
        let size = if entry == 2 { Size::B2 } else { Size::B1 };
        asm.load(size, U, U, (input * BYTES * entry) as i16);
        asm.mov(AT, memory);
        asm.alu(Alu::Add, AT, LENGTH);
        asm.store(Size::B4, AT, list, U);
        asm.store_imm(Size::B4, AT, list + ENTRY_OFFSET, (8 * shape.groups(0) * input) as i32);
        // The next entry takes the place of one whose activation is 0.
        asm.neg(U);
        asm.alu_imm(Alu::Rsh, U, 63);
        asm.alu_imm(Alu::Lsh, U, ENTRY_SHIFT);
        asm.alu(Alu::Add, LENGTH, U);
    }
    asm.mov(AT, memory);
    asm.alu(Alu::Add, AT, LENGTH);
    asm.store_imm(Size::B4, AT, list, 0);
}

/// Emits a network's class of the inputs listed at [`Places::inputs`]: R0 becomes the number of the output whose sum is largest, the
/// lowest of several. The image is one that [`fold`] made, with [`slack_bytes`] behind it.
///
/// R1-R5, R8 and R9 are lost, and 16 bytes at the top of the stack.
pub fn classify(asm: &mut Asm, shape: &Shape, at: &Places) {
    let last = shape.layers() - 1;
    first_sums(asm, shape, at);
    for layer in 0..last {
        activate(asm, shape, layer, at);
        sums(asm, shape, layer + 1, at);
    }
    largest(asm, shape, last, at);
}

/// Emits the first layer's sums over the listed inputs.
fn first_sums(asm: &mut Asm, shape: &Shape, at: &Places) {
    /// Registers of an activation, of its weights, and of a product; the image's address is on the stack meanwhile.
    const U: R = R::R8;
    const WEIGHTS: R = R::R9;
    let product = at.image;
    let groups = shape.groups(0);
    asm.store(Size::B8, R::R10, STACK_IMAGE, at.image);
    for first in (0..groups).step_by(BLOCK.len()) {
        let block: Vec<(usize, R)> = (first..groups).zip(BLOCK).collect();
        let done = asm.label();
        asm.load(Size::B8, WEIGHTS, R::R10, STACK_IMAGE);
        for (group, sum) in &block {
            asm.load(Size::B8, *sum, WEIGHTS, (shape.bias_at(0) + 8 * group) as i16);
        }
        for n in 0..shape.inputs() {
            let entry = at.inputs + (ENTRY_BYTES * n) as i16;
            asm.load(Size::B4, U, at.memory, entry);
            asm.jump_if_imm(U, Cond::Eq, 0, done);
            asm.load(Size::B4, product, at.memory, entry + ENTRY_OFFSET);
            asm.alu_imm(Alu::And, product, row_mask(shape));
            asm.load(Size::B8, WEIGHTS, R::R10, STACK_IMAGE);
            asm.alu(Alu::Add, WEIGHTS, product);
            for (group, sum) in &block {
                asm.load(Size::B8, product, WEIGHTS, (shape.weights_at(0) + 8 * group) as i16);
                asm.alu(Alu::Mul, product, U);
                asm.alu(Alu::Add, *sum, product);
            }
        }
        asm.bind(done);
        for (group, sum) in &block {
            asm.store(Size::B8, at.memory, at.sum(*group), *sum);
        }
    }
    asm.load(Size::B8, at.image, R::R10, STACK_IMAGE);
}
/// Emits the choice of the largest sum of the last layer.
fn largest(asm: &mut Asm, shape: &Shape, layer: usize, at: &Places) {
    /// Registers of the largest sum so far, a group's sums and one sum.
    const BEST: R = R::R1;
    const WORD: R = R::R2;
    const SUM: R = R::R3;
    let (bits, outputs) = (shape.bits(), shape.layer(layer).1);
    asm.mov_imm(R::R0, 0);
    for n in 0..outputs {
        let lane = n % bits.lanes();
        if lane == 0 {
            asm.load(Size::B8, WORD, at.memory, at.sum(n / bits.lanes()));
        }
        let to = if n == 0 { BEST } else { SUM };
        asm.mov(to, WORD);
        asm.alu_imm(Alu::Rsh, to, bits.lane_bits() as i32 * lane as i32);
        match bits {
            Bits::W8 => asm.alu_imm(Alu::And, to, (1 << bits.lane_bits()) - 1),
            Bits::W16 => asm.zext32(to),
        }
        if n > 0 {
            let smaller = asm.label();
            asm.jump_if(SUM, Cond::Le, BEST, smaller);
            asm.mov(BEST, SUM);
            asm.mov_imm(R::R0, n as i64);
            asm.bind(smaller);
        }
    }
}

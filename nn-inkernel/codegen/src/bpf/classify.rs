//! Classification of bytes: several networks of one shape decide on the same inputs, which are converted once.

use ccplane_infer::image::{self, feature};
use ccplane_infer::{Bits, Shape};

use super::{Places, activate, sums};
use crate::asm::{Alu, Asm, Cond, R, Size};

/// Values of a byte.
const BYTES: usize = 1 << 8;

/// The first layer's activations for each value of each input byte, as memory that generated code reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteTable {
    words: Vec<u64>,
}

impl ByteTable {
    /// Makes the table from the input ranges of an image of this shape. Networks share a table only if they share the ranges.
    pub fn new(shape: &Shape, image: &[u64]) -> ByteTable {
        let mut bytes = Vec::with_capacity(ByteTable::bytes(shape));
        for input in 0..shape.inputs() {
            for value in 0..=u8::MAX {
                let entry = (activation(shape, image, input, value)) as u16;
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

/// The activation of a byte as [`ccplane_infer::Model`] computes it, plus the largest activation, so that it is not negative.
fn activation(shape: &Shape, image: &[u64], input: usize, value: u8) -> u64 {
    let at = image::FEATURES + image::FEATURE_BYTES * input;
    let lo = image::u32_at(image, at + feature::LO) as i32;
    let hi = image::u32_at(image, at + feature::HI) as i32;
    let value = if lo < 0 { i32::from(value as i8) } else { i32::from(value) };
    let above = (i64::from(value.min(hi).max(lo)) - i64::from(lo)) as u64;
    above.wrapping_mul(image::u64_at(image, at + feature::MULT)).wrapping_add(1 << 31) >> 32
}

/// Emits the conversion of the bytes at `bytes` + `first` to activations in memory, from offset `to` on, an i64 each.
///
/// `table` points at a [`ByteTable`] of this shape. R1 is lost.
pub fn activations(asm: &mut Asm, shape: &Shape, (bytes, first): (R, i16), table: R, (memory, to): (R, i16)) {
    let entry = entry_bytes(shape);
    for input in 0..shape.inputs() {
        asm.load(Size::B1, R::R1, bytes, first + input as i16);
        if entry == 2 {
            asm.alu_imm(Alu::Lsh, R::R1, 1);
        }
        asm.alu(Alu::Add, R::R1, table);
        let size = if entry == 2 { Size::B2 } else { Size::B1 };
        asm.load(size, R::R1, R::R1, (input * BYTES * entry) as i16);
        asm.alu_imm(Alu::Sub, R::R1, shape.bits().max_activation() as i32);
        asm.store(Size::B8, memory, to + 8 * input as i16, R::R1);
    }
}

/// Emits a network's class of the activations at [`Places::inputs`], an i64 each: R0 becomes the number of the output whose sum is
/// largest, the lowest of several.
///
/// R1-R5, R8 and R9 are lost.
pub fn classify(asm: &mut Asm, shape: &Shape, at: &Places) {
    let last = shape.layers() - 1;
    for layer in 0..=last {
        let from = if layer == 0 { at.inputs } else { at.activation(0) };
        sums(asm, shape, layer, at, from);
        if layer < last {
            activate(asm, shape, layer, at);
        }
    }
    largest(asm, shape, last, at);
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

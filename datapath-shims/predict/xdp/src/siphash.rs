//! SipHash-2-4 of three words as BPF instructions (Aumasson and Bernstein, INDOCRYPT 2012).

use ccplane_nn_codegen::asm::{Alu, Asm, R, Size};
use ccplane_predict::Key;

/// Words of a message.
const MESSAGE: [R; 3] = [R::R1, R::R2, R::R3];
/// The last block: a message of 24 bytes, none of them in it.
const LAST: u64 = 24 << 56;
/// Bits that the third word of the state takes before the last rounds.
const FINISH: i32 = 0xff;
/// Registers of the state.
const V: [R; 4] = [R::R6, R::R7, R::R8, R::R9];
const PART: R = R::R0;

/// The state under a key before the first word.
pub fn initial(key: Key) -> [u64; 4] {
    let halves = key.0.as_chunks::<8>().0;
    let constants =
        [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
    std::array::from_fn(|n| u64::from_le_bytes(halves[n % 2]) ^ constants[n])
}

/// Emits a subprogram: R0 becomes the hash of R1, R2 and R3; the [initial] state lies in the map `map` from `at` on.
pub fn siphash(asm: &mut Asm, map: i32, at: i16) {
    asm.map_value(R::R4, map, at as u32);
    for (n, v) in V.into_iter().enumerate() {
        asm.load(Size::B8, v, R::R4, 8 * n as i16);
    }
    for word in MESSAGE {
        absorb(asm, word);
    }
    asm.mov_imm(R::R1, LAST as i64);
    absorb(asm, R::R1);
    asm.alu_imm(Alu::Xor, V[2], FINISH);
    (0..4).for_each(|_| round(asm));
    asm.mov(R::R0, V[0]);
    V[1..].iter().for_each(|v| asm.alu(Alu::Xor, R::R0, *v));
    asm.exit();
}

fn absorb(asm: &mut Asm, word: R) {
    asm.alu(Alu::Xor, V[3], word);
    (0..2).for_each(|_| round(asm));
    asm.alu(Alu::Xor, V[0], word);
}

fn round(asm: &mut Asm) {
    let [v0, v1, v2, v3] = V;
    half(asm, (v0, v1, 13), true);
    half(asm, (v2, v3, 16), false);
    half(asm, (v0, v3, 21), false);
    half(asm, (v2, v1, 17), true);
}

/// Emits `a += b; b = rotate(b, bits) ^ a`, and if `turns` a rotation of `a` by half a word.
fn half(asm: &mut Asm, (a, b, bits): (R, R, i32), turns: bool) {
    asm.alu(Alu::Add, a, b);
    rotate(asm, b, bits);
    asm.alu(Alu::Xor, b, a);
    if turns {
        rotate(asm, a, 32);
    }
}

/// Emits a rotation to the left; BPF has none.
fn rotate(asm: &mut Asm, v: R, bits: i32) {
    asm.mov(PART, v);
    asm.alu_imm(Alu::Rsh, PART, 64 - bits);
    asm.alu_imm(Alu::Lsh, v, bits);
    asm.alu(Alu::Or, v, PART);
}

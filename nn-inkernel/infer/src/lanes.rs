//! Packing of biases and weights into the lanes of an image's words.

use crate::bits::Bits;

/// Lanes of a word, at most.
pub const MAX_LANES: usize = 3;

/// Packs a group's 16-bit weights into one word: `sum w_l 2^(b l)`, so that a negative lane borrows from the one above
/// it.
pub fn pack_weights(bits: Bits, weights: impl IntoIterator<Item = i64>) -> u64 {
    pack(bits, weights)
}

/// Packs a group's biases into one word, adding the lane's offset to each.
pub fn pack_biases(bits: Bits, biases: impl IntoIterator<Item = i64>) -> u64 {
    pack(bits, biases.into_iter().map(|bias| bias + bits.lane_offset()))
}

fn pack(bits: Bits, lanes: impl IntoIterator<Item = i64>) -> u64 {
    let lanes = lanes.into_iter().take(bits.lanes()).enumerate();
    lanes.fold(0, |word, (l, lane)| word.wrapping_add((lane as u64) << (bits.lane_bits() * l as u32)))
}

/// Unpacks the weights of a word, with 0 for lanes that `bits` does not have; `None` if no weights pack to this word.
pub fn unpack_weights(bits: Bits, word: u64) -> Option<[i64; MAX_LANES]> {
    let unused = 64 - bits.lane_bits();
    let (mut lanes, mut rest) = ([0; MAX_LANES], i128::from(word as i64));
    for lane in lanes.iter_mut().take(bits.lanes()) {
        *lane = (rest as i64) << unused >> unused;
        rest = (rest - i128::from(*lane)) >> bits.lane_bits();
    }
    (rest == 0).then_some(lanes)
}

/// Unpacks the biases of a word and takes the lane's offset off each.
pub fn unpack_biases(bits: Bits, word: u64) -> [i64; MAX_LANES] {
    let mask = bits.lane_offset() * 2 - 1;
    let mut lanes = [0; MAX_LANES];
    for (l, lane) in lanes.iter_mut().take(bits.lanes()).enumerate() {
        *lane = ((word >> (bits.lane_bits() * l as u32)) as i64 & mask) - bits.lane_offset();
    }
    lanes
}

//! Words of lanes: how an image holds biases and weights.

use crate::Bits;

/// Lanes of a word, at most.
pub const MAX_LANES: usize = 3;

/// The word of a group's weights, of 16 bits: `sum w_l 2^(b l)`, so that a lane borrows from the one above it.
pub fn pack_weights(bits: Bits, weights: impl IntoIterator<Item = i64>) -> u64 {
    pack(bits, weights)
}

/// The word of a group's biases, each with the lane's offset.
pub fn pack_biases(bits: Bits, biases: impl IntoIterator<Item = i64>) -> u64 {
    pack(bits, biases.into_iter().map(|bias| bias + bits.lane_offset()))
}

fn pack(bits: Bits, lanes: impl IntoIterator<Item = i64>) -> u64 {
    let lanes = lanes.into_iter().take(bits.lanes()).enumerate();
    lanes.fold(0, |word, (l, lane)| word.wrapping_add((lane as u64) << (bits.lane_bits() * l as u32)))
}

/// The weights in a word, 0 for lanes that `bits` has not. `None` if something is left over: no weights pack to it.
pub fn unpack_weights(bits: Bits, word: u64) -> Option<[i64; MAX_LANES]> {
    let unused = 64 - bits.lane_bits();
    let (mut lanes, mut rest) = ([0; MAX_LANES], i128::from(word as i64));
    for lane in lanes.iter_mut().take(bits.lanes()) {
        *lane = (rest as i64) << unused >> unused;
        rest = (rest - i128::from(*lane)) >> bits.lane_bits();
    }
    (rest == 0).then_some(lanes)
}

/// The biases in a word, without the lanes' offset.
pub fn unpack_biases(bits: Bits, word: u64) -> [i64; MAX_LANES] {
    let mask = bits.lane_offset() * 2 - 1;
    let mut lanes = [0; MAX_LANES];
    for (l, lane) in lanes.iter_mut().take(bits.lanes()).enumerate() {
        *lane = ((word >> (bits.lane_bits() * l as u32)) as i64 & mask) - bits.lane_offset();
    }
    lanes
}

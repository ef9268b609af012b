//! The words of an image. Offsets are in bytes from its start; values are little-endian and naturally aligned.

use crate::noise::NOISE_DEVIATION;

/// u32: the deployment's number, never reused; 0 while the image is being written.
pub const UID: usize = 0;
/// u32: a decision with more inputs than this outside their range counts as clipped.
pub const CLIP_LIMIT: usize = 4;
/// u64: the [shape's code](crate::Shape::code).
pub const SHAPE: usize = 8;
/// i32: the largest magnitude of an action, Q16.
pub const ACTION_BOUND_Q16: usize = 16;
/// u32: the action map, a value of [`map`].
pub const MAP: usize = 20;
/// i64: the output's scale factor.
pub const OUT_MULT: usize = 24;
/// u32: bits by which the output's product is shifted to the right; below 64.
pub const OUT_SHIFT: usize = 32;
/// u32: the penalty at which a flow leaves this deployment; 0 for never. See [`PENALTY_UP`].
pub const TRIP_LIMIT: usize = 36;
/// i64: the change that an action of 1 makes, Q20.
pub const STEP_Q20: usize = 40;
/// i64: the smallest rate (bytes per second) or window (bytes) that the map sets; at least 1.
pub const KNOB_MIN: usize = 48;
/// i64: the largest rate (bytes per second) or window (bytes) that the map sets; at most 2^40.
pub const KNOB_MAX: usize = 56;
/// i64: exploration noise: its standard deviation in Q16 times 2^16 over [`NOISE_DEVIATION`]; 0 for none.
pub const NOISE_MULT: usize = 64;
/// u32: flags; [`PIN`] or 0.
pub const FLAGS: usize = 72;
/// [`NAME_WORDS`] words: the snapshot's name, which is its content's hash; 0 where there is none.
///
/// It identifies an image found in memory and has no effect on decisions.
pub const NAME: usize = 80;
/// Words of the name.
pub const NAME_WORDS: usize = 4;
/// The first input spec; reserved words before it are 0.
pub const FEATURES: usize = 128;
/// Bytes of an input spec.
pub const FEATURE_BYTES: usize = 16;

/// Offsets in an input spec.
pub mod feature {
    use crate::bits::Bits;

    /// i32: the lower end of the range; smaller values count as this.
    pub const LO: usize = 0;
    /// i32: the upper end of the range, more than LO; larger values count as this.
    pub const HI: usize = 4;
    /// u64: the scale factor `2 A 2^32 / (hi - lo)`, rounded.
    pub const MULT: usize = 8;

    /// The scale factor at [`MULT`] for a range.
    ///
    /// It is at most 2^46, so that no product overflows, and a scaled input is at most `2 A`.
    pub fn mult(bits: Bits, lo: i32, hi: i32) -> u64 {
        let span = (i64::from(hi) - i64::from(lo)).unsigned_abs().max(1);
        (((bits.max_activation() as u64 * 2) << 32) + span / 2) / span
    }
}

/// Largest bound of an action: 256, in Q16.
pub const MAX_BOUND_Q16: u32 = 1 << 24;
/// Largest change that one action makes, `bound * step`, Q20: to five times the value or a fifth of it.
pub const MAX_CHANGE_Q20: u64 = 1 << 22;
/// Largest rate (bytes per second) or window (bytes) that an action map sets.
pub const MAX_KNOB: i64 = 1 << 40;
/// Largest factor of the output: its product with any sum fits 63 bits.
pub const MAX_OUT_MULT: i64 = (1 << 32) - 1;
/// Largest shift of the output.
pub const MAX_OUT_SHIFT: u32 = 63;
/// Largest factor of noise: a deviation of 2^16 = 2^32 in Q16.
pub const MAX_NOISE_MULT: i64 = (1 << 48) / NOISE_DEVIATION + 1;

/// Values of [`MAP`]: how an action changes the flow.
pub mod map {
    /// The action changes nothing: the program reads `Policy.action` and decides itself. It is 0 where too many inputs are
    /// out of range.
    pub const NONE: u32 = 0;
    /// The action scales `Rate`: with `d = |action| * step`, to `Rate * (1 + d)`, or to `Rate / (1 + d)` if the action
    /// is negative (Aurora).
    pub const RATE: u32 = 1;
    /// The action scales `Cwnd` in the same way.
    pub const CWND: u32 = 2;
}

/// Bit of [`FLAGS`]: a flow that has decided by this deployment keeps it as long as a buffer holds it.
pub const PIN: u32 = 1;
/// A bad decision adds this much to a flow's penalty; any other decision takes 1 away.
///
/// A decision is bad if it saturates, has clipped inputs, or leaves the rate or window at its minimum.
pub const PENALTY_UP: u32 = 4;

/// Reads the u32 at byte `at`; 0 beyond the end.
pub fn u32_at(image: &[u64], at: usize) -> u32 {
    let word = image.get(at / 8).copied().unwrap_or(0);
    (word >> (8 * ((at % 8) & 4))) as u32
}

/// Reads the word at byte `at`; 0 beyond the end.
pub fn u64_at(image: &[u64], at: usize) -> u64 {
    image.get(at / 8).copied().unwrap_or(0)
}

/// Reads the signed word at byte `at`; 0 beyond the end.
pub fn i64_at(image: &[u64], at: usize) -> i64 {
    u64_at(image, at) as i64
}

/// Sets the u32 at byte `at`; does nothing beyond the end.
pub fn set_u32(image: &mut [u64], at: usize, value: u32) {
    let shift = 8 * ((at % 8) & 4);
    if let Some(word) = image.get_mut(at / 8) {
        *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
    }
}

/// Sets the word at byte `at`; does nothing beyond the end.
pub fn set_u64(image: &mut [u64], at: usize, value: u64) {
    if let Some(word) = image.get_mut(at / 8) {
        *word = value;
    }
}

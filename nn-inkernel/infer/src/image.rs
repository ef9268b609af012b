//! An image's words. Offsets in bytes from its start; values little-endian and naturally aligned.

use crate::NOISE_DEVIATION;

/// u32: names the deployment; 0 while the image is being written. Never reused.
pub const UID: usize = 0;
/// u32: at most so many inputs of a decision outside their range, else the decision counts as clipped.
pub const CLIP_LIMIT: usize = 4;
/// u64: [`Shape::code`](crate::Shape::code).
pub const SHAPE: usize = 8;
/// i32: the largest action either way, Q16.
pub const ACTION_BOUND_Q16: usize = 16;
/// u32: [`map`].
pub const MAP: usize = 20;
/// i64: the output's factor.
pub const OUT_MULT: usize = 24;
/// u32: by how much the product is shifted to the right; below 64.
pub const OUT_SHIFT: usize = 32;
/// u32: the trouble at which a flow leaves this deployment; 0 for never. See [`TROUBLE_UP`].
pub const TRIP_LIMIT: usize = 36;
/// i64: what an action of 1 changes, Q20.
pub const STEP_Q20: usize = 40;
/// i64: smallest rate (bytes per second) or window (bytes) that the map sets; at least 1.
pub const KNOB_MIN: usize = 48;
/// i64: the largest; at most 2^40.
pub const KNOB_MAX: usize = 56;
/// i64: exploration noise: its standard deviation in Q16 times 2^16 over [`NOISE_DEVIATION`]; 0 for none.
pub const NOISE_MULT: usize = 64;
/// u32: [`PIN`] or 0.
pub const FLAGS: usize = 72;
/// [`NAME_WORDS`] words: the snapshot's name, its content's hash, so that whoever finds the image knows what it is. Decides
/// nothing; 0 where there is none.
pub const NAME: usize = 80;
/// Size of the name.
pub const NAME_WORDS: usize = 4;
/// First of the inputs' specs; up to here reserved words are 0.
pub const FEATURES: usize = 128;
/// Size of one.
pub const FEATURE_BYTES: usize = 16;

/// Offsets in an input's spec.
pub mod feature {
    use crate::Bits;

    /// i32: values below count as this.
    pub const LO: usize = 0;
    /// i32: values above count as this; more than LO.
    pub const HI: usize = 4;
    /// u64: `2 A 2^32 / (hi - lo)`, rounded.
    pub const MULT: usize = 8;

    /// What belongs at [`MULT`] for a range: at most 2^46, so that no product overflows, and such that a scaled input
    /// is at most `2 A`.
    pub fn mult(bits: Bits, lo: i32, hi: i32) -> u64 {
        let span = (i64::from(hi) - i64::from(lo)).unsigned_abs().max(1);
        (((bits.max_activation() as u64 * 2) << 32) + span / 2) / span
    }
}

/// Largest bound of an action, Q16: 256.
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

/// Values of [`MAP`]: what becomes of an action.
pub mod map {
    /// Nothing: the program reads `Policy.action` and decides itself.
    pub const NONE: u32 = 0;
    /// With `d = |action| * step`: `Rate * (1 + d)`, or `Rate / (1 + d)` where the action is negative (Aurora).
    pub const RATE: u32 = 1;
    /// The same on `Cwnd`.
    pub const CWND: u32 = 2;
}

/// Bit of [`FLAGS`]: a flow that has decided by this deployment keeps it while a buffer holds it.
pub const PIN: u32 = 1;
/// What a decision that saturates, has clipped inputs or leaves the knob at its minimum adds to a flow's trouble.
/// Any other decision takes 1 away.
pub const TROUBLE_UP: u32 = 4;

/// The u32 at byte `at`; 0 beyond the end.
pub fn u32_at(image: &[u64], at: usize) -> u32 {
    let word = image.get(at / 8).copied().unwrap_or(0);
    (word >> (8 * ((at % 8) & 4))) as u32
}

/// The word at byte `at`; 0 beyond the end.
pub fn u64_at(image: &[u64], at: usize) -> u64 {
    image.get(at / 8).copied().unwrap_or(0)
}

/// The signed word at byte `at`.
pub fn i64_at(image: &[u64], at: usize) -> i64 {
    u64_at(image, at) as i64
}

/// Sets the u32 at byte `at`; nothing beyond the end.
pub fn set_u32(image: &mut [u64], at: usize, value: u32) {
    let shift = 8 * ((at % 8) & 4);
    if let Some(word) = image.get_mut(at / 8) {
        *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
    }
}

/// Sets the word at byte `at`; nothing beyond the end.
pub fn set_u64(image: &mut [u64], at: usize, value: u64) {
    if let Some(word) = image.get_mut(at / 8) {
        *word = value;
    }
}

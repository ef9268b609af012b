//! Widths of numbers.

/// Width of activations, and with them of sums. Weights have 16 bits either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Bits {
    /// Activations in +-127, three sums to a word.
    W8 = 8,
    /// Activations in +-8191, two sums to a word.
    W16 = 16,
}

impl Bits {
    /// The largest magnitude of an activation.
    pub const fn max_activation(self) -> i64 {
        match self {
            Bits::W8 => 127,
            Bits::W16 => 8191,
        }
    }
    /// Sums in one word.
    pub const fn lanes(self) -> usize {
        match self {
            Bits::W8 => 3,
            Bits::W16 => 2,
        }
    }
    /// Bits of one sum.
    pub const fn lane_bits(self) -> u32 {
        match self {
            Bits::W8 => 21,
            Bits::W16 => 32,
        }
    }
    /// The offset that keeps a lane from being negative.
    pub const fn lane_offset(self) -> i64 {
        1 << (self.lane_bits() - 1)
    }
}

//! Exploration noise from integer arithmetic.

/// The standard deviation of the sum of four 16-bit uniform numbers: `65536 / sqrt(12) * 2`. The sum is nearly normal
/// (Irwin-Hall).
pub const NOISE_DEVIATION: i64 = 37_837;

/// A flow's random generator (Marsaglia's xorshift64). State 0 means that it is not seeded yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// Draws a number of deviation [`NOISE_DEVIATION`] and mean 0, within +-131070. Seeds the generator from `key`
    /// first if needed.
    pub fn draw(&mut self, key: u64) -> i64 {
        let mut x = if self.0 == 0 { seed(key) } else { self.0 };
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = x;
        ((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) as i64 - 131_070
    }
}

/// Derives a seed, which is never 0.
fn seed(key: u64) -> u64 {
    spread(key) | 1
}

/// Spreads a flow's key over all bits (Fibonacci hashing). A flow takes a canary whose share exceeds the upper 16 bits.
pub fn spread(key: u64) -> u64 {
    key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

//! The activation functions as tables: the same constants in every executor, made with integer arithmetic.
//!
//! A sum's lane stands for a number in `[-2^e, 2^e)`. Tables 0 to 7 hold tanh for e = 0 to 7; tables 8 to 15 hold
//! relu, divided by `2^-d`, d = 0 to 7: the layer's activations stand for up to `2^(e-d)`.

use crate::bits::Bits;

/// Tables of each width.
pub const CLASSES: usize = 16;
/// The first relu table.
pub const RELU: usize = 8;
/// Entries of a [`W8`] table.
pub const STRIDE_W8: usize = 2048;
/// Entries of a [`W16`] table: one more than intervals, and padding.
pub const STRIDE_W16: usize = 2050;

/// 8-bit tables, one after the other: the function in the middle of each of 2048 intervals, times 127.
pub static W8: [i8; CLASSES * STRIDE_W8] = w8();
/// 16-bit tables: the function at the 2049 ends of 2048 intervals, times 8191; then one padding entry.
pub static W16: [i16; CLASSES * STRIDE_W16] = w16();

/// Entries of a table of this width; tables start at its multiples.
pub const fn stride(bits: Bits) -> usize {
    match bits {
        Bits::W8 => STRIDE_W8,
        Bits::W16 => STRIDE_W16,
    }
}

/// Looks up a lane in the table that starts at entry `base`; 0 beyond the tables' end.
#[inline]
pub fn activation(bits: Bits, base: usize, lane: u64) -> i64 {
    match bits {
        Bits::W8 => i64::from(W8.get(base + (lane >> 10) as usize).copied().unwrap_or(0)),
        Bits::W16 => {
            let at = base + (lane >> 21) as usize;
            let entry = |at: usize| i64::from(W16.get(at).copied().unwrap_or(0));
            let fraction = (lane >> 11 & 1023) as i64;
            entry(at) + (((entry(at + 1) - entry(at)) * fraction) >> 10)
        }
    }
}

/// Fractional bits of the exponential's arithmetic.
const Q: u32 = 62;
const ONE: u128 = 1 << Q;
/// The smallest power of two in an argument: arguments are multiples of `2^-10`.
const FINE: u32 = 10;
const POWERS: usize = 20;

/// Computes `exp(-2^(k-10))` for each k.
const fn powers() -> [u128; POWERS] {
    let x = ONE >> FINE;
    // The exponential series; x^6 / 720 is below 2^-69.
    let mut c = ONE - x;
    let mut term = (x * x) >> Q;
    c += term / 2;
    term = (term * x) >> Q;
    c -= term / 6;
    term = (term * x) >> Q;
    c += term / 24;
    term = (term * x) >> Q;
    c -= term / 120;
    let mut all = [0; POWERS];
    let mut k = 0;
    while k < POWERS {
        all[k] = c;
        c = (c * c) >> Q;
        k += 1;
    }
    all
}

const EXP: [u128; POWERS] = powers();

/// Computes `round(scale * tanh(half / 2^11))`; `half` is below 2^20 in magnitude.
const fn tanh(half: i64, scale: i64) -> i64 {
    // exp(-2x) with 2x in units of 2^-10.
    let bits = half.unsigned_abs();
    let mut e = ONE;
    let mut k = 0;
    while k < POWERS {
        if bits >> k & 1 == 1 {
            e = (e * EXP[k]) >> Q;
        }
        k += 1;
    }
    let (top, bottom) = ((ONE - e) >> 12, (ONE + e) >> 12);
    let y = ((top * scale as u128 * 2 + bottom) / (bottom * 2)) as i64;
    if half < 0 { -y } else { y }
}

/// Computes `round(scale * max(0, half / 2^11))`, at most `scale`.
const fn relu(half: i64, scale: i64) -> i64 {
    let y = (half * scale + (1 << 10)) >> 11;
    if y < 0 {
        0
    } else if y > scale {
        scale
    } else {
        y
    }
}

const fn value(class: usize, half: i64, scale: i64) -> i64 {
    if class < RELU { tanh(half << class, scale) } else { relu(half << (class - RELU), scale) }
}

#[allow(long_running_const_eval)]
const fn w8() -> [i8; CLASSES * STRIDE_W8] {
    let mut all = [0; CLASSES * STRIDE_W8];
    let mut n = 0;
    while n < all.len() {
        // Twice the middle of the interval, less the lane's offset.
        let half = (n % STRIDE_W8) as i64 * 2 + 1 - 2048;
        all[n] = value(n / STRIDE_W8, half, 127) as i8;
        n += 1;
    }
    all
}

#[allow(long_running_const_eval)]
const fn w16() -> [i16; CLASSES * STRIDE_W16] {
    let mut all = [0; CLASSES * STRIDE_W16];
    let mut n = 0;
    while n < all.len() {
        let mut at = (n % STRIDE_W16) as i64;
        if at > 2048 {
            at = 2048;
        }
        all[n] = value(n / STRIDE_W16, at * 2 - 2048, 8191) as i16;
        n += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn tables_follow_the_functions() {
        for class in 0..RELU {
            let range = f64::from(1 << class);
            for n in 0..2048 {
                let x = (n as f64 + 0.5 - 1024.0) / 1024.0 * range;
                let y = f64::from(W8[class * STRIDE_W8 + n]);
                assert!((y - 127.0 * x.tanh()).abs() <= 0.500001, "tanh {class} {n}: {y}");
                let r = f64::from(W8[(RELU + class) * STRIDE_W8 + n]);
                assert!((r - (127.0 * x).clamp(0.0, 127.0)).abs() <= 0.500001, "relu {class} {n}: {r}");
            }
            for n in 0..=2048 {
                let x = (n as f64 - 1024.0) / 1024.0 * range;
                let y = f64::from(W16[class * STRIDE_W16 + n]);
                assert!((y - 8191.0 * x.tanh()).abs() <= 0.500001, "tanh {class} {n}: {y}");
                let r = f64::from(W16[(RELU + class) * STRIDE_W16 + n]);
                assert!((r - (8191.0 * x).clamp(0.0, 8191.0)).abs() <= 0.500001, "relu {class} {n}: {r}");
            }
        }
    }
}

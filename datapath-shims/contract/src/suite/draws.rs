//! Draws from a seeded stream.

use rand_core::RngCore;

pub(super) fn below(rng: &mut impl RngCore, n: u32) -> u32 {
    // The bias of 2^-32 * n does not matter here.
    ((u64::from(rng.next_u32()) * u64::from(n)) >> 32) as u32
}

pub(super) fn chance(rng: &mut impl RngCore, percent: u32) -> bool {
    below(rng, 100) < percent
}

pub(super) fn pick<T: Copy>(rng: &mut impl RngCore, from: &[T]) -> Option<T> {
    from.get(below(rng, from.len() as u32) as usize).copied()
}

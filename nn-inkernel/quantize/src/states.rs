//! States off the policy's path, on which the error is measured too.

use ccplane_snapshot::{Feature, PolicySpec};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// States of each of the three kinds.
const EACH: usize = 4096;
/// Steps of a random walk.
const WALK: usize = 64;
/// Largest step of a walk: this fraction of an input's range.
const STRIDE: u64 = 16;

/// Draws states: uniform over the inputs' ranges; corners; random walks that start at visited states.
pub(crate) fn off_path(spec: &PolicySpec, visited: &[&[i32]], seed: u64) -> Vec<Vec<i32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut states = Vec::with_capacity(3 * EACH);
    for _ in 0..EACH {
        states.push(
            spec.inputs().iter().map(|f| f.lo.wrapping_add(below(&mut rng, span(f) + 1) as i32)).collect(),
        );
    }
    for _ in 0..EACH {
        states
            .push(spec.inputs().iter().map(|f| if below(&mut rng, 2) == 0 { f.lo } else { f.hi }).collect());
    }
    let mut at: Vec<i32> = Vec::new();
    for n in 0..EACH {
        if n % WALK == 0 {
            let start = below(&mut rng, visited.len() as u64) as usize;
            at = visited.get(start).map(|state| state.to_vec()).unwrap_or_default();
        }
        for (cell, feature) in at.iter_mut().zip(spec.inputs()) {
            let stride = (span(feature) / STRIDE).max(1);
            let step = below(&mut rng, 2 * stride + 1) as i64 - stride as i64;
            *cell = (i64::from(*cell) + step).clamp(i64::from(feature.lo), i64::from(feature.hi)) as i32;
        }
        states.push(at.clone());
    }
    states
}

fn span(feature: &Feature) -> u64 {
    (i64::from(feature.hi) - i64::from(feature.lo)).unsigned_abs()
}

/// Draws a number below `n`, which is at most 2^32, nearly uniformly.
fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

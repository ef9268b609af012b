//! Random networks, specs and states to quantise.
#![allow(dead_code)]

use ccplane_quantize::snapshot::{Action, ActionMap, Feature, PolicySpec};
use ccplane_quantize::{Activation, Dense, Mlp};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Draws a number, uniform in [-1, 1).
pub fn signed(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.next_u32()) / f64::from(1u32 << 31) - 1.0
}

fn action(bound_q16: u32) -> Action {
    Action { map: ActionMap::Rate, bound_q16, step_q20: 26_214, knob_min: 4_000, knob_max: 1 << 32 }
}

/// Aurora's inputs: 10 intervals of latency inflation, latency ratio and send ratio, in thousandths.
pub fn aurora() -> PolicySpec {
    let ranges = [("inflation", -1_000, 10_000), ("ratio", 1_000, 10_000), ("send", 0, 5_000)];
    let inputs = (0..10).flat_map(|n| {
        ranges.iter().map(move |(name, lo, hi)| Feature { name: format!("{name}[{n}]"), lo: *lo, hi: *hi })
    });
    PolicySpec::new("aurora", inputs.collect(), action(2 << 16)).unwrap()
}

/// Three inputs over the whole range of their types.
pub fn wide() -> PolicySpec {
    let inputs = (0..3).map(|n| Feature { name: format!("x[{n}]"), lo: i32::MIN, hi: i32::MAX });
    PolicySpec::new("wide", inputs.collect(), action(1 << 16)).unwrap()
}

/// Draws a network with Glorot-uniform weights times `gain` and small biases.
pub fn mlp(widths: &[usize], activation: Activation, gain: f64, seed: u64) -> Mlp {
    Mlp::new(layers(widths, activation, gain, seed)).unwrap()
}

/// Draws a classifier in the same way.
pub fn classifier(widths: &[usize], seed: u64) -> Mlp {
    Mlp::classifier(layers(widths, Activation::Tanh, 1.0, seed)).unwrap()
}

fn layers(widths: &[usize], activation: Activation, gain: f64, seed: u64) -> Vec<Dense> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let layers = widths.windows(2).enumerate().map(|(n, pair)| {
        let (inputs, outputs) = (pair[0], pair[1]);
        let limit = gain * (6.0 / (inputs + outputs) as f64).sqrt();
        Dense {
            inputs,
            outputs,
            weights: (0..inputs * outputs).map(|_| (limit * signed(&mut rng)) as f32).collect(),
            bias: (0..outputs).map(|_| (0.1 * signed(&mut rng)) as f32).collect(),
            activation: (n + 2 < widths.len()).then_some(activation),
        }
    });
    layers.collect()
}

/// Draws states as flows have them: each input wanders over the lower half of its range, now and then beyond it.
pub fn states(spec: &PolicySpec, count: usize, seed: u64) -> Vec<Vec<i32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let mut at = vec![0.25; spec.inputs().len()];
    let mut next = || {
        let cells = at.iter_mut().zip(spec.inputs()).map(|(x, f)| {
            *x = (*x + 0.1 * signed(&mut rng)).clamp(-0.05, 0.5);
            (f64::from(f.lo) + *x * (f64::from(f.hi) - f64::from(f.lo))) as i32
        });
        cells.collect()
    };
    (0..count).map(|_| next()).collect()
}

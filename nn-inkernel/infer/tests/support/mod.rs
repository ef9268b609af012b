//! Random networks whose sums come as close to the ends of their lanes as they may.
#![allow(dead_code)]

use ccplane_infer::image::{self, feature};
use ccplane_infer::{Bits, MAX_CLASSES, Shape, lanes, tables};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

/// Draws any valid shape.
pub fn shape(rng: &mut ChaCha8Rng) -> Shape {
    loop {
        let bits = if rng.next_u32() & 1 == 0 { Bits::W8 } else { Bits::W16 };
        let mut widths: Vec<usize> = (0..1 + below(rng, 4)).map(|_| 1 + below(rng, 64)).collect();
        widths.push(1);
        if let Ok(shape) = Shape::new(bits, &widths) {
            return shape;
        }
    }
}

/// Draws any valid shape of a classifier.
pub fn classifier(rng: &mut ChaCha8Rng) -> Shape {
    loop {
        let bits = if rng.next_u32() & 1 == 0 { Bits::W8 } else { Bits::W16 };
        let mut widths: Vec<usize> = (0..1 + below(rng, 4)).map(|_| 1 + below(rng, 64)).collect();
        widths.push(2 + below(rng, MAX_CLASSES - 1));
        if let Ok(shape) = Shape::classifier(bits, &widths) {
            return shape;
        }
    }
}

/// Draws a neuron whose reach is `limit - 1 - slack`, with random signs: its weights and bias.
fn neuron(rng: &mut ChaCha8Rng, bits: Bits, inputs: usize) -> (Vec<i64>, i64) {
    let (a, limit) = (bits.max_activation(), bits.lane_offset());
    let mut left = limit - 1;
    // Now and then far from the lane's end, or all of it in one weight.
    if below(rng, 4) == 0 {
        left = below(rng, limit as usize) as i64;
    }
    let mut weights = vec![0i64; inputs];
    let spread = 1 + below(rng, 2 * inputs);
    for _ in 0..spread {
        let to = below(rng, inputs);
        let share = (left / a).min(1 + below(rng, (2 * limit / a) as usize / spread + 1) as i64);
        let share = share.min(i64::from(i16::MAX) - weights[to]);
        weights[to] += share;
        left -= share * a;
    }
    let mut sign = |n: i64| if rng.next_u32() & 1 == 0 { n } else { -n };
    (weights.into_iter().map(&mut sign).collect(), sign(left.min(limit - 1)))
}

/// Draws an image of a shape.
pub fn image(rng: &mut ChaCha8Rng, shape: &Shape) -> Vec<u64> {
    let bits = shape.bits();
    let mut words = vec![0; shape.image_bytes() / 8];
    image::set_u32(&mut words, image::UID, 1 + rng.next_u32() / 2);
    image::set_u32(&mut words, image::CLIP_LIMIT, below(rng, 65) as u32);
    image::set_u64(&mut words, image::SHAPE, shape.code());
    image::set_u32(&mut words, image::ACTION_BOUND_Q16, 1 << 17);
    image::set_u32(&mut words, image::MAP, below(rng, 3) as u32);
    image::set_u64(&mut words, image::OUT_MULT, 1 + u64::from(rng.next_u32()));
    image::set_u32(&mut words, image::OUT_SHIFT, below(rng, 64) as u32);
    image::set_u64(&mut words, image::STEP_Q20, 26_214);
    image::set_u64(&mut words, image::KNOB_MIN, 1_000);
    image::set_u64(&mut words, image::KNOB_MAX, 1 << 40);
    for n in 0..shape.inputs() {
        let at = image::FEATURES + image::FEATURE_BYTES * n;
        let (lo, hi) = range(rng);
        image::set_u32(&mut words, at + feature::LO, lo as u32);
        image::set_u32(&mut words, at + feature::HI, hi as u32);
        image::set_u64(&mut words, at + feature::MULT, feature::mult(bits, lo, hi));
    }
    for layer in 0..shape.layers() {
        let ((inputs, outputs), groups) = (shape.layer(layer), shape.groups(layer));
        let neurons: Vec<_> = (0..outputs).map(|_| neuron(rng, bits, inputs)).collect();
        for (group, members) in neurons.chunks(bits.lanes()).enumerate() {
            let biases = lanes::pack_biases(bits, members.iter().map(|n| n.1));
            image::set_u64(&mut words, shape.bias_at(layer) + 8 * group, biases);
            for input in 0..inputs {
                let weights = lanes::pack_weights(bits, members.iter().map(|n| n.0[input]));
                image::set_u64(&mut words, shape.weights_at(layer) + 8 * (groups * input + group), weights);
            }
        }
        for n in 0..if layer + 1 < shape.layers() { outputs } else { 0 } {
            let base = tables::stride(bits) * below(rng, tables::CLASSES);
            image::set_u32(&mut words, shape.tables_at(layer) + 4 * n, base as u32);
        }
    }
    words
}

/// Draws a narrow, wide or one-sided range.
fn range(rng: &mut ChaCha8Rng) -> (i32, i32) {
    loop {
        let (a, b) = (rng.next_u32() as i32 >> below(rng, 32), rng.next_u32() as i32 >> below(rng, 32));
        match below(rng, 16) {
            0 => return (i32::MIN, i32::MAX),
            1 if a < i32::MAX => return (a, a + 1),
            _ if a < b => return (a, b),
            _ => {}
        }
    }
}

/// Draws inputs for an image: ends of the ranges, just beyond them, within them, anywhere; sometimes too few or too
/// many.
pub fn inputs(rng: &mut ChaCha8Rng, shape: &Shape, words: &[u64], to: &mut Vec<i32>) {
    to.clear();
    let extreme = below(rng, 4) == 0;
    for n in 0..shape.inputs() {
        let at = image::FEATURES + image::FEATURE_BYTES * n;
        let lo = image::u32_at(words, at + feature::LO) as i32;
        let hi = image::u32_at(words, at + feature::HI) as i32;
        let within = || (i64::from(hi) - i64::from(lo)) as u64 + 1;
        to.push(match if extreme { below(rng, 2) } else { below(rng, 8) } {
            0 => lo,
            1 => hi,
            2 => lo.saturating_sub(1),
            3 => hi.saturating_add(1),
            4 => rng.next_u32() as i32,
            _ => lo.wrapping_add((rng.next_u64() % within()) as i32),
        });
    }
    match below(rng, 64) {
        0 => to.truncate(below(rng, shape.inputs() + 1)),
        1 => to.push(rng.next_u32() as i32),
        _ => {}
    }
}

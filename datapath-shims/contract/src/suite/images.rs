//! Snapshots for tests: images of any shape, valid by construction; the random ones weighted to the values where
//! arithmetic breaks.

use super::draws::{below, chance, pick};
use ccplane_infer::image::{
    self, FEATURE_BYTES, FEATURES, MAX_BOUND_Q16, MAX_CHANGE_Q20, MAX_KNOB, MAX_NOISE_MULT, MAX_OUT_MULT,
    MAX_OUT_SHIFT, PIN, feature, map,
};
use ccplane_infer::{Bits, MAX_INPUTS, MAX_WIDTH, Shape, ShapeError, tables};
use rand_core::RngCore;

/// Widest hidden layers of most shapes, so that many fit into a test.
const COMMON_WIDTH: u32 = 20;
/// Largest weights: the largest that a lane can hold for one input, and the largest of 16 bits.
const MAX_WEIGHT: [i64; 2] = [8_256, 32_767];

/// A shape with so many inputs, which are clamped to 1 to [`MAX_INPUTS`].
///
/// # Errors
/// None: what the generator makes is valid. The shape's word, all the same.
pub fn shape(rng: &mut impl RngCore, inputs: usize) -> Result<Shape, ShapeError> {
    let bits = if chance(rng, 50) { Bits::W8 } else { Bits::W16 };
    let widest = if chance(rng, 10) { MAX_WIDTH as u32 } else { COMMON_WIDTH };
    let mut widths = vec![inputs.clamp(1, MAX_INPUTS)];
    for _ in 0..below(rng, 4) {
        widths.push(1 + below(rng, widest) as usize);
    }
    widths.push(1);
    Shape::new(bits, &widths).or_else(|_| Shape::new(bits, &[widths[0], 1]))
}

/// A snapshot that always decides 0, by no action map. Its inputs range over +- the largest activation, which makes them
/// activations as they are.
pub fn idle(shape: &Shape, uid: u32) -> Vec<u64> {
    let mut image = vec![0; shape.image_bytes() / 8];
    image::set_u32(&mut image, image::UID, uid);
    image::set_u64(&mut image, image::SHAPE, shape.code());
    image::set_u32(&mut image, image::CLIP_LIMIT, shape.inputs() as u32);
    image::set_u32(&mut image, image::ACTION_BOUND_Q16, 1 << 16);
    image::set_u64(&mut image, image::OUT_MULT, 1);
    image::set_u64(&mut image, image::KNOB_MIN, 1);
    image::set_u64(&mut image, image::KNOB_MAX, MAX_KNOB as u64);
    let end = shape.bits().max_activation() as i32;
    for n in 0..shape.inputs() {
        let at = FEATURES + FEATURE_BYTES * n;
        image::set_u32(&mut image, at + feature::LO, -end as u32);
        image::set_u32(&mut image, at + feature::HI, end as u32);
        image::set_u64(&mut image, at + feature::MULT, feature::mult(shape.bits(), -end, end));
    }
    for layer in 0..shape.layers() {
        let bias = pack(shape.bits(), &[]);
        (0..shape.groups(layer))
            .for_each(|group| image::set_u64(&mut image, shape.bias_at(layer) + 8 * group, bias));
    }
    image
}

/// A word of biases; those that are missing are 0.
fn pack(bits: Bits, biases: &[i64]) -> u64 {
    (0..bits.lanes()).fold(0, |word, lane| {
        let bias = bits.lane_offset() + biases.get(lane).copied().unwrap_or(0);
        word | (bias as u64) << (bits.lane_bits() as usize * lane)
    })
}

/// A random image of this shape, named `uid`.
pub fn image(rng: &mut impl RngCore, shape: &Shape, uid: u32) -> Vec<u64> {
    let mut image = idle(shape, uid);
    head(rng, shape, &mut image);
    for n in 0..shape.inputs() {
        input(rng, shape.bits(), &mut image, FEATURES + FEATURE_BYTES * n);
    }
    for layer in 0..shape.layers() {
        sums(rng, shape, layer, &mut image);
        if layer + 1 < shape.layers() {
            let stride = tables::stride(shape.bits());
            for n in 0..shape.layer(layer).1 {
                let base = stride as u32 * below(rng, tables::CLASSES as u32);
                image::set_u32(&mut image, shape.tables_at(layer) + 4 * n, base);
            }
        }
    }
    image
}

fn head(rng: &mut impl RngCore, shape: &Shape, image: &mut [u64]) {
    let bound = if chance(rng, 20) { MAX_BOUND_Q16 } else { 1 + draw(rng, 1 << 21) as u32 };
    let largest_step = ((MAX_CHANGE_Q20 << 16) / u64::from(bound)) as i64;
    let step = if chance(rng, 20) { largest_step } else { draw(rng, largest_step) };
    let max = if chance(rng, 20) { MAX_KNOB } else { 2 + draw(rng, MAX_KNOB - 2) };
    let min = if chance(rng, 50) { 1 } else { 1 + draw(rng, max - 2) };
    // Most actions lie within a bound of some ten.
    let (mult, shift) = match below(rng, 5) {
        0 => (1 + draw(rng, MAX_OUT_MULT - 1), below(rng, MAX_OUT_SHIFT + 1)),
        1 => (MAX_OUT_MULT, 0),
        _ => (1 + draw(rng, 1 << 20), 8),
    };
    let noise = match below(rng, 4) {
        0 => MAX_NOISE_MULT,
        1 => draw(rng, 1 << 16),
        _ => 0,
    };
    image::set_u32(image, image::CLIP_LIMIT, below(rng, shape.inputs() as u32 + 1));
    image::set_u32(image, image::ACTION_BOUND_Q16, bound);
    image::set_u32(image, image::MAP, pick(rng, &[map::NONE, map::RATE, map::CWND]).unwrap_or(map::NONE));
    image::set_u64(image, image::OUT_MULT, mult as u64);
    image::set_u32(image, image::OUT_SHIFT, shift);
    // Few flows are to fall back, so that the others go on deciding.
    image::set_u32(image, image::TRIP_LIMIT, if chance(rng, 20) { 1 + below(rng, 60) } else { 0 });
    image::set_u64(image, image::STEP_Q20, step as u64);
    image::set_u64(image, image::KNOB_MIN, min as u64);
    image::set_u64(image, image::KNOB_MAX, max as u64);
    image::set_u64(image, image::NOISE_MULT, noise as u64);
    image::set_u32(image, image::FLAGS, if chance(rng, 30) { PIN } else { 0 });
}

fn input(rng: &mut impl RngCore, bits: Bits, image: &mut [u64], at: usize) {
    let (a, b) = match below(rng, 4) {
        0 => (i32::MIN, i32::MAX),
        1 => {
            let lo = below(rng, 1 << 20) as i32 - (1 << 19);
            (lo, lo + 1 + below(rng, 4) as i32)
        }
        2 => (-(below(rng, 1 << 16) as i32), 1 + below(rng, 1 << 16) as i32),
        _ => (rng.next_u32() as i32, rng.next_u32() as i32),
    };
    let lo = a.min(b).min(i32::MAX - 1);
    let hi = a.max(b).max(lo + 1);
    image::set_u32(image, at + feature::LO, lo as u32);
    image::set_u32(image, at + feature::HI, hi as u32);
    image::set_u64(image, at + feature::MULT, feature::mult(bits, lo, hi));
}

/// Biases and weights of a layer: `sum |W| A + |B| < 2^(b-1)` for each neuron.
fn sums(rng: &mut impl RngCore, shape: &Shape, layer: usize, image: &mut [u64]) {
    let (bits, (inputs, neurons)) = (shape.bits(), shape.layer(layer));
    let (lanes, groups) = (bits.lanes(), shape.groups(layer));
    for group in 0..groups {
        let (mut biases, mut words) = (Vec::new(), vec![0u64; inputs]);
        // A lane without a neuron is padding.
        for lane in 0..lanes.min(neurons - group * lanes) {
            let shift = bits.lane_bits() as usize * lane;
            let (bias, weights) = neuron(rng, bits, inputs);
            biases.push(bias);
            for (word, weight) in words.iter_mut().zip(weights) {
                *word = word.wrapping_add((weight as u64) << shift);
            }
        }
        image::set_u64(image, shape.bias_at(layer) + 8 * group, pack(bits, &biases));
        for (input, word) in words.into_iter().enumerate() {
            image::set_u64(image, shape.weights_at(layer) + 8 * (groups * input + group), word);
        }
    }
}

/// A bias and weights, up to the largest sums that a lane holds.
fn neuron(rng: &mut impl RngCore, bits: Bits, inputs: usize) -> (i64, Vec<i64>) {
    let max = MAX_WEIGHT[usize::from(bits == Bits::W16)];
    let largest = if chance(rng, 30) { max } else { 1 + draw(rng, max - 1) };
    let extreme = chance(rng, 20);
    let mut weights: Vec<i64> = (0..inputs)
        .map(|_| {
            let weight = if extreme { largest } else { draw(rng, 2 * largest) - largest };
            if chance(rng, 50) { -weight } else { weight }
        })
        .collect();
    let room = bits.lane_offset() - 1;
    let used = |weights: &[i64]| weights.iter().map(|w| w.abs()).sum::<i64>() * bits.max_activation();
    while used(&weights) > room {
        weights.iter_mut().for_each(|w| *w = *w * 3 / 4);
    }
    let left = room - used(&weights);
    let bias = if extreme { left } else { draw(rng, left) };
    (if chance(rng, 50) { -bias } else { bias }, weights)
}

/// A number in 0 to `most`, of random length.
fn draw(rng: &mut impl RngCore, most: i64) -> i64 {
    let most = most.max(0) as u64;
    ((rng.next_u64() >> below(rng, 64)) % (most + 1)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::check_image;
    use crate::suite::random::number;
    use ccplane_infer::{Control, FlowPolicy, Knobs, Model, Slot, Verdict};
    use rand_chacha::ChaCha8Rng;
    use rand_core::SeedableRng;
    use std::collections::HashSet;

    #[test]
    fn every_image_is_valid_and_together_they_reach_everything() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let (mut maps, mut saturated, mut clipped, mut collapsed, mut trips) = (HashSet::new(), 0, 0, 0, 0);
        let (mut actions, mut noisy) = (HashSet::new(), 0);
        for uid in 1..2000 {
            let inputs = 1 + below(&mut rng, 64) as usize;
            let shape = shape(&mut rng, inputs).unwrap();
            let image = image(&mut rng, &shape, uid);
            check_image(3, &shape, &image).unwrap();
            assert!(Model::new(&shape, &image).is_some());
            maps.insert(image::u32_at(&image, image::MAP));
            let control = Control { active: Some(0), ..Control::EMPTY };
            let slot = Slot { shape: &shape, control, images: [&image, &[], &[], &[]] };
            let mut flow = FlowPolicy::default();
            for _ in 0..10 {
                let inputs: Vec<i32> = (0..inputs).map(|_| number(&mut rng) as i32).collect();
                let mut knobs = Knobs { cwnd_bytes: number(&mut rng), rate_bytes_per_s: number(&mut rng) };
                if let Verdict::Decided { action_q16, .. } =
                    slot.decide(uid.into(), &mut flow, &inputs, &mut knobs)
                {
                    actions.insert(action_q16);
                }
            }
            noisy += u32::from(flow.noise.0 != 0);
            saturated += flow.saturated;
            clipped += flow.clipped;
            collapsed += flow.collapsed;
            trips += flow.trips;
        }
        assert_eq!(maps.len(), 3);
        assert!(actions.len() > 2000, "{} different actions", actions.len());
        let rare = [saturated, clipped, collapsed, trips, noisy];
        assert!(rare.iter().all(|n| *n > 100), "{rare:?}");
    }

    /// No lane may borrow from its neighbour, whatever the inputs: each sum stays within its lane.
    #[test]
    fn no_lane_overflows_at_the_extremes() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        for bits in [Bits::W8, Bits::W16] {
            for _ in 0..2000 {
                let inputs = 1 + below(&mut rng, 64) as usize;
                let (bias, weights) = neuron(&mut rng, bits, inputs);
                let most = weights.iter().map(|w| w.abs()).sum::<i64>() * bits.max_activation() + bias.abs();
                assert!(most < bits.lane_offset(), "{most}");
            }
        }
    }
}

//! [`Model`] against plain arithmetic without lanes; goldens; refused images.

use crate::support::below;
use ccplane_infer::image::{self, feature};
use ccplane_infer::{
    Bits, ImageError, Kernel, MAX_CLASSES, Model, Prepared, Shape, ShapeError, check, lanes, tables,
};

/// A layer as plain numbers: rows of weights, biases, tables.
struct Layer {
    rows: Vec<Vec<i128>>,
    biases: Vec<i128>,
    tables: Vec<usize>,
}

fn layers(shape: &Shape, words: &[u64]) -> Vec<Layer> {
    let bits = shape.bits();
    let of = |l: usize| {
        let ((inputs, outputs), groups) = (shape.layer(l), shape.groups(l));
        let (group, lane) = (|n: usize| n / bits.lanes(), |n: usize| n % bits.lanes());
        let weight = |n: usize, i: usize| {
            let word = image::u64_at(words, shape.weights_at(l) + 8 * (groups * i + group(n)));
            i128::from(lanes::unpack_weights(bits, word).unwrap()[lane(n)])
        };
        let bias = |n: usize| {
            let word = image::u64_at(words, shape.bias_at(l) + 8 * group(n));
            i128::from(lanes::unpack_biases(bits, word)[lane(n)])
        };
        let table = |n: usize| image::u32_at(words, shape.tables_at(l) + 4 * n) as usize;
        Layer {
            rows: (0..outputs).map(|n| (0..inputs).map(|i| weight(n, i)).collect()).collect(),
            biases: (0..outputs).map(bias).collect(),
            tables: (0..if l + 1 < shape.layers() { outputs } else { 0 }).map(table).collect(),
        }
    };
    (0..shape.layers()).map(of).collect()
}

/// The action by numbers that cannot overflow.
fn exact(shape: &Shape, words: &[u64], layers: &[Layer], cells: &[i32]) -> i64 {
    let product =
        exact_sums(shape, words, layers, cells)[0] * i128::from(image::i64_at(words, image::OUT_MULT));
    i64::try_from(product.div_euclid(1 << image::u32_at(words, image::OUT_SHIFT))).unwrap()
}

/// The outputs' sums by numbers that cannot overflow; asserts that every sum stays in its lane.
fn exact_sums(shape: &Shape, words: &[u64], layers: &[Layer], cells: &[i32]) -> Vec<i128> {
    let (a, offset) = (i128::from(shape.bits().max_activation()), i128::from(shape.bits().lane_offset()));
    let mut x: Vec<i128> = (0..shape.inputs())
        .map(|n| {
            let at = image::FEATURES + image::FEATURE_BYTES * n;
            let end = |field: usize| i128::from(image::u32_at(words, at + field) as i32);
            let (lo, hi) = (end(feature::LO), end(feature::HI));
            let value = i128::from(cells.get(n).copied().unwrap_or(0)).clamp(lo, hi);
            let x = ((value - lo) * i128::from(image::u64_at(words, at + feature::MULT)) + (1 << 31))
                / (1 << 32)
                - a;
            assert!((-a..=a).contains(&x));
            x
        })
        .collect();
    for layer in layers {
        let sums: Vec<i128> = layer
            .rows
            .iter()
            .zip(&layer.biases)
            .map(|(row, bias)| bias + row.iter().zip(&x).map(|(w, x)| w * x).sum::<i128>())
            .collect();
        assert!(sums.iter().all(|sum| (-offset..offset).contains(sum)));
        if layer.tables.is_empty() {
            return sums;
        }
        let activate = |(sum, base): (&i128, &usize)| {
            let y = tables::activation(shape.bits(), *base, (sum + offset) as u64);
            i128::from(y)
        };
        x = sums.iter().zip(&layer.tables).map(activate).collect();
        assert!(x.iter().all(|x| (-a..=a).contains(x)));
    }
    unreachable!("the last layer has no tables")
}

#[test]
fn lanes_give_what_plain_arithmetic_gives() {
    let mut cells = Vec::new();
    for seed in 0..200 {
        let mut rng = crate::support::rng(seed);
        let shape = crate::support::shape(&mut rng);
        let words = crate::support::image(&mut rng, &shape);
        let (model, layers) = (Model::new(&shape, &words).unwrap(), layers(&shape, &words));
        for _ in 0..50 {
            crate::support::inputs(&mut rng, &shape, &words, &mut cells);
            let expected = exact(&shape, &words, &layers, &cells);
            assert_eq!(model.infer(&cells).action_q16, expected, "network {seed}, {shape:?}, {cells:?}");
        }
    }
}

#[test]
fn every_executor_picks_the_class_of_plain_arithmetic() {
    let (mut cells, mut classes) = (Vec::new(), [0; MAX_CLASSES]);
    for seed in 0..200 {
        let mut rng = crate::support::rng(seed ^ 0xc1a55);
        let shape = crate::support::classifier(&mut rng);
        let words = crate::support::image(&mut rng, &shape);
        let (model, layers) = (Model::new(&shape, &words).unwrap(), layers(&shape, &words));
        let kernels = Kernel::available().map(|kernel| Prepared::with(&shape, &words, kernel).unwrap());
        let kernels: Vec<Prepared> = kernels.collect();
        for _ in 0..20 {
            crate::support::inputs(&mut rng, &shape, &words, &mut cells);
            let sums = exact_sums(&shape, &words, &layers, &cells);
            let largest = *sums.iter().max().unwrap();
            let class = sums.iter().position(|sum| *sum == largest).unwrap();
            let classified = model.classify(&cells);
            assert_eq!(usize::from(classified.class), class, "network {seed}, {shape:?}, {sums:?}");
            assert_eq!(classified.clipped_inputs, model.infer(&cells).clipped_inputs);
            assert!(kernels.iter().all(|kernel| kernel.classify(&cells) == classified));
            classes[class] += 1;
        }
    }
    assert!(classes.iter().all(|count| *count > 0), "{classes:?}");
    // All weights 0: every class ties, and the first one wins.
    let shape = Shape::classifier(Bits::W8, &[4, 5]).unwrap();
    let mut words = crate::support::image(&mut crate::support::rng(1), &shape);
    for word in words.iter_mut().skip(shape.bias_at(0) / 8) {
        *word = 0;
    }
    for group in 0..shape.groups(0) {
        image::set_u64(&mut words, shape.bias_at(0) + 8 * group, lanes::pack_biases(Bits::W8, [0; 3]));
    }
    assert_eq!(Model::new(&shape, &words).unwrap().classify(&[7; 4]).class, 0);
    assert_eq!(Prepared::new(&shape, &words).unwrap().classify(&[7; 4]).class, 0);
}

#[test]
fn policies_and_classifiers_have_shapes_of_their_own() {
    let widths = |outputs| [3, 4, outputs];
    assert_eq!(Shape::new(Bits::W8, &widths(2)), Err(ShapeError::Outputs { found: 2 }));
    for found in [0, 1, MAX_CLASSES + 1] {
        assert_eq!(Shape::classifier(Bits::W8, &widths(found)), Err(ShapeError::Classes { found }));
    }
    let classifier = Shape::classifier(Bits::W8, &widths(MAX_CLASSES)).unwrap();
    assert_eq!(classifier.outputs(), MAX_CLASSES);
    assert_eq!(Shape::from_code(classifier.code()), None);
}

/// Inputs that drive a neuron of the first layer to either end of its range.
#[test]
fn the_worst_inputs_stay_in_their_lanes() {
    let mut reached = 0;
    for seed in 0..200 {
        let mut rng = crate::support::rng(seed + 1_000);
        let shape = crate::support::shape(&mut rng);
        let words = crate::support::image(&mut rng, &shape);
        let (model, layers) = (Model::new(&shape, &words).unwrap(), layers(&shape, &words));
        let prepared = Prepared::new(&shape, &words).unwrap();
        for (row, bias) in layers[0].rows.iter().zip(&layers[0].biases) {
            let reach: i128 =
                row.iter().map(|w| w.abs()).sum::<i128>() * i128::from(shape.bits().max_activation());
            reached += i128::from(reach + bias.abs() > i128::from(shape.bits().lane_offset()) - 200);
            for up in [false, true] {
                let end = |(n, w): (usize, &i128)| {
                    let field = if (*w > 0) == up { feature::HI } else { feature::LO };
                    image::u32_at(&words, image::FEATURES + image::FEATURE_BYTES * n + field) as i32
                };
                let cells: Vec<i32> = row.iter().enumerate().map(end).collect();
                let expected = exact(&shape, &words, &layers, &cells);
                assert_eq!(model.infer(&cells).action_q16, expected);
                assert_eq!(prepared.infer(&cells).action_q16, expected);
            }
        }
    }
    assert!(reached > 1_000, "only {reached} neurons come near their lanes' ends");
}

#[test]
fn actions_are_the_golden_ones() {
    let golden = |bits, seed| {
        let mut rng = crate::support::rng(seed);
        let shape = Shape::new(bits, &[3, 5, 4, 1]).unwrap();
        let mut words = crate::support::image(&mut rng, &shape);
        image::set_u64(&mut words, image::OUT_MULT, 0x9000_0000);
        image::set_u32(&mut words, image::OUT_SHIFT, if bits == Bits::W8 { 34 } else { 45 });
        let model = Model::new(&shape, &words).unwrap();
        let mut cells = Vec::new();
        let mut one = || {
            crate::support::inputs(&mut rng, &shape, &words, &mut cells);
            model.infer(&cells).action_q16
        };
        [one(), one(), one(), one()]
    };
    assert_eq!(golden(Bits::W8, 1), [-34511, -17268, -59264, 10635]);
    assert_eq!(golden(Bits::W8, 2), [114841, 108857, 100546, 99881]);
    assert_eq!(golden(Bits::W16, 4), [95712, 95615, 95927, 95542]);
    assert_eq!(golden(Bits::W16, 8), [-79245, -78345, -78345, -78334]);
}

#[test]
fn words_pack_and_unpack() {
    let mut rng = crate::support::rng(5);
    for bits in [Bits::W8, Bits::W16] {
        for _ in 0..2_000 {
            let mut some = |limit: i64| -> Vec<i64> {
                let mut lane = || match below(&mut rng, 4) {
                    0 => -limit,
                    1 => limit - 1,
                    _ => below(&mut rng, 2 * limit as usize) as i64 - limit,
                };
                (0..bits.lanes()).map(|_| lane()).collect()
            };
            let (weights, biases) = (some(1 << 15), some(bits.lane_offset()));
            let word = lanes::pack_weights(bits, weights.iter().copied());
            assert_eq!(lanes::unpack_weights(bits, word).unwrap()[..bits.lanes()], weights);
            let word = lanes::pack_biases(bits, biases.iter().copied());
            assert_eq!(lanes::unpack_biases(bits, word)[..bits.lanes()], biases);
        }
    }
    assert_eq!(lanes::unpack_weights(Bits::W8, 1 << 62), None, "beyond three lanes");
}

#[test]
fn images_are_refused_for_each_wrong_word() {
    let mut rng = crate::support::rng(9);
    let shape = Shape::new(Bits::W8, &[3, 4, 1]).unwrap();
    let good = crate::support::image(&mut rng, &shape);
    assert_eq!(check(&shape, &good), Ok(()));
    let with = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut words = good.clone();
        change(&mut words);
        assert!(Prepared::new(&shape, &words).is_err());
        check(&shape, &words).unwrap_err()
    };
    let field = |error: ImageError| match error {
        ImageError::Range { field, .. } => field,
        other => panic!("{other}"),
    };
    let u32_field = |at: usize, value: u32| field(with(&|w| image::set_u32(w, at, value)));
    let u64_field = |at: usize, value: i64| field(with(&|w| image::set_u64(w, at, value as u64)));
    assert!(matches!(with(&|w| w.truncate(9)), ImageError::Length { .. }));
    assert!(matches!(with(&|w| w.push(0)), ImageError::Length { .. }));
    assert!(matches!(with(&|w| image::set_u64(w, image::SHAPE, 7)), ImageError::Shape { found: 7, .. }));
    assert_eq!(u32_field(image::UID, 0), "uid");
    assert_eq!(u32_field(image::ACTION_BOUND_Q16, 0), "action bound");
    assert_eq!(u32_field(image::ACTION_BOUND_Q16, image::MAX_BOUND_Q16 + 1), "action bound");
    assert_eq!(u32_field(image::MAP, 3), "action map");
    assert_eq!(u64_field(image::OUT_MULT, 0), "out_mult");
    assert_eq!(u64_field(image::OUT_MULT, 1 << 32), "out_mult");
    assert_eq!(u32_field(image::OUT_SHIFT, 64), "out_shift");
    assert_eq!(u64_field(image::STEP_Q20, -1), "step");
    // The bound is 2: twice the step may change so much.
    let step = (image::MAX_CHANGE_Q20 as i64 + 1) / 2;
    assert_eq!(u64_field(image::STEP_Q20, step + 1), "step");
    assert_eq!(u64_field(image::KNOB_MIN, 0), "knob_min");
    assert_eq!(u64_field(image::KNOB_MAX, 1_000), "knob_max");
    assert_eq!(u64_field(image::KNOB_MAX, image::MAX_KNOB + 1), "knob_max");
    assert_eq!(u64_field(image::NOISE_MULT, -1), "noise_mult");
    assert_eq!(u32_field(image::FLAGS, 2), "flags");
    for at in [image::FLAGS + 4, image::NAME + 8 * image::NAME_WORDS, image::FEATURES - 4] {
        assert_eq!(with(&|w| image::set_u32(w, at, 1)), ImageError::Reserved { at });
    }
    let feature = |at: usize, value: u64| with(&|w| image::set_u64(w, image::FEATURES + 16 + at, value));
    assert_eq!(feature(feature::LO, 5 << 32 | 5), ImageError::Feature { input: 2 }, "lo = hi");
    assert_eq!(feature(feature::MULT, 1), ImageError::Feature { input: 2 });
    let weights = shape.weights_at(0);
    assert_eq!(with(&|w| image::set_u64(w, weights, 1 << 62)), ImageError::Weights { layer: 1, input: 1 });
    let heavy = lanes::pack_weights(Bits::W8, [0, 8_257, 0]);
    let over = with(&|w| image::set_u64(w, weights, heavy));
    assert!(matches!(over, ImageError::Overflow { layer: 1, neuron: 2, .. }), "{over}");
    for base in [1, 2_047, 2_048 * 16, u32::MAX] {
        let error = with(&|w| image::set_u32(w, shape.tables_at(0) + 4, base));
        assert_eq!(error, ImageError::Table { layer: 1, neuron: 2, found: base });
    }
}

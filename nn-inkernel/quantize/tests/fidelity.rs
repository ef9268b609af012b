//! The error of integer networks on the policy's path and off it; networks beyond the budget are refused.
#![allow(clippy::unwrap_used)]

mod support;

use ccplane_infer::{Bits, Model, Prepared, Shape, ShapeError};
use ccplane_quantize::snapshot::{DeployOptions, Feature, Guards, PolicySpec, Provenance, Snapshot};
use ccplane_quantize::{Activation, Dense, Mlp, MlpError, Options, QuantizeError, Scratch, Width, quantize};
use support::{aurora, classifier, mlp, states, wide};

fn with(bits: Width) -> Options {
    Options { bits, ..Options::default() }
}

fn errors(snapshot: &Snapshot) -> (f64, f64) {
    (snapshot.fidelity().visited_mean_error, snapshot.fidelity().off_mean_error)
}

/// 8 bits stay far below the budget of 1 % and 2 %.
#[test]
fn eight_bits_hold_an_aurora() {
    let (spec, visited) = (aurora(), states(&aurora(), 4_000, 1));
    for seed in 0..4 {
        let mlp = mlp(&[30, 32, 16, 1], Activation::Tanh, 1.0, seed);
        let snapshot = quantize(&mlp, &spec, &visited, &Options::default()).unwrap();
        assert_eq!(snapshot.shape().bits(), Bits::W8);
        let (on_path, off_path) = errors(&snapshot);
        assert!(on_path < 0.003 && off_path < 0.003, "{:?}", snapshot.fidelity());
        assert!(snapshot.fidelity().both_signs());
    }
}

#[test]
fn sixteen_bits_are_a_tenth_as_far_off() {
    let (spec, visited) = (aurora(), states(&aurora(), 1_000, 2));
    for (activation, seed) in [(Activation::Tanh, 1), (Activation::Relu, 2), (Activation::Tanh, 3)] {
        let mlp = mlp(&[30, 32, 16, 1], activation, 1.0, seed);
        let narrow = errors(&quantize(&mlp, &spec, &visited, &with(Width::W8)).unwrap());
        let broad = errors(&quantize(&mlp, &spec, &visited, &with(Width::W16)).unwrap());
        assert!(
            broad.0 * 10.0 < narrow.0 && broad.1 * 10.0 < narrow.1,
            "{activation:?}: {narrow:?}, {broad:?}"
        );
        assert!(broad.0 < 2e-4 && broad.1 < 2e-4, "{broad:?}");
    }
}

/// If 8 bits are too coarse, 16 are taken; if those are, the network is refused.
#[test]
fn the_width_follows_the_budget() {
    let (spec, visited) = (aurora(), states(&aurora(), 1_000, 3));
    let mlp = mlp(&[30, 32, 16, 1], Activation::Tanh, 3.0, 5);
    let run = |bits, budget_visited, budget_off| {
        quantize(&mlp, &spec, &visited, &Options { bits, budget_visited, budget_off, ..Options::default() })
    };
    let over = |result: Result<Snapshot, QuantizeError>| match result.map(|s| s.shape().bits()) {
        Err(QuantizeError::OverBudget { bits, fidelity, .. }) => (bits, fidelity.visited_mean_error),
        other => panic!("{other:?}"),
    };
    let (bits, error) = over(run(Width::W8, 1e-3, 0.02));
    assert!(bits == Bits::W8 && error > 1e-3);
    let snapshot = run(Width::Auto, 1e-3, 0.02).unwrap();
    assert!(snapshot.shape().bits() == Bits::W16 && snapshot.fidelity().visited_mean_error <= 1e-3);
    assert_eq!(
        run(Width::Auto, error, 1e-3).unwrap().shape().bits(),
        Bits::W16,
        "the other budget counts too"
    );
    assert_eq!(over(run(Width::Auto, 1e-9, 0.02)).0, Bits::W16);
    assert_eq!(
        over(run(Width::Auto, 0.01, f64::NAN)).0,
        Bits::W16,
        "a budget that is not a number allows nothing"
    );
}

#[test]
fn every_depth_activation_and_range_works() {
    for widths in [&[3, 1][..], &[3, 1, 1], &[3, 64, 1], &[3, 20, 20, 20, 1]] {
        for activation in [Activation::Tanh, Activation::Relu] {
            let (spec, visited) = (wide(), states(&wide(), 500, 4));
            let mlp = mlp(widths, activation, 1.0, 9);
            let snapshot = quantize(&mlp, &spec, &visited, &with(Width::W16)).unwrap();
            assert!(snapshot.fidelity().off_max_error < 0.01, "{widths:?} {:?}", snapshot.fidelity());
        }
    }
}

/// Inputs at the spec's ends give the full scale in the float and in the integer network.
#[test]
fn a_linear_policy_is_exact_to_its_inputs_rounding() {
    let linear = |w: f32, b: f32| {
        let dense =
            Dense { inputs: 3, outputs: 1, weights: vec![w, -w, 0.0], bias: vec![b], activation: None };
        Mlp::new(vec![dense]).unwrap()
    };
    let visited = states(&wide(), 200, 5);
    for (w, b) in [(0.3, 0.1), (1e-6, 0.0), (0.0, 0.25), (1e4, -3.0), (0.0, 0.0)] {
        let snapshot = quantize(&linear(w, b), &wide(), &visited, &with(Width::W16)).unwrap();
        let (on_path, off_path) = errors(&snapshot);
        assert!(on_path < 2e-4 && off_path < 2e-4, "{w} {b}: {:?}", snapshot.fidelity());
    }
}

#[test]
fn the_same_network_gives_the_same_snapshot() {
    let (spec, visited) = (aurora(), states(&aurora(), 500, 6));
    let mlp = mlp(&[30, 32, 16, 1], Activation::Tanh, 1.0, 7);
    let provenance = Provenance { algorithm: "aurora".to_owned(), seed: 7, ..Provenance::default() };
    let options =
        Options { provenance, guards: Some(Guards { trip_limit: 9, clip_limit: 3 }), ..Options::default() };
    let snapshot = quantize(&mlp, &spec, &visited, &options).unwrap();
    assert_eq!(quantize(&mlp, &spec, &visited, &options).unwrap().to_bytes(), snapshot.to_bytes());
    assert_eq!(Snapshot::parse(&snapshot.to_bytes()).unwrap(), snapshot);
    assert_eq!((snapshot.guards().trip_limit, snapshot.provenance().seed), (9, 7));
    let inputs = &snapshot.calibration().inputs;
    for (n, (lo, hi)) in inputs.iter().enumerate() {
        assert_eq!(Some(*lo), visited.iter().map(|s| s[n]).min());
        assert_eq!(Some(*hi), visited.iter().map(|s| s[n]).max());
    }
    let first = &snapshot.network().layers()[0];
    assert_eq!(
        (&first.weights[..6], &first.tables[..4]),
        (&[-231i16, -220, -204, -213, -148, 131][..], &[3u8, 3, 2, 3][..])
    );
}

#[test]
fn networks_that_no_datapath_holds_are_refused() {
    let visited = states(&wide(), 100, 7);
    let refuse =
        |mlp: &Mlp, visited: &[Vec<i32>]| quantize(mlp, &wide(), visited, &Options::default()).unwrap_err();
    let small = mlp(&[3, 4, 1], Activation::Tanh, 1.0, 1);
    assert_eq!(refuse(&small, &[]), QuantizeError::NoStates);
    let short = vec![vec![1, 2, 3], vec![1, 2]];
    assert_eq!(refuse(&small, &short), QuantizeError::State { state: 1, found: 2, expected: 3 });
    let other = mlp(&[4, 4, 1], Activation::Tanh, 1.0, 1);
    assert_eq!(refuse(&other, &visited), QuantizeError::Inputs { found: 4, expected: 3 });
    let broad = mlp(&[3, 65, 1], Activation::Tanh, 1.0, 1);
    assert_eq!(refuse(&broad, &visited), QuantizeError::Shape(ShapeError::Width { layer: 1, found: 65 }));
    let steep = mlp(&[3, 4, 1], Activation::Tanh, 200.0, 1);
    assert!(matches!(refuse(&steep, &visited), QuantizeError::Reach { layer: 1, limit: 128.0, .. }));
    let huge = mlp(&[3, 4, 1], Activation::Relu, 1e30, 1);
    assert!(
        matches!(refuse(&huge, &visited), QuantizeError::Reach { layer: 2, .. }),
        "{}",
        refuse(&huge, &visited)
    );
}

#[test]
fn layers_that_are_no_network_are_refused() {
    let dense = |inputs: usize, outputs: usize, activation| Dense {
        inputs,
        outputs,
        weights: vec![0.5; inputs * outputs],
        bias: vec![0.0; outputs],
        activation,
    };
    let tanh = Some(Activation::Tanh);
    let refuse = |layers| Mlp::new(layers).unwrap_err();
    assert_eq!(refuse(vec![]), MlpError::NoLayers);
    assert_eq!(refuse(vec![dense(0, 1, None)]), MlpError::Empty { layer: 1, inputs: 0, outputs: 1 });
    assert_eq!(refuse(vec![dense(2, 2, None)]), MlpError::Output { outputs: 2, activation: None });
    assert_eq!(refuse(vec![dense(2, 1, tanh)]), MlpError::Output { outputs: 1, activation: tanh });
    assert_eq!(refuse(vec![dense(2, 3, None), dense(3, 1, None)]), MlpError::LinearHidden { layer: 1 });
    let gap = vec![dense(2, 3, tanh), dense(4, 1, None)];
    assert_eq!(refuse(gap), MlpError::Widths { layer: 2, found: 4, expected: 3 });
    let mut few = dense(2, 1, None);
    few.weights.pop();
    assert_eq!(refuse(vec![few]), MlpError::Count { layer: 1, what: "weights", found: 1, expected: 2 });
    let mut wild = dense(2, 1, None);
    wild.bias[0] = f32::INFINITY;
    assert_eq!(refuse(vec![wild]), MlpError::NotFinite { layer: 1, what: "bias" });
}

/// A classifier whose float and integer networks are compared by class.
#[test]
fn a_classifier_keeps_its_classes() {
    let inputs = (0..16).map(|n| Feature { name: format!("pixel[{n}]"), lo: 0, hi: 16 });
    let spec = PolicySpec::classifier("shapes", inputs.collect()).unwrap();
    let visited = states(&spec, 2_000, 3);
    let network = classifier(&[16, 12, 10], 11);
    let mut classes = [0; 10];
    for width in [Width::W8, Width::W16] {
        let options = Options { budget_off: 0.05, budget_visited: 0.05, ..with(width) };
        let snapshot = quantize(&network, &spec, &visited, &options).unwrap();
        assert_eq!(snapshot.shape().outputs(), 10);
        let image = snapshot.image(&DeployOptions::ONLY);
        let (model, prepared) =
            (Model::new(snapshot.shape(), &image).unwrap(), Prepared::new(snapshot.shape(), &image).unwrap());
        let (mut other, mut scratch, mut input) = (0, Scratch::default(), vec![0.0; 16]);
        for cells in &visited {
            spec.normalise(cells, &mut input);
            let expected = network.classify(&input, &mut scratch);
            let classified = model.classify(cells);
            assert_eq!(prepared.classify(cells), classified);
            other += usize::from(usize::from(classified.class) != expected);
            classes[expected] += 1;
        }
        let share = other as f64 / visited.len() as f64;
        assert!((snapshot.fidelity().visited_mean_error - share).abs() < 1e-12, "{share}");
        let read = Snapshot::parse(&snapshot.to_bytes()).unwrap();
        assert_eq!(read.shape(), snapshot.shape());
        assert_eq!(Shape::from_code(read.shape().code()), None, "no policy's slot takes it");
    }
    assert!(classes.iter().filter(|count| **count > 0).count() > 1, "{classes:?}");
}

#[test]
fn the_float_network_computes_what_it_says() {
    let hidden = Dense {
        inputs: 2,
        outputs: 2,
        weights: vec![1.0, 2.0, -1.0, 0.5],
        bias: vec![0.0, 1.0],
        activation: Some(Activation::Relu),
    };
    let output = Dense { inputs: 2, outputs: 1, weights: vec![2.0, 4.0], bias: vec![-1.0], activation: None };
    let mlp = Mlp::new(vec![hidden, output]).unwrap();
    assert_eq!(mlp.widths(), [2, 2, 1]);
    let mut scratch = Scratch::default();
    // Hidden sums 2 and 0.25, then -2 and 3.
    assert_eq!(mlp.forward(&[1.0, 0.5], &mut scratch), 4.0);
    assert_eq!(mlp.forward(&[-2.0, 0.0], &mut scratch), 11.0);
}

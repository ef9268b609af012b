//! Models that the exporters of torch and Keras wrote are held against these (`models/export.py`, `models/export_keras.py`).
//! Models that Python's onnx wrote, in further forms, are held against its own evaluator (`models/make.py`).
#![allow(clippy::unwrap_used)]

use ccplane_import::{ImportError, onnx, safetensors};
use ccplane_quantize::{Activation, Mlp, MlpError, Scratch};
use ccplane_testing::fuzz::{Fuzz, shape};
use proptest::prelude::*;
use serde_json::Value;

const EXPECTED: &str = include_str!("models/expected.json");
const LIKE_TORCH: &[u8] = include_bytes!("models/like-torch.onnx");
const LIKE_KERAS: &[u8] = include_bytes!("models/like-keras.onnx");
const BY_TORCH: &str = include_str!("models/torch.json");
const SEQUENTIAL: &[u8] = include_bytes!("models/torch-sequential.onnx");
const MODULE: &[u8] = include_bytes!("models/torch-module.onnx");
const BY_KERAS: &str = include_str!("models/keras.json");
const KERAS_SEQUENTIAL: [&[u8]; 2] = [
    include_bytes!("models/keras-sequential-tensorflow.onnx"),
    include_bytes!("models/keras-sequential-jax.onnx"),
];
const KERAS_FUNCTIONAL: &[u8] = include_bytes!("models/keras-functional-tensorflow.onnx");
const PI: &[u8] = include_bytes!("models/pi.safetensors");
/// Longest model that is drawn, bytes: each of these, and as much again.
const MAX_DRAWN_BYTES: usize = 4096;
/// Models that a test run draws.
const DRAWN: u64 = 5_000;

fn floats(of: &Value) -> Vec<f32> {
    of.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Holds a network's outputs against those that a file says.
#[track_caller]
fn computes(network: &Mlp, expected: &str, name: &str) {
    let expected: Value = serde_json::from_str(expected).unwrap();
    let outputs = floats(&expected["outputs"][name]);
    let observations = expected["observations"].as_array().unwrap();
    assert_eq!(outputs.len(), observations.len());
    for (observation, output) in observations.iter().zip(outputs) {
        let found = network.forward(&floats(observation), &mut Scratch::default());
        assert!((found - output).abs() < 1e-5, "{name}: {found} for {output}");
    }
}

/// Reads a model whose layers have these widths, and whose first one has this activation, and holds it against a file.
#[track_caller]
fn is_read(model: &[u8], (widths, first): (&[usize], Activation), expected: &str, name: &str) {
    let network = onnx(model).unwrap();
    assert_eq!(network.widths(), widths);
    assert_eq!(network.layers()[0].activation, Some(first));
    computes(&network, expected, name);
}

#[test]
fn what_torch_exported_computes_what_torch_computed() {
    is_read(SEQUENTIAL, (&[6, 8, 5, 1], Activation::Tanh), BY_TORCH, "sequential");
    // A module of modules, with a dropout, batches of any size, and a layer without biases.
    is_read(MODULE, (&[6, 7, 1], Activation::Relu), BY_TORCH, "module");
}

#[test]
fn what_keras_exported_computes_what_keras_computed() {
    for (model, name) in KERAS_SEQUENTIAL.into_iter().zip(["sequential-tensorflow", "sequential-jax"]) {
        is_read(model, (&[6, 8, 5, 1], Activation::Tanh), BY_KERAS, name);
    }
    // With activations as layers, a dropout, a layer without biases, and Flatten, which is a reshaping there.
    is_read(KERAS_FUNCTIONAL, (&[6, 7, 1], Activation::Relu), BY_KERAS, "functional-tensorflow");
}

#[test]
fn what_keras_reshapes_by_a_shape_that_it_computes_is_refused_with_what_to_do() {
    let said = onnx(include_bytes!("models/keras-functional-jax.onnx")).unwrap_err().to_string();
    assert!(said.starts_with("operator Reshape (node `"), "{said}");
    assert!(
        said.ends_with("its shape is computed: export a batch of a fixed size, or leave Flatten out"),
        "{said}"
    );
}

#[test]
fn layers_in_the_forms_of_torch_and_keras_compute_what_onnx_says() {
    is_read(LIKE_TORCH, (&[6, 8, 5, 1], Activation::Tanh), EXPECTED, "like-torch");
    is_read(LIKE_KERAS, (&[6, 7, 1], Activation::Relu), EXPECTED, "like-keras");
}

#[test]
fn a_state_dict_computes_what_it_did() {
    computes(&safetensors(PI, "pi.", Some(Activation::Relu)).unwrap(), EXPECTED, "pi");
    assert_eq!(safetensors(PI, "pi.", None), Err(ImportError::NoActivation));
    let other = safetensors(PI, "actor.", Some(Activation::Tanh)).unwrap_err().to_string();
    assert!(other.contains("under `actor.`") && other.contains("pi.10.bias, pi.10.weight"), "{other}");
    // Actor and critic together are no chain.
    assert!(matches!(safetensors(PI, "", Some(Activation::Relu)), Err(ImportError::Network(_))));
}

#[test]
fn what_no_datapath_computes_is_refused_by_name() {
    let refused = |bytes: &[u8]| onnx(bytes).unwrap_err();
    let operator = |bytes: &[u8], expected: &str| match refused(bytes) {
        ImportError::Operator { operator, node } => {
            assert_eq!((operator.as_str(), node), (expected, format!("/b/{expected}")));
        }
        other => panic!("{other}"),
    };
    operator(include_bytes!("models/refused-softmax.onnx"), "Softmax");
    operator(include_bytes!("models/refused-sigmoid.onnx"), "Sigmoid");
    let branch = refused(include_bytes!("models/refused-branch.onnx"));
    assert_eq!(branch, ImportError::Branch { value: "a".to_owned(), found: 2 });
    let scaled = refused(include_bytes!("models/refused-scaled.onnx")).to_string();
    assert_eq!(scaled, "operator Gemm (node `/a/Gemm`): alpha and beta have to be 1");
    let network = |bytes: &[u8], expected: MlpError| {
        assert_eq!(refused(bytes), ImportError::Network(expected));
    };
    network(include_bytes!("models/refused-linear.onnx"), MlpError::LinearHidden { layer: 1 });
    let wide = MlpError::Output { outputs: 4, activation: None };
    network(include_bytes!("models/refused-wide.onnx"), wide);
    let bounded = MlpError::Output { outputs: 1, activation: Some(Activation::Tanh) };
    network(include_bytes!("models/refused-tanh-output.onnx"), bounded);
    let half = refused(include_bytes!("models/refused-half.onnx")).to_string();
    assert_eq!(half, "tensor w: data type 10, float and double are taken");
    assert!(matches!(refused(PI), ImportError::Onnx { .. }));
    assert!(matches!(
        safetensors(LIKE_TORCH, "", None),
        Err(ImportError::Safetensors { .. } | ImportError::TooMany { .. })
    ));
}

#[test]
fn a_model_that_is_cut_off_anywhere_is_refused() {
    for cut in 0..LIKE_TORCH.len() {
        assert!(matches!(onnx(&LIKE_TORCH[..cut]), Err(ImportError::Onnx { .. })), "{cut} bytes");
    }
}

proptest! {
    /// Damaged files are refused or read; they end nothing.
    #[test]
    fn damaged_files_do_not_panic(at in 0..LIKE_TORCH.len(), byte: u8, other in 0..PI.len()) {
        let mut damaged = LIKE_TORCH.to_vec();
        damaged[at] = byte;
        let _ = onnx(&damaged);
        let mut damaged = PI.to_vec();
        damaged[other] = byte;
        let _ = safetensors(&damaged, "pi.", Some(Activation::Tanh));
    }
}

/// Computes what was read, and names the way in which it was taken or refused.
fn way(read: Result<Mlp, ImportError>) -> u64 {
    match read {
        Ok(network) => {
            let observation = vec![0.5; network.widths()[0]];
            let _ = network.forward(&observation, &mut Scratch::default());
            network.layers().len() as u64
        }
        Err(ImportError::Network(error)) => shape(&error),
        Err(error) => shape(&error),
    }
}

#[test]
fn an_onnx_model_of_any_bytes_is_refused_or_computed() {
    let tokens = [
        "Gemm", "MatMul", "Add", "Tanh", "Relu", "Identity", "Flatten", "Reshape", "Constant", "transB",
        "alpha", "value",
    ];
    let [by_tensorflow, by_jax] = KERAS_SEQUENTIAL;
    let seeds = [LIKE_TORCH, LIKE_KERAS, SEQUENTIAL, MODULE, by_tensorflow, by_jax, KERAS_FUNCTIONAL];
    let target = Fuzz::new("onnx-model", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(tokens);
    let target = target.max_bytes(MAX_DRAWN_BYTES).max_kept_bytes(MAX_DRAWN_BYTES).part(DRAWN);
    target.run(|bytes| way(onnx(bytes)));
}

#[test]
fn tensors_of_any_bytes_are_refused_or_computed() {
    let tokens =
        ["pi.2.weight", "pi.2.bias", "\"dtype\":\"F32\"", "F64", "[0,4]", "\"shape\":[1]", "{", "}", "\""];
    let target = Fuzz::new("model-tensors", env!("CARGO_MANIFEST_DIR")).seeds([PI]).tokens(tokens);
    let target = target.max_bytes(MAX_DRAWN_BYTES).max_kept_bytes(MAX_DRAWN_BYTES).part(DRAWN);
    target.run(|bytes| way(safetensors(bytes, "pi.", Some(Activation::Tanh))));
}

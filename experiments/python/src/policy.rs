//! Policies that Python trained, as policy files.

use crate::environment::links;
use crate::error::refused;
use ccplane_learn::{Architecture, Policy, Provenance};
use ccplane_quantize::{Activation, Dense, Mlp};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;

/// Layers of a network: weights (outputs, inputs) and biases (outputs), float32.
type Layers<'py> = Vec<(PyReadonlyArray2<'py, f32>, PyReadonlyArray1<'py, f32>)>;
/// The same on their way to Python.
type LayersOut<'py> = Vec<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<f32>>)>;

/// A policy file of these networks, whose hidden layers are `tanh` or `relu` and whose output is the action's mean, or the value.
#[pyfunction]
#[pyo3(signature = (algorithm, actor, critic, activation, log_std, seed, steps, command))]
#[expect(clippy::too_many_arguments, reason = "named by Python's wrapper")]
pub(crate) fn policy_to_bytes<'py>(
    py: Python<'py>,
    algorithm: &str,
    actor: Layers<'py>,
    critic: Layers<'py>,
    activation: &str,
    log_std: f32,
    seed: u64,
    steps: u64,
    command: String,
) -> PyResult<Bound<'py, PyBytes>> {
    let activation = match activation {
        "tanh" => Activation::Tanh,
        "relu" => Activation::Relu,
        other => return Err(PyValueError::new_err(format!("activation `{other}`; there are tanh and relu"))),
    };
    let spec = links(algorithm, None, false)?.spec().clone();
    let actor = network(&actor, activation)?;
    let architecture = Architecture::of(&actor);
    let provenance = Provenance { seed, steps, command, parent: None };
    let policy = Policy::new(architecture, actor, network(&critic, activation)?, log_std, spec, provenance);
    let bytes = policy.and_then(|policy| policy.to_bytes()).map_err(refused)?;
    Ok(PyBytes::new(py, &bytes))
}

fn network(layers: &Layers<'_>, activation: Activation) -> PyResult<Mlp> {
    let count = layers.len();
    let dense = |(n, (weights, bias)): (usize, &(PyReadonlyArray2<'_, f32>, PyReadonlyArray1<'_, f32>))| {
        let view = weights.as_array();
        Dense {
            inputs: view.ncols(),
            outputs: view.nrows(),
            weights: view.iter().copied().collect(),
            bias: bias.as_array().iter().copied().collect(),
            activation: (n + 1 < count).then_some(activation),
        }
    };
    Mlp::new(layers.iter().enumerate().map(dense).collect()).map_err(refused)
}

/// A policy's actor and critic, their hidden activation, the logarithm of the actions' deviation, and the algorithm.
type Parts<'py> = (LayersOut<'py>, LayersOut<'py>, &'static str, f32, String);

/// Reads a policy file.
#[pyfunction]
pub(crate) fn read_policy(py: Python<'_>, path: PathBuf) -> PyResult<Parts<'_>> {
    parts(py, &Policy::read(&path).map_err(refused)?)
}

/// Parses the content of a policy file.
#[pyfunction]
pub(crate) fn policy_from_bytes<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Parts<'py>> {
    parts(py, &Policy::from_bytes(content).map_err(refused)?)
}

fn parts<'py>(py: Python<'py>, policy: &Policy) -> PyResult<Parts<'py>> {
    let activation = match policy.architecture().activation {
        Activation::Tanh => "tanh",
        Activation::Relu => "relu",
    };
    let algorithm = policy.spec().algorithm().to_owned();
    Ok((layers(py, policy.actor())?, layers(py, policy.critic())?, activation, policy.log_std(), algorithm))
}

fn layers<'py>(py: Python<'py>, network: &Mlp) -> PyResult<LayersOut<'py>> {
    let layer = |layer: &Dense| {
        let weights = PyArray1::from_slice(py, &layer.weights).reshape([layer.outputs, layer.inputs])?;
        Ok((weights, PyArray1::from_slice(py, &layer.bias)))
    };
    network.layers().iter().map(layer).collect()
}

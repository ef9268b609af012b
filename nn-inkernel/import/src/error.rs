//! Reasons why a model becomes no network of ours.

use ccplane_quantize::MlpError;

/// The reason why a model is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Too much of something.
    #[error("{found} {what}, at most {limit} are allowed")]
    TooMany { what: &'static str, found: usize, limit: usize },
    /// The bytes are no ONNX model.
    #[error("no ONNX model: {reason}")]
    Onnx { reason: String },
    /// The bytes are no safetensors file.
    #[error("no safetensors file: {reason}")]
    Safetensors { reason: String },
    /// An operator that no datapath of ours computes.
    #[error("operator {operator} (node `{node}`) is not one that a policy may have: {}", KNOWN.join(", "))]
    Operator { operator: String, node: String },
    /// An operator that is known, with attributes or operands that are not.
    #[error("operator {operator} (node `{node}`): {why}")]
    Unsupported { operator: String, node: String, why: &'static str },
    /// The model has not one input and one output.
    #[error("{found} {what}, a policy has one")]
    Ends {
        /// Either `inputs` or `outputs`.
        what: &'static str,
        found: usize,
    },
    /// A value that several nodes use, or none.
    #[error("{found} nodes use `{value}`: a policy is one layer after the other")]
    Branch { value: String, found: usize },
    /// A tensor that a node names and the model does not have.
    #[error("tensor {name} is not in the model's file")]
    Missing { name: String },
    /// A tensor of another type, shape or length.
    #[error("tensor {name}: {why}")]
    Tensor { name: String, why: String },
    /// The layers make no network of ours.
    #[error(transparent)]
    Network(#[from] MlpError),
    /// A file without the names of layers.
    #[error("no pair of tensors NAME.weight and NAME.bias{}; there are {}", under(prefix), names.join(", "))]
    NoLayers { prefix: String, names: Vec<String> },
    /// Activations do not stand in the file.
    #[error("a safetensors file does not say its activation: tanh or relu")]
    NoActivation,
}

/// The operators that are taken.
pub(crate) const KNOWN: [&str; 8] =
    ["Gemm", "MatMul", "Add", "Tanh", "Relu", "Identity", "Flatten", "Reshape"];

fn under(prefix: &str) -> String {
    if prefix.is_empty() { String::new() } else { format!(" under `{prefix}`") }
}

//! Networks of other tools as ours: multi-layer perceptrons from ONNX and safetensors files.
//!
//! Only what a datapath can decide by is taken: dense layers one after the other, `tanh` or ReLU between them, one linear output.
//! All else is refused by its name. An input is an observation as a policy of ours sees it: one number for each feature, in
//! [-1, 1], in the order of the policy's specification; the output is the action's mean.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chain;
mod error;
mod onnx;
mod proto;
mod tensors;

pub use error::ImportError;
pub use onnx::onnx;
pub use tensors::safetensors;

/// Bytes of a model's file, at most.
pub const MAX_BYTES: usize = 16 << 20;
/// Steps from a model's input to its output, at most.
pub const MAX_STEPS: usize = 64;
/// Numbers of one tensor, at most.
pub const MAX_NUMBERS: usize = 1 << 22;

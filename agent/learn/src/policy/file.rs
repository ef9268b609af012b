//! Policies as safetensors files.
//!
//! Tensors, all f32: `actor.N.weight` (outputs x inputs), `actor.N.bias`, N from 0; `critic.*` likewise; `log_std` (one
//! number). The metadata's entry `ccplane` is JSON: format, architecture, spec, provenance. Any other tensor is refused.

use super::{MAX_TEXT, Policy, Provenance};
use crate::architecture::{Architecture, ArchitectureError};
use ccplane_quantize::{Dense, Mlp, MlpError};
use ccplane_snapshot::PolicySpec;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Bytes of a file, at most.
pub const MAX_BYTES: usize = 64 << 20;
/// The bound of a policy file.
const FILE: ccplane_files::Bound = ccplane_files::Bound { what: "a policy", bytes: MAX_BYTES as u64 };
/// Bytes of a file's header, at most.
pub const MAX_HEADER_BYTES: usize = 256 << 10;
/// The metadata entry that holds the policy's description.
const KEY: &str = "ccplane";
/// The version of what stands there.
const FORMAT: u32 = 1;

/// The reason why something is no policy.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// Too large a file.
    #[error("{found} bytes of {what}, at most {limit} are allowed")]
    Size {
        /// Either `file` or `header`.
        what: &'static str,
        found: u64,
        limit: usize,
    },
    /// The bytes are not a safetensors file.
    #[error("no safetensors file: {reason}")]
    Safetensors { reason: String },
    /// No or unreadable metadata.
    #[error("metadata `{KEY}`: {reason}")]
    Metadata { reason: String },
    /// A format of another version.
    #[error("format {found}, this version reads {FORMAT}")]
    Format { found: u32 },
    /// A tensor that should be there.
    #[error("tensor {name} is missing")]
    Missing { name: String },
    /// A tensor that should not.
    #[error("tensor {name} is not a policy's")]
    Unknown { name: String },
    /// A tensor of another type or shape.
    #[error("tensor {name} is {found}, {expected} is needed")]
    Tensor { name: String, found: String, expected: String },
    /// Too long a text.
    #[error("{field}: {found} bytes, at most {MAX_TEXT} are allowed")]
    Text { field: &'static str, found: usize },
    #[error("architecture: {0}")]
    Architecture(ArchitectureError),
    #[error("network: {0}")]
    Network(MlpError),
    /// Another network than the architecture's.
    #[error("{network} has widths {found:?}, the architecture's are {expected:?}")]
    Widths {
        /// Either `actor` or `critic`.
        network: &'static str,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// Another activation than the architecture's.
    #[error("{network} has other activations than its architecture")]
    Activation {
        /// Either `actor` or `critic`.
        network: &'static str,
    },
    /// A weight where the preference block has none.
    #[error(
        "{network} has a weight from input {input} to neuron {neuron}, which its preference block excludes"
    )]
    Connection {
        /// Either `actor` or `critic`.
        network: &'static str,
        /// The neuron of the first layer.
        neuron: usize,
        input: usize,
    },
    /// The features are not one for each input.
    #[error("{found} features for {expected} inputs")]
    Inputs { found: usize, expected: usize },
    /// `log_std` is not a finite number.
    #[error("log_std is {found}")]
    LogStd { found: f32 },
    /// The file could not be read or written.
    #[error("{path}: {reason}")]
    Io { path: String, reason: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    format: u32,
    architecture: Architecture,
    spec: PolicySpec,
    provenance: Provenance,
}

/// A tensor on its way to a file.
pub(crate) struct Tensor {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, shape: Vec<usize>, numbers: &[f32]) -> Tensor {
        Tensor { name: name.into(), shape, bytes: numbers.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }
}

/// A file of these tensors and, under [`KEY`], of this text.
pub(crate) fn encode(tensors: &[Tensor], meta: String) -> Result<Vec<u8>, PolicyError> {
    let views = tensors
        .iter()
        .map(|t| Ok((t.name.clone(), TensorView::new(Dtype::F32, t.shape.clone(), &t.bytes)?)))
        .collect::<Result<Vec<_>, SafeTensorError>>();
    // One entry only: a HashMap of several would be written in a random order.
    let metadata = HashMap::from([(KEY.to_owned(), meta)]);
    views.and_then(|views| safetensors::serialize(views, Some(metadata))).map_err(safetensors_error)
}

/// A file's tensors, each of which has to be taken.
pub(crate) struct Tensors<'a> {
    tensors: HashMap<String, TensorView<'a>>,
    /// The text under [`KEY`].
    pub meta: String,
}

impl<'a> Tensors<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Tensors<'a>, PolicyError> {
        limit("file", bytes.len() as u64, MAX_BYTES)?;
        if let Some(header) = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)) {
            limit("header", header, MAX_HEADER_BYTES)?;
        }
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(safetensors_error)?;
        let meta = metadata.metadata().as_ref().and_then(|m| m.get(KEY)).cloned();
        let meta = meta.ok_or_else(|| metadata_error("is missing"))?;
        let file = SafeTensors::deserialize(bytes).map_err(safetensors_error)?;
        Ok(Tensors { tensors: file.tensors().into_iter().collect(), meta })
    }

    pub(crate) fn take(&mut self, name: String, shape: &[usize]) -> Result<Vec<f32>, PolicyError> {
        let Some(tensor) = self.tensors.remove(&name) else { return Err(PolicyError::Missing { name }) };
        if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
            let found = format!("{:?} {:?}", tensor.dtype(), tensor.shape());
            return Err(PolicyError::Tensor { name, found, expected: format!("F32 {shape:?}") });
        }
        Ok(tensor.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
    }

    pub(crate) fn end(self) -> Result<(), PolicyError> {
        match self.tensors.into_keys().min() {
            Some(name) => Err(PolicyError::Unknown { name }),
            None => Ok(()),
        }
    }

    fn network(&mut self, name: &str, architecture: &Architecture) -> Result<Mlp, PolicyError> {
        let widths = architecture.widths();
        let layers = widths.windows(2).enumerate().map(|(n, w)| {
            let (inputs, outputs) = (w[0], w[1]);
            let weights = self.take(format!("{name}.{n}.weight"), &[outputs, inputs])?;
            let bias = self.take(format!("{name}.{n}.bias"), &[outputs])?;
            let activation = (n + 2 < widths.len()).then_some(architecture.activation);
            Ok(Dense { inputs, outputs, weights, bias, activation })
        });
        Ok(Mlp::new(layers.collect::<Result<_, PolicyError>>()?)?)
    }
}

impl Policy {
    /// The policy as a file: the same bytes for the same policy.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PolicyError> {
        encode(&self.tensors(""), self.meta()?)
    }

    /// The policy in a file.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Policy, PolicyError> {
        let mut tensors = Tensors::decode(bytes)?;
        let meta = std::mem::take(&mut tensors.meta);
        let policy = Policy::from_tensors(&meta, "", &mut tensors)?;
        tensors.end()?;
        Ok(policy)
    }

    /// Names it: SHA-256 of the file, in hexadecimal.
    ///
    /// # Errors
    /// As [`Policy::to_bytes`].
    pub fn hash(&self) -> Result<String, PolicyError> {
        Ok(Sha256::digest(self.to_bytes()?).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads and checks a policy file.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn read(path: &std::path::Path) -> Result<Policy, PolicyError> {
        Policy::from_bytes(&read_file(path)?)
    }

    /// Writes a file: all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &std::path::Path) -> Result<(), PolicyError> {
        write_file(path, &self.to_bytes()?)
    }

    /// Returns the policy's tensors, their names after `prefix`.
    pub(crate) fn tensors(&self, prefix: &str) -> Vec<Tensor> {
        let mut all = Vec::new();
        for (name, mlp) in [("actor", &self.actor), ("critic", &self.critic)] {
            for (n, layer) in mlp.layers().iter().enumerate() {
                let shape = vec![layer.outputs, layer.inputs];
                all.push(Tensor::new(format!("{prefix}{name}.{n}.weight"), shape, &layer.weights));
                all.push(Tensor::new(format!("{prefix}{name}.{n}.bias"), vec![layer.outputs], &layer.bias));
            }
        }
        all.push(Tensor::new(format!("{prefix}log_std"), vec![1], &[self.log_std]));
        all
    }

    pub(crate) fn meta(&self) -> Result<String, PolicyError> {
        check_text(&self.provenance)?;
        let meta = Meta {
            format: FORMAT,
            architecture: self.architecture.clone(),
            spec: self.spec.clone(),
            provenance: self.provenance.clone(),
        };
        serde_json::to_string(&meta).map_err(|error| metadata_error(error.to_string()))
    }

    pub(crate) fn from_tensors(
        meta: &str,
        prefix: &str,
        tensors: &mut Tensors<'_>,
    ) -> Result<Policy, PolicyError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let bad = |error: serde_json::Error| metadata_error(error.to_string());
        let Format { format } = serde_json::from_str(meta).map_err(bad)?;
        if format != FORMAT {
            return Err(PolicyError::Format { found: format });
        }
        let Meta { architecture, spec, provenance, .. } = serde_json::from_str(meta).map_err(bad)?;
        architecture.check()?;
        check_text(&provenance)?;
        let actor = tensors.network(&format!("{prefix}actor"), &architecture)?;
        let critic = tensors.network(&format!("{prefix}critic"), &architecture)?;
        let log_std = tensors.take(format!("{prefix}log_std"), &[1])?[0];
        Policy::new(architecture, actor, critic, log_std, spec, provenance)
    }
}

pub(crate) fn read_file(path: &std::path::Path) -> Result<Vec<u8>, PolicyError> {
    ccplane_files::read(path, FILE)
        .map_err(|error| PolicyError::Io { path: path.display().to_string(), reason: error.reason() })
}

/// Writes a temporary file and renames it, so that no reader ever sees half of a file.
pub(crate) fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), PolicyError> {
    use std::io::Write;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let written = std::fs::File::create(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| io_error(path, &error))
}

fn io_error(path: &std::path::Path, error: &std::io::Error) -> PolicyError {
    PolicyError::Io { path: path.display().to_string(), reason: error.to_string() }
}

fn check_text(provenance: &Provenance) -> Result<(), PolicyError> {
    let parent = provenance.parent.as_deref().unwrap_or_default();
    for (field, text) in [("provenance.command", provenance.command.as_str()), ("provenance.parent", parent)]
    {
        if text.len() > MAX_TEXT {
            return Err(PolicyError::Text { field, found: text.len() });
        }
    }
    Ok(())
}

fn limit(what: &'static str, found: u64, limit: usize) -> Result<(), PolicyError> {
    if found > limit as u64 { Err(PolicyError::Size { what, found, limit }) } else { Ok(()) }
}

fn metadata_error(reason: impl Into<String>) -> PolicyError {
    PolicyError::Metadata { reason: reason.into() }
}

fn safetensors_error(error: SafeTensorError) -> PolicyError {
    PolicyError::Safetensors { reason: error.to_string() }
}

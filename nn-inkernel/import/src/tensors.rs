//! Networks in safetensors files, as `state_dict` of torch gives them: `NAME.weight` (outputs x inputs) and `NAME.bias`.

use crate::chain::{Chain, Misplaced};
use crate::{ImportError, MAX_BYTES, MAX_STEPS};
use ccplane_quantize::{Activation, Mlp};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Bytes of a file's header, at most.
const MAX_HEADER_BYTES: u64 = 256 << 10;
const WEIGHT: &str = ".weight";

/// Reads the layers under `prefix`, in the order of their names, whose numbers count; `activation` stands between them.
///
/// # Errors
/// The first thing that keeps them from being a network of ours.
pub fn safetensors(bytes: &[u8], prefix: &str, activation: Option<Activation>) -> Result<Mlp, ImportError> {
    if bytes.len() > MAX_BYTES {
        return Err(ImportError::TooMany { what: "bytes", found: bytes.len(), limit: MAX_BYTES });
    }
    let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if header > MAX_HEADER_BYTES {
        let (found, limit) = (usize::try_from(header).unwrap_or(usize::MAX), MAX_HEADER_BYTES as usize);
        return Err(ImportError::TooMany { what: "bytes of header", found, limit });
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| ImportError::Safetensors { reason: error.to_string() })?;
    let names = || file.names().into_iter().map(str::to_owned);
    let mut layers: Vec<String> = names()
        .filter_map(|name| Some(name.strip_suffix(WEIGHT)?.to_owned()))
        .filter(|name| name.starts_with(prefix))
        .collect();
    if layers.is_empty() {
        let mut names: Vec<String> = names().collect();
        names.sort();
        return Err(ImportError::NoLayers { prefix: prefix.to_owned(), names });
    }
    if layers.len() > MAX_STEPS {
        return Err(ImportError::TooMany { what: "layers", found: layers.len(), limit: MAX_STEPS });
    }
    layers.sort_by_cached_key(|name| natural(name));
    let (mut chain, last) = (Chain::default(), layers.len() - 1);
    for (n, layer) in layers.iter().enumerate() {
        let (dims, weights) = numbers(&file, format!("{layer}{WEIGHT}"))?;
        let &[outputs, inputs] = dims.as_slice() else {
            let why = format!("dimensions {dims:?}, a matrix has 2");
            return Err(ImportError::Tensor { name: format!("{layer}{WEIGHT}"), why });
        };
        let bias = format!("{layer}.bias");
        let (_, bias) = numbers(&file, bias)?;
        let misplaced = |Misplaced(why)| ImportError::Safetensors { reason: why.to_owned() };
        chain.dense(inputs, outputs, weights, Some(bias)).map_err(misplaced)?;
        if n < last {
            let activation = activation.ok_or(ImportError::NoActivation)?;
            chain.activate(activation).map_err(misplaced)?;
        }
    }
    Ok(chain.network()?)
}

fn numbers(file: &SafeTensors<'_>, name: String) -> Result<(Vec<usize>, Vec<f32>), ImportError> {
    let Ok(tensor) = file.tensor(&name) else { return Err(ImportError::Missing { name }) };
    let values = match tensor.dtype() {
        Dtype::F32 => tensor.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        Dtype::F64 => tensor.data().as_chunks().0.iter().map(|x| f64::from_le_bytes(*x) as f32).collect(),
        other => return Err(ImportError::Tensor { name, why: format!("{other:?}, F32 and F64 are taken") }),
    };
    Ok((TensorView::shape(&tensor).to_vec(), values))
}

/// A name in pieces, of which numbers compare as such: `net.10` comes after `net.2`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let piece = |piece: &str| piece.parse().map_or((u64::MAX, piece.to_owned()), |n| (n, String::new()));
    name.split('.').map(piece).collect()
}

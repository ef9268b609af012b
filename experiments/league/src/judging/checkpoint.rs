//! A training's state between two rounds: one safetensors file, which is replaced whole.
//!
//! Tensors: `policy`, the last round's network as a policy file; `FAMILY.BEHAVIOUR.LABEL`, the cells of a group's examples, one row
//! each. The metadata's entry `ccplane` is JSON: format, fingerprint, rounds.

use std::collections::HashMap;
use std::fs::{File, rename};
use std::io;
use std::path::{Path, PathBuf};

use ccplane_algs::INPUTS;
use ccplane_files::{Bound, ReadError};
use ccplane_learn::{Policy, PolicyError};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors, serialize_to_file};
use serde::{Deserialize, Serialize};

use super::{Example, Family, Groups};

/// The largest file; a training of the default size keeps 0.2 GB.
const FILE: Bound = Bound { what: "a checkpoint", bytes: 1 << 30 };
/// The metadata's entry.
const KEY: &str = "ccplane";
/// The version of what stands there.
const FORMAT: u32 = 1;
/// The network's tensor.
const POLICY: &str = "policy";
/// Bytes of a cell.
const CELL: usize = size_of::<i32>();

/// Reasons why a training does not go on from a checkpoint, or cannot write one.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The checkpoint cannot be written.
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The file or one of its tensors is malformed.
    #[error("checkpoint: {0}")]
    Safetensors(#[from] SafeTensorError),
    /// Its metadata are missing or not those of a checkpoint.
    #[error("checkpoint's metadata: {reason}")]
    Metadata { reason: String },
    /// A tensor that holds neither a network nor a group of examples.
    #[error("checkpoint's tensor {name}: {found} is no group of examples")]
    Group {
        /// The name of the group.
        name: String,
        /// Its type and shape.
        found: String,
    },
    /// Its network is none.
    #[error("checkpoint's network: {0}")]
    Policy(#[from] PolicyError),
    /// The checkpoint belongs to a training with other settings.
    #[error("the checkpoint's training had other settings: {checkpoint}; now: {now}")]
    Settings {
        /// The settings in the checkpoint.
        checkpoint: String,
        /// The settings of this training.
        now: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    format: u32,
    fingerprint: String,
    rounds: u32,
}

/// Metadata of which only the version is read, so that fields of another version are no obstacle.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A training's state between two rounds.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Checkpoint {
    /// All that the training's bits depend on.
    pub fingerprint: String,
    /// Rounds that are done.
    pub rounds: u32,
    /// The last round's network; the initial one before the first.
    pub policy: Policy,
    /// The examples of all rounds.
    pub groups: Groups,
}

impl Checkpoint {
    /// Reads the checkpoint of a training with this fingerprint.
    pub(super) fn read(path: &Path, fingerprint: &str) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::from_bytes(&ccplane_files::read(path, FILE)?, fingerprint)
    }

    fn from_bytes(bytes: &[u8], fingerprint: &str) -> Result<Checkpoint, CheckpointError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let text = metadata.metadata().as_ref().and_then(|entries| entries.get(KEY));
        let text = text.ok_or_else(|| metadata_error(format!("no `{KEY}`")))?;
        let Version { format } = serde_json::from_str(text).map_err(|e| metadata_error(e.to_string()))?;
        if format != FORMAT {
            return Err(metadata_error(format!("format {format}, this version reads {FORMAT}")));
        }
        let meta: Meta = serde_json::from_str(text).map_err(|e| metadata_error(e.to_string()))?;
        if meta.fingerprint != fingerprint {
            let now = fingerprint.to_owned();
            return Err(CheckpointError::Settings { checkpoint: meta.fingerprint, now });
        }
        let tensors = SafeTensors::deserialize(bytes)?;
        let policy = Policy::from_bytes(tensors.tensor(POLICY)?.data())?;
        let mut groups = Groups::new();
        for (name, tensor) in tensors.iter().filter(|(name, _)| *name != POLICY) {
            let (key, examples) = group(name, &tensor).ok_or_else(|| CheckpointError::Group {
                name: name.to_owned(),
                found: format!("{:?} {:?}", tensor.dtype(), tensor.shape()),
            })?;
            groups.insert(key, examples);
        }
        Ok(Checkpoint { fingerprint: meta.fingerprint, rounds: meta.rounds, policy, groups })
    }

    /// Writes it by way of a file beside it, so that nobody ever sees half of one.
    pub(super) fn write(&self, path: &Path) -> Result<(), CheckpointError> {
        let policy = self.policy.to_bytes()?;
        let mut bytes = vec![(POLICY.to_owned(), Dtype::U8, vec![policy.len()], policy)];
        for ((family, behaviour, rivals), examples) in &self.groups {
            let cells = examples.iter().flat_map(|example| example.cells);
            let rows = cells.flat_map(i32::to_le_bytes).collect();
            let name = format!("{}.{behaviour}.{rivals}", family.name());
            bytes.push((name, Dtype::I32, vec![examples.len(), INPUTS], rows));
        }
        let views: Vec<(&str, TensorView<'_>)> = bytes
            .iter()
            .map(|(name, dtype, shape, rows)| {
                Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), rows)?))
            })
            .collect::<Result<_, SafeTensorError>>()?;
        let meta = Meta { format: FORMAT, fingerprint: self.fingerprint.clone(), rounds: self.rounds };
        let meta = serde_json::to_string(&meta).map_err(|e| metadata_error(e.to_string()))?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        serialize_to_file(views, Some(HashMap::from([(KEY.to_owned(), meta)])), &beside)?;
        File::open(&beside)
            .and_then(|file| file.sync_all())
            .and_then(|()| rename(&beside, path))
            .map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
    }
}

/// The group of that name in a tensor.
fn group(name: &str, tensor: &TensorView<'_>) -> Option<((Family, u8, bool), Vec<Example>)> {
    let mut parts = name.splitn(3, '.');
    let family = parts.next()?.parse().ok()?;
    let behaviour = parts.next()?.parse().ok()?;
    let rivals = parts.next()?.parse().ok()?;
    if tensor.dtype() != Dtype::I32 || !matches!(tensor.shape(), [_, INPUTS]) {
        return None;
    }
    let example = |row: &[u8]| {
        let mut cells = [0; INPUTS];
        for (cell, bytes) in cells.iter_mut().zip(row.as_chunks::<CELL>().0) {
            *cell = i32::from_le_bytes(*bytes);
        }
        Example { cells, rivals }
    };
    Some(((family, behaviour, rivals), tensor.data().chunks_exact(INPUTS * CELL).map(example).collect()))
}

fn metadata_error(reason: String) -> CheckpointError {
    CheckpointError::Metadata { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_learn::Architecture;
    use ccplane_quantize::Activation;
    use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec};
    use ccplane_testing::fuzz::{Fuzz, shape};
    use std::hash::{DefaultHasher, Hash, Hasher};

    const FINGERPRINT: &str = "{}";

    /// A checkpoint with as small a network as there is.
    fn small() -> Checkpoint {
        let action =
            Action { map: ActionMap::None, bound_q16: 1 << 16, step_q20: 1, knob_min: 1, knob_max: 2 };
        let inputs = vec![Feature { name: "x".to_owned(), lo: -1000, hi: 1000 }];
        let spec = PolicySpec::new("toy", inputs, action).unwrap();
        let activation = Activation::Tanh;
        let architecture = Architecture { inputs: 1, hidden: vec![1], activation, preference: None };
        let policy = Policy::initial(architecture, spec, -1.0, 7).unwrap();
        let example = Example { cells: [3; INPUTS], rivals: true };
        let groups = Groups::from([((Family::ALL[0], 1, true), vec![example])]);
        Checkpoint { fingerprint: FINGERPRINT.to_owned(), rounds: 2, policy, groups }
    }

    #[test]
    fn a_checkpoint_of_another_format_is_refused_by_both_numbers_whatever_fields_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        small().write(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for (from, to) in [(br#"\"format\":1"#, br#"\"format\":2"#), (br#"\"rounds\":2"#, br#"\"sounds\":2"#)]
        {
            let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        let refused = Checkpoint::from_bytes(&bytes, FINGERPRINT).unwrap_err().to_string();
        assert_eq!(refused, "checkpoint's metadata: format 2, this version reads 1");
    }

    #[test]
    fn a_drawn_checkpoint_is_refused_or_has_examples_of_each_groups_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let checkpoint = small();
        checkpoint.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(Checkpoint::from_bytes(&bytes, FINGERPRINT).unwrap(), checkpoint);
        let tokens = [
            "{",
            "}",
            "\"",
            "[0,4]",
            "\"dtype\":\"I32\"",
            "\"shape\":[1,1]",
            "\"data_offsets\":",
            ".1.true",
            "policy",
            "null",
            "\\\"rounds\\\":",
        ];
        let target =
            Fuzz::new("league-checkpoint", env!("CARGO_MANIFEST_DIR")).seeds([&bytes]).tokens(tokens);
        let longest = bytes.len() + 64;
        target.max_bytes(longest).max_kept_bytes(longest).part(1_000).run(|bytes| {
            match Checkpoint::from_bytes(bytes, FINGERPRINT) {
                Ok(read) => {
                    let rivals = |((_, _, rivals), examples): (&(Family, u8, bool), &Vec<Example>)| {
                        examples.iter().all(|example| example.rivals == *rivals)
                    };
                    assert!(read.groups.iter().all(rivals));
                    1 + read.groups.len() as u64
                }
                Err(error) => {
                    // Without what the input itself says.
                    let text = error.to_string();
                    let mut hasher = DefaultHasher::new();
                    let words = text.chars().filter(char::is_ascii_lowercase).take(60);
                    words.collect::<String>().hash(&mut hasher);
                    hasher.finish() ^ shape(&error)
                }
            }
        });
    }
}

//! Checkpoints: a training's whole state in one safetensors file.
//!
//! Tensors: the policy's as in its own file; `adam.first`, `adam.second`; the best policy's under `best.`. The metadata
//! is JSON: its format, which is 1 where it is missing, the policies' own metadata, progress, settings.

use super::{Progress, TrainConfig};
use crate::learner::{LearnerState, Moments};
use crate::policy::file::{Tensor, Tensors, encode, read_file, write_file};
use crate::policy::{Policy, PolicyError};
use crate::ppo::PpoConfig;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of a checkpoint's metadata.
const FORMAT: u32 = 1;

/// A training's whole state after an update.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    pub state: LearnerState,
    /// The policy of the best evaluation so far.
    pub best: Option<Policy>,
    pub progress: Progress,
    /// The settings that it can only go on with, as JSON.
    pub fingerprint: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    #[serde(default = "first_format")]
    format: u32,
    policy: String,
    best: Option<String>,
    adam_steps: u64,
    progress: Progress,
    fingerprint: String,
}

/// Metadata of which only the version is read, so that fields of another version are no obstacle.
#[derive(Deserialize)]
struct Version {
    #[serde(default = "first_format")]
    format: u32,
}

/// The version of checkpoints from before there was one.
fn first_format() -> u32 {
    1
}

/// Returns a text of all settings that a run's bits depend on; environments count as far as `config` describes them.
pub(super) fn fingerprint(config: &TrainConfig, ppo: &PpoConfig, environments: usize) -> String {
    let config = TrainConfig { threads: 0, checkpoint_every: 0, ..config.clone() };
    // Maps and strings only: it cannot fail.
    serde_json::to_string(&(config, ppo, environments)).unwrap_or_default()
}

impl Checkpoint {
    /// The checkpoint as a file.
    ///
    /// # Errors
    /// A text in a policy that is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PolicyError> {
        let Checkpoint { state: LearnerState { policy, moments }, best, .. } = self;
        let mut tensors = policy.tensors("");
        tensors.push(Tensor::new("adam.first", vec![moments.first.len()], &moments.first));
        tensors.push(Tensor::new("adam.second", vec![moments.second.len()], &moments.second));
        tensors.extend(best.iter().flat_map(|best| best.tensors(BEST)));
        let meta = Meta {
            format: FORMAT,
            policy: policy.meta()?,
            best: best.as_ref().map(Policy::meta).transpose()?,
            adam_steps: moments.steps,
            progress: self.progress.clone(),
            fingerprint: self.fingerprint.clone(),
        };
        encode(&tensors, serde_json::to_string(&meta).map_err(bad)?)
    }

    /// The checkpoint in a file.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Checkpoint, PolicyError> {
        let mut tensors = Tensors::decode(bytes)?;
        let Version { format } = serde_json::from_str(&tensors.meta).map_err(bad)?;
        if format != FORMAT {
            let reason = format!("a checkpoint of format {format}, this version reads {FORMAT}");
            return Err(PolicyError::Metadata { reason });
        }
        let meta: Meta = serde_json::from_str(&tensors.meta).map_err(bad)?;
        let policy = Policy::from_tensors(&meta.policy, "", &mut tensors)?;
        let best = meta.best.map(|meta| Policy::from_tensors(&meta, BEST, &mut tensors)).transpose()?;
        let parameters = 2 * policy.architecture().parameters() + 1;
        let first = tensors.take("adam.first".to_owned(), &[parameters])?;
        let second = tensors.take("adam.second".to_owned(), &[parameters])?;
        tensors.end()?;
        let moments = Moments { first, second, steps: meta.adam_steps };
        let state = LearnerState { policy, moments };
        Ok(Checkpoint { state, best, progress: meta.progress, fingerprint: meta.fingerprint })
    }

    /// Reads and checks a checkpoint file.
    ///
    /// # Errors
    /// It cannot be read, or is no checkpoint.
    pub fn read(path: &Path) -> Result<Checkpoint, PolicyError> {
        Checkpoint::from_bytes(&read_file(path)?)
    }

    /// Writes a file: all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PolicyError> {
        write_file(path, &self.to_bytes()?)
    }
}

/// The prefix of the names of the best policy's tensors.
const BEST: &str = "best.";

fn bad(error: serde_json::Error) -> PolicyError {
    PolicyError::Metadata { reason: error.to_string() }
}

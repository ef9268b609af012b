//! Trainings whose networks learn from examples instead of an environment: the refusals and the files that they write.

use super::fabric::{FileError, write};
use super::output::print_json;
use crate::cli::{Backend, Links, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_learn::Policy;
use ccplane_snapshot::{Fidelity, Snapshot};
use serde::Serialize;
use std::time::Instant;

/// An option of trainings in environments.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {algorithm}'s network learns from {examples} and has no such choice")]
struct NoChoice {
    option: &'static str,
    algorithm: &'static str,
    examples: &'static str,
}

/// The content of the summary file, which `--json` prints: how much a network has learned from, and how well on what it had not seen.
#[derive(Serialize)]
pub(super) struct Summary<C, L> {
    algorithm: &'static str,
    command: String,
    seed: u64,
    #[serde(flatten)]
    pub(super) counts: C,
    pub(super) seconds: f64,
    snapshot: String,
    fidelity: Fidelity,
    pub(super) held_out: Vec<L>,
}

/// A training that has begun, and the command that repeats it.
pub(super) struct Begun {
    algorithm: &'static str,
    pub(super) command: String,
    seed: u64,
    at: Instant,
}

impl Begun {
    /// Begins the training of an algorithm now.
    pub(super) fn now(algorithm: &'static str, seed: u64) -> Begun {
        let command = format!("ccplane train --algorithm {algorithm} --seed {seed}");
        Begun { algorithm, command, seed, at: Instant::now() }
    }

    /// The summary of the training, which has ended.
    pub(super) fn summary<C, L>(self, counts: C, snapshot: &Snapshot, held_out: Vec<L>) -> Summary<C, L> {
        Summary {
            algorithm: self.algorithm,
            command: self.command,
            seed: self.seed,
            counts,
            seconds: self.at.elapsed().as_secs_f64(),
            snapshot: snapshot.hash().to_string(),
            fidelity: *snapshot.fidelity(),
            held_out,
        }
    }
}

/// Refuses options that it has not, and makes the folder of its files.
pub(super) fn prepare(
    args: &TrainArgs,
    algorithm: &'static str,
    examples: &'static str,
    resumes: bool,
) -> Result<(), Failure> {
    let refused = [
        (args.config != Links::Real, "--config"),
        (args.steps.is_some(), "--steps"),
        (args.backend != Backend::Native, "--backend"),
        (args.adapt.is_some(), "--adapt"),
        (args.resume && !resumes, "--resume"),
    ];
    if let Some((_, option)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(Failure::input(NoChoice { option, algorithm, examples }));
    }
    let failed = |source| Failure::runtime(FileError { path: args.out.clone(), source });
    std::fs::create_dir_all(&args.out).map_err(failed)
}

/// Writes policy, snapshot and summary; prints the summary where `--json` asks for it. Returns whether it was printed.
pub(super) fn finish(
    args: &TrainArgs,
    algorithm: &str,
    policy: &Policy,
    snapshot: &Snapshot,
    summary: &impl Serialize,
) -> Result<bool, Failure> {
    let file = |extension: &str| args.out.join(format!("{algorithm}.{extension}"));
    policy.write(&file("safetensors")).map_err(Failure::runtime)?;
    write(&file("snapshot"), &snapshot.to_bytes())?;
    let text = serde_json::to_string_pretty(summary).map_err(Failure::runtime)?;
    write(&file("json"), format!("{text}\n").as_bytes())?;
    if args.json {
        print_json(summary)?;
    }
    Ok(args.json)
}

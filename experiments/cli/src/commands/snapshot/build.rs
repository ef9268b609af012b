//! `ccplane snapshot build`: a trained policy, or a network from elsewhere, as integers.

use super::{show, write};
use crate::cli::{ActivationArg, BitsArg, Learns, Links, SnapshotBuildArgs};
use crate::commands::output::{print, print_json};
use crate::commands::train::recipe;
use ccplane_agent::failure::Failure;
use ccplane_env::recipe::Recipe;
use ccplane_files::{Bound, ReadError};
use ccplane_import::ImportError;
use ccplane_learn::{Architecture, Policy, PolicyError};
use ccplane_quantize::{Activation, Dense, Mlp, Options, Width};
use ccplane_snapshot::{PolicySpec, Provenance};
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Reasons why a policy becomes no snapshot: exit code 2.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error("{}: {source}", path.display())]
    Policy { path: PathBuf, source: PolicyError },
    #[error("{}: a policy of `{algorithm}`, which nothing here is trained for", path.display())]
    Algorithm { path: PathBuf, algorithm: String },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}: {source}", path.display())]
    Import { path: PathBuf, source: ImportError },
    #[error("{}: the name ends neither in .onnx nor in .safetensors", path.display())]
    Kind { path: PathBuf },
    #[error("a file or --policy is needed")]
    Nothing,
}

/// The bound of a model's file.
const MODEL: Bound = Bound { what: "a model", bytes: ccplane_import::MAX_BYTES as u64 };

/// A policy, where it comes from, and what it runs on.
struct Source<'a> {
    policy: Policy,
    path: &'a Path,
    recipe: Recipe,
}

pub(crate) fn build(args: &SnapshotBuildArgs) -> Result<(), Failure> {
    let source = match (&args.policy, &args.model, args.algorithm) {
        (Some(path), _, _) => trained(args, path)?,
        (None, Some(path), Some(algorithm)) => imported(args, path, algorithm)?,
        _ => return Err(Failure::input(BuildError::Nothing)),
    };
    let Source { policy, path, mut recipe } = source;
    recipe.train.seed = args.seed;
    let options = Options {
        bits: match args.bits {
            BitsArg::Auto => Width::Auto,
            BitsArg::W8 => Width::W8,
            BitsArg::W16 => Width::W16,
        },
        budget_visited: args.budget,
        budget_off: args.budget_off,
        seed: args.seed,
        guards: None,
        provenance: provenance(&policy, path, args.policy.is_some()),
    };
    let snapshot = recipe.snapshot(&policy, args.episodes, &options).map_err(Failure::input)?;
    write(&args.out, &snapshot.to_bytes())?;
    if args.json { print_json(&show::Summary::of(&snapshot)) } else { print(&show::text(&snapshot)) }
}

/// A policy file of `ccplane train`.
fn trained<'a>(args: &SnapshotBuildArgs, path: &'a Path) -> Result<Source<'a>, Failure> {
    let wrong = |source| Failure::input(BuildError::Policy { path: path.to_owned(), source });
    let policy = Policy::read(path).map_err(wrong)?;
    let name = policy.spec().algorithm();
    let algorithm = Learns::from_str(name, false).map_err(|_| {
        let (path, algorithm) = (path.to_owned(), name.to_owned());
        Failure::input(BuildError::Algorithm { path, algorithm })
    })?;
    let recipe = recipe(algorithm, args.config.unwrap_or_else(|| trained_on(&policy)))?;
    Ok(Source { policy, path, recipe })
}

/// A network from elsewhere.
fn imported<'a>(args: &SnapshotBuildArgs, path: &'a Path, algorithm: Learns) -> Result<Source<'a>, Failure> {
    let recipe = recipe(algorithm, args.config.unwrap_or(Links::Real))?;
    let bytes = ccplane_files::read(path, MODEL).map_err(|e| Failure::input(BuildError::from(e)))?;
    let network = match path.extension().and_then(|extension| extension.to_str()) {
        Some("onnx") => ccplane_import::onnx(&bytes),
        Some("safetensors") => {
            ccplane_import::safetensors(&bytes, &args.tensors, args.activation.map(activation))
        }
        _ => return Err(Failure::input(BuildError::Kind { path: path.to_owned() })),
    };
    let import = |source| Failure::input(BuildError::Import { path: path.to_owned(), source });
    let wrong = |source| Failure::input(BuildError::Policy { path: path.to_owned(), source });
    let policy = policy(network.map_err(import)?, recipe.spec.clone()).map_err(wrong)?;
    Ok(Source { policy, path, recipe })
}

fn activation(of: ActivationArg) -> Activation {
    match of {
        ActivationArg::Tanh => Activation::Tanh,
        ActivationArg::Relu => Activation::Relu,
    }
}

/// A policy with this actor, and a critic that values nothing.
fn policy(actor: Mlp, spec: PolicySpec) -> Result<Policy, PolicyError> {
    let nothing = |layer: &Dense| Dense {
        weights: vec![0.0; layer.weights.len()],
        bias: vec![0.0; layer.bias.len()],
        ..layer.clone()
    };
    let critic = Mlp::new(actor.layers().iter().map(nothing).collect())?;
    Policy::new(Architecture::of(&actor), actor, critic, 0.0, spec, ccplane_learn::Provenance::default())
}

/// The links that the command names by which the policy was made.
fn trained_on(policy: &Policy) -> Links {
    let words: Vec<&str> = policy.provenance.command.split_whitespace().collect();
    let mut named = words.windows(2).filter(|pair| pair[0] == "--config");
    named.find_map(|pair| Links::from_str(pair[1], false).ok()).unwrap_or(Links::Real)
}

fn provenance(policy: &Policy, file: &Path, is_trained: bool) -> Provenance {
    // The file's name alone: its folder is private.
    let file = file.file_name().map(|name| name.to_string_lossy().replace(char::is_control, "?"));
    Provenance {
        command: format!(
            "ccplane snapshot build {}{}",
            if is_trained { "--policy " } else { "" },
            file.unwrap_or_default()
        ),
        ..policy.snapshot_provenance()
    }
}

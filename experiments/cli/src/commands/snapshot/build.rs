//! `ccplane snapshot build`: a trained policy as integers.

use super::{show, write};
use crate::cli::{BitsArg, Learns, Links, SnapshotBuildArgs};
use crate::commands::train::recipe;
use crate::commands::{print, print_json};
use ccplane_agent::failure::Failure;
use ccplane_learn::Policy;
use ccplane_quantize::{Options, Width};
use ccplane_snapshot::Provenance;
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Why a policy becomes no snapshot: exit code 2.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error("{}: {source}", path.display())]
    Policy { path: PathBuf, source: ccplane_learn::PolicyError },
    #[error("{}: a policy of `{algorithm}`, which nothing here is trained for", path.display())]
    Algorithm { path: PathBuf, algorithm: String },
}

pub(crate) fn build(args: &SnapshotBuildArgs) -> Result<(), Failure> {
    let policy = Policy::read(&args.policy)
        .map_err(|source| Failure::input(BuildError::Policy { path: args.policy.clone(), source }))?;
    let name = policy.spec().algorithm();
    let algorithm = Learns::from_str(name, false).map_err(|_| {
        let (path, algorithm) = (args.policy.clone(), name.to_owned());
        Failure::input(BuildError::Algorithm { path, algorithm })
    })?;
    let mut recipe = recipe(algorithm, args.config.unwrap_or_else(|| trained_on(&policy)))?;
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
        provenance: provenance(&policy, &args.policy),
    };
    let snapshot = recipe.snapshot(&policy, args.episodes, &options).map_err(Failure::input)?;
    write(&args.out, &snapshot.to_bytes())?;
    if args.json { print_json(&show::Summary::of(&snapshot)) } else { print(&show::text(&snapshot)) }
}

/// The links that the command names by which the policy was made.
fn trained_on(policy: &Policy) -> Links {
    let words: Vec<&str> = policy.provenance.command.split_whitespace().collect();
    let mut named = words.windows(2).filter(|pair| pair[0] == "--config");
    named.find_map(|pair| Links::from_str(pair[1], false).ok()).unwrap_or(Links::Real)
}

fn provenance(policy: &Policy, file: &Path) -> Provenance {
    // The file's name alone: its folder is private.
    let file = file.file_name().map(|name| name.to_string_lossy().replace(char::is_control, "?"));
    Provenance {
        algorithm: policy.spec().algorithm().to_owned(),
        seed: policy.provenance.seed,
        steps: policy.provenance.steps,
        command: format!("ccplane snapshot build --policy {}", file.unwrap_or_default()),
        parent: None,
        created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

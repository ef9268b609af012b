//! `ccplane snapshot build`: a trained policy as integers.

use super::{show, write};
use crate::cli::{BitsArg, SnapshotBuildArgs};
use crate::commands::{print, print_json};
use crate::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_env::{Decider, EnvError, Family, Learning, Links, Quiet, RealLinks, run};
use ccplane_learn::{Actor, End, Environment, LANDMARKS, Policy, landmarks};
use ccplane_program::vm::{Decision, Knobs};
use ccplane_quantize::{MAX_VISITED, Mlp, Options, Scratch, Width, quantize};
use ccplane_snapshot::Provenance;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Decisions of a flow on one link.
const STEPS: usize = 400;

/// Why a policy becomes no snapshot: exit code 2.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error("{}: {source}", path.display())]
    Policy { path: PathBuf, source: ccplane_learn::PolicyError },
    #[error("{}: a policy of `{algorithm}`, which is no algorithm here", path.display())]
    Algorithm { path: PathBuf, algorithm: String },
}

/// `ccplane snapshot build`
pub(crate) fn build(args: &SnapshotBuildArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    let policy = Policy::read(&args.policy)
        .map_err(|source| Failure::input(BuildError::Policy { path: args.policy.clone(), source }))?;
    let name = policy.spec().algorithm();
    let algorithm = algorithms.iter().find(|a| a.name() == name).ok_or_else(|| {
        let (path, algorithm) = (args.policy.clone(), name.to_owned());
        Failure::input(BuildError::Algorithm { path, algorithm })
    })?;
    let visited = visited(&policy, algorithm, args.episodes, args.seed).map_err(Failure::input)?;
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
    let snapshot = quantize(policy.actor(), policy.spec(), &visited, &options).map_err(Failure::input)?;
    write(&args.out, &snapshot.to_bytes())?;
    if args.json { print_json(&show::Summary::of(&snapshot)) } else { print(&show::text(&snapshot)) }
}

fn provenance(policy: &Policy, file: &Path) -> Provenance {
    // The file's own name: where it lay is nobody's business.
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

/// The states that a policy visits on links as people have them, whatever it is asked to prefer: history cells. At most
/// [`MAX_VISITED`].
///
/// # Errors
/// The policy is not one that the algorithm's programs ask.
pub(crate) fn visited(
    policy: &Policy,
    algorithm: &Arc<dyn Algorithm>,
    episodes: u32,
    seed: u64,
) -> Result<Vec<Vec<i32>>, EnvError> {
    let family = Family::Real(RealLinks::default());
    let mut links = Links::new(Arc::clone(algorithm), None, family, policy.spec().clone())?;
    let each = MAX_VISITED.div_ceil(episodes.max(1) as usize);
    let mut states = Vec::new();
    for episode in 0..episodes {
        links.prefer(landmarks()[episode as usize % LANDMARKS]);
        let mut mean = Mean { actor: policy.actor(), scratch: Scratch::default() };
        let mut visits =
            Visits { by: Learning::new(policy.spec(), &mut mean), states: &mut states, left: each };
        let seed = seed.wrapping_add(u64::from(episode));
        run(&family.draw(seed, STEPS, false), links.algorithms(), seed, STEPS, &mut visits, &mut Quiet);
    }
    states.truncate(MAX_VISITED);
    Ok(states)
}

/// Takes the policy's mean action.
struct Mean<'a> {
    actor: &'a Mlp,
    scratch: Scratch,
}

impl Actor for Mean<'_> {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        self.actor.forward(observation, &mut self.scratch)
    }

    fn outcome(&mut self, _agent: usize, _reward: f32, _end: End, _observation: &[f32]) {}
}

/// Keeps what is decided on.
struct Visits<'a> {
    by: Learning<'a>,
    states: &'a mut Vec<Vec<i32>>,
    left: usize,
}

impl Decider for Visits<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        if self.left > 0 {
            self.left -= 1;
            self.states.push(cells.to_vec());
        }
        self.by.decide(agent, cells, knobs)
    }
}

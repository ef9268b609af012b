//! A policy: float networks, what their numbers mean, and where they come from.

pub(crate) mod file;

use crate::architecture::{Architecture, ArchitectureError};
use crate::math;
use crate::rng::Rng;
use ccplane_quantize::{Dense, Mlp, MlpError};
use ccplane_snapshot::PolicySpec;
use serde::{Deserialize, Serialize};

pub use file::PolicyError;

/// Characters of a command or a hash in a provenance, at most.
pub const MAX_TEXT: usize = 4096;

/// The origin of a policy.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The seed of its training.
    pub seed: u64,
    /// Decisions that it has learned from, its parents' included.
    pub steps: u64,
    /// The command that made it.
    pub command: String,
    /// [`Policy::hash`] of the policy that it began with.
    pub parent: Option<String>,
}

/// The result of learning: an actor, its critic, and the deviation of its actions.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    architecture: Architecture,
    actor: Mlp,
    critic: Mlp,
    log_std: f32,
    spec: PolicySpec,
    pub provenance: Provenance,
}

/// The actor's last layer starts small: all actions near 0.
const ACTOR_GAIN: f64 = 0.01;

impl Policy {
    /// A policy that has learned nothing: its weights follow from `seed` alone.
    ///
    /// # Errors
    /// An architecture that is none, or has other inputs than the specification.
    pub fn initial(
        architecture: Architecture,
        spec: PolicySpec,
        log_std: f32,
        seed: u64,
    ) -> Result<Policy, PolicyError> {
        architecture.check()?;
        let network =
            |name: u64, gain| Mlp::new(architecture.initial(gain, &mut Rng::new(seed, &[INITIAL, name])));
        let (actor, critic) = (network(0, ACTOR_GAIN)?, network(1, 1.0)?);
        let provenance = Provenance { seed, ..Provenance::default() };
        Policy::new(architecture, actor, critic, log_std, spec, provenance)
    }

    /// # Errors
    /// What does not fit together.
    pub fn new(
        architecture: Architecture,
        actor: Mlp,
        critic: Mlp,
        log_std: f32,
        spec: PolicySpec,
        provenance: Provenance,
    ) -> Result<Policy, PolicyError> {
        architecture.check()?;
        for (network, mlp) in [("actor", &actor), ("critic", &critic)] {
            fits(&architecture, network, mlp)?;
        }
        if spec.inputs().len() != architecture.inputs {
            return Err(PolicyError::Inputs { found: spec.inputs().len(), expected: architecture.inputs });
        }
        if !log_std.is_finite() {
            return Err(PolicyError::LogStd { found: log_std });
        }
        Ok(Policy { architecture, actor, critic, log_std, spec, provenance })
    }

    /// Returns the shape of the policy's networks.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Observation -> mean action.
    pub fn actor(&self) -> &Mlp {
        &self.actor
    }

    /// Returns the network that values observations.
    pub fn critic(&self) -> &Mlp {
        &self.critic
    }

    /// Natural logarithm of the actions' standard deviation.
    pub fn log_std(&self) -> f32 {
        self.log_std
    }

    /// The actions' standard deviation.
    pub fn std(&self) -> f32 {
        math::exp(self.log_std)
    }

    /// Returns the meaning of the policy's inputs and of its action.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Returns the provenance of a snapshot that is made of the policy by the command that made the policy.
    pub fn snapshot_provenance(&self) -> ccplane_snapshot::Provenance {
        ccplane_snapshot::Provenance {
            algorithm: self.spec.algorithm().to_owned(),
            seed: self.provenance.seed,
            steps: self.provenance.steps,
            command: self.provenance.command.clone(),
            parent: None,
            created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// The same with other numbers.
    ///
    /// # Errors
    /// They do not fit.
    pub fn with_parameters(&self, actor: Mlp, critic: Mlp, log_std: f32) -> Result<Policy, PolicyError> {
        let (architecture, spec) = (self.architecture.clone(), self.spec.clone());
        Policy::new(architecture, actor, critic, log_std, spec, self.provenance.clone())
    }

    /// The policy whose weights lie this share of the way from this policy's weights to the other's.
    ///
    /// Where a policy learned a task from another one, that line leads from all that it knew to all that it
    /// learned. Wortsman et al. do so (Robust fine-tuning of zero-shot models, CVPR 2022).
    ///
    /// # Errors
    /// Networks of other widths.
    pub fn towards(&self, other: &Policy, share: f32) -> Result<Policy, PolicyError> {
        let part = |from: f32, to: f32| (1.0 - share) * from + share * to;
        let mix = |from: &[f32], to: &[f32]| from.iter().zip(to).map(|(a, b)| part(*a, *b)).collect();
        let between = |from: &Mlp, to: &Mlp| {
            let layers = from.layers().iter().zip(to.layers()).map(|(from, to)| Dense {
                weights: mix(&from.weights, &to.weights),
                bias: mix(&from.bias, &to.bias),
                ..from.clone()
            });
            Mlp::new(layers.collect())
        };
        let (actor, critic) = (between(&self.actor, &other.actor)?, between(&self.critic, &other.critic)?);
        other.with_parameters(actor, critic, part(self.log_std, other.log_std))
    }
}

/// The stream that first weights come from.
const INITIAL: u64 = 0x1417;

fn fits(architecture: &Architecture, network: &'static str, mlp: &Mlp) -> Result<(), PolicyError> {
    let (found, expected) = (mlp.widths(), architecture.widths());
    if found != expected {
        return Err(PolicyError::Widths { network, found, expected });
    }
    let hidden = &mlp.layers()[..mlp.layers().len() - 1];
    if hidden.iter().any(|layer| layer.activation != Some(architecture.activation)) {
        return Err(PolicyError::Activation { network });
    }
    let first = &mlp.layers()[0];
    for (n, weight) in first.weights.iter().enumerate() {
        let (neuron, input) = (n / first.inputs, n % first.inputs);
        if *weight != 0.0 && !architecture.connects(neuron, input) {
            return Err(PolicyError::Connection { network, neuron, input });
        }
    }
    Ok(())
}

impl From<ArchitectureError> for PolicyError {
    fn from(error: ArchitectureError) -> PolicyError {
        PolicyError::Architecture(error)
    }
}

impl From<MlpError> for PolicyError {
    fn from(error: MlpError) -> PolicyError {
        PolicyError::Network(error)
    }
}

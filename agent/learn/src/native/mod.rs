//! The native back end: PPO for small networks, in plain Rust, the same bits on every machine.

mod imitate;
mod network;
mod update;
mod vector;

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::error::LearnError;
use crate::learner::{Learner, LearnerState, Moments, UpdateStats};
use crate::policy::Policy;
use crate::ppo::PpoConfig;
use crate::rng::Rng;
use ccplane_quantize::Mlp;
pub use imitate::{Examples, ImitateConfig, Targets, imitate, regress};
use network::{BatchBuffers, Lane, Network};
use update::{Adam, Parameters};

/// A policy's networks, ready to run.
#[derive(Clone, Debug)]
pub struct ActorCritic {
    actor: Network,
    critic: Network,
    actor_room: BatchBuffers,
    critic_room: BatchBuffers,
}

/// Rows that [`ActorCritic::values`] takes at once.
const CHUNK: usize = 256;

impl ActorCritic {
    /// The networks of `policy`.
    pub fn new(policy: &Policy) -> ActorCritic {
        let architecture = policy.architecture();
        let network = |mlp| Network::new(mlp, |neuron, input| architecture.connects(neuron, input));
        let (actor, critic) = (network(policy.actor()), network(policy.critic()));
        ActorCritic {
            actor,
            critic,
            actor_room: BatchBuffers::default(),
            critic_room: BatchBuffers::default(),
        }
    }

    /// The actor's action on one observation, before exploration. Missing numbers count as 0.
    pub fn mean(&mut self, observation: &[f32]) -> f32 {
        lone(&self.actor, &mut self.actor_room, observation)
    }

    /// The critic's value of one observation.
    pub fn value(&mut self, observation: &[f32]) -> f32 {
        lone(&self.critic, &mut self.critic_room, observation)
    }

    /// The actor's actions on observations that stand one after the other.
    pub fn means(&mut self, observations: &[f32], out: &mut Vec<f32>) {
        many(&self.actor, &mut self.actor_room, observations, out);
    }

    /// The critic's values of such observations.
    pub fn values(&mut self, observations: &[f32], out: &mut Vec<f32>) {
        many(&self.critic, &mut self.critic_room, observations, out);
    }
}

fn lone(network: &Network, room: &mut BatchBuffers, observation: &[f32]) -> f32 {
    let to = network.inputs_of(room, 1);
    fill(&mut to[..network.input_lanes()], &observation[..observation.len().min(network.inputs())]);
    network.lone(room)
}

fn many(network: &Network, room: &mut BatchBuffers, observations: &[f32], out: &mut Vec<f32>) {
    out.clear();
    for rows in observations.chunks(CHUNK * network.inputs()) {
        let count = rows.len() / network.inputs();
        let to = network.inputs_of(room, count).chunks_exact_mut(network.input_lanes());
        for (to, row) in to.zip(rows.chunks_exact(network.inputs())) {
            fill(to, row);
        }
        vector::wide(
            #[inline(always)]
            || network.forward(room),
        );
        out.extend((0..count).map(|row| network.output(room, row)));
    }
}

/// A row as lanes, padded with zeros.
#[inline(always)]
fn fill(to: &mut [Lane], row: &[f32]) {
    let to = to.as_flattened_mut();
    to[..row.len()].copy_from_slice(row);
    to[row.len()..].fill(0.0);
}

/// The learner that computes on this process's own threads, without libtorch.
#[derive(Clone, Debug)]
pub struct Native {
    policy: Policy,
    config: PpoConfig,
    parameters: Parameters,
    adam: Adam,
    networks: ActorCritic,
}

impl Native {
    /// Goes on from `policy`.
    ///
    /// # Errors
    /// Settings out of their range.
    pub fn new(policy: &Policy, config: PpoConfig) -> Result<Native, LearnError> {
        config.check()?;
        let networks = ActorCritic::new(policy);
        let parameters = Parameters::new(&networks, policy.log_std());
        let adam = Adam::new(&parameters);
        Ok(Native { policy: policy.clone(), config, parameters, adam, networks })
    }

    /// Sets `log_std`, which is not learned from here on.
    pub(crate) fn fix_log_std(&mut self, log_std: f32) {
        let (actor, critic) = (self.policy.actor().clone(), self.policy.critic().clone());
        if let Ok(policy) = self.policy.with_parameters(actor, critic, log_std) {
            self.policy = policy;
            self.parameters.log_std = log_std;
            self.config.log_std_init = log_std;
            self.config.log_std_range = (log_std, log_std);
        }
    }

    fn check(&self, policy: &Policy) -> Result<(), LearnError> {
        let (found, expected) = (policy.architecture(), self.policy.architecture());
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (Box::new(found.clone()), Box::new(expected.clone()));
        Err(LearnError::Architecture { found, expected })
    }
}

impl Learner for Native {
    fn architecture(&self) -> &Architecture {
        self.policy.architecture()
    }

    fn config(&self) -> &PpoConfig {
        &self.config
    }

    fn evaluate(&mut self, observations: &[f32], means: &mut Vec<f32>, values: &mut Vec<f32>) {
        self.networks.means(observations, means);
        self.networks.values(observations, values);
    }

    fn update(
        &mut self,
        batch: &Batch,
        learning_rate: f32,
        rng: &mut Rng,
    ) -> Result<UpdateStats, LearnError> {
        batch.check(self.policy.architecture().inputs)?;
        let stats =
            update::update(&mut self.parameters, &mut self.adam, &self.config, batch, learning_rate, rng);
        let diverged = |_| LearnError::Diverged { rows: batch.len() };
        let actor = Mlp::new(self.parameters.actor.dense()).map_err(diverged)?;
        let critic = Mlp::new(self.parameters.critic.dense()).map_err(diverged)?;
        let log_std = self.parameters.log_std;
        self.policy = self
            .policy
            .with_parameters(actor, critic, log_std)
            .map_err(|_| LearnError::Diverged { rows: batch.len() })?;
        self.networks.actor = self.parameters.actor.clone();
        self.networks.critic = self.parameters.critic.clone();
        Ok(stats)
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn load(&mut self, policy: &Policy) -> Result<(), LearnError> {
        self.check(policy)?;
        *self = Native::new(policy, self.config)?;
        Ok(())
    }

    fn state(&self) -> LearnerState {
        LearnerState { policy: self.policy.clone(), moments: self.adam.moments(&self.parameters) }
    }

    fn restore(&mut self, state: &LearnerState) -> Result<(), LearnError> {
        self.check(&state.policy)?;
        let mut restored = Native::new(&state.policy, self.config)?;
        restored.adam = Adam::from_moments(&restored.parameters, &state.moments)?;
        *self = restored;
        Ok(())
    }
}

impl Moments {
    /// # Errors
    /// There are not two for each of `parameters`.
    pub fn check(&self, parameters: usize) -> Result<(), LearnError> {
        for moments in [&self.first, &self.second] {
            if moments.len() != parameters {
                return Err(LearnError::Moments { found: moments.len(), expected: parameters });
            }
        }
        Ok(())
    }
}

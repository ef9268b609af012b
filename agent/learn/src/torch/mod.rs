//! The libtorch back end: networks of any size, on processors or GPUs. For networks of Aurora's size the native one is
//! several times faster; both start from the same weights, take the same minibatches and mean the same by an update.

mod adam;
mod network;
mod threads;
mod update;

use crate::architecture::Architecture;
use crate::batch::Batch;
use crate::device::{Device, MAX_THREADS, TorchOptions};
use crate::error::LearnError;
use crate::learner::{Learner, LearnerState, Moments, UpdateStats};
use crate::native::ActorCritic;
use crate::policy::Policy;
use crate::ppo::PpoConfig;
use crate::rng::Rng;
use adam::Adam;
use ccplane_quantize::{Dense, Mlp};
use network::Networks;
use tch::{TchError, Tensor};
use update::Trained;

/// A learner by libtorch.
#[derive(Debug)]
pub struct Torch {
    config: PpoConfig,
    device: tch::Device,
    networks: Networks,
    /// All parameters in one flat tensor, as [`Networks`] lays them out.
    parameters: Tensor,
    adam: Adam,
    /// Both as they are between updates; what an update that fails goes back to.
    state: LearnerState,
}

impl Torch {
    /// Goes on from `policy`, with an optimiser that has seen nothing.
    ///
    /// # Errors
    /// Settings or options out of range; a device that libtorch does not have.
    pub fn new(policy: &Policy, config: PpoConfig, options: TorchOptions) -> Result<Torch, LearnError> {
        config.check()?;
        if !(1..=MAX_THREADS).contains(&options.threads) {
            return Err(refused(format!("{} threads, 1 to {MAX_THREADS} are allowed", options.threads)));
        }
        threads::set(options.threads as i32);
        let device = device(options.device)?;
        let networks = Networks::new(policy.architecture(), device)?;
        let state = untouched(policy.clone());
        let parameters = on_device(&state.policy, device)?;
        let adam = Adam::new(&state.moments, device)?;
        Ok(Torch { config, device, networks, parameters, adam, state })
    }

    fn check(&self, policy: &Policy) -> Result<(), LearnError> {
        let (found, expected) = (policy.architecture(), self.architecture());
        if found == expected {
            return Ok(());
        }
        Err(LearnError::Architecture { found: Box::new(found.clone()), expected: Box::new(expected.clone()) })
    }

    fn forward(&self, observations: &[f32]) -> Result<(Vec<f32>, Vec<f32>), TchError> {
        let _no_grad = tch::no_grad_guard();
        let inputs = self.architecture().inputs as i64;
        let rows = Tensor::f_from_slice(observations)?.f_to_device(self.device)?.f_view([-1, inputs])?;
        let outputs = self.networks.forward(&self.parameters, &rows)?;
        Ok((Vec::try_from(outputs.means)?, Vec::try_from(outputs.values)?))
    }

    fn back_to_state(&mut self) -> Result<(), TchError> {
        self.parameters = on_device(&self.state.policy, self.device)?;
        self.adam = Adam::new(&self.state.moments, self.device)?;
        Ok(())
    }

    fn train(&mut self, batch: &Batch, learning_rate: f32, rng: &mut Rng) -> Result<UpdateStats, LearnError> {
        let mut trained = Trained {
            networks: &self.networks,
            parameters: &mut self.parameters,
            adam: &mut self.adam,
            config: &self.config,
            learning_rate,
        };
        let stats = trained.update(batch, rng)?;
        let flat: Vec<f32> = Vec::try_from(&self.parameters)?;
        if !flat.iter().all(|number| number.is_finite()) {
            return Err(LearnError::Diverged { rows: batch.len() });
        }
        let policy = with_parameters(&self.state.policy, &flat)?;
        self.state = LearnerState { policy, moments: self.adam.moments()? };
        Ok(stats)
    }
}

impl Learner for Torch {
    fn architecture(&self) -> &Architecture {
        self.state.policy.architecture()
    }

    fn config(&self) -> &PpoConfig {
        &self.config
    }

    fn evaluate(&mut self, observations: &[f32], means: &mut Vec<f32>, values: &mut Vec<f32>) {
        match self.forward(observations) {
            Ok(outputs) => (*means, *values) = outputs,
            // A device without room for so many rows at once.
            Err(_) => {
                let mut networks = ActorCritic::new(&self.state.policy);
                networks.means(observations, means);
                networks.values(observations, values);
            }
        }
    }

    fn update(
        &mut self,
        batch: &Batch,
        learning_rate: f32,
        rng: &mut Rng,
    ) -> Result<UpdateStats, LearnError> {
        batch.check(self.architecture().inputs)?;
        let stats = self.train(batch, learning_rate, rng);
        if stats.is_err() {
            self.back_to_state()?;
        }
        stats
    }

    fn policy(&self) -> &Policy {
        &self.state.policy
    }

    fn load(&mut self, policy: &Policy) -> Result<(), LearnError> {
        self.restore(&untouched(policy.clone()))
    }

    fn state(&self) -> LearnerState {
        self.state.clone()
    }

    fn restore(&mut self, state: &LearnerState) -> Result<(), LearnError> {
        self.check(&state.policy)?;
        state.moments.check(count(&state.policy))?;
        self.state = state.clone();
        Ok(self.back_to_state()?)
    }
}

fn device(wanted: Device) -> Result<tch::Device, LearnError> {
    match wanted {
        Device::Cpu => Ok(tch::Device::Cpu),
        Device::Auto => Ok(tch::Device::cuda_if_available()),
        Device::Cuda(n) if (n as i64) < tch::Cuda::device_count() => Ok(tch::Device::Cuda(n)),
        Device::Cuda(n) => {
            Err(refused(format!("no CUDA device {n}: libtorch sees {}", tch::Cuda::device_count())))
        }
    }
}

impl From<TchError> for LearnError {
    fn from(error: TchError) -> LearnError {
        refused(error.to_string())
    }
}

fn refused(message: String) -> LearnError {
    LearnError::BackEnd { name: "libtorch", message }
}

/// Parameters of a policy.
fn count(policy: &Policy) -> usize {
    2 * policy.architecture().parameters() + 1
}

/// The state that learning begins in.
fn untouched(policy: Policy) -> LearnerState {
    let zeros = vec![0.0; count(&policy)];
    LearnerState { policy, moments: Moments { first: zeros.clone(), second: zeros, steps: 0 } }
}

fn on_device(policy: &Policy, device: tch::Device) -> Result<Tensor, TchError> {
    Tensor::f_from_slice(&flat(policy))?.f_to_device(device)?.f_set_requires_grad(true)
}

/// All parameters, in the order of [`Moments::first`](crate::Moments::first).
fn flat(policy: &Policy) -> Vec<f32> {
    let mut flat = Vec::with_capacity(count(policy));
    for layer in policy.actor().layers().iter().chain(policy.critic().layers()) {
        flat.extend_from_slice(&layer.weights);
        flat.extend_from_slice(&layer.bias);
    }
    flat.push(policy.log_std());
    flat
}

/// The policy with these parameters, as many as [`flat`] gives.
fn with_parameters(policy: &Policy, flat: &[f32]) -> Result<Policy, LearnError> {
    let mut rest = flat;
    let mut next = |len: usize| {
        let (numbers, after) = rest.split_at(len.min(rest.len()));
        rest = after;
        numbers.to_vec()
    };
    let mut network = |mlp: &Mlp| {
        let layer = |layer: &Dense| Dense {
            weights: next(layer.weights.len()),
            bias: next(layer.bias.len()),
            ..layer.clone()
        };
        Mlp::new(mlp.layers().iter().map(layer).collect())
    };
    let (actor, critic) = (network(policy.actor()), network(policy.critic()));
    let log_std = next(1).first().copied().unwrap_or(f32::NAN);
    let networks = (actor.map_err(crate::PolicyError::from)?, critic.map_err(crate::PolicyError::from)?);
    Ok(policy.with_parameters(networks.0, networks.1, log_std)?)
}

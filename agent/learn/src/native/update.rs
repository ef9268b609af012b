//! One PPO update, with the settings of [`PpoConfig`].

use super::network::{BatchBuffers, LANES, Lane, Network};
use super::vector::wide;
use super::{ActorCritic, fill};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::learner::{Moments, UpdateStats};
use crate::math::{self, log_prob};
use crate::ppo::{BETA_1, BETA_2, KL_TOLERANCE, PpoConfig};
use crate::rng::Rng;

/// `0.5 ln(2 pi e)`.
const UNIT_ENTROPY: f32 = 1.418_938_5;

/// All that is learned.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub actor: Network,
    pub critic: Network,
    pub log_std: f32,
}

impl Parameters {
    pub fn new(networks: &ActorCritic, log_std: f32) -> Parameters {
        Parameters { actor: networks.actor.clone(), critic: networks.critic.clone(), log_std }
    }

    fn to_numbers(&self, of: &Group) -> Vec<f32> {
        let (mut actor, critic) = (self.actor.to_numbers(&of.actor), self.critic.to_numbers(&of.critic));
        actor.extend(critic);
        actor.push(of.log_std);
        actor
    }
}

/// One number for each parameter.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub actor: Vec<Lane>,
    critic: Vec<Lane>,
    log_std: f32,
}

impl Group {
    pub fn zero(parameters: &Parameters) -> Group {
        let zero = |network: &Network| vec![[0.0; LANES]; network.parameters.len()];
        Group { actor: zero(&parameters.actor), critic: zero(&parameters.critic), log_std: 0.0 }
    }
}

/// The Adam optimiser and its moments.
#[derive(Clone, Debug)]
pub(super) struct Adam {
    first: Group,
    second: Group,
    steps: u64,
}

impl Adam {
    pub fn new(parameters: &Parameters) -> Adam {
        Adam { first: Group::zero(parameters), second: Group::zero(parameters), steps: 0 }
    }

    pub fn moments(&self, parameters: &Parameters) -> Moments {
        let numbers = |group| parameters.to_numbers(group);
        Moments { first: numbers(&self.first), second: numbers(&self.second), steps: self.steps }
    }

    pub fn from_moments(parameters: &Parameters, moments: &Moments) -> Result<Adam, LearnError> {
        let count = |network: &Network| network.to_numbers(&network.parameters).len();
        let (actor, critic) = (count(&parameters.actor), count(&parameters.critic));
        moments.check(actor + critic + 1)?;
        let group = |numbers: &[f32]| Group {
            actor: parameters.actor.to_lanes(&numbers[..actor]),
            critic: parameters.critic.to_lanes(&numbers[actor..actor + critic]),
            log_std: numbers[actor + critic],
        };
        Ok(Adam { first: group(&moments.first), second: group(&moments.second), steps: moments.steps })
    }

    /// One step down `gradient` times `scale`.
    #[inline(always)]
    pub fn step(&mut self, parameters: &mut Parameters, gradient: &Group, scale: f32, rate: f32, eps: f32) {
        self.steps += 1;
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let correct = |beta: f32| (1.0 / (1.0 - power(f64::from(beta), steps))) as f32;
        let step = Step { scale, rate, eps, correct_1: correct(BETA_1), correct_2: correct(BETA_2) };
        let Adam { first, second, .. } = self;
        step.all(&mut parameters.actor.parameters, &gradient.actor, &mut first.actor, &mut second.actor);
        step.all(&mut parameters.critic.parameters, &gradient.critic, &mut first.critic, &mut second.critic);
        step.one(&mut parameters.log_std, gradient.log_std, &mut first.log_std, &mut second.log_std);
    }
}

/// `x^n` by squaring: the standard library's `powi` differs between machines.
fn power(mut x: f64, mut n: i32) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            product *= x;
        }
        x *= x;
        n >>= 1;
    }
    product
}

#[derive(Clone, Copy)]
struct Step {
    scale: f32,
    rate: f32,
    eps: f32,
    correct_1: f32,
    correct_2: f32,
}

impl Step {
    #[inline(always)]
    fn one(self, parameter: &mut f32, gradient: f32, first: &mut f32, second: &mut f32) {
        let gradient = gradient * self.scale;
        *first = BETA_1 * *first + (1.0 - BETA_1) * gradient;
        *second = BETA_2 * *second + (1.0 - BETA_2) * (gradient * gradient);
        *parameter -= self.rate * (*first * self.correct_1) / ((*second * self.correct_2).sqrt() + self.eps);
    }

    #[inline(always)]
    fn all(self, parameters: &mut [Lane], gradient: &[Lane], first: &mut [Lane], second: &mut [Lane]) {
        let parameters = parameters.as_flattened_mut().iter_mut().zip(gradient.as_flattened());
        let moments = first.as_flattened_mut().iter_mut().zip(second.as_flattened_mut());
        for ((parameter, gradient), (first, second)) in parameters.zip(moments) {
            self.one(parameter, *gradient, first, second);
        }
    }
}

/// The statistics that minibatches add to.
#[derive(Default)]
struct Sums {
    rows: usize,
    minibatches: usize,
    policy_loss: f64,
    value_loss: f64,
    clipped: usize,
    kl: f64,
    grad_norm: f64,
}

struct Work<'a> {
    config: &'a PpoConfig,
    batch: &'a Batch,
    advantages: Vec<f32>,
    /// All observations as lanes.
    rows: Vec<Lane>,
    gradient: Group,
    actor_room: BatchBuffers,
    critic_room: BatchBuffers,
    sums: Sums,
}

pub(super) fn update(
    parameters: &mut Parameters,
    adam: &mut Adam,
    config: &PpoConfig,
    batch: &Batch,
    rate: f32,
    rng: &mut Rng,
) -> UpdateStats {
    let mut work = Work::new(parameters, config, batch);
    let mut order: Vec<usize> = (0..batch.len()).collect();
    let (mut epochs, mut kl) = (0, 0.0);
    while epochs < config.epochs {
        rng.shuffle(&mut order);
        let before = work.sums.kl;
        for minibatch in order.chunks(config.minibatch) {
            wide(
                #[inline(always)]
                || {
                    work.differentiate(parameters, minibatch);
                    let norm = work.norm();
                    let scale =
                        config.max_grad_norm.map_or(1.0, |max| if norm > max { max / norm } else { 1.0 });
                    adam.step(parameters, &work.gradient, scale, rate, config.eps);
                    work.sums.grad_norm += f64::from(norm);
                    parameters.actor.transpose();
                    parameters.critic.transpose();
                },
            );
            let (lo, hi) = config.log_std_range;
            parameters.log_std = math::clamp(parameters.log_std, lo, hi);
        }
        epochs += 1;
        kl = ((work.sums.kl - before) / batch.len() as f64) as f32;
        if config.target_kl.is_some_and(|target| kl > KL_TOLERANCE * target) {
            break;
        }
    }
    let sums = work.sums;
    let mean = |sum: f64| (sum / sums.rows as f64) as f32;
    UpdateStats {
        policy_loss: mean(sums.policy_loss),
        value_loss: mean(sums.value_loss),
        entropy: parameters.log_std + UNIT_ENTROPY,
        approx_kl: kl,
        clip_fraction: mean(sums.clipped as f64),
        explained_variance: batch.explained_variance(),
        grad_norm: (sums.grad_norm / sums.minibatches as f64) as f32,
        epochs,
    }
}

impl<'a> Work<'a> {
    fn new(parameters: &Parameters, config: &'a PpoConfig, batch: &'a Batch) -> Work<'a> {
        let mut advantages = batch.advantages.clone();
        if config.normalise_advantages {
            crate::batch::normalise(&mut advantages);
        }
        let lanes = parameters.actor.input_lanes();
        let mut rows = vec![[0.0; LANES]; lanes * batch.len()];
        let observations = batch.observations.chunks_exact(parameters.actor.inputs());
        for (to, row) in rows.chunks_exact_mut(lanes).zip(observations) {
            fill(to, row);
        }
        let (actor_room, critic_room) = (BatchBuffers::default(), BatchBuffers::default());
        let gradient = Group::zero(parameters);
        Work { config, batch, advantages, rows, gradient, actor_room, critic_room, sums: Sums::default() }
    }

    /// The gradient of the loss over these rows.
    #[inline(always)]
    fn differentiate(&mut self, parameters: &Parameters, minibatch: &[usize]) {
        let lanes = parameters.actor.input_lanes();
        for (network, room) in
            [(&parameters.actor, &mut self.actor_room), (&parameters.critic, &mut self.critic_room)]
        {
            let to = network.inputs_of(room, minibatch.len());
            for (to, row) in to.chunks_exact_mut(lanes).zip(minibatch) {
                to.copy_from_slice(&self.rows[row * lanes..(row + 1) * lanes]);
            }
            network.forward(room);
        }
        self.heads(parameters, minibatch);
        parameters.actor.backward(&mut self.actor_room, &mut self.gradient.actor);
        parameters.critic.backward(&mut self.critic_room, &mut self.gradient.critic);
    }

    /// The loss's derivatives by both outputs and by `log_std`.
    #[inline(always)]
    fn heads(&mut self, parameters: &Parameters, minibatch: &[usize]) {
        let Work { config, batch, advantages, gradient, actor_room, critic_room, sums, .. } = self;
        let inverse_std = 1.0 / math::exp(parameters.log_std);
        let share = 1.0 / minibatch.len() as f32;
        gradient.log_std = -config.entropy_coef;
        for deltas in
            [parameters.actor.output_deltas(actor_room), parameters.critic.output_deltas(critic_room)]
        {
            deltas.fill([0.0; LANES]);
        }
        for (n, row) in minibatch.iter().copied().enumerate() {
            let action = batch.actions[row];
            let mean = parameters.actor.output(actor_room, n);
            let log_ratio = log_prob(action, mean, parameters.log_std, inverse_std) - batch.log_probs[row];
            let ratio = math::exp(log_ratio);
            let advantage = advantages[row];
            let clipped = math::clamp(ratio, 1.0 - config.clip, 1.0 + config.clip);
            let (free, bound) = (ratio * advantage, clipped * advantage);
            // Where the clipped term is the smaller one, nothing moves it.
            let slope = if free <= bound { -free * share } else { 0.0 };
            let z = (action - mean) * inverse_std;
            gradient.log_std += slope * (z * z - 1.0);
            parameters.actor.output_deltas(actor_room)[n][0] = slope * z * inverse_std;
            let error = parameters.critic.output(critic_room, n) - batch.returns[row];
            parameters.critic.output_deltas(critic_room)[n][0] = 2.0 * config.value_coef * error * share;
            sums.policy_loss -= f64::from(if free <= bound { free } else { bound });
            sums.value_loss += f64::from(error * error);
            sums.clipped += usize::from(ratio != clipped);
            sums.kl += f64::from((ratio - 1.0) - log_ratio);
        }
        sums.rows += minibatch.len();
        sums.minibatches += 1;
    }

    /// The whole gradient's norm.
    #[inline(always)]
    fn norm(&self) -> f32 {
        let mut sums = [0.0_f32; LANES];
        for lane in self.gradient.actor.iter().chain(&self.gradient.critic) {
            for n in 0..LANES {
                sums[n] += lane[n] * lane[n];
            }
        }
        let rest = self.gradient.log_std * self.gradient.log_std;
        sums.iter().fold(rest, |sum, lane| sum + lane).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::{Architecture, PreferenceBlock};
    use crate::testing;
    use ccplane_quantize::{Activation, Mlp};

    fn forward(mlp: &Mlp, numbers: &[f64], x: &[f32]) -> f64 {
        let mut x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mut rest = numbers;
        for layer in mlp.layers() {
            let (weights, after) = rest.split_at(layer.inputs * layer.outputs);
            let (bias, after) = after.split_at(layer.outputs);
            rest = after;
            let sum = |(row, b): (&[f64], &f64)| b + row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>();
            x = (weights.chunks(layer.inputs).zip(bias).map(sum))
                .map(|sum| match layer.activation {
                    None => sum,
                    Some(Activation::Tanh) => sum.tanh(),
                    Some(Activation::Relu) => sum.max(0.0),
                })
                .collect();
        }
        x[0]
    }

    /// The loss as [`PpoConfig`] words it, in double precision, of parameters in the order of [`Moments`].
    fn loss(parameters: &Parameters, mlp: &Mlp, numbers: &[f64], config: &PpoConfig, batch: &Batch) -> f64 {
        let count = parameters.actor.to_numbers(&parameters.actor.parameters).len();
        let log_std = numbers[2 * count];
        let mut total = -f64::from(config.entropy_coef) * log_std;
        for (n, x) in batch.observations.chunks(batch.observation_len).enumerate() {
            let mean = forward(mlp, &numbers[..count], x);
            let value = forward(mlp, &numbers[count..2 * count], x);
            let z = (f64::from(batch.actions[n]) - mean) / log_std.exp();
            let log_prob = -0.5 * z * z - log_std - 0.5 * std::f64::consts::TAU.ln();
            let ratio = (log_prob - f64::from(batch.log_probs[n])).exp();
            let clip = f64::from(config.clip);
            let advantage = f64::from(batch.advantages[n]);
            let gain = (ratio * advantage).min(ratio.clamp(1.0 - clip, 1.0 + clip) * advantage);
            let error = value - f64::from(batch.returns[n]);
            total += (f64::from(config.value_coef) * error * error - gain) / batch.len() as f64;
        }
        total
    }

    fn batch(observation_len: usize, rows: usize, rng: &mut Rng) -> Batch {
        let mut batch = Batch::new(observation_len);
        let mut normals = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        batch.observations = normals(rows * observation_len);
        batch.actions = normals(rows);
        batch.log_probs = normals(rows).iter().map(|x| 0.3 * x - 1.4).collect();
        batch.advantages = normals(rows);
        batch.returns = normals(rows);
        batch.values = normals(rows);
        batch
    }

    #[test]
    fn gradients_are_the_losses_slopes() {
        let preference = Some(PreferenceBlock { inputs: 2, width: 3 });
        let architectures = [
            Architecture { inputs: 5, hidden: vec![9, 4], activation: Activation::Tanh, preference: None },
            Architecture { inputs: 11, hidden: vec![10, 17, 3], activation: Activation::Tanh, preference },
            Architecture { inputs: 8, hidden: vec![16], activation: Activation::Relu, preference: None },
        ];
        let mut rng = Rng::new(3, &[]);
        for architecture in architectures {
            let policy = testing::policy(architecture.clone(), -0.3, 5);
            let mut parameters = Parameters::new(&ActorCritic::new(&policy), policy.log_std());
            // A last layer that matters.
            for lane in &mut parameters.actor.parameters {
                lane.iter_mut().for_each(|x| *x *= 1.7);
            }
            parameters.actor.transpose();
            let config = PpoConfig { normalise_advantages: false, entropy_coef: 0.1, ..PpoConfig::default() };
            let batch = batch(architecture.inputs, 37, &mut rng);
            let mut work = Work::new(&parameters, &config, &batch);
            work.differentiate(&parameters, &(0..37).collect::<Vec<_>>());
            let gradient = parameters.to_numbers(&work.gradient);
            let all = Group {
                actor: parameters.actor.parameters.clone(),
                critic: parameters.critic.parameters.clone(),
                log_std: parameters.log_std,
            };
            let numbers: Vec<f64> = parameters.to_numbers(&all).iter().map(|x| f64::from(*x)).collect();
            let scale = gradient.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            assert!(scale > 0.01);
            for n in 0..numbers.len() {
                let slope = |h: f64| {
                    let mut moved = numbers.clone();
                    moved[n] += h;
                    loss(&parameters, policy.actor(), &moved, &config, &batch)
                };
                let expected = (slope(1e-5) - slope(-1e-5)) / 2e-5;
                let masked = architecture.preference.is_some() && gradient[n] == 0.0;
                let error = (f64::from(gradient[n]) - expected).abs();
                assert!(masked || error < 1e-4 * f64::from(scale), "{n}: {} for {expected}", gradient[n]);
            }
            let zeros = gradient.iter().filter(|x| **x == 0.0).count();
            let outside =
                if preference.is_some() && architecture.inputs == 11 { 2 * (3 * 9 + 7 * 2) } else { 0 };
            assert!(architecture.activation == Activation::Relu || zeros == outside, "{zeros} {outside}");
        }
    }

    #[test]
    fn rows_do_not_depend_on_their_batch() {
        let policy = testing::policy(Architecture::mocc(), 0.0, 9);
        let mut networks = ActorCritic::new(&policy);
        let rows = batch(33, 601, &mut Rng::new(4, &[]));
        let mut values = Vec::new();
        networks.values(&rows.observations, &mut values);
        assert_eq!(values.len(), 601);
        for (n, row) in rows.observations.chunks(33).enumerate() {
            assert_eq!(networks.value(row).to_bits(), values[n].to_bits());
            let mut scratch = ccplane_quantize::Scratch::default();
            assert!((policy.critic().forward(row, &mut scratch) - values[n]).abs() < 1e-4);
        }
        // Without vector instructions too.
        let mut room = BatchBuffers::default();
        for (n, row) in rows.observations.chunks(33).enumerate() {
            let network = &networks.critic;
            let to = network.inputs_of(&mut room, 1);
            fill(&mut to[..network.input_lanes()], row);
            network.forward(&mut room);
            assert_eq!(network.output(&room, 0).to_bits(), values[n].to_bits());
        }
    }

    #[test]
    fn a_state_goes_on_as_if_never_left() {
        let policy = testing::policy(Architecture::mocc(), 0.0, 9);
        let rows = batch(33, 300, &mut Rng::new(4, &[]));
        let mut whole = super::super::Native::new(&policy, PpoConfig::default()).unwrap();
        use crate::learner::Learner;
        whole.update(&rows, 1e-3, &mut Rng::new(1, &[0])).unwrap();
        let mut resumed = super::super::Native::new(&policy, PpoConfig::default()).unwrap();
        resumed.restore(&whole.state()).unwrap();
        assert_eq!(resumed.state(), whole.state());
        let stats = whole.update(&rows, 1e-3, &mut Rng::new(1, &[1])).unwrap();
        assert_eq!(resumed.update(&rows, 1e-3, &mut Rng::new(1, &[1])).unwrap(), stats);
        assert_eq!(resumed.state(), whole.state());
        assert_ne!(resumed.policy(), &policy);
    }
}

//! Supervised learning of an actor: yes or no by the logistic loss, numbers by the squared error.

use super::network::{LANES, Lane};
use super::update::{Adam, Group, Parameters};
use super::{ActorCritic, fill};
use crate::error::LearnError;
use crate::math;
use crate::policy::Policy;
use crate::rng::Rng;
use ccplane_quantize::Mlp;

/// Observations and whether each is one of those to be told from the others.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Examples {
    /// One after the other, as [`PolicySpec::normalise`](ccplane_snapshot::PolicySpec::normalise) gives them.
    pub observations: Vec<f32>,
    /// One for each observation.
    pub labels: Vec<bool>,
}

/// Observations and the number that is right for each.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Targets {
    /// One after the other, as [`PolicySpec::normalise`](ccplane_snapshot::PolicySpec::normalise) gives them.
    pub observations: Vec<f32>,
    /// One for each observation.
    pub targets: Vec<f32>,
}

/// The settings of fitting an actor to examples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImitateConfig {
    /// Passes over all examples.
    pub epochs: usize,
    /// Examples of a step.
    pub minibatch: usize,
    /// Adam's step at first; it falls linearly to a tenth.
    pub learning_rate: f32,
    /// Share of each parameter that a step of size 1 takes off.
    pub weight_decay: f32,
}

impl Default for ImitateConfig {
    fn default() -> ImitateConfig {
        ImitateConfig { epochs: 12, minibatch: 512, learning_rate: 2e-3, weight_decay: 1e-3 }
    }
}

/// Fits the actor of `policy`, whose action becomes the logarithm of the odds that an observation's label is true. Deterministic
/// from `rng`.
///
/// # Errors
/// No examples, or observations of another length; parameters that are no longer finite.
pub fn imitate(
    policy: &Policy,
    examples: &Examples,
    config: &ImitateConfig,
    rng: &mut Rng,
) -> Result<Policy, LearnError> {
    let derivative = |output: f32, row: usize| {
        let odds = 1.0 / (1.0 + math::exp(-output.clamp(-LARGEST, LARGEST)));
        odds - f32::from(examples.labels[row])
    };
    fit(policy, &examples.observations, examples.labels.len(), derivative, config, rng)
}

/// Fits the actor of `policy`, whose action becomes the mean of the targets that observations like this one have. Deterministic
/// from `rng`.
///
/// # Errors
/// No examples, or observations of another length; parameters that are no longer finite.
pub fn regress(
    policy: &Policy,
    examples: &Targets,
    config: &ImitateConfig,
    rng: &mut Rng,
) -> Result<Policy, LearnError> {
    let derivative = |output: f32, row: usize| output - examples.targets[row];
    fit(policy, &examples.observations, examples.targets.len(), derivative, config, rng)
}

/// Fits the actor of `policy` to `rows` observations; `derivative` is that of a row's loss by the actor's output.
fn fit(
    policy: &Policy,
    observations: &[f32],
    rows: usize,
    derivative: impl Fn(f32, usize) -> f32,
    config: &ImitateConfig,
    rng: &mut Rng,
) -> Result<Policy, LearnError> {
    let inputs = policy.architecture().inputs;
    if rows == 0 {
        return Err(LearnError::Empty);
    }
    let (found, expected) = (observations.len(), rows * inputs);
    if found != expected {
        return Err(LearnError::Batch { what: "observations", found, rows, expected });
    }
    let mut networks = ActorCritic::new(policy);
    let mut parameters = Parameters::new(&networks, policy.log_std());
    let mut adam = Adam::new(&parameters);
    let mut gradient = Group::zero(&parameters);
    let mut order: Vec<usize> = (0..rows).collect();
    let minibatch = config.minibatch.clamp(1, rows);
    let steps = config.epochs * rows.div_ceil(minibatch);
    let mut step = 0;
    for _ in 0..config.epochs {
        rng.shuffle(&mut order);
        for chosen in order.chunks(minibatch) {
            let rate = config.learning_rate * (1.0 - 0.9 * step as f32 / steps as f32);
            step += 1;
            let actor = &parameters.actor;
            let room = &mut networks.actor_room;
            let to = actor.inputs_of(room, chosen.len()).chunks_exact_mut(actor.input_lanes());
            for (to, row) in to.zip(chosen) {
                fill(to, &observations[row * inputs..][..inputs]);
            }
            actor.forward(room);
            let share = 1.0 / chosen.len() as f32;
            let deltas: Vec<f32> = chosen
                .iter()
                .enumerate()
                .map(|(n, row)| derivative(actor.output(room, n), *row) * share)
                .collect();
            let lanes = actor.output_deltas(room);
            lanes.fill([0.0; LANES]);
            for (lane, delta) in lanes.iter_mut().zip(&deltas) {
                lane[0] = *delta;
            }
            gradient.actor.fill([0.0; LANES]);
            actor.backward(room, &mut gradient.actor);
            adam.step(&mut parameters, &gradient, 1.0, rate, EPSILON);
            decay(&mut parameters.actor.parameters, rate * config.weight_decay);
            parameters.actor.transpose();
        }
    }
    let diverged = |_| LearnError::Diverged { rows };
    let actor = Mlp::new(parameters.actor.dense()).map_err(diverged)?;
    policy
        .with_parameters(actor, policy.critic().clone(), policy.log_std())
        .map_err(|_| LearnError::Diverged { rows })
}

/// The bound that keeps exponentials finite.
const LARGEST: f32 = 30.0;
/// The epsilon of Adam's denominator.
const EPSILON: f32 = 1e-8;

fn decay(parameters: &mut [Lane], share: f32) {
    for parameter in parameters.as_flattened_mut() {
        *parameter -= *parameter * share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::Architecture;
    use crate::testing;
    use ccplane_quantize::Activation;

    /// Rings: no line tells them apart.
    fn rings(rows: usize, seed: u64) -> Examples {
        let mut rng = Rng::new(seed, &[]);
        let mut examples = Examples::default();
        for n in 0..rows {
            let (x, y) = (rng.normal() as f32, rng.normal() as f32);
            let far = (x * x + y * y).sqrt().max(1e-3);
            let radius = if n % 2 == 0 { 0.3 } else { 0.9 };
            examples.observations.extend([x / far * radius, y / far * radius, 0.5]);
            examples.labels.push(n % 2 == 0);
        }
        examples
    }

    fn right(policy: &Policy, examples: &Examples) -> usize {
        let mut networks = ActorCritic::new(policy);
        let mut odds = Vec::new();
        networks.means(&examples.observations, &mut odds);
        odds.iter().zip(&examples.labels).filter(|(odds, label)| (**odds > 0.0) == **label).count()
    }

    #[test]
    fn what_no_line_tells_apart_is_learned_and_the_same_seed_gives_the_same_bits() {
        let architecture =
            Architecture { inputs: 3, hidden: vec![16, 8], activation: Activation::Tanh, preference: None };
        let policy = testing::policy(architecture, -1.0, 3);
        let (seen, unseen) = (rings(2000, 1), rings(500, 2));
        let config = ImitateConfig { minibatch: 64, epochs: 20, ..ImitateConfig::default() };
        let learned = imitate(&policy, &seen, &config, &mut Rng::new(9, &[])).unwrap();
        assert!(right(&policy, &unseen) < 400, "nothing was learned yet");
        assert!(right(&learned, &unseen) > 490, "{}", right(&learned, &unseen));
        assert_eq!(learned.critic(), policy.critic());
        assert_eq!(imitate(&policy, &seen, &config, &mut Rng::new(9, &[])).unwrap(), learned);
        assert_ne!(imitate(&policy, &seen, &config, &mut Rng::new(8, &[])).unwrap(), learned);
    }

    #[test]
    fn a_mean_that_depends_on_what_is_seen_is_learned_and_the_same_seed_gives_the_same_bits() {
        let architecture =
            Architecture { inputs: 3, hidden: vec![16, 8], activation: Activation::Tanh, preference: None };
        let policy = testing::policy(architecture, -1.0, 3);
        // The target's mean is a product, which no line is; noise of deviation 1 is on it.
        let draw = |rows: usize, seed: u64, noise: f64| {
            let mut rng = Rng::new(seed, &[]);
            let mut examples = Targets::default();
            for _ in 0..rows {
                let (x, y) = (rng.uniform() * 2.0 - 1.0, rng.uniform() * 2.0 - 1.0);
                examples.observations.extend([x as f32, y as f32, 0.5]);
                examples.targets.push((5.0 * x * y + noise * rng.normal()) as f32);
            }
            examples
        };
        let (seen, unseen) = (draw(6000, 1, 1.0), draw(500, 2, 0.0));
        let config = ImitateConfig { minibatch: 64, epochs: 30, ..ImitateConfig::default() };
        let learned = regress(&policy, &seen, &config, &mut Rng::new(9, &[])).unwrap();
        let mut means = Vec::new();
        ActorCritic::new(&learned).means(&unseen.observations, &mut means);
        let squares: f32 =
            means.iter().zip(&unseen.targets).map(|(mean, target)| (mean - target).powi(2)).sum();
        let deviation = (squares / 500.0).sqrt();
        assert!(deviation < 0.35, "{deviation}; without learning 1.67");
        assert_eq!(regress(&policy, &seen, &config, &mut Rng::new(9, &[])).unwrap(), learned);
        let mut short = draw(10, 1, 1.0);
        short.observations.pop();
        let refused = regress(&policy, &short, &config, &mut Rng::new(1, &[]));
        assert_eq!(
            refused,
            Err(LearnError::Batch { what: "observations", found: 29, rows: 10, expected: 30 })
        );
    }

    #[test]
    fn examples_that_do_not_fit_are_refused() {
        let architecture =
            Architecture { inputs: 3, hidden: vec![4], activation: Activation::Tanh, preference: None };
        let policy = testing::policy(architecture, -1.0, 3);
        let config = ImitateConfig::default();
        let empty = imitate(&policy, &Examples::default(), &config, &mut Rng::new(1, &[]));
        assert_eq!(empty, Err(LearnError::Empty));
        let mut short = rings(10, 1);
        short.observations.pop();
        let short = imitate(&policy, &short, &config, &mut Rng::new(1, &[]));
        assert_eq!(short, Err(LearnError::Batch { what: "observations", found: 29, rows: 10, expected: 30 }));
    }
}

//! Supervised learning of a classifier: softmax and cross-entropy, by any [`Optimiser`]. Deterministic from a seed.

use crate::error::LearnError;
use crate::math;
use crate::optimiser::{Optimiser, Steps};
use crate::rng::Rng;
use ccplane_quantize::{Activation, Dense, Mlp, Scratch};

/// Observations and the class of each.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Labelled {
    /// The inputs of one observation.
    pub inputs: usize,
    /// Observations one after the other, as [`PolicySpec::normalise`](ccplane_snapshot::PolicySpec::normalise) gives them.
    pub observations: Vec<f32>,
    /// One for each observation.
    pub classes: Vec<u8>,
}

/// The settings of a classifier's training.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassifierConfig {
    /// Neurons of each hidden layer; they compute tanh.
    pub hidden: Vec<usize>,
    /// Outputs, one a class.
    pub classes: usize,
    pub optimiser: Optimiser,
    pub learning_rate: f32,
    /// Passes over all observations.
    pub epochs: usize,
    /// Observations of a step.
    pub minibatch: usize,
}

impl Labelled {
    fn check(&self, classes: usize) -> Result<usize, LearnError> {
        let rows = self.classes.len();
        if rows == 0 || self.inputs == 0 {
            return Err(LearnError::Empty);
        }
        let (found, expected) = (self.observations.len(), rows * self.inputs);
        if found != expected {
            return Err(LearnError::Batch { what: "observations", found, rows, expected });
        }
        match self.classes.iter().find(|class| usize::from(**class) >= classes) {
            Some(class) => Err(LearnError::Class { found: *class, classes }),
            None => Ok(rows),
        }
    }

    fn observation(&self, row: usize) -> &[f32] {
        self.observations.get(row * self.inputs..(row + 1) * self.inputs).unwrap_or_default()
    }

    /// The share of observations that `network` classifies right; 0 if there are none.
    pub fn accuracy(&self, network: &Mlp) -> f64 {
        let mut scratch = Scratch::default();
        let is_right = |(row, class): (usize, &u8)| {
            network.classify(self.observation(row), &mut scratch) == usize::from(*class)
        };
        let right = self.classes.iter().enumerate().map(is_right).filter(|right| *right).count();
        right as f64 / self.classes.len().max(1) as f64
    }
}

/// Trains a classifier from random weights.
///
/// # Errors
/// No observations, observations of another length, a class that does not exist; parameters that are no longer finite.
pub fn classify(examples: &Labelled, config: &ClassifierConfig, rng: &mut Rng) -> Result<Mlp, LearnError> {
    let rows = examples.check(config.classes)?;
    let mut network = Network::new(examples.inputs, config, rng);
    let mut steps = Steps::new(config.optimiser, config.learning_rate, network.parameters.len());
    let mut gradient = vec![0.0; network.parameters.len()];
    let mut order: Vec<usize> = (0..rows).collect();
    for _ in 0..config.epochs {
        rng.shuffle(&mut order);
        for chosen in order.chunks(config.minibatch.max(1)) {
            gradient.fill(0.0);
            let share = 1.0 / chosen.len() as f32;
            for row in chosen {
                let class = examples.classes.get(*row).copied().unwrap_or(0);
                network.descend(examples.observation(*row), usize::from(class), share, &mut gradient);
            }
            steps.step(&mut network.parameters, &gradient);
        }
    }
    Mlp::classifier(network.layers()).map_err(|_| LearnError::Diverged { rows })
}

/// A network on its way: all parameters in one row, each layer's weights and then its biases.
struct Network {
    /// Inputs and outputs of each layer.
    widths: Vec<(usize, usize)>,
    parameters: Vec<f32>,
    /// The input of each layer, and the outputs.
    activations: Vec<Vec<f32>>,
    /// The loss's derivatives by the sums of the layer at hand, and by those of the layer before.
    deltas: Vec<f32>,
    before: Vec<f32>,
}

impl Network {
    /// Draws weights as Glorot and Bengio do (AISTATS 2010), uniformly; biases are 0.
    fn new(inputs: usize, config: &ClassifierConfig, rng: &mut Rng) -> Network {
        let all: Vec<usize> =
            std::iter::once(inputs).chain(config.hidden.iter().copied()).chain([config.classes]).collect();
        let widths: Vec<(usize, usize)> = all.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let mut parameters = Vec::new();
        for (inputs, outputs) in &widths {
            let limit = (6.0 / (inputs + outputs) as f64).sqrt();
            parameters.extend((0..inputs * outputs).map(|_| (limit * (2.0 * rng.uniform() - 1.0)) as f32));
            parameters.extend(std::iter::repeat_n(0.0, *outputs));
        }
        let activations = all.iter().map(|width| vec![0.0; *width]).collect();
        Network { widths, parameters, activations, deltas: Vec::new(), before: Vec::new() }
    }

    /// Adds `share` times the gradient of one observation's cross-entropy; returns that cross-entropy.
    fn descend(&mut self, observation: &[f32], class: usize, share: f32, gradient: &mut [f32]) -> f32 {
        self.forward(observation);
        let outputs = self.activations.last().map_or(&[][..], Vec::as_slice);
        let largest = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.deltas.clear();
        self.deltas.extend(outputs.iter().map(|output| math::exp(output - largest)));
        let sum: f32 = self.deltas.iter().sum();
        let loss = math::ln(f64::from(sum)) as f32 + largest - outputs.get(class).copied().unwrap_or(0.0);
        for (n, delta) in self.deltas.iter_mut().enumerate() {
            *delta = (*delta / sum - f32::from(u8::from(n == class))) * share;
        }
        self.backward(gradient);
        loss
    }

    fn forward(&mut self, observation: &[f32]) {
        if let Some(input) = self.activations.first_mut() {
            input.copy_from_slice(observation);
        }
        let (mut rest, last) = (self.parameters.as_slice(), self.widths.len() - 1);
        for (n, (inputs, outputs)) in self.widths.iter().enumerate() {
            let (weights, others) = rest.split_at(inputs * outputs);
            let (biases, others) = others.split_at(*outputs);
            rest = others;
            let (from, to) = self.activations.split_at_mut(n + 1);
            let (Some(from), Some(to)) = (from.last(), to.first_mut()) else { return };
            for ((to, row), bias) in to.iter_mut().zip(weights.chunks_exact(*inputs)).zip(biases) {
                let sum = row.iter().zip(from).fold(*bias, |sum, (w, x)| sum + w * x);
                *to = if n < last { math::tanh(sum) } else { sum };
            }
        }
    }

    fn backward(&mut self, gradient: &mut [f32]) {
        let mut end = self.parameters.len();
        for (n, (inputs, outputs)) in self.widths.iter().enumerate().rev() {
            let start = end - (inputs + 1) * outputs;
            let (Some(weights), Some(gradient)) =
                (self.parameters.get(start..end), gradient.get_mut(start..end))
            else {
                return;
            };
            end = start;
            let Some(from) = self.activations.get(n) else { return };
            self.before.clear();
            self.before.resize(*inputs, 0.0);
            let (of_weights, of_biases) = gradient.split_at_mut(inputs * outputs);
            let rows = weights.chunks_exact(*inputs).zip(of_weights.chunks_exact_mut(*inputs));
            for (((row, of_row), of_bias), delta) in rows.zip(of_biases).zip(&self.deltas) {
                *of_bias += delta;
                for (((w, of_w), x), before) in row.iter().zip(of_row).zip(from).zip(&mut self.before) {
                    *of_w += delta * x;
                    *before += delta * w;
                }
            }
            // The slope of tanh, from its value.
            for (before, y) in self.before.iter_mut().zip(from) {
                *before *= 1.0 - y * y;
            }
            std::mem::swap(&mut self.deltas, &mut self.before);
        }
    }

    fn layers(&self) -> Vec<Dense> {
        let (mut rest, last) = (self.parameters.as_slice(), self.widths.len() - 1);
        let layer = |(n, (inputs, outputs)): (usize, &(usize, usize))| {
            let (weights, others) = rest.split_at(inputs * outputs);
            let (bias, others) = others.split_at(*outputs);
            rest = others;
            Dense {
                inputs: *inputs,
                outputs: *outputs,
                weights: weights.to_vec(),
                bias: bias.to_vec(),
                activation: (n < last).then_some(Activation::Tanh),
            }
        };
        self.widths.iter().enumerate().map(layer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(optimiser: Optimiser) -> ClassifierConfig {
        let learning_rate = 10.0 * optimiser.usual_rate();
        ClassifierConfig { hidden: vec![12], classes: 3, optimiser, learning_rate, epochs: 30, minibatch: 16 }
    }

    /// Points in the plane whose class is the ring that they lie in.
    fn rings(count: usize, seed: u64) -> Labelled {
        let mut rng = Rng::new(seed, &[]);
        let mut examples = Labelled { inputs: 2, ..Labelled::default() };
        for n in 0..count {
            let (x, y) = (rng.normal() as f32, rng.normal() as f32);
            let far = (x * x + y * y).sqrt().max(1e-3);
            let radius = [0.2, 0.6, 1.0][n % 3];
            examples.observations.extend([x / far * radius, y / far * radius]);
            examples.classes.push((n % 3) as u8);
        }
        examples
    }

    #[test]
    fn gradients_are_those_of_differences() {
        let mut rng = Rng::new(5, &[]);
        let config = ClassifierConfig { hidden: vec![5, 4], ..config(Optimiser::Sgd) };
        let mut network = Network::new(3, &config, &mut rng);
        let observation = [0.3, -0.8, 0.5];
        let mut gradient = vec![0.0; network.parameters.len()];
        network.descend(&observation, 1, 1.0, &mut gradient);
        let mut unused = gradient.clone();
        const STEP: f32 = 1e-2;
        for (n, slope) in gradient.iter().enumerate() {
            let before = network.parameters[n];
            let mut loss = |at| {
                network.parameters[n] = at;
                network.descend(&observation, 1, 0.0, &mut unused)
            };
            let difference = (loss(before + STEP) - loss(before - STEP)) / (2.0 * STEP);
            network.parameters[n] = before;
            assert!((difference - slope).abs() < 1e-3, "{n}: {difference}, {slope}");
        }
    }

    #[test]
    fn every_optimiser_learns_and_the_same_seed_gives_the_same_bits() {
        let (seen, unseen) = (rings(1_500, 1), rings(600, 2));
        for optimiser in Optimiser::ALL {
            let config = config(optimiser);
            let train = |epochs, seed| {
                let config = ClassifierConfig { epochs, ..config.clone() };
                classify(&seen, &config, &mut Rng::new(seed, &[])).unwrap()
            };
            let (none, learned) = (train(0, 9), train(30, 9));
            assert!(unseen.accuracy(&none) < 0.7, "{optimiser:?} had learned before it began");
            assert!(unseen.accuracy(&learned) > 0.9, "{optimiser:?}: {}", unseen.accuracy(&learned));
            assert_eq!(train(30, 9), learned);
            assert_ne!(train(30, 8), learned);
        }
    }

    #[test]
    fn examples_that_do_not_fit_are_refused() {
        let refuse = |examples: &Labelled| {
            classify(examples, &config(Optimiser::Adam), &mut Rng::new(1, &[])).unwrap_err()
        };
        assert_eq!(refuse(&Labelled::default()), LearnError::Empty);
        let mut short = rings(9, 1);
        short.observations.pop();
        let expected = LearnError::Batch { what: "observations", found: 17, rows: 9, expected: 18 };
        assert_eq!(refuse(&short), expected);
        let mut strange = rings(9, 1);
        strange.classes[4] = 3;
        assert_eq!(refuse(&strange), LearnError::Class { found: 3, classes: 3 });
    }
}

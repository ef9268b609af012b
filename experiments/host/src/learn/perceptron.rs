//! Several perceptrons that predict the same: their mean, and how far they are apart.

use ccplane_learn::{
    ActorCritic, Architecture, ImitateConfig, LearnError, Policy, Rng, Targets, math, regress,
};
use ccplane_quantize::Activation;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, SpecError};

use super::encode::Encoder;

/// A share of 1 as programs hold it.
const ONE_Q16: i32 = 1 << 16;
/// The logarithm of the deviation of actions, which nothing here draws.
const LOG_STD: f32 = -1.0;
/// The streams of first weights, of the order of examples, and of the examples that a member sees.
const MEMBER: u64 = 0x3e3b;
/// The smallest deviation by which targets are divided.
const MIN_DEVIATION: f64 = 1e-9;
/// Passes over the examples, at least and at most.
const EPOCHS: std::ops::RangeInclusive<usize> = 10..=800;

/// The settings of fitting an ensemble.
#[derive(Clone, PartialEq, Debug)]
pub struct EnsembleConfig {
    pub members: usize,
    /// Neurons of each hidden layer.
    pub hidden: Vec<usize>,
    /// Examples that a member sees in all; passes follow from their number.
    pub examples: usize,
    /// Whether each member sees its own draw of the examples, so that members differ where there are few.
    pub is_resampled: bool,
    pub seed: u64,
}

/// Perceptrons that predict the logarithm of a positive quantity.
#[derive(Clone, Debug)]
pub struct Ensemble {
    members: Vec<ActorCritic>,
    encoder: Encoder,
    mean: f64,
    deviation: f64,
}

/// A prediction with its uncertainty.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// The quantity.
    pub value: f64,
    /// The deviation of the members' logarithms: about the relative error.
    pub uncertainty: f64,
}

/// Reasons why nothing is learned.
#[derive(Debug, thiserror::Error)]
pub enum PerceptronError {
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Policy(#[from] ccplane_learn::PolicyError),
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl Ensemble {
    /// Fits an ensemble to settings and the quantity that was measured under each, which is above 0. The same examples and seed give
    /// the same predictions.
    ///
    /// # Errors
    /// No examples, or learning that diverges.
    pub fn fit<T: AsRef<str>>(
        encoder: &Encoder,
        examples: &[(&[T], f64)],
        config: &EnsembleConfig,
    ) -> Result<Ensemble, PerceptronError> {
        if examples.is_empty() {
            return Err(LearnError::Empty.into());
        }
        let logs: Vec<f64> = examples.iter().map(|(_, y)| math::ln(*y)).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let deviation =
            (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / count).sqrt().max(MIN_DEVIATION);
        let mut rows = Vec::with_capacity(examples.len());
        for (values, _) in examples {
            let mut row = Vec::with_capacity(encoder.width());
            encoder.encode(values, &mut row);
            rows.push(row);
        }
        let spec = spec(encoder.width())?;
        let mut members = Vec::with_capacity(config.members);
        for member in 0..config.members as u64 {
            let mut rng = Rng::new(config.seed, &[MEMBER, member]);
            let chosen: Vec<usize> = match config.is_resampled {
                true => (0..rows.len()).map(|_| rng.below(rows.len())).collect(),
                false => (0..rows.len()).collect(),
            };
            let targets = Targets {
                observations: chosen.iter().flat_map(|n| rows[*n].iter().copied()).collect(),
                targets: chosen.iter().map(|n| ((logs[*n] - mean) / deviation) as f32).collect(),
            };
            let architecture = Architecture {
                inputs: encoder.width(),
                hidden: config.hidden.clone(),
                activation: Activation::Tanh,
                preference: None,
            };
            let fit = ImitateConfig {
                epochs: (config.examples / rows.len()).clamp(*EPOCHS.start(), *EPOCHS.end()),
                minibatch: 32,
                learning_rate: 4e-3,
                weight_decay: 1e-5,
            };
            let initial = Policy::initial(architecture, spec.clone(), LOG_STD, rng.bits())?;
            members.push(ActorCritic::new(&regress(&initial, &targets, &fit, &mut rng)?));
        }
        Ok(Ensemble { members, encoder: encoder.clone(), mean, deviation })
    }

    /// Predicts the quantity under each setting.
    pub fn predict<T: AsRef<str>>(&mut self, settings: &[&[T]]) -> Vec<Prediction> {
        let mut rows = Vec::with_capacity(settings.len() * self.encoder.width());
        for values in settings {
            self.encoder.encode(values, &mut rows);
        }
        let mut sums = vec![(0.0, 0.0); settings.len()];
        let mut means = Vec::new();
        for member in &mut self.members {
            member.means(&rows, &mut means);
            for ((sum, squares), mean) in sums.iter_mut().zip(&means) {
                let log = f64::from(*mean);
                (*sum, *squares) = (*sum + log, *squares + log * log);
            }
        }
        let count = self.members.len().max(1) as f64;
        let prediction = |(sum, squares): (f64, f64)| {
            let mean = sum / count;
            let variance = (squares / count - mean * mean).max(0.0);
            Prediction {
                value: (self.mean + self.deviation * mean).exp(),
                uncertainty: self.deviation * variance.sqrt(),
            }
        };
        sums.into_iter().map(prediction).collect()
    }
}

fn spec(inputs: usize) -> Result<PolicySpec, SpecError> {
    let feature = |n: usize| Feature { name: format!("setting{n}"), lo: 0, hi: ONE_Q16 };
    let action = Action {
        map: ActionMap::None,
        bound_q16: ONE_Q16 as u32,
        step_q20: 1,
        knob_min: 1,
        knob_max: 1 << 35,
    };
    PolicySpec::new("host", (0..inputs).map(feature).collect(), action)
}

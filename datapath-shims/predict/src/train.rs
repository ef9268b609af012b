//! The ten predictors: a network trained by each of five optimisers, for one and for ten epochs, and quantised.

use crate::data::{CLASSES, Images, PIXELS, SIDE, Split};
use ccplane_learn::{ClassifierConfig, Labelled, LearnError, Optimiser, Rng, classify};
use ccplane_quantize::{Options, QuantizeError, quantize};
use ccplane_snapshot::{Feature, PolicySpec, Provenance, Snapshot, SpecError};

/// Neurons of the hidden layer.
pub const HIDDEN: usize = 32;
/// Epochs of each optimiser's two predictors.
pub const EPOCHS: [usize; 2] = [1, 10];
/// Observations of a step.
const MINIBATCH: usize = 16;
/// Largest share of classes that quantisation may change, on images and off them.
const BUDGET_IMAGES: f64 = 0.01;
const BUDGET_OFF: f64 = 0.05;

/// Reasons why predictors cannot be trained.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// A trained predictor.
#[derive(Clone, PartialEq, Debug)]
pub struct Trained {
    /// The name, such as `adam-10`.
    pub name: String,
    pub snapshot: Snapshot,
    /// Share of the validation images that the float network classifies right.
    pub accuracy: f64,
}

/// The origin of trained predictors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The name of the data set.
    pub data: String,
    pub seed: u64,
    /// The command line that trains them.
    pub command: String,
    /// The program that trains them, with its version.
    pub created_by: String,
}

/// The inputs of a predictor of images whose pixels are at most `max`.
///
/// # Errors
/// None with a `max` above 0.
pub fn spec(name: &str, max: u8) -> Result<PolicySpec, SpecError> {
    let feature =
        |n: usize| Feature { name: format!("pixel[{}][{}]", n / SIDE, n % SIDE), lo: 0, hi: i32::from(max) };
    PolicySpec::classifier(name, (0..PIXELS).map(feature).collect())
}

/// Images as a network learns from them.
///
/// # Errors
/// As [`spec`].
pub fn labelled(images: &Images) -> Result<Labelled, SpecError> {
    let spec = spec("images", images.max)?;
    let mut labelled = Labelled { inputs: PIXELS, observations: Vec::new(), classes: images.labels.clone() };
    let mut input = [0.0; PIXELS];
    for cells in cells(images) {
        spec.normalise(&cells, &mut input);
        labelled.observations.extend(input);
    }
    Ok(labelled)
}

fn cells(images: &Images) -> impl Iterator<Item = Vec<i32>> {
    images.pixels.chunks_exact(PIXELS).map(|image| image.iter().map(|pixel| i32::from(*pixel)).collect())
}

/// Trains the ten predictors, each from its own weights; `on_trained` hears of each. The same bits from the same seed.
///
/// # Errors
/// [`TrainError`].
pub fn train(
    split: &Split,
    origin: &Origin,
    mut on_trained: impl FnMut(&Trained),
) -> Result<Vec<Trained>, TrainError> {
    let (seen, unseen) = (labelled(&split.train)?, labelled(&split.validation)?);
    let visited: Vec<Vec<i32>> = cells(&split.train).collect();
    let mut all = Vec::new();
    for (n, optimiser) in Optimiser::ALL.into_iter().enumerate() {
        for epochs in EPOCHS {
            let name = format!("{}-{epochs}", optimiser.name());
            let config = ClassifierConfig {
                hidden: vec![HIDDEN],
                classes: CLASSES,
                optimiser,
                learning_rate: optimiser.usual_rate(),
                epochs,
                minibatch: MINIBATCH,
            };
            let mut rng = Rng::new(origin.seed, &[n as u64, epochs as u64]);
            let network = classify(&seen, &config, &mut rng)?;
            let algorithm = format!("{}/{name}", origin.data);
            let provenance = Provenance {
                algorithm: algorithm.clone(),
                seed: origin.seed,
                steps: (epochs * split.train.len()) as u64,
                command: origin.command.clone(),
                parent: None,
                created_by: origin.created_by.clone(),
            };
            let options = Options {
                budget_visited: BUDGET_IMAGES,
                budget_off: BUDGET_OFF,
                seed: origin.seed,
                provenance,
                ..Options::default()
            };
            let snapshot = quantize(&network, &spec(&algorithm, split.train.max)?, &visited, &options)?;
            let trained = Trained { name, snapshot, accuracy: unseen.accuracy(&network) };
            on_trained(&trained);
            all.push(trained);
        }
    }
    Ok(all)
}

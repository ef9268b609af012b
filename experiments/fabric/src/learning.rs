//! Learns to predict flows' sizes from flows that have ended, which is the training of `size`.

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::recorder::Recorder;
use crate::replay::replay;
use crate::thresholds::SizedFlow;
use crate::trial::{PAST_FLOWS, Trial};
use ccplane_alg::Algorithm;
use ccplane_algs::{
    CENTRE, Predictor, SIZE_BOUND_Q16, SIZE_FEATURES, SIZE_INPUTS, SizeInAgent, SizeThresholds, log2_q16,
};
use ccplane_learn::{
    ActorCritic, Architecture, ImitateConfig, LearnError, Policy, PolicyError, Rng, Targets, regress,
};
use ccplane_netsim::workload::{FlowSizes, PPM, Split, Structure};
use ccplane_quantize::{Activation, Options, QuantizeError, quantize};
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, Snapshot, SpecError};
use std::sync::Arc;

/// A share of 1 as programs hold it.
const ONE_Q16: i32 = 1 << 16;
/// The logarithm of the deviation of actions, which nothing here draws.
const LOG_STD: f32 = -1.0;
/// Neurons of the hidden layers.
const HIDDEN: [usize; 2] = [32, 16];
/// Degrees to which sizes can be predicted in the workloads that a network is trained on, millionths.
const DEGREES_PPM: [u32; 5] = [0, 300_000, 600_000, 900_000, PPM];
/// Hosts of the fabric that it is trained on.
const HOSTS: usize = 8;
/// Load of that fabric, millionths.
const LOAD_PPM: u32 = 500_000;
/// Largest flow that it is trained on, bytes: of larger ones, what is predicted is at least that.
const LARGEST_BYTES: u64 = 100_000_000;

/// The settings of a training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LearningConfig {
    pub seed: u64,
    /// Flows of each workload at each degree.
    pub flows: usize,
    pub fit: ImitateConfig,
}

impl Default for LearningConfig {
    fn default() -> LearningConfig {
        let fit = ImitateConfig { epochs: 20, minibatch: 256, learning_rate: 3e-3, weight_decay: 1e-4 };
        LearningConfig { seed: 1, flows: 6000, fit }
    }
}

/// A network that predicts sizes, and how well.
pub struct Learned {
    pub policy: Policy,
    pub snapshot: Snapshot,
    /// Flows that it learned from.
    pub flows: usize,
    /// For each workload and degree: the deviation of the prediction at a flow's start on other flows, in octaves, and that of the mean of
    /// all sizes.
    pub deviations: Vec<Deviation>,
}

/// The error of predictions on one workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Deviation {
    pub workload: String,
    /// The degree to which sizes repeat, millionths.
    pub predictable_ppm: u32,
    /// Root of the mean squared error, octaves.
    pub octaves: f64,
    /// The same where the mean of all is predicted.
    pub of_mean_octaves: f64,
}

/// Reasons why nothing was learned.
#[derive(Debug, thiserror::Error)]
pub enum LearningError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
}

/// Runs a trial under `size-agent` with these thresholds, and returns the flows that ended with their decisions.
///
/// # Errors
/// As [`Trial::run`].
pub fn sized(
    trial: &Trial,
    thresholds: SizeThresholds,
    predictor: Option<Arc<dyn Predictor>>,
) -> Result<Vec<SizedFlow>, FabricError> {
    let recorder = Arc::new(predictor.map_or_else(Recorder::default, Recorder::of));
    let placed = SizeInAgent::new(thresholds, Arc::clone(&recorder) as Arc<dyn Predictor>);
    let placed: Arc<dyn Algorithm> = Arc::new(placed);
    trial.run(&[Arc::clone(&placed)], placed.name())?;
    Ok(recorder.take())
}

/// Runs the flows of a trial one after the other, without a network, and returns them with their decisions.
///
/// # Errors
/// A load or a structure outside its limits.
pub fn alone(
    trial: &Trial,
    thresholds: SizeThresholds,
    predictor: Option<Arc<dyn Predictor>>,
) -> Result<Vec<SizedFlow>, FabricError> {
    let mut arrivals = trial.arrivals()?;
    let past = arrivals.past(PAST_FLOWS);
    Ok(replay(&past, arrivals.take(trial.flows), &trial.fabric, thresholds, predictor))
}

/// The trial whose flows a network is trained on.
pub fn training_trial(
    sizes: &FlowSizes,
    predictable_ppm: u32,
    split: Split,
    seed: u64,
    flows: usize,
) -> Trial {
    Trial {
        fabric: Fabric::new(HOSTS, 10_000_000_000),
        sizes: sizes.at_most(LARGEST_BYTES),
        load_ppm: LOAD_PPM,
        structure: Structure::new(HOSTS, predictable_ppm),
        playback: None,
        split,
        seed,
        warm_up_flows: 0,
        flows,
        omniscient: None,
    }
}

/// Trains a network on flows of web search and data mining, to all degrees of predictability. The same settings give the same bits.
///
/// # Errors
/// A trial that cannot be run, or a network that cannot be learned or made integer.
pub fn learn(config: &LearningConfig, command: &str, told: &dyn Fn(&str)) -> Result<Learned, LearningError> {
    let mut flows = Vec::new();
    let workloads = [FlowSizes::web_search(), FlowSizes::data_mining()];
    for sizes in &workloads {
        for degree in DEGREES_PPM {
            let trial = training_trial(sizes, degree, Split::Train, config.seed, config.flows);
            flows.extend(alone(&trial, SizeThresholds::default(), None)?);
            told(&format!("{} to {} %: {} flows so far", sizes.name(), degree / 10_000, flows.len()));
        }
    }
    let spec = spec()?;
    let mut rng = Rng::new(config.seed, &[LEARNING]);
    let targets = targets(&flows, &spec);
    let architecture = Architecture {
        inputs: SIZE_INPUTS,
        hidden: HIDDEN.to_vec(),
        activation: Activation::Tanh,
        preference: None,
    };
    let initial = Policy::initial(architecture, spec.clone(), LOG_STD, config.seed)?;
    let mut policy = regress(&initial, &targets, &config.fit, &mut rng)?;
    policy.provenance = ccplane_learn::Provenance {
        seed: config.seed,
        steps: targets.targets.len() as u64,
        command: command.to_owned(),
        parent: None,
    };
    let decisions = flows.iter().flat_map(|flow| &flow.decisions);
    let seen = decisions.map(|decision| decision.inputs.to_vec()).collect();
    let snapshot = integers(&policy, seen, &mut rng)?;
    let mut deviations = Vec::new();
    for sizes in &workloads {
        for degree in DEGREES_PPM {
            let trial = training_trial(sizes, degree, Split::Validation, config.seed, config.flows / 4);
            let others = alone(&trial, SizeThresholds::default(), None)?;
            deviations.push(deviation(&policy, sizes.name(), degree, &others));
        }
    }
    Ok(Learned { policy, snapshot, flows: flows.len(), deviations })
}

/// The stream of a training's draws.
const LEARNING: u64 = 0x512e;
/// Decisions that the integers are fitted to.
const CALIBRATION: usize = 4096;

/// Inputs and output of the network.
fn spec() -> Result<PolicySpec, SpecError> {
    let feature = |name: &&str| Feature { name: (*name).to_owned(), lo: 0, hi: ONE_Q16 };
    let action = Action {
        map: ActionMap::None,
        bound_q16: SIZE_BOUND_Q16 as u32,
        step_q20: 1,
        knob_min: 1,
        knob_max: 1 << 35,
    };
    PolicySpec::new("size", SIZE_FEATURES.iter().map(feature).collect(), action)
}

fn target(size_bytes: u64) -> f32 {
    (log2_q16(size_bytes) - (CENTRE << 16)) as f32 / ONE_Q16 as f32
}

fn targets(flows: &[SizedFlow], spec: &PolicySpec) -> Targets {
    let mut all = Targets::default();
    for flow in flows {
        for decision in &flow.decisions {
            let mut seen = [0.0; SIZE_INPUTS];
            spec.normalise(&decision.inputs, &mut seen);
            all.observations.extend(seen);
            all.targets.push(target(flow.size_bytes));
        }
    }
    all
}

/// Quantizes a policy, fitted to so many of the inputs that decisions saw.
pub(crate) fn integers(
    policy: &Policy,
    mut seen: Vec<Vec<i32>>,
    rng: &mut Rng,
) -> Result<Snapshot, QuantizeError> {
    rng.shuffle(&mut seen);
    seen.truncate(CALIBRATION);
    let options = Options {
        seed: policy.provenance.seed,
        provenance: policy.snapshot_provenance(),
        ..Options::default()
    };
    quantize(policy.actor(), policy.spec(), &seen, &options)
}

fn deviation(policy: &Policy, workload: &str, predictable_ppm: u32, flows: &[SizedFlow]) -> Deviation {
    let mut network = ActorCritic::new(policy);
    let first = |flow: &SizedFlow| flow.decisions.first().map(|decision| decision.inputs);
    let mut pairs = Vec::new();
    for flow in flows {
        let Some(inputs) = first(flow) else { continue };
        let mut seen = [0.0; SIZE_INPUTS];
        policy.spec().normalise(&inputs, &mut seen);
        pairs.push((f64::from(network.mean(&seen)), f64::from(target(flow.size_bytes))));
    }
    let count = pairs.len().max(1) as f64;
    let mean = pairs.iter().map(|(_, target)| target).sum::<f64>() / count;
    let root = |error: &dyn Fn(&(f64, f64)) -> f64| {
        (pairs.iter().map(|p| error(p).powi(2)).sum::<f64>() / count).sqrt()
    };
    Deviation {
        workload: workload.to_owned(),
        predictable_ppm,
        octaves: root(&|(predicted, target)| predicted - target),
        of_mean_octaves: root(&|(_, target)| mean - target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole training takes ten seconds of a core.
    #[test]
    fn the_shipped_files_are_what_the_recorded_command_makes() {
        let policies = concat!(env!("CARGO_MANIFEST_DIR"), "/../../algs/policies");
        let readme = std::fs::read_to_string(format!("{policies}/README.md")).unwrap();
        let command = "ccplane train --algorithm size --seed 1";
        assert!(readme.contains(&format!("| size | `{command}` |")));
        let learned = learn(&LearningConfig::default(), command, &|_| {}).unwrap();
        let shipped = std::fs::read(format!("{policies}/size.snapshot")).unwrap();
        assert!(learned.snapshot.to_bytes() == shipped, "other bits than algs/policies/size.snapshot");
        let policy = std::fs::read(format!("{policies}/size.safetensors")).unwrap();
        assert!(
            learned.policy.to_bytes().unwrap() == policy,
            "other bits than algs/policies/size.safetensors"
        );
    }

    #[test]
    fn sizes_that_repeat_are_learned_and_the_same_seed_gives_the_same_bits() {
        let fit = ImitateConfig { epochs: 8, ..LearningConfig::default().fit };
        let config = LearningConfig { seed: 3, flows: 400, fit };
        let learned = learn(&config, "test", &|_| {}).unwrap();
        let at = |ppm| learned.deviations.iter().filter(move |d| d.predictable_ppm == ppm);
        for full in at(PPM) {
            assert!(full.octaves < 0.6 * full.of_mean_octaves, "{full:?}");
        }
        for none in at(0) {
            assert!(none.octaves < 1.1 * none.of_mean_octaves, "{none:?}");
        }
        let again = learn(&config, "test", &|_| {}).unwrap();
        assert_eq!(again.snapshot.to_bytes(), learned.snapshot.to_bytes());
        assert_eq!(again.policy, learned.policy);
    }
}

//! Learns to score paths from how long flows took on those that they were given, which is the training of `path`.
//!
//! A contextual bandit in rounds: the flows of the first take paths by their hash. Those of each later one take the
//! path of the network of the rounds before, but a share still takes one at random. Only the path that a flow took is
//! an example. What flows of its size and flows of its trial take on average is taken off, so that an example tells of
//! the path.

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::learning::{LearningError, integers};
use crate::play::on_cores;
use crate::trial::{Trial, TrialOutcome};
use crate::uplinks::Uplinks;
use ccplane_alg::Algorithm;
use ccplane_algs::{
    PATH_BOUND_Q16, PATH_FEATURES, PATH_INPUTS, Path, PathDecision, PathInAgent, PathJudge, PathOutcome,
    PathSeen,
};
use ccplane_core::NATIVE;
use ccplane_learn::{Architecture, ImitateConfig, Policy, Rng, Targets, math, regress};
use ccplane_netsim::workload::{FlowSizes, Split, Structure};
use ccplane_quantize::Activation;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, Snapshot, SpecError};
use std::sync::{Arc, Mutex, PoisonError};

const ONE_Q16: i32 = 1 << 16;
/// The logarithm of the deviation of actions, which nothing here draws.
const LOG_STD: f32 = -1.0;
/// Neurons of the hidden layers.
const HIDDEN: [usize; 2] = [16, 8];
/// Hosts of the fabric that it is trained on.
const HOSTS: usize = 16;
/// Loads of that fabric, millionths.
const LOADS_PPM: [u32; 2] = [500_000, 800_000];
/// Largest flow that it is trained on, bytes.
const LARGEST_BYTES: u64 = 20_000_000;
/// Share of flows that take a path at random in later rounds, Q16.
const EXPLORE_Q16: i64 = 1 << 14;
/// Examples of a trial for each of its flows, at most.
const OF_A_FLOW: usize = 4;
/// The stream of a training's draws.
const LEARNING: u64 = 0xba1a;
/// Classes of sizes whose averages are taken off: one for each power of two.
const SIZE_CLASSES: usize = 64;

/// The settings of a training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathingConfig {
    pub seed: u64,
    /// Flows of each trial.
    pub flows: usize,
    /// Rounds, the first included.
    pub rounds: u32,
    pub fit: ImitateConfig,
}

impl Default for PathingConfig {
    fn default() -> PathingConfig {
        let fit = ImitateConfig { epochs: 20, minibatch: 256, learning_rate: 3e-3, weight_decay: 1e-4 };
        PathingConfig { seed: 1, flows: 500, rounds: 3, fit }
    }
}

/// A network that scores paths.
pub struct LearnedPaths {
    pub policy: Policy,
    pub snapshot: Snapshot,
    /// Decisions that it learned from.
    pub examples: usize,
    /// For each state of the uplinks: the completion times of flows of the validation split to those under ECMP, geometric mean.
    pub to_ecmp: Vec<(Uplinks, f64)>,
}

/// A decision and how it turned out.
type Example = (PathDecision, PathOutcome);

/// Keeps outcomes, and chooses nothing.
#[derive(Default)]
struct Listener(Mutex<Vec<Example>>);

impl Listener {
    fn take(&self) -> Vec<Example> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PathJudge for Listener {
    fn choose(&self, _: &[PathSeen], _: i64, _: u32) -> Option<usize> {
        None
    }

    fn outcome(&self, decision: &PathDecision, outcome: &PathOutcome) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((*decision, *outcome));
    }
}

/// Trains a network on fabrics with even, slow and failing uplinks, on so many cores. The same settings give the same bits on any
/// number of cores.
///
/// # Errors
/// A trial that cannot be run, or a network that cannot be learned or made integer.
pub fn learn_paths(
    config: &PathingConfig,
    command: &str,
    cores: usize,
    told: &dyn Fn(&str),
) -> Result<LearnedPaths, LearningError> {
    let spec = spec()?;
    let mut rng = Rng::new(config.seed, &[LEARNING]);
    let architecture = Architecture {
        inputs: PATH_INPUTS,
        hidden: HIDDEN.to_vec(),
        activation: Activation::Tanh,
        preference: None,
    };
    let mut policy = Policy::initial(architecture, spec.clone(), LOG_STD, config.seed)?;
    // One list for each trial.
    let mut examples: Vec<Vec<Example>> = Vec::new();
    let mut learned: Option<(Snapshot, &'static [u8])> = None;
    for round in 0..config.rounds.max(1) {
        let bytes = learned.as_ref().map(|(_, bytes)| *bytes);
        let seed = config.seed.wrapping_add(u64::from(round));
        let one = |trial: &Trial| explore(trial, bytes, config.flows).map(Some);
        examples.extend(on_cores(&trials(config, Split::Train, seed), cores, &one)?.unwrap_or_default());
        let targets = targets(&examples, &spec);
        policy = regress(&policy, &targets, &config.fit, &mut rng)?;
        policy.provenance = ccplane_learn::Provenance {
            seed: config.seed,
            steps: targets.targets.len() as u64,
            command: command.to_owned(),
            parent: None,
        };
        let seen = examples.iter().flatten().map(|(decision, _)| decision.inputs.to_vec()).collect();
        let snapshot = integers(&policy, seen, &mut rng)?;
        // Built-in snapshots live as long as the process, and a training has a few small ones.
        let bytes: &'static [u8] = Box::leak(snapshot.to_bytes().into_boxed_slice());
        learned = Some((snapshot, bytes));
        told(&format!("round {}: {} decisions so far", round + 1, targets.targets.len()));
    }
    let (snapshot, bytes) = learned.ok_or(LearningError::Fabric(FabricError::NoSnapshot))?;
    let to_ecmp = validate(config, bytes, cores)?;
    Ok(LearnedPaths { policy, snapshot, examples: examples.iter().map(Vec::len).sum(), to_ecmp })
}

/// Runs a trial under this snapshot and at random, or under hashes without one; returns the decisions with their outcomes.
fn explore(
    trial: &Trial,
    snapshot: Option<&'static [u8]>,
    flows: usize,
) -> Result<Vec<Example>, FabricError> {
    let listener = Arc::new(Listener::default());
    let told = Arc::clone(&listener) as Arc<dyn PathJudge>;
    let algorithm: Arc<dyn Algorithm> = match snapshot {
        None => Arc::new(PathInAgent::new(told)),
        Some(bytes) => Arc::new(Path::default().in_training(bytes, EXPLORE_Q16, told)),
    };
    let name = algorithm.name();
    trial.run(&[algorithm], name)?;
    Ok(evenly(listener.take(), OF_A_FLOW * flows).collect())
}

/// Keeps so many examples at most, evenly over all: where flows fail for long, many others come meanwhile.
fn evenly(examples: Vec<Example>, most: usize) -> impl Iterator<Item = Example> {
    let step = examples.len().div_ceil(most.max(1)).max(1);
    examples.into_iter().step_by(step)
}

/// The states of uplinks that a network is trained on.
const UPLINKS: [Uplinks; 3] = [Uplinks::Even, Uplinks::Slow, Uplinks::Failed];

fn trials(config: &PathingConfig, split: Split, seed: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for uplinks in UPLINKS {
        for sizes in [FlowSizes::web_search(), FlowSizes::data_mining()] {
            for load_ppm in LOADS_PPM {
                let mut fabric = Fabric::new(HOSTS, 10_000_000_000);
                uplinks.apply(&mut fabric);
                trials.push(Trial {
                    fabric,
                    sizes: sizes.at_most(LARGEST_BYTES),
                    load_ppm,
                    structure: Structure::new(HOSTS, 0),
                    playback: None,
                    split,
                    seed,
                    warm_up_flows: 0,
                    flows: config.flows,
                    omniscient: None,
                });
            }
        }
    }
    trials
}

/// Holds a snapshot against ECMP on flows of the validation split.
fn validate(
    config: &PathingConfig,
    snapshot: &'static [u8],
    cores: usize,
) -> Result<Vec<(Uplinks, f64)>, FabricError> {
    let one = |trial: &Trial| {
        let silent = Arc::new(Listener::default());
        let path: Arc<dyn Algorithm> = Arc::new(Path::default().in_training(snapshot, 0, silent));
        let name = path.name();
        Ok(Some(mean_log(&trial.run(&[path], name)?) - mean_log(&trial.run(&[], NATIVE)?)))
    };
    let trials = trials(config, Split::Validation, config.seed);
    let found = on_cores(&trials, cores, &one)?.unwrap_or_default();
    let of_one = (found.len() / UPLINKS.len()).max(1);
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    Ok(UPLINKS.into_iter().zip(found.chunks(of_one).map(mean)).collect())
}

/// The mean logarithm of completion times; flows that did not end count with the time that they had.
fn mean_log(outcome: &TrialOutcome) -> f64 {
    let so_far_ns = |start_us: u64| outcome.duration_us.saturating_sub(start_us) * 1000;
    let of = |flow: &crate::Completion| {
        flow.completion_ns.unwrap_or_else(|| so_far_ns(flow.arrival.start_us)).max(1) as f64
    };
    let sum: f64 = outcome.completions.iter().map(|flow| math::ln(of(flow))).sum();
    sum / outcome.completions.len().max(1) as f64
}

/// Inputs and output of the network.
fn spec() -> Result<PolicySpec, SpecError> {
    let feature = |name: &&str| Feature { name: (*name).to_owned(), lo: 0, hi: ONE_Q16 };
    let bound_q16 = PATH_BOUND_Q16 as u32;
    let action = Action { map: ActionMap::None, bound_q16, step_q20: 1, knob_min: 1, knob_max: 1 << 35 };
    PolicySpec::new("path", PATH_FEATURES.iter().map(feature).collect(), action)
}

/// The examples of each trial with what flows of their size take on average taken off, then what is left on average in their trial.
fn targets(trials: &[Vec<Example>], spec: &PolicySpec) -> Targets {
    let class = |outcome: &PathOutcome| (outcome.bytes.max(1).ilog2() as usize).min(SIZE_CLASSES - 1);
    let cost = |outcome: &PathOutcome| outcome.cost_q16() as f32 / ONE_Q16 as f32;
    let (mut sums, mut counts) = ([0.0f64; SIZE_CLASSES], [0.0f64; SIZE_CLASSES]);
    for (_, outcome) in trials.iter().flatten() {
        sums[class(outcome)] += f64::from(cost(outcome));
        counts[class(outcome)] += 1.0;
    }
    let mut all = Targets::default();
    for trial in trials {
        let left =
            |outcome: &PathOutcome| cost(outcome) - (sums[class(outcome)] / counts[class(outcome)]) as f32;
        let mean =
            trial.iter().map(|(_, outcome)| f64::from(left(outcome))).sum::<f64>() / trial.len() as f64;
        for (decision, outcome) in trial {
            let mut seen = [0.0; PATH_INPUTS];
            spec.normalise(&decision.inputs, &mut seen);
            all.observations.extend(seen);
            all.targets.push(left(outcome) - mean as f32);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_algs::{JITTER_Q16, SnapshotJudge};

    #[test]
    fn a_path_that_loses_scores_worse_and_the_same_seed_gives_the_same_bits() {
        let fit = ImitateConfig { epochs: 6, ..PathingConfig::default().fit };
        let config = PathingConfig { seed: 3, flows: 60, rounds: 2, fit };
        let learned = learn_paths(&config, "test", 2, &|_| {}).unwrap();
        let judge = SnapshotJudge::new(learned.snapshot.clone(), JITTER_Q16);
        let good = PathSeen { rtt_us: 40, marked: 0, lost: 0, bytes_in_flight: 0 };
        let bad = PathSeen { rtt_us: 400, marked: 60_000, lost: 20_000, bytes_in_flight: 2_000_000 };
        for hash in [1, 77_777, 0xdead_beef] {
            assert_eq!(judge.choose(&[bad, good, bad], 100_000, hash), Some(1));
        }
        let again = learn_paths(&config, "test", 1, &|_| {}).unwrap();
        assert_eq!(again.snapshot.to_bytes(), learned.snapshot.to_bytes());
    }

    #[test]
    fn examples_are_thinned_evenly_and_freed_of_what_their_size_takes() {
        let example = |n: u64, bytes| {
            let decision = PathDecision { inputs: [n as i32; PATH_INPUTS], snapshot: 0, action_q16: 0 };
            (decision, PathOutcome { elapsed_us: 100 << n, bytes })
        };
        let all: Vec<Example> = (0..10).map(|n| example(n, 1000)).collect();
        let kept: Vec<i32> = evenly(all, 4).map(|(decision, _)| decision.inputs[0]).collect();
        assert_eq!(kept, [0, 3, 6, 9]);
        let trials = [
            vec![example(0, 1000), example(2, 1000)],
            vec![example(4, 1000), example(6, 1000), example(1, 1 << 20)],
        ];
        let targets = targets(&trials, &spec().unwrap());
        // Four times the time of another flow of its size and trial: an octave to either side of their mean.
        let near = |found: f32, wanted: f32| assert!((found - wanted).abs() < 0.1, "{found} {wanted}");
        near(targets.targets[0], -1.0);
        near(targets.targets[1], 1.0);
        near(targets.targets[3] - targets.targets[2], 2.0);
        let sums = [&targets.targets[..2], &targets.targets[2..]].map(|of| of.iter().sum::<f32>());
        sums.into_iter().for_each(|sum| near(sum, 0.0));
    }
}

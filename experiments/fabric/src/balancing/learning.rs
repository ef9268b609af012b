//! Learns to score paths from how long flows took on those that they were given, which is the training of `path`.
//!
//! A contextual bandit in rounds: the flows of the first take paths by their hash, those of each later one the path of the network of the
//! rounds before, but for a share of them that still take one at random. Only the path that a flow took is an example. What flows of its
//! size take on average is taken off, so that an example tells of the path.

use super::uplinks::Uplinks;
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::learning::{LearningError, integers};
use crate::trial::Trial;
use ccplane_alg::Algorithm;
use ccplane_algs::{
    PATH_BOUND_Q16, PATH_FEATURES, PATH_INPUTS, Path, PathDecision, PathInAgent, PathJudge, PathOutcome,
    PathSeen,
};
use ccplane_learn::{Architecture, ImitateConfig, Policy, Rng, Targets, regress};
use ccplane_netsim::workload::{FlowSizes, Split, Structure};
use ccplane_quantize::Activation;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, Snapshot, SpecError};
use std::sync::{Arc, Mutex, PoisonError};

const ONE_Q16: i32 = 1 << 16;
/// The logarithm of the deviation of actions, which nothing here draws.
const LOG_STD: f32 = -1.0;
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
const OF_A_FLOW: usize = 2;
/// The stream of a training's draws.
const LEARNING: u64 = 0xba1a;
/// Classes of sizes whose averages are taken off: one for each power of two.
const SIZE_CLASSES: usize = 64;

/// The settings of a training.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BalancingConfig {
    pub seed: u64,
    /// Flows of each trial.
    pub flows: usize,
    /// Rounds, the first included.
    pub rounds: u32,
    pub fit: ImitateConfig,
}

impl Default for BalancingConfig {
    fn default() -> BalancingConfig {
        let fit = ImitateConfig { epochs: 20, minibatch: 256, learning_rate: 3e-3, weight_decay: 1e-4 };
        BalancingConfig { seed: 1, flows: 3000, rounds: 3, fit }
    }
}

/// A network that scores paths.
pub struct LearnedPaths {
    pub policy: Policy,
    pub snapshot: Snapshot,
    /// Decisions that it learned from.
    pub examples: usize,
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

/// Trains a network on fabrics with even, slow and failing uplinks. The same settings give the same bits.
///
/// # Errors
/// A trial that cannot be run, or a network that cannot be learned or made integer.
pub fn learn_paths(
    config: &BalancingConfig,
    command: &str,
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
    let mut examples: Vec<Example> = Vec::new();
    let mut snapshot = None;
    for round in 0..config.rounds.max(1) {
        let listener = Arc::new(Listener::default());
        let algorithm: Arc<dyn Algorithm> = match &snapshot {
            None => Arc::new(PathInAgent::new(Arc::clone(&listener) as Arc<dyn PathJudge>)),
            Some(snapshot) => {
                // Built-in snapshots live as long as the process, and a training has a few small ones.
                let bytes: &'static [u8] = Box::leak(Snapshot::to_bytes(snapshot).into_boxed_slice());
                let told = Arc::clone(&listener) as Arc<dyn PathJudge>;
                Arc::new(Path::default().in_training(bytes, EXPLORE_Q16, told))
            }
        };
        for trial in trials(config, round) {
            trial.run(&[Arc::clone(&algorithm)], algorithm.name())?;
            examples.extend(evenly(listener.take(), OF_A_FLOW * config.flows));
        }
        let targets = targets(&examples, &spec);
        policy = regress(&policy, &targets, &config.fit, &mut rng)?;
        policy.provenance = ccplane_learn::Provenance {
            seed: config.seed,
            steps: targets.targets.len() as u64,
            command: command.to_owned(),
            parent: None,
        };
        let seen = examples.iter().map(|(decision, _)| decision.inputs.to_vec()).collect();
        snapshot = Some(integers(&policy, seen, &mut rng)?);
        told(&format!("round {}: {} decisions so far", round + 1, examples.len()));
    }
    let snapshot = snapshot.ok_or(LearningError::Fabric(FabricError::NoSnapshot))?;
    Ok(LearnedPaths { policy, snapshot, examples: examples.len() })
}

/// Keeps so many examples at most, evenly over all: where flows fail for long, many others come meanwhile.
fn evenly(examples: Vec<Example>, most: usize) -> impl Iterator<Item = Example> {
    let step = examples.len().div_ceil(most.max(1)).max(1);
    examples.into_iter().step_by(step)
}

fn trials(config: &BalancingConfig, round: u32) -> Vec<Trial> {
    let mut trials = Vec::new();
    for uplinks in [Uplinks::Even, Uplinks::Slow, Uplinks::Failed] {
        for sizes in [FlowSizes::web_search(), FlowSizes::data_mining()] {
            for load_ppm in LOADS_PPM {
                let mut fabric = Fabric::new(HOSTS, 10_000_000_000);
                uplinks.apply(&mut fabric);
                trials.push(Trial {
                    fabric,
                    sizes: sizes.at_most(LARGEST_BYTES),
                    load_ppm,
                    structure: Structure::new(HOSTS, 0),
                    split: Split::Train,
                    seed: config.seed.wrapping_add(u64::from(round)),
                    warm_up_flows: 0,
                    flows: config.flows,
                    omniscient: None,
                });
            }
        }
    }
    trials
}

/// Inputs and output of the network.
fn spec() -> Result<PolicySpec, SpecError> {
    let feature = |name: &&str| Feature { name: (*name).to_owned(), lo: 0, hi: ONE_Q16 };
    let bound_q16 = PATH_BOUND_Q16 as u32;
    let action = Action { map: ActionMap::None, bound_q16, step_q20: 1, knob_min: 1, knob_max: 1 << 35 };
    PolicySpec::new("path", PATH_FEATURES.iter().map(feature).collect(), action)
}

/// The examples with what flows of their size take on average taken off.
fn targets(examples: &[Example], spec: &PolicySpec) -> Targets {
    let class = |outcome: &PathOutcome| (outcome.bytes.max(1).ilog2() as usize).min(SIZE_CLASSES - 1);
    let cost = |outcome: &PathOutcome| outcome.cost_q16() as f32 / ONE_Q16 as f32;
    let (mut sums, mut counts) = ([0.0f64; SIZE_CLASSES], [0.0f64; SIZE_CLASSES]);
    for (_, outcome) in examples {
        sums[class(outcome)] += f64::from(cost(outcome));
        counts[class(outcome)] += 1.0;
    }
    let mut all = Targets::default();
    for (decision, outcome) in examples {
        let mut seen = [0.0; PATH_INPUTS];
        spec.normalise(&decision.inputs, &mut seen);
        all.observations.extend(seen);
        let mean = (sums[class(outcome)] / counts[class(outcome)]) as f32;
        all.targets.push(cost(outcome) - mean);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_algs::{JITTER_Q16, SnapshotJudge};

    #[test]
    fn a_path_that_loses_scores_worse_and_the_same_seed_gives_the_same_bits() {
        let fit = ImitateConfig { epochs: 6, ..BalancingConfig::default().fit };
        let config = BalancingConfig { seed: 3, flows: 300, rounds: 2, fit };
        let learned = learn_paths(&config, "test", &|_| {}).unwrap();
        let judge = SnapshotJudge::new(learned.snapshot.clone(), JITTER_Q16);
        let good = PathSeen { rtt_us: 40, marked: 0, lost: 0, bytes_in_flight: 0 };
        let bad = PathSeen { rtt_us: 400, marked: 60_000, lost: 20_000, bytes_in_flight: 2_000_000 };
        for hash in [1, 77_777, 0xdead_beef] {
            assert_eq!(judge.choose(&[bad, good, bad], 100_000, hash), Some(1));
        }
        let again = learn_paths(&config, "test", &|_| {}).unwrap();
        assert_eq!(again.snapshot.to_bytes(), learned.snapshot.to_bytes());
    }
}

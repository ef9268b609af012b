//! The network of `neural` learns: flows on training links, where it is known when rivals are there.
//!
//! The first round plays each link three times: with no verdict (so as `dual`), with the verdict that nobody is there, and with the
//! verdict that somebody is. Each later round plays further links with the network of the rounds before (DAgger: Ross, Gordon and
//! Bagnell, AISTATS 2011), so that it learns from the states that it leads to. Each interval is an example, labelled by whether a
//! flow of Reno or CUBIC shares the link then; beside BBR, where tests decide better than a verdict, half of the labels are yes.
//!
//! Where the network has no opinion ([`calibration`]) is decided by the same examples: the first round's set the ranges of the
//! features, all rounds' the number of inputs that may be beyond them.

mod calibration;
mod checkpoint;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ccplane_alg::{Algorithm, FlowInfo};
use ccplane_algs::{BOUND_Q16, DEPTH, FEATURES, INPUTS, Judge, NeuralInAgent};
use ccplane_learn::{
    ActorCritic, Architecture, Examples, ImitateConfig, LearnError, Policy, PolicyError, Rng, imitate,
};
use ccplane_quantize::{Activation, Options, QuantizeError, quantize};
use ccplane_snapshot::{Action, ActionMap, Feature, Guards, PolicySpec, Snapshot, SpecError};
use sha2::{Digest, Sha256};

use calibration::{beyond, may_be_beyond, ranges};
use checkpoint::Checkpoint;
pub use checkpoint::CheckpointError;

use crate::error::LeagueError;
use crate::family::Family;
use crate::link::FamilyLink;
use crate::play::{Fixture, on_cores};
use crate::set::Set;
use crate::traces::Traces;

/// The name under which the judged flows play.
const NAME: &str = "neural-agent";
/// The first link of each family that is trained on; people look at smaller ones.
const FIRST_LINK: u32 = 1000;
/// Examples of one flow's run that are kept, evenly over it.
const OF_A_RUN: usize = 400;
/// Examples of a family, a behaviour and a label in one pass: so many at most.
const OF_A_GROUP: usize = 6000;
/// States that integer scales are fitted to.
const VISITED: usize = 8000;
/// An interval's features are -1 to 1.
const ONE_Q16: i32 = 1 << 16;

/// The way in which the network is trained.
#[derive(Clone, PartialEq, Debug)]
pub struct JudgingConfig {
    /// Seeds the initial weights and the order of examples.
    pub seed: u64,
    /// Links of each family in a round.
    pub links: u32,
    /// Rounds, the first included.
    pub rounds: u32,
    /// The way in which each round's network is fitted.
    pub fit: ImitateConfig,
}

impl Default for JudgingConfig {
    fn default() -> JudgingConfig {
        JudgingConfig { seed: 1, links: 40, rounds: 3, fit: ImitateConfig::default() }
    }
}

/// The file in which a training keeps its state after each round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keeping {
    /// The checkpoint.
    pub file: PathBuf,
    /// Whether it goes on from the state that is there.
    pub resume: bool,
}

/// Reasons why no network was trained.
#[derive(Debug, thiserror::Error)]
pub enum JudgingError {
    /// A link could not be played.
    #[error(transparent)]
    League(#[from] LeagueError),
    /// Its state could not be kept or taken up.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The network could not be fitted.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// The network is refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The network's inputs are refused.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The network cannot be quantised.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
}

/// The judge of the flows of one run.
#[derive(Clone)]
enum Verdicts {
    /// No judge, as in `dual`.
    None,
    /// Always says that there are no rivals.
    Alone,
    /// Always says that there are rivals.
    Rivals,
    /// Asks a network, which has no opinion where more inputs than this are beyond their ranges.
    Network(Arc<Policy>, u32),
}

/// A judge that records the states that it was asked about.
struct Recorder {
    verdicts: Verdicts,
    state: Mutex<JudgeState>,
}

/// The state of a run's judge.
struct JudgeState {
    network: Option<ActorCritic>,
    /// When each interval ended, microseconds, and its cells.
    states: Vec<(u64, [i32; INPUTS])>,
}

impl Recorder {
    fn new(verdicts: Verdicts) -> Recorder {
        let network = match &verdicts {
            Verdicts::Network(policy, _) => Some(ActorCritic::new(policy)),
            _ => None,
        };
        Recorder { verdicts, state: Mutex::new(JudgeState { network, states: Vec::new() }) }
    }
}

impl Judge for Recorder {
    fn action_q16(&self, _info: &FlowInfo, now_us: u64, cells: &[i32; INPUTS]) -> i32 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let JudgeState { network, states } = &mut *state;
        states.push((now_us, *cells));
        match (&self.verdicts, network) {
            (Verdicts::Alone, _) => -BOUND_Q16,
            (Verdicts::Rivals, _) => BOUND_Q16,
            (Verdicts::Network(policy, may_be), _) if beyond(policy.spec(), cells) > *may_be => 0,
            (Verdicts::Network(policy, _), Some(network)) => {
                let mut seen = [0.0; INPUTS];
                policy.spec().normalise(cells, &mut seen);
                let bound = BOUND_Q16 as f32;
                (network.mean(&seen) * ONE_Q16 as f32).clamp(-bound, bound) as i32
            }
            _ => 0,
        }
    }
}

/// An interval of a flow, and whether rivals were there.
#[derive(Clone, PartialEq, Debug)]
struct Example {
    cells: [i32; INPUTS],
    rivals: bool,
}

/// Examples by family, behaviour and label.
type Groups = BTreeMap<(Family, u8, bool), Vec<Example>>;

/// The number of intervals on which the sign of a network's action is right.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    pub intervals: usize,
    /// Intervals on which the verdict is right.
    pub right: usize,
    /// Intervals on which it is wrong with certainty (odds of e squared).
    pub sure_and_wrong: usize,
}

/// A network and how well it judges.
#[derive(Debug)]
pub struct Judged {
    /// The network in floating point.
    pub policy: Policy,
    /// The quantised network.
    pub snapshot: Snapshot,
    /// Verdicts on validation links, by family and by whether rivals were there.
    pub counts: BTreeMap<(&'static str, bool), Count>,
}

/// Trains the network. `told` is called with each round's examples.
///
/// # Errors
/// A link cannot be played, the network is refused, or the state cannot be kept or taken up.
pub fn judging(
    config: &JudgingConfig,
    provenance: &ccplane_learn::Provenance,
    traces: &Traces,
    cores: usize,
    keeping: Option<&Keeping>,
    told: &dyn Fn(u32, usize),
) -> Result<Judged, JudgingError> {
    let architecture =
        Architecture { inputs: INPUTS, hidden: vec![32, 16], activation: Activation::Tanh, preference: None };
    let initial = |spec| Policy::initial(architecture.clone(), spec, -1.0, config.seed);
    let fingerprint = fingerprint(config);
    let mut state = match keeping {
        Some(Keeping { file, resume: true }) => Checkpoint::read(file, &fingerprint)?,
        _ => {
            let policy = initial(spec(&[(-ONE_Q16, ONE_Q16); FEATURES.len()])?)?;
            Checkpoint { fingerprint, rounds: 0, policy, groups: Groups::new() }
        }
    };
    for round in state.rounds..config.rounds {
        let numbers = FIRST_LINK + round * config.links..FIRST_LINK + (round + 1) * config.links;
        let behaviours = match round {
            0 => vec![Verdicts::None, Verdicts::Alone, Verdicts::Rivals],
            _ => vec![judge(&state)],
        };
        for verdicts in behaviours {
            collect(Set::Training, numbers.clone(), &verdicts, traces, cores, &mut state.groups)?;
        }
        told(round, state.groups.values().map(Vec::len).sum());
        let mut rng = Rng::new(config.seed, &[u64::from(round)]);
        let first = match round {
            0 => initial(spec(&ranges(&state.groups))?)?,
            _ => initial(state.policy.spec().clone())?,
        };
        let examples = balanced(&state.groups, first.spec(), &mut rng);
        state.policy = imitate(&first, &examples, &config.fit, &mut rng)?;
        state.rounds = round + 1;
        if let Some(keeping) = keeping {
            state.write(&keeping.file)?;
        }
    }
    let network = judge(&state);
    let Checkpoint { mut policy, groups, .. } = state;
    policy.provenance = ccplane_learn::Provenance {
        seed: config.seed,
        steps: groups.values().map(|examples| examples.len() as u64).sum(),
        ..provenance.clone()
    };
    let mut visited: Vec<&Example> = groups.values().flatten().collect();
    Rng::new(config.seed, &[VISITED as u64]).shuffle(&mut visited);
    let visited: Vec<Vec<i32>> = visited.iter().take(VISITED).map(|e| e.cells.to_vec()).collect();
    let options = Options {
        seed: config.seed,
        // A decision beyond the ranges is no opinion, and the flow is dual's: to give up its program would do it harm.
        guards: Some(Guards { trip_limit: 0, clip_limit: may_be_beyond(policy.spec(), &groups) }),
        provenance: policy.snapshot_provenance(),
        ..Options::default()
    };
    let snapshot = quantize(policy.actor(), policy.spec(), &visited, &options)?;
    let mut held_out = Groups::new();
    collect(Set::Validation, 0..config.links.min(12), &network, traces, cores, &mut held_out)?;
    Ok(Judged { counts: counts(&policy, &held_out), policy, snapshot })
}

/// Everything that a training's bits depend on: its settings and the program of its flows.
fn fingerprint(config: &JudgingConfig) -> String {
    let judged = NeuralInAgent::new(Arc::new(Recorder::new(Verdicts::None)));
    let mut digest = Sha256::new();
    for program in judged.programs() {
        digest.update(program.source);
    }
    let program: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{config:?}, program {program}")
}

/// The network so far as the judge of the next flows.
fn judge(state: &Checkpoint) -> Verdicts {
    let may_be = may_be_beyond(state.policy.spec(), &state.groups);
    Verdicts::Network(Arc::new(state.policy.clone()), may_be)
}

/// The inputs, with these ranges of each interval's features, and the output of the network.
fn spec(ranges: &[(i32, i32); FEATURES.len()]) -> Result<PolicySpec, SpecError> {
    let feature =
        |n: usize, name: &str, (lo, hi): (i32, i32)| Feature { name: format!("{name}[{n}]"), lo, hi };
    let interval = |n| FEATURES.iter().zip(ranges).map(move |(name, range)| feature(n, name, *range));
    let inputs = (0..DEPTH).flat_map(interval).collect();
    let action = Action {
        map: ActionMap::None,
        bound_q16: BOUND_Q16 as u32,
        step_q20: 1,
        knob_min: 1,
        knob_max: 1 << 35,
    };
    PolicySpec::new("neural", inputs, action)
}

/// Plays these links of all families, and adds the flows' intervals.
fn collect(
    set: Set,
    numbers: std::ops::Range<u32>,
    verdicts: &Verdicts,
    traces: &Traces,
    cores: usize,
    groups: &mut Groups,
) -> Result<(), LeagueError> {
    let mut fixtures = Vec::new();
    for family in Family::ALL.iter().copied().filter(|family| *family != Family::Recorded) {
        for number in numbers.clone() {
            fixtures
                .push(Fixture { link: FamilyLink::new(family, set, number)?, algorithm: NAME.to_owned() });
        }
    }
    let met: Mutex<Vec<(FamilyLink, Vec<Example>)>> = Mutex::default();
    on_cores(&fixtures, cores, &|fixture| {
        let recorder = Arc::new(Recorder::new(verdicts.clone()));
        let judged = NeuralInAgent::new(Arc::clone(&recorder) as Arc<dyn Judge>);
        let mut algorithms = ccplane_algs::all();
        algorithms.retain(|algorithm| algorithm.name() != NAME);
        algorithms.push(Arc::new(judged) as Arc<dyn Algorithm>);
        let cell = fixture.play(&algorithms, traces)?;
        let plan = fixture.link.plan(&[NAME], "sim", &algorithms, traces)?;
        let states =
            std::mem::take(&mut recorder.state.lock().unwrap_or_else(PoisonError::into_inner).states);
        let there = |kinds: &[&str], now_us: u64| {
            let mut rivals = plan.scenarios.iter().flat_map(|scenario| &scenario.background);
            rivals.any(|b| {
                kinds.contains(&b.algorithm.as_str()) && (b.start_ms..b.stop_ms).contains(&(now_us / 1000))
            })
        };
        let step = states.len().div_ceil(OF_A_RUN).max(1);
        let examples = states.iter().enumerate().step_by(step).map(|(n, (now_us, cells))| {
            let yes_and_no = there(&["bbr"], *now_us) && (n / step).is_multiple_of(2);
            Example { cells: *cells, rivals: yes_and_no || there(&["reno", "cubic"], *now_us) }
        });
        met.lock().unwrap_or_else(PoisonError::into_inner).push((fixture.link, examples.collect()));
        Ok(cell)
    })?;
    let mut met = met.into_inner().unwrap_or_else(PoisonError::into_inner);
    met.sort_by_key(|(link, _)| *link);
    let behaviour = match verdicts {
        Verdicts::None => 0,
        Verdicts::Alone => 1,
        Verdicts::Rivals => 2,
        Verdicts::Network(..) => 3,
    };
    for (link, examples) in met {
        // A competing flow of its own kind counts as a rival, as CUBIC does.
        if behaviour == 2 && matches!(link.family(), Family::Own | Family::OwnRtts) {
            continue;
        }
        for example in examples {
            groups.entry((link.family(), behaviour, example.rivals)).or_default().push(example);
        }
    }
    Ok(())
}

/// So many of each group at most, drawn.
fn balanced(groups: &Groups, spec: &PolicySpec, rng: &mut Rng) -> Examples {
    let mut examples = Examples::default();
    for group in groups.values() {
        let mut order: Vec<usize> = (0..group.len()).collect();
        rng.shuffle(&mut order);
        for n in order.into_iter().take(OF_A_GROUP) {
            let mut seen = [0.0; INPUTS];
            spec.normalise(&group[n].cells, &mut seen);
            examples.observations.extend(seen);
            examples.labels.push(group[n].rivals);
        }
    }
    examples
}

fn counts(policy: &Policy, groups: &Groups) -> BTreeMap<(&'static str, bool), Count> {
    /// A verdict with odds of e squared.
    const SURE: f32 = 2.0;
    let mut network = ActorCritic::new(policy);
    let mut counts: BTreeMap<(&'static str, bool), Count> = BTreeMap::new();
    for ((family, _, rivals), examples) in groups {
        let count = counts.entry((family.name(), *rivals)).or_default();
        for example in examples {
            let mut seen = [0.0; INPUTS];
            policy.spec().normalise(&example.cells, &mut seen);
            let odds = network.mean(&seen);
            count.intervals += 1;
            count.right += usize::from((odds > 0.0) == *rivals);
            count.sure_and_wrong += usize::from(if *rivals { odds < -SURE } else { odds > SURE });
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_learns_to_tell_rivals_and_cores_do_not_matter() {
        let train = |links, epochs, cores| {
            let fit = ImitateConfig { epochs, ..ImitateConfig::default() };
            let config = JudgingConfig { links, rounds: 2, fit, ..JudgingConfig::default() };
            let provenance = ccplane_learn::Provenance::default();
            judging(&config, &provenance, &Traces::default(), cores, None, &|_, _| {}).unwrap()
        };
        let judged = train(4, 30, 2);
        let share = |rivals| {
            let counts =
                judged.counts.iter().filter(|((family, yes), _)| *family != "beside-bbr" && *yes == rivals);
            let (right, all) =
                counts.fold((0, 0), |(right, all), (_, count)| (right + count.right, all + count.intervals));
            assert!(all > 50, "{:?}", judged.counts);
            right as f64 / f64::from(u32::try_from(all).unwrap())
        };
        let (there, not) = (share(true), share(false));
        eprintln!("right where rivals are: {there:.2}, where none are: {not:.2}");
        assert!(there > 0.5 && not > 0.8, "{there} {not}");
        assert_eq!(train(1, 2, 1).snapshot.to_bytes(), train(1, 2, 2).snapshot.to_bytes());
    }

    #[test]
    fn a_training_that_was_cut_off_goes_on_to_the_same_bits() {
        let fit = ImitateConfig { epochs: 2, ..ImitateConfig::default() };
        let config = JudgingConfig { links: 1, rounds: 3, fit, ..JudgingConfig::default() };
        let train = |config: &JudgingConfig, keeping: Option<&Keeping>, told: &dyn Fn(u32, usize)| {
            let provenance = ccplane_learn::Provenance::default();
            judging(config, &provenance, &Traces::default(), 2, keeping, told)
        };
        let bits = |judged: Judged| (judged.policy.to_bytes().unwrap(), judged.snapshot.to_bytes());
        let whole = bits(train(&config, None, &|_, _| {}).unwrap());

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("neural.checkpoint");
        let keeping = |resume| Some(Keeping { file: file.clone(), resume });
        let none = train(&config, keeping(true).as_ref(), &|_, _| {}).unwrap_err();
        assert!(none.to_string().contains("neural.checkpoint"), "{none}");
        let cut_off = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            train(&config, keeping(false).as_ref(), &|round, _| assert!(round < 2, "cut off"))
        }));
        assert!(cut_off.is_err());

        let rounds = Mutex::new(Vec::new());
        let resumed = train(&config, keeping(true).as_ref(), &|round, _| rounds.lock().unwrap().push(round));
        assert_eq!(bits(resumed.unwrap()), whole);
        assert_eq!(rounds.into_inner().unwrap(), [2]);

        let other = JudgingConfig { seed: 2, ..config };
        let refused = train(&other, keeping(true).as_ref(), &|_, _| {}).unwrap_err();
        assert!(refused.to_string().contains("other settings"), "{refused}");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        assert!(matches!(
            train(&other, keeping(true).as_ref(), &|_, _| {}).unwrap_err(),
            JudgingError::Checkpoint(CheckpointError::Safetensors(_))
        ));
    }
}

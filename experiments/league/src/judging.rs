//! How `neural`'s network learns: flows on training links, where it is known when rivals are there.
//!
//! The first round plays each link three times: with no verdict (so as `dual`), with the verdict that nobody is there, and with the
//! verdict that somebody is. Each later round plays further links with the network of the rounds before (DAgger: Ross, Gordon and
//! Bagnell, AISTATS 2011), so that it learns from the states that it leads to. Each interval is an example, labelled by whether a
//! flow of Reno or CUBIC shares the link then; beside BBR, where tests decide better than a verdict, half of the labels are yes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ccplane_alg::{Algorithm, FlowInfo};
use ccplane_algs::{BOUND_Q16, DEPTH, FEATURES, INPUTS, Judge, NeuralInAgent};
use ccplane_learn::{
    ActorCritic, Architecture, Examples, ImitateConfig, LearnError, Policy, PolicyError, Rng, imitate,
};
use ccplane_quantize::{Activation, Options, QuantizeError, quantize};
use ccplane_snapshot::{Action, ActionMap, Feature, Guards, PolicySpec, Snapshot, SpecError};

use crate::error::LeagueError;
use crate::family::Family;
use crate::link::{Link, Set};
use crate::play::{Fixture, on_cores};
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

/// How the network is trained.
#[derive(Clone, PartialEq, Debug)]
pub struct JudgingConfig {
    /// What the first weights and the order of examples come from.
    pub seed: u64,
    /// Links of each family in a round.
    pub links: u32,
    /// Rounds, the first included.
    pub rounds: u32,
    /// How each round's network is fitted.
    pub fit: ImitateConfig,
}

impl Default for JudgingConfig {
    fn default() -> JudgingConfig {
        JudgingConfig { seed: 1, links: 40, rounds: 3, fit: ImitateConfig::default() }
    }
}

/// Why no network was trained.
#[derive(Debug, thiserror::Error)]
pub enum JudgingError {
    /// A link could not be played.
    #[error(transparent)]
    League(#[from] LeagueError),
    /// The network could not be fitted.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// The network is none.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Its inputs are none.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// It cannot be quantised.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
}

/// What judges the flows of one run.
#[derive(Clone)]
enum Verdicts {
    /// Nobody: dual.
    None,
    /// Nobody is ever there.
    Alone,
    /// Somebody always is.
    Rivals,
    /// A network.
    Network(Arc<Policy>),
}

/// Judges, and remembers what it was asked.
struct Recorder {
    verdicts: Verdicts,
    asked: Mutex<Asked>,
}

/// What a run's judge keeps.
struct Asked {
    network: Option<ActorCritic>,
    /// When each interval ended, microseconds, and its cells.
    states: Vec<(u64, [i32; INPUTS])>,
}

impl Recorder {
    fn new(verdicts: Verdicts) -> Recorder {
        let network = match &verdicts {
            Verdicts::Network(policy) => Some(ActorCritic::new(policy)),
            _ => None,
        };
        Recorder { verdicts, asked: Mutex::new(Asked { network, states: Vec::new() }) }
    }
}

impl Judge for Recorder {
    fn action_q16(&self, _info: &FlowInfo, now_us: u64, cells: &[i32; INPUTS]) -> i32 {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let Asked { network, states } = &mut *asked;
        states.push((now_us, *cells));
        match (&self.verdicts, network) {
            (Verdicts::Alone, _) => -BOUND_Q16,
            (Verdicts::Rivals, _) => BOUND_Q16,
            (Verdicts::Network(policy), Some(network)) => {
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
#[derive(Clone)]
struct Example {
    cells: [i32; INPUTS],
    rivals: bool,
}

/// Examples by family, behaviour and label.
type Groups = BTreeMap<(Family, u8, bool), Vec<Example>>;

/// How often the sign of a network's action is right.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Intervals.
    pub intervals: usize,
    /// Those on which it says what is so.
    pub right: usize,
    /// Those on which it is sure (odds of e squared) of what is not so.
    pub sure_and_wrong: usize,
}

/// A network and how well it judges.
#[derive(Debug)]
pub struct Judged {
    /// The float network.
    pub policy: Policy,
    /// Its integers.
    pub snapshot: Snapshot,
    /// On validation links that it judged itself: by family, and by whether rivals were there.
    pub counts: BTreeMap<(&'static str, bool), Count>,
}

/// Trains the network. `told` hears of each round's examples.
///
/// # Errors
/// The first link that cannot be played; what does not make a network.
pub fn judging(
    config: &JudgingConfig,
    provenance: &ccplane_learn::Provenance,
    traces: &Traces,
    cores: usize,
    told: &dyn Fn(u32, usize),
) -> Result<Judged, JudgingError> {
    let architecture =
        Architecture { inputs: INPUTS, hidden: vec![32, 16], activation: Activation::Tanh, preference: None };
    let first = Policy::initial(architecture, spec()?, -1.0, config.seed)?;
    let mut groups = Groups::new();
    let mut policy = first.clone();
    for round in 0..config.rounds {
        let numbers = FIRST_LINK + round * config.links..FIRST_LINK + (round + 1) * config.links;
        let behaviours = match round {
            0 => vec![Verdicts::None, Verdicts::Alone, Verdicts::Rivals],
            _ => vec![Verdicts::Network(Arc::new(policy.clone()))],
        };
        for verdicts in behaviours {
            collect(Set::Training, numbers.clone(), &verdicts, traces, cores, &mut groups)?;
        }
        told(round, groups.values().map(Vec::len).sum());
        let mut rng = Rng::new(config.seed, &[u64::from(round)]);
        let examples = balanced(&groups, first.spec(), &mut rng);
        policy = imitate(&first, &examples, &config.fit, &mut rng)?;
    }
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
        // A verdict is no knob: no decision of it can do harm enough to give up the flow's program.
        guards: Some(Guards { trip_limit: Guards::MAX_TRIP_LIMIT, clip_limit: INPUTS as u32 }),
        provenance: ccplane_snapshot::Provenance {
            algorithm: policy.spec().algorithm().to_owned(),
            seed: config.seed,
            steps: policy.provenance.steps,
            command: policy.provenance.command.clone(),
            parent: None,
            created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).to_owned(),
        },
        ..Options::default()
    };
    let snapshot = quantize(policy.actor(), policy.spec(), &visited, &options)?;
    let mut held_out = Groups::new();
    let network = Verdicts::Network(Arc::new(policy.clone()));
    collect(Set::Validation, 0..config.links.min(12), &network, traces, cores, &mut held_out)?;
    Ok(Judged { counts: counts(&policy, &held_out), policy, snapshot })
}

/// What the network sees and says.
fn spec() -> Result<PolicySpec, SpecError> {
    let feature = |n: usize, name: &str| Feature { name: format!("{name}[{n}]"), lo: -ONE_Q16, hi: ONE_Q16 };
    let inputs = (0..DEPTH).flat_map(|n| FEATURES.iter().map(move |name| feature(n, name))).collect();
    let action = Action {
        map: ActionMap::None,
        bound_q16: BOUND_Q16 as u32,
        step_q20: 1,
        knob_min: 1,
        knob_max: 1 << 35,
    };
    PolicySpec::new("neural", inputs, action)
}

/// Plays these links of all families and adds what the flows met.
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
            fixtures.push(Fixture { link: Link::new(family, set, number)?, algorithm: NAME.to_owned() });
        }
    }
    let met: Mutex<Vec<(Link, Vec<Example>)>> = Mutex::default();
    on_cores(&fixtures, cores, &|fixture| {
        let recorder = Arc::new(Recorder::new(verdicts.clone()));
        let judged = NeuralInAgent::new(Arc::clone(&recorder) as Arc<dyn Judge>);
        let mut algorithms = ccplane_algs::all();
        algorithms.retain(|algorithm| algorithm.name() != NAME);
        algorithms.push(Arc::new(judged) as Arc<dyn Algorithm>);
        let cell = fixture.play(&algorithms, traces)?;
        let plan = fixture.link.plan(&[NAME], "sim", &algorithms, traces)?;
        let states =
            std::mem::take(&mut recorder.asked.lock().unwrap_or_else(PoisonError::into_inner).states);
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
        Verdicts::Network(_) => 3,
    };
    for (link, examples) in met {
        // Its own kind that competes is to each of them what CUBIC is.
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
    /// Odds of e squared.
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
        let train = |links, cores| {
            let fit = ImitateConfig { epochs: 30, ..ImitateConfig::default() };
            let config = JudgingConfig { links, rounds: 2, fit, ..JudgingConfig::default() };
            judging(&config, &ccplane_learn::Provenance::default(), &Traces::default(), cores, &|_, _| {})
                .unwrap()
        };
        let judged = train(4, 2);
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
        assert_eq!(train(1, 1).snapshot.to_bytes(), train(1, 2).snapshot.to_bytes());
    }
}

//! Evolves the last layer of neural's network and the four thresholds of its verdict on the league's score:
//! `evolve [MINUTES] [LINKS] [CHILDREN] [FAMILY,FAMILY,...]`.
//!
//! A (1+lambda) evolution strategy with the one-fifth rule (Rechenberg, 1973) on training links, the same ones for all children of all
//! generations. What it finds plays links that it has not seen, beside what it began with.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, ProgramSource};
use ccplane_algs::{BOUND_Q16, INPUTS, Judge, NeuralInAgent};
use ccplane_league::{Cell, Family, FamilyLink, Fixture, LeagueError, Set, Traces, play};
use ccplane_learn::{Policy, Rng};
use ccplane_quantize::{Mlp, MlpError, Scratch};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name under which the flows play.
const NAME: &str = "neural-agent";
/// The contenders whose best score a score is held against.
const OTHERS: [&str; 4] = ["copa", "bbr", "cubic", "vegas"];
/// The families in which verdicts happen at all.
const FAMILIES: &str = "beside-cubic,beside-reno,beside-bbr,own,own-rtts,cellular,short-flows";
/// The first link of each family that is played; of smaller numbers people look at some, and the network learned from others.
const FIRST_LINK: u32 = 3000;
/// The thresholds as `dual.fold` spells them.
const THRESHOLDS_Q16: [i64; 4] = [98_304, 32_768, -98_304, -196_608];
/// A step's deviation at first: of a weight, and of a threshold in Q16.
const STEP: (f64, f64) = (0.1, 16_384.0);

/// A network and its thresholds, which are evolved together.
#[derive(Clone)]
struct Genome {
    network: Mlp,
    thresholds_q16: [i64; 4],
}

impl Genome {
    fn child(&self, step: f64, rng: &mut Rng) -> Result<Genome, MlpError> {
        let mut layers = self.network.layers().to_vec();
        if let Some(last) = layers.last_mut() {
            for weight in last.weights.iter_mut().chain(&mut last.bias) {
                *weight += (STEP.0 * step * rng.normal()) as f32;
            }
        }
        let mutated = |threshold: i64| threshold + (STEP.1 * step * rng.normal()) as i64;
        Ok(Genome { network: Mlp::new(layers)?, thresholds_q16: self.thresholds_q16.map(mutated) })
    }
}

/// A float network as a judge.
struct Networked {
    policy: Policy,
    network: Mlp,
}

impl Judge for Networked {
    fn action_q16(&self, _info: &FlowInfo, _now_us: u64, cells: &[i32; INPUTS]) -> i32 {
        let mut seen = [0.0; INPUTS];
        self.policy.spec().normalise(cells, &mut seen);
        let odds = self.network.forward(&seen, &mut Scratch::default());
        ((odds * 65_536.0) as i32).clamp(-BOUND_Q16, BOUND_Q16)
    }
}

/// A judged algorithm whose program has other thresholds.
struct Thresholds {
    judged: NeuralInAgent,
    source: &'static str,
}

impl Algorithm for Thresholds {
    fn name(&self) -> &'static str {
        NAME
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: NAME, source: self.source }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.judged.flow(info, control)
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        self.judged.resume(info, from, control)
    }
}

/// Links, and the best score of the others on each.
struct Field {
    links: Vec<FamilyLink>,
    best: Vec<f64>,
    cores: usize,
}

impl Field {
    fn new(families: &[Family], numbers: std::ops::Range<u32>) -> Result<Field, LeagueError> {
        let each = |family: &Family| {
            numbers.clone().map(|n| FamilyLink::new(*family, Set::Training, n)).collect::<Vec<_>>()
        };
        let links = families.iter().flat_map(each).collect::<Result<Vec<_>, _>>()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut field = Field { best: vec![0.0; links.len()], links, cores };
        let all = ccplane_algs::all();
        for other in OTHERS {
            let scores = field.scores(other, &all)?;
            field.best.iter_mut().zip(scores).for_each(|(best, score)| *best = best.max(score));
        }
        Ok(field)
    }

    fn scores(&self, name: &str, algorithms: &[Arc<dyn Algorithm>]) -> Result<Vec<f64>, LeagueError> {
        let of = |link: &FamilyLink| Fixture { link: *link, algorithm: name.to_owned() };
        let fixtures: Vec<Fixture> = self.links.iter().map(of).collect();
        let cells = play(&fixtures, algorithms, &Traces::default(), self.cores, &|_| true)?;
        Ok(cells.iter().map(Cell::score).collect())
    }

    /// The score over the best one, on each link.
    fn play(&self, genome: &Genome, policy: &Policy) -> Result<Vec<f64>, LeagueError> {
        let judge = Networked { policy: policy.clone(), network: genome.network.clone() };
        let judged = NeuralInAgent::new(Arc::new(judge));
        let mut source = judged.programs().first().map_or_else(String::new, |p| p.source.to_owned());
        for (shipped, evolved) in THRESHOLDS_Q16.iter().zip(genome.thresholds_q16) {
            source = source.replace(&format!("verdict {shipped})"), &format!("verdict {evolved})"));
        }
        // Programs are built in: one for each child, until the process ends.
        let source: &'static str = source.leak();
        let mut algorithms = ccplane_algs::all();
        algorithms.retain(|algorithm| algorithm.name() != NAME);
        algorithms.push(Arc::new(Thresholds { judged, source }));
        let scores = self.scores(NAME, &algorithms)?;
        Ok(scores
            .iter()
            .zip(&self.best)
            .map(|(own, best)| own / best.max(*own).max(f64::MIN_POSITIVE))
            .collect())
    }
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len().max(1) as f64
}

/// The mean difference, and its standard error.
fn difference(a: &[f64], b: &[f64]) -> (f64, f64) {
    let of: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let (count, mean) = (of.len().max(2) as f64, mean(&of));
    let variance = of.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: u32| args.get(n).map_or(Ok(default), |text| text.parse());
    let (minutes, links, children) = (number(0, 20)?, number(1, 6)?, number(2, 4)?);
    let families = args.get(3).map_or(FAMILIES, String::as_str);
    let families = families.split(',').map(str::parse).collect::<Result<Vec<Family>, _>>()?;
    let until = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    let policy = Policy::from_bytes(include_bytes!("../../../algs/policies/neural.safetensors"))?;
    let mut rng = Rng::new(1, &[]);
    let field = Field::new(&families, FIRST_LINK..FIRST_LINK + links)?;
    let first = Genome { network: policy.actor().clone(), thresholds_q16: THRESHOLDS_Q16 };
    let (mut parent, mut step) = (first.clone(), 1.0);
    let began = field.play(&first, &policy)?;
    let mut best = began.clone();
    println!("begins with {:.4} on {} links", mean(&began), field.links.len());
    let mut generation = 0;
    while Instant::now() < until {
        generation += 1;
        let mut better = 0;
        let (elder, to_beat) = (parent.clone(), mean(&best));
        for _ in 0..children {
            let child = elder.child(step, &mut rng)?;
            let scores = field.play(&child, &policy)?;
            better += u32::from(mean(&scores) > to_beat);
            if mean(&scores) > mean(&best) {
                (parent, best) = (child, scores);
            }
        }
        // More than a fifth of the children better: larger steps.
        step *= if better * 5 > children { 1.5 } else { 0.8 };
        println!(
            "generation {generation}: {:.4}, {better} of {children} better, steps of {step:.2}",
            mean(&best)
        );
    }
    let (by, error) = difference(&best, &began);
    println!("on these links {by:+.4}, standard error {error:.4}; thresholds {:?}", parent.thresholds_q16);
    let unseen = Field::new(&families, FIRST_LINK + 1000..FIRST_LINK + 1000 + 2 * links)?;
    let (before, since) = (unseen.play(&first, &policy)?, unseen.play(&parent, &policy)?);
    let (by, error) = difference(&since, &before);
    println!(
        "on {} others {:.4}, before {:.4}: {by:+.4}, standard error {error:.4}",
        before.len(),
        mean(&since),
        mean(&before)
    );
    Ok(())
}

//! Distils, and says what was lost.

use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_algs::placed::Asking;
use ccplane_learn::Rng;
use ccplane_program::ir::Program;
use ccplane_program::{compile, stock};
use serde::Serialize;

use crate::collect::{Ground, Sample};
use crate::emit::{emit, layout};
use crate::fit::fit;
use crate::inputs::{Input, Inputs};
use crate::{DistillConfig, DistillError, MAX_LEAVES, MAX_TREE_INPUTS, Student, Teacher};

/// Decisions of all rounds, at most: all are kept, some 200 bytes each, to fit the tree to.
const MAX_DECISIONS: usize = 2_000_000;
/// Histories drawn at random.
const RANDOM_HISTORIES: usize = 20_000;
/// Names of random streams and of the episodes that are held out.
const RANDOM: u64 = 7;
const HELD_OUT: u64 = 1 << 40;

/// The tree and its program, with a report of their quality.
#[derive(Clone, Debug)]
pub struct Distilled {
    /// The algorithm's program with the tree in place of the question to the policy.
    pub program: String,
    pub student: Student,
    pub report: Report,
}

/// The differences between the tree and its teacher.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    pub algorithm: String,
    /// Leaves of the tree.
    pub leaves: usize,
    /// The tree's inputs, those that help most first.
    pub inputs: Vec<String>,
    /// States that it was fitted to.
    pub states: usize,
    /// Errors on states of other episodes, under the student.
    pub visited: Errors,
    /// Errors on histories drawn at random from the inputs' ranges, which flows hardly meet.
    pub random: Errors,
    /// Mean reward of the same other episodes under the teacher ...
    pub teacher_reward: f64,
    /// ... and under the student.
    pub student_reward: f64,
    /// Registers of the program.
    pub registers: usize,
    pub instructions: usize,
    /// Whether stock CCP can run it.
    pub stock: Stock,
}

/// Distances between the student's and the teacher's actions, shares of the action range.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Errors {
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
    pub max: f64,
    /// Share of states in which one wants more and the other less.
    pub opposite: f64,
}

/// Whether a program is within CCP's language and libccp's limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stock {
    Fits,
    /// Stock CCP cannot run the program, for this reason.
    Refused(String),
}

/// Distils `teacher`, a policy that the program of `algorithm` asks.
///
/// # Errors
/// A configuration outside its limits, a program that asks in another way than on one history of intervals, or flows that never
/// ask.
pub fn distill(
    algorithm: Arc<dyn Algorithm>,
    teacher: &Teacher,
    config: &DistillConfig,
) -> Result<Distilled, DistillError> {
    check(config)?;
    let name = algorithm.name();
    let refuse = |why| DistillError::Program { algorithm: name, why };
    let programs = algorithm.programs();
    let [source] = &programs[..] else { return Err(refuse("it has several programs")) };
    let asking = Asking::of(source.source).ok_or_else(|| refuse("its program asks no policy"))?;
    let layout =
        layout(&asking).ok_or_else(|| refuse("its histories are not one of intervals, then constants"))?;
    if layout.cells() != teacher.spec().inputs().len() {
        return Err(refuse("the policy has other inputs than the program's histories"));
    }
    let ground = Ground::new(algorithm, layout)?;
    let bound_q16 = i64::from(teacher.spec().action().bound_q16);
    let mut samples: Vec<Sample> = Vec::new();
    let mut student: Option<Student> = None;
    for round in 0..config.rounds {
        let first = config.seed.wrapping_add((round * config.episodes) as u64);
        let seeds = first..first.wrapping_add(config.episodes as u64);
        samples.extend(ground.walk(teacher, student.as_ref(), seeds, config.steps)?.0);
        if samples.is_empty() {
            return Err(DistillError::Silent { episodes: config.episodes });
        }
        student = Some(fit(&samples, &ground.candidates, config.inputs, config.leaves, bound_q16));
    }
    let Some(student) = student else { return Err(DistillError::Silent { episodes: 0 }) };
    let program = emit(name, source.source, &student, teacher.spec())?;
    let compiled = compile(&program).map_err(|diagnostics| DistillError::Compile {
        first: diagnostics.first().map(ToString::to_string).unwrap_or_default(),
    })?;
    let held_out = config.seed ^ HELD_OUT;
    let seeds = || held_out..held_out.wrapping_add(config.episodes as u64);
    let (met, student_reward) = ground.walk(teacher, Some(&student), seeds(), config.steps)?;
    let (_, teacher_reward) = ground.walk(teacher, None, seeds(), config.steps)?;
    let report = Report {
        algorithm: name.to_owned(),
        leaves: student.leaves(),
        inputs: student.inputs.iter().map(|input| spelt(*input, &asking)).collect(),
        states: samples.len(),
        visited: errors(&student, &met, &ground.candidates),
        random: errors(&student, &random(teacher, &ground, config.seed), &ground.candidates),
        teacher_reward,
        student_reward,
        registers: compiled.regs().len(),
        instructions: compiled.insts().len(),
        stock: stock_of(&compiled),
    };
    Ok(Distilled { program, student, report })
}

fn check(config: &DistillConfig) -> Result<(), DistillError> {
    let decisions = config.rounds.saturating_mul(config.episodes).saturating_mul(config.steps);
    let numbers = [
        ("leaves", config.leaves, MAX_LEAVES),
        ("inputs", config.inputs, MAX_TREE_INPUTS),
        ("rounds", config.rounds, MAX_DECISIONS),
        ("episodes", config.episodes, MAX_DECISIONS),
        ("steps", config.steps, MAX_DECISIONS),
        ("the product of rounds, episodes and steps", decisions, MAX_DECISIONS),
    ];
    match numbers.into_iter().find(|(_, found, limit)| !(1..=*limit).contains(found)) {
        Some((field, found, limit)) => Err(DistillError::Config { field, found, limit }),
        None => Ok(()),
    }
}

/// Histories with each cell anywhere in its range.
fn random(teacher: &Teacher, ground: &Ground, seed: u64) -> Vec<Sample> {
    let spec = teacher.spec();
    let mut rng = Rng::new(seed, &[RANDOM]);
    let sample = |_| {
        let mut cell = |n: usize| {
            let (lo, hi) = (i64::from(spec.inputs()[n].lo), i64::from(spec.inputs()[n].hi));
            (lo + (rng.uniform() * (hi - lo + 1) as f64) as i64).min(hi) as i32
        };
        let cells: Vec<i32> = (0..spec.inputs().len()).map(&mut cell).collect();
        let mut inputs = Inputs::new(ground.layout, spec);
        inputs.update(&cells);
        let values = ground.candidates.iter().map(|input| inputs.get(*input)).collect();
        Sample { values, action_q16: teacher.action_q16(&cells) }
    };
    (0..RANDOM_HISTORIES).map(sample).collect()
}

fn errors(student: &Student, samples: &[Sample], candidates: &[Input]) -> Errors {
    let places: Vec<Option<usize>> =
        student.inputs.iter().map(|input| candidates.iter().position(|c| c == input)).collect();
    let mut opposite = 0usize;
    let mut distances: Vec<f64> = samples
        .iter()
        .map(|sample| {
            let value = |input: Input| {
                let place = student.inputs.iter().position(|i| *i == input).and_then(|at| places[at]);
                place.map_or(0, |place| sample.values[place])
            };
            let action_q16 = student.action_q16(value);
            opposite += usize::from(action_q16.signum() * sample.action_q16.signum() < 0);
            (action_q16 - sample.action_q16).abs() as f64 / (2 * student.bound_q16).max(1) as f64
        })
        .collect();
    distances.sort_by(f64::total_cmp);
    let count = distances.len().max(1) as f64;
    Errors {
        mean: distances.iter().sum::<f64>() / count,
        p95: distances.get(distances.len() * 95 / 100).copied().unwrap_or(0.0),
        max: distances.last().copied().unwrap_or(0.0),
        opposite: opposite as f64 / count,
    }
}

/// Spells an input for people: "ratio", "ratio before", "mean of ratio, 0.8 old".
fn spelt(input: Input, asking: &Asking) -> String {
    let names: Vec<&str> =
        asking.histories.iter().flat_map(|(_, n)| n).map(|n| n.trim_start_matches("Report.")).collect();
    let features = asking.histories.first().map_or(0, |(_, names)| names.len());
    let name = |n: usize| names.get(n).copied().unwrap_or("?");
    match input {
        Input::Now(f) => name(f).to_owned(),
        Input::Before(f) => format!("{} before", name(f)),
        Input::Average(f, tenths) => format!("mean of {}, 0.{tenths} old", name(f)),
        Input::Constant(n) => name(features + n).to_owned(),
    }
}

fn stock_of(program: &Program) -> Stock {
    match stock::lower(program) {
        Ok(_) => Stock::Fits,
        Err(why) => Stock::Refused(why.to_string()),
    }
}

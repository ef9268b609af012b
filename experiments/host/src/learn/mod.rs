//! Learning from measurements: groups of settings, predictions of throughput and efficiency, the best coalescing.

mod encode;
mod frame;
mod groups;
mod perceptron;

use std::collections::BTreeMap;

use ccplane_learn::Rng;
use serde::Serialize;

pub use encode::{Encoder, TooManyInputs};
pub use frame::{CsvColumns, Frame, FrameError, FrameRow, Input, InputKind, MAX_COLUMNS, MAX_CSV_BYTES};
pub use groups::{Component, Groups, GroupsError, MAX_GROUPS, SettingGroup, Telling, group};
pub use perceptron::{Ensemble, EnsembleConfig, PerceptronError, Prediction};

/// The fewest settings that are learned from.
pub const MIN_SETTINGS: usize = 20;
/// Shares of the settings that are held out: to choose between networks, and to state the error.
const VALIDATION: f64 = 0.15;
const TEST: f64 = 0.15;
/// Hidden layers of the networks that are tried.
const SHAPES: [&[usize]; 2] = [&[32, 16], &[64, 32]];
/// Networks that predict one quantity.
const MEMBERS: usize = 3;
/// Placements for which the best coalescing is told, the fastest ones.
const ADVISED: usize = 5;
/// The stream that settings are divided by.
const DIVISION: u64 = 0xd117;

/// Quantities from which throughput and efficiency are predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Features {
    /// The settings alone: what they will carry, before anything is measured.
    Settings,
    /// The settings and the host's counters: how much of the result these explain, once it is measured.
    Counters,
}

/// The settings of learning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnConfig {
    pub seed: u64,
    pub groups: usize,
    pub features: Features,
    /// Examples that each network sees in all.
    pub examples: usize,
}

impl Default for LearnConfig {
    fn default() -> LearnConfig {
        LearnConfig { seed: 1, groups: 5, features: Features::Settings, examples: 400_000 }
    }
}

/// The relative error of predictions on settings that were held out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HeldOut {
    /// The mean of the errors' sizes.
    pub mean: f64,
    /// The error that 95 % of the settings stay below.
    pub p95: f64,
    /// The mean where the median of all settings is predicted.
    pub of_median: f64,
    /// The neurons of the hidden layers that did best on the settings held out to choose by.
    pub hidden: Vec<usize>,
}

/// The best coalescing for one placement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Coalescing {
    /// The other settings, by name.
    pub under: Vec<(String, String)>,
    pub usecs: String,
    pub frames: String,
    /// The throughput that is predicted.
    pub throughput: f64,
}

/// The result of learning from measurements.
#[derive(Debug, Serialize)]
pub struct Learned {
    /// The origin of the measurements in words; a model is called one.
    pub origin: String,
    pub settings: usize,
    pub features: Features,
    /// Settings to learn from, to choose by, and to state the error by.
    pub divided: [usize; 3],
    pub throughput: HeldOut,
    pub efficiency: HeldOut,
    pub groups: Groups,
    /// For the fastest placements; empty where the measurements have no coalescing, or counters are features, which nobody knows
    /// of a setting that was not measured.
    pub coalescing: Vec<Coalescing>,
    #[serde(skip)]
    pub predictors: Predictors,
}

/// The networks that predict throughput and efficiency.
#[derive(Clone, Debug)]
pub struct Predictors {
    pub throughput: Ensemble,
    pub efficiency: Ensemble,
}

/// Reasons why nothing is learned.
#[derive(Debug, thiserror::Error)]
pub enum HostLearnError {
    /// Too few settings were measured.
    #[error("{found} settings with a throughput above 0, at least {MIN_SETTINGS} are needed")]
    TooFew { found: usize },
    #[error(transparent)]
    Inputs(#[from] TooManyInputs),
    #[error(transparent)]
    Groups(#[from] GroupsError),
    #[error(transparent)]
    Perceptron(#[from] PerceptronError),
}

/// Learns from measurements. The same measurements and configuration give the same result.
///
/// # Errors
/// There are too few, or they cannot be learned from.
pub fn learn(frame: &Frame, config: &LearnConfig) -> Result<Learned, HostLearnError> {
    let mut frame = frame.clone();
    frame.rows.retain(|row| row.throughput > 0.0 && row.efficiency > 0.0);
    if frame.rows.len() < MIN_SETTINGS {
        return Err(HostLearnError::TooFew { found: frame.rows.len() });
    }
    let groups = group(&frame, config.groups, config.seed)?;
    let to_advise = match config.features {
        Features::Settings => fastest(&frame),
        Features::Counters => {
            frame = frame.with_counters_as_inputs();
            Vec::new()
        }
    };
    let [train, validation, test] = divide(&frame.rows, config.seed);
    // The encoding is fitted to what is learned from and to the levels that there are, which are no measurements.
    let all = frame.rows.iter().map(|row| row.values.as_slice());
    let encoder = Encoder::fit(&frame.inputs, all, &frame.nodes)?;
    let parts = (train.as_slice(), validation.as_slice(), test.as_slice());
    let (throughput, of_throughput) = predictor(&encoder, parts, &|row| row.throughput, config)?;
    let (efficiency, of_efficiency) = predictor(&encoder, parts, &|row| row.efficiency, config)?;
    let mut predictors = Predictors { throughput, efficiency };
    let coalescing = to_advise
        .into_iter()
        .filter_map(|values| best_coalescing(&mut predictors.throughput, &frame, &values))
        .collect();
    Ok(Learned {
        origin: frame.origin.clone(),
        settings: frame.rows.len(),
        features: config.features,
        divided: [train.len(), validation.len(), test.len()],
        throughput: of_throughput,
        efficiency: of_efficiency,
        groups,
        coalescing,
        predictors,
    })
}

/// Divides the settings at random; none is in two parts.
fn divide(rows: &[FrameRow], seed: u64) -> [Vec<&FrameRow>; 3] {
    let mut all: Vec<&FrameRow> = rows.iter().collect();
    Rng::new(seed, &[DIVISION]).shuffle(&mut all);
    let rows = all.len() as f64;
    let count = |share: f64| ((rows * share) as usize).max(1);
    let rest = all.split_off(count(VALIDATION) + count(TEST));
    let test = all.split_off(count(VALIDATION));
    [rest, all, test]
}

type Parts<'p, 'r> = (&'p [&'r FrameRow], &'p [&'r FrameRow], &'p [&'r FrameRow]);

fn predictor(
    encoder: &Encoder,
    (train, validation, test): Parts<'_, '_>,
    of: &dyn Fn(&FrameRow) -> f64,
    config: &LearnConfig,
) -> Result<(Ensemble, HeldOut), HostLearnError> {
    let examples: Vec<(&[String], f64)> = train.iter().map(|row| (row.values.as_slice(), of(row))).collect();
    let ensemble = |hidden: &[usize], members: usize| {
        let hidden = hidden.to_vec();
        let (examples_seen, seed) = (config.examples, config.seed);
        let config = EnsembleConfig { members, hidden, examples: examples_seen, is_resampled: false, seed };
        Ensemble::fit(encoder, &examples, &config)
    };
    let mut best: (f64, &[usize]) = (f64::INFINITY, SHAPES[0]);
    for hidden in SHAPES {
        let error = mean(&errors(&mut ensemble(hidden, 1)?, validation, of));
        if error < best.0 {
            best = (error, hidden);
        }
    }
    let hidden = best.1;
    let mut ensemble = ensemble(hidden, MEMBERS)?;
    let mut errors = errors(&mut ensemble, test, of);
    errors.sort_by(f64::total_cmp);
    let mut known: Vec<f64> = train.iter().map(|row| of(row)).collect();
    known.sort_by(f64::total_cmp);
    let median = known[known.len() / 2];
    let of_median: Vec<f64> = test.iter().map(|row| (median / of(row) - 1.0).abs()).collect();
    let held_out = HeldOut {
        mean: mean(&errors),
        p95: errors[(errors.len() * 95 / 100).min(errors.len() - 1)],
        of_median: mean(&of_median),
        hidden: hidden.to_vec(),
    };
    Ok((ensemble, held_out))
}

fn errors(ensemble: &mut Ensemble, rows: &[&FrameRow], of: &dyn Fn(&FrameRow) -> f64) -> Vec<f64> {
    let settings: Vec<&[String]> = rows.iter().map(|row| row.values.as_slice()).collect();
    let predicted = ensemble.predict(&settings);
    predicted.iter().zip(rows).map(|(p, row)| (p.value / of(row) - 1.0).abs()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the values of the fastest rows, one for each way in which all but the coalescing was set.
fn fastest(frame: &Frame) -> Vec<Vec<String>> {
    let Some((usecs, frames)) = frame.coalescing() else { return Vec::new() };
    let mut best: BTreeMap<Vec<&str>, &FrameRow> = BTreeMap::new();
    for row in &frame.rows {
        let others = (0..row.values.len()).filter(|n| ![usecs, frames].contains(n));
        let key = others.map(|n| row.values[n].as_str()).collect();
        let known = best.entry(key).or_insert(row);
        if row.throughput > known.throughput {
            *known = row;
        }
    }
    let mut rows: Vec<&FrameRow> = best.into_values().collect();
    rows.sort_by(|a, b| b.throughput.total_cmp(&a.throughput));
    rows.into_iter().take(ADVISED).map(|row| row.values.clone()).collect()
}

/// Predicts which microseconds and frames carry most where everything else is set as `values` says; none without coalescing.
pub fn best_coalescing(ensemble: &mut Ensemble, frame: &Frame, values: &[String]) -> Option<Coalescing> {
    let (usecs, frames) = frame.coalescing()?;
    let (all_usecs, all_frames) = (frame.levels(usecs), frame.levels(frames));
    let setting = |u: &String, f: &String| {
        let mut setting = values.to_vec();
        (setting[usecs], setting[frames]) = (u.clone(), f.clone());
        setting
    };
    let settings: Vec<Vec<String>> =
        all_usecs.iter().flat_map(|u| all_frames.iter().map(|f| setting(u, f)).collect::<Vec<_>>()).collect();
    let slices: Vec<&[String]> = settings.iter().map(Vec::as_slice).collect();
    let predicted = ensemble.predict(&slices);
    let pairs = settings.iter().zip(&predicted);
    let (best, prediction) = pairs.max_by(|(_, a), (_, b)| a.value.total_cmp(&b.value))?;
    let named = |n: usize| (frame.inputs[n].name.clone(), best[n].clone());
    Some(Coalescing {
        under: (0..best.len()).filter(|n| ![usecs, frames].contains(n)).map(named).collect(),
        usecs: best[usecs].clone(),
        frames: best[frames].clone(),
        throughput: prediction.value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host on which other work takes a share of the processors that no setting tells of, but a counter does.
    fn loaded() -> Frame {
        let mut rng = Rng::new(7, &[1]);
        let row = |n: usize| {
            let (usecs, other) = (n % 10, rng.uniform());
            let throughput = 1e9 * (1.0 + usecs as f64 / 50.0) * (1.2 - other);
            FrameRow {
                values: vec![usecs.to_string(), n.to_string()],
                throughput,
                efficiency: throughput / 2.0,
                counters: vec![1e6 * other],
            }
        };
        let input = |name: &str, kind| Input { name: name.to_owned(), kind };
        Frame {
            origin: "made by a test".to_owned(),
            inputs: vec![input("rx-usecs", InputKind::Number), input("note", InputKind::Word)],
            rows: (0..200).map(row).collect(),
            counters: vec!["other_us".to_owned()],
            nodes: Vec::new(),
        }
    }

    #[test]
    fn counters_explain_what_settings_do_not() {
        let frame = loaded();
        let learned = |features| {
            let config = LearnConfig { features, examples: 20_000, groups: 2, ..LearnConfig::default() };
            learn(&frame, &config).unwrap()
        };
        let (settings, counters) = (learned(Features::Settings), learned(Features::Counters));
        assert_eq!((settings.features, counters.features), (Features::Settings, Features::Counters));
        assert_eq!(settings.divided, counters.divided);
        for (without, with) in
            [(&settings.throughput, &counters.throughput), (&settings.efficiency, &counters.efficiency)]
        {
            assert!(with.mean < without.mean / 2.0, "{with:?}, {without:?}");
        }
        assert!(counters.coalescing.is_empty(), "nobody knows the counters of what was not measured");
    }
}

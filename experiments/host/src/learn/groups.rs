//! Groups of settings that behave alike (k-means), the counters that tell them apart, and the directions in which counters vary (PCA).

use linfa::DatasetBase;
use linfa::prelude::{Fit, Predict};
use linfa_clustering::KMeans;
use linfa_reduction::Pca;
use ndarray::{Array1, Array2};
use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;

use super::frame::Frame;

/// Groups, at most.
pub const MAX_GROUPS: usize = 16;
/// Principal components that are told.
const COMPONENTS: usize = 3;
/// Starts of k-means, of which the best counts.
const STARTS: usize = 10;
const MAX_ITERATIONS: u64 = 300;
const TOLERANCE: f64 = 1e-4;
/// The deviation below which a counter counts as constant, relative to its mean.
const CONSTANT: f64 = 1e-9;

/// Settings that behave alike.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SettingGroup {
    /// The number of settings in it.
    pub settings: usize,
    pub mean_throughput: f64,
    pub mean_efficiency: f64,
    /// For each input the value that stands out most in the group: its name, the value, the share of the group's settings with it.
    pub typical: Vec<(String, String, f64)>,
}

/// The quality with which a counter tells groups apart.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Telling {
    pub counter: String,
    /// The share of the counter's variance that lies between groups, 0 to 1 (eta squared).
    pub share: f64,
}

/// A direction in which counters vary together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Component {
    /// The share of all variance along it.
    pub share: f64,
    /// Each counter with its weight, the largest first.
    pub weights: Vec<(String, f64)>,
}

/// The groups of a host's settings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Groups {
    /// The groups, the fastest first.
    pub groups: Vec<SettingGroup>,
    /// The counters, the most telling first.
    pub telling: Vec<Telling>,
    pub components: Vec<Component>,
    /// The group of each row of the measurements.
    #[serde(skip)]
    pub group_of: Vec<usize>,
}

/// Reasons why there are no groups.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// Fewer settings than groups, or no or too many groups.
    #[error(
        "{groups} groups of {settings} settings: 1 to {MAX_GROUPS} groups are allowed, and no more than settings"
    )]
    Count { groups: usize, settings: usize },
    /// No counter differs between settings.
    #[error("all counters are the same under every setting")]
    NoVariance,
    /// The library cannot group them.
    #[error("k-means: {0}")]
    KMeans(#[from] linfa_clustering::KMeansError),
    /// The library finds no components.
    #[error("principal components: {0}")]
    Pca(#[from] linfa_reduction::ReductionError),
}

/// Groups the rows by throughput, efficiency and counters, each with mean 0 and deviation 1. The same rows and seed give the same groups.
///
/// # Errors
/// There are too few rows, or nothing differs.
pub fn group(frame: &Frame, count: usize, seed: u64) -> Result<Groups, GroupsError> {
    let rows = frame.rows.len();
    if !(1..=MAX_GROUPS).contains(&count) || count > rows {
        return Err(GroupsError::Count { groups: count, settings: rows });
    }
    let (names, records) = standardised(frame);
    if names.is_empty() {
        return Err(GroupsError::NoVariance);
    }
    let dataset = DatasetBase::from(records.clone());
    let model = KMeans::params_with_rng(count, Xoshiro256Plus::seed_from_u64(seed))
        .n_runs(STARTS)
        .max_n_iterations(MAX_ITERATIONS)
        .tolerance(TOLERANCE)
        .fit(&dataset)?;
    let memberships: Array1<usize> = model.predict(&records);
    let memberships = memberships.to_vec();
    let (groups, group_of) = described(frame, count, &memberships);
    let mut telling: Vec<Telling> = names
        .iter()
        .enumerate()
        .map(|(n, name)| Telling {
            counter: name.clone(),
            share: between(&records.column(n).to_vec(), &group_of, groups.len()),
        })
        .collect();
    telling.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.counter.cmp(&b.counter)));
    let components = components(&dataset, &names, &records)?;
    Ok(Groups { groups, telling, components, group_of })
}

/// Returns the columns that differ, each with mean 0 and deviation 1, and their names.
fn standardised(frame: &Frame) -> (Vec<String>, Array2<f64>) {
    let mut columns: Vec<(String, Vec<f64>)> = vec![
        ("throughput".to_owned(), frame.rows.iter().map(|row| row.throughput).collect()),
        ("efficiency".to_owned(), frame.rows.iter().map(|row| row.efficiency).collect()),
    ];
    let counter = |(n, name): (usize, &String)| {
        (name.clone(), frame.rows.iter().map(|row| row.counters[n]).collect::<Vec<f64>>())
    };
    columns.extend(frame.counters.iter().enumerate().map(counter));
    let count = frame.rows.len().max(1) as f64;
    let scaled = columns.into_iter().filter_map(|(name, column)| {
        let mean = column.iter().sum::<f64>() / count;
        let deviation = (column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
        let is_varied = deviation > CONSTANT * mean.abs().max(CONSTANT);
        is_varied.then(|| (name, column.into_iter().map(|x| (x - mean) / deviation).collect::<Vec<f64>>()))
    });
    let (names, columns): (Vec<String>, Vec<Vec<f64>>) = scaled.unzip();
    let records =
        Array2::from_shape_fn((frame.rows.len(), names.len()), |(row, column)| columns[column][row]);
    (names, records)
}

/// Describes the groups that have settings, the fastest first, and gives each row the number of its group in that order.
fn described(frame: &Frame, count: usize, memberships: &[usize]) -> (Vec<SettingGroup>, Vec<usize>) {
    let mut groups: Vec<(usize, SettingGroup)> =
        (0..count).filter_map(|n| describe(frame, memberships, n)).collect();
    groups.sort_by(|(_, a), (_, b)| b.mean_throughput.total_cmp(&a.mean_throughput));
    let place = |member: &usize| groups.iter().position(|(n, _)| n == member).unwrap_or(0);
    let group_of = memberships.iter().map(place).collect();
    (groups.into_iter().map(|(_, group)| group).collect(), group_of)
}

fn describe(frame: &Frame, memberships: &[usize], group: usize) -> Option<(usize, SettingGroup)> {
    let members: Vec<usize> = (0..memberships.len()).filter(|n| memberships[*n] == group).collect();
    if members.is_empty() {
        return None;
    }
    let mean = |of: &dyn Fn(usize) -> f64| members.iter().map(|n| of(*n)).sum::<f64>() / members.len() as f64;
    let share = |input: usize, value: &str, rows: &[usize]| {
        rows.iter().filter(|n| frame.rows[**n].values[input] == value).count() as f64
            / rows.len().max(1) as f64
    };
    let all: Vec<usize> = (0..memberships.len()).collect();
    let typical = frame.inputs.iter().enumerate().filter_map(|(n, input)| {
        let excess = |value: &String| share(n, value, &members) - share(n, value, &all);
        let value = frame.levels(n).into_iter().max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
        let of_group = share(n, &value, &members);
        Some((input.name.clone(), value, of_group))
    });
    let group_figures = SettingGroup {
        settings: members.len(),
        mean_throughput: mean(&|n| frame.rows[n].throughput),
        mean_efficiency: mean(&|n| frame.rows[n].efficiency),
        typical: typical.collect(),
    };
    Some((group, group_figures))
}

/// The share of a column's variance that lies between the groups' means.
fn between(column: &[f64], group_of: &[usize], groups: usize) -> f64 {
    let mean = column.iter().sum::<f64>() / column.len().max(1) as f64;
    let total: f64 = column.iter().map(|x| (x - mean).powi(2)).sum();
    let of_group = |group: usize| {
        let members: Vec<f64> =
            column.iter().zip(group_of).filter(|(_, g)| **g == group).map(|(x, _)| *x).collect();
        let of_members = members.iter().sum::<f64>() / members.len().max(1) as f64;
        members.len() as f64 * (of_members - mean).powi(2)
    };
    (0..groups).map(of_group).sum::<f64>() / total
}

fn components(
    dataset: &DatasetBase<Array2<f64>, Array1<()>>,
    names: &[String],
    records: &Array2<f64>,
) -> Result<Vec<Component>, GroupsError> {
    let model = Pca::params(COMPONENTS.min(names.len())).fit(dataset)?;
    // The library's own shares are of the components that were asked for.
    let total: f64 = records.iter().map(|x| x * x).sum();
    let pairs = model.singular_values().iter().zip(model.components().rows());
    Ok(pairs
        .map(|(sigma, row)| {
            let mut weights: Vec<(String, f64)> = names.iter().cloned().zip(row.iter().copied()).collect();
            weights.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
            Component { share: sigma * sigma / total, weights }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::frame::{FrameRow, Input, InputKind};
    use ccplane_learn::Rng;

    /// Three clouds that two counters tell apart, and a counter that is noise.
    fn clouds() -> Frame {
        let mut rng = Rng::new(5, &[]);
        let mut rows = Vec::new();
        for n in 0..90 {
            let cloud = n % 3;
            let near = |centre: f64, rng: &mut Rng| centre + 0.1 * rng.normal();
            rows.push(FrameRow {
                values: vec![cloud.to_string()],
                throughput: near([30.0, 10.0, 20.0][cloud], &mut rng),
                efficiency: near(1.0, &mut rng),
                counters: vec![near([0.0, 0.0, 9.0][cloud], &mut rng), rng.normal(), 4.0],
            });
        }
        Frame {
            origin: String::new(),
            inputs: vec![Input { name: "cloud".into(), kind: InputKind::Word }],
            rows,
            counters: ["misses", "noise", "constant"].map(str::to_owned).to_vec(),
            nodes: Vec::new(),
        }
    }

    #[test]
    fn clouds_are_told_apart() {
        let frame = clouds();
        let groups = group(&frame, 3, 1).unwrap();
        assert_eq!(groups.groups.iter().map(|g| g.settings).collect::<Vec<_>>(), [30, 30, 30]);
        let typical: Vec<&str> = groups.groups.iter().map(|g| g.typical[0].1.as_str()).collect();
        assert_eq!(typical, ["0", "2", "1"], "the fastest first");
        let share = |name: &str| groups.telling.iter().find(|t| t.counter == name).map(|t| t.share);
        assert!(share("throughput") > Some(0.99) && share("misses") > Some(0.99), "{:?}", groups.telling);
        assert!(share("noise") < Some(0.2) && share("constant").is_none(), "{:?}", groups.telling);
        assert_eq!(group(&frame, 3, 1).unwrap(), groups);
    }

    /// Of two columns that are the same and two that are noise, the first component takes the two.
    #[test]
    fn what_varies_together_is_one_component() {
        let mut frame = clouds();
        for row in &mut frame.rows {
            row.counters[0] = 3.0 * row.throughput;
        }
        let groups = group(&frame, 2, 1).unwrap();
        let first = &groups.components[0];
        let leading: Vec<&str> = first.weights[..2].iter().map(|(name, _)| name.as_str()).collect();
        assert!(leading.contains(&"throughput") && leading.contains(&"misses"), "{first:?}");
        // Two of four columns of variance 1.
        assert!((first.share - 0.5).abs() < 0.08, "{first:?}");
        assert!(groups.components.windows(2).all(|pair| pair[0].share >= pair[1].share));
    }

    #[test]
    fn too_few_settings_are_refused() {
        let mut frame = clouds();
        frame.rows.truncate(2);
        assert!(matches!(group(&frame, 3, 1), Err(GroupsError::Count { groups: 3, settings: 2 })));
        assert!(matches!(group(&frame, 0, 1), Err(GroupsError::Count { .. })));
        frame.rows[1] = frame.rows[0].clone();
        assert!(matches!(group(&frame, 1, 1), Err(GroupsError::NoVariance)));
    }
}

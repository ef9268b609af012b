//! A metric over the values of a swept parameter.
use std::collections::BTreeMap;

use ccplane_results::{Metric, Scenario};

use super::charts::slug;
use super::figures;
use super::view::{Sweep, View};
use crate::draw::{Axis, Entry, Figure, Mark, Panel, Scale, Shape, Weight};
use crate::format;
use crate::statistics::Estimate;

/// A sweep's axis: one key; the others' values tell small multiples apart.
struct Direction<'a> {
    key: &'a str,
    /// The values' places, in the order of scenarios' values.
    places: BTreeMap<&'a str, f64>,
    scale: Scale,
}

/// Means over runs at places of the axis.
type Means = Vec<(f64, Estimate)>;

/// For each metric, and for each combination of the other swept keys, a chart over the key with the most values.
pub fn figures(view: &View<'_>, sweep: &Sweep) -> Vec<(Metric, Vec<Figure>)> {
    let scenarios: Vec<(usize, &Scenario)> =
        sweep.scenarios.iter().map(|i| (*i, &view.scenarios()[*i])).collect();
    let Some(direction) = direction(&sweep.keys, &scenarios) else { return Vec::new() };
    let mut multiples: Vec<(String, Vec<(f64, usize)>)> = Vec::new();
    for (index, scenario) in &scenarios {
        let Some(place) =
            scenario.parameters.get(direction.key).and_then(|v| direction.places.get(v.as_str()))
        else {
            continue;
        };
        let others = scenario.parameters.iter().filter(|(k, _)| *k != direction.key);
        let varying = others.filter(|(k, _)| {
            scenarios.iter().any(|(_, s)| s.parameters.get(*k) != scenario.parameters.get(*k))
        });
        let label = varying.map(|(k, v)| format!("{k} = {v}")).collect::<Vec<_>>().join(", ");
        match multiples.iter_mut().find(|m| m.0 == label) {
            Some(multiple) => multiple.1.push((*place, *index)),
            None => multiples.push((label, vec![(*place, *index)])),
        }
    }
    figures::METRICS
        .into_iter()
        .filter_map(|metric| {
            let charts = metric_charts(view, metric, &direction, &mut multiples);
            (!charts.is_empty()).then_some((metric, charts))
        })
        .collect()
}

fn metric_charts(
    view: &View<'_>,
    metric: Metric,
    direction: &Direction<'_>,
    multiples: &mut [(String, Vec<(f64, usize)>)],
) -> Vec<Figure> {
    let unit = figures::unit(metric);
    let mut lines: Vec<Vec<(usize, Means)>> = Vec::new();
    for (_, points) in multiples.iter_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let of = |c: usize| -> Means {
            let estimate = |(place, scenario): &(f64, usize)| {
                let runs = view.runs(*scenario, c).iter();
                let values: Vec<f64> =
                    runs.filter_map(|r| view.value(metric, r.measured)).map(|v| v / unit.scale).collect();
                Some((*place, Estimate::of(&values)?))
            };
            points.iter().filter_map(estimate).collect()
        };
        let own = (0..view.contenders().len()).map(|c| (c, of(c)));
        lines.push(own.filter(|(_, points)| !points.is_empty()).collect());
    }
    // Small multiples share their axis. An interval far beyond all means is cut.
    let estimates = || lines.iter().flatten().flat_map(|(_, points)| points.iter().map(|p| p.1));
    let mean = estimates().map(|e| e.mean).fold(0.0, f64::max);
    let top = estimates().map(|e| e.interval().1).fold(0.0, f64::max).min(mean * 1.5);
    let axis = match metric {
        Metric::UtilisationPpm | Metric::JainPpm if mean <= 1e6 / unit.scale => Axis::to(1e6 / unit.scale),
        _ => Axis::covering(mean.max(top)),
    };
    let charts = lines.iter().zip(multiples.iter()).filter(|(l, _)| !l.is_empty());
    charts
        .map(|(lines, (label, _))| {
            let mut panel = Panel::new(direction.scale.clone(), Scale::new(axis, unit.title, unit.unit));
            for (c, points) in lines {
                draw(&mut panel, view, *c, points);
            }
            let entries = lines.iter().map(|(c, _)| Entry {
                series: *c,
                name: view.contenders()[*c].name.clone(),
                style: view.styles[*c],
                marker: Some(view.marker(*c)),
            });
            Figure {
                name: ["sweep", &slug(unit.title), &slug(label)].join("-").trim_end_matches('-').into(),
                title: unit.title.into(),
                subtitle: label.clone(),
                shape: Shape::Curve,
                entries: entries.collect(),
                panels: vec![panel],
                ..Figure::default()
            }
        })
        .collect()
}

fn draw(panel: &mut Panel, view: &View<'_>, contender: usize, points: &[(f64, Estimate)]) {
    let style = view.styles[contender];
    let band = points.iter().map(|(x, e)| (*x, e.interval().0.max(0.0), e.interval().1)).collect();
    panel.marks.push(Mark::Band { series: contender, style, points: band });
    let line = points.iter().map(|(x, e)| (*x, e.mean)).collect();
    panel.marks.push(Mark::Line { series: contender, style, weight: Weight::Full, points: line });
    panel.marks.extend(points.iter().map(|(x, e)| Mark::Point {
        series: contender,
        style,
        marker: view.marker(contender),
        at: (*x, e.mean),
        label: format!(
            "{}: {} ± {}",
            view.contenders()[contender].name,
            format::number(Some(e.mean)),
            format::number(e.half_width)
        ),
        weight: Weight::Faint,
    }));
}

/// A sweep of this range has a logarithmic axis.
const RANGE: f64 = 8.0;
/// Up to this many values are labelled each, if they are this far from each other, of the axis' length.
const MAX_LABELS: usize = 9;
const LABEL_GAP: f64 = 0.07;

fn direction<'a>(keys: &'a [String], scenarios: &[(usize, &'a Scenario)]) -> Option<Direction<'a>> {
    let values = |key: &String| -> Vec<&'a str> {
        let mut values: Vec<&str> = Vec::new();
        for value in scenarios.iter().filter_map(|(_, s)| s.parameters.get(key)) {
            if !values.contains(&value.as_str()) {
                values.push(value);
            }
        }
        values
    };
    // The first of those with the most values.
    let key = keys.iter().rev().max_by_key(|k| values(k).len()).filter(|k| values(k).len() > 1)?;
    let values = values(key);
    let numbers: Option<Vec<f64>> =
        values.iter().map(|v| v.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)).collect();
    let (places, mut scale) = match numbers {
        Some(numbers) => {
            let (low, high) = (
                numbers.iter().copied().fold(f64::INFINITY, f64::min),
                numbers.iter().copied().fold(0.0, f64::max),
            );
            let axis = if low > 0.0 && high / low >= RANGE {
                Axis { min: low, max: high, ..Axis::logarithmic(low, high) }
            } else {
                Axis::between(low, high)
            };
            (numbers, Scale::new(axis, key.clone(), ""))
        }
        None => {
            let end = (values.len() - 1) as f64;
            let axis = Axis { min: 0.0, max: end, step: 1.0, logarithmic: false };
            ((0..values.len()).map(|i| i as f64).collect(), Scale::new(axis, key.clone(), ""))
        }
    };
    let labels: Vec<(f64, String)> =
        places.iter().copied().zip(values.iter().map(|v| (*v).to_owned())).collect();
    let mut at: Vec<f64> = places.iter().map(|p| scale.at(*p)).collect();
    at.sort_by(f64::total_cmp);
    if labels.len() <= MAX_LABELS && at.windows(2).all(|w| w[1] - w[0] >= LABEL_GAP) {
        scale.labels = labels;
    }
    Some(Direction { key, places: values.into_iter().zip(places).collect(), scale })
}

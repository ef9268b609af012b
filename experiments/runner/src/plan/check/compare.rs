//! Checks the comparisons that the report must make.

use std::num::NonZeroU64;

use ccplane_results::{Comparison, Contender, Datapath};

use super::{Checked, refuse};
use crate::plan::model::Scenario;
use crate::plan::source::CompareSource;

/// Every comparison of the plan, of one metric and two contenders each.
pub(in crate::plan) fn comparisons(
    sources: &[CompareSource],
    scenarios: &[Scenario],
    contenders: &[Contender],
) -> Checked<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let field = |key: &str| format!("compare[{n}].{key}");
        if let Some(name) = source.scenario.as_ref().filter(|n| !scenarios.iter().any(|s| s.name == **n)) {
            let names: Vec<&str> = scenarios.iter().map(|s| s.name.as_str()).collect();
            let message = format!("no scenario is called `{name}`; there are {}", names.join("; "));
            return refuse(field("scenario"), message);
        }
        if source.together && source.scenario.is_some() {
            return refuse(field("together"), "with `scenario` there is one only");
        }
        for (of, against) in compared(&field, source, contenders)? {
            comparisons.extend(source.metric.all().iter().map(|metric| Comparison {
                metric: *metric,
                of: of.clone(),
                against: against.clone(),
                constant: source.constant.map(NonZeroU64::get),
                scenario: source.scenario.clone(),
                together: source.together,
                within_ppm: source.within.map(|w| w.get()),
                at_most_ppm: source.at_most.map(|w| w.get()),
                at_least_ppm: source.at_least.map(|w| w.get()),
                paper: source.paper.clone(),
            }));
        }
    }
    Ok(comparisons)
}

/// Returns the pairs of contenders whose figures are compared; a constant's name is empty.
fn compared(
    field: &dyn Fn(&str) -> String,
    source: &CompareSource,
    contenders: &[Contender],
) -> Checked<Vec<(String, String)>> {
    let is_there = |key: &str, name: &str| {
        if contenders.iter().any(|c| c.name == name) {
            return Ok(());
        }
        let names: Vec<&str> = contenders.iter().map(|c| c.name.as_str()).collect();
        refuse(field(key), format!("no contender is called `{name}`; there are {}", names.join(", ")))
    };
    match (&source.of, &source.against, source.across, source.constant) {
        (None, None, Some(datapath), None) => {
            let pairs = across(datapath, contenders);
            if pairs.is_empty() {
                let message =
                    format!("no algorithm runs on `{}` and on another datapath, too", datapath.name());
                return refuse(field("across"), message);
            }
            Ok(pairs)
        }
        (Some(of), None, None, Some(_)) => {
            is_there("of", of)?;
            Ok(vec![(of.clone(), String::new())])
        }
        (Some(of), Some(against), None, None) => {
            is_there("of", of)?;
            is_there("against", against)?;
            if of == against {
                return refuse(field("against"), "a contender is not compared with itself");
            }
            Ok(vec![(of.clone(), against.clone())])
        }
        _ => refuse(
            field("of"),
            "either `of` and `against`, names of contenders; or `of` and `constant`, a whole number in the metric's unit; or `across`, a datapath, with which each algorithm's others are compared",
        ),
    }
}

/// Each algorithm's contenders on other datapaths, with its contender on this one.
fn across(datapath: Datapath, contenders: &[Contender]) -> Vec<(String, String)> {
    let on_it = contenders.iter().filter(|c| c.datapath == datapath);
    let pairs = on_it.flat_map(|base| {
        let others = contenders.iter().filter(move |c| c.datapath != datapath && c.is_same_algorithm(base));
        others.map(|other| (other.name.clone(), base.name.clone()))
    });
    pairs.collect()
}

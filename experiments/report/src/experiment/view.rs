//! Results, sorted for drawing: each contender's runs in each scenario, and its style.

use std::collections::BTreeMap;

use ccplane_results::{Contender, Datapath, Metric, Results, Run, RunFigures, RunOutcome, Scenario};

use super::families::{Family, datapaths, families};
use super::figures;
use crate::draw::{Marker, Style};

/// Results with an index.
pub struct View<'a> {
    pub results: &'a Results,
    /// The style of each contender's lines.
    pub styles: Vec<Style>,
    /// Algorithms on several datapaths, in a plan with too many contenders for one chart; else none.
    pub families: Vec<Family>,
    /// By scenario and contender, in order of repeats.
    runs: BTreeMap<(usize, usize), Vec<Repeat<'a>>>,
    pub failed: Vec<Failure<'a>>,
    /// Runs that the header does not know.
    pub unknown: Vec<&'a Run>,
}

/// A run that ended well.
#[derive(Clone, Copy)]
pub struct Repeat<'a> {
    /// Index of its scenario.
    pub scenario: usize,
    /// The number of the repeat, from 0.
    pub repeat: u32,
    pub measured: &'a RunFigures,
}

/// A run that did not.
pub struct Failure<'a> {
    pub run: &'a Run,
    pub error: &'a str,
    /// Whether a later attempt ended well.
    pub mended: bool,
}

/// Scenarios that belong together: the points of a sweep, or one alone.
pub struct Sweep {
    /// Indices of scenarios, in the file's order.
    pub scenarios: Vec<usize>,
    /// The keys that vary; empty for a scenario alone.
    pub keys: Vec<String>,
}

impl<'a> View<'a> {
    /// Sorts `results`. Of several good runs of one repeat the last counts.
    pub fn new(results: &'a Results) -> Self {
        let mut good: BTreeMap<(usize, usize), BTreeMap<u32, &'a RunFigures>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for run in &results.runs {
            let scenario = results.header.scenarios.iter().position(|s| s.name == run.scenario);
            let contender = results.header.contenders.iter().position(|c| c.name == run.contender);
            match (scenario, contender, &run.outcome) {
                (Some(s), Some(c), RunOutcome::Ok(measured)) => {
                    good.entry((s, c)).or_default().insert(run.repeat, measured);
                }
                (Some(_), Some(_), RunOutcome::Failed { .. }) => {}
                _ => unknown.push(run),
            }
        }
        let mended = |run: &Run| {
            good.iter().any(|((s, c), repeats)| {
                results.header.scenarios[*s].name == run.scenario
                    && results.header.contenders[*c].name == run.contender
                    && repeats.contains_key(&run.repeat)
            })
        };
        let failed = results.runs.iter().filter_map(|run| match &run.outcome {
            RunOutcome::Failed { error } => Some(Failure { run, error, mended: mended(run) }),
            RunOutcome::Ok(_) => None,
        });
        let failed = failed.collect();
        let runs = good
            .into_iter()
            .map(|(key, repeats)| {
                let of = |(repeat, measured)| Repeat { scenario: key.0, repeat, measured };
                (key, repeats.into_iter().map(of).collect())
            })
            .collect();
        let contenders = &results.header.contenders;
        let families = families(contenders);
        let styles = if families.is_empty() {
            styles(contenders)
        } else {
            datapaths(contenders).into_iter().map(|n| Style::line(n, n)).collect()
        };
        Self { results, styles, families, runs, failed, unknown }
    }

    /// Returns the scenarios in the plan's order.
    pub fn scenarios(&self) -> &'a [Scenario] {
        &self.results.header.scenarios
    }

    /// Returns a scenario's name; `None` stands for all of them.
    pub fn scenario_name(&self, scenario: Option<usize>) -> &str {
        let named = |s: usize| self.scenarios().get(s).map_or("", |s| s.name.as_str());
        scenario.map_or("all together", named)
    }

    /// Returns the contenders in the plan's order.
    pub fn contenders(&self) -> &'a [Contender] {
        &self.results.header.contenders
    }

    /// The good runs of a contender in a scenario, by repeat.
    pub fn runs(&self, scenario: usize, contender: usize) -> &[Repeat<'a>] {
        self.runs.get(&(scenario, contender)).map_or(&[], Vec::as_slice)
    }

    /// All good runs in a scenario, with their contenders.
    pub fn all_runs(&self, scenario: usize) -> impl Iterator<Item = (usize, Repeat<'a>)> + '_ {
        let contenders = 0..self.contenders().len();
        contenders.flat_map(move |c| self.runs(scenario, c).iter().map(move |run| (c, *run)))
    }

    /// The run that stands for a contender in a scenario: the one of median throughput, or of median completion time where
    /// there are short flows only.
    pub fn representative(&self, scenario: usize, contender: usize) -> Option<Repeat<'a>> {
        let mut runs = self.runs(scenario, contender).to_vec();
        runs.sort_by(|a, b| self.typical(a).total_cmp(&self.typical(b)));
        runs.get(runs.len().checked_sub(1)? / 2).copied()
    }

    fn typical(&self, run: &Repeat<'_>) -> f64 {
        figures::typical(run.measured, self.results.header.plan.warmup_ms)
    }

    /// A run's figure, in the unit that the metric's name ends in.
    pub fn value(&self, metric: Metric, measured: &RunFigures) -> Option<f64> {
        figures::value(metric, measured, self.results.header.plan.warmup_ms)
    }

    /// Returns the contender that another is compared with where the plan names none. The candidates have runs in the
    /// scenario and, where there are families, the same algorithm. The kernel's own algorithm of the contender's name
    /// comes first, then the kernel's first, then the first.
    pub fn baseline(&self, scenario: usize, contender: usize) -> Option<usize> {
        let all = self.contenders();
        let family = self.families.iter().find(|f| f.members.contains(&contender));
        let related = |c: &usize| family.is_none_or(|f| f.members.contains(c));
        let with_runs = || (0..all.len()).filter(related).filter(|c| !self.runs(scenario, *c).is_empty());
        let kernel = || with_runs().filter(|c| all[*c].datapath == Datapath::Kernel);
        let same = kernel().find(|c| all[*c].algorithm == all[contender].algorithm);
        same.or_else(|| kernel().next()).or_else(|| with_runs().next())
    }

    /// A contender's marker: its own, or its family's.
    pub fn marker(&self, contender: usize) -> Marker {
        let family = self.families.iter().position(|f| f.members.contains(&contender));
        Marker::nth(family.unwrap_or(contender))
    }

    /// Runs that the plan asks for.
    pub fn planned(&self) -> u64 {
        let pairs = self.scenarios().len() as u64 * self.contenders().len() as u64;
        pairs * u64::from(self.results.header.plan.repeats)
    }

    /// Runs that ended well.
    pub fn done(&self) -> u64 {
        self.runs.values().map(|runs| runs.len() as u64).sum()
    }

    /// Scenarios whose swept keys are the same belong together.
    pub fn sweeps(&self) -> Vec<Sweep> {
        let mut sweeps: Vec<Sweep> = Vec::new();
        for (i, scenario) in self.scenarios().iter().enumerate() {
            let keys: Vec<String> = scenario.parameters.keys().cloned().collect();
            match sweeps.iter_mut().find(|s| !keys.is_empty() && s.keys == keys) {
                Some(sweep) => sweep.scenarios.push(i),
                None => sweeps.push(Sweep { scenarios: vec![i], keys }),
            }
        }
        sweeps
    }
}

/// Baselines (the kernel's own) are broad pale bands, so that a line on top of one can still be seen.
fn styles(contenders: &[Contender]) -> Vec<Style> {
    let (mut bands, mut lines) = (0, 0);
    contenders
        .iter()
        .enumerate()
        .map(|(i, c)| {
            let n = if c.datapath == Datapath::Kernel { &mut bands } else { &mut lines };
            *n += 1;
            if c.datapath == Datapath::Kernel { Style::band(i, *n - 1) } else { Style::line(i, *n - 1) }
        })
        .collect()
}

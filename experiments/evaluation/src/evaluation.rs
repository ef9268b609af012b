//! The report of an algorithm's evaluation: criteria with verdicts, checks with intervals, cases with commands.

use std::collections::BTreeMap;

use ccplane_results::Datapath;
use serde::{Deserialize, Serialize};

use crate::case::{Case, Contender};
use crate::conformance::Conformed;
use crate::criterion::{Against, Check, Criterion, Group, Kind};
use crate::error::EvaluationError;
use crate::measure::{Cell, Figures, Metric};
use crate::play::{Ground, REFERENCES, STANDARDS};
use crate::verdict::{Bound, Judgement, Verdict, judge, relative};

/// Version of the JSON. Fields may be added to a version; none changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;
/// The document whose criteria these are.
const RFC: &str = "RFC 9743 (BCP 133)";

/// An algorithm's verdicts and figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    /// The version of the format, [`SCHEMA_VERSION`].
    pub schema: u32,
    pub rfc: String,
    pub algorithm: String,
    pub provenance: Provenance,
    /// Whether all criteria of sections 5 and 6 that were evaluated pass, as the RFC asks for general use.
    pub general_use: Verdict,
    pub criteria: Vec<CriterionResult>,
    /// Our program against the kernel's algorithm of the same name, where both were played.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Conformed>,
    /// Every case that was simulated.
    pub cases: Vec<CaseFigures>,
    /// Every case that was repeated with kernel flows.
    pub live: Vec<CaseFigures>,
}

/// The program and command that made an evaluation.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Provenance {
    pub version: String,
    /// The commit of the source; empty when unknown.
    pub commit: String,
    pub command: String,
    /// The name of the program, by which cases are repeated.
    pub program: String,
    /// Simulated cases of each set.
    pub cases: u32,
    /// Share of them that was drawn to be repeated with kernel flows.
    pub live_share: f64,
}

/// A criterion with its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CriterionResult {
    pub name: String,
    pub section: String,
    /// The heading that the RFC has it under.
    pub group: String,
    pub title: String,
    /// The RFC's question, in our words.
    pub asks: String,
    pub verdict: Verdict,
    /// The reason why it is not applicable, or the checks that raise the concern.
    pub why: String,
    pub checks: Vec<CheckResult>,
}

/// A check with what it came to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CheckResult {
    pub set: String,
    /// The scenarios of the set, in a sentence.
    pub scenarios: String,
    pub metric: Metric,
    /// The metric in words, and its unit.
    pub title: String,
    pub unit: String,
    pub bound: Bound,
    pub limit: f64,
    /// Whether the limit and the judged mean are ratios to the worse of Reno and CUBIC in each case, the mean geometric.
    pub is_relative: bool,
    pub verdict: Verdict,
    /// The judged mean over the simulated cases; `None` without any.
    pub simulated: Option<Judgement>,
    /// The same over the live cases, which decide nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Judgement>,
    /// Means of the algorithm and of the references, simulated.
    pub references: Vec<Reference>,
    /// The case in which the algorithm keeps to the limit the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<Worst>,
}

/// A contender's means in a check.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reference {
    pub algorithm: String,
    /// Mean of the metric, in its unit.
    pub mean: f64,
    /// The number that is judged: a ratio where the limit is one.
    pub judged: f64,
}

/// The case in which a check does worst.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Worst {
    pub case: String,
    /// The number that is judged.
    pub value: f64,
    /// The command that repeats it.
    pub command: String,
}

/// A case, and what each contender did in it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CaseFigures {
    pub case: String,
    /// Its link in words.
    pub link: String,
    /// The command that repeats it.
    pub command: String,
    /// By the contender's name.
    pub contenders: BTreeMap<String, Figures>,
}

/// A simulated or a live world: the cells of one, by case and contender.
struct World<'a> {
    cells: BTreeMap<(&'a str, &'a str, Datapath), &'a Figures>,
    evaluated: Contender,
    /// The datapath of the references.
    references: Datapath,
}

impl<'a> World<'a> {
    fn new(cells: &'a [Cell], algorithm: &str, is_live: bool) -> World<'a> {
        let (own, references) =
            if is_live { (Datapath::Ebpf, Datapath::Kernel) } else { (Datapath::Sim, Datapath::Sim) };
        let key =
            |cell: &'a Cell| ((cell.case.as_str(), cell.algorithm.as_str(), cell.datapath), &cell.figures);
        World {
            cells: cells.iter().map(key).collect(),
            evaluated: Contender { algorithm: algorithm.to_owned(), datapath: own },
            references,
        }
    }

    fn figures(&self, case: &str, algorithm: &str, datapath: Datapath) -> Option<&'a Figures> {
        self.cells.get(&(case, algorithm, datapath)).copied()
    }

    /// Names of the cases of a set that the algorithm has played.
    fn cases(&self, set: &str) -> Vec<&'a str> {
        let of = |(case, algorithm, datapath): &(&'a str, &'a str, Datapath)| {
            let is_of = case.split_once('/').is_some_and(|(name, _)| name == set);
            let is_own = *algorithm == self.evaluated.algorithm && *datapath == self.evaluated.datapath;
            (is_of && is_own).then_some(*case)
        };
        let mut cases: Vec<&str> = self.cells.keys().filter_map(of).collect();
        cases.sort_by_key(|case| (case.len(), *case));
        cases
    }

    /// A contender's value as the check judges it, ratios as logarithms.
    fn judged(&self, check: &Check, case: &str, algorithm: &str, datapath: Datapath) -> Option<f64> {
        let value = check.metric.value(self.figures(case, algorithm, datapath)?)?;
        let standard = |name: &&str| check.metric.value(self.figures(case, name, self.references)?);
        match check.against {
            Against::Absolute => Some(value),
            Against::Standards => {
                let standards: Option<Vec<f64>> = STANDARDS.iter().map(standard).collect();
                relative(value, &standards?, check.metric.grain(), check.bound)
            }
        }
    }

    /// The algorithm's judged values, by case.
    fn values(&self, check: &Check) -> Vec<(&'a str, f64)> {
        let Contender { algorithm, datapath } = &self.evaluated;
        let value = |case: &'a str| Some((case, self.judged(check, case, algorithm, *datapath)?));
        self.cases(check.set.name()).into_iter().filter_map(value).collect()
    }

    fn judge(&self, check: &Check) -> Option<Judgement> {
        let values: Vec<f64> = self.values(check).into_iter().map(|(_, value)| value).collect();
        match check.against {
            Against::Absolute => judge(&values, check.bound, check.limit),
            Against::Standards => {
                let judged = judge(&values, check.bound, check.limit.ln())?;
                let (mean, low, high) = (judged.mean.exp(), judged.low.exp(), judged.high.exp());
                Some(Judgement { mean, low, high, ..judged })
            }
        }
    }

    fn reference(&self, check: &Check, algorithm: &str, datapath: Datapath) -> Option<Reference> {
        let cases = self.cases(check.set.name());
        let metric = |case: &&str| check.metric.value(self.figures(case, algorithm, datapath)?);
        let mean = mean_of(cases.iter().filter_map(metric))?;
        let judged = mean_of(cases.iter().filter_map(|case| self.judged(check, case, algorithm, datapath)))?;
        Some(Reference { algorithm: algorithm.to_owned(), mean, judged: shown(check, judged) })
    }
}

fn mean_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// A judged value in the limit's unit.
fn shown(check: &Check, judged: f64) -> f64 {
    match check.against {
        Against::Absolute => judged,
        Against::Standards => judged.exp(),
    }
}

impl Evaluation {
    /// Of the cells that were played; criteria are evaluated by whatever cases there are.
    ///
    /// # Errors
    /// A cell names no case, or its plan is refused.
    pub fn new(
        algorithm: &str,
        criteria: &[&Criterion],
        (simulated, live): (&[Cell], &[Cell]),
        conformance: Option<Conformed>,
        provenance: Provenance,
        ground: Ground<'_>,
    ) -> Result<Evaluation, EvaluationError> {
        let worlds = [World::new(simulated, algorithm, false), World::new(live, algorithm, true)];
        let command = |case: &str| command(&provenance.program, algorithm, case);
        // The same case with kernel flows: its share is the whole of it.
        let live_command = |case: &str| format!("{} --live 1", command(case));
        let results: Vec<CriterionResult> =
            criteria.iter().map(|criterion| result(criterion, &worlds, &command)).collect();
        let asked = |result: &&CriterionResult| {
            criteria.iter().any(|c| {
                c.name == result.name && matches!(c.group, Group::Single | Group::Mixed | Group::General)
            })
        };
        let general_use = results.iter().filter(asked).map(|r| r.verdict).max();
        Ok(Evaluation {
            schema: SCHEMA_VERSION,
            rfc: RFC.to_owned(),
            algorithm: algorithm.to_owned(),
            general_use: general_use.unwrap_or(Verdict::NotApplicable),
            criteria: results,
            conformance,
            cases: case_figures(simulated, &worlds[0].evaluated, &command, ground)?,
            live: case_figures(live, &worlds[1].evaluated, &live_command, ground)?,
            provenance,
        })
    }

    /// Returns the number of criteria with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.criteria.iter().filter(|criterion| criterion.verdict == verdict).count()
    }
}

/// The command that repeats a case.
fn command(program: &str, algorithm: &str, case: &str) -> String {
    format!("{program} evaluate {algorithm} --case {case}")
}

fn result(
    criterion: &Criterion,
    worlds: &[World<'_>; 2],
    command: &dyn Fn(&str) -> String,
) -> CriterionResult {
    let checks: Vec<CheckResult> =
        criterion.checks().iter().map(|check| check_result(check, worlds, command)).collect();
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::NotApplicable);
    let why = match criterion.kind {
        Kind::NotApplicable(why) => why.to_owned(),
        Kind::Measured(_) => why(&checks, verdict),
    };
    CriterionResult {
        name: criterion.name.to_owned(),
        section: criterion.section.to_owned(),
        group: criterion.group.title().to_owned(),
        title: criterion.title.to_owned(),
        asks: criterion.asks.to_owned(),
        verdict,
        why,
        checks,
    }
}

/// The reason of a verdict in words.
fn why(checks: &[CheckResult], verdict: Verdict) -> String {
    match verdict {
        Verdict::NotApplicable => "no case of it was played".to_owned(),
        Verdict::Pass => format!("all {} checks keep to their limits", checks.len()),
        Verdict::Concern => {
            let concerns = checks.iter().filter(|check| check.verdict == Verdict::Concern);
            concerns.map(CheckResult::text).collect::<Vec<_>>().join("; ")
        }
    }
}

fn check_result(check: &Check, worlds: &[World<'_>; 2], command: &dyn Fn(&str) -> String) -> CheckResult {
    let [world, live] = worlds;
    let simulated = world.judge(check);
    let worst =
        world.values(check).into_iter().reduce(|a, b| if check.bound.is_worse(b.1, a.1) { b } else { a });
    let Contender { algorithm, datapath } = &world.evaluated;
    let others = REFERENCES.iter().filter(|name| *name != algorithm);
    let own = world.reference(check, algorithm, *datapath);
    let references =
        own.into_iter().chain(others.filter_map(|name| world.reference(check, name, world.references)));
    let (title, unit) = check.metric.title();
    CheckResult {
        set: check.set.name().to_owned(),
        scenarios: check.set.about().to_owned(),
        metric: check.metric,
        title: title.to_owned(),
        unit: unit.to_owned(),
        bound: check.bound,
        limit: check.limit,
        is_relative: check.against == Against::Standards,
        verdict: simulated.map_or(Verdict::NotApplicable, |judged| judged.verdict),
        simulated,
        live: live.judge(check),
        references: references.collect(),
        worst: worst.map(|(case, value)| Worst {
            case: case.to_owned(),
            value: shown(check, value),
            command: command(case),
        }),
    }
}

impl CheckResult {
    /// The limit in words, such as "at least 0.8 of the standards'".
    #[must_use]
    pub fn limit_text(&self) -> String {
        let unit = match (self.is_relative, self.unit.as_str()) {
            (true, _) => " of the standards'".to_owned(),
            (false, "" | "share") => String::new(),
            (false, unit) => format!(" {unit}"),
        };
        format!("{} {}{unit}", self.bound.name(), figure(self.limit))
    }

    /// The check in a line: set, metric, interval, limit.
    #[must_use]
    pub fn text(&self) -> String {
        let measured = self.simulated.map_or_else(|| "no case".to_owned(), |judged| interval(&judged));
        let open = if self.simulated.is_some_and(|j| j.verdict == Verdict::Concern && !j.is_clear) {
            ", left open by the interval"
        } else {
            ""
        };
        format!("{}, {}: {measured}, {}{open}", self.title, self.set, self.limit_text())
    }
}

/// A mean and its interval: "0.81 [0.7, 0.93]".
pub(crate) fn interval(judged: &Judgement) -> String {
    format!("{} [{}, {}]", figure(judged.mean), figure(judged.low), figure(judged.high))
}

/// Three digits, without needless zeros.
pub(crate) fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// The cases of the cells that belong to an evaluation, in their order.
fn case_figures(
    cells: &[Cell],
    evaluated: &Contender,
    command: &dyn Fn(&str) -> String,
    ground: Ground<'_>,
) -> Result<Vec<CaseFigures>, EvaluationError> {
    let mut cases: Vec<CaseFigures> = Vec::new();
    for cell in cells {
        let contender = Contender { algorithm: cell.algorithm.clone(), datapath: cell.datapath };
        let at = match cases.iter().position(|of| of.case == cell.case) {
            Some(at) => at,
            None => {
                let case: Case = cell.case.parse()?;
                let plan = case.plan(
                    &[Contender::simulated(&evaluated.algorithm)],
                    ground.algorithms,
                    ground.traces,
                )?;
                let link = plan.scenarios.first().map(|s| s.link.to_string()).unwrap_or_default();
                cases.push(CaseFigures {
                    case: cell.case.clone(),
                    link,
                    command: command(&cell.case),
                    contenders: BTreeMap::new(),
                });
                cases.len() - 1
            }
        };
        cases[at].contenders.insert(contender.name(), cell.figures.clone());
    }
    Ok(cases)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::criterion::CRITERIA;
    use crate::trace::Traces;

    /// Cells of three cases of each set that are checked; the algorithm's goodput, queues and shares are worse by a factor.
    pub(crate) fn cells(algorithm: &str, harm: u64, datapaths: (Datapath, Datapath)) -> Vec<Cell> {
        let sets = crate::scenario::ScenarioSet::ALL;
        let cell = |set: &crate::scenario::ScenarioSet, number: u64, name: &str, datapath, harm: u64| Cell {
            case: format!("{}/{number}", set.name()),
            algorithm: name.to_owned(),
            datapath,
            digest: String::new(),
            figures: Figures {
                throughput_bps: (8 + number) * 1_000_000 / harm,
                goodput_ppm: 900_000 / harm,
                queue_us: 20_000 * harm,
                p95_queue_us: 30_000 * harm,
                dropped_ppm: 10_000 * harm,
                marked_ppm: Some(10_000 * harm),
                loss_ppm: 10_000 * harm,
                packets_per_1000_rtts: 900 * harm,
                packets_per_1000_s: 900 * harm,
                fair_share_ppm: 900_000 / harm,
                jain_ppm: 950_000 / harm,
                least_ppm: 800_000 / harm,
                rival_bps: Some((4 + number) * 1_000_000 / harm),
                p95_fct_us: Some(300_000 * harm),
                unfinished_ppm: Some(0),
                beside_fct_us: Some(200_000 * harm),
                datagram_loss_ppm: Some(10_000 * harm),
                mean_rtt_us: 50_000,
            },
        };
        let mut cells = Vec::new();
        for set in sets {
            for number in 0..3 {
                cells.push(cell(set, number, algorithm, datapaths.0, harm));
                let references = REFERENCES.iter().filter(|name| **name != algorithm);
                cells.extend(references.map(|name| cell(set, number, name, datapaths.1, 1)));
            }
        }
        cells
    }

    /// An evaluation of all criteria, with harm by this factor.
    pub(crate) fn evaluation(algorithm: &str, harm: u64) -> Evaluation {
        let (algorithms, traces) = (ccplane_algs::all(), Traces::default());
        let ground = Ground { algorithms: &algorithms, traces: &traces };
        let provenance = Provenance { program: "ccplane".to_owned(), cases: 3, ..Provenance::default() };
        let criteria: Vec<&Criterion> = CRITERIA.iter().collect();
        let simulated = cells(algorithm, harm, (Datapath::Sim, Datapath::Sim));
        let live = &cells(algorithm, harm, (Datapath::Ebpf, Datapath::Kernel))[..12];
        Evaluation::new(algorithm, &criteria, (&simulated, live), None, provenance, ground).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::evaluation;
    use super::*;
    use crate::criterion::CRITERIA;

    #[test]
    fn what_is_as_good_as_the_standards_passes_and_what_is_not_raises_concerns() {
        let measured = CRITERIA.iter().filter(|c| !c.checks().is_empty()).count();
        let good = evaluation("copa", 1);
        assert_eq!((good.count(Verdict::Pass), good.general_use), (measured, Verdict::Pass));
        assert_eq!(good.count(Verdict::NotApplicable), CRITERIA.len() - measured);
        let bad = evaluation("copa", 10);
        assert_eq!((bad.count(Verdict::Concern), bad.general_use), (measured, Verdict::Concern));
        let found = |name: &str| bad.criteria.iter().find(|c| c.name == name).unwrap();
        assert_eq!(
            found("bufferbloat").why,
            "mean queueing delay, deep: 9.18 [9.18, 9.18], at most 1.25 of the standards'"
        );
        let starved = &found("starvation").checks[0];
        assert_eq!(
            starved.text(),
            "its slowest flow, jitter-one: 0.08 [0.08, 0.08], at least 0.2 of its fastest"
        );
        let worst = starved.worst.as_ref().unwrap();
        assert_eq!(worst.command, "ccplane evaluate copa --case jitter-one/0");
        assert!(found("multicast").why.starts_with("out of the RFC's scope"));
    }

    /// The algorithm comes first, then the references in their order; ratios are to the standards.
    #[test]
    fn references_stand_behind_the_algorithm_in_their_order() {
        let bad = evaluation("copa", 2);
        let wired = bad.criteria.iter().find(|c| c.name == "wired").unwrap();
        let carried = &wired.checks[0];
        let names: Vec<&str> = carried.references.iter().map(|r| r.algorithm.as_str()).collect();
        assert_eq!(names, ["copa", "reno", "cubic", "bbr"]);
        assert!((carried.references[0].judged - 0.5).abs() < 1e-3 && carried.references[1].judged == 1.0);
        assert_eq!(carried.references[1].mean, 9.0);
        // Three sets' worth of live cells: their first three cases.
        let collapse = &bad.criteria[0].checks[0];
        assert_eq!((collapse.set.as_str(), collapse.live.map(|j| j.cases)), ("heavy-loss", Some(3)));
        assert_eq!((bad.cases.len(), bad.live.len()), (3 * crate::ScenarioSet::ALL.len(), 3));
        assert_eq!(bad.cases[0].contenders.len(), 4);
        assert!(bad.live[0].contenders.contains_key("kernel cubic"));
        // Each names the command that repeats it, in its own world.
        assert_eq!(bad.cases[0].command, "ccplane evaluate copa --case heavy-loss/0");
        assert_eq!(bad.live[0].command, "ccplane evaluate copa --case heavy-loss/0 --live 1");
    }

    #[test]
    fn a_standard_has_itself_among_the_standards() {
        let reno = evaluation("reno", 1);
        assert_eq!(reno.count(Verdict::Concern), 0);
        assert_eq!(reno.cases[0].contenders.len(), 3);
        assert!(reno.criteria.iter().flat_map(|c| &c.checks).all(|c| c.references.len() == 3));
    }

    /// Every path of the JSON with its type. A line that goes or changes breaks readers: then the version has to change, too.
    fn schema(path: &str, value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
        use serde_json::Value;
        let kind = match value {
            Value::Object(map) => {
                let is_by_name = path.ends_with(".contenders");
                for (key, value) in map {
                    let key = if is_by_name { "*" } else { key.as_str() };
                    schema(&format!("{path}.{key}"), value, found);
                }
                return;
            }
            Value::Array(values) => {
                return values.iter().for_each(|value| schema(&format!("{path}[]"), value, found));
            }
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
        };
        found.insert(format!("{path}: {kind}"));
    }

    #[test]
    fn the_json_keeps_its_shape() {
        use crate::conformance::LinkConformance;
        use crate::envelope::Point;
        let mut evaluation = evaluation("copa", 2);
        let point = Point { throughput_mbit: 1.0, rtt_ms: 2.0 };
        let link = LinkConformance {
            case: "conformance/0".to_owned(),
            link: String::new(),
            conformance: 0.5,
            kernels_own: 1.0,
            ours: vec![point],
            kernels: vec![point],
        };
        evaluation.conformance = Some(Conformed::new("reno", vec![link]));
        let mut found = std::collections::BTreeSet::new();
        schema("", &serde_json::to_value(&evaluation).unwrap(), &mut found);
        let found: Vec<String> = found.into_iter().collect();
        let expected: Vec<&str> = include_str!("../tests/schema.txt").lines().collect();
        assert_eq!(found, expected, "version {SCHEMA_VERSION}:\n{}", found.join("\n"));
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.123_45, "0.123"),
            (12.345, "12.3"),
            (1234.4, "1234"),
            (0.5, "0.5"),
            (100.0, "100"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}

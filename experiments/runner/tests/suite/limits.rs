//! FIGURES has each limit of each plan, and says of each that some run missed by how much.

use ccplane_results::Comparison;
use ccplane_runner::plan::{Known, Overrides, shipped};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FIGURES: &str = include_str!("../../../FIGURES.md");
/// The states of a limit in its table.
const STATES: [&str; 3] = ["kept", "missed", "no run is reported"];
/// Limits that plans have, at least: fewer were read wrongly.
const LEAST: usize = 25;

/// The rows of a section's first table, without its head, as their cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = FIGURES.split_once(&format!("\n## {heading}\n")).unwrap().1;
    let table = section.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
    table.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The limit of a comparison, as FIGURES writes it.
fn allowed(comparison: &Comparison) -> Option<String> {
    // A constant is a time; its limit is one, too.
    let bound = |ppm: u64| match comparison.constant {
        Some(us) => format!("{} s", us as f64 * ppm as f64 / 1e12),
        None => format!("{}", ppm as f64 / 1e6),
    };
    let within = comparison.within_ppm.map(|ppm| format!("within {} %", ppm as f64 / 1e4));
    let at_most = comparison.at_most_ppm.map(|ppm| format!("at most {}", bound(ppm)));
    let at_least = comparison.at_least_ppm.map(|ppm| format!("at least {}", bound(ppm)));
    let all: Vec<String> = [within, at_most, at_least].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The limits of all plans: plan, metric and limit.
fn limits() -> BTreeSet<(String, String, String)> {
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let mut limits = BTreeSet::new();
    for plan in shipped::PLANS {
        for comparison in shipped::load(plan.name, &known, Overrides::default()).unwrap().comparisons {
            let metric = serde_json::to_value(comparison.metric).unwrap().as_str().unwrap().to_owned();
            limits.extend(allowed(&comparison).map(|allowed| (plan.name.to_owned(), metric, allowed)));
        }
    }
    limits
}

/// The rows about each plan of what falls short, its name and what it wants, with spaces around each word. A row that begins with
/// "the same" is about the plan of the row before.
fn short_of() -> BTreeMap<&'static str, Vec<String>> {
    let mut short = BTreeMap::<_, Vec<String>>::new();
    let mut plan = "";
    for row in rows("What falls short") {
        if !row[0].starts_with("the same") {
            let name = row[0].strip_prefix('`').and_then(|rest| rest.split(['`', ' ']).next());
            plan = name.unwrap_or_default();
        }
        let wanted = row[..2].join(" ").replace([';', ','], " ");
        short.entry(plan).or_default().push(format!(" {wanted} "));
    }
    short
}

#[test]
fn figures_has_each_limit_of_each_plan() {
    let (mut listed, short) = (BTreeSet::new(), short_of());
    for row in rows("Limits of plans") {
        let [plan, metric, allowed, state] = &row[..] else { panic!("four cells: {row:?}") };
        let (plan, metric) = (plan.trim_matches('`'), metric.trim_matches('`'));
        assert!(STATES.contains(state), "{row:?}");
        let says =
            |wanted: &str| short.get(plan).is_some_and(|rows| rows.iter().any(|row| row.contains(wanted)));
        let wanted = allowed.trim_start_matches("at most ").trim_start_matches("at least ");
        assert!(*state != "missed" || says(&format!(" {wanted} ")), "not in what falls short: {row:?}");
        assert!(listed.insert((plan.to_owned(), metric.to_owned(), (*allowed).to_owned())), "twice: {row:?}");
    }
    let limits = limits();
    assert!(limits.len() >= LEAST, "{limits:?}");
    let (missing, gone): (Vec<_>, Vec<_>) =
        (limits.difference(&listed).collect(), listed.difference(&limits).collect());
    assert!(missing.is_empty() && gone.is_empty(), "not in FIGURES: {missing:#?}; only there: {gone:#?}");
}

/// A plan of which something falls short has a limit that its table says was missed.
#[test]
fn what_falls_short_of_a_plan_is_missed_in_its_limits() {
    let limits = rows("Limits of plans");
    let of = |plan: &str| limits.iter().filter(|row| row[0].trim_matches('`') == plan).collect::<Vec<_>>();
    for plan in short_of().into_keys() {
        let limits = of(plan);
        assert!(limits.is_empty() || limits.iter().any(|row| row[3] == "missed"), "{plan}: {limits:?}");
    }
}

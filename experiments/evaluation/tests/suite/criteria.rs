//! Algorithms that are known to fail a criterion raise its concern, and standards pass it.

use std::path::Path;
use std::sync::Arc;

use ccplane_alg::{Algorithm, FoldAlgorithm};
use ccplane_evaluation::{
    Case, CaseFigures, CheckResult, Criterion, CriterionResult, Evaluation, Ground, Metric, Play, Provenance,
    Store, Traces, Verdict, contenders, page, play, text,
};

/// An algorithm that does not come with ccplane: the example that `ccplane new` copies.
const OUTSIDE: FoldAlgorithm = FoldAlgorithm {
    name: "aimd",
    source: include_str!("../../../../algs/examples/aimd/src/aimd.fold"),
    parameters: &[],
    registers: &[("mss", |start| start.info.mss_bytes.into())],
    resumed: &[],
};

fn algorithms() -> Vec<Arc<dyn Algorithm>> {
    let mut algorithms = ccplane_algs::all();
    algorithms.push(Arc::new(OUTSIDE));
    algorithms
}

/// An algorithm's evaluation by one criterion, with so many cases of each set, on so many cores.
fn evaluate(algorithm: &str, criterion: &str, cases: u32, cores: usize, directory: &Path) -> Evaluation {
    let (algorithms, traces) = (algorithms(), Traces::default());
    let ground = Ground { algorithms: &algorithms, traces: &traces };
    let criterion = Criterion::find(criterion).unwrap();
    let mut sets: Vec<_> = criterion.checks().iter().map(|check| check.set).collect();
    sets.dedup();
    let drawn = sets.into_iter().flat_map(|set| (0..cases).filter_map(move |n| Case::new(set, n)));
    let plays: Vec<Play> = drawn
        .flat_map(|case| contenders(algorithm).into_iter().map(move |contender| Play { case, contender }))
        .collect();
    let store = Store::open(&directory.join("cells.jsonl"), false).unwrap();
    let cells = play(&plays, ground, &store, cores, &|_| true).unwrap().unwrap();
    let provenance = Provenance { program: "ccplane".to_owned(), cases, ..Provenance::default() };
    Evaluation::new(algorithm, &[criterion], (&cells, &[]), None, provenance, ground).unwrap()
}

fn only(evaluation: &Evaluation) -> &CriterionResult {
    assert_eq!(evaluation.criteria.len(), 1);
    &evaluation.criteria[0]
}

/// `constant` reacts to nothing; Reno halves, and backs off. Both share the references' cells.
#[test]
fn who_never_backs_off_collapses_and_reno_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let constant = evaluate("constant", "congestion-collapse", 4, 2, directory.path());
    let constant = only(&constant);
    assert_eq!(constant.verdict, Verdict::Concern, "{}", constant.why);
    let clear = |set: &str| {
        let checks = constant.checks.iter().filter(|check| check.set == set);
        checks.filter_map(|check| check.simulated).any(|j| j.verdict == Verdict::Concern && j.is_clear)
    };
    assert!(clear("crowd"), "{}", constant.why);
    let reno = evaluate("reno", "congestion-collapse", 4, 2, directory.path());
    assert_eq!(only(&reno).verdict, Verdict::Pass, "{}", only(&reno).why);
    assert_eq!(reno.general_use, Verdict::Pass);
}

/// BBR is the RFC's own example of section 5.1.3: several flows on a queue of less than a bandwidth-delay product.
#[test]
fn bbr_drops_much_on_shallow_queues_and_reno_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let check = |algorithm: &str| {
        let evaluation = evaluate(algorithm, "high-loss", 4, 2, directory.path());
        only(&evaluation).checks[0].clone()
    };
    let (bbr, reno) = (check("bbr"), check("reno"));
    assert_eq!((bbr.set.as_str(), bbr.verdict), ("shallow", Verdict::Concern), "{}", bbr.text());
    assert_eq!(reno.verdict, Verdict::Pass, "{}", reno.text());
}

/// Vegas takes a delay that is no queue for one of its own (Arun et al., SIGCOMM 2022). It leaves the link to the flow without
/// that delay. Reno, which hears of losses alone, does not.
#[test]
fn who_takes_jitter_for_a_queue_starves_and_reno_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let check = |algorithm: &str| {
        let evaluation = evaluate(algorithm, "starvation", 4, 2, directory.path());
        let found = only(&evaluation).clone();
        let jittered = found.checks.iter().find(|check| check.set == "jitter-one").unwrap().clone();
        (found, jittered)
    };
    let ((vegas, starved), (reno, shared)) = (check("vegas"), check("reno"));
    assert_eq!((vegas.verdict, starved.verdict), (Verdict::Concern, Verdict::Concern), "{}", vegas.why);
    assert_eq!(reno.verdict, Verdict::Pass, "{}", reno.why);
    let mean = |check: &CheckResult| check.simulated.unwrap().mean;
    assert!(mean(&starved) < starved.limit && mean(&shared) > 2.0 * mean(&starved), "{}", starved.text());
}

/// The example hears of losses alone; Reno answers a mark as one.
#[test]
fn who_ignores_marks_raises_the_concern_and_reno_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let deaf = evaluate("aimd", "ecn", 4, 2, directory.path());
    let found = only(&deaf);
    assert_eq!(found.verdict, Verdict::Concern, "{}", found.why);
    // Its throughput alone would not show that it does not respond.
    let is_harm =
        |check: &CheckResult| check.verdict == Verdict::Concern && check.metric != Metric::Throughput;
    assert!(found.checks.iter().any(is_harm), "{}", found.why);
    let reno = evaluate("reno", "ecn", 4, 2, directory.path());
    assert_eq!(only(&reno).verdict, Verdict::Pass, "{}", only(&reno).why);
    for set in ["codel-ecn", "pie-ecn", "ecn-beside"] {
        let mut cases = reno.cases.iter().filter(|case| case.case.starts_with(set));
        let marked = |case: &CaseFigures| case.contenders["reno"].marked_ppm.is_some_and(|ppm| ppm > 0);
        assert!(cases.any(marked), "{set}: nothing was marked");
    }
}

/// Neither cores nor what the store has already change a byte of the report, of an algorithm from outside, too.
#[test]
fn reports_depend_on_neither_cores_nor_interruptions() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = evaluate("aimd", "data-centres", 3, 1, one.path());
    // A part of it was played before, by another algorithm's evaluation.
    evaluate("reno", "data-centres", 2, 1, other.path());
    let second = evaluate("aimd", "data-centres", 3, 3, other.path());
    assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&second).unwrap());
    assert_eq!(page::html(&first), page::html(&second));
    assert_eq!(text::markdown(&first), text::markdown(&second));
    let again: Evaluation = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
    assert_eq!(again, first);
}

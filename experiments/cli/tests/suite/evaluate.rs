//! `ccplane evaluate` as a person runs it.

use std::fs;

use crate::common::ccplane;
use serde_json::Value;

fn evaluate(arguments: &[&str]) -> String {
    let done = ccplane(&[&["evaluate"], arguments].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The reports are there, and the command that one prints for its worst case repeats that case to the bit.
#[test]
fn a_worst_case_is_repeated_alone() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().to_str().unwrap();
    let arguments = ["vegas", "--criterion", "data-centres", "--cases", "3", "--results", results];
    let shown = evaluate(&arguments);
    assert!(shown.contains("data-centres") && shown.trim().ends_with("vegas.html"), "{shown}");
    let report: Value =
        serde_json::from_str(&fs::read_to_string(directory.path().join("vegas.json")).unwrap()).unwrap();
    assert_eq!(
        (report["schema"].as_u64(), report["criteria"][0]["section"].as_str()),
        (Some(1), Some("7.11"))
    );
    let worst = &report["criteria"][0]["checks"][0]["worst"];
    let (case, command) = (worst["case"].as_str().unwrap(), worst["command"].as_str().unwrap());
    let (_, arguments) = command.split_once(" evaluate ").unwrap();
    let qlog = directory.path().join("case.qlog");
    let more = ["--json", "--qlog", qlog.to_str().unwrap()];
    let alone = evaluate(&[&arguments.split(' ').collect::<Vec<_>>()[..], &more].concat());
    let alone: Vec<Value> = alone.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = report["cases"].as_array().unwrap().iter().find(|of| of["case"] == case).unwrap();
    assert_eq!(alone.len(), 4);
    for cell in &alone {
        assert_eq!(of["contenders"][cell["algorithm"].as_str().unwrap()], cell["figures"]);
    }
    // The run is the same with a trace, which is of its flows.
    let trace = fs::read_to_string(&qlog).unwrap();
    let records: Vec<Value> =
        trace.lines().map(|line| serde_json::from_str(line.trim_start_matches('\u{1e}')).unwrap()).collect();
    assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
    let metrics = records.iter().filter(|record| record["name"] == "recovery:metrics_updated").count();
    assert!(metrics > 10 && trace.contains("vegas"), "{metrics}");
    let markdown = fs::read_to_string(directory.path().join("vegas.md")).unwrap();
    assert!(markdown.contains(command) && directory.path().join("vegas.html").exists());
}

#[test]
fn criteria_are_listed_and_cases_shown_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().to_str().unwrap();
    let listed = evaluate(&["--list"]);
    assert!(
        listed.contains("starvation (5.2, 7.3)") && listed.contains("not applicable: out of the RFC's scope")
    );
    let plan = evaluate(&["reno", "--case", "jitter-one/2", "--show"]);
    assert!(plan.contains("extra_jitter_ms = [0, ") && plan.contains("algorithm = \"cubic\""), "{plan}");
    let page = evaluate(&["reno", "--case", "incast/1", "--plots", "--results", results]);
    assert!(page.trim().ends_with("incast-1.html"), "{page}");
}

#[test]
fn what_there_is_not_is_refused() {
    let refused: [(&[&str], &str); 5] = [
        (&["none"], "no algorithm is called `none`"),
        (&["reno", "--case", "none/1"], "`none/1` names no case"),
        (&["reno", "--criterion", "none"], "no criterion is called `none`"),
        (&["reno", "--case", "incast/0", "--show", "--live", "1"], "cannot be used with"),
        (&[], "required"),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (arguments, why) in refused {
        let results = directory.path().join("results");
        let results = ["--results", results.to_str().unwrap()];
        let done = ccplane(&[&["evaluate"], arguments, &results[..]].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && said.contains(why), "{arguments:?}: {said}");
    }
}

/// Every shipped algorithm has its reports in the repository, and a column in their summary.
#[test]
fn each_shipped_algorithm_has_its_reports_in_the_repository() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../evaluations");
    let read = |name: String| fs::read_to_string(format!("{folder}/{name}"));
    let summary = read("summary.md".into()).unwrap();
    for algorithm in ccplane_algs::all() {
        let name = algorithm.name();
        let again = format!("make evaluations writes them, or: ccplane evaluate {name} --results {folder}");
        let page = read(format!("{name}.html")).unwrap_or_else(|error| panic!("{name}: {error}; {again}"));
        let text = read(format!("{name}.md")).unwrap_or_else(|error| panic!("{name}: {error}; {again}"));
        assert!(page.contains("<title>") && text.starts_with(&format!("# {name}: the criteria of RFC 9743")));
        assert!(summary.lines().next().unwrap().contains(&format!(" {name} |")), "{name}; {again}");
    }
}

//! `ccplane evaluate --live`: a drawn case repeated by kernel flows, beside the kernel's own algorithms; and a program held against its
//! namesake in the kernel.

use crate::common::{Home, stderr, stdout};
use ccplane_results::{RunFigures, RunOutcome};
use serde_json::Value;

/// Runs of the program and of the kernel's algorithm on one link.
const CONFORMANCE_RUNS: usize = 4;

/// A home with a name in the kernel of its own; none, which is said, where no link can be made.
pub(crate) fn home(check: &str) -> Option<Home> {
    if ccplane_testing::lacks(check, ccplane_runner::missing_for_links().first()) {
        return None;
    }
    let home = Home::new("");
    let run_dir = home.dir().display();
    home.configure(&format!("datapath.ebpf.name = \"ccd_{check}\"\ndatapath.ebpf.run_dir = \"{run_dir}\"\n"));
    Some(home)
}

/// One of three cases is drawn; its flows are really steered, and the kernel's references stand beside.
#[test]
fn a_drawn_share_runs_in_the_kernel() {
    let Some(home) = home("evaluate") else { return };
    let arguments =
        ["evaluate", "copa", "--criterion", "congestion-collapse", "--cases", "1", "--live", "0.5", "--json"];
    let done = home.command(&arguments).current_dir(home.dir()).output().unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    let report: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let live = report["live"].as_array().unwrap();
    assert_eq!(live.len(), 1, "{}", stderr(&done));
    assert_eq!(live[0]["case"], "blackout/0");
    let contenders = live[0]["contenders"].as_object().unwrap();
    let names: Vec<&str> = contenders.keys().map(String::as_str).collect();
    assert!(names.contains(&"copa") && names.contains(&"kernel reno"), "{names:?}");
    // Without any feedback nobody sends more than a packet now and then.
    for (name, figures) in contenders {
        let sent = figures["packets_per_1000_s"].as_u64().unwrap();
        assert!(sent < 20_000, "{name}: {sent}");
    }
    let check = &report["criteria"][0]["checks"][1];
    assert_eq!((check["set"].as_str(), check["live"]["cases"].as_u64()), (Some("blackout"), Some(1)));
    repeated(&home, live[0]["command"].as_str().unwrap(), &names);
}

/// Our Reno and the kernel's on one drawn link, four runs each of 20 s, side by side. The criterion has no scenarios, so nothing else runs.
#[test]
fn a_program_is_held_against_its_namesake_in_the_kernel() {
    let Some(home) = home("conformance") else { return };
    let arguments = ["evaluate", "reno", "--criterion", "multicast", "--cases", "1", "--live", "1", "--json"];
    let done = home.command(&arguments).current_dir(home.dir()).output().unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    let report: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let conformed = &report["conformance"];
    assert_eq!(conformed["algorithm"], "reno", "{}", stderr(&done));
    let links = conformed["links"].as_array().unwrap();
    assert_eq!((links.len(), conformed["judged"]["cases"].as_u64()), (1, Some(1)), "{conformed}");
    for share in ["conformance", "kernels_own"] {
        assert!((0.0..=1.0).contains(&links[0][share].as_f64().unwrap()), "{share}: {}", links[0]);
    }
    let mbit = |of: &str| {
        let points = links[0][of].as_array().unwrap();
        let sum: f64 = points.iter().map(|point| point["throughput_mbit"].as_f64().unwrap()).sum();
        sum / points.len() as f64
    };
    let (ours, kernels) = (mbit("ours"), mbit("kernels"));
    assert!((0.8..1.25).contains(&(ours / kernels)), "{ours} Mb/s by the program, {kernels} by the kernel");
    // The runs behind it: flows of the program were steered by it.
    let kept = home.dir().join("results/live/conformance/0/reno/runs.jsonl");
    let results = ccplane_results::read(&kept).unwrap();
    let of = |name: &str| -> Vec<&RunFigures> {
        let runs = results.runs.iter().filter(|run| run.contender == name);
        let measured = runs.filter_map(|run| match &run.outcome {
            RunOutcome::Ok(measured) => Some(&**measured),
            RunOutcome::Failed { .. } => None,
        });
        measured.collect()
    };
    let (program, kernel) = (of("program"), of("kernel"));
    assert_eq!((program.len(), kernel.len()), (CONFORMANCE_RUNS, CONFORMANCE_RUNS));
    let steered =
        |run: &&RunFigures| run.agent.is_some_and(|agent| agent.reports > 0 && agent.unsteered_flows == 0);
    assert!(program.iter().all(steered), "{:?}", program.iter().map(|run| run.agent).collect::<Vec<_>>());
}

/// The command that a live cell names runs its case in the kernel again, by the same contenders, and traces the program's flow.
fn repeated(home: &Home, command: &str, names: &[&str]) {
    let (_, arguments) = command.split_once(" evaluate ").unwrap();
    let more = ["--json", "--qlog", "case.qlog"];
    let arguments = [&["evaluate"], &arguments.split(' ').collect::<Vec<_>>()[..], &more].concat();
    let done = home.command(&arguments).current_dir(home.dir()).output().unwrap();
    assert!(done.status.success(), "{command}: {}", stderr(&done));
    let cells: Vec<Value> = stdout(&done).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let name = |cell: &Value| match (cell["datapath"].as_str().unwrap(), cell["algorithm"].as_str().unwrap())
    {
        ("kernel", algorithm) => format!("kernel {algorithm}"),
        ("ebpf", algorithm) => algorithm.to_owned(),
        other => panic!("{other:?} is not live"),
    };
    let mut played: Vec<String> = cells.iter().map(name).collect();
    played.sort_unstable();
    assert_eq!(played, names);
    let trace = std::fs::read_to_string(home.dir().join("case.qlog")).unwrap();
    let records: Vec<Value> =
        trace.lines().map(|line| serde_json::from_str(line.trim_start_matches('\u{1e}')).unwrap()).collect();
    // The kernel's own algorithms have no agent, so that the only flows in the trace are of the program.
    assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
    assert!(records[0]["trace"]["common_fields"]["reference_time"].as_f64().unwrap() > 0.0);
    let metrics = records.iter().filter(|record| record["name"] == "recovery:metrics_updated").count();
    assert!(metrics > 10 && trace.contains("copa"), "{metrics} records of {}", records.len());
}
